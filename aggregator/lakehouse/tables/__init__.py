"""Contracts of the tables: schemas, views, positions."""
