"""The centre: the topology of streams, the live status, and the tables that analysts query."""
