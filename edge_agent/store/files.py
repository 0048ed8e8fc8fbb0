"""Checks and repairs of the store's files before they are opened, so that the agent always starts.

A file that is corrupt, or older than its marker proves, is moved away under another name. The marker also distinguishes
a lost store from a first start. A store of an older agent is migrated. A store of a newer agent is refused and left as
it is, and so is one that the disk fails to read, because that proves nothing about its content.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import IO, Any, TextIO

import msgspec

from edge_agent.store import marker, schema
from edge_agent.store.sqlite import StoreDamaged, may_be_the_disk
from shared.system_errors import reason_of

LOOK_AGAIN_AFTER = (0.5, 1.0, 2.0)
"""Seconds. Most momentary failures of a disk or its controller have ended by then."""

_PIECE = 1 << 20


def read_through(path: Path) -> None:
    """Read a store and its log to their ends; raise OSError if that fails.

    This process must not have them open: closing a file releases all locks that the process holds on it (fcntl).
    """
    for each in (path, path.with_name(path.name + "-wal")):
        with contextlib.suppress(FileNotFoundError), each.open("rb", buffering=0) as file:
            while file.read(_PIECE):
                pass


def wait_until_readable(path: Path) -> None:
    """Return when all of a store can be read; raise OSError if that still fails after several seconds."""
    for pause in LOOK_AGAIN_AFTER:
        with contextlib.suppress(OSError):
            read_through(path)
            return
        time.sleep(pause)
    read_through(path)


OLDEST = 1

_TO_2 = f"CREATE TABLE copy_outbox {schema.OUTBOX_COLUMNS};"
_TO_3 = f"""
CREATE TABLE advisory_chunk {schema.CHUNK_COLUMNS};
CREATE TABLE registration_chunk {schema.CHUNK_COLUMNS};
CREATE TABLE advisory_log_chunk {schema.LOG_CHUNK_COLUMNS};
CREATE TABLE forward_log_chunk {schema.LOG_CHUNK_COLUMNS};
CREATE TABLE forward_fate {schema.FATE_COLUMNS};
"""

_TO_4 = f"""
CREATE TABLE set_apart {schema.SET_APART_COLUMNS};
CREATE TABLE too_large {schema.TOO_LARGE_COLUMNS};
"""

STEPS = {1: _TO_2, 2: _TO_3, 3: _TO_4}
"""The statements that lead from each version to the next."""


def can_migrate(version: int) -> bool:
    """Return True if a store of ``version`` can be migrated to the version that this agent reads."""
    return OLDEST <= version < schema.VERSION


def migrate(database: sqlite3.Connection, version: int) -> None:
    """Migrate the store from ``version`` to ours. Raise sqlite3.Error, with nothing changed, if that fails."""
    steps = "".join(STEPS[each] for each in range(version, schema.VERSION))
    try:
        database.executescript(f"BEGIN IMMEDIATE; {steps} PRAGMA user_version={schema.VERSION}; COMMIT;")
    except sqlite3.Error:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


FULL = 1 << 20
"""A disk with fewer bytes left is full: not even the agent's status can be written."""

KEPT_ASIDE = 3
_LOOKS = 2
_LOGS = ("-wal", "-shm")
_WRITTEN = ("", *_LOGS, ".lock", ".marker", ".handed-over", ".arrived")
RESTORE_FILE = (
    "put that file back where it was; if it is gone, wait until nothing waits for the region, then start the agent anew"
)
RESTART_CLEANLY = "stop the agent well, not by kill -9, and start it: it writes what it has committed before it ends"
OWNER = "the agent needs to write there"
DIRECTORY_REMEDY = "correct store.path, or make the directory and give it to the agent's user"
"""The agent makes no directory: a mistyped path would begin a new store, and announce every sender again."""
LINK_REMEDY = "the agent writes through no link: remove it, or write in store.path where the file itself lies"
_FULL = "the disk is full, make room there"
_DISK = "its disk fails: the store is left as it is, and the kernel's log says more; replace the disk"
_OF_THE_DISK = (errno.EIO, errno.ENXIO, errno.EUCLEAN)
LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
# Another format, or a truncated file: errors of the content, not of the disk.
_UNSOUND = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_IOERR_SHORT_READ)


