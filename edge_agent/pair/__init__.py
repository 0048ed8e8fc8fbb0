"""Redundant pair: two agents serve one site; one leads, the other follows in step and takes over."""
