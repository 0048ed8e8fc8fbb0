"""A hub and two spokes of three servers each, joined by leaf nodes, in operator mode.

Tokens of accounts are in every server's resolver, which takes new ones while the servers run.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import msgspec

from aggregator.topology.report.graph import HEAD, quoted
from shared.embedded.server import ServerSettings
from shared.nats.connection import ConnectFailed, connect
from shared.nats.settings import AuthSettings, ConnectionSettings
from shared.settings import FilePath
from shared.settings import quoted as toml_quoted
from tests.scenarios.narrator import Narrator
from tests.scenarios.server_reports import gather_from
from tests.scenarios.stage import JetStream, Topology, connected
from tests.support.nats.embedded_cluster import EmbeddedCluster, Member
from tests.support.nats.operator_mode import Account, Operator

HUB = "hub"
SPOKES = ("spoke-1", "spoke-2")
CLUSTERS = (HUB, *SPOKES)
SERVERS_EACH = 3
SERVER_COUNT = SERVERS_EACH * len(CLUSTERS)
_PUSH_DEADLINE = 5.0
_ANSWERS_WITHIN = 1.0


class Network:
    """The three clusters by name. Spokes' leaf nodes join the accounts ``joined`` to the hub's.

    ``accounts`` are all accounts that servers know, by name.
    """

    def __init__(
        self, directory: Path, operator: Operator, test: Account, narrator: Narrator, *, domains: bool
    ) -> None:
        self.test = test
        self.narrator = narrator
        self.system = operator.system
        self.joined = [operator.system, test]
        self.accounts = {each.name: each for each in self.joined}
        self.clusters: dict[str, EmbeddedCluster] = {}
        self._directory = directory
        self._operator = operator
        self._domains = domains
        self._is_cut = False
        (directory / "creds").mkdir(parents=True)

    async def start(self) -> None:
        """Start all servers; raise ServerFailed."""
        for names, settle in (((HUB,), self._hub_settings), (SPOKES, self._spoke_settings)):
            for name in names:
                members = [Member(f"{name}-{number}") for number in range(1, SERVERS_EACH + 1)]
                self.clusters[name] = EmbeddedCluster(name, self._directory / name, members, settle)
            await asyncio.gather(*map(self.start_cluster, names))

    async def start_cluster(self, name: str) -> None:
        cluster = self.clusters[name]
        await cluster.start(*cluster.servers)

    async def kill_cluster(self, name: str) -> None:
        await self.clusters[name].close()

    def topology(self) -> Topology:
        head = f"[hub]\n{self._server_toml(HUB, self.test)}\n"
        return Topology(self._directory / "topology.toml", head, self.narrator.sentence)

    def place_toml(self, name: str, account: Account, cluster: str) -> str:
        """Return the part of topology.toml that places an account at the servers of a cluster."""
        return f'[[account]]\nname = "{name}"\n[account.server]\n{self._server_toml(cluster, account)}\n'

    def connected(self, account: Account, cluster: str = HUB) -> AbstractAsyncContextManager[JetStream]:
        return connected(self.clusters[cluster].urls[0], auth=self._auth(account))

    async def answers(self, account: Account, cluster: str) -> bool:
        """Return True if any server of a cluster accepts a connection of an account now."""
        settings = ConnectionSettings(servers=self.clusters[cluster].urls, auth=self._auth(account))
        try:
            client = await connect(settings, name="muster-scenario", deadline=_ANSWERS_WITHIN)
        except ConnectFailed as error:
            self.narrator.sentence(str(error))
            return False
        await client.close()
        return True

    def nats_command(self, account: Account, cluster: str, command: str) -> str:
        """Return the command of NATS's own client that asks a cluster for an account."""
        return f"nats --server {self.clusters[cluster].urls[0]} --creds {self._credentials(account)} {command}"

    async def push(self, claim: str, *accounts: Account) -> None:
        """Put accounts as they are now into every server's resolver, and show that all servers took them."""
        self.accounts |= {account.name: account for account in accounts}
        async with self.connected(self.system) as administrator:

            async def taken(account: Account) -> int:
                token = self._operator.account_token(account).encode()
                subject, client = "$SYS.REQ.CLAIMS.UPDATE", administrator.client
                answers = await gather_from(client, subject, token, SERVER_COUNT, _PUSH_DEADLINE)
                return sum(answer.get("data", {}).get("code") == 200 for answer in answers)

            async def all_taken() -> dict[str, int]:
                return {account.name: await taken(account) for account in accounts}

            # A leaf node that is about to reconnect misses the first push.
            everywhere = dict.fromkeys([account.name for account in accounts], SERVER_COUNT)
            await self.narrator.comes(claim, all_taken, everywhere)

    def join(self, *accounts: Account) -> None:
        """Add accounts to those that the spokes' leaf nodes join, without a restart."""
        self._link([*self.joined, *accounts], is_cut=False)

    def cut(self) -> None:
        """Remove the remotes of every spoke's leaf nodes, without a restart, until ``restore``."""
        self._link(self.joined, is_cut=True)

    def restore(self) -> None:
        self._link(self.joined, is_cut=False)

    async def close(self) -> None:
        await asyncio.gather(*(cluster.close() for cluster in self.clusters.values()))

    def _link(self, joined: list[Account], *, is_cut: bool) -> None:
        before = self._leaves
        self.joined, self._is_cut = joined, is_cut
        for spoke in SPOKES:
            for server in self.clusters[spoke].servers.values():
                server.reload(server.settings.extra_config.replace(before, self._leaves))

    @property
    def _leaves(self) -> str:
        urls = ", ".join(toml_quoted(server.leaf_url) for server in self.clusters[HUB].servers.values())
        remotes = "\n".join(
            f"  {{ urls: [{urls}], account: {each.key.public}, credentials: {toml_quoted(self._credentials(each))} }}"
            for each in (() if self._is_cut else self.joined)
        )
        return f"leafnodes {{ no_advertise: true, reconnect: 1s, remotes: [\n{remotes}\n] }}"

    def _hub_settings(self, settings: ServerSettings) -> ServerSettings:
        return self._settled(msgspec.structs.replace(settings, leaf_port=0), HUB, "")

    def _spoke_settings(self, settings: ServerSettings) -> ServerSettings:
        return self._settled(settings, settings.name.rpartition("-")[0], self._leaves)

    def _settled(self, settings: ServerSettings, domain: str, leaves: str) -> ServerSettings:
        preload = "\n".join(f"  {each.key.public}: {self._operator.account_token(each)}" for each in self.joined)
        directory = toml_quoted(settings.store_dir / "jwt")
        config = f"""
operator: {self._operator.token}
resolver: {{ type: full, dir: {directory}, allow_delete: true, interval: "2m" }}
resolver_preload: {{
{preload}
}}
{leaves}
"""
        return msgspec.structs.replace(
            settings,
            domain=domain if self._domains else "",
            # A server with a leaf link of the system account else waits for a leader beyond it.
            jetstream_config="  extension_hint: no_extend" if self._domains else "",
            extra_config=settings.extra_config + config,
        )

    def _credentials(self, account: Account) -> Path:
        path = self._directory / "creds" / f"{account.name}.creds"
        if not path.exists():
            account.credentials(path)
        return path

    def _auth(self, account: Account) -> AuthSettings:
        return AuthSettings(credentials_file=FilePath(self._credentials(account)))

    def _server_toml(self, cluster: str, account: Account) -> str:
        servers = ", ".join(f'"{url}"' for url in self.clusters[cluster].urls)
        path = self._credentials(account)
        return f'servers = [{servers}]\ndomain = "{cluster}"\nauth = {{ credentials_file = "{path}" }}'


