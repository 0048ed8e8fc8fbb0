"""Say beside a store that there is one, and what it has committed: a file that holds less is not that store any more.

What leaves for the region was committed before, and is noted here before it leaves: so an empty or older file, as
SQLite leaves one whose log is gone, is told from the store by looking at both. The note survives the agent's death at
once, and a power loss some seconds later.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from edge_agent.store import schema
from shared.decoding import Decoder, WireError

_TABLES = msgspec.json.encode([*schema.OUTBOXES.values(), *schema.CHUNKS.values()]).decode()
_LAST_ROW_ID = "SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name IN (SELECT value FROM json_each(?))"


def last_row_id(database: sqlite3.Connection) -> int:
    """Give the id of the newest record that there ever was in any outbox."""
    ((found,),) = database.execute(_LAST_ROW_ID, (_TABLES,))
    return int(found)


class CommitNote(msgspec.Struct, frozen=True):
    """The id of the last row that came into any outbox, and the blocks that the store knows."""

    last_row_id: int = 0
    blocks: tuple[str, ...] = ()

    def exceeds(self, database: sqlite3.Connection) -> bool:
        """Tell whether a store lacks some of it."""
        if self == CommitNote():
            return False
        # An index that is damaged lacks names that are there.
        known = {name for (name,) in database.execute("SELECT name FROM block NOT INDEXED")}
        return bool(last_row_id(database) < self.last_row_id or not known.issuperset(self.blocks))


_commit_note = Decoder(CommitNote, "a note of a commit")


def marker_of(store_path: Path) -> Path:
    return store_path.with_name(store_path.name + ".marker")


def read_marker(store_path: Path) -> CommitNote:
    """Read what was noted; nothing where nothing was, or what stands there was not written to its end."""
    try:
        return _commit_note(marker_of(store_path).read_bytes())
    except (FileNotFoundError, WireError):
        return CommitNote()


def forget(store_path: Path) -> None:
    """Note nothing of the store that takes the place of another; what says that there was one stays."""
    with contextlib.suppress(FileNotFoundError):
        os.truncate(marker_of(store_path), 0)


class Marker:
    """What one run on a store notes. A disk that does not take it leaves an older note, which is true as well."""

    def __init__(self, store_path: Path) -> None:
        self._path = marker_of(store_path)
        self._noted = read_marker(store_path)
        self._is_synced = True

    def note(self, last_row_id: int, blocks: Iterable[str]) -> None:
        """Note what has been committed, and take nothing back. No sync: this is done with every batch."""
        known = self._noted.blocks
        committed = CommitNote(
            max(last_row_id, self._noted.last_row_id), (*known, *(each for each in blocks if each not in known))
        )
        if committed == self._noted:
            return
        body = msgspec.json.encode(committed)
        with contextlib.suppress(OSError), _open(self._path) as file:
            os.pwrite(file, body, 0)
            if os.fstat(file).st_size != len(body):
                os.ftruncate(file, len(body))
            self._noted, self._is_synced = committed, False

    def sync(self) -> None:
        """Let the note survive a power loss."""
        if self._is_synced:
            return
        with contextlib.suppress(OSError), _open(self._path) as file:
            os.fdatasync(file)
            self._is_synced = True


@contextlib.contextmanager
def _open(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o640)
    try:
        yield file
    finally:
        os.close(file)
