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
    >>> reason_of(OSError(98, "error while attempting to bind on address ('127.0.0.1', 8480): address already in use"))
    'address already in use'
    >>> import ssl
    >>> reason_of(ssl.SSLError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"))
    '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed'
    """
    # Some of asyncio's texts name the address once more; what libraries raise as classes of theirs has their numbers.
    is_systems = type(error).__module__ == OSError.__module__
    text = os.strerror(error.errno) if is_systems and error.errno else error.strerror
    if not text:
        return str(error) or type(error).__name__
    reason = text[:1].lower() + text[1:]
    place = error.filename
    if not isinstance(place, str) or place == str(named):
        return reason
    return f"{place}: {reason}"
