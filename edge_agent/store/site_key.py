"""Keep the site's secret for message ids in a file of its own, made at the first start.

A store without its key would send again, under other ids, what it has sent.
"""

import os
import secrets
from pathlib import Path

from edge_agent.store.files import OWNER, StoreUnusable
from shared.system_errors import refusal

KEY_BYTES = 32


def site_key(path: Path) -> bytes:
    """Read the site's secret for message ids, made at the first start; raise StoreUnusable where it cannot be."""
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _make_key(path)
        key = bytes.fromhex(path.read_text().strip())
    except OSError as error:
        raise StoreUnusable(f"id key file {path}: {refusal(error, path)}; {OWNER}") from error
    except ValueError as error:
        raise StoreUnusable(f"id key file {path}: that is no key; it must hold {KEY_BYTES} bytes in hex") from error
    if len(key) != KEY_BYTES:
        raise StoreUnusable(f"id key file {path}: {len(key)} bytes, it must hold {KEY_BYTES} in hex")
    return key


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
