"""Intervals of senders: their episodes, and the times in which each was up or down."""
