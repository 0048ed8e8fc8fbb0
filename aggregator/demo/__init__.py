"""Run a whole fleet on this machine for some minutes, and hold what Muster says of it against the truth."""
