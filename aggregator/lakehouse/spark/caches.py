"""Say where Muster keeps what it can always fetch or make again, and never leave half a file there."""

import os
from pathlib import Path

from shared.whole_files import replacing


def default_cache() -> Path:
    """Give the directory for what can be fetched again: ``$MUSTER_CACHE``, else ``muster`` in the user's XDG cache."""
    own = os.environ.get("MUSTER_CACHE")
    if own:
        return Path(own).absolute()
    # The XDG base directory specification: a relative path is to be ignored.
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "muster"


def write_whole(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file so that another process sees all of it or none; make its directory. Raise OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as unfinished:
        unfinished.write_bytes(content)
        unfinished.chmod(mode)
