"""Helpers of a long-running process: tasks, back-off, memory, terminal."""
