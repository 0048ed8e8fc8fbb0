"""Say in words what the operating system refused, and of which file: no error number, no quoting."""

from pathlib import Path


def reason_of(error: OSError, named: Path | None = None) -> str:
    """Give the reason, behind the file's name unless the reader has just been told of ``named``.

    >>> reason_of(PermissionError(13, "Permission denied", "/var/lib/muster/agent.db.lock"))
    '/var/lib/muster/agent.db.lock: permission denied'
    >>> reason_of(PermissionError(13, "Permission denied", "/var/lib/muster"), Path("/var/lib/muster"))
    'permission denied'
    >>> reason_of(OSError("nothing listens there"))
    'nothing listens there'
    """
    if not error.strerror:
        return str(error) or type(error).__name__
    reason = error.strerror[:1].lower() + error.strerror[1:]
    place = error.filename
    if not isinstance(place, str) or place == str(named):
        return reason
    return f"{place}: {reason}"
