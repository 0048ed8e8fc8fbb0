"""The commands of ``muster-aggregator`` that work on the tables."""
