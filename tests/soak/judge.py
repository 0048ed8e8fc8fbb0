"""Judge a soak, once all has come to rest: each site, the relay, the archive, and the tables."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

from nats.aio.msg import Msg

from aggregator.lakehouse.query.engine import open_tables
from shared import wire
from shared.embedded.server import EmbeddedNats
from shared.subjects import RecordType, parse_subject
from shared.wire import Advisory
from tests.soak.stage import RELAYED, Soak
from tests.support.faults.evidence import stored
from tests.support.faults.stage import FLEET

TABLES = ("advisories", "watermarks", "registrations")
DERIVED = ("sender_intervals", "site_coverage", "sender_day_exceptions", "site_availability_hourly")


class Record(NamedTuple):
    """What a record is, whatever server holds it, and by which table it is kept."""

    table: str
    identity: tuple[str, ...]


def record_of(message: Msg) -> Record:
    """Say what a message is."""
    subject = parse_subject(message.subject)
    assert subject is not None, message.subject
    block = str(subject.block_id)
    match subject.record_type:
        case RecordType.ADVISORY:
            advisory = wire.decode_advisory(message.data)
            assert isinstance(advisory, Advisory)
            return Record("advisories", (advisory.event_id,))
        case RecordType.WATERMARK:
            mark = wire.decode_watermark(message.data)
            return Record("watermarks", (block, mark.boot_id, str(mark.observed_through_us)))
        case _:
            return Record("registrations", ((message.headers or {})[wire.ORIGIN_HEADER],))


async def wrong_archive(soak: Soak) -> tuple[list[str], Counter[str]]:
    """Hold ARCHIVE against the regions' FLEETs; say what differs, and count its records, each once, by table."""
    archived = {record_of(message) async for message in stored(soak.servers.hub, "ARCHIVE") if _is_ours(message)}
    held = {record_of(message) for region in soak.servers.regions.values() async for message in stored(region, FLEET)}
    wrong = [f"the archive lacks {record}" for record in held - archived]
    wrong += [f"the archive holds {record}, which no region holds" for record in archived - held]
    return wrong, Counter(record.table for record in archived)


def wrong_tables(path: Path, records: Counter[str]) -> Iterator[str]:
    """Hold the tables' rows against the archive's records; nothing but copies that are no text is set apart."""
    with open_tables(path) as tables:
        rows = {name: int(tables.rows(f"SELECT count(*) FROM {name}")[0][0]) for name in (*TABLES, "quarantine")}
    rows["registrations"] += rows.pop("quarantine")
    for name, count in rows.items():
        if count != records[name]:
            yield f"the table {name} has {count} rows, the archive holds {records[name]}"


def derived(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Read the derived tables."""
    with open_tables(path) as tables:
        return {name: sorted(tables.rows(f"SELECT * FROM {name}"), key=repr) for name in DERIVED}


async def wrong_relay(soak: Soak) -> AsyncIterator[str]:
    """See that the centre has what it must of each sender of the region, once, as it was."""
    below = {origin: message.data async for origin, message in _registrations(soak.servers.regions[RELAYED])}
    senders = {_sender(message) async for _, message in _registrations(soak.servers.regions[RELAYED])}
    seen: set[str] = set()
    async for origin, message in _registrations(soak.centre):
        if origin in seen:
            yield f"the relay forwarded {origin} twice"
        if below.get(origin) != message.data:
            yield f"the relay forwarded {origin}, which is not what the region holds"
        seen.add(origin)
        senders.discard(_sender(message))
    for sender in senders:
        yield f"the relay forwarded nothing of {sender}"


async def _registrations(server: EmbeddedNats) -> AsyncIterator[tuple[str, Msg]]:
    async for message in stored(server, FLEET):
        if message.subject.endswith(".registration"):
            yield (message.headers or {})[wire.ORIGIN_HEADER], message


def _sender(message: Msg) -> str:
    return message.subject + " " + (message.headers or {}).get(wire.SENDER_HEADER, "")


def _is_ours(message: Msg) -> bool:
    return message.subject.startswith("fleet.")
