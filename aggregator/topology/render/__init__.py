"""Configurations of nats-servers, with keys and permissions."""
