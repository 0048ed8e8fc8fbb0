"""Say how ``aggregator.toml`` is written: the hub to read from, and where the tables are."""

import re
from collections.abc import Callable
from functools import wraps
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import click
import msgspec
from msgspec import Meta

from aggregator.alert_settings import AlertSettings, IncidentSettings
from aggregator.catalog_settings import FILE_BESIDE_THE_TABLES, CatalogSettings
from shared.nats.settings import ConnectionSettings
from shared.settings import Duration, FilePath, Settings, SettingsError, load_settings
from shared.subjects import BLOCKS_PER_SITE

DEFAULT_PATH = Path("aggregator.toml")
Command = TypeVar("Command", bound=Callable[..., Any])


def settings_option(default: Path, text: str) -> Callable[[Command], Command]:
    """Give the option ``--config``, which a command gets as ``config_path``."""
    path = click.Path(dir_okay=False, path_type=Path)
    return click.option("--config", "config_path", type=path, default=default, show_default=True, help=text)


config_option = settings_option(DEFAULT_PATH, "The aggregator's settings file.")
_jars_option = click.option(
    "--jars",
    "jars",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Directory of Spark's jars, for a host without a network; before what the settings say.",
)

Reading = Literal["consumer", "direct"]
_PART_OF_A_URL = re.compile("[?#]|%[0-9A-Fa-f]{2}")


class LakehouseSettings(Settings, frozen=True):
    """Where the tables are, what they are made from, and the Spark that makes them."""

    path: Annotated[FilePath, Meta(description="directory of the tables and of their catalog, catalog.db")]
    report_stream: Annotated[str, Meta(description="the hub's stream that rollups read")] = "REPORT"
    archive_stream: Annotated[str, Meta(description="the hub's stream that holds what the other has let go")] = (
        "ARCHIVE"
    )
    reading: Annotated[
        Reading, Meta(description="consumer (fast) or direct (for a key that may only read, which makes no consumer)")
    ] = "consumer"
    catalog: Annotated[CatalogSettings, Meta(description="what names the tables")] = FILE_BESIDE_THE_TABLES
    jars: Annotated[FilePath, Meta(description="directory of Spark's jars; default: the user's cache")] = FilePath()
    registration_interval: Annotated[
        Duration, Meta(description="how often senders register: what the error bound of availability rests on")
    ] = Duration.of("5m")
    choria_region: Annotated[
        str, Meta(description='region of plain Choria advisories that come on subjects of their own; "": not taken')
    ] = ""
    maintain_every: Annotated[
        int, Meta(ge=0, description="after how many rollups that wrote something the tables are compacted; 0: never")
    ] = 12
    keep_snapshots: Annotated[
        Duration, Meta(description="how long what was replaced stays readable: longer than any query takes")
    ] = Duration.of("1d")
    expire_after: Annotated[
        Duration, Meta(description='age at which registrations and quarantined records go; "0": never')
    ] = Duration(0)
    fold_watermarks_after: Annotated[
        Duration,
        Meta(
            description="age at which watermarks go whose time the next one of their block vouches for: longer than any"
            ' FLEET keeps them, which may bring them again; "0": never'
        ),
    ] = Duration.of("30d")
    spark_master: Annotated[str, Meta(description="Spark's master, such as local[2] or spark://host:7077")] = "local[*]"
    spark: Annotated[dict[str, str], Meta(description="further settings of Spark, by their own names")] = msgspec.field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        # Iceberg and SQLAlchemy take paths for URLs: some readers would open another file, or make one.
        for key, place in (("path", self.path), ("catalog.warehouse", self.catalog.warehouse)):
            if place.startswith("/") and _PART_OF_A_URL.search(place):
                raise ValueError(f"{key} {place!r} holds ?, # or % with two digits: name another directory")


