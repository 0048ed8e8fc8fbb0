"""Keep the folded state in one SQLite file, with the position of the archive that it stands for.

Each batch is one transaction: what a restart reads is the state after a whole number of messages, and never more. A
file of another archive, or of another version of the fold, is set aside, and the archive is read from its start.
"""

import sqlite3
import threading
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from aggregator.archive.hub_clock import ClockStep, HubClock
from aggregator.live.api import Counts, HistoryPoint
from aggregator.live.fold.changes import Changes, Revision, StoryEntry
from aggregator.live.fold.coverage import Block
from aggregator.live.fold.fleet import KEPT, Fleet
from aggregator.live.fold.senders import RETIRED, UP, WIDTH
from shared.command_line.similar_names import escaped_for_like
from shared.instants import DAY

VERSION = 6
"""Of what the tables hold, and of the rules by which it came to be."""

_SCHEMA = """
CREATE TABLE position (
    one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER NOT NULL, stream TEXT NOT NULL,
    created_at INTEGER NOT NULL, choria_region TEXT NOT NULL, sequence INTEGER NOT NULL, known_through INTEGER NOT NULL,
    stamped_through INTEGER NOT NULL, step BLOB NOT NULL, steps BLOB NOT NULL
);
CREATE TABLE block (number INTEGER PRIMARY KEY, region TEXT NOT NULL, site TEXT NOT NULL, block TEXT NOT NULL,
    state BLOB NOT NULL);
CREATE TABLE sender (
    number INTEGER PRIMARY KEY, block INTEGER NOT NULL, name TEXT NOT NULL, state INTEGER NOT NULL,
    word INTEGER NOT NULL, rank INTEGER NOT NULL, at INTEGER NOT NULL, last_seen INTEGER NOT NULL,
    since INTEGER NOT NULL, floor INTEGER NOT NULL, event BLOB NOT NULL, head INTEGER NOT NULL, until INTEGER NOT NULL
);
CREATE UNIQUE INDEX sender_by_name ON sender (block, name);
CREATE INDEX sender_in_trouble ON sender (state, block, name) WHERE state <> 1 AND state <> 3;
CREATE TABLE story (sequence INTEGER PRIMARY KEY, sender INTEGER NOT NULL, previous INTEGER NOT NULL,
    archived_at INTEGER NOT NULL, entry BLOB NOT NULL);
CREATE TABLE gap (block INTEGER NOT NULL, started_at INTEGER NOT NULL, ended_at INTEGER NOT NULL,
    PRIMARY KEY (block, started_at, ended_at)) WITHOUT ROWID;
CREATE TABLE revision (stream_created_at INTEGER NOT NULL, revision INTEGER NOT NULL, record BLOB NOT NULL,
    PRIMARY KEY (stream_created_at, revision)) WITHOUT ROWID;
CREATE TABLE history (at INTEGER PRIMARY KEY, up INTEGER NOT NULL, stale INTEGER NOT NULL, unknown INTEGER NOT NULL,
    maintenance INTEGER NOT NULL, retired INTEGER NOT NULL);
"""


_COLUMNS = "block, name, state, word, at, last_seen, since, head"
_DELETE_STORY = (
    "DELETE FROM story WHERE sequence IN (WITH RECURSIVE told (sequence) AS (SELECT ? UNION ALL SELECT previous"
    " FROM story JOIN told USING (sequence)) SELECT sequence FROM told)"
)
_STORY_WIDTH = 5
_decode_entry = msgspec.msgpack.Decoder(StoryEntry).decode
_VALUES_AT_ONCE = 999
"""SQLite before 3.32 (EL8) binds no more to a statement."""
HISTORY = 7 * DAY
"""For so long the fleet's counts are kept."""
_PRUNED_AT_ONCE = 20_000


def set_aside_damaged(paths: Iterable[Path]) -> list[Path]:
    """Give a file that is no whole database, and that nobody has open, another name; give the new names."""
    moved = []
    for path in paths:
        try:
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
                if database.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",):
                    continue
        except sqlite3.OperationalError:
            # It is not there, or cannot be read now.
            continue
        except sqlite3.DatabaseError:
            pass
        moved.append(path.replace(path.with_name(f"{path.name}.damaged")))
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
    return moved


