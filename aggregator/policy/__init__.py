"""What the hub tells its sites: said, shown, and who has taken it."""
