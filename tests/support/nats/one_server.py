"""Start one server for a test, and write what its settings name."""

from pathlib import Path

from shared.embedded.server import EmbeddedNats, ServerSettings
from shared.nats.connection import AuthSettings, ConnectionSettings, TlsSettings
from shared.settings import FilePath


def server_in(directory: Path, extra_config: str = "") -> EmbeddedNats:
    """Prepare a server whose store is below ``directory``."""
    return EmbeddedNats(ServerSettings(name="server", store_dir=directory / "nats", extra_config=extra_config))


def settings_for(
    server: EmbeddedNats, auth: AuthSettings | None = None, tls: TlsSettings | None = None
) -> ConnectionSettings:
    """Say how to connect to it."""
    return ConnectionSettings(servers=(server.url,), auth=auth or AuthSettings(), tls=tls)


def written(path: Path, text: str) -> FilePath:
    """Write a file that settings name."""
    path.write_text(text)
    return FilePath(path)