class LiveSettings(Settings, frozen=True):
    """What ``muster-aggregator serve`` shows, where, and to whom."""

    path: Annotated[
        FilePath, Meta(description="file of the folded state; default: live.db in the directory of the tables")
    ] = FilePath()
    listen: Annotated[str, Meta(description="address and port to serve on")] = "127.0.0.1:8480"
    unknown_after: Annotated[
        Duration, Meta(description="a block whose known time ended longer ago is unknown: several watermarks' interval")
    ] = Duration.of("1m")
    drop_listener_after: Annotated[
        Duration, Meta(description="who takes nothing of an answer for as long, or sends no whole request, is dropped")
    ] = Duration.of("15s")
    hosts: Annotated[
        tuple[str, ...], Meta(description="names under which the service may be asked, beside localhost")
    ] = ()
    tls_cert: Annotated[FilePath, Meta(description="file with the service's certificate (PEM), with tls_key")] = (
        FilePath()
    )
    tls_key: Annotated[FilePath, Meta(description="file with its private key (PEM), with tls_cert")] = FilePath()
    proxy: Annotated[str, Meta(description='address of the proxy that adds TLS and alone may connect; "": none')] = ""
    read_token_file: Annotated[
        FilePath, Meta(description="file with the SHA-256 (hex) of each token that may read, one a line")
    ] = FilePath()
    operate_token_file: Annotated[
        FilePath, Meta(description="the same of each token that may also operate; without it nobody may")
    ] = FilePath()

    page: Annotated[str, Meta(description="address of the page for links in alerts; default: that of listen")] = ""
    incidents: Annotated[IncidentSettings, Meta(description="what is an incident")] = IncidentSettings()
    alerts: Annotated[
        tuple[AlertSettings, ...],
        Meta(description="who is told of incidents: kind alertmanager, webhook, command or heartbeat"),
    ] = ()

    def __post_init__(self) -> None:
        address, _, port = self.listen.rpartition(":")
        if not address or not port.isdecimal() or int(port) > 65_535:
            raise ValueError(f"not an address and a port: {self.listen!r}, write for example 127.0.0.1:8480")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key belong together, one is missing")
        if not (_is_local(self.address) or self.tls_cert or self.proxy):
            raise ValueError(
                f"listen = {self.listen!r} is open to others: name tls_cert and tls_key, or the proxy that adds TLS"
            )
        if self.opened_by and not self.read_token_file:
            raise ValueError(f"{self.opened_by} is open to others: name a read_token_file")

    @property
    def address(self) -> str:
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """Give the port; 0: any that is free."""
        return int(self.listen.rpartition(":")[2])

    @property
    def opened_by(self) -> str:
        """The setting that lets other machines connect, directly or through a proxy on this one; "" if none does."""
        if not _is_local(self.address):
            return f"listen = {self.listen!r}"
        if self.proxy:
            return f"proxy = {self.proxy!r}"
        others = [name for name in self.hosts if not _is_local(name)]
        return f"hosts = {others!r}" if others else ""


def _is_local(host: str) -> bool:
    """Return True if only this machine can connect to ``host``."""
    try:
        return host.lower() == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class AggregatorSettings(Settings, frozen=True):
    """The whole: one hub, one set of tables, one live service."""

    hub: Annotated[ConnectionSettings, Meta(description="the hub's servers")]
    lakehouse: Annotated[LakehouseSettings, Meta(description="the tables")]
    live: Annotated[LiveSettings, Meta(description="the live service")] = LiveSettings()
    blocks_per_site: Annotated[
        int, Meta(ge=1, le=10_000, description="the most stream blocks that count of one site; others are quarantined")
    ] = BLOCKS_PER_SITE

    @property
    def live_path(self) -> Path:
        return Path(self.live.path or Path(self.lakehouse.path) / "live.db")

    @property
    def incidents_path(self) -> Path:
        """Say where it keeps incidents, and who was told of them."""
        return self.live_path.with_name("incidents.db")


def load(config_path: Path) -> AggregatorSettings:
    """Read the settings; raise click.ClickException, one clear line."""
    try:
        return load_settings(config_path, AggregatorSettings)
    except SettingsError as error:
        raise click.ClickException(str(error)) from error


def settings_for_spark(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that starts Spark its ``settings``: those of ``--config``, with the jars of ``--jars``."""

    @wraps(command)
    def with_settings(config_path: Path, jars: Path | None, **given: Any) -> None:
        settings = load(config_path)
        if jars is not None:
            lakehouse = msgspec.structs.replace(settings.lakehouse, jars=FilePath(jars.absolute()))
            settings = msgspec.structs.replace(settings, lakehouse=lakehouse)
        command(settings=settings, **given)

    return config_option(_jars_option(with_settings))