class Wanted(NamedTuple):
    """Which senders of a block are wanted: in these states, with this in the name, of these names, not of others."""

    states: frozenset[int]
    search: str = ""
    names: frozenset[str] | None = None
    others: frozenset[str] = frozenset()


class StoredSender(NamedTuple):
    """A sender as pages show it; instants in microseconds."""

    block: int
    name: str
    state: int
    word: int
    at: int
    last_seen: int
    since: int
    head: int


class ArchiveId(NamedTuple):
    """Which archive a state is of: its name, its creation (microseconds), and whose plain advisories are taken."""

    stream: str
    created_at: int
    choria_region: str = ""


class LiveStore:
    """The file. One writer; whoever only reads opens a connection of its own (``read_only``)."""

    def __init__(self, path: Path) -> None:
        self.path, self._writing, self._is_closed = path, threading.RLock(), False
        self._pruned_through = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        # Twice the usual: fewer pages to write while a long archive is read, and a burst is told no later.
        self._database.execute("PRAGMA page_size = 8192")
        self._database.execute("PRAGMA journal_mode = WAL")
        # A power cut may take the last batches with it, and never tears one: they are read again from the archive.
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.execute("PRAGMA cache_size = -65536")
        self._database.execute("PRAGMA wal_autocheckpoint = 8192")
        if not self._database.execute("SELECT 1 FROM sqlite_master WHERE name = 'position'").fetchone():
            self._database.executescript(f"BEGIN; {_SCHEMA} COMMIT;")

    @classmethod
    def copy_of(cls, path: Path, copy: Path) -> Self:
        """Copy a file that may be written to meanwhile, as of one transaction, and open the copy."""
        with (
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(copy)) as to,
        ):
            source.backup(to)
        return cls(copy)

    def close(self) -> None:
        """Close the file, once a transaction that is under way has ended."""
        with self._writing:
            self._is_closed = True
            self._database.close()

    def load(self, origin: ArchiveId) -> Fleet | None:
        """Give the state of ``origin``; None where the file holds none, or another's."""
        found = self._database.execute("SELECT version, stream, created_at, choria_region FROM position").fetchone()
        if found != (VERSION, *origin):
            return None
        fleet = Fleet(origin.choria_region, self.entry)
        fleet.sequence, fleet.stamped_through, known_through, step, steps = self._database.execute(
            "SELECT sequence, stamped_through, known_through, step, steps FROM position"
        ).fetchone()
        fleet.clock = HubClock(known_through, msgspec.msgpack.decode(step, type=ClockStep | None))
        fleet.steps = msgspec.msgpack.decode(steps, type=list[ClockStep])
        for (state,) in self._database.execute("SELECT state FROM block ORDER BY number"):
            fleet.restore_block(msgspec.msgpack.decode(state, type=Block))
        rows = self._database.execute("SELECT * FROM sender ORDER BY number")
        fleet.senders.restore(rows)
        for (record,) in self._database.execute("SELECT record FROM revision"):
            revision = msgspec.msgpack.decode(record, type=Revision)
            fleet.revisions[revision.stream_created_at, revision.revision] = revision
        fleet.restored()
        return fleet

    def entry(self, sequence: int) -> StoryEntry | None:
        """Give an advisory by its archive sequence; None where it is not kept."""
        return _entry(self._database, sequence)

    @property
    def is_of_another(self) -> bool:
        """Tell whether anything was written into the file before."""
        return self._database.execute("SELECT 1 FROM position").fetchone() is not None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Give the connection for one transaction, which is committed at the end, or not at all.

        There is one at a time: batches are committed in a thread of their own.
        """
        with self._writing:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")

    def write(self, database: sqlite3.Connection, origin: ArchiveId, fleet: Fleet, changes: Changes) -> None:
        """Write what has changed, and the position, within a transaction."""
        database.executemany(
            "INSERT INTO block VALUES (?, ?, ?, ?, ?) ON CONFLICT (number) DO UPDATE SET state = excluded.state",
            (
                (number, block.region, block.site, block.block, msgspec.msgpack.encode(block))
                for number in changes.blocks
                for block in (fleet.blocks[number],)
            ),
        )
        database.executemany("DELETE FROM sender WHERE number = ?", ((sender,) for sender, _ in changes.forgotten))
        database.executemany(_DELETE_STORY, ((head,) for _, head in changes.forgotten))
        _insert(
            database, "INSERT INTO sender", WIDTH, fleet.senders.records(sorted(changes.senders)),
            " ON CONFLICT (number) DO UPDATE SET state = excluded.state, word = excluded.word, rank = excluded.rank,"
            " at = excluded.at, last_seen = excluded.last_seen, since = excluded.since, floor = excluded.floor,"
            " event = excluded.event, head = excluded.head, until = excluded.until",
        )  # fmt: skip
        _insert(database, "INSERT OR IGNORE INTO story", _STORY_WIDTH, _story_rows(changes.entries))
        database.executemany("INSERT OR IGNORE INTO gap VALUES (?, ?, ?)", changes.gaps)
        database.executemany(
            "INSERT OR REPLACE INTO revision VALUES (?, ?, ?)",
            ((each.stream_created_at, each.revision, msgspec.msgpack.encode(each)) for each in changes.revisions),
        )
        database.execute(
            "INSERT OR REPLACE INTO position VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                VERSION,
                *origin,
                fleet.sequence,
                fleet.known_through,
                fleet.stamped_through,
                msgspec.msgpack.encode(fleet.clock.step),
                msgspec.msgpack.encode(fleet.steps),
            ),
        )

    def prune(self, database: sqlite3.Connection, before: int, contested: Container[int]) -> None:
        """Let go of the next advisories that another one followed ``before`` an instant, within a transaction.

        Of blocks that are ``contested`` all is kept: who is believed may change, from the beginning of the contest on.
        """
        rows = database.execute(
            "SELECT story.sequence, previous, archived_at, block FROM story JOIN sender ON sender.number = story.sender"
            " WHERE story.sequence > ? ORDER BY story.sequence LIMIT ?",
            (self._pruned_through, _PRUNED_AT_ONCE),
        ).fetchall()
        passed = [row for row in rows if row[2] < before]
        gone = ((previous,) for _, previous, _, block in passed if previous and block not in contested)
        database.executemany("DELETE FROM story WHERE sequence = ?", gone)
        database.execute("DELETE FROM gap WHERE ended_at < ?", (before,))
        self._pruned_through = passed[-1][0] if passed else self._pruned_through

    def sample(self, point: HistoryPoint, contested: Container[int] = ()) -> None:
        """Note the fleet's counts at an instant, and let go of what is older than ``HISTORY`` and ``KEPT``.

        It may wait for a commit. Where the file was closed meanwhile, nothing is noted.
        """
        counts = point.counts
        with self._writing:
            if self._is_closed:
                return
            with self.transaction() as database:
                database.execute(
                    "INSERT OR REPLACE INTO history VALUES (?, ?, ?, ?, ?, ?)",
                    (point.at_us, counts.up, counts.stale, counts.unknown, counts.maintenance, counts.retired),
                )
                database.execute("DELETE FROM history WHERE at < ?", (point.at_us - HISTORY,))
                self.prune(database, point.at_us - KEPT, contested)


def stored_position(path: Path, origin: ArchiveId) -> int | None:
    """Say at which message of ``origin`` a file stands; None where it is another's, or empty."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'position'").fetchone():
            return None
        found = database.execute("SELECT version, stream, created_at, choria_region, sequence FROM position").fetchone()
        return int(found[4]) if found is not None and found[:4] == (VERSION, *origin) else None


