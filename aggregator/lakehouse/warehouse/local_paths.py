"""Find and remove local files of a warehouse."""

from contextlib import suppress
from pathlib import Path


def remove(path: Path) -> None:
    """Remove a file that no snapshot knows; where that cannot be done, it is an orphan, which upkeep removes."""
    with suppress(OSError):
        path.unlink()


def local_path(location: str) -> str | None:
    """Give the path of a URL in a file system, None for another kind of store.

    >>> local_path("file:///srv/lake/muster/advisories"), local_path("file:/srv/lake"), local_path("s3://lake/muster")
    ('/srv/lake/muster/advisories', '/srv/lake', None)
    """
    path = location.removeprefix("file:")
    return "/" + path.lstrip("/") if path.startswith("/") else None
