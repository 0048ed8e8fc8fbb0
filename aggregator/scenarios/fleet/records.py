"""Read what the levels of a fleet's tree hold, and say how old a node's newest registration gets on each."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from statistics import median
from typing import Any

import msgspec
from nats.aio.client import Client

from shared.instants import parse_instant
from shared.subjects import FleetSubject, parse_subject
from shared.wire import ORIGIN_HEADER, SOURCE_HEADER, Advisory, ChoriaAdvisory, decode_advisory

READ_DEADLINE = 10.0
_MOST = 20_000
_END = "Status"
_PROBE_HEADER = "Muster-Probe"

NodeKey = tuple[str, str]
"""Site and sender: in two cities a name may stand for two nodes."""


class Stored(msgspec.Struct, frozen=True):
    """One message of a stream; ``stored_at`` is the stream's own time of it, in microseconds."""

    subject: str
    sequence: int
    stored_at: int
    headers: dict[str, str]
    body: bytes

    @property
    def sender(self) -> str:
        """Whose registration it is, as the adapter says."""
        return str(msgspec.json.decode(self.body)["sender"])

    @property
    def origin(self) -> str:
        """Which registration of which site it is."""
        return self.headers[ORIGIN_HEADER]

    @property
    def node(self) -> NodeKey:
        """Whose registration it is, of all cities'."""
        return self.origin.split(".")[1], self.sender

    @property
    def registered_at(self) -> int:
        """When its site stored it, to the millisecond: Choria's replicator writes that too."""
        return int(self.headers[SOURCE_HEADER].split()[-1]) * 1000


class Arrival(msgspec.Struct, frozen=True):
    """A node's registration on a level: stored at its site at one time, there at another (microseconds)."""

    node: NodeKey
    registered_at: int
    arrived_at: int


async def read(client: Client, stream: str) -> list[Stored]:
    """Read a stream whole, less the agents' probes, by a direct get of many (nats-server 2.11)."""
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    found = []
    try:
        request = msgspec.json.encode({"seq": 1, "batch": _MOST})
        await client.publish(f"$JS.API.DIRECT.GET.{stream}", request, reply=inbox)
        while _END not in (headers := (message := await subscription.next_msg(timeout=READ_DEADLINE)).headers or {}):
            found.append(
                Stored(
                    headers["Nats-Subject"],
                    int(headers["Nats-Sequence"]),
                    parse_instant(headers["Nats-Time-Stamp"]),
                    headers,
                    message.data,
                )
            )
    finally:
        await subscription.unsubscribe()
    return [each for each in found if _PROBE_HEADER not in each.headers]


def ours(records: Iterable[Stored]) -> Iterator[tuple[FleetSubject, Stored]]:
    """Give the records of Muster, with what their subjects say."""
    for record in records:
        subject = parse_subject(record.subject)
        if subject is not None:
            yield subject, record


def advisories(records: Iterable[Stored]) -> Iterator[Advisory | ChoriaAdvisory]:
    """Read every record whose protocol is that of advisories; raise WireError where one is none."""
    for record in records:
        if b'"io.choria.sr.v2.age_advisory"' in record.body:
            yield decode_advisory(record.body)


def arrivals_of(records: Iterable[Stored]) -> Iterator[Arrival]:
    """Say when registrations that were forwarded came to a level."""
    return (Arrival(each.node, each.registered_at, each.stored_at) for each in records if ORIGIN_HEADER in each.headers)


def ages(arrivals: Iterable[Arrival], since: int) -> dict[NodeKey, list[int]]:
    """Say how old (microseconds) each node's newest registration was whenever the next one came, from ``since`` on."""
    known: dict[NodeKey, list[Arrival]] = defaultdict(list)
    for arrival in arrivals:
        if arrival.arrived_at >= since:
            known[arrival.node].append(arrival)
    return {
        node: [after.arrived_at - before.registered_at for before, after in pairwise(each)]
        for node, each in known.items()
    }


def typical(found: dict[NodeKey, list[int]]) -> float:
    """Give the median age of all nodes', 0 where there is none."""
    return median([age for each in found.values() for age in each] or [0])


def repeated(identities: Iterable[Any]) -> int:
    """Count how many of them were there before."""
    listed = list(identities)
    return len(listed) - len(set(listed))
