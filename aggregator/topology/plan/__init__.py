"""The ordered difference between what should be and what was found. Pure."""
