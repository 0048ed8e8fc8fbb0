"""Look at the registrations themselves: do they name their senders, and do the thresholds fit how often they come.

The newest messages of the stream are read through a consumer of our own, which the server forgets in seconds. No sender
is stale without having been silent for ``stale_after`` (``edge_agent.core.tracker``, rule 3), which is worth something
only if a living sender is never silent for that long: the thresholds are compared with the gaps between sightings.
"""

import secrets
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path
from statistics import median

import msgspec
import nats.errors
from nats.js.api import Header
from nats.js.errors import Error as JetStreamError

from edge_agent.config.agent import AgentSettings
from edge_agent.config.stream import StreamSettings
from edge_agent.core.intake import Intake
from edge_agent.core.observation import Batch, Observation, Rejected, RejectReason, SourceMessage, Unopened, excerpt
from edge_agent.core.payload import DigestRule, content_digest
from edge_agent.core.policy import Policy, PolicyRevisions
from edge_agent.core.stream_past import StreamFacts
from edge_agent.doctor.finding import Finding, bad, good, warning
from edge_agent.doctor.visit import Visit
from edge_agent.inspection.blocks import KnownBlock, read_blocks
from edge_agent.observability.conditions import (
    BATCH_NOT_OPENED,
    POLICY_REFUSED,
    UNIDENTIFIED_REGISTRATIONS,
    unopened_batch,
)
from edge_agent.policy.orders import Effective, effective
from edge_agent.source.consumer import ConsumerInfo
from edge_agent.source.stream_facts import StreamInfo
from edge_agent.store.read_only import StoreUnreadable, store_reader
from shared.command_line.tables import visible
from shared.decoding import WireError
from shared.instants import SECOND, format_duration
from shared.nats.jetstream_api import ApiError, RequestFailed, api_prefix
from shared.nats.stream_messages import delivered, delivery_of

HEARD = "SELECT last_seen_at FROM sender WHERE row_id BETWEEN ? AND ? AND phase = 0 ORDER BY last_seen_at"
ANYBODY = "SELECT 1 FROM sender WHERE row_id BETWEEN ? AND ? LIMIT 1"
SENDERS_NEEDED = 3
MESSAGES_NEEDED = 100
NEARLY_ALL = 0.9
QUIET_SHARE = 0.25
COMFORTABLE = 2.5
MOST_SENDERS = 100_000
MOST_MESSAGES = 10_000
MOST_BYTES = 16 << 20
PATIENCE = 2.0
FORGOTTEN_AFTER = 5_000_000_000
DIGESTS_NEEDED = 10
_PATHS_OF_CHORIA = (
    "of Choria's registrations, data.zcontent.facts with inventory_content, data.zcontent with file_content"
)


class Cadence(msgspec.Struct, frozen=True):
    """How a site registers: ``interval`` of a typical sender, 0 where too few were heard twice, from ``sender_count``.

    ``instants``: those of all sightings, in order. Microseconds. ``known_from`` says in words what it was learnt from.
    """

    interval: int
    sender_count: int
    instants: Sequence[int]
    known_from: str


class RegistrationSample(msgspec.Struct, frozen=True):
    """The newest messages: senders and instants (microseconds) of registrations, and reasons of those without a sender.

    ``examples`` shows the last message of each of those reasons, ``repeated`` a Nats-Msg-Id of each sender that was
    stored with one more than once; ``message_ids`` are all that were seen.
    ``unopened`` counts the messages whose senders were not all read. ``digests`` has those of each sender's messages,
    in order, where the block's settings name content.
    """

    sightings: list[tuple[str, int]]
    rejected: Counter[str]
    examples: dict[str, str]
    message_ids: set[str]
    repeated: dict[str, str]
    unopened: Counter[Unopened]
    digests: defaultdict[str, list[int]]

    @property
    def message_count(self) -> int:
        return len(self.sightings) + sum(self.rejected.values())


