"""What there should be, and the words for it: settings, streams, copies and what confines them. Pure."""
