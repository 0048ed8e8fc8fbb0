"""Status, health, metrics and log of the agent, and its notices to systemd."""
