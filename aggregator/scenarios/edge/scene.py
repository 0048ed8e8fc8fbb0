"""What every part of JetStream at the edge needs: the servers, who vouches for accounts, and ways to log in."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from aggregator.scenarios.edge.network import HUB, Credentials, Network, push, server_names
from aggregator.scenarios.edge.tokens import Account, Operator
from aggregator.scenarios.narrator import Narrator
from aggregator.scenarios.stage import JetStream, Topology, connected, nats_command
from shared.nats.connection import ConnectFailed, connect
from shared.nats.settings import ConnectionSettings

_ANSWERS_WITHIN = 1.0


class Scene:
    """One network, and everything that acts on it. ``test`` is the account that hub and spokes have in common.

    ``accounts`` are all that servers have been told of, by name.
    """

    def __init__(
        self,
        directory: Path,
        operator: Operator,
        credentials: Credentials,
        net: Network,
        test: Account,
        narrator: Narrator,
    ) -> None:
        self.net = net
        self.test = test
        self.narrator = narrator
        self.accounts = {operator.system.name: operator.system, test.name: test}
        self._operator = operator
        self._credentials = credentials
        head = f"[hub]\n{self._server(HUB, test)}\n"
        self.topology = Topology(directory / "topology.toml", head, narrator.sentence)

    def connected(self, account: Account, cluster: str = HUB) -> AbstractAsyncContextManager[JetStream]:
        return connected(self.net.urls(cluster)[0], auth=self._credentials.of(account))

    async def answers(self, account: Account, cluster: str) -> bool:
        """Tell whether any server of a cluster lets an account in, now."""
        settings = ConnectionSettings(servers=self.net.urls(cluster), auth=self._credentials.of(account))
        try:
            client = await connect(settings, name="muster-scenario", deadline=_ANSWERS_WITHIN)
        except ConnectFailed as error:
            self.narrator.sentence(str(error))
            return False
        await client.close()
        return True

    def nats_command(self, account: Account, cluster: str, *command: str) -> str:
        """Say how to ask for an account at a cluster with NATS's own command."""
        return nats_command(self.net.urls(cluster)[0], f"--creds {self._credentials.path(account)}", *command)

    def place(self, name: str, account: Account, cluster: str) -> None:
        """Let topology.toml know an account at the servers of a cluster."""
        self.topology.add(f'[[account]]\nname = "{name}"\n[account.server]\n{self._server(cluster, account)}\n')

    async def push(self, claim: str, *accounts: Account) -> None:
        """Put accounts as they are now into every server's resolver, and show that all took them."""
        self.accounts |= {account.name: account for account in accounts}
        everybody = dict.fromkeys([account.name for account in accounts], len(server_names()))
        async with self.connected(self._operator.system) as administrator:

            async def taken() -> dict[str, int]:
                tokens = {account.name: self._operator.vouch(account) for account in accounts}
                return {name: len(await push(administrator.client, token)) for name, token in tokens.items()}

            # A leaf node that is on its way back does not hear of it the first time.
            await self.narrator.comes(claim, taken, everybody)

    def _server(self, cluster: str, account: Account) -> str:
        servers = ", ".join(f'"{url}"' for url in self.net.urls(cluster))
        path = self._credentials.path(account)
        return f'servers = [{servers}]\ndomain = "{cluster}"\nauth = {{ credentials_file = "{path}" }}'
