"""Incidents of the fleet: their rules, their file, and their delivery to receivers."""
