"""Say how incidents, and who is told of them, stand in ``aggregator.toml``."""

from pathlib import Path
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from msgspec import Meta

from shared.settings import Duration, FilePath, Settings, SettingsError
from shared.system_errors import reason_of


class IncidentSettings(Settings, frozen=True):
    """When an incident begins and when it is over."""

    open_after: Annotated[
        Duration, Meta(description="how long, in known time, enough senders are stale before it begins")
    ] = Duration.of("30s")
    unknown_after: Annotated[
        Duration, Meta(description="how long a site, region or the hub is unknown before it begins")
    ] = Duration.of("1m")
    close_after: Annotated[
        Duration,
        Meta(description="for how long its cause must be gone before it is over, or be larger before that is told"),
    ] = Duration.of("3m")
    least_share: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="the share of a site's senders that must be stale; "
            "the cause is gone below half of it and of those it took",
        ),
    ] = 0.05
    least_senders: Annotated[
        int, Meta(ge=1, description="the number of a site's senders that must be stale, where the share is fewer")
    ] = 1


class AddressSettings(Settings, frozen=True):
    """An address, as it is or in a file."""

    url: Annotated[str, Meta(description="its address, such as http://127.0.0.1:9093; or url_file")] = ""
    url_file: Annotated[
        FilePath, Meta(description="file with its address, where that is secret: https://USER:PASSWORD@HOST/PATH")
    ] = FilePath()

    def __post_init__(self) -> None:
        if bool(self.url) == bool(self.url_file):
            raise ValueError("name either url or url_file")
        if self.url and _parts(self.url).password:
            raise ValueError("url carries a password, secrets are files: use url_file")

    @property
    def address(self) -> str:
        """Give the address; raise SettingsError where its file cannot be read, or where it is none of the web."""
        url = self.url
        if self.url_file:
            file = Path(self.url_file)
            try:
                url = file.read_text(encoding="utf-8").strip()
            except OSError as error:
                raise SettingsError(f"{file}: cannot be read: {reason_of(error, file)}") from error
            except UnicodeDecodeError as error:
                raise SettingsError(f"{file}: cannot be read: not plain text") from error
        parts = _parts(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise SettingsError(f"{self.url_file or 'url'}: the address must begin with http:// or https://")
        return url


def _parts(url: str) -> SplitResult:
    wrong = SettingsError("not an address of the web: write for example https://host.example.net/path")
    try:
        parts = urlsplit(url)
        is_whole = parts.port != 0 and url.isprintable() and " " not in url
    except ValueError:
        raise wrong from None
    if not is_whole:
        raise wrong
    return parts


class AlertmanagerSettings(AddressSettings, frozen=True, tag_field="kind", tag="alertmanager"):
    """An Alertmanager, which is told through its API v2; one of these for each of a cluster."""

    resend_every: Annotated[Duration, Meta(description="how often open incidents are sent again")] = Duration.of("1m")


class WebhookSettings(AddressSettings, frozen=True, tag_field="kind", tag="webhook"):
    """An address that is posted one JSON object for each incident that begins or ends."""


class CommandSettings(Settings, frozen=True, tag_field="kind", tag="command"):
    """A program that is started for each incident that begins or ends, with a JSON object on its standard input."""

    command: Annotated[
        tuple[str, ...], Meta(min_length=1, description="the program and its arguments; no shell reads them")
    ]


class HeartbeatAddress(AddressSettings, frozen=True, tag_field="kind", tag="heartbeat"):
    """An address that is asked from time to time while all is well here: a dead man's switch."""

    every: Annotated[Duration, Meta(description="how often")] = Duration.of("1m")


AlertSettings = AlertmanagerSettings | WebhookSettings | CommandSettings | HeartbeatAddress
