"""Tell damage from all else that goes wrong with a store: what stands in it cannot be what an agent wrote.

SQLite looks after its own structure, not after what stands in rows: a sector that a power loss left empty, in the midst
of a record, is sound to it.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_NO_TEXT = "Could not decode to UTF-8"


class StoreDamaged(Exception):
    """The store cannot be read; the message says what was found.

    ``is_proven`` where that is what stands there. SQLite's word is none: it calls a file malformed that its disk fails
    to give (EIO), too.
    """

    def __init__(self, found: str, *, is_proven: bool = True) -> None:
        super().__init__(found)
        self.is_proven = is_proven


@contextmanager
def noticing_damage() -> Iterator[None]:
    """Raise StoreDamaged for whatever says that the file is damaged, and leave all other errors as they are."""
    try:
        yield
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreDamaged(str(error)) from error
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        raise StoreDamaged(str(error), is_proven=not may_be_the_disk(error)) from error


def is_damage(error: sqlite3.Error) -> bool:
    """Tell whether SQLite found the file damaged; Python, which reads its texts, gives no code where one is none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED or str(error).startswith(_NO_TEXT)


def may_be_the_disk(error: sqlite3.Error) -> bool:
    """Tell whether SQLite says of damage what it says of a disk that fails to read (SQLITE_IOERR_CORRUPTFS), too."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT
