"""Define the agent's settings file: one TOML file, one frozen Struct, parsed and cross-checked once."""

import socket
from pathlib import Path
from typing import Annotated

import click
import msgspec
from msgspec import Meta

from edge_agent.config.stream import StreamSettings
from edge_agent.core.block_state import BlockState
from shared.identifiers import BlockId, validated_token
from shared.instants import SECOND
from shared.nats.settings import ConnectionSettings
from shared.settings import Duration, FilePath, Settings, Size, load_settings

DEFAULT_PATH = Path("/etc/muster-agent/agent.toml")

config_option = click.option(
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=DEFAULT_PATH,
    show_default=True,
    help="The agent's settings file.",
)


class UpstreamSettings(ConnectionSettings, frozen=True):
    """``[upstream]``: the region's servers."""

    max_bandwidth: Annotated[Size, Meta(description="bytes per second, 0: no limit")] = Size(0)
    id_key_file: Annotated[
        FilePath, Meta(description="file with the site's secret for message ids; default: made beside the store")
    ] = FilePath()


class StoreSettings(Settings, frozen=True):
    """``[store]``: the agent's file."""

    path: Annotated[FilePath, Meta(description="the agent's SQLite file")] = FilePath("/var/lib/muster-agent/agent.db")
    max_outbox: Annotated[
        Size, Meta(description="how much may wait for the link; then the oldest registrations go")
    ] = Size(2 << 30)

    def __post_init__(self) -> None:
        if self.max_outbox < 1 << 20:
            raise ValueError("max_outbox must be at least 1MiB")


class WatermarkSettings(Settings, frozen=True):
    """``[watermark]``: how often the agent reports the time that it covers."""

    interval: Annotated[Duration, Meta(description="how often a watermark is made")] = Duration(10 * SECOND)

    def __post_init__(self) -> None:
        if self.interval <= 0:
            raise ValueError("interval must be longer than 0s")


class MonitorSettings(Settings, frozen=True):
    """``[monitor]``: metrics and health over HTTP."""

    listen: Annotated[str, Meta(description='host:port of /metrics and /healthz; "": off')] = "127.0.0.1:8787"
    hosts: Annotated[tuple[str, ...], Meta(description="further names that the host is asked by, without port")] = ()

    def __post_init__(self) -> None:
        if self.listen and not _is_address(self.listen):
            raise ValueError(f"listen {self.listen!r} is not host:port")
        for name in self.hosts:
            if not _is_address(f"{name}:1") or ":" in name or "*" in name:
                raise ValueError(f"hosts: {name!r} is not a host's name: write it whole, without a port")


def _is_address(text: str) -> bool:
    """Return True if a text is host:port, with a host that a resolver accepts."""
    host, _, port = text.rpartition(":")
    try:
        host.strip("[]").encode("idna")
    except UnicodeError:
        return False
    return bool(host) and port.isdecimal() and len(port) <= 5 and int(port) < 65536


class PairSettings(Settings, frozen=True):
    """``[pair]``: two agents on one site, one of which stands by."""

    members: Annotated[
        tuple[str, ...], Meta(description="the names of both agents, first the one that begins; empty: no pair")
    ] = ()
    takeover_after: Annotated[Duration, Meta(description="silence after which the other takes over")] = Duration(
        3 * SECOND
    )
    hand_over_after: Annotated[
        Duration, Meta(description="how long one that leads may be unable to do what the other can")
    ] = Duration(10 * SECOND)
    replicas: Annotated[int, Meta(description="on how many of the site's servers the pair's log is kept", ge=1)] = 1

    def __post_init__(self) -> None:
        if self.members and (len(self.members) != 2 or len(set(self.members)) != 2):
            raise ValueError('members must be two names, each agent\'s own, such as ["host-a", "host-b"]')
        for member in self.members:
            validated_token(member, "the member")
        fields = msgspec.structs.fields(type(self))
        if not self.members and any(getattr(self, field.name) != field.default for field in fields):
            raise ValueError("without members there is no pair, and nothing else here has an effect: name both agents")
        for name in ("takeover_after", "hand_over_after"):
            if getattr(self, name) < SECOND:
                raise ValueError(f"{name} must be 1s or longer")


