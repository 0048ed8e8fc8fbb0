"""Look for records that were lost or altered on the way from the sites' streams into the hub's archive.

Each archived registration names the message that it is (``Muster-Origin``), so it can be held against the site's own
stream, byte for byte. Agents count what they forward and number their advisories, so that a hole shows.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing

import msgspec
from nats.aio.msg import Msg

from aggregator.demo import scenario
from aggregator.demo.live import AgentStatus
from aggregator.demo.stage import Stage, connected
from aggregator.demo.watch import ARCHIVE
from shared.blake2 import blake2b
from shared.decoding import WireError
from shared.nats.jetstream_api import api_prefix
from shared.nats.stream_messages import every_message
from shared.subjects import RecordType, parse_subject
from shared.wire import (
    ORIGIN_HEADER,
    Advisory,
    ChoriaAdvisory,
    Watermark,
    decode_advisory,
    decode_watermark,
    parse_origin_header,
)

_DEADLINE = 10.0
_REGISTRATION = "REGISTRATION"


class Audit(msgspec.Struct, frozen=True):
    """What was looked at, each record once, by table; and in words what should not be.

    ``altered`` speaks of registrations: other bytes than published, or lost. ``missing`` speaks of advisories,
    ``strange`` of messages that no agent of the demo writes.
    """

    record_counts: dict[str, int]
    compared_bytes: int
    altered: tuple[str, ...]
    missing: tuple[str, ...]
    strange: tuple[str, ...]


class _Archive:
    """The archive's records, each once, by its identity as readers know it."""

    def __init__(self) -> None:
        self.digests: dict[str, dict[int, bytes]] = {site: {} for site in scenario.SITES}
        self.ordinals: dict[tuple[str, str], set[int]] = defaultdict(set)
        self.issued: dict[tuple[str, str], int] = defaultdict(int)
        self.event_ids: set[tuple[str, str]] = set()
        self.watermarks: set[tuple[str, str, int]] = set()
        self.compared_bytes = 0
        self.altered: list[str] = []
        self.strange: list[str] = []

    def take(self, message: Msg) -> None:
        subject = parse_subject(message.subject)
        if subject is None:
            self.strange.append(f"a message on {message.subject} is in the archive")
            return
        try:
            match subject.record_type:
                case RecordType.REGISTRATION:
                    self._take_registration(message)
                case RecordType.ADVISORY:
                    self._take_advisory(str(subject.block_id), decode_advisory(message.data))
                case RecordType.WATERMARK:
                    self._take_watermark(str(subject.block_id), decode_watermark(message.data))
                case RecordType.COPY:
                    self.strange.append(f"a copy is in the archive, on {message.subject}")
        except (WireError, KeyError) as error:
            self.strange.append(f"a message on {message.subject} cannot be read: {error}")

    def _take_registration(self, message: Msg) -> None:
        origin, _, sequence = parse_origin_header((message.headers or {})[ORIGIN_HEADER])
        digest = _digest(message)
        if self.digests[origin.site].setdefault(sequence, digest) != digest:
            self.altered.append(f"{origin.site}: message {sequence} came twice, with different bytes")
        self.compared_bytes += len(message.data)

    def _take_advisory(self, block: str, advisory: Advisory | ChoriaAdvisory) -> None:
        self.event_ids.add((block, advisory.event_id))
        if isinstance(advisory, Advisory):
            self.ordinals[block, advisory.incarnation].add(advisory.ordinal)
        else:
            self.strange.append(f"{block}: an advisory without our fields, by {advisory.replicator}")

    def _take_watermark(self, block: str, watermark: Watermark) -> None:
        self.watermarks.add((block, watermark.boot_id, watermark.observed_through_us))
        past = block, watermark.incarnation
        self.issued[past] = max(self.issued[past], watermark.advisory_ordinal)

    def missing_advisories(self) -> tuple[str, ...]:
        """Name the blocks of which an advisory was issued that is not there: their ordinals have no holes."""
        missing = []
        for past in sorted(self.ordinals.keys() | self.issued.keys()):
            held = self.ordinals[past]
            issued = max(self.issued[past], *held, 0)
            if len(held) != issued:
                missing.append(f"{past[0]}: {issued} advisories were issued, {len(held)} have arrived")
        return tuple(missing)


async def audit(stage: Stage, statuses: Mapping[str, AgentStatus]) -> Audit:
    """Read the archive and the sites' streams whole, and compare; raise ApiError or RequestFailed."""
    archive = _Archive()
    async for message in _messages(stage.hub.url, ARCHIVE, scenario.HUB):
        archive.take(message)
    altered = archive.altered
    for site, digests in archive.digests.items():
        altered += _compare_with_agent(site, len(digests), statuses[site])
        altered += await _compare_with_stream(site, digests, stage)
    counts = {
        "advisories": len(archive.event_ids),
        "watermarks": len(archive.watermarks),
        "registrations": sum(map(len, archive.digests.values())),
    }
    return Audit(counts, archive.compared_bytes, tuple(altered), archive.missing_advisories(), tuple(archive.strange))


def _compare_with_agent(site: str, arrived: int, status: AgentStatus) -> list[str]:
    """See that whatever the agent forwarded and did not arrive is accounted for: replaced, dropped, or waiting.

    One that arrived may be counted as replaced or waiting too, where the link was cut before its acknowledgement.
    """
    forwarded, replaced, dropped = (status.count(what) for what in ("forwarded", "compacted", "dropped"))
    problems = []
    if not 0 <= forwarded - arrived <= replaced + dropped + status.waiting_registrations:
        problems.append(
            f"{site}: of {forwarded} registrations forwarded {arrived} arrived, {replaced} were replaced by newer ones,"
            f" {dropped} were dropped, {status.waiting_registrations} wait"
        )
    if status.count("rejected"):
        problems.append(f"{site}: the agent rejected {status.count('rejected')} registrations")
    return problems


async def _compare_with_stream(site: str, digests: dict[int, bytes], stage: Stage) -> list[str]:
    """Hold what arrived against what the senders published."""
    missing = set(digests)
    altered = 0
    async for message in _messages(stage.site_urls[site], _REGISTRATION, ""):
        sequence = message.metadata.sequence.stream
        if sequence in missing:
            missing.discard(sequence)
            altered += digests[sequence] != _digest(message)
    problems = []
    if altered:
        problems.append(f"{site}: {altered} registrations arrived with other bytes than the senders published")
    if missing:
        problems.append(f"{site}: {len(missing)} registrations arrived that no sender published")
    return problems


async def _messages(url: str, stream: str, domain: str) -> AsyncIterator[Msg]:
    client = await connected(url)
    try:
        messages = every_message(client, stream, api=api_prefix(domain), deadline=_DEADLINE)
        async with aclosing(messages):
            async for message in messages:
                yield message
    finally:
        await client.close()


def _digest(message: Msg) -> bytes:
    return blake2b(message.data, digest_size=16).digest()
