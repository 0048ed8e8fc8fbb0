"""Is anybody accused who lives, and how soon is found who does not? Real outages, and real trouble for who observes.

Rivals decide by what an observer beside the agent heard, which is stopped, cut off and killed at the same instants.
"""

import asyncio
import random
import signal
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

from edge_agent.simulator.fleet import Fleet, FleetSettings
from edge_agent.simulator.publisher import PipelinedPublisher, PublishFailed
from edge_agent.simulator.random_outages import union
from shared import wire
from shared.identifiers import AdvisoryKind
from shared.instants import SECOND
from shared.nats.stream_messages import delivery_of
from shared.wire import Advisory
from tests.bench import observer
from tests.bench.children import Child
from tests.bench.contenders import Contender, Ours
from tests.bench.detectors import (
    Figures,
    FixedTimeout,
    Heard,
    Mistake,
    Outage,
    PhiAccrual,
    Span,
    Suspicion,
    Suspicions,
    Truth,
    ZoneRule,
    judge,
    length,
    suspicions,
    within,
)
from tests.bench.report import Row, Table, median
from tests.bench.stage import Options, stage
from tests.bench.trace_lives import drawn_lives
from tests.bench.troubles import SITE_STORAGE, TROUBLES, Scene, now
from tests.support.faults.evidence import stored
from tests.support.faults.fleet import FleetClient
from tests.support.waiting import until

SPEED = 200
INTERVAL, JITTER = 2 * SECOND, SECOND // 5
STALE_AFTER, SETTLE = 6 * SECOND, SECOND // 2
LATEST = STALE_AFTER + SETTLE + SECOND
RECONNECTED_WITHIN = 5 * SECOND
# Whom one replays: much failed for an hour or longer of the trace, and for less.
OUTAGE = 3 * STALE_AFTER
LASTS = (1.2 * STALE_AFTER / SECOND, 2.2 * STALE_AFTER / SECOND)
CALM = (20.0, 26.0)
LEAD = 10.0
SUBJECT = "registration.nodes"
ANSWERED_WITHIN = 5.0
SHOWN = 10
QUICK = ("who observes stands still", "link to the site cut", "site's stream full")
NOT_MODELLED = (
    "P_A of ours: who was down before a time that nobody could see, and came back in it, counts as down until heard",
    "not modelled: steps of the observer's own clock; registrations lost or late between sender and server; several",
    "  zones; a slower eviction in large zones (here the rule accuses nobody instead). In a restart of who observes",
    "  fixed keeps what it knew, as the peer does in a file; phi and zone begin anew, as Akka and Kubernetes do",
)


class Registered(msgspec.Struct):
    """The instants at which each sender registered, whatever the site's server made of it."""

    instants: dict[str, list[int]] = msgspec.field(default_factory=lambda: defaultdict(list))
    ended_at: int = 0
    count: int = 0
    refused: int = 0

    def take_end(self, failure: PublishFailed | None) -> None:
        """Count one that the server did not take."""
        self.refused += failure is not None


