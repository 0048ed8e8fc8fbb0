"""Look at the region: servers, what the agent may publish, which stream stores it, and whether it will go on to."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec

from edge_agent.config import AgentSettings
from edge_agent.doctor.finding import Finding, Level, bad, doubtful, good
from edge_agent.doctor.streams import NEARLY_FULL, StreamInfo, clock_finding
from edge_agent.doctor.visit import Visit, check_servers, visiting
from edge_agent.status_board import now
from shared import subjects
from shared.identifiers import AdvisoryKind, BlockId
from shared.instants import parse_instant
from shared.jetstream_api import ApiError, RequestFailed, api_prefix
from shared.nats_connection import ConnectFailed
from shared.sizes import format_size

NAME = "region"
# No stream has this name (a full stop is not allowed in one): whichever listens refuses to store, and says who it is.
NOWHERE = {"Nats-Expected-Stream": "muster.doctor"}
EXPECTED_REFUSAL = 10060
LARGEST_REGISTRATION = 1 << 20


class _Refusal(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _Answer(msgspec.Struct):
    stream: str = ""
    error: _Refusal | None = None


async def check_upstream(settings: AgentSettings) -> AsyncIterator[Finding]:
    """Look at everything between the agent and the region's stream."""
    reached = False
    for finding in await check_servers(NAME, settings, settings.upstream):
        yield finding
        reached = reached or finding.level is Level.OK
    if not reached:
        return
    try:
        async with visiting(settings, settings.upstream) as visit:
            streams: set[str] = set()
            for block in settings.stream:
                for finding in await _subjects(visit, settings.block_id(block), streams):
                    yield finding
            for stream in sorted(streams):
                for finding in await _stream(visit, settings, stream):
                    yield finding
            yield _largest_message(visit)
    except ConnectFailed as error:
        yield bad(NAME, str(error), "try again: it could be reached a moment ago")


def subjects_of(block_id: BlockId) -> list[str]:
    """Name every subject that an agent publishes on for a block that samples."""
    advisories = [subjects.advisory_subject(block_id, kind) for kind in AdvisoryKind]
    return [*advisories, subjects.watermark_subject(block_id), subjects.registration_subject(block_id)]


async def _subjects(visit: Visit, block_id: BlockId, streams: set[str]) -> Sequence[Finding]:
    """Publish on every subject what no stream will store: who answers listens."""
    unheard, denied, doubled = [], [], []
    wanted = subjects_of(block_id)
    answered = await asyncio.gather(*(visit.answers(subject, b"", NOWHERE) for subject in wanted))
    for subject, answers in zip(wanted, answered, strict=True):
        listening = {found for answer in answers if (found := _stream_of(answer.data))}
        streams |= listening
        if visit.is_denied(subject):
            denied.append(subject)
        elif not listening:
            unheard.append(subject)
        elif len(listening) > 1:
            doubled.append(f"{subject} ({', '.join(sorted(listening))})")
    findings = []
    whole = f"{subjects.ROOT}.{block_id}.>"
    if denied:
        named = whole if denied == wanted else ", ".join(denied)
        findings.append(
            bad(NAME, f"not permitted: publish on {named}", f"allow the agent's user to publish on {whole}")
        )
    if unheard:
        named = whole if unheard == wanted else ", ".join(unheard)
        remedy = f"create the stream with the subject {subjects.ROOT}.{block_id.region}.>, or correct region"
        findings.append(bad(NAME, f"no stream listens on {named}", remedy))
    if doubled:
        remedy = "let only the region's own stream listen: each must have its region in its subjects"
        findings.append(doubtful(NAME, f"several streams store {', '.join(doubled)}", remedy))
    if not findings:
        return [
            good(NAME, f"{', '.join(sorted(streams))} listens on all subjects of {block_id}, publishing is permitted")
        ]
    return findings


def _stream_of(body: bytes) -> str:
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except msgspec.MsgspecError:
        return ""
    return answer.stream


async def _stream(visit: Visit, settings: AgentSettings, stream: str) -> Sequence[Finding]:
    """Ask for the stream's state, which an agent need not be permitted to."""
    subject = f"{api_prefix(settings.upstream.domain)}.STREAM.INFO.{stream}"
    asked_at = now()
    try:
        info = await visit.ask(subject, None, StreamInfo)
    except (ApiError, RequestFailed):
        return [good(NAME, f"whether {stream} has room cannot be told: the agent may not ask, and need not")]
    clock = clock_finding(NAME, parse_instant(info.ts), asked_at, now())
    remedy = f"raise the limits of {stream}: until then everything waits in the agent's outbox"
    if info.config.sealed or info.fullness >= 1:
        return [
            clock,
            bad(NAME, f"{stream} takes nothing more: it is {'sealed' if info.config.sealed else 'full'}", remedy),
        ]
    if info.fullness >= NEARLY_FULL:
        return [
            clock,
            doubtful(NAME, f"{stream} is {info.fullness:.0%} full, and will then refuse what is new", remedy),
        ]
    return [clock, good(NAME, f"{stream} stores: {info.state.messages:,} messages, {format_size(info.state.bytes)}")]


def _largest_message(visit: Visit) -> Finding:
    largest = visit.client.max_payload
    if largest < LARGEST_REGISTRATION:
        text = f"its servers take messages of at most {format_size(largest)}: larger registrations are dropped, counted"
        return doubtful(NAME, text, "raise max_payload there to what the site's servers take")
    return good(NAME, f"its servers take messages of up to {format_size(largest)}")