async def newest_messages(
    visit: Visit, block: StreamSettings, last_sequence: int, mean_size: int
) -> RegistrationSample | None:
    """Read the newest messages up to a bound of number and bytes; None where the server does not let us."""
    stream, prefix, name = block.source.stream, api_prefix(block.source.domain), f"muster-doctor-{secrets.token_hex(4)}"
    wanted = max(min(MOST_MESSAGES, MOST_BYTES // max(mean_size, 1)), 1)
    config = {
        "name": name,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": max(last_sequence - wanted + 1, 1),
        "ack_policy": "none",
        "inactive_threshold": FORGOTTEN_AFTER,
        "mem_storage": True,
        **({"filter_subject": block.filter_subject} if block.filter_subject else {}),
    }
    sample = RegistrationSample([], Counter(), {}, set(), {}, Counter(), defaultdict(list))
    try:
        body = {"stream_name": stream, "config": config}
        info = await visit.ask(f"{prefix}.CONSUMER.CREATE.{stream}.{name}", body, ConsumerInfo)
        await _read(visit, block, name, info.num_pending, sample)
        await visit.ask(f"{prefix}.CONSUMER.DELETE.{stream}.{name}", None, dict[str, object])
    except (ApiError, RequestFailed, nats.errors.Error, JetStreamError, TimeoutError, WireError):
        # No permission, a work queue that has its reader, a link that broke: the store may still tell.
        return sample if sample.message_count else None
    return sample


async def _read(visit: Visit, block: StreamSettings, consumer: str, count: int, sample: RegistrationSample) -> None:
    source = block.source
    messages = delivered(visit.client, source.stream, consumer, count, api=api_prefix(source.domain), deadline=PATIENCE)
    intake = Intake(block.sender_rule(), digest=block.policy.digest_rule(), goodbye=block.goodbye.rule())
    async with aclosing(messages):
        async for message in messages:
            delivery = delivery_of(message.reply)
            taken = intake.read(
                SourceMessage(message.subject, message.data, message.headers, delivery.sequence, delivery.stored_at)
            )
            if isinstance(taken, Observation | Batch | Rejected) and taken.unopened:
                sample.unopened[taken.unopened] += 1
            if isinstance(taken, Batch):
                sample.sightings.extend((each.sender_id, delivery.stored_at) for each in taken.observations)
                sample.rejected.update(each.reason for each in taken.rejected)
                for each in taken.rejected:
                    sample.examples[each.reason] = _example(each.message)
            elif isinstance(taken, Observation):
                sample.sightings.append((taken.sender_id, delivery.stored_at))
                if taken.digest:
                    sample.digests[taken.sender_id].append(taken.digest)
                if message_id := (message.headers or {}).get(Header.MSG_ID):
                    if message_id in sample.message_ids:
                        sample.repeated[taken.sender_id] = message_id
                    sample.message_ids.add(message_id)
            elif isinstance(taken, Rejected):
                sample.rejected[taken.reason] += 1
                sample.examples[taken.reason] = _example(taken.message)


def _example(message: SourceMessage) -> str:
    return f"message {message.sequence} on {visible(message.subject)}: {excerpt(message.payload) or 'empty'}"


def is_early(facts: StreamFacts, known: KnownBlock | None, stale_after: int) -> bool:
    """Return True if no sender need have registered yet: the stream, or the agent's watch over it, is new."""
    return facts.server_at - max(facts.created_at, _began_at(known) if known else 0) < stale_after


def _began_at(known: KnownBlock) -> int:
    return known.state.position.incarnation.epoch_ms * 1_000


async def check_registrations(
    visit: Visit, settings: AgentSettings, block: StreamSettings, info: StreamInfo, known: KnownBlock | None
) -> Sequence[Finding]:
    """Read registrations from the stream if permitted, otherwise use the agent's own record of them."""
    if block.mode == "copy":
        # It takes every message as it is, and watches nobody.
        return []
    name, sample = f"settings of {block.name}", None
    revisions = known.state.revisions if known else PolicyRevisions()
    holds = effective(settings.block_id(block), block, revisions)
    findings, policy = list(_of_policy(block, holds, revisions.revision)), holds.settings.policy()
    if info.state.messages and info.config.retention == "limits":
        mean_size = info.state.bytes // info.state.messages
        sample = await newest_messages(visit, block, info.state.last_seq, mean_size)
    findings += (silence := list(_silence(name, settings, block, known)))
    if sample is not None:
        if sample.message_count or not (silence or is_early(info.facts, known, policy.stale_after)):
            findings += _identification(name, sample, policy.stale_after, block.filter_subject)
        findings += _digested_content(name, sample, block.policy.digest_rule())
        findings += _repeated_ids(name, sample, info.config.duplicate_window // 1_000, policy.stale_after)
        cadence = cadence_of(sample.sightings, f"the stream's last {sample.message_count:,} messages")
        if cadence.interval and block.mode == "sample":
            return [*findings, *judge(name, cadence, policy)]
    if block.mode == "relay":
        # The site that hears a sender reports that it is late.
        return findings
    learnt = _cadence_of_store(Path(settings.store.path), block.name)
    return [*findings, *(judge(name, learnt, policy) if learnt else ())]


def _of_policy(block: StreamSettings, holds: Effective, revision: int) -> Iterator[Finding]:
    """Check the hub's policy, and which part of it the settings refuse; nothing if there is no policy."""
    if not revision:
        return
    name, thresholds = f"policy of {block.name}", holds.settings.thresholds.given
    for refused in holds.refused:
        remedy = "change the settings file, or say otherwise at the hub (muster-aggregator policy set)"
        yield warning(name, f"refused, {refused}", remedy, POLICY_REFUSED)
    said = ", ".join(f"{key} {format_duration(thresholds[key])} for {scope}" for key, scope in holds.origins.items())
    yield good(name, f"revision {revision} of the hub's: {said or 'it leaves every threshold to the settings'}")


def _silence(name: str, settings: AgentSettings, block: StreamSettings, known: KnownBlock | None) -> Iterator[Finding]:
    """Return the finding that no sender has ever registered, though the agent has watched long enough."""
    if block.mode != "sample" or known is None or known.state.advisory_ordinal or known.state.rejections:
        return
    watched = known.state.observed_through - known.state.blind_total - _began_at(known)
    if watched < known.state.policy.stale_after:
        return
    try:
        with store_reader(Path(settings.store.path)) as database:
            is_known = database.execute(ANYBODY, known.row_ids).fetchone() is not None
    except StoreUnreadable:
        return
    if not is_known:
        passing = ", and pass source.filter_subject" if block.filter_subject else ""
        remedy = f"do senders publish on the subjects of {block.source.stream}{passing}?"
        length = format_duration(watched - watched % SECOND)
        yield warning(name, f"the agent has watched for {length}, and nobody has registered", remedy)


def _identification(name: str, sample: RegistrationSample, stale_after: int, filter_subject: str) -> Iterator[Finding]:
    nameless = Counter({reason: number for reason, number in sample.rejected.items() if reason != RejectReason.BATCH})
    count, rejected = sample.message_count, sum(nameless.values())
    if not count and not filter_subject:
        yield good(name, "no registration is in the stream now")
        return
    if not count:
        yield warning(name, "no message passes source.filter_subject", "is it written as the senders' subjects are?")
        return
    if sample.unopened:
        number, unopened = sum(sample.unopened.values()), sample.unopened.most_common(1)[0][0]
        wrong, remedy = unopened_batch(unopened)
        yield bad(name, f"{number:,} of the last messages {wrong}", remedy, BATCH_NOT_OPENED)
    elif not rejected:
        senders = len({sender_id for sender_id, _ in sample.sightings})
        yield good(name, f"every one of the last {count:,} messages names its sender ({senders:,} of them)")
    if rejected:
        causes = ", ".join(f"{reason} {number:,}" for reason, number in nameless.most_common())
        text = f"{rejected:,} of the last {count:,} messages name no sender ({causes}): they are forwarded unsampled"
        remedy = "correct [stream.sender], or set source.filter_subject"
        yield (bad if rejected == count else warning)(name, text, remedy, UNIDENTIFIED_REGISTRATIONS)
        for reason in nameless:
            text = f"{reason}, for example {sample.examples[reason]}; whoever sent it may be called stale"
            yield warning(name, text, "correct what it publishes, or [stream.sender]")
    if names_messages(sample.sightings, stale_after):
        text = (
            f"nearly every one of {len(sample.sightings):,} messages names another sender, that is never heard again: "
            "[stream.sender] names messages, or senders register more rarely than the stream keeps what they say"
        )
        yield bad(name, text, "correct [stream.sender]: each message is a new sender now, and soon a stale one")


def _digested_content(name: str, sample: RegistrationSample, rule: DigestRule) -> Iterator[Finding]:
    """Report content that is never there, or that changes with nearly each registration, and so is no change."""
    pairs = [before != after for digests in sample.digests.values() for before, after in pairwise(digests)]
    if len(pairs) < DIGESTS_NEEDED:
        return
    if set().union(*sample.digests.values()) == {content_digest(b"{}", rule)}:
        text = f"digest_paths names nothing in {len(pairs):,} registrations: no change in them is forwarded at once"
        yield warning(name, text, f"correct policy.digest_paths: {_PATHS_OF_CHORIA}")
    elif (changed := sum(pairs)) >= NEARLY_ALL * len(pairs):
        text = (
            f"the content that digest_paths names changed in {changed:,} of {len(pairs):,} registrations: nearly all "
            "of them are forwarded"
        )
        remedy = f"name in policy.digest_paths only what seldom changes: {_PATHS_OF_CHORIA}; or set digest_ignore"
        yield warning(name, text, remedy)


def _repeated_ids(name: str, sample: RegistrationSample, duplicate_window: int, stale_after: int) -> Iterator[Finding]:
    window = format_duration(duplicate_window)
    if sample.repeated:
        sender_id, message_id = next(iter(sample.repeated.items()))
        text = (
            f"senders that repeat a Nats-Msg-Id: {len(sample.repeated):,}, for example {visible(sender_id)} with "
            f"{visible(message_id)}: of those the server stores one in {window} (duplicate_window), and who sends it "
            "is not heard in between"
        )
        yield warning(name, text, "let them send a new id each time, or none")
    elif sample.message_ids and duplicate_window >= stale_after:
        text = (
            f"a sender that repeated its Nats-Msg-Id would be stored once in {window} (duplicate_window), and be stale"
        )
        yield warning(name, text, f"have the stream a duplicate_window of less than {format_duration(stale_after)}")


def _cadence_of_store(path: Path, stream: str) -> Cadence | None:
    """Learn from the agent's own senders, where it has watched for long enough to know its living ones."""
    try:
        with store_reader(path) as database:
            (block,) = read_blocks(database, stream).values()
            state = block.state
            if state.observed_through - state.observed_since < 2 * state.policy.stale_after:
                return None
            rows = database.execute(HEARD, block.row_ids).fetchmany(MOST_SENDERS)
    except StoreUnreadable:
        return None
    last_seen = [at for (at,) in rows]
    return cadence_of_ages(last_seen, state.observed_through, f"when the agent last heard {len(last_seen):,} senders")


def cadence_of(sightings: Iterable[tuple[str, int]], known_from: str) -> Cadence:
    """Learn from (sender id, instant) in the stream's order: the median over senders of the median of their gaps."""
    heard: dict[str, list[int]] = {}
    for sender_id, at in sightings:
        heard.setdefault(sender_id, []).append(at)
    gaps = [
        median(after - before for before, after in pairwise(instants))
        for instants in heard.values()
        if len(instants) > 1
    ]
    instants = sorted(at for each in heard.values() for at in each)
    return Cadence(int(median(gaps)) if len(gaps) >= SENDERS_NEEDED else 0, len(gaps), instants, known_from)


def cadence_of_ages(last_seen: Sequence[int], observed_through: int, known_from: str) -> Cadence:
    """Learn from when each heard sender was last seen, in order.

    Living senders are up to one interval back: nineteen of twenty less than what is given here, which is never more
    than the interval. What they said within it are the site's last sightings.
    """
    if len(last_seen) < SENDERS_NEEDED:
        return Cadence(0, len(last_seen), [], known_from)
    oldest = last_seen[len(last_seen) // 20]
    return Cadence(observed_through - oldest, len(last_seen), [at for at in last_seen if at >= oldest], known_from)


def quiet_share(instants: Sequence[int], limit: int) -> float:
    """Return the part of the time between the first and the last instant that lies in gaps longer than ``limit``.

    >>> quiet_share([0, 10, 20, 100], 30)
    0.8
    """
    length = instants[-1] - instants[0] if instants else 0
    quiet = sum(after - before for before, after in pairwise(instants) if after - before > limit)
    return quiet / length if length else 0.0


def names_messages(sightings: Sequence[tuple[str, int]], stale_after: int) -> bool:
    """Return True if the value that identifies senders differs from message to message.

    In time enough for every living sender to be heard again hardly anybody was.
    """
    if len(sightings) < MESSAGES_NEEDED or sightings[-1][1] - sightings[0][1] < 2 * stale_after:
        return False
    heard = Counter(sender_id for sender_id, _ in sightings)
    return sum(count for count in heard.values() if count == 1) >= NEARLY_ALL * len(sightings)


def judge(subject: str, cadence: Cadence, policy: Policy) -> Iterator[Finding]:
    """Yield findings about the thresholds, compared with the cadence of the site."""
    interval, stale_after = cadence.interval, policy.stale_after
    heard = f"senders register about every {_in_whole_seconds(interval)} ({cadence.known_from})"
    wanted = format_duration(_rounded_up(int(interval * COMFORTABLE)))
    if not interval:
        yield good(subject, f"too few senders were heard twice to tell how often they register ({cadence.known_from})")
    elif interval >= stale_after:
        text = f"{heard}, but stale_after is {format_duration(stale_after)}: the living will be called stale"
        yield bad(subject, text, f"set stale_after to {wanted} or more, and retire_after and blind_after with it")
    elif 2 * interval > stale_after:
        text = f"{heard}, stale_after is {format_duration(stale_after)}: one lost registration makes a sender stale"
        yield warning(subject, text, f"set stale_after to {wanted} or more")
    else:
        yield good(subject, f"{heard}: stale_after {format_duration(stale_after)} fits")
    share = quiet_share(cadence.instants, policy.blind_after)
    if share > QUIET_SHARE:
        text = (
            f"for {share:.0%} of the time the whole site said nothing for longer than blind_after, "
            f"{format_duration(policy.blind_after)} ({cadence.known_from}): time that the agent reads later, after "
            "being down, will mostly be unknown, because a backlog proves itself only where messages follow closely"
        )
        yield warning(subject, text, "on a site this quiet, make blind_after and stale_after longer")


def _in_whole_seconds(duration: int) -> str:
    return format_duration(round(duration / SECOND) * SECOND)


def _rounded_up(duration: int) -> int:
    """Round up to a whole minute, or second below one."""
    step = 60 * SECOND if duration > 60 * SECOND else SECOND
    return -(-duration // step) * step
