"""Helpers of a long-running process: links, pace, memory, counts."""
