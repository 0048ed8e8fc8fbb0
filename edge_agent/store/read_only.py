"""Read-only access to the store's file, without disturbing the agent, also while it is down."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from edge_agent.store import schema
from edge_agent.store.files import RESTART_CLEANLY, RESTORE_FILE, displacement, identity_of, lock_of, note_of
from edge_agent.store.marker import read_marker
from edge_agent.store.sqlite import is_damage, may_be_the_disk
from shared.decoding import WireError
from shared.system_errors import reason_of

BUSY_PATIENCE = 5.0
SECOND_LOOK = 0.3
_LOCKS = Path("/proc/locks")
_SET_ASIDE = "the agent sets it aside when it starts"
_DISK = "its disk fails: muster-agent doctor tells"
_READERS = "root, the agent's user and its group may read it"


class StoreUnreadable(Exception):
    """The store cannot be read; the message names the reason and the remedy."""


class StoreForbidden(StoreUnreadable):
    """There is a store, and this user may not read it."""


class StoreMissing(StoreUnreadable):
    """There is no store: no agent has run on it yet, or the file was moved."""


class StoreDisplaced(StoreUnreadable):
    """An agent runs on another file than the one at this path."""


def holds_less(path: Path) -> bool:
    """Return True if a readable store lacks something that had been committed to it."""
    # Read before the store: a commit in between is noted only afterwards.
    committed = read_marker(path)
    try:
        with store_reader(path) as database:
            return committed.exceeds(database)
    except (StoreUnreadable, OSError):
        return False


def is_held(path: Path) -> bool | None:
    """Return True if a process holds the store's lock, None if the kernel does not report it. Takes no lock itself."""
    try:
        wanted = lock_of(path).stat().st_ino
        locks = [line.split() for line in _LOCKS.read_text().splitlines()]
    except FileNotFoundError as error:
        return None if error.filename == str(_LOCKS) else False
    except OSError:
        return None
    return any("FLOCK" in fields and fields[5].rpartition(":")[2] == str(wanted) for fields in locks if len(fields) > 5)


def _refuse_displaced(path: Path) -> None:
    """Raise StoreDisplaced if an agent noted in its lock that it has another file open than this path's."""
    if _displacement(path):
        # An agent that begins or ends makes and removes its log.
        time.sleep(SECOND_LOOK)
        if message := _displacement(path):
            raise StoreDisplaced(message)


def _displacement(path: Path) -> str:
    try:
        lock = lock_of(path) if is_held(path) else _removed_lock(path)
        opened, there = note_of(lock)[0] if lock else "", identity_of(path)
        log = path.with_name(path.name + "-wal")
        is_without_log = not identity_of(log)
    except OSError:
        return ""
    if opened and opened != there:
        return displacement(path, there, RESTORE_FILE)
    return displacement(log, "", RESTART_CLEANLY) if opened and is_without_log else ""


def _removed_lock(path: Path) -> Path | None:
    """Return the lock of an agent that was deleted with its store, by /proc; None if no visible process has it."""
    wanted = f"{lock_of(path).resolve()} (deleted)"
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    if str(descriptor.readlink()) == wanted:
                        return descriptor
    return None


@contextmanager
def store_reader(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a read-only connection; raise StoreUnreadable for any error of it.

    Every statement sees the last commit; BEGIN lets several see the same one. The agent's log grows until they end:
    read large results in pages.
    """
    try:
        _refuse_displaced(path)
        if not path.exists():
            raise StoreMissing(f"store {path}: there is no such file; has the agent run with these settings?")
        with closing(_open(path)) as database:
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if version != schema.VERSION:
                remedy = "the agent migrates it when it starts" if version < schema.VERSION else "use a newer one"
                raise StoreUnreadable(
                    f"store {path}: version {version}, this muster-agent reads {schema.VERSION}; {remedy}"
                )
            yield database
    except WireError as error:
        raise StoreUnreadable(
            f"store {path}: it is damaged, or of another version of the agent ({error}); {_SET_ASIDE}"
        ) from error
    except PermissionError as error:
        raise StoreForbidden(f"store {path}: {reason_of(error, path)}; {_READERS}") from error
    except sqlite3.Error as error:
        remedy = _remedy(error)
        unreadable = StoreForbidden if remedy == _READERS else StoreUnreadable
        raise unreadable(f"store {path}: {error}; {remedy}") from error


def _remedy(error: sqlite3.Error) -> str:
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR:
        return _DISK
    if may_be_the_disk(error):
        return f"{_SET_ASIDE}, unless {_DISK}"
    return _SET_ASIDE if is_damage(error) else _READERS


def _open(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_PATIENCE, isolation_level=None
    )
    try:
        database.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        database.close()
        if path.with_name(path.name + "-wal").exists():
            raise
        # No agent has it open, and SQLite cannot create its lock files in a directory that is not ours: the file holds
        # all that was committed.
        return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None)
    return database