class StoreReader:
    """Reads what was committed, for one thread at a time; ``generation`` tells one file of a path from the next."""

    def __init__(self, path: Path, generation: int = 0) -> None:
        self.generation = generation
        self._database = sqlite3.connect(f"file:{path}?mode=ro", uri=True, check_same_thread=False)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def senders(self, block: int, wanted: Wanted, after: str, limit: int, offset: int = 0) -> list[StoredSender]:
        """List senders of a block by name, behind the name ``after``, or from a place on."""
        conditions, values = _conditions(wanted)
        query = f"SELECT {_COLUMNS} FROM sender WHERE block = ? AND name > ?{conditions} ORDER BY name LIMIT ? OFFSET ?"
        rows = self._database.execute(query, (block, after, *values, limit, offset))
        return [StoredSender(*row) for row in rows]

    def count(self, block: int, wanted: Wanted) -> int:
        """Count senders of a block."""
        conditions, values = _conditions(wanted)
        query = f"SELECT count(*) FROM sender WHERE block = ?{conditions}"
        found: int = self._database.execute(query, (block, *values)).fetchone()[0]
        return found

    def sender(self, block: int, name: str) -> StoredSender | None:
        """Give one sender."""
        query = f"SELECT {_COLUMNS} FROM sender WHERE block = ? AND name = ?"
        row = self._database.execute(query, (block, name)).fetchone()
        return StoredSender(*row) if row else None

    def story(self, head: int, limit: int) -> list[StoryEntry]:
        """Give the last advisories of a sender, the last told first; ``head`` is the archive sequence of that one."""
        found: dict[str, StoryEntry] = {}
        while head and len(found) < limit:
            each = _entry(self._database, head)
            if each is None:
                break
            found.setdefault(each.event_id, each)
            head = each.previous
        return list(found.values())

    def entries_before(self, sequence: int, limit: int) -> list[tuple[StoryEntry, int, str]]:
        """Give advisories told before an archive sequence (0: the last ones), newest first, with block and sender."""
        query = (
            "SELECT entry, block, name FROM story JOIN sender ON sender.number = story.sender"
            " WHERE story.sequence < ? ORDER BY story.sequence DESC LIMIT ?"
        )
        rows = self._database.execute(query, (sequence or 1 << 62, limit))
        return [(_decode_entry(entry), block, name) for entry, block, name in rows]

    def gaps(self, block: int, limit: int) -> list[tuple[int, int]]:
        """Give the last times of which nothing was known of a block."""
        query = "SELECT started_at, ended_at FROM gap WHERE block = ? ORDER BY started_at DESC LIMIT ?"
        return self._database.execute(query, (block, limit)).fetchall()

    def history(self, since: int) -> list[HistoryPoint]:
        """Give the fleet's counts since an instant."""
        rows = self._database.execute("SELECT * FROM history WHERE at >= ? ORDER BY at", (since,))
        return [HistoryPoint(at, Counts(*counts)) for at, *counts in rows]


def _entry(database: sqlite3.Connection, sequence: int) -> StoryEntry | None:
    row = database.execute("SELECT entry FROM story WHERE sequence = ?", (sequence,)).fetchone()
    return _decode_entry(row[0]) if row else None


def _story_rows(entries: Sequence[StoryEntry]) -> list[Any]:
    """Give all of some entries, one behind the other: ``_STORY_WIDTH`` columns of the table ``story``, in its order."""
    values: list[Any] = [0] * (_STORY_WIDTH * len(entries))
    for place, column in enumerate(("sequence", "sender", "previous", "archived_at")):
        values[place::_STORY_WIDTH] = list(map(attrgetter(column), entries))
    values[_STORY_WIDTH - 1 :: _STORY_WIDTH] = list(map(msgspec.msgpack.encode, entries))
    return values


def _insert(database: sqlite3.Connection, into: str, width: int, values: list[Any], otherwise: str = "") -> None:
    """Insert rows of ``width`` values each, many by each statement: to begin and to end one costs more than a row."""
    row, at_once = f"({', '.join('?' * width)})", _VALUES_AT_ONCE // width * width
    for begin in range(0, len(values), at_once):
        some = values[begin : begin + at_once]
        database.execute(f"{into} VALUES {', '.join([row] * (len(some) // width))}{otherwise}", some)


def _conditions(wanted: Wanted) -> tuple[str, list[str]]:
    """Write what is wanted as conditions, with the values of their parameters."""
    conditions, values = f" AND state IN ({', '.join(map(str, sorted(wanted.states)))})", list[str]()
    if not wanted.states & {UP, RETIRED}:
        # In the words of the index for these.
        conditions += " AND state <> 1 AND state <> 3"
    if wanted.search:
        conditions += " AND name LIKE ? ESCAPE '\\'"
        values.append(f"%{escaped_for_like(wanted.search)}%")
    # A list is one parameter: SQLite bounds their number, and maintenance may name more senders.
    if wanted.names is not None:
        conditions += " AND name IN (SELECT value FROM json_each(?))"
        values.append(msgspec.json.encode(wanted.names).decode())
    if wanted.others:
        conditions += " AND name NOT IN (SELECT value FROM json_each(?))"
        values.append(msgspec.json.encode(wanted.others).decode())
    return conditions, values
