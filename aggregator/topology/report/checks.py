"""Judge what was found: what a person must look at, and how badly. Pure.

What is compared are the servers' own clocks and sequences, never this machine's clock, and never ``lag``: that is 0 for
a source that is down.

A FLEET that is full refuses new messages. ARCHIVE and REPORT delete their oldest: that is no finding where they are
made to keep less than ``max_age``, except for the blocks that fill them faster than intended.
"""

from collections.abc import Iterable, Iterator

import msgspec

from aggregator.topology.desired.confinement import filters_of
from aggregator.topology.desired.model import Desired, DesiredConsumer, DesiredStream, Place, lines_by_place
from aggregator.topology.desired.settings import TopologySettings
from aggregator.topology.desired.streams import hub_place, is_beside_the_archive, region_place
from aggregator.topology.observed.state import Found, FoundStream, sealed, silence
from aggregator.topology.plan.differences import NEARLY_FULL
from aggregator.topology.plan.durable_sources import with_durable_sources
from aggregator.topology.plan.harmful_fields import found_harms
from aggregator.topology.plan.old_servers import server_doubts, unusable_servers, without_unknown_fields
from aggregator.topology.plan.refusals import gatherings, refusals
from aggregator.topology.report.evidence import BlockEvidence, HubFacts, Waiting
from aggregator.topology.report.findings import CheckFinding, CheckKind, CheckStatus
from aggregator.topology.report.tables import ReplicationRow, StreamReport, report
from aggregator.topology.report.text import another_past, not_copied
from shared.instants import MINUTE, SECOND, format_duration
from shared.policy import STREAM as POLICY
from shared.sizes import format_size

_LETS_GO = 0.9


class Limits(msgspec.Struct, frozen=True):
    """From where on something is worth a warning, or critical. Durations in microseconds."""

    silent: tuple[int, int] = (15 * SECOND, MINUTE)
    waiting: tuple[int, int] = (MINUTE, 15 * MINUTE)
    watermark: tuple[int, int] = (MINUTE, 5 * MINUTE)
    retention_share: tuple[float, float] = (0.5, 0.8)
    fullness: tuple[float, float] = (NEARLY_FULL, 0.95)

    def severity(self, value: float, limits: tuple[float, float]) -> CheckStatus:
        return (
            CheckStatus.CRITICAL if value > limits[1] else CheckStatus.WARNING if value > limits[0] else CheckStatus.OK
        )


def check(
    topology: TopologySettings, wanted: tuple[Desired, ...], found: Found, evidence: HubFacts, limits: Limits
) -> list[CheckFinding]:
    """List what is wrong, the worst first."""
    wanted = with_durable_sources(without_unknown_fields(wanted, found), found)
    shown = report(wanted, found)
    judged = [
        *(CheckKind.UNREACHABLE.of(str(place), reason) for place, reason in found.unreachable.items()),
        # Of all, wanted or only copied: nobody knows how it is.
        *(CheckKind.NO_ANSWER.of(str(key[0]), silence(key, found)) for key in sorted(found.silent)),
        # Before its streams, which apply does not create there.
        *(CheckKind.SERVER_TOO_OLD.of(str(place), why) for place, why in unusable_servers(found)),
        *_streams(wanted, found),
        *(
            CheckKind.SERVER_TOO_OLD.of(str(place), why, CheckStatus.WARNING)
            for place, why in server_doubts(wanted, found)
        ),
        *_harms(wanted, found),
        *_refused(wanted, found),
        *_fullnesses(topology, wanted, found, limits),
        *(each for row in _copyings(shown, wanted, found) for each in _copying(row, evidence, limits)),
        *_watermarks(topology, evidence, limits),
        *_ordinals(topology, evidence),
        *_rivals(evidence),
        *_quarantined(topology, evidence),
    ]
    return sorted((each for each in judged if each.severity), key=lambda each: -each.severity)


def summary(judged: list[CheckFinding], shown: StreamReport, evidence: HubFacts) -> str:
    """Say all of it in one line, as monitors show it."""
    if judged:
        return f"{judged[0].severity.name} - {'; '.join(lines_by_place((each.place, each.text) for each in judged))}"
    behind = max((row.behind or 0 for row in shown.replication), default=0)
    count = len(evidence.blocks)
    watched = f", {count} block{'s' * (count != 1)} watched" if count else ""
    copies = f"{len(shown.replication)} copies, at most {behind:,} messages behind"
    return f"OK - {len(shown.streams)} streams, {copies}{watched}"


