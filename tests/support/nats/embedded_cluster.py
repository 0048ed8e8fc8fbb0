"""Start several real nats-servers as one JetStream cluster, for demos and tests.

Servers of a cluster must know each other's ports before the first is healthy: they are held from the beginning.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import msgspec

from shared.embedded.server import EmbeddedNats, HeldPort, ServerSettings

CLUSTER_START_DEADLINE = 60.0


class Member(msgspec.Struct, frozen=True):
    """One server of a cluster: its name, its tags (``az:1``), and whatever else its settings shall be."""

    name: str
    tags: tuple[str, ...] = ()


class EmbeddedCluster:
    """The servers of one cluster, by name; each can be stopped, killed and started again by itself."""

    def __init__(
        self,
        name: str,
        directory: Path,
        members: Sequence[Member],
        settle: Callable[[ServerSettings], ServerSettings] = lambda settings: settings,
    ) -> None:
        """``settle`` gives every server what they have in common beside the cluster: domain, accounts, leaf nodes."""
        self.name = name
        self._held = [HeldPort("127.0.0.1") for _ in members]
        routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in self.route_ports)
        self.servers: dict[str, EmbeddedNats] = {}
        for member, port in zip(members, self.route_ports, strict=True):
            settings = settle(ServerSettings(name=member.name, store_dir=directory / member.name))
            tags = ", ".join(f'"{tag}"' for tag in member.tags)
            cluster = f'cluster {{ name: "{name}", listen: "127.0.0.1:{port}", pool_size: 1, routes: [{routes}] }}'
            config = "\n".join([settings.extra_config, cluster, f"server_tags: [{tags}]"])
            self.servers[member.name] = EmbeddedNats(msgspec.structs.replace(settings, extra_config=config))

    @property
    def route_ports(self) -> tuple[int, ...]:
        """Where the servers meet each other."""
        return tuple(held.number for held in self._held)

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(server.url for server in self.servers.values())

    async def __aenter__(self) -> Self:
        try:
            await self.start(*self.servers)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        await asyncio.gather(*(server.kill() for server in self.servers.values()))

    async def start(self, *names: str) -> None:
        """Start some of the servers, all at once: they are healthy only when most of the cluster is there."""
        await asyncio.gather(*(self.servers[name].start(CLUSTER_START_DEADLINE) for name in names))
