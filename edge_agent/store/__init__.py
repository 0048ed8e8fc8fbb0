"""The agent's state and its outbox in one SQLite file: one transaction per batch."""
