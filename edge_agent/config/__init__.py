"""The agent's settings: how the file is written, and what it amounts to."""
