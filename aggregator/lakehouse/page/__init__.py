"""Show the tables to people: one self-contained page, readable by someone who never heard of Muster."""