@asynccontextmanager
async def starting(network: Network) -> AsyncIterator["asyncio.Task[None]"]:
    """Start a network in the background; yield the task that starts it, and leave no server at the end."""
    task = asyncio.create_task(network.start())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await network.close()


def account_graph(accounts: Iterable[Account], joined: Sequence[Account]) -> str:
    """Draw for GraphViz the imports between accounts, and the accounts that each spoke's leaf nodes join."""
    accounts = list(accounts)
    names = {account.key.public: account.name for account in accounts}
    lines = ["digraph accounts {", *HEAD]
    for each in accounts:
        exports = [f"{export['type']} {export['subject']}" for export in each.exports]
        label = quoted(each.name, "JetStream" if each.has_jetstream else "no JetStream", *exports)
        lines.append(f"  {quoted(each.name)} [shape=box, label={label}];")
    for each in accounts:
        taken: dict[str, list[str]] = {}
        for entry in each.imports:
            own = f" as {entry['local_subject']}" if "local_subject" in entry else ""
            taken.setdefault(names[entry["account"]], []).append(f"{entry['type']} {entry['subject']}{own}")
        lines += [f"  {quoted(name)} -> {quoted(each.name)} [label={quoted(*of)}];" for name, of in taken.items()]
    lines += [f"  {quoted(place)} [shape=ellipse];" for place in CLUSTERS]
    links = quoted("leaf nodes join", *(each.name for each in joined))
    lines += [f"  {quoted(spoke)} -> {quoted(HUB)} [dir=both, style=dashed, label={links}];" for spoke in SPOKES]
    return "\n".join([*lines, "}", ""])
