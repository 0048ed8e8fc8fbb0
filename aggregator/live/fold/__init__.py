"""Fold the archive into the state of every sender, block and site, and view that state at an instant. Pure."""
