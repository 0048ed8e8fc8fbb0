"""The agent's decisions, without I/O: time is an argument; nothing here reads a clock, draws, logs or awaits."""