async def accuracy(options: Options) -> Table:
    """Replay outages and trouble; give the four figures of each detector."""
    draw = random.Random(f"accuracy {options.seed}")
    names = [name for name in TROUBLES if name in QUICK or not options.is_quick]
    draw.shuffle(names)
    plan = [(name, draw.uniform(*LASTS), draw.uniform(*CALM)) for name in names]
    # Longer than it will take: faults have to be made and healed, too.
    lasts = round(LEAD + 60 + sum(2 * lasting + calm for _, lasting, calm in plan)) * SECOND
    lives, origin = drawn_lives(draw, options.size(300, 100), lasts, SPEED, OUTAGE)
    fleet = Fleet(
        FleetSettings(
            site="dub1",
            sender_count=len(lives),
            registration_interval=INTERVAL,
            jitter=JITTER,
            seed=options.seed,
        ),
        lives,
    )
    async with stage(options, site_storage=SITE_STORAGE) as servers, AsyncExitStack() as stack:
        links = [await stack.enter_async_context(servers.link("site")) for _ in range(1 + len(servers.kinds))]
        contenders = []
        for kind, link in zip(servers.kinds, links[1:], strict=True):
            work = servers.work(
                site=link.url,
                stale_after=f"{STALE_AFTER // SECOND}s",
                settle=f"{SETTLE * 1_000 // SECOND}ms",
            )
            contenders.append(await stack.enter_async_context(servers.contender(kind, work)))
        log_path = servers.directory / "observer.log"
        command = [sys.executable, "-m", observer.__name__, links[0].url, str(log_path)]
        watching = Child(command, servers.directory / "observer.err")
        stack.push_async_callback(watching.end, signal.SIGKILL)
        await servers.site.jetstream().add_consumer(
            observer.STREAM, durable_name=observer.CONSUMER, ack_policy="explicit", ack_wait=5
        )
        scene = Scene(servers, [watching, *(each.child for each in contenders)], links)
        for child in scene.observers:
            child.start()
        registered = await _play(scene, fleet, contenders[0], plan)
        truth = Truth(registered.instants, INTERVAL + JITTER, registered.ended_at)
        log = [each for each in _read_log(log_path) if each.at <= truth.ended_at]
        found, unknown = await _muster_says(scene, truth)
        said = {"ours": found}
        if options.peer:
            said["peer"] = await _peer_says(scene, truth)
    said |= {
        name: suspicions(detector, log, truth.ended_at)
        for name, detector in (
            ("fixed", FixedTimeout(STALE_AFTER)),
            ("phi", PhiAccrual(INTERVAL)),
            ("phi, paused", PhiAccrual(INTERVAL, 3 * INTERVAL)),
            ("zone", ZoneRule(STALE_AFTER)),
        )
    }
    figures = {name: judge(truth, found, LATEST) for name, found in said.items()}
    notes = [
        f"{origin}; {len(truth.up)} senders, a registration every 2 s, {registered.count:,} of them",
        f"  {registered.refused:,} not taken by the site's server; stale after 6 s, settle 0.5 s; seed {options.seed}",
        *_by_trouble(scene, figures),
        *_mistakes_of_ours(figures["ours"].mistakes, truth, scene),
        *NOT_MODELLED,
    ]
    title = "who is accused and lives, and when is found who does not"
    rows = _rows(figures, truth, scene, unknown)
    return Table("accuracy", title, options.command("accuracy"), rows, notes=notes, rivals=tuple(figures)[1:])


MEASURES = {"accuracy": accuracy}


async def _play(scene: Scene, fleet: Fleet, ours: Contender, plan: Sequence[tuple[str, float, float]]) -> Registered:
    """Let the senders live while one trouble comes after the other."""
    assert isinstance(ours, Ours)
    registered = Registered()

    async def expected(_error: Exception) -> None:
        """Servers come and go: that is the point."""

    await until(ours.observed_through, "the agent observes")
    client = FleetClient()
    # Seconds: they are slept, so that parts of one will do.
    soon: Any = 0.05
    await client.connect(
        scene.site.url, max_reconnect_attempts=-1, reconnect_time_wait=soon, pending_size=0, error_cb=expected
    )
    try:
        async with PipelinedPublisher(client, window=1_000_000, deadline=ANSWERED_WITHIN) as publisher:
            living = asyncio.create_task(_register(fleet, publisher, registered))
            await asyncio.sleep(LEAD)
            for name, lasting, calm in plan:
                print(f"  {name}, {lasting:.1f} s", file=sys.stderr, flush=True)
                await scene.befall(name, lasting)
                await asyncio.sleep(calm)
            registered.ended_at = now()
            await until(lambda: ours.observed_through() > registered.ended_at, "the agent has seen everything")
            living.cancel()
            await asyncio.wait({living})
            await publisher.drain()
    finally:
        await client.close()
    for instants in registered.instants.values():
        instants[:] = [at for at in instants if at <= registered.ended_at]
    registered.instants = {sender_id: instants for sender_id, instants in registered.instants.items() if instants}
    return registered


