"""Look at one stream block's source: servers, stream, consumer, permissions, clock, and whether the settings fit."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from edge_agent.config.agent import AgentSettings
from edge_agent.config.stream import StreamSettings
from edge_agent.core.stream_past import StreamFacts
from edge_agent.doctor.clocks import TOLERANCE, offset_of, region_offset, source_clock, standstill
from edge_agent.doctor.finding import Finding, Level, bad, good, warning
from edge_agent.doctor.publishing import heard_on
from edge_agent.doctor.registrations import check_registrations, is_early
from edge_agent.doctor.visit import NEARLY_FULL, Visit, check_servers, open_visit
from edge_agent.inspection.blocks import KnownBlock, known_block
from edge_agent.observability import conditions
from edge_agent.observability.server_watch import needs_of_source
from edge_agent.observability.status_board import now
from edge_agent.source.api import SourceApi, resets_consumers
from edge_agent.source.consumer import ConsumerInfo, SourceAddress, creation, pause_of, unsuitable
from edge_agent.source.port import SourceUnavailable
from edge_agent.source.stream_facts import StreamInfo
from shared.instants import format_duration
from shared.nats.connection import ConnectFailed
from shared.nats.jetstream_api import NO_SUCH_CONSUMER, NO_SUCH_STREAM, ApiError, RequestFailed, api_prefix
from shared.nats.server_version import version_of
from shared.sizes import format_size

_LOOK_AT_LINK = "look at the server that holds what it copies from, and at the link there: nats stream info shows both"
_PROBE = "the probe"
_UPGRADE = "upgrade the site's server"
_CONSUMER_KEYS = "source.consumer, or site and the block's name, which it is made of,"
_WITHOUT_PROBE = "while all senders are silent, the time is unknown and nobody is called stale"
_REFUSED_FOR_ITS_FORM = b'{"batch":"none","seq":"none","config":"none"}'


async def check_source(settings: AgentSettings, block: StreamSettings) -> AsyncGenerator[Finding, None]:
    """Look at everything between the agent and one site's stream."""
    name, source = f"source of {block.name}", block.source
    reached = False
    needs = needs_of_source(block)
    for finding in await check_servers(name, settings, source, conditions.LINK_DOWN, needs):
        yield finding
        reached = reached or finding.level is Level.OK
    if not reached:
        return
    address = SourceAddress(
        source.stream, settings.consumer_of(block), source.domain, source.create_consumer, block.filter_subject
    )
    try:
        async with open_visit(settings, source) as visit:
            subject, asked_at = f"{api_prefix(source.domain)}.STREAM.INFO.{source.stream}", now()
            try:
                info = await visit.ask(subject, None, StreamInfo)
                answered_at = now()
                facts = await SourceApi(visit.client, address).facts()
            except (ApiError, RequestFailed, SourceUnavailable) as error:
                yield _no_stream(visit, name, source.stream, subject, error)
                return
            offset = offset_of(info.ts, asked_at, answered_at)
            region = await region_offset(settings) if abs(offset) > TOLERANCE else None
            yield source_clock(name, block, offset, region)
            known = known_block(Path(settings.store.path), block.name)
            for finding in standstill(name, block, known, facts.server_at):
                yield finding
            yield _stream(name, block, info, facts, known)
            for finding in _of_retention(visit, name, block, info.config.retention):
                yield finding
            is_asked = bool(facts.leader and address.filter_subject)
            async for finding in _consumer(visit, name, address, info.config.retention, is_asked=is_asked):
                yield finding
            for finding in await _own_messages(visit, name, settings, block, info, facts):
                yield finding
            for finding in await check_registrations(visit, settings, block, info, known):
                yield finding
    except ConnectFailed as error:
        yield bad(name, str(error), "try again: it could be reached a moment ago")


def _of_retention(visit: Visit, name: str, block: StreamSettings, retention: str) -> Iterator[Finding]:
    """Check whether a stream of this retention needs a newer server; other needs are checked with the servers."""
    version, of_every = version_of(visit.client), list(needs_of_source(block))
    for need in needs_of_source(block, retention):
        if need not in of_every and version < need.since:
            yield bad(name, need.unmet(version), _UPGRADE, conditions.SERVER_TOO_OLD)


def _no_stream(visit: Visit, name: str, stream: str, subject: str, error: Exception) -> Finding:
    if visit.is_denied(subject):
        return visit.refusal(name, subject, "source.stream or source.domain", conditions.PERMISSION_DENIED)
    kind = conditions.STREAM_NOT_READ
    remedy = "is JetStream enabled there, and source.domain right?"
    if isinstance(error, ApiError) and error.err_code == NO_SUCH_STREAM:
        remedy = f"create it, or correct source.stream, domain or auth ({visit.whom} may belong to another account)"
        return bad(name, f"there is no stream {stream} in this account", remedy, kind)
    if isinstance(error, ApiError) and error.remedy:
        remedy = error.remedy
    return bad(name, f"stream {stream}: {error}", remedy, kind)


