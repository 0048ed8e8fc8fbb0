"""Say in words what the operating system refused, and of which file: no error number, no quoting."""

import os
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
    # Some of asyncio's texts name the address once more: the system's own do not.
    text = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
    if not text:
        return str(error) or type(error).__name__
    reason = text[:1].lower() + text[1:]
    place = error.filename
    if not isinstance(place, str) or place == str(named):
        return reason
    return f"{place}: {reason}"
