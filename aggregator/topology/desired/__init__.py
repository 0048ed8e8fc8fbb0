"""What there should be, derived from ``topology.toml``. Pure."""
