"""What the agent says of itself: status, health, metrics, log, systemd."""
