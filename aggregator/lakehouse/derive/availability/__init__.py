"""Accounts of time: a state for every sender and window, and a check that the sums are right."""
