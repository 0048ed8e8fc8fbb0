"""A city that still runs Choria's own replicator: its advisories are told from ours, and read like ours."""

import time
from typing import Any

import msgspec

from aggregator.scenarios.fleet_nodes import ADVISORIES
from aggregator.scenarios.fleet_records import read
from aggregator.scenarios.stage import JetStream
from aggregator.scenarios.telling import Telling
from shared.wire import CHORIA_EVENTS, ChoriaAdvisory, decode_advisory

CITY = "ber1"
EVENTS = tuple(CHORIA_EVENTS.values())


def plain_advisory(event: str, now: int) -> bytes:
    """Write an advisory as Choria's replicator does (0.9.0): a drawn id, and instants in whole seconds."""
    advisory: dict[str, Any] = {
        "protocol": "io.choria.sr.v2.age_advisory",
        "event_id": f"2DKHtQJ7vBvJ8GqzRzWmnR{event[:4]:x<5}",
        "inspect_field": "sender",
        "age": 0 if event == "new" else 660,
        "seen": now if event == "new" else now - 660,
        "replicator": CITY,
        "timestamp": now,
        "event": event,
        "value": "db1.example.net",
    }
    return msgspec.json.encode(advisory)


async def play(centre: JetStream, telling: Telling) -> None:
    """Publish one advisory of each kind, as its replicator would, and read what becomes of it."""
    telling.chapter("ber1 still runs Choria's own replicator, which publishes its advisories to the centre")
    now = int(time.time())
    bodies = [plain_advisory(event, now) for event in EVENTS]
    for body in bodies:
        await centre.client.jetstream().publish(ADVISORIES, body)

    async def stored(stream: str) -> list[bytes]:
        return [each.body for each in await read(centre.client, stream) if each.body in bodies]

    async def in_archive() -> bool:
        return await stored("ARCHIVE") == bodies

    async def beside_ours() -> bool:
        return await stored("CHORIA_REGISTRATION_ADVISORIES") == bodies

    await telling.comes("ARCHIVE has them as they are", in_archive, True)
    await telling.comes("CHORIA_REGISTRATION_ADVISORIES has them beside ours", beside_ours, True)
    accepted = [decode_advisory(body) for body in await stored("ARCHIVE")]
    plain = [each for each in accepted if isinstance(each, ChoriaAdvisory)]
    telling.show(
        "each is an advisory without watermarks, of a kind that we know",
        [(each.replicator, each.kind.value) for each in plain],
        [(CITY, kind.value) for kind in CHORIA_EVENTS],
    )
