"""Connections to NATS, a client fit for links that fail for hours, and the JetStream API."""
