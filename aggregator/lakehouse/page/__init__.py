"""Show the tables to people: one self-contained page that needs no knowledge of Muster."""