def _streams(wanted: Iterable[Desired], found: Found) -> Iterator[CheckFinding]:
    for each in wanted:
        place = str(each.place)
        if each.place in found.unreachable:
            continue
        if isinstance(each, DesiredConsumer):
            if _is_lacking(each, found):
                text = f"{each.stream} lacks the consumer {each.name}, {_lost_without(each)}: apply makes it again"
                yield CheckKind.CONSUMER_MISSING.of(place, text)
            yield from _paused(each, found)
            continue
        stream = found.streams.get(each.key)
        if stream is None and (*each.key, "") not in found.silent:
            yield CheckKind.STREAM_MISSING.of(place, f"{each.name} is missing: apply creates it")
        if stream is not None and stream.is_sealed:
            yield CheckKind.STREAM_SEALED.of(place, sealed(each.key))
        if stream is not None:
            yield from _health(each, stream)


def _harms(wanted: Iterable[Desired], found: Found) -> Iterator[CheckFinding]:
    """Tell of what somebody set by hand, and breaks what a stream promises."""
    for stream, harm in found_harms(wanted, found):
        text = f"{stream.name} {harm.text}{': apply mends it' if harm.mended else ''}"
        severity = CheckStatus.CRITICAL if harm.loses else CheckStatus.WARNING
        yield CheckKind.PROMISE_BROKEN.of(str(stream.place), text, severity)


def _refused(wanted: Iterable[Desired], found: Found) -> Iterator[CheckFinding]:
    """Tell of copies that apply would not make, and that somebody else made or made so; and of what hinders nothing."""
    wanted = tuple(wanted)
    refused = [f"{line}: until then apply changes nothing" for line in refusals(wanted, found)]
    for line in (*refused, *gatherings(wanted, found)):
        place, _, text = line.partition(": ")
        yield CheckKind.COPY_REFUSED.of(place, text)


def _fullnesses(
    topology: TopologySettings, wanted: Iterable[Desired], found: Found, limits: Limits
) -> Iterator[CheckFinding]:
    for each in fullnesses(topology, (it for it in wanted if isinstance(it, DesiredStream)), found):
        severity = limits.severity(each.share, limits.fullness)
        yield CheckKind.NEARLY_FULL.of(
            str(each.place), each.text, severity if each.refuses else min(severity, CheckStatus.WARNING)
        )


def _paused(wanted: DesiredConsumer, found: Found) -> Iterator[CheckFinding]:
    consumer = found.consumers.get(wanted.key)
    if consumer is not None and consumer.paused:
        text = (
            f"somebody has paused the consumer {wanted.name} of {wanted.stream} until {consumer.config['pause_until']}"
        )
        resume = f"nats consumer resume {wanted.stream} {wanted.name}"
        yield CheckKind.CONSUMER_PAUSED.of(str(wanted.place), f"{text}, and {_lost_without(wanted)}: {resume}")


def _lost_without(consumer: DesiredConsumer) -> str:
    if consumer.copying is not None:
        return f"{consumer.copying.stream} of {consumer.copying.place} takes nothing from it"
    return "its site hears nothing of it" if consumer.stream == POLICY else "its relay passes nothing on"


def _health(wanted: DesiredStream, stream: FoundStream) -> Iterator[CheckFinding]:
    place = str(wanted.place)
    if stream.cluster.name and not stream.cluster.leader:
        yield CheckKind.NO_LEADER.of(place, f"{wanted.name} has no leader: it takes no messages")
    away = [each.name for each in stream.cluster.replicas if each.offline or not each.current]
    if away:
        yield CheckKind.REPLICAS_AWAY.of(place, f"{wanted.name} has replicas behind or away: {', '.join(away)}")
    if stream.state.lost.msgs:
        text = f"{wanted.name} has lost {len(stream.state.lost.msgs):,} messages from its store"
        yield CheckKind.MESSAGES_LOST.of(place, text)


def _copyings(shown: StreamReport, wanted: Iterable[Desired], found: Found) -> Iterator[ReplicationRow]:
    """Leave out that a source is beyond its origin where its consumer went with that: made again, it brings all of it.

    A mirror is made again itself, and one that is confined is another source then.
    """
    without = {
        (str(copying.place), copying.stream, str(each.place), each.stream, tuple(filters_of(copying.source)))
        for each in wanted
        if isinstance(each, DesiredConsumer) and (copying := each.copying) is not None and _is_lacking(each, found)
    }
    for row in shown.replication:
        is_without = (row.place, row.stream, row.source_place, row.source, row.takes) in without
        is_brought = is_without and not row.confined and row.kind != "mirror"
        yield msgspec.structs.replace(row, beyond=0) if is_brought else row


def _is_lacking(consumer: DesiredConsumer, found: Found) -> bool:
    is_silent = {consumer.key, (*consumer.stream_key, "")} & found.silent.keys()
    is_answered = consumer.stream_key in found.streams and not is_silent
    return consumer.wanted and is_answered and consumer.key not in found.consumers


