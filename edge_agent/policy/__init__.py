"""The hub's policy: its reader, and its effect on a block."""
