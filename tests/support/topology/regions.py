"""Start a hub and its regions as leaf nodes, each behind a link that can be cut, and write their topology.toml."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from nats.aio.client import Client

from shared.embedded.link import EmbeddedLink
from shared.embedded.server import EmbeddedNats, LeafRemote, ServerSettings
from shared.nats.connection import ApiError, ConnectionSettings, RequestFailed, connect, request_json
from tests.support.waiting import until

REGIONS = ("us-east", "eu-west")


class Federation(NamedTuple):
    """The servers, by region; ``links`` carry the regions' leaf connections to the hub."""

    hub: EmbeddedNats
    regions: dict[str, EmbeddedNats]
    links: dict[str, EmbeddedLink]
    topology_path: Path


@asynccontextmanager
async def federation(
    directory: Path, names: Sequence[str] = REGIONS, extra_toml: str = ""
) -> AsyncIterator[Federation]:
    """Start the servers, write the settings, and wait until the hub reaches every region's domain."""
    async with AsyncExitStack() as stack:
        hub_settings = ServerSettings(name="hub", store_dir=directory / "hub", domain="hub", leaf_port=0)
        hub = await stack.enter_async_context(EmbeddedNats(hub_settings))
        links = {name: await stack.enter_async_context(EmbeddedLink(hub.leaf_port)) for name in names}
        regions = {
            name: await stack.enter_async_context(
                EmbeddedNats(
                    ServerSettings(
                        name=name,
                        store_dir=directory / name,
                        domain=name,
                        sync_always=True,
                        leaf_remotes=(LeafRemote(links[name].leaf_url),),
                    )
                )
            )
            for name in names
        }
        topology_path = directory / "topology.toml"
        topology_path.write_text(topology_toml(hub, names) + extra_toml)
        async with await client_of(hub) as client:
            for name in names:
                await until(partial(answers, client, name), f"the hub reaches {name}")
        yield Federation(hub, regions, links, topology_path)


def topology_toml(hub: EmbeddedNats, names: Sequence[str]) -> str:
    """Write the settings that need no more than the names."""
    regions = "".join(f'[[region]]\nname = "{name}"\n' for name in names)
    return f'[hub]\nservers = ["{hub.url}"]\ndomain = "hub"\n{regions}'


async def client_of(server: EmbeddedNats) -> Client:
    """Connect to a server of a test."""
    return await connect(ConnectionSettings(servers=(server.url,)), name="test", deadline=60)


async def answers(client: Client, domain: str) -> bool:
    """Tell whether a domain's JetStream can be reached."""
    try:
        await request_json(client, f"$JS.{domain}.API.INFO", None, dict[str, object], deadline=2)
    except (ApiError, RequestFailed):
        return False
    return True


async def stream(client: Client, name: str, api: str = "$JS.API") -> dict[str, Any]:
    """Give what STREAM.INFO says."""
    return await request_json(client, f"{api}.STREAM.INFO.{name}", None, dict[str, Any], deadline=60)


async def holds(client: Client, name: str, count: int) -> bool:
    """Tell whether a stream holds so many messages; more are an error."""
    messages: int = (await stream(client, name))["state"]["messages"]
    assert messages <= count, "a message came twice"
    return messages == count
