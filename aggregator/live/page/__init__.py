"""Show the live fleet in a browser: one document, whose modules ask the service and hear what changes."""
