"""The commands of the live fleet: serve, top, sender, verify."""
