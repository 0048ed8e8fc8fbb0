"""Lay out a federation's streams, publish in its regions, and see which of what they hold the archive has."""

import base64
import re
from typing import Any

from nats.aio.client import Client

from shared.nats.connection import request_json
from tests.support.topology.aggregator_command import ran
from tests.support.topology.regions import Federation, stream
from tests.support.waiting import until

# After a consumer was missing, the hub's server tries again after 10 s, 20 s, 30 s and so on.
RETRIED = 150.0
BODY = bytes(range(256)) * 40


async def applied(servers: Federation, extra_toml: str = "") -> str:
    """Add settings to the topology and apply it; give what apply says."""
    servers.topology_path.write_text(servers.topology_path.read_text() + extra_toml)
    return await ran("apply", "--config", servers.topology_path)


async def publish(client: Client, region: str, count: int, body: bytes = BODY) -> None:
    """Publish so many registrations in a region."""
    for _ in range(count):
        await client.publish(f"fleet.{region}.dub1.nodes.registration", body)
    await client.flush()


async def acknowledged(hub: Client, region: str, sequence: int) -> None:
    """Wait until the region's consumer knows that the hub has everything up to a sequence.

    Before its first acknowledgement an outage can easily cost what follows (docs/decisions/0019), so tests of outages
    begin behind it.
    """
    subject = f"$JS.{region}.API.CONSUMER.INFO.FLEET.muster-archive"

    async def is_acknowledged() -> bool:
        info = await request_json(hub, subject, None, dict[str, Any], deadline=60)
        return bool(info["ack_floor"]["stream_seq"] >= sequence)

    await until(is_acknowledged, f"{sequence} is acknowledged")


async def holds_sequence(hub: Client, sequence: int) -> bool:
    """Tell whether the archive has the region's message of a sequence."""
    return sequence in await archived_sequences(hub)


async def archived_sequences(hub: Client, name: str = "ARCHIVE") -> list[int]:
    """Give the regions' sequences of what the archive, or another copy, holds, in its order."""
    found = []
    for sequence in range(1, int((await stream(hub, name))["state"]["messages"]) + 1):
        request = {"seq": sequence}
        reply = await request_json(hub, f"$JS.API.STREAM.MSG.GET.{name}", request, dict[str, Any], deadline=60)
        headers = base64.b64decode(reply["message"]["hdrs"]).decode()
        found.append(int(re.findall(r"^Nats-Stream-Source: \S+ (\d+) ", headers, re.MULTILINE)[0]))
    return found
