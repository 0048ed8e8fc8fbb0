"""Expiry of what a connection logs in with: its certificate, the authorities that it trusts, and a user's JWT."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from shared.certificates import EXPIRES_SOON, NotACertificate, certificates_in, valid_until
from shared.instants import MINUTE, SECOND, format_duration
from shared.nats.secrets import UnusableSecret, login
from shared.nats.settings import ConnectionSettings

RENEWAL = (
    "renew it: a server's at the server, which has to be reloaded, ours in the file of tls.cert, a user's JWT in "
    "credentials_file (nsc generate creds)"
)


def expiry(whose: str, until: int, at: int) -> str:
    """Return that a certificate or a JWT expires soon, or has expired; "" where it does not."""
    left = until - at
    if left > EXPIRES_SOON:
        return ""
    rough = format_duration(max(abs(left) // MINUTE * MINUTE, SECOND))
    return f"{whose} expires in {rough}" if left > 0 else f"{whose} has expired, {rough} ago"


def own_expiries(connection: ConnectionSettings, at: int) -> Iterator[str]:
    """Yield the text of ``expiry`` for each file of the settings that expires soon, or has expired."""
    yield from filter(None, (expiry(whose, until, at) for whose, until in own_ends(connection)))


def own_ends(connection: ConnectionSettings) -> Iterator[tuple[str, int]]:
    """Yield the name and the end of our certificate, of the last authority to end, and of the user's JWT.

    Files that cannot be used are skipped: an attempt to connect reports them.
    """
    if connection.tls is not None:
        cert, ca = connection.tls.cert, connection.tls.ca
        with contextlib.suppress(OSError, NotACertificate):
            if cert:
                yield f"our certificate tls.cert {cert}", valid_until(certificates_in(Path(cert))[0])
        with contextlib.suppress(OSError, NotACertificate):
            if ca:
                yield f"the authority in tls.ca {ca}", max(map(valid_until, certificates_in(Path(ca))))
    with contextlib.suppress(UnusableSecret):
        until = login(connection.auth).valid_until
        if until:
            yield f"the user's JWT in credentials_file {connection.auth.credentials_file}", until
