"""Reach classes of the JVM that Spark runs in."""

from typing import Any

from pyspark.sql import SparkSession


def java_class(spark: SparkSession, name: str) -> Any:
    """Give the Java class of a full name. Asked for package by package, each one is a search through all jars: 3 ms."""
    return getattr(spark._jvm, name)  # noqa: SLF001 - Python has no name for it
