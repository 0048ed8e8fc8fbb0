"""The streams of hub, regions and sites: what they should be, what they are, the difference, and how they do."""
