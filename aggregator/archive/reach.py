"""Say how far from the hub's own time a record's claims may lie. Nothing here needs Spark."""

from shared.instants import DAY, MINUTE

REACH = 5 * 365 * DAY
"""So long before the hub stored it may be what a record tells of: no link is cut for as long, and no store keeps as
much."""

LOOK_BACK = 400 * DAY
"""So long before its own instant may lie a last sighting, or since when an agent observed: else one body would make
every table as long as its claim."""

UNSUPPORTED = 30 * DAY
"""The same of the first word of a sender, where nothing else tells that it lived before."""

SKEW = MINUTE
"""Clocks of sites and of the hub differ by less; what claims more beyond the hub's time has no place in it."""
