"""Stand in for the hub: a real server with an archive and its mirror, and records published as agents publish them."""

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Self

from msgspec import UNSET
from nats.aio.client import Client

from shared.embedded.server import EmbeddedNats, ServerSettings
from shared.identifiers import AdvisoryKind, BlockId, Incarnation
from shared.instants import MINUTE
from shared.nats.connection import ConnectionSettings, connect, request_json
from shared.policy import Order, Revision, Scope, encode_revision
from shared.subjects import advisory_subject, registration_subject, watermark_subject
from shared.wire import (
    ORIGIN_HEADER,
    REASON_HEADER,
    SOURCE_HEADER,
    Watermark,
    encode,
    origin_header,
    source_header,
)
from tests.support.core.advisories import advisory_of

ARCHIVE, REPORT = "ARCHIVE", "REPORT"
STALE_AFTER = 12 * MINUTE
DEADLINE = 60.0
"""Seconds for any answer: on a machine with much else to do, and a disk with much to write."""


class Message(NamedTuple):
    """One message to publish."""

    subject: str
    body: bytes
    headers: dict[str, str] | None = None


class Hub:
    """A server whose stream ARCHIVE takes the fleet's, Choria's and policy's subjects; REPORT mirrors its last ones."""

    replicas = 1

    def __init__(self, directory: Path, report_limit: int = -1, extra_config: str = "", domain: str = "") -> None:
        self._report_limit = report_limit
        settings = ServerSettings(name="hub", store_dir=directory, extra_config=extra_config, domain=domain)
        self.server = EmbeddedNats(settings)

    @property
    def connection(self) -> ConnectionSettings:
        return ConnectionSettings(servers=(self.server.url,))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def start(self) -> None:
        asyncio.run(self.server.start())
        self.create_archive()
        self.create_report()

    def create_archive(self) -> None:
        archive = {"name": ARCHIVE, "subjects": ["fleet.>", "choria.>", "muster.policy.>"], "allow_direct": True}
        self.request("STREAM.CREATE.ARCHIVE", {**archive, "num_replicas": self.replicas})

    def create_report(self) -> None:
        mirror = {"name": REPORT, "mirror": {"name": ARCHIVE}, "max_msgs": self._report_limit, "allow_direct": True}
        self.request("STREAM.CREATE.REPORT", {**mirror, "num_replicas": self.replicas})

    def stop(self) -> None:
        asyncio.run(self.server.stop())

    def request(self, subject: str, body: Any = None) -> dict[str, Any]:
        async def asking() -> dict[str, Any]:
            async with await self._client() as client:
                return await request_json(client, f"$JS.API.{subject}", body, dict[str, Any], deadline=DEADLINE)

        return asyncio.run(asking())

    def publish(self, messages: Iterable[Message]) -> int:
        """Publish in order; give ARCHIVE's last sequence once REPORT has it too."""

        async def publishing() -> None:
            last: Message | None = None
            async with await self._client() as client:
                for count, message in enumerate(messages, start=1):
                    if last is not None:
                        await client.publish(last.subject, last.body, headers=last.headers)
                    if count % 2_000 == 0:
                        await client.flush()
                    last = message
                if last is not None:
                    # ARCHIVE stores in order: what it says of the last holds for all, as no flush does.
                    await client.request(last.subject, last.body, timeout=DEADLINE, headers=last.headers)

        asyncio.run(publishing())
        return self.mirrored()

    def mirrored(self) -> int:
        """Wait until REPORT holds what ARCHIVE holds; give the last sequence."""
        ends_at = time.monotonic() + DEADLINE
        last = [0, -1]
        while last[0] != last[1] and time.monotonic() < ends_at:
            last = [self.request(f"STREAM.INFO.{name}")["state"]["last_seq"] for name in (ARCHIVE, REPORT)]
        if last[0] == last[1]:
            return int(last[0])
        raise AssertionError(f"REPORT stands at {last[1]}, ARCHIVE at {last[0]}")

    async def _client(self) -> Client:
        return await connect(self.connection, name="test", deadline=DEADLINE)


