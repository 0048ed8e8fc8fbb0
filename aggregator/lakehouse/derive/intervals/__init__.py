"""The lives of senders: episodes, and the intervals in which each was up or down."""
