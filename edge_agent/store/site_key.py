"""The site's secret for message ids, in a file of its own that is made at the first start.

A store without its key sends records again under other ids, which is better than not to run: a key file that was
truncated or emptied is moved away and a key made again. A file that no agent wrote is left alone.
"""

import logging
import os
import secrets
from pathlib import Path

from edge_agent.store.files import OWNER, StoreUnusable
from shared.system_errors import reason_of

log = logging.getLogger("muster.agent")

KEY_BYTES = 32
_OF_A_KEY = frozenset(b"0123456789abcdefABCDEF\0\r\n")


class KeyDamaged(StoreUnusable):
    """The file holds no key. ``is_ours``: only an agent can have written it."""

    def __init__(self, path: Path, found: str, *, is_ours: bool) -> None:
        super().__init__(f"id key file {path}: {found}; it must hold {KEY_BYTES} bytes in hex")
        self.found = found
        self.is_ours = is_ours


def site_key(path: Path, *, is_default_path: bool = False) -> bytes:
    """Return the site's secret for message ids, made if there is none; raise StoreUnusable if that fails.

    ``is_default_path``: the path is the default next to the store, so an agent wrote whatever is there.
    """
    damage = None
    try:
        return read_key(path, is_default_path=is_default_path)
    except KeyDamaged as found:
        if not found.is_ours:
            raise
        damage = found
    except FileNotFoundError:
        pass
    aside = path.with_name(path.name + ".damaged")
    try:
        if damage is not None:
            path.replace(aside)
        _make_key(path)
    except OSError as error:
        raise _unusable(path, error) from error
    if damage is not None:
        log.error("id key file %s: %s; set aside as %s, a new one is made", path, damage.found, aside)
    return read_key(path)


def read_key(path: Path, *, is_default_path: bool = False) -> bytes:
    """Return the secret without making one; raise KeyDamaged, StoreUnusable, or FileNotFoundError."""
    try:
        body = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        key = bytes.fromhex(body.decode().strip())
    except ValueError:
        key = b""
    if len(key) == KEY_BYTES:
        return key
    found = f"{len(key)} bytes" if key else "that is no key" if body else "it is empty"
    # Truncated, or the zeros that a power loss leaves; a password, or an NKEY seed, has other characters.
    is_cut = len(body) <= 2 * KEY_BYTES + 1 and _OF_A_KEY.issuperset(body)
    raise KeyDamaged(path, found, is_ours=is_default_path or is_cut)


def _unusable(path: Path, error: OSError) -> StoreUnusable:
    return StoreUnusable(f"id key file {path}: {reason_of(error, path)}; {OWNER}")


def is_missing(path: Path) -> bool:
    """Return True if there is certainly no file: in a directory that this user cannot search there may be one."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except PermissionError:
        return False
    return False


def _make_key(path: Path) -> None:
    """Write a new key through to the disk before its first use: after a power loss a store must not lack its key."""
    made = path.with_name(path.name + ".new")
    made.unlink(missing_ok=True)
    with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(KEY_BYTES) + "\n")
        file.flush()
        os.fsync(file.fileno())
    made.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
