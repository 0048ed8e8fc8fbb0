"""A hub and two spokes with domains, leaf nodes and accounts."""
