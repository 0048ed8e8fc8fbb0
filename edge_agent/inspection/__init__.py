"""Commands on the store's content: senders, decisions, the outbox. They read the file alone, whatever else is down."""