def _stream(
    name: str, block: StreamSettings, info: StreamInfo, facts: StreamFacts, known: KnownBlock | None
) -> Finding:
    stream, config, state = block.source.stream, info.config, info.state
    proves = "while it cannot store, silence proves nothing: nobody is called stale, the time is unknown"
    if facts.storage_fault:
        full = "raise its limits, or discard old"
        remedy = (
            "senders need another stream" if config.sealed else full if "full" in facts.storage_fault else _LOOK_AT_LINK
        )
        return bad(name, f"stream {stream} {facts.storage_fault}; {proves}", remedy, conditions.STREAM_NOT_STORING)
    if facts.refuses_by_subject:
        text = (
            f"stream {stream} refuses what is new on a subject that is full, and does not show which: who is silent is "
            "never called stale, but unknown"
        )
        return warning(name, text, "let it discard what is old")
    if facts.gathers:
        text = f"stream {stream} gathers from several places: while one is cut off, the time of all is unknown"
        return warning(name, text, "read each from a stream of its own, by a block of its own")
    if info.fullness >= NEARLY_FULL:
        text = f"stream {stream} is {info.fullness:.0%} full, and will then refuse what is new; {proves}"
        return warning(name, text, "raise its limits, or let it discard what is old")
    is_read_to_its_end = not state.messages and state.last_seq > 0 and config.retention != "limits"
    if not state.messages and not is_read_to_its_end:
        need_not_hold_any = is_early(facts, known, block.policy.stale_after)
        text, remedy = f"stream {stream} is empty", "do senders publish on its subjects?"
        return good(name, f"{text}: nothing need have come yet") if need_not_hold_any else warning(name, text, remedy)
    keeps = f", keeps {format_duration(config.max_age // 1000)}" if config.max_age else ""
    holds = "all is read" if is_read_to_its_end else f"{state.messages:,} messages, {format_size(state.bytes)}"
    return good(name, f"stream {stream} stores: {holds}{keeps}")


async def _consumer(
    visit: Visit, name: str, address: SourceAddress, retention: str, *, is_asked: bool
) -> AsyncIterator[Finding]:
    """Look at the consumer; ``is_asked`` tells that the stream's leader is asked whether all was delivered."""
    consumer, prefix, tail = address.consumer, api_prefix(address.domain), f"{address.stream}.{address.consumer}"
    subject, is_to_be_made = f"{prefix}.CONSUMER.INFO.{tail}", False
    try:
        info = await visit.ask(subject, None, ConsumerInfo)
    except ApiError as error:
        if error.err_code != NO_SUCH_CONSUMER:
            yield bad(name, f"consumer {consumer}: {error}", "see the server's log")
            return
        is_to_be_made = address.creates_consumer
        if is_to_be_made:
            yield good(name, f"consumer {consumer} will be made at the first start")
        else:
            # In words of the API: the options of commands cannot say all of it.
            body = msgspec.json.encode(creation(address, retention)).decode()
            remedy = f"nats req '{prefix}.CONSUMER.CREATE.{tail}' '{body}', or let create_consumer be true"
            text = f"there is no consumer {consumer}, and create_consumer is false"
            yield bad(name, text, remedy, conditions.STREAM_NOT_READ)
    except RequestFailed as error:
        if visit.is_denied(subject):
            yield visit.refusal(name, subject, _CONSUMER_KEYS, conditions.PERMISSION_DENIED)
        else:
            yield bad(name, f"consumer {consumer}: {error}", "look at the server's log, and try again")
        return
    else:
        problem = unsuitable(info, address)
        if problem:
            text, _, remedy = problem.rpartition(": ")
            yield bad(name, text, remedy, conditions.STREAM_NOT_READ)
        else:
            for finding in _as_it_is(name, address, info):
                yield finding
    asked = {f"{prefix}.CONSUMER.CREATE.{tail}": "making the consumer"} if is_to_be_made else {}
    asked |= _to_read(prefix, tail, recreates=address.creates_consumer and not resets_consumers(visit.client))
    asked |= {f"{prefix}.STREAM.MSG.GET.{address.stream}": "asking what waits"} if is_asked else {}
    yield await _permissions(visit, name, asked, tail)


