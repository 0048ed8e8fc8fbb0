"""The edge agent: it calls a site's roll, forwards a sample, and tells who is new, stale, back or gone."""
