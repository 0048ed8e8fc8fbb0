"""What JetStream says there is, read by raw requests."""
