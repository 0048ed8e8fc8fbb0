"""Replication as the documentation of NATS describes it, played on real servers for people and tests."""
