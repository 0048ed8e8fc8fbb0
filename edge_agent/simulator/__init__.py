"""A simulated fleet that registers like a real one, fails by a script, and writes when each sender was up."""
