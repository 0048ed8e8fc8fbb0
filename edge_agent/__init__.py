"""The edge agent: it forwards a sample of a site's registrations, and reports new, stale and retired senders."""
