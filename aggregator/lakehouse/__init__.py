"""Roll the archive up into Iceberg tables with Spark; the only package that needs it."""
