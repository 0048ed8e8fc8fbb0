"""Compose the live service with the policy and the tables, which know nothing of each other; show it in terminals."""
