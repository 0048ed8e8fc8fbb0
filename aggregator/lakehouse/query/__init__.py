"""Queries of the tables without Java: DuckDB over Iceberg."""