class StoreUnusable(Exception):
    """The store cannot be used; the message names the file, the reason and the remedy."""


class StoreInUse(StoreUnusable):
    """Another agent holds the store."""


class Preparation(msgspec.Struct, frozen=True):
    """The result of prepare().

    ``was_lost``: there had been a store before. ``set_aside``: where a corrupt or older file was moved to;
    ``is_older``: that file was sound, but held less than had been committed. ``replaces_lost`` stays True for a store
    that was created in place of a lost one. ``migrated_from`` is the version that an older agent wrote, 0 if nothing
    was migrated. ``removed`` are files that had been moved away earlier and were deleted to make room.
    """

    was_lost: bool
    set_aside: Path | None = None
    replaces_lost: bool = False
    migrated_from: int = 0
    removed: tuple[Path, ...] = ()
    is_older: bool = False


NOTE_ROOM = 16 << 10
"""Bytes of a lock's file, allocated at the start: the holder's note still fits when the disk is full."""


class Hold:
    """The lock of a store, and the identities of the files that its holder has open, which may be moved or replaced.

    The lock's file names the open file on its first line; on the second it has the status that its holder cannot write
    into the store.
    """

    def __init__(self, path: Path, lock: IO[str]) -> None:
        self._path = path
        self._lock = lock
        self._opened: dict[Path, str] = {}

    @contextmanager
    def lock_file(self) -> Iterator[None]:
        """Lock the store's file itself, against agents that use another path, and note in the lock which file it is.

        Enter before SQLite opens the file and leave after it has closed it: closing any other descriptor of the file
        releases SQLite's locks.
        """
        try:
            file = self._path.open("rb")
        except OSError as error:
            raise unusable(self._path, error) from error
        with file:
            _lock(self._path, file)
            self._opened = {self._path: _identity(os.fstat(file.fileno()))}
            with suppress(OSError):
                # A full disk: then readers cannot learn which file it is.
                self.note(b"")
            try:
                yield
            finally:
                self._opened = {}
                self._lock.truncate(0)

    def note(self, body: bytes) -> None:
        """Write a line for readers of a store that cannot be written; raise OSError. Blocks while the disk hangs."""
        room = NOTE_ROOM - len(head := f"{self._opened[self._path]}\n".encode())
        os.pwrite(self._lock.fileno(), head + (body if len(body) <= room else b"").ljust(room, b"\0"), 0)

    def displacement(self) -> str:
        """Return a message about the first of the store's files that was moved or replaced; "" if none was."""
        for suffix in ("", *_LOGS, ".lock"):
            path = self._path.with_name(self._path.name + suffix)
            try:
                there = identity_of(path)
            except OSError:
                continue
            if not self._opened.get(path):
                # SQLite makes its logs when it needs them.
                self._opened[path] = there
            elif there != self._opened[path]:
                return displacement(path, there, RESTART_CLEANLY if suffix else RESTORE_FILE)
        return ""


def identity_of(path: Path) -> str:
    """Return a file's device and inode; "" if there is no file. Raise OSError if the system does not report them."""
    try:
        return _identity(path.stat())
    except FileNotFoundError:
        return ""


def _identity(found: os.stat_result) -> str:
    return f"{found.st_dev}:{found.st_ino}"


def displacement(path: Path, there: str, remedy: str) -> str:
    """Return the message that the file at ``path``, identified by ``there``, is not the one that the agent has open."""
    what = "another file lies there" if there else "it was moved or removed"
    return f"{path}: {what} while the agent runs on it; {remedy}"


def note_of(lock: Path) -> tuple[str, bytes]:
    """Return the identity of the file that a lock's holder has open, and its note; raise OSError."""
    opened, _, note = lock.read_bytes().partition(b"\n")
    return opened.decode("ascii", "replace"), note.rstrip(b"\0")


def lock_of(path: Path) -> Path:
    """Return the path of a store's lock, in which its holder notes which file it has open."""
    return path.with_name(path.name + ".lock")


def _lock(path: Path, file: IO[Any]) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StoreInUse(f"store {path}: another agent is running on it; end that one first") from error


def links_of(path: Path) -> list[str]:
    """Describe symbolic links at the paths that an agent writes: they may lead to files of other users."""
    written = (path.with_name(path.name + suffix) for suffix in _WRITTEN)
    return [f"{each} is a symbolic link to {each.readlink()}" for each in written if each.is_symlink()]


