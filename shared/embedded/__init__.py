"""Real nats-servers, links and ports for demos and tests."""
