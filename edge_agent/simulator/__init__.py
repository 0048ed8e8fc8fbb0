"""A fleet that registers like a real one, goes down by a script, and says afterwards who was up when."""
