"""Reading of the hub's archive, for the live service and the tables alike."""
