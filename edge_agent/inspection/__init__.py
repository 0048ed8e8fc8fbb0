"""Show people what the store knows: senders, decisions, the outbox. Reads the file alone, whatever else is down."""
