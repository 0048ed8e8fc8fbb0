"""Decide what is an incident, keep it, and tell receivers."""
