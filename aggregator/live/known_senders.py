"""Tell whether the hub has ever heard of the senders that an order names: a name that is mistyped does nothing."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import msgspec

from aggregator.live.store import VERSION
from shared.command_line.similar_names import similar_names
from shared.instants import SECOND, format_instant
from shared.policy import Scope

_MOST_NAMED = 3
_IN_SCOPE = (
    "SELECT number FROM block WHERE region = :region AND (:site = '' OR site = :site) AND (:block = '' OR block ="
    " :block)"
)
_KNOWN = f"SELECT name FROM sender WHERE block IN ({_IN_SCOPE})"
_IS_KNOWN = f"SELECT EXISTS ({_KNOWN} AND name = :name)"
# Names have no index but that of each block.
_ELSEWHERE = (
    "SELECT region, site, block.block FROM block CROSS JOIN sender ON sender.block = block.number AND name = ? LIMIT 1"
)


def unheard_of(path: Path, scope: Scope, sender_ids: Iterable[str]) -> str:
    """Name in one line the senders that the live state in a file knows nothing of in a scope, and what may be meant.

    Give "" where it knows all, and where there is no state to be read.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return _line(database, scope, list(sender_ids))
    except sqlite3.Error:
        return ""


def _line(database: sqlite3.Connection, scope: Scope, sender_ids: list[str]) -> str:
    found = database.execute("SELECT version, known_through FROM position").fetchone()
    if not sender_ids or found is None or found[0] != VERSION:
        return ""
    where = msgspec.structs.asdict(scope)
    # One by one: in a list that is one parameter, of JSON, SQLite ends a name at a NUL.
    unheard = [name for name in sender_ids if not database.execute(_IS_KNOWN, where | {"name": name}).fetchone()[0]]
    if not unheard:
        return ""
    named = [f"{name!r}{_meant(database, where, name)}" for name in unheard[:_MOST_NAMED]]
    if len(unheard) > _MOST_NAMED:
        named.append(f"{len(unheard) - _MOST_NAMED:,} more")
    as_of = format_instant(found[1] - found[1] % SECOND)
    return f"nobody at {scope} has heard of {', '.join(named)} as of {as_of}"


def _meant(database: sqlite3.Connection, where: dict[str, str], name: str) -> str:
    elsewhere = database.execute(_ELSEWHERE, (name,)).fetchone()
    if elsewhere is not None:
        return f" (known at {'.'.join(elsewhere)})"
    similar = similar_names(database, _KNOWN, name, where)
    return f" (did you mean {' or '.join(similar)}?)" if similar else ""
