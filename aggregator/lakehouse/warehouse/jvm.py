"""Reach classes of the JVM that Spark runs in."""

from typing import Any

from pyspark.sql import SparkSession


def java_class(spark: SparkSession, name: str) -> Any:
    """Give the Java class of a full name. Asked for package by package, each one is a search through all jars: 3 ms."""
    return getattr(spark._jvm, name)  # noqa: SLF001 - Python has no name for it


def make_active(spark: SparkSession) -> None:
    """Have the JVM's thread that serves this one go by the session's settings.

    Much of Spark asks its thread's active session, whichever session it was called on; and py4j's thread is another,
    which has none, after a connection was made anew.
    """
    session = spark._jsparkSession  # noqa: SLF001 - Python has no name for it
    java_class(spark, "org.apache.spark.sql.classic.SparkSession").setActiveSession(session)