def _copying(row: ReplicationRow, evidence: HubFacts, limits: Limits) -> Iterator[CheckFinding]:
    origin = f"{row.source} of {row.source_place}"
    if row.missing:
        yield CheckKind.COPY_MISSING.of(row.place, not_copied(row))
    elif row.error:
        yield CheckKind.COPY_FAILING.of(row.place, f"{row.stream} cannot copy {origin}: {row.error}")
    elif row.silent_us < 0:
        yield CheckKind.ORIGIN_SILENT.of(row.place, f"{row.stream} does not hear from {origin}")
    else:
        text = f"{row.stream} has not heard from {origin} for {format_duration(row.silent_us)}"
        yield CheckKind.ORIGIN_SILENT.of(row.place, text, limits.severity(row.silent_us, limits.silent))
    if row.beyond:
        yield CheckKind.ANOTHER_PAST.of(row.place, another_past(row))
    waiting = evidence.waiting.get(row.key)
    if waiting is not None and row.behind:
        waited = f"the oldest waits for {format_duration(waiting.age)}"
        text = f"{row.stream} is {row.behind:,} messages behind {origin}, {waited}"
        yield CheckKind.COPY_BEHIND.of(row.place, text, limits.severity(waiting.age, limits.waiting))
        yield from _retention(row, origin, waiting, limits)


def _retention(row: ReplicationRow, origin: str, waiting: Waiting, limits: Limits) -> Iterator[CheckFinding]:
    """Compare what a copy lacks with what its origin lets go of, by time or by room."""
    gone = waiting.first_sequence - (row.taken or 0) - 1
    if row.taken and gone > 0:
        yield CheckKind.RETENTION_NEAR.of(row.place, f"{origin} has let go of up to {gone:,} that {row.stream} lacks")
    share = waiting.age / waiting.max_age if waiting.max_age else 0.0
    left = format_duration(max(0, waiting.max_age - waiting.age))
    text = f"{origin} lets go of what {row.stream} lacks"
    yield CheckKind.RETENTION_NEAR.of(row.place, f"{text} in {left}", limits.severity(share, limits.retention_share))
    if waiting.fullness > _LETS_GO:
        severity = limits.severity(waiting.share, limits.retention_share)
        yield CheckKind.RETENTION_NEAR.of(row.place, f"{text}, since it is full", severity)


def _watermarks(topology: TopologySettings, evidence: HubFacts, limits: Limits) -> Iterator[CheckFinding]:
    """Where the settings name a region's sites, these are expected and no others; else whoever has ever spoken is."""
    named = {(site.region, site.name) for site in topology.sites}
    spoken = {(block.region, block.site) for block in evidence.blocks}
    if evidence.archive_read:
        for region, site in sorted(named - spoken):
            yield CheckKind.SITE_UNHEARD.of(region, f"no watermark of {site} has ever come")
    regions_with_names = {region for region, _ in named}
    for block in evidence.blocks:
        if block.region in regions_with_names and (block.region, block.site) not in named:
            continue
        late = evidence.now - block.observed_through
        text = f"the last watermark of {block.name} vouches up to {format_duration(max(0, late))} ago"
        yield CheckKind.WATERMARK_LATE.of(block.region, text, limits.severity(late, limits.watermark))
        waits = evidence.now - block.policy_waits_since if block.policy_waits_since else 0
        if waits > limits.watermark[0]:
            text = f"{block.name} has not taken what the hub's policy said {format_duration(waits)} ago"
            yield CheckKind.POLICY_WAITS.of(block.region, f"{text}: muster-aggregator policy show")


def _ordinals(topology: TopologySettings, evidence: HubFacts) -> Iterator[CheckFinding]:
    taken_again = {each.name for each in topology.regions if not is_beside_the_archive(topology, each)}
    for block in evidence.blocks:
        if block.missing:
            count = sum(last - first + 1 for first, last in block.missing)
            lacks = f"the archive lacks {count:,} advisories of {block.name} ({_ranges(block)})"
            helps = f"; apply --again {block.region} takes once more what is still in FLEET"
            text = f"{lacks}: its time is unknown from there on{helps if block.region in taken_again else ''}"
            yield CheckKind.ADVISORIES_MISSING.of(block.region, text)


def _quarantined(topology: TopologySettings, evidence: HubFacts) -> Iterator[CheckFinding]:
    for block in evidence.unreadable:
        text = f"the last watermark of {block.site}, block {block.block}, cannot be read, and is quarantined"
        yield CheckKind.RECORDS_REFUSED.of(block.region, text)
    for each in evidence.blocks:
        if each.refused_count:
            text = f"{each.refused_count:,} records of {each.name} cannot be read, and are quarantined"
            yield CheckKind.RECORDS_REFUSED.of(each.region, text)
    for (region, site), count in sorted(evidence.crowded.items()):
        text = f"{site} has {count:,} stream blocks, and {topology.blocks_per_site:,} count"
        yield CheckKind.TOO_MANY_BLOCKS.of(region, text)


