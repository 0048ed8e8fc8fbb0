"""Watch what arrives at the hub: advisories for the story, watermarks to know how far each site has come.

At the end it waits until the hub's archive and its mirror hold everything that the regions hold. Rarely the hub's
server leaves something out after an outage, and acknowledges it (docs/decisions/0019): it never goes back for it. What
is lacking then is wanted again, as an operator would.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg

from aggregator.demo import scenario
from aggregator.demo.crew import run_shown
from aggregator.demo.stage import Stage, connected
from aggregator.demo.story import Story, Tone, muster
from shared.decoding import WireError
from shared.identifiers import AdvisoryKind
from shared.instants import SECOND
from shared.nats.jetstream_api import RequestFailed, request_json
from shared.wire import Advisory, decode_advisory, decode_watermark

Record = TypeVar("Record")

REPORT = "REPORT"
ARCHIVE = "ARCHIVE"
_TELL_INTERVAL = 1.0
_LONGEST_WAIT = 4.0
_REQUEST_DEADLINE = 5.0
_LATE = 5 * SECOND
_POLL = 0.2
_QUIET_FOR = 5.0
_EVERY_ADVISORY = "fleet.*.*.*.advisory.*"
_EVERY_WATERMARK = "fleet.*.*.*.watermark"


class _Group:
    """Advisories of one kind and site that arrived together. ``delay``: how late the latest was known, microseconds."""

    def __init__(self) -> None:
        self.began_at = self.grew_at = time.monotonic()
        self.sender = ""
        self.count = 0
        self.delay = 0

    def add(self, advisory: Advisory, delay: int) -> None:
        self.grew_at = time.monotonic()
        self.sender = advisory.value.partition(".")[0]
        self.count += 1
        self.delay = max(self.delay, delay)

    def sentence(self, kind: AdvisoryKind) -> str:
        whom, verb = (self.sender, _VERBS[kind][0]) if self.count == 1 else (f"{self.count} senders", _VERBS[kind][1])
        late = f", known here {self.delay / SECOND:.0f} s late" if self.delay > _LATE else ""
        return f"{whom} {verb} {kind}{late}"


class HubWatch:
    """What has arrived in REPORT. ``observed_through`` is each site's newest watermark (microseconds)."""

    def __init__(self, client: Client, story: Story) -> None:
        self._client = client
        self._story = story
        self._arrived: dict[tuple[str, AdvisoryKind], _Group] = defaultdict(_Group)
        self.observed_through = dict.fromkeys(scenario.SITES, 0)

    async def take_advisory(self, message: Msg) -> None:
        """Note an advisory, to be told soon."""
        advisory = readable(decode_advisory, message)
        if not isinstance(advisory, Advisory):
            return
        delay = message.metadata.timestamp.timestamp() * SECOND - advisory.at_us
        self._arrived[advisory.site, advisory.kind].add(advisory, int(delay))

    async def take_watermark(self, message: Msg) -> None:
        watermark = readable(decode_watermark, message)
        if watermark is None:
            return
        before = self.observed_through[watermark.site]
        self.observed_through[watermark.site] = max(before, watermark.observed_through_us)

    async def tell(self) -> None:
        """Tell for ever what arrives, what belongs together in one line; say something when nothing else is said."""
        before = 0
        while True:
            await asyncio.sleep(_TELL_INTERVAL)
            self.tell_arrived(quiet_for=_TELL_INTERVAL)
            if self._story.is_quiet:
                archived = before
                with suppress(RequestFailed):
                    archived = (await stream_state(self._client, ARCHIVE)).messages
                news = f"{archived:,} records in the hub's archive so far" if archived > before else "still at work"
                self._story.say(f"... {news}", Tone.DIM)
                before = archived

    def tell_arrived(self, quiet_for: float = 0.0) -> None:
        """Tell what has arrived and was not told, but for groups that grew within the last ``quiet_for`` seconds."""
        now = time.monotonic()
        for (site, kind), group in sorted(self._arrived.items(), key=lambda item: (item[0][0], item[0][1].rank)):
            if now - group.grew_at >= quiet_for or now - group.began_at > _LONGEST_WAIT:
                self._story.event(site, f"Muster: {group.sentence(kind)}", _TONES[kind])
                del self._arrived[site, kind]


def readable(decode: Callable[[bytes], Record], message: Msg) -> Record | None:
    """Decode a record; None where it is none, which the audit at the end will name."""
    try:
        return decode(message.data)
    except WireError:
        return None