def said(scope: Scope, revision: int, given_at: int, order: Order) -> Message:
    """Write a revision of the policy, as the hub's command would."""
    record = Revision(revision=revision, stream_created_us=1, given_at_us=given_at, author="ann@ops1", order=order)
    return Message(scope.subject, encode_revision(record))


class Block:
    """Writes the records of one block of one site, as its agent would."""

    def __init__(
        self,
        region: str,
        site: str,
        block: str = "nodes",
        *,
        epoch: int = 1,
        agent: str = "",
        boot_id: str = "boot",
        ordinal: int = 0,
    ) -> None:
        self.id = BlockId(region, site, block)
        self.agent, self.boot_id = agent or f"{site}-a", boot_id
        self.incarnation = Incarnation(1, epoch)
        self.ordinal = ordinal
        self._openings: dict[str, tuple[Incarnation, int]] = {}

    def knows(self, other: "Block") -> None:
        """Take over whom another knows: an older copy of its store was put back."""
        self._openings = dict(other._openings)

    def advisory(
        self, kind: AdvisoryKind, sender_id: str, at: int, last_seen_at: int | None = None, *, rebuilt: bool = False
    ) -> Message:
        self.ordinal += 1
        if kind is AdvisoryKind.NEW:
            self._openings[sender_id] = (self.incarnation, at)
        record = advisory_of(
            self.id,
            kind,
            sender_id=sender_id,
            inspect_field="sender",
            at=at,
            last_seen_at=at if last_seen_at is None else last_seen_at,
            stream="REGISTRATION",
            incarnation=self.incarnation,
            sequence=at,
            opening=self._openings.get(sender_id, (self.incarnation, 0)),
            ordinal=self.ordinal,
            rebuilt=rebuilt,
        )
        return Message(advisory_subject(self.id, kind), encode(record))

    def new(self, sender_id: str, at: int, *, rebuilt: bool = False) -> Message:
        return self.advisory(AdvisoryKind.NEW, sender_id, at, rebuilt=rebuilt)

    def stale(self, sender_id: str, last_seen_at: int) -> Message:
        return self.advisory(AdvisoryKind.STALE, sender_id, last_seen_at + STALE_AFTER, last_seen_at)

    def recovered(self, sender_id: str, at: int) -> Message:
        return self.advisory(AdvisoryKind.RECOVERED, sender_id, at)

    def retired(self, sender_id: str, at: int, last_seen_at: int) -> Message:
        return self.advisory(AdvisoryKind.RETIRED, sender_id, at, last_seen_at)

    def retired_by_operator(self, sender_id: str, at: int, last_seen_at: int) -> Message:
        message = self.retired(sender_id, at, last_seen_at)
        return message._replace(body=message.body[:-1] + b',"by_operator":true}')

    def retired_unheard(self, sender_id: str, last_seen_at: int, until: int) -> Message:
        message = self.retired(sender_id, last_seen_at + STALE_AFTER, last_seen_at)
        return message._replace(body=message.body[:-1] + b',"unheard_until_us":%d}' % until)

    def watermark(self, since: int, through: int, *, rebuilt_at: int = 0, store: int = 0) -> Message:
        record = Watermark(
            region=self.id.region,
            site=self.id.site,
            block=self.id.block,
            agent=self.agent,
            observed_since_us=since,
            observed_through_us=through,
            stream="REGISTRATION",
            incarnation=str(self.incarnation),
            sequence=through,
            advisory_ordinal=self.ordinal,
            senders={"up": 1},
            outbox={"first": 0},
            counters={"rejected": {"no_sender": 2}},
            stale_after=STALE_AFTER,
            retire_after=86_400_000_000,
            blind_after=STALE_AFTER // 4,
            policy_revision=0,
            version="0",
            boot_id=self.boot_id,
            rebuilt_at_us=rebuilt_at,
            store_began_us=store or UNSET,
        )
        return Message(watermark_subject(self.id), encode(record))

    def registration(self, body: bytes, sequence: int, stored_at: int, reason: str = "interval") -> Message:
        headers = {
            ORIGIN_HEADER: origin_header(self.id, self.incarnation, sequence),
            SOURCE_HEADER: source_header("REGISTRATION", sequence, self.id.site, f"{self.id.site}-a", stored_at),
            REASON_HEADER: reason,
        }
        return Message(registration_subject(self.id), body, headers)
