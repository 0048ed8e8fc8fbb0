"""Check of the region: servers, permissions to publish, the stream that stores records, and its future."""

from collections.abc import AsyncGenerator, Sequence

from edge_agent.config.agent import AgentSettings
from edge_agent.config.stream import StreamSettings
from edge_agent.doctor.clocks import offset_of, region_clock
from edge_agent.doctor.finding import Finding, Level, bad, good, warning
from edge_agent.doctor.publishing import heard_on, subjects_of
from edge_agent.doctor.visit import NEARLY_FULL, Visit, check_servers, open_visit
from edge_agent.observability.conditions import REGION_REFUSES, REGION_UNREACHABLE
from edge_agent.observability.server_watch import needs_of_region
from edge_agent.observability.status_board import now
from edge_agent.source.stream_facts import StreamInfo
from shared.nats.connection import ConnectFailed
from shared.nats.jetstream_api import ApiError, RequestFailed, api_prefix
from shared.nats.stream_causes import explain_unanswered
from shared.sizes import format_size

NAME = "region"
LARGEST_REGISTRATION = 1 << 20


async def check_upstream(settings: AgentSettings) -> AsyncGenerator[Finding, None]:
    """Look at everything between the agent and the region's stream."""
    reached = False
    needs = needs_of_region(settings)
    for finding in await check_servers(NAME, settings, settings.upstream, REGION_UNREACHABLE, needs):
        yield finding
        reached = reached or finding.level is Level.OK
    if not reached:
        return
    try:
        async with open_visit(settings, settings.upstream) as visit:
            streams: set[str] = set()
            for block in settings.stream:
                for finding in await _subjects(visit, settings, block, streams):
                    yield finding
            for stream in sorted(streams):
                for finding in await _stream(visit, settings, stream):
                    yield finding
            yield _largest_message(visit)
    except ConnectFailed as error:
        yield bad(NAME, str(error), "try again: it could be reached a moment ago")


async def _subjects(
    visit: Visit, settings: AgentSettings, block: StreamSettings, streams: set[str]
) -> Sequence[Finding]:
    wanted, whole = subjects_of(settings, block)
    heard = await heard_on(visit, wanted)
    streams |= {stream for each in heard for stream in each.streams}
    denied = [each.subject for each in heard if each.is_denied]
    unheard = [each.subject for each in heard if each.is_answered and not each.streams]
    silent = [each.subject for each in heard if not each.is_answered and not each.is_denied]
    doubled = [f"{each.subject} ({', '.join(sorted(each.streams))})" for each in heard if len(each.streams) > 1]
    findings = []

    def named(some: list[str]) -> str:
        return whole if some == wanted else ", ".join(some)

    if denied:
        keys = "target.prefix" if block.target.prefix else "region, site or the block's name"
        findings.append(visit.refusal(NAME, named(denied), keys, REGION_REFUSES, otherwise=f" ({whole})"))
    if silent:
        text = f"what listens on {named(silent)} acknowledges nothing: a stream with no_ack, or no stream at all"
        findings.append(bad(NAME, text, "take no_ack from the stream, or let a stream listen there", REGION_REFUSES))
    if unheard:
        key, covering = ("target.prefix", whole) if block.target.prefix else ("region", f"fleet.{settings.region}.>")
        creation = f"create the stream with the subject {covering}, or correct {key}"
        cause = await explain_unanswered(visit.ask, unheard[0], settings.upstream.domain, visit.whom, creation)
        findings.append(bad(NAME, f"{named(unheard)}: {cause.text}", cause.remedy, REGION_REFUSES))
    if doubled:
        remedy = "let only the region's own stream listen: each must have its region in its subjects"
        findings.append(warning(NAME, f"several streams store {', '.join(doubled)}", remedy))
    if findings:
        return findings
    listening = ", ".join(sorted({stream for each in heard for stream in each.streams}))
    what = f"listens on all subjects of {settings.block_id(block)}" if len(wanted) > 1 else f"listens on {whole}"
    return [good(NAME, f"{listening} {what}, publishing is permitted")]


async def _stream(visit: Visit, settings: AgentSettings, stream: str) -> Sequence[Finding]:
    """Ask for the stream's state, which an agent need not be permitted to."""
    subject = f"{api_prefix(settings.upstream.domain)}.STREAM.INFO.{stream}"
    asked_at = now()
    try:
        info = await visit.ask(subject, None, StreamInfo)
    except (ApiError, RequestFailed):
        return [good(NAME, f"whether {stream} has room cannot be told: the agent may not ask, and need not")]
    clock = region_clock(NAME, offset_of(info.ts, asked_at, now()))
    return [clock, _room(stream, info)]


def _room(stream: str, info: StreamInfo) -> Finding:
    config, remedy = info.config, f"raise the limits of {stream}: until then everything waits in the agent's outbox"
    if config.sealed:
        anew = "no server takes a seal back: copy what it holds, delete it, and make it again (muster-aggregator apply)"
        return bad(NAME, f"{stream} takes nothing more: it is sealed", anew, REGION_REFUSES)
    if config.discard == "new" and config.discard_new_per_subject:
        text = f"{stream} refuses what is new on a subject that is full (discard_new_per_subject)"
        return bad(NAME, text, f"let {stream} discard what is old, by a limit of all of it", REGION_REFUSES)
    if info.fullness >= 1:
        return bad(NAME, f"{stream} takes nothing more: it is full", remedy, REGION_REFUSES)
    if info.fullness >= NEARLY_FULL:
        return warning(NAME, f"{stream} is {info.fullness:.0%} full, and will then refuse what is new", remedy)
    if 0 < config.max_msg_size < LARGEST_REGISTRATION:
        limit = format_size(config.max_msg_size)
        text = f"{stream} takes messages of at most {limit}: larger registrations are dropped, counted"
        return warning(NAME, text, f"raise max_msg_size of {stream} to what the site's stream takes, or take it out")
    return good(NAME, f"{stream} stores: {info.state.messages:,} messages, {format_size(info.state.bytes)}")


def _largest_message(visit: Visit) -> Finding:
    largest = visit.client.max_payload
    if largest < LARGEST_REGISTRATION:
        text = f"its servers take messages of at most {format_size(largest)}: larger registrations are dropped, counted"
        return warning(NAME, text, "raise max_payload there to what the site's servers take")
    return good(NAME, f"its servers take messages of up to {format_size(largest)}")
