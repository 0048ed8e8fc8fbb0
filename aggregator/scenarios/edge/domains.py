"""Streams across JetStream domains of one account: mirrored down, gathered up, and backed up past the hub."""

import asyncio
import time
from functools import partial

import msgspec

from aggregator.scenarios.edge import layout
from aggregator.scenarios.edge.network import HUB, SPOKES
from aggregator.scenarios.edge.scene import Scene
from aggregator.scenarios.narrator import DEADLINE
from aggregator.scenarios.stage import JetStream, Topology
from aggregator.topology.report.text import format_report
from shared.nats.jetstream_api import RequestFailed, api_prefix, request_json

COUNT = 10
Counts = dict[str, int]
_ANSWERED_WITHIN = 1.0
_PURGE_DEADLINE = 20.0
CNC_COUNTS: Counts = {"hub/cnc": 10, "spoke-1/recv-cnc": 10, "spoke-2/recv-cnc": 10}


async def counts_in(topology: Topology) -> Counts:
    """Count the messages of each stream, by place and name; streams that are not there are left out."""
    return {f"{row.place}/{row.name}": row.messages for row in (await topology.report()).streams if not row.error}


async def publish(jetstream: JetStream, subject: str) -> None:
    """Publish ten messages as ``nats pub`` does, without waiting for a stream to store them."""
    for _ in range(COUNT):
        await jetstream.client.publish(subject, b"hello world")
    await jetstream.client.flush()


async def until_heard(publisher: JetStream, stream: str, *domains: str) -> None:
    """Publish until the stream of each domain has stored one, then empty them: word of new ones takes time to spread.

    Stream and subject have one name. Raise RequestFailed where none of it helps.
    """
    ends_at = time.monotonic() + DEADLINE
    while not await _all_answer(publisher, stream, set(domains)):
        if time.monotonic() > ends_at:
            raise RequestFailed(f"{stream}: not stored in {', '.join(domains)} within {DEADLINE:g} s")
    for domain in domains:
        subject = f"{api_prefix(domain)}.STREAM.PURGE.{stream}"
        await request_json(publisher.client, subject, None, dict[str, object], deadline=_PURGE_DEADLINE)


async def _all_answer(publisher: JetStream, subject: str, domains: set[str]) -> bool:
    """Publish one message, and tell whether each domain acknowledges it: what came before it is then stored too."""
    inbox = publisher.client.new_inbox()
    answers = await publisher.client.subscribe(inbox)
    waited_for = set(domains)
    try:
        await publisher.client.publish(subject, b"", reply=inbox)
        async with asyncio.timeout(_ANSWERED_WITHIN):
            while waited_for:
                answer = await answers.next_msg(timeout=_ANSWERED_WITHIN)
                # No stream at all is an answer without a body.
                waited_for.discard(msgspec.json.decode(answer.data or b"{}").get("domain", ""))
    except TimeoutError:
        return False
    finally:
        await answers.unsubscribe()
    return True


async def play(scene: Scene, at_hub: JetStream, at_spokes: tuple[JetStream, JetStream]) -> None:
    await _command_and_control(scene, at_hub)
    await _gather(scene, at_hub, at_spokes[0])
    await _back_up(scene, at_spokes[0])


async def _command_and_control(scene: Scene, at_hub: JetStream) -> None:
    topology, narrator = scene.topology, scene.narrator
    narrator.chapter("Command and control: the hub's cnc, mirrored into each spoke")
    await topology.apply(layout.COMMANDS)
    await until_heard(at_hub, "cnc", HUB)
    await publish(at_hub, "cnc")
    await narrator.comes("the hub is told something, ten times", lambda: at_hub.count("cnc"), COUNT)
    await topology.apply(layout.CNC)
    await narrator.comes(
        "each spoke has what the hub was told before, in a stream of one name in two domains",
        partial(counts_in, topology),
        CNC_COUNTS,
    )


async def _gather(scene: Scene, at_hub: JetStream, at_spoke: JetStream) -> None:
    topology, narrator = scene.topology, scene.narrator
    narrator.chapter("The same subject in both spokes: domains do not hold messages back")
    await topology.apply(layout.CNC + layout.SHARED_SUBJECT)

    async def stored() -> Counts:
        return {name: count for name, count in (await counts_in(topology)).items() if name.endswith("/test")}

    for publisher in (at_spoke, at_hub):
        await until_heard(publisher, "test", *SPOKES)
    await publish(at_hub, "test")
    await narrator.comes("ten at the hub are stored in both", stored, {"spoke-1/test": 10, "spoke-2/test": 10})
    await publish(at_spoke, "test")
    await narrator.comes("ten at spoke-1 too", stored, {"spoke-1/test": 20, "spoke-2/test": 20})
    await topology.apply(layout.CNC + layout.SHARED_SUBJECT + layout.AGGREGATE)
    await narrator.comes("so the aggregate has each twice", lambda: at_hub.count("aggregate"), 40)


async def _back_up(scene: Scene, at_spoke: JetStream) -> None:
    topology, narrator = scene.topology, scene.narrator
    narrator.chapter("spoke-1's stream, backed up in spoke-2: copies need not follow the links")
    laid_out = layout.CNC + layout.SHARED_SUBJECT + layout.AGGREGATE + layout.BACKUP
    await topology.apply(laid_out)
    await publish(at_spoke, "test")
    await narrator.comes(
        "ten more at spoke-1",
        partial(counts_in, topology),
        CNC_COUNTS | {"spoke-1/test": 30, "spoke-2/test": 30, "hub/aggregate": 60, "spoke-2/backup-test-spoke-1": 30},
    )
    narrator.output(format_report(await topology.report(), narrator.room))
