"""Migration from choria-io/stream-replicator: its configuration, and its state of senders."""