async def _register(fleet: Fleet, publisher: PipelinedPublisher, registered: Registered) -> None:
    """Publish when each is due; that it did so is the truth."""
    began_at = now()
    for due_at, index in fleet.registrations():
        if (ahead := began_at + due_at - now()) > 0:
            await asyncio.sleep(ahead / SECOND)
        sender_id = fleet.sender_ids[index]
        registered.count += 1
        registered.instants[sender_id].append(now())
        body = msgspec.json.encode({"sender": sender_id, "number": registered.count})
        await publisher.publish(SUBJECT, body, registered.take_end)


def _read_log(path: Path) -> Iterator[Heard]:
    for line in path.read_text().splitlines():
        at, _, what = line.partition(" ")
        yield Heard(int(at), what)


async def _muster_says(scene: Scene, truth: Truth) -> tuple[Suspicions, float]:
    """Give whom the agent held to be down, at the time of the event, and the share of time that it called unknown.

    In time that is unknown nobody is: the tables say so of everybody.
    """
    clock = scene.clock
    spoken: list[tuple[Advisory, int]] = []
    covered: list[Span] = []
    async for message in stored(scene.servers.servers["region"], "FLEET"):
        said_at = delivery_of(message.reply).stored_at
        if ".advisory." in message.subject:
            advisory = wire.decode_advisory(message.data)
            assert isinstance(advisory, Advisory)
            spoken.append((advisory, said_at))
        elif message.subject.endswith(".watermark"):
            mark = wire.decode_watermark(message.data)
            through = clock.latest(mark.observed_through_us, said_at)
            covered.append((clock.latest(mark.observed_since_us, through), through))
    covered = union(covered)
    found: dict[str, list[Suspicion]] = defaultdict(list)
    open_since: dict[str, tuple[int, int]] = {}
    for advisory, said_at in spoken:
        sender_id, at = advisory.value, clock.latest(advisory.at_us, said_at)
        if advisory.kind is AdvisoryKind.STALE:
            open_since[sender_id] = at, said_at
        elif begun := open_since.pop(sender_id, None):
            found[sender_id].append(Suspicion(*begun, within((begun[0], at), covered)))
    for sender_id, begun in open_since.items():
        found[sender_id].append(Suspicion(*begun, within((begun[0], truth.ended_at), covered)))
    began_at = min(instants[0] for instants in truth.registered.values())
    whole = (began_at, truth.ended_at)
    return _before(found, truth.ended_at), 1 - length(within(whole, covered)) / length([whole])


class _PeersAdvisory(msgspec.Struct):
    event: str
    value: str
    timestamp: int


async def _peer_says(scene: Scene, truth: Truth) -> Suspicions:
    """Give whom the peer held to be down: from when the site's stream has its advisory."""
    found: dict[str, list[Suspicion]] = defaultdict(list)
    open_since: dict[str, int] = {}
    at = 0
    async for message in stored(scene.site, "PEERADV"):
        advisory = msgspec.json.decode(message.data, type=_PeersAdvisory)
        # It was stored after the peer made it, by its own clock, and after what is stored before it.
        at = scene.clock.earliest(delivery_of(message.reply).stored_at, max(at, advisory.timestamp * SECOND))
        if advisory.event == "timeout":
            open_since.setdefault(advisory.value, at)
        elif (since := open_since.pop(advisory.value, None)) is not None:
            found[advisory.value].append(Suspicion(since, since, [(since, at)]))
    for sender_id, since in open_since.items():
        found[sender_id].append(Suspicion(since, since, [(since, truth.ended_at)]))
    return _before(found, truth.ended_at)


def _before(found: Mapping[str, Sequence[Suspicion]], ended_at: int) -> Suspicions:
    """Leave out what was said of the time behind the end."""
    return {
        sender_id: [each for each in of_sender if each.started_at < ended_at] for sender_id, of_sender in found.items()
    }


