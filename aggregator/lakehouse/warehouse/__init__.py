"""Apache Iceberg: catalog, commits, upkeep, and the lock of a job."""
