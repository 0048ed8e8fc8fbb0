"""Read the hub's archive, and judge what is in it: for the live fleet and for the tables alike."""