def _open(path: Path) -> TextIO:
    """Create or open a file of the agent's own for appending, without following links."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666), "a")


def check_place(path: Path) -> None:
    """Raise StoreUnusable if no agent would open a store at ``path``; raise OSError if the place cannot be read."""
    if not path.parent.exists():
        raise StoreUnusable(f"store {path}: there is no directory {path.parent}; {DIRECTORY_REMEDY}")
    if links := links_of(path):
        raise StoreUnusable(f"store {path}: {links[0]}; {LINK_REMEDY}")


@contextmanager
def hold_of(path: Path) -> Iterator[Hold]:
    """Hold the store's lock until the process ends; raise StoreUnusable if another agent holds it."""
    lock = lock_of(path)
    try:
        check_place(path)
        file = _open(lock)
    except OSError as error:
        raise StoreUnusable(f"store {path}: {reason_of(error, path)}; {OWNER}") from error
    with file:
        _lock(path, file)
        # The note of a run that was killed.
        file.truncate(0)
        yield Hold(path, file)


def prepare(path: Path, damage: StoreDamaged | None = None) -> Preparation:
    """Create the store's file, or move it away and create it again; raise StoreUnusable if neither works.

    ``damage`` is the error of an earlier attempt to use the file: if it proves nothing and the file is sound, it is
    kept.
    """
    set_aside, migrated_from, is_older = None, 0, False
    removed: tuple[Path, ...] = ()
    try:
        is_there = _is_there(path)
        had_one = _is_there(marker.marker_of(path)) or is_there
        if is_there:
            _refuse_newer(path)
            is_damaged = _is_damaged(path, damage)
            if not is_damaged:
                migrated_from = _brought_up_to_date(path)
                is_older = _is_older(path)
            if is_damaged or is_older:
                is_there = False
                set_aside = _set_aside(path)
                removed = _make_room(path)
        was_lost = had_one and not is_there
        if not is_there:
            _drop_logs(path)
            # Before there is a store that has committed nothing.
            marker.forget(path)
            _create(path, replaces_lost=was_lost)
        _open(marker.marker_of(path)).close()
        return Preparation(was_lost, set_aside, _replaces_lost(path), migrated_from, removed, is_older)
    except (OSError, sqlite3.Error) as error:
        raise unusable(path, error) from error


def unusable(path: Path, error: OSError | sqlite3.Error) -> StoreUnusable:
    """Return the reason why a store cannot be used; SQLite reports most errors of a full disk as I/O errors."""
    if isinstance(error, sqlite3.OperationalError) and _code(error) & 0xFF in LOCKED:
        return StoreUnusable(f"store {path}: another process keeps it locked; end that one")
    if isinstance(error, OSError):
        reason, fails = reason_of(error, path), error.errno in _OF_THE_DISK
    else:
        # A moment ago the file was sound, or its bytes could be read.
        reason = str(error)
        fails = may_be_the_disk(error) or _code(error) == sqlite3.SQLITE_IOERR_CORRUPTFS
    otherwise = _FULL if _is_full(path.parent) else OWNER
    return StoreUnusable(f"store {path}: {reason}; {_DISK if fails else otherwise}")


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's error code. Python omits it for text that is not UTF-8, which is damage (SQLITE_ERROR)."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)


def _is_full(directory: Path) -> bool:
    try:
        return shutil.disk_usage(directory).free < FULL
    except OSError:
        return False


def _drop_logs(path: Path) -> None:
    """Delete the logs of a file that is gone: SQLite would write their content into the new one."""
    for suffix in _LOGS:
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _create(path: Path, *, replaces_lost: bool) -> None:
    made = path.with_name(path.name + ".new")
    made.unlink(missing_ok=True)
    with closing(sqlite3.connect(made, isolation_level=None)) as database:
        database.executescript(schema.NEW_STORE)
        database.execute("INSERT INTO origin VALUES (?)", (replaces_lost,))
    made.replace(path)


def _replaces_lost(path: Path) -> bool:
    """Return True if the file was created in place of a lost one: an agent may have ended before it used that fact."""
    with closing(sqlite3.connect(path, timeout=30)) as database:
        return bool(database.execute("SELECT replaces_lost FROM origin").fetchone()[0])