def _rows(figures: Mapping[str, Figures], truth: Truth, scene: Scene, unknown: float) -> list[Row]:
    ours, *others = figures.values()
    outages = [each for each in truth.outages if each.next_at - each.last_at >= LATEST]
    calm = [each for each in outages if _is_calm(each, scene)]

    def row(what: str, unit: str, figure: Callable[[Figures], float | None], must: float | None = None) -> Row:
        return Row(what, unit, figure(ours), None, must, "less", tuple(map(figure, others)))

    def calm_delays(each: Figures) -> list[float]:
        return [each.delays[outage] / SECOND for outage in calm if outage in each.delays]

    def all_delays(each: Figures) -> list[float]:
        return [delay / SECOND for delay in each.delays.values()]

    def in_seconds(microseconds: float | None) -> float | None:
        return None if microseconds is None else microseconds / SECOND

    return [
        row("mistakes", "accusations", lambda each: len(each.mistakes), 1),
        row("T_MR: between two mistakes", "s of one sender up", lambda each: in_seconds(each.mistake_recurrence)),
        row("T_M: a mistake lasts", "s, mean", lambda each: in_seconds(each.mistake_duration)),
        row("P_A: of time up not accused", "%", lambda each: 100 * each.query_accuracy),
        row(f"noticed of {len(calm)} outages without trouble", "outages", lambda each: len(calm_delays(each))),
        row("T_D: of these, median", "s from the last registration", lambda each: median(calm_delays(each))),
        row("T_D: of these, the longest", "s", lambda each: max(calm_delays(each), default=None), LATEST / SECOND),
        row(f"noticed of all {len(outages)} outages", "outages", lambda each: len(each.delays)),
        row("T_D: of these, median", "s", lambda each: median(all_delays(each))),
        row("T_D: of these, the longest", "s", lambda each: max(all_delays(each), default=None)),
        Row("time that is called unknown", "%", 100 * unknown, others=(None,) * len(others)),
    ]


def _is_calm(outage: Outage, scene: Scene) -> bool:
    """Tell whether nothing was wrong from its last registration until it must be found; nor just before, or after."""
    return not any(
        trouble.started_at < outage.last_at + LATEST and outage.last_at < trouble.ended_at + RECONNECTED_WITHIN
        for trouble in scene.troubles
    )


def _by_trouble(scene: Scene, figures: Mapping[str, Figures]) -> Iterator[str]:
    """Count the mistakes by the trouble that began last before them."""
    yield f"mistakes in, or after {'':18} {'lasts':>7} " + " ".join(f"{name:>12}" for name in figures)
    begins = [trouble.started_at for trouble in scene.troubles]
    for number, name in enumerate(["no trouble yet", *(trouble.name for trouble in scene.troubles)]):
        lasted = (scene.troubles[number - 1].ended_at - begins[number - 1]) / SECOND if number else 0.0
        counts = [sum(bisect_right(begins, m.started_at) == number for m in each.mistakes) for each in figures.values()]
        yield f"  {name:38} {lasted:>5.1f} s " + " ".join(f"{count:>12,}" for count in counts)


def _mistakes_of_ours(mistakes: Sequence[Mistake], truth: Truth, scene: Scene) -> Iterator[str]:
    """Say all that there is to say of a mistake that must not be."""
    if len(mistakes) > SHOWN:
        yield f"the first {SHOWN} mistakes of ours, of {len(mistakes):,}:"
    for mistake in mistakes[:SHOWN]:
        heard = truth.registered[mistake.sender_id]
        around = [(at - mistake.started_at) / SECOND for at in heard if abs(at - mistake.started_at) < 2 * STALE_AFTER]
        troubles = [
            f"{each.name} from {(each.started_at - mistake.started_at) / SECOND:+.2f} s"
            f" to {(each.ended_at - mistake.started_at) / SECOND:+.2f} s"
            for each in scene.troubles
            if abs(each.started_at - mistake.started_at) < 8 * STALE_AFTER
        ]
        yield (
            f"MISTAKE: {mistake.sender_id} is called stale at {mistake.started_at}; it registered at"
            f" {', '.join(f'{each:+.2f}' for each in around)} s; {'; '.join(troubles)}"
        )
