"""Records as they came: decoded, staged, quarantined, each stored once."""