class StreamState(msgspec.Struct, frozen=True):
    """How much a stream holds."""

    messages: int
    last_sequence: int = msgspec.field(name="last_seq")


class _Info(msgspec.Struct, frozen=True):
    state: StreamState


async def stream_state(client: Client, stream: str, domain: str = scenario.HUB) -> StreamState:
    """Ask a domain how much a stream holds; raise ApiError or RequestFailed."""
    subject = f"$JS.{domain}.API.STREAM.INFO.{stream}" if domain else f"$JS.API.STREAM.INFO.{stream}"
    return (await request_json(client, subject, None, _Info, deadline=_REQUEST_DEADLINE)).state


class NotInTime(Exception):
    """Something that had to happen did not within its deadline. The text says what."""


class _Region(msgspec.Struct, frozen=True):
    """How much a region holds that the archive lacks, and whether all of it was acknowledged."""

    lacking: int
    acknowledged: bool


async def until_archived(hub_url: str, topology_file: Path, story: Story, deadline: float) -> None:
    """Wait ``deadline`` seconds at most; raise NotInTime, or CommandFailed where what lacks cannot be wanted again."""
    client = await connected(hub_url)
    ends_at, left_out_since, wanted_again = time.monotonic() + deadline, dict[str, float](), set[str]()
    try:
        while True:
            try:
                found = {region: await _region(client, region) for region in scenario.REGIONS}
                problem = ", ".join(f"{each.lacking} of {region}" for region, each in found.items())
                is_whole = all(each.acknowledged and not each.lacking for each in found.values())
                if is_whole and await stream_state(client, ARCHIVE) == await stream_state(client, REPORT):
                    return
            except RequestFailed as error:
                found, problem = {}, str(error)
            now = time.monotonic()
            if now > ends_at:
                raise NotInTime(f"after {deadline:g} s the hub lacks what regions hold: {problem}")
            for region, each in found.items():
                if not (each.acknowledged and each.lacking) or region in wanted_again:
                    left_out_since.pop(region, None)
                elif now - left_out_since.setdefault(region, now) > _QUIET_FOR:
                    wanted_again.add(region)
                    text = f"its server left out {each.lacking} records of {region}: they are wanted again"
                    story.event(scenario.HUB, text, Tone.STRONG)
                    again = ("--again", region, "--config", topology_file)
                    await run_shown(story, "apply", muster("muster-aggregator", "apply", *again))
            await asyncio.sleep(_POLL)
    finally:
        await client.close()


async def _region(client: Client, region: str) -> _Region:
    held = await stream_state(client, "FLEET", region)
    consumer = f"$JS.{region}.API.CONSUMER.INFO.FLEET.muster-archive"
    taken = await request_json(client, consumer, None, dict[str, Any], deadline=_REQUEST_DEADLINE)
    of_region = {"subjects_filter": f"fleet.{region}.>"}
    info = f"$JS.API.STREAM.INFO.{ARCHIVE}"
    archive = await request_json(client, info, of_region, dict[str, Any], deadline=_REQUEST_DEADLINE)
    archived = sum((archive["state"].get("subjects") or {}).values())
    # What was wanted again stands there twice.
    return _Region(max(0, held.messages - archived), taken["ack_floor"]["stream_seq"] >= held.last_sequence)


@asynccontextmanager
async def watching(stage: Stage, story: Story) -> AsyncIterator[HubWatch]:
    client = await connected(stage.hub.url)
    try:
        jetstream = client.jetstream()
        watch = HubWatch(client, story)
        await jetstream.subscribe(_EVERY_ADVISORY, stream=REPORT, ordered_consumer=True, cb=watch.take_advisory)
        await jetstream.subscribe(_EVERY_WATERMARK, stream=REPORT, ordered_consumer=True, cb=watch.take_watermark)
        yield watch
    finally:
        await client.close()


_TONES = {
    AdvisoryKind.NEW: Tone.PLAIN,
    AdvisoryKind.STALE: Tone.WARNING,
    AdvisoryKind.RETIRED: Tone.DIM,
    AdvisoryKind.RECOVERED: Tone.GOOD,
}
_VERBS = {
    AdvisoryKind.NEW: ("is", "are"),
    AdvisoryKind.STALE: ("is", "are"),
    AdvisoryKind.RETIRED: ("has", "have"),
    AdvisoryKind.RECOVERED: ("has", "have"),
}
