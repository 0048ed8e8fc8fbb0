"""The reading loop: read, decide, commit, acknowledge; one transaction for each batch."""
