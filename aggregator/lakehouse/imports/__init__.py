"""Take over what another monitoring system has kept: intervals in which senders were up or down."""
