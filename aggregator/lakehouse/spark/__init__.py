"""Spark and its Java: session, jars, master, and the SQL server."""