def _as_it_is(name: str, address: SourceAddress, info: ConsumerInfo) -> Iterator[Finding]:
    """Check whether a suitable consumer delivers, and is permanent."""
    waiting = f"{info.num_pending:,} messages wait to be read"
    if info.paused:
        text = f"consumer {address.consumer}: {pause_of(info.paused_until)}; {waiting}"
        remedy = f"nats consumer resume {address.stream} {address.consumer}"
        yield bad(name, text, remedy, conditions.CONSUMER_PAUSED)
    else:
        yield good(name, f"consumer {address.consumer} fits; {waiting}")
    if info.expires_after:
        after = format_duration(info.expires_after)
        text = f"the server removes consumer {address.consumer} when it has not been used for {after}"
        yield warning(name, text, conditions.CONSUMER_EXPIRES.remedy, conditions.CONSUMER_EXPIRES)


async def _own_messages(
    visit: Visit, name: str, settings: AgentSettings, block: StreamSettings, info: StreamInfo, facts: StreamFacts
) -> Sequence[Finding]:
    """Check whether the agent's own messages, probes and heartbeats, reach the stream that it reads."""
    wanted = {"source.probe_subject": block.source.probe_subject, "heartbeat.subject": block.heartbeat.subject}
    findings = []
    if block.is_probed and not block.source.probe_subject:
        chosen, why_not = block.probe_rule(settings.region, settings.site).choose(facts)
        wanted[_PROBE] = chosen
        if facts.copies:
            findings.append(
                good(name, f"{block.source.stream} copies from others, and needs no probe; {_WITHOUT_PROBE}")
            )
        elif not chosen:
            text, _, remedy = why_not.rpartition(": ")
            said = f"no probe can be published: {text}; {_WITHOUT_PROBE}"
            findings.append(warning(name, said, remedy, conditions.PROBE_NOT_STORED))
    elif block.mode == "sample" and not block.source.probe:
        findings.append(warning(name, f"source.probe is false; {_WITHOUT_PROBE}", "take source.probe out"))
    keys = {subject: key for key, subject in wanted.items() if subject}
    for heard in await heard_on(visit, list(keys)):
        key, subject, stream = keys[heard.subject], heard.subject, block.source.stream
        is_beat = key == "heartbeat.subject"
        kind = conditions.HEARTBEAT_NOT_STORED if is_beat else conditions.PROBE_NOT_STORED
        if heard.is_denied:
            mistyped, otherwise = ("region or site", "") if key == _PROBE else (key, ", or take it out")
            findings.append(visit.refusal(name, f"{subject} ({key})", mistyped, kind, otherwise=otherwise))
        elif not heard.is_answered and info.takes_unanswered(subject):
            said = "publishing is permitted, and what is stored is read back (no_ack: it is not acknowledged)"
            findings.append(good(name, f"stream {stream} listens on {subject} ({key}), {said}"))
        elif not heard.is_answered:
            text = f"what listens on {subject} ({key}) acknowledges nothing: a stream with no_ack, or no stream at all"
            findings.append(bad(name, text, f"take no_ack from {stream}, or correct {key}", kind))
        elif stream not in heard.streams:
            remedy = f"add it to the subjects of {stream}, or correct {key}"
            findings.append(bad(name, f"stream {stream} does not listen on {subject} ({key})", remedy, kind))
        else:
            findings.append(good(name, f"stream {stream} listens on {subject} ({key}), publishing is permitted"))
    return findings


def _to_read(prefix: str, tail: str, *, recreates: bool) -> dict[str, str]:
    """Return the subjects of requests for reading; a server that cannot reset a consumer must let it be deleted."""
    consumer = f"{prefix}.CONSUMER"
    reading = {f"{consumer}.MSG.NEXT.{tail}": "reading"}
    if recreates:
        return reading | {f"{consumer}.DELETE.{tail}": "deleting it", f"{consumer}.CREATE.{tail}": "making it"}
    return reading | {f"{consumer}.RESET.{tail}": "resetting"}


async def _permissions(visit: Visit, name: str, asked: Mapping[str, str], tail: str) -> Finding:
    """Ask in a way that the server refuses for its form, after it has looked at the permission.

    ``asked`` says what each subject of its API is for.
    """
    acknowledgements = f"$JS.ACK.{tail}.0"
    denied = [subject for subject in asked if not await visit.may_publish(subject, _REFUSED_FOR_ITS_FORM)]
    if not await visit.may_publish(acknowledgements, b"+WPI"):
        denied.append(f"$JS.ACK.{tail}.>")
    if denied:
        return visit.refusal(name, ", ".join(denied), _CONSUMER_KEYS, conditions.PERMISSION_DENIED)
    return good(name, f"{', '.join(asked.values())} and acknowledging are permitted")
