"""A hub and two spokes of three servers each, joined by leaf nodes, in operator mode.

Tokens of accounts are in every server's resolver, where a new one can be put while the servers run.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from nats.aio.client import Client

from aggregator.scenarios.edge.tokens import Account, Operator
from shared.embedded.cluster import EmbeddedCluster, Member
from shared.embedded.server import ServerSettings
from shared.nats.settings import AuthSettings
from shared.settings import FilePath, quoted

HUB = "hub"
SPOKES = ("spoke-1", "spoke-2")
SERVERS_EACH = 3
SERVER_COUNT = SERVERS_EACH * (1 + len(SPOKES))
PUSH_DEADLINE = 5.0


class Credentials:
    """Files with users of accounts."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True)

    def path(self, account: Account) -> Path:
        """Give a file with a user of an account, made where it is not there."""
        path = self._directory / f"{account.name}.creds"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(account.credentials(account.name.lower()), encoding="utf-8")
        return path

    def of(self, account: Account) -> AuthSettings:
        return AuthSettings(credentials_file=FilePath(self.path(account)))


class Network:
    """The three clusters by name. ``joined`` are the accounts that the spokes' leaf nodes join to the hub's."""

    def __init__(self, directory: Path, operator: Operator, credentials: Credentials, *, domains: bool) -> None:
        self._directory = directory
        self._operator = operator
        self._credentials = credentials
        self._domains = domains
        self._joined: Sequence[Account] = ()
        self._is_cut = False
        self.starting: asyncio.Task[None] | None = None
        self.clusters: dict[str, EmbeddedCluster] = {}

    @property
    def joined(self) -> list[Account]:
        """What the spokes' leaf nodes join to the hub."""
        return [self._operator.system, *self._joined]

    def urls(self, cluster: str) -> tuple[str, ...]:
        return self.clusters[cluster].urls

    async def start(self, joined: Sequence[Account]) -> None:
        """Start all servers; raise ServerFailed."""
        self._joined = joined
        self.clusters[HUB] = EmbeddedCluster(HUB, self._directory / HUB, _members(HUB), self._hub_settings)
        await self.start_cluster(HUB)
        for spoke in SPOKES:
            self.clusters[spoke] = EmbeddedCluster(
                spoke, self._directory / spoke, _members(spoke), self._spoke_settings
            )
        await asyncio.gather(*map(self.start_cluster, SPOKES))

    async def started(self) -> None:
        """Wait until all servers run; raise ServerFailed."""
        assert self.starting is not None
        await self.starting

    async def start_cluster(self, name: str) -> None:
        """Start the servers of a cluster; raise ServerFailed."""
        cluster = self.clusters[name]
        await cluster.start(*cluster.servers)

    async def kill_cluster(self, name: str) -> None:
        await asyncio.gather(*(server.kill() for server in self.clusters[name].servers.values()))

    def join(self, joined: Sequence[Account]) -> None:
        """Let the spokes' leaf nodes join other accounts than before, without a restart."""
        self._link(joined, is_cut=False)

    def cut(self) -> None:
        """Take every spoke's leaf nodes off the hub, without a restart, until they are restored."""
        self._link(self._joined, is_cut=True)

    def restore(self) -> None:
        """Let the spokes' leaf nodes join what they joined before."""
        self._link(self._joined, is_cut=False)

    async def close(self) -> None:
        await asyncio.gather(*(cluster.close() for cluster in self.clusters.values()))

    def _hub_settings(self, settings: ServerSettings) -> ServerSettings:
        return self._settled(msgspec.structs.replace(settings, leaf_port=0), HUB, "")

    def _spoke_settings(self, settings: ServerSettings) -> ServerSettings:
        spoke = settings.name.rpartition("-")[0]
        return self._settled(settings, spoke, self._leaves)

    def _link(self, joined: Sequence[Account], *, is_cut: bool) -> None:
        before = self._leaves
        self._joined, self._is_cut = joined, is_cut
        for spoke in SPOKES:
            for server in self.clusters[spoke].servers.values():
                server.reload(server.settings.extra_config.replace(before, self._leaves))

    @property
    def _leaves(self) -> str:
        urls = ", ".join(quoted(server.leaf_url) for server in self.clusters[HUB].servers.values())
        accounts = {} if self._is_cut else {each.key.public: self._credentials.path(each) for each in self.joined}
        remotes = "\n".join(
            f"  {{ urls: [{urls}], account: {key}, credentials: {quoted(path)} }}" for key, path in accounts.items()
        )
        return f"leafnodes {{ no_advertise: true, reconnect: 1s, remotes: [\n{remotes}\n] }}"

    def _settled(self, settings: ServerSettings, domain: str, leaves: str) -> ServerSettings:
        preload = "\n".join(f"  {each.key.public}: {self._operator.vouch(each)}" for each in self.joined)
        directory = quoted(settings.store_dir / "jwt")
        resolver = f'{{ type: full, dir: {directory}, allow_delete: true, interval: "2m" }}'
        config = f"""
operator: {self._operator.token}
resolver: {resolver}
resolver_preload: {{
{preload}
}}
{leaves}
"""
        return msgspec.structs.replace(
            settings,
            domain=domain if self._domains else "",
            # A server with a leaf link of the system account else waits whether a leader beyond it takes it in.
            jetstream_config="  extension_hint: no_extend" if self._domains else "",
            extra_config=settings.extra_config + config,
        )


@asynccontextmanager
async def network(
    directory: Path, operator: Operator, credentials: Credentials, joined: Sequence[Account], *, domains: bool
) -> AsyncIterator[Network]:
    """Have servers that start meanwhile: ``started()`` waits for them; none is left at the end."""
    made = Network(directory, operator, credentials, domains=domains)
    made.starting = asyncio.create_task(made.start(joined))
    try:
        yield made
    finally:
        made.starting.cancel()
        await asyncio.gather(made.starting, return_exceptions=True)
        await made.close()


async def push(administrator: Client, token: str) -> list[str]:
    """Put an account's token into every server's resolver; give the names of those that took it."""
    inbox = administrator.new_inbox()
    subscription = await administrator.subscribe(inbox)
    taken: list[str] = []
    try:
        await administrator.publish("$SYS.REQ.CLAIMS.UPDATE", token.encode(), reply=inbox)
        async with asyncio.timeout(PUSH_DEADLINE):
            while len(taken) < SERVER_COUNT:
                answer: dict[str, Any] = msgspec.json.decode((await subscription.next_msg(timeout=PUSH_DEADLINE)).data)
                if answer.get("data", {}).get("code") == 200:
                    taken.append(str(answer["server"]["name"]))
    except TimeoutError:
        pass
    finally:
        await subscription.unsubscribe()
    return sorted(taken)


def server_names() -> list[str]:
    return [member.name for cluster in (HUB, *SPOKES) for member in _members(cluster)]


def _members(cluster: str) -> list[Member]:
    return [Member(f"{cluster}-{number}") for number in range(1, SERVERS_EACH + 1)]