class AgentSettings(Settings, frozen=True):
    """The whole file."""

    site: Annotated[str, Meta(description="the site's name, a subject token")]
    region: Annotated[str, Meta(description="the region's name, a subject token")]
    upstream: Annotated[UpstreamSettings, Meta(description="the region's servers")]
    stream: Annotated[tuple[StreamSettings, ...], Meta(min_length=1, description="what to read")]
    name: Annotated[str, Meta(description="the agent's name; default: the host's name")] = ""
    store: Annotated[StoreSettings, Meta(description="the agent's file")] = StoreSettings()
    watermark: Annotated[WatermarkSettings, Meta(description="how often the agent vouches")] = WatermarkSettings()
    monitor: Annotated[MonitorSettings, Meta(description="metrics and health over HTTP")] = MonitorSettings()
    pair: Annotated[PairSettings, Meta(description="two agents on one site")] = PairSettings()

    def __post_init__(self) -> None:
        validated_token(self.site, "the site")
        validated_token(self.region, "the region")
        for place, block in enumerate(self.stream):
            for other in self.stream[:place]:
                self._check_apart(other, block)
        if self.pair.members:
            self._check_pair()

    @property
    def agent_name(self) -> str:
        return self.name or socket.gethostname().split(".")[0]

    @property
    def id_key_path(self) -> Path:
        return Path(self.upstream.id_key_file or f"{self.store.path}.id-key")

    def block_id(self, block: StreamSettings) -> BlockId:
        return BlockId(self.region, self.site, block.name)

    def contradiction(self, block_id: BlockId, state: BlockState) -> str:
        """Return how a block of the store contradicts these settings, and the remedy; "" if it does not.

        A block that the settings no longer name is no contradiction: its records are still sent.
        """
        path = self.store.path
        if (block_id.region, block_id.site) != (self.region, self.site):
            return (
                f"store {path} belongs to site {block_id.site} of region {block_id.region}, the settings say site "
                f"{self.site} of region {self.region}: name them as before, or move {path} and "
                f"{Path(path).name}.marker away to begin anew"
            )
        for block in self.stream:
            pairs = (("stream", state.position.stream, block.source.stream), ("mode", state.mode, block.mode))
            for what, before, wanted in pairs if block.name == block_id.block else ():
                if before != wanted:
                    # Readers identify its senders by these names: the marker makes the agent report the loss.
                    return (
                        f"block {block.name} had {what} {before} in store {path}, the settings say {wanted}: "
                        f"give it another name, or move {path} away, not its marker, to begin anew"
                    )
        return ""

    def consumer_of(self, block: StreamSettings) -> str:
        name = block.source.consumer or f"muster-{self.site}-{block.name}"
        # Each member of a pair has a consumer of its own; the rest of their files may be the same.
        return f"{name}-{self.agent_name}" if self.pair.members else name

    def _check_pair(self) -> None:
        if self.agent_name not in self.pair.members:
            raise ValueError(
                f"this agent is {self.agent_name!r}, pair.members are {' and '.join(self.pair.members)}: "
                "write its own name there, or give it one of them (name)"
            )
        for block in self.stream:
            if block.mode != "sample":
                raise ValueError(
                    f"the block {block.name!r} has mode {block.mode!r}, and a pair only samples: "
                    "leave it to an agent of its own"
                )

    def _check_apart(self, one: StreamSettings, other: StreamSettings) -> None:
        if one.name == other.name:
            raise ValueError(f"two [[stream]] blocks are named {one.name!r}: give each a name of its own")
        first, second = ((block.source.stream, block.source.domain, self.consumer_of(block)) for block in (one, other))
        if first == second and set(one.source.servers) & set(other.source.servers):
            raise ValueError(
                f"the blocks {one.name!r} and {other.name!r} both read stream {first[0]} through consumer {first[2]}: "
                "give one of them another source.consumer"
            )


def load(path: Path) -> AgentSettings:
    """Read the settings file; raise SettingsError, one clear line."""
    return load_settings(path, AgentSettings)
