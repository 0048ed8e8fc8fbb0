"""A city that still runs Choria's own replicator: its advisories are told from ours, and read like ours."""

from functools import partial

import msgspec

from aggregator.scenarios.fleet.nodes import ADVISORIES
from aggregator.scenarios.fleet.records import read
from aggregator.scenarios.narrator import Narrator
from aggregator.scenarios.stage import JetStream
from shared.wire import ChoriaAdvisory, decode_advisory

CITY = "ber1"
SAID = (
    ("3MS9G8GXAqciLCjrHvfRpGgmWR5", 0, 1795333002, 1795333002, "new"),
    ("3MS9IGKKAN1Mtg9r5EVmeXYVZWo", 17, 1795333002, 1795333019, "timeout"),
    ("3MS9IooZF0gs35piBIt3ju4xgCJ", 22, 1795333002, 1795333024, "recover"),
    ("3MS9Km4mNnU2My8nojHxXpXZUny", 15, 1795333024, 1795333039, "timeout"),
    ("3MS9OV5iJAPu3vukSrCplfnK1ts", 45, 1795333024, 1795333069, "expire"),
)
"""What its replicator 0.9.0 said of one node: id, age, when it was seen, when it was said, and the event."""


def plain_advisories() -> list[bytes]:
    """Give the advisories, byte for byte as the replicator published them."""
    return [
        msgspec.json.encode(
            {
                "protocol": "io.choria.sr.v2.age_advisory",
                "event_id": event_id,
                "inspect_field": "sender",
                "age": age,
                "seen": seen,
                "replicator": CITY,
                "timestamp": timestamp,
                "event": event,
                "value": "db1.example.net",
            }
        )
        for event_id, age, seen, timestamp, event in SAID
    ]


async def play(centre: JetStream, narrator: Narrator) -> None:
    """Publish what its replicator said, and read what becomes of it."""
    narrator.chapter("ber1 still runs Choria's own replicator, which copies its advisories to the centre")
    bodies = plain_advisories()
    for body in bodies:
        await centre.client.jetstream().publish(ADVISORIES, body)

    async def has_all(stream: str) -> bool:
        return [each.body for each in await read(centre.client, stream) if each.body in bodies] == bodies

    await narrator.comes("ARCHIVE has them as they are", partial(has_all, "ARCHIVE"), True)
    beside_ours = partial(has_all, "CHORIA_REGISTRATION_ADVISORIES")
    await narrator.comes("CHORIA_REGISTRATION_ADVISORIES has them beside ours", beside_ours, True)
    archived = await read(centre.client, "ARCHIVE")
    accepted = [decode_advisory(each.body) for each in archived if each.body in bodies]
    plain = [each for each in accepted if isinstance(each, ChoriaAdvisory)]
    narrator.show(
        "each is an advisory without watermarks, of a kind that we know",
        [f"{each.replicator} {each.kind}" for each in plain],
        [f"{CITY} {kind}" for kind in ("new", "stale", "recovered", "stale", "retired")],
    )
