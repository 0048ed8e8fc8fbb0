"""The hub's stream: fixed ranges of it are read in parallel, and its past is checked."""
