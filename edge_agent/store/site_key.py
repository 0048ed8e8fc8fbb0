"""Keep the site's secret for message ids in a file of its own, made at the first start.

A store without its key would send again, under other ids, what it has sent. That is better than not to run: a file that
was cut, or emptied, is set aside, and a key recreated. Somebody else's file is left alone.
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
    """What stands in the file is no key. ``is_ours`` where nobody else can have written it there."""

    def __init__(self, path: Path, found: str, *, is_ours: bool) -> None:
        super().__init__(f"id key file {path}: {found}; it must hold {KEY_BYTES} bytes in hex")
        self.found = found
        self.is_ours = is_ours


def site_key(path: Path, *, is_beside_store: bool = False) -> bytes:
    """Read the site's secret for message ids, made where there is none; raise StoreUnusable where it cannot be.

    ``is_beside_store`` where nobody named the file: whatever stands there, an agent wrote it.
    """
    damage = None
    try:
        return read_key(path, is_beside_store=is_beside_store)
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


def read_key(path: Path, *, is_beside_store: bool = False) -> bytes:
    """Read the secret and make nothing; raise KeyDamaged, StoreUnusable, or FileNotFoundError."""
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
    # Cut short, or the zeros that a power loss leaves; a password, or the seed of a key, has other characters.
    is_cut = len(body) <= 2 * KEY_BYTES + 1 and _OF_A_KEY.issuperset(body)
    raise KeyDamaged(path, found, is_ours=is_beside_store or is_cut)


def _unusable(path: Path, error: OSError) -> StoreUnusable:
    return StoreUnusable(f"id key file {path}: {reason_of(error, path)}; {OWNER}")


def is_missing(path: Path) -> bool:
    """Tell whether there surely is no file: in a directory that does not let us look, there may be one."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except PermissionError:
        return False
    return False


def _make_key(path: Path) -> None:
    """Put a new key onto the disk before anybody uses it: after a power loss a store must not be without its own."""
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
