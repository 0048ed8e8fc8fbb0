"""Show what is up right now, from what the hub's archive has told: fold, store, feed and service."""