def _rivals(evidence: HubFacts) -> Iterator[CheckFinding]:
    for block in evidence.blocks:
        if block.rivals is None:
            if block.twice:
                what = (
                    f"two advisories of {block.name} have the ordinal {block.twice:,}, so that nothing is known of it"
                )
                helps = "an older copy of the agent's store was put back; begin its store anew"
                yield CheckKind.PUT_BACK.of(block.region, f"{what}: {helps}")
            continue
        one, other, is_copy = block.rivals
        if is_copy:
            what = f"count the advisories of {block.name}, incarnation {one.incarnation}, in two ways"
            helps = "an older copy of the agent's store was put back; begin its store anew"
            kind = CheckKind.PUT_BACK
        else:
            what = f"both speak for {block.name}, and are no pair"
            helps = "end one of them, make them a pair, or give each site a name of its own"
            kind = CheckKind.CONTESTED
        yield kind.of(block.region, f"{one} and {other} {what}, so that nothing is known of it: {helps}")


def _ranges(block: BlockEvidence) -> str:
    shown = [f"{first:,}" if first == last else f"{first:,}..{last:,}" for first, last in block.missing[:3]]
    return ", ".join([*shown, *(["..."] if len(block.missing) > 3 else [])])


class Fullness(msgspec.Struct, frozen=True):
    """The share of its room that is taken, from 0 to 1; one that ``refuses`` takes nothing more when it is full."""

    place: Place
    share: float
    text: str
    refuses: bool


def fullnesses(topology: TopologySettings, wanted: Iterable[DesiredStream], found: Found) -> Iterator[Fullness]:
    hub = hub_place(topology)
    for each in wanted:
        stream = found.streams.get(each.key)
        limit = stream.config.get("max_bytes") or -1 if stream is not None else -1
        if stream is None or limit <= 0:
            continue
        share = stream.state.bytes / limit
        text = f"{each.name} holds {share:.0%} of its max_bytes ({format_size(limit)})"
        if stream.config.get("discard") == "new":
            see = f"nats stream subjects {each.name}{f' --js-domain {each.place.domain}' if each.place.domain else ''}"
            then = f"then it refuses what is new, and publishers keep it: see who fills it ({see})"
            yield Fullness(each.place, share, f"{text}: {then}, or raise max_bytes", refuses=True)
        elif each.place == hub and each.name in (topology.archive.name, topology.report.name) and _is_fast(stream):
            kept = f"all of it came within {format_duration(_kept(stream))}"
            then = f"then it lets go of the oldest: raise max_bytes, or shorten max_age{_most(topology, found)}"
            yield Fullness(each.place, share, f"{text}, {kept}; {then}", refuses=False)
    for place, servers in _servers(topology).items():
        limit = found.rooms[place].limit if place in found.rooms else 0
        limit = limit if limit > 0 else int(topology.render.max_store) * servers
        if place in found.rooms and limit > 0:
            held = f"holds {format_size(found.rooms[place].taken)} of {format_size(limit)} that its servers may"
            then = "then no stream there takes anything: raise max_store, or give streams a max_bytes"
            then += _most(topology, found)
            yield Fullness(place, found.rooms[place].taken / limit, f"JetStream {held}: {then}", refuses=True)


def _servers(topology: TopologySettings) -> dict[Place, int]:
    regions = {region_place(each): max(1, len(each.servers)) for each in topology.regions}
    return {hub_place(topology): max(1, len(topology.hub.servers))} | regions


def _is_fast(stream: FoundStream) -> bool:
    """Return True if a stream fills so fast that it will keep less than half of its ``max_age``."""
    max_age = (stream.config.get("max_age") or 0) // 1000
    limit = stream.config["max_bytes"]
    return not max_age or _kept(stream) * limit < stream.state.bytes * max_age / 2


def _kept(stream: FoundStream) -> int:
    """Return the age of the oldest message, a minute at least."""
    if not stream.state.first_ts:
        return MINUTE
    return max(MINUTE, stream.ts - stream.state.first_ts)


def _most(topology: TopologySettings, found: Found) -> str:
    """Return the region with the most bytes per second in its FLEET."""
    rates = []
    for region in topology.regions:
        fleet = found.streams.get((region_place(region), topology.fleet_of(region).name))
        if fleet is not None and fleet.state.bytes:
            rates.append((fleet.state.bytes / _kept(fleet), region.name, fleet))
    if not rates:
        return ""
    _, name, fleet = max(rates, key=lambda each: each[:2])
    return f" (most comes from {name}: {format_size(fleet.state.bytes)} within {format_duration(_kept(fleet))})"
