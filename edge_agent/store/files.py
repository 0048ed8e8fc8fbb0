"""Make sure of the files before they are opened: the agent always starts.

A file that is corrupt is set aside under another name; a marker beside it tells a lost store from a first start.
"""

import fcntl
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from edge_agent.store import schema

KEY_BYTES = 32


class StoreUnusable(Exception):
    """The store cannot be used; the message says what, where and what to do."""


class StoreInUse(StoreUnusable):
    """Another agent has the store."""


class Prepared(msgspec.Struct, frozen=True):
    """What was found: ``was_lost`` where there had been a store before, and where a corrupt one now lies.

    ``replaces_lost`` stays true of a store that was made in the place of a lost one.
    """

    was_lost: bool
    set_aside: Path | None = None
    replaces_lost: bool = False


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Keep other agents out of the store; raise StoreUnusable where one is in. The lock ends with its process."""
    lock = path.with_name(path.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("a")
    except OSError as error:
        raise StoreUnusable(f"store {path}: {error}; the agent needs to write there") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreInUse(f"store {path}: another agent is running on it; end that one first") from error
        yield


def prepare(path: Path) -> Prepared:
    """Create, or set aside and create anew, the store's file; raise StoreUnusable where neither works."""
    marker = path.with_name(path.name + ".marker")
    set_aside = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        had_one = marker.exists() or path.exists()
        if path.exists() and not _is_sound(path):
            set_aside = _set_aside(path)
        was_lost = had_one and not path.exists()
        if not path.exists():
            _drop_logs(path)
            _create(path, replaces_lost=was_lost)
        marker.touch()
        return Prepared(was_lost, set_aside, _replaces_lost(path))
    except (OSError, sqlite3.Error) as error:
        raise StoreUnusable(f"store {path}: {error}; the agent needs to write there") from error


def site_key(path: Path) -> bytes:
    """Read the site's secret for message ids, made at the first start; raise StoreUnusable where it cannot be."""
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            made = path.with_name(path.name + ".new")
            made.touch(mode=0o600)
            made.write_text(secrets.token_hex(KEY_BYTES) + "\n")
            made.replace(path)
        key = bytes.fromhex(path.read_text().strip())
    except (OSError, ValueError) as error:
        raise StoreUnusable(f"id key file {path}: {error}; it must hold {KEY_BYTES} bytes in hex") from error
    if len(key) != KEY_BYTES:
        raise StoreUnusable(f"id key file {path}: {len(key)} bytes, it must hold {KEY_BYTES} in hex")
    return key


def _drop_logs(path: Path) -> None:
    """Remove the logs of a file that is gone: SQLite would write what they hold into the new one."""
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _create(path: Path, *, replaces_lost: bool) -> None:
    made = path.with_name(path.name + ".new")
    made.unlink(missing_ok=True)
    with closing(sqlite3.connect(made, isolation_level=None)) as database:
        database.execute("PRAGMA auto_vacuum=INCREMENTAL")
        database.executescript(f"BEGIN; {schema.CREATE} PRAGMA user_version={schema.VERSION}; COMMIT;")
        database.execute("INSERT INTO origin VALUES (?)", (replaces_lost,))
    made.replace(path)


def _replaces_lost(path: Path) -> bool:
    """Tell how the file began: an agent that ended before it met its stream must know of the loss when it does."""
    with closing(sqlite3.connect(path, timeout=30)) as database:
        return bool(database.execute("SELECT replaces_lost FROM origin").fetchone()[0])


def _is_sound(path: Path) -> bool:
    """Tell whether SQLite can read the file's structure; raise StoreUnusable for a version that is not ours."""
    try:
        with closing(sqlite3.connect(path, timeout=30)) as database:
            version = database.execute("PRAGMA user_version").fetchone()[0]
            sound = bool(database.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL):
            raise
        return False
    except sqlite3.DatabaseError:
        return False
    if sound and version not in (0, schema.VERSION):
        raise StoreUnusable(f"store {path}: version {version}, this agent reads {schema.VERSION}; use a newer agent")
    # A file that was cut to nothing is sound to SQLite, but no agent ever wrote into it.
    return sound and version == schema.VERSION


def _set_aside(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    path.replace(aside)
    for suffix in ("-wal", "-shm"):
        log = path.with_name(path.name + suffix)
        if log.exists():
            log.replace(aside.with_name(aside.name + suffix))
    return aside