def _refuse_newer(path: Path) -> None:
    """Raise StoreUnusable for a newer version, over a connection that cannot change the file."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as database:
            version = database.execute("PRAGMA user_version").fetchone()[0]
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        # _is_damaged() finds out why.
        return
    if version > schema.VERSION:
        raise StoreUnusable(f"store {path}: version {version}, this agent reads {schema.VERSION}; use a newer agent")


def _brought_up_to_date(path: Path) -> int:
    """Migrate a sound store that an older agent wrote; return its version, 0 if it is ours."""
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as database:
        version = int(database.execute("PRAGMA user_version").fetchone()[0])
        if version == schema.VERSION:
            return 0
        database.execute("PRAGMA synchronous=FULL")
        migrate(database, version)
        return version


def _is_older(path: Path) -> bool:
    """Return True if a sound store holds less than was committed to it: its log is gone, or it is an old copy."""
    committed = marker.read_marker(path)
    with closing(sqlite3.connect(path, timeout=30)) as database:
        return committed.exceeds(database)


def _is_there(path: Path) -> bool:
    """Return True if the file exists. Raise OSError if the disk fails: Path.exists() may return False for that."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


def _is_damaged(path: Path, damage: StoreDamaged | None) -> bool:
    """Return True if the content of a file is proven damaged by its bytes; raise OSError if they cannot be read."""
    if damage is not None and damage.is_proven:
        return True
    if damage is None and _is_sound_at_once(path):
        return False
    check = "quick_check" if damage is None else "integrity_check"
    for _ in range(_LOOKS):
        # What was just read is still in memory, so what is wrong with it now is wrong with the bytes; unless memory is
        # smaller than the store, and the disk fails again.
        wait_until_readable(path)
        _refuse_newer(path)
        if _is_sound(path, check):
            return False
    read_through(path)
    return True


def _is_sound_at_once(path: Path) -> bool:
    try:
        return _is_sound(path, "quick_check")
    except sqlite3.OperationalError as error:
        if _code(error) & 0xFF != sqlite3.SQLITE_IOERR:
            raise
        return False


def _is_sound(path: Path, check: str) -> bool:
    """Return True if SQLite can read the file's structure and an agent made it."""
    try:
        with closing(sqlite3.connect(path, timeout=30)) as database:
            # The check's messages contain names from the file, which may no longer be text.
            database.text_factory = bytes
            version = database.execute("PRAGMA user_version").fetchone()[0]
            sound = bool(database.execute(f"PRAGMA {check}(1)").fetchone()[0] == b"ok")
    except sqlite3.OperationalError as error:
        # Other errors (a full disk, a lock) say nothing about the file: it must not be moved away for them.
        if _code(error) not in _UNSOUND:
            raise
        return False
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return False
    # SQLite calls an empty file sound, but no agent has written one.
    return sound and (version == schema.VERSION or can_migrate(version))


def set_aside_before(path: Path) -> list[Path]:
    """Return the damaged stores that were moved away before, the oldest first."""
    beginning = f"{path.name}.corrupt-"
    found = [each for each in path.parent.glob(f"{escape(beginning)}*") if each.is_file()]
    numbers = (each.name.removeprefix(beginning) for each in found)
    # Files of other names are the administrator's own.
    return [path.with_name(f"{beginning}{number}") for number in sorted(map(int, filter(str.isdecimal, numbers)))]


def _set_aside(path: Path) -> Path:
    before = set_aside_before(path)
    number = int(before[-1].name.rpartition("-")[2]) + 1 if before else 1
    aside = path.with_name(f"{path.name}.corrupt-{number}")
    path.replace(aside)
    for suffix in _LOGS:
        log = path.with_name(path.name + suffix)
        if log.exists():
            log.replace(aside.with_name(aside.name + suffix))
    return aside


def _make_room(path: Path) -> tuple[Path, ...]:
    """Delete damaged stores, so that a disk that damages one after the other is not filled with them.

    The first stays, which has the records that were undelivered when the damage began, and the newest.
    """
    removed = tuple(set_aside_before(path)[1 : 1 - KEPT_ASIDE])
    for old in removed:
        for suffix in ("", *_LOGS):
            old.with_name(old.name + suffix).unlink(missing_ok=True)
    return removed
