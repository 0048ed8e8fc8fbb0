"""Say how a connection to NATS is written in a settings file: ``[upstream]``, ``[upstream.auth]``, ``[upstream.tls]``.

A table with further keys of its own derives from ConnectionSettings. Secrets are paths, never values.
"""

import re
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from shared.settings import FilePath, Settings

DEFAULT_PORT = 4222


class AuthSettings(Settings, frozen=True):
    """One way, at most, to prove who we are."""

    nkey_seed_file: Annotated[FilePath, Meta(description="file with the user's nkey seed (SU...)")] = FilePath()
    credentials_file: Annotated[FilePath, Meta(description="file with the user's JWT and seed (.creds)")] = FilePath()
    user: Annotated[str, Meta(description="user name, with password_file")] = ""
    password_file: Annotated[FilePath, Meta(description="file with the password of user")] = FilePath()
    token_file: Annotated[FilePath, Meta(description="file with a token")] = FilePath()

    def __post_init__(self) -> None:
        ways = {
            "nkey_seed_file": self.nkey_seed_file,
            "credentials_file": self.credentials_file,
            "user with password_file": self.user or self.password_file,
            "token_file": self.token_file,
        }
        chosen = [way for way, value in ways.items() if value]
        if len(chosen) > 1:
            raise ValueError(f"{' and '.join(chosen)} exclude each other, keep one")
        if bool(self.user) != bool(self.password_file):
            raise ValueError("user and password_file belong together, one is missing")


class TlsSettings(Settings, frozen=True):
    """Whom to trust, and our own certificate where the server asks for one."""

    ca: Annotated[FilePath, Meta(description="file with the authorities to trust (PEM); default: the system's")] = (
        FilePath()
    )
    cert: Annotated[FilePath, Meta(description="file with our certificate (PEM), with key")] = FilePath()
    key: Annotated[FilePath, Meta(description="file with our private key (PEM), with cert")] = FilePath()
    handshake_first: Annotated[bool, Meta(description="true where the server starts with TLS, before its greeting")] = (
        False
    )

    def __post_init__(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise ValueError("cert and key belong together, one is missing")


class ConnectionSettings(Settings, frozen=True):
    """Which servers to talk to, and how."""

    servers: Annotated[
        tuple[str, ...], Meta(min_length=1, description='servers of one cluster, such as ["nats://nats.example:4222"]')
    ]
    domain: Annotated[str, Meta(description="JetStream domain, where it is not the connection's own")] = ""
    auth: Annotated[AuthSettings, Meta(description="who we are")] = AuthSettings()
    tls: Annotated[TlsSettings | None, Meta(description="encrypt; a server that offers no TLS is refused")] = None

    def __post_init__(self) -> None:
        for server in self.servers:
            check_server(server)

    @property
    def wants_tls(self) -> bool:
        """Tell whether an unencrypted connection must be refused."""
        return self.tls is not None or any(server.startswith("tls://") for server in self.servers)


def check_server(server: str) -> None:
    """Raise ValueError, with what to write, where this is no address of a NATS server."""
    example = "write for example nats://nats.example:4222"
    try:
        url = urlsplit(server if "://" in server else f"nats://{server}")
        port = url.port
    except ValueError as error:
        raise ValueError(f"not a server: {server!r}, {error}; {example}") from None
    if url.username or url.password:
        # The value must not be repeated: it would end in a log.
        raise ValueError(f"the server {url.hostname!r} carries a secret, secrets are files: use the auth table")
    # urlsplit drops line feeds and tabs, and takes blanks for a part of a host.
    names_host = re.fullmatch(r"[\w.:%-]+", url.hostname or "") and server.split() == [server]
    if url.scheme not in ("nats", "tls") or not names_host or port == 0 or url.path.strip("/") or url.query:
        raise ValueError(f"not a server: {server!r}, {example}")
