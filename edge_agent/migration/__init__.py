"""Take over from choria-io/stream-replicator: its configuration, and what it knows of senders."""
