"""Fold the archive into what every sender, block and site is, and look at it as of an instant. Pure."""
