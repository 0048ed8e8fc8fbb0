"""Import of another monitoring system's history: intervals in which senders were up or down."""
