"""The senders that a page shows, and how it groups them: by site, by region, by a part of their names."""

from collections.abc import Sequence
from typing import NamedTuple

from aggregator.lakehouse.imports.name_shape import InvalidShape, NameShape
from aggregator.lakehouse.query.table_scan import quoted

MOST_GROUPS = 400


class InvalidGrouping(ValueError):
    """Senders cannot be grouped so. The text is one line."""


class Grouping(NamedTuple):
    """How senders are grouped. ``noun`` names one group; ``place`` and ``name`` are its SQL."""

    noun: str
    place: str
    name: str

    @property
    def is_by_site(self) -> bool:
        return self == BY_SITE

    @property
    def is_by_name(self) -> bool:
        """True if groups come from parts of senders' names."""
        return "sender_id" in self.name


BY_SITE = Grouping("site", "region", "site")
BY_REGION = Grouping("region", "''", "region")


class Choice(NamedTuple):
    """A reader's choice: a period as ``choose_period`` reads it, a grouping, and the regions and sites, () for all."""

    since: str | None = None
    until: str | None = None
    grouping: Grouping = BY_SITE
    regions: Sequence[str] = ()
    sites: Sequence[str] = ()

    @property
    def condition(self) -> str:
        """Write as SQL which rows are chosen, of a table with ``region`` and ``site``."""
        chosen = (("region", self.regions), ("site", self.sites))
        parts = [f"{column} IN ({', '.join(map(quoted, names))})" for column, names in chosen if names]
        return " AND ".join(parts) or "true"


def parse_grouping(text: str) -> Grouping:
    """Read ``site``, ``region`` or a shape of names; raise InvalidGrouping.

    >>> parse_grouping("{}-{rack}-{}").noun
    'rack'
    """
    if text in ("site", "region"):
        return BY_SITE if text == "site" else BY_REGION
    if "{" not in text:
        raise InvalidGrouping(
            f"not a grouping: {text!r}, write site, region or the shape of names, as {{}}-{{rack}}-{{}}"
        )
    try:
        shape = NameShape(text)
    except InvalidShape as error:
        raise InvalidGrouping(str(error)) from error
    pattern = quoted(f"^(?:{shape.pattern})$")
    parts = ", ".join(f"regexp_extract(sender_id, {pattern}, {number})" for number in range(1, len(shape.words) + 1))
    name = f"CASE WHEN regexp_matches(sender_id, {pattern}) THEN concat_ws('/', {parts}) ELSE '' END"
    return Grouping("/".join(shape.words), "''", name)
