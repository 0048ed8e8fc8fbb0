"""The outbox's way to the region: lanes, flow control, and the region that acknowledges."""
