"""The hub's orders: how they arrive, and what they do to a block."""
