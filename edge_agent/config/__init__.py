"""The agent's settings file, and the settings in effect."""
