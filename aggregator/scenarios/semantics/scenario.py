"""Sources and mirrors: what each option takes, what copies keep, and what becomes of them when the origin is away.

Source: "Source and Mirror Streams" of the NATS documentation. A hub and an edge server behind a link that can be cut,
each with a JetStream domain of its own.
"""

from pathlib import Path

from aggregator.scenarios.narrator import Narrator
from aggregator.scenarios.semantics import durable, links, mirrors, retention, sources
from aggregator.scenarios.stage import Topology, connected, nats_command
from shared.embedded.link import EmbeddedLink
from shared.embedded.server import EmbeddedNats, LeafRemote, ServerSettings
from shared.nats.settings import AuthSettings
from shared.settings import FilePath

USERS = f"""
authorization {{
  users: [
    {{ user: muster, password: muster }}
    {{ user: app, password: app{sources.DENIED} }}
  ]
}}
no_auth_user: muster
"""


async def play(directory: Path, narrator: Narrator) -> None:
    """Play it in ``directory``, where topology.toml stays."""
    narrator.chapter("A hub, and an edge behind a leaf link")
    hub_settings = ServerSettings(
        name="hub", store_dir=directory / "hub", domain="hub", leaf_port=0, extra_config=USERS
    )
    password = directory / "app.password"
    password.write_text("app", encoding="utf-8")
    app = AuthSettings(user="app", password_file=FilePath(password))
    async with EmbeddedNats(hub_settings) as hub, EmbeddedLink(hub.leaf_port) as link:
        remote = LeafRemote(link.leaf_url.replace("//", "//muster:muster@"))
        edge_settings = ServerSettings(name="edge", store_dir=directory / "edge", domain="edge", leaf_remotes=(remote,))
        async with (
            EmbeddedNats(edge_settings) as edge,
            connected(hub.url) as at_hub,
            connected(hub.url, auth=app) as at_hub_as_app,
            connected(edge.url) as at_edge,
        ):
            await narrator.comes("the hub reaches the edge's JetStream", lambda: at_hub.reaches("edge"), True)
            head = f'[hub]\nservers = ["{hub.url}"]\ndomain = "hub"\n'
            topology = Topology(directory / "topology.toml", head, narrator.sentence)
            await sources.play(topology, hub, at_hub, at_hub_as_app, narrator)
            await mirrors.play(topology, at_hub, narrator)
            await retention.play(topology, at_hub, at_edge, narrator)
            await durable.play(topology, at_hub, narrator)
            await links.play(topology, at_hub, at_edge, link, narrator)
            await narrator.stay(
                topology.way,
                nats_command(hub.url, "stream report"),
                nats_command(hub.url, "--js-domain edge stream report"),
            )
