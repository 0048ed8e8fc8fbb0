"""Records on the levels of a fleet's tree, and the age of a node's newest registration on each level."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import msgspec
from nats.aio.client import Client

from shared.instants import parse_instant
from shared.subjects import FleetSubject, RecordType, parse_subject
from shared.wire import ORIGIN_HEADER, SOURCE_HEADER, Advisory, decode_advisory, decode_watermark
from tests.scenarios.stage import JetStream

READ_DEADLINE = 10.0
_MOST = 20_000

NodeKey = tuple[str, str]
"""Site and sender: one name in two cities is two nodes."""


class Stored(NamedTuple):
    """One message of a stream; ``stored_at`` is the stream's own time of it, in microseconds."""

    subject: str
    sequence: int
    stored_at: int
    headers: dict[str, str]
    body: bytes

    @property
    def sender(self) -> str:
        return str(msgspec.json.decode(self.body)["sender"])

    @property
    def origin(self) -> str:
        """The identity of a forwarded registration."""
        return self.headers[ORIGIN_HEADER]

    @property
    def node(self) -> NodeKey:
        return self.origin.split(".")[1], self.sender

    @property
    def registered_at(self) -> int:
        """The instant at which its site stored it, to the millisecond: Choria's replicator writes that too."""
        return int(self.headers[SOURCE_HEADER].split()[-1]) * 1000


class Arrival(NamedTuple):
    """A node's registration on a level: when its site stored it, and when that level did (microseconds)."""

    node: NodeKey
    registered_at: int
    arrived_at: int


async def read(client: Client, stream: str) -> list[Stored]:
    """Read a stream whole, without the agents' probes, by a direct get of many (nats-server 2.11)."""
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    found = []
    try:
        request = msgspec.json.encode({"seq": 1, "batch": _MOST})
        await client.publish(f"$JS.API.DIRECT.GET.{stream}", request, reply=inbox)
        while "Status" not in (
            headers := (message := await subscription.next_msg(timeout=READ_DEADLINE)).headers or {}
        ):
            sequence, stored_at = int(headers["Nats-Sequence"]), parse_instant(headers["Nats-Time-Stamp"])
            found.append(Stored(headers["Nats-Subject"], sequence, stored_at, headers, message.data))
    finally:
        await subscription.unsubscribe()
    return [each for each in found if "Muster-Probe" not in each.headers]


def ours(records: Iterable[Stored], *types: RecordType) -> Iterator[tuple[FleetSubject, Stored]]:
    """Yield Muster's records of these types, or of all, with their parsed subjects."""
    for record in records:
        subject = parse_subject(record.subject)
        if subject is not None and (not types or subject.record_type in types):
            yield subject, record


class Levels(NamedTuple):
    """Connections to the servers of the cities, the region and the centre."""

    cities: dict[str, JetStream]
    region: JetStream
    centre: JetStream

    @property
    def above(self) -> dict[str, JetStream]:
        return {"region": self.region, "centre": self.centre}

    async def kinds_at_centre(self) -> dict[NodeKey, list[str]]:
        """Return the kinds of each node's advisories that Choria's consumers at the centre read, by their instants."""
        kinds: dict[NodeKey, list[str]] = defaultdict(list)
        for advisory in advisories(await read(self.centre.client, "CHORIA_REGISTRATION_ADVISORIES")):
            kinds[advisory.site, advisory.value].append(advisory.kind.value)
        return kinds

    async def covered_at_centre(self) -> dict[str, int]:
        """Return, by site, the last advisory's ordinal in the centre's watermarks of nodes."""
        archived = ours(await read(self.centre.client, "ARCHIVE"), RecordType.WATERMARK)
        ordinals: dict[str, int] = {}
        for watermark in (decode_watermark(each.body) for _, each in archived):
            ordinals[watermark.site] = max(ordinals.get(watermark.site, 0), watermark.advisory_ordinal)
        return ordinals

    async def city_arrivals(self) -> list[Arrival]:
        return [
            Arrival((city, record.sender), record.stored_at, record.stored_at)
            for city, jetstream in self.cities.items()
            for record in await read(jetstream.client, "CHORIA_REGISTRATION")
        ]


def advisories(records: Iterable[Stored]) -> list[Advisory]:
    """Return Muster's advisories by their instants; raise WireError for a record of that protocol that is none."""
    decoded = (decode_advisory(each.body) for each in records if b'"io.choria.sr.v2.age_advisory"' in each.body)
    return sorted((each for each in decoded if isinstance(each, Advisory)), key=lambda each: each.at_us)


def arrivals_of(records: Iterable[Stored]) -> Iterator[Arrival]:
    """Yield the arrivals of forwarded registrations on a level."""
    return (Arrival(each.node, each.registered_at, each.stored_at) for each in records if ORIGIN_HEADER in each.headers)


def ages(arrivals: Iterable[Arrival], since: int) -> dict[NodeKey, list[int]]:
    """Return the age (microseconds) of each node's newest registration at every next arrival from ``since`` on."""
    known: dict[NodeKey, list[Arrival]] = defaultdict(list)
    for arrival in arrivals:
        if arrival.arrived_at >= since:
            known[arrival.node].append(arrival)
    return {
        node: [after.arrived_at - before.registered_at for before, after in pairwise(each)]
        for node, each in known.items()
    }


def median_age(found: dict[NodeKey, list[int]]) -> float:
    return median([age for each in found.values() for age in each] or [0])
