"""Account for every sender and window, and refuse what does not add up."""
