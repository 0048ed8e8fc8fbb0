"""Say for which time each block is known, what was declared of it, and why the rest is unknown."""
