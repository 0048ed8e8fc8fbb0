"""The store's marker: a small file that proves that there is a store, and how much it has committed.

Everything that leaves for the region was committed before, and is noted here before it leaves. So a file that is empty
or older (as SQLite leaves one whose log is gone) is recognised by comparing it with its marker. The note survives the
agent's death immediately, and a power loss some seconds later.
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
    """Return the largest row id that any outbox has ever had."""
    ((found,),) = database.execute(_LAST_ROW_ID, (_TABLES,))
    return int(found)


class CommitNote(msgspec.Struct, frozen=True):
    """The id of the last row that any outbox has had, and the names of the blocks in the store."""

    last_row_id: int = 0
    blocks: tuple[str, ...] = ()

    def exceeds(self, database: sqlite3.Connection) -> bool:
        """Return True if a store lacks some of this."""
        if self == CommitNote():
            return False
        # A damaged index lacks names that the table has.
        known = {name for (name,) in database.execute("SELECT name FROM block NOT INDEXED")}
        return bool(last_row_id(database) < self.last_row_id or not known.issuperset(self.blocks))


_commit_note = Decoder(CommitNote, "a note of a commit")


def marker_of(store_path: Path) -> Path:
    return store_path.with_name(store_path.name + ".marker")


def read_marker(store_path: Path) -> CommitNote:
    """Read a store's note; an empty one if there is none, or it is incomplete."""
    try:
        return _commit_note(marker_of(store_path).read_bytes())
    except (FileNotFoundError, WireError):
        return CommitNote()


def forget(store_path: Path) -> None:
    """Empty the note of a store that replaces another; the marker stays, as the proof that there was a store."""
    with contextlib.suppress(FileNotFoundError):
        os.truncate(marker_of(store_path), 0)


class Marker:
    """The note of one run on a store. If the disk refuses a newer note, the older one stays, which is also true."""

    def __init__(self, store_path: Path) -> None:
        self._path = marker_of(store_path)
        self._noted = read_marker(store_path)
        self._is_synced = True

    def note(self, last_row_id: int, blocks: Iterable[str]) -> None:
        """Raise the note to the committed state; never lower it. No sync, since every batch calls this."""
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
        """Write the note through to the disk, so that it survives a power loss."""
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
