"""Streams across accounts: mirrored, read through a durable consumer, and gathered through an account in between."""

import nats.errors
import nats.js.errors

from aggregator.scenarios import edge_layout as layout
from aggregator.scenarios.edge_domains import COUNT, Counts, counts_in, publish, until_heard
from aggregator.scenarios.edge_network import HUB, SPOKES
from aggregator.scenarios.edge_scene import Scene
from aggregator.scenarios.edge_tokens import Account
from aggregator.scenarios.stage import JetStream
from aggregator.topology.graph import replication_graph
from aggregator.topology.report import format_report
from shared.jetstream_api import ApiError, RequestFailed, request_json

HELD = 70
_CONSUMERS = "$JS.hub.API.CONSUMER.>"
_NEXT = "CONSUMER.MSG.NEXT.aggregate.DUR"
_ACKS = "$JS.ACK.aggregate.DUR.>"
_FETCH_DEADLINE = 20.0
_REQUEST_DEADLINE = 5.0
_IN_TEST = layout.CNC + layout.SHARED_SUBJECT + layout.AGGREGATE + layout.BACKUP


async def play(scene: Scene) -> None:
    """Connect what is in account TEST with others, in the order of the documentation; leave a map."""
    await _across(scene)
    await _through(scene)


async def _across(scene: Scene) -> None:
    test, importer, telling = scene.test, Account("IMPORTER"), scene.telling
    telling.chapter("Across accounts: IMPORTER, made while the servers run, mirrors TEST's aggregate")
    test.lend_service(_CONSUMERS)
    test.lend_stream("deliver.>")
    importer.take_service(test, _CONSUMERS, "JS.test@hub.API.CONSUMER.>")
    importer.take_stream(test, "deliver.importer.>")
    await scene.push("servers that took the accounts' tokens, without a restart", test, importer)
    scene.place("IMPORTER", importer, HUB)
    await scene.topology.apply(_IN_TEST + layout.CROSS_ACCOUNT)
    async with scene.connected(importer) as as_importer:
        await telling.comes("crossacc has what aggregate has", lambda: as_importer.count("crossacc"), HELD)
        await _consume(scene, importer, as_importer)


async def _consume(scene: Scene, importer: Account, as_importer: JetStream) -> None:
    test, telling = scene.test, scene.telling
    telling.chapter("A durable consumer shared: TEST lends its next message and its acknowledgements, and no more")
    test.end_services()
    importer.end_services()
    test.lend_service(f"$JS.hub.API.{_NEXT}")
    importer.take_service(test, f"$JS.hub.API.{_NEXT}", f"from.test.API.{_NEXT}")
    test.lend_service(_ACKS)
    importer.take_service(test, _ACKS)
    await scene.push("servers that took them again", test, importer)
    async with scene.connected(test) as as_test:
        config = {"durable_name": "DUR", "ack_policy": "explicit", "deliver_policy": "all"}
        await as_test.request("CONSUMER.CREATE.aggregate.DUR", {"stream_name": "aggregate", "config": config})
        read: list[int] = []

        async def fetched() -> int:
            read.append(await _fetch(as_importer, HELD - sum(read)))
            return sum(read)

        await telling.comes("IMPORTER reads by the API prefix from.test.API", fetched, HELD)

        async def left() -> list[int]:
            info = await as_test.request("CONSUMER.INFO.aggregate.DUR")
            return [info["num_pending"], info["num_ack_pending"]]

        await telling.comes("left for it: pending, not acknowledged", left, [0, 0])
    telling.show(
        "it cannot ask about the consumer",
        await _answers(as_importer, "from.test.API.CONSUMER.INFO.aggregate.DUR"),
        False,
    )


async def _through(scene: Scene) -> None:
    telling, exchange = scene.telling, Account("EXCACC", jetstream=False)
    hub, leaf = Account("HUBACC"), Account("LEAFACC")
    telling.chapter("Through an account: one LEAFACC for all spokes, which EXCACC alone connects with HUBACC")
    await scene.push("servers that took three accounts, not connected yet", exchange, hub, leaf)
    scene.net.join([scene.test, exchange])
    _connect(exchange, hub, leaf)
    await scene.push("servers that took them, connected", exchange, hub, leaf)
    scene.place("HUBACC", hub, HUB)
    for spoke in SPOKES:
        scene.place(f"LEAFACC-{spoke}", leaf, spoke)
    async with scene.connected(hub) as as_hub:

        async def reached() -> list[str]:
            return [spoke for spoke in SPOKES if await as_hub.reaches(f"leafacc.{spoke}")]

        note = "servers are restarted for another leaf node remote. Today they take it while they run (SIGHUP)"
        await telling.comes("HUBACC reaches LEAFACC's JetStream in", reached, list(SPOKES), note)
        await _isolated(scene, leaf, as_hub)


def _connect(exchange: Account, hub: Account, leaf: Account) -> None:
    """Lend each domain's API and deliveries to the account in between, under the accounts' names, and on to the hub."""
    for lender, domain in ((hub, HUB), *((leaf, spoke) for spoke in SPOKES)):
        name = f"{lender.name.lower()}.{domain}"
        lender.lend_service(f"$JS.{domain}.API.>")
        exchange.take_service(lender, f"$JS.{domain}.API.>", f"$JS.{name}.API.>")
        lender.lend_stream(f"deliver.{name}.>")
        exchange.take_stream(lender, f"deliver.{name}.>")
    exchange.lend_service("$JS.>")
    exchange.lend_stream("deliver.>")
    hub.take_service(exchange, "$JS.leafacc.>")
    hub.take_stream(exchange, "deliver.leafacc.>")


async def _isolated(scene: Scene, leaf: Account, as_hub: JetStream) -> None:
    telling, topology = scene.telling, scene.topology
    everything = _IN_TEST + layout.CROSS_ACCOUNT + layout.ISOLATED
    for spoke in SPOKES:
        config = {"name": "test", "subjects": ["test"], "num_replicas": 3}
        subject = f"$JS.leafacc.{spoke}.API.STREAM.CREATE.test"
        await request_json(as_hub.client, subject, config, dict[str, object], deadline=_FETCH_DEADLINE)
    await topology.apply(everything)

    async def held() -> Counts:
        return {name: count for name, count in (await counts_in(topology)()).items() if "ACC" in name}

    for spoke in SPOKES:
        async with scene.connected(leaf, spoke) as as_leaf:
            await until_heard(as_leaf, "test", spoke)
            await publish(as_leaf, "test")
    isolated = {f"LEAFACC-{spoke}/test": COUNT for spoke in SPOKES}
    await telling.comes("ten at each spoke stay there", held, isolated)
    async with scene.connected(leaf) as as_leaf:
        await publish(as_leaf, "test")
    telling.show("ten of LEAFACC at the hub reach neither", await held(), isolated)
    await topology.apply(everything + layout.THROUGH_ACCOUNTS)
    await telling.comes("HUBACC's aggregate has the spokes' twenty", held, isolated | {"HUBACC/aggregate": 2 * COUNT})
    report = await topology.report()
    telling.output(format_report(report))
    path = topology.path.with_name("replication.dot")
    path.write_text(replication_graph(report), encoding="utf-8")
    telling.output(f"the map, for GraphViz: {path}")


async def _fetch(jetstream: JetStream, most: int) -> int:
    """Read and acknowledge what the other account's consumer has; give how many those were."""
    subscription = await jetstream.client.jetstream(prefix="from.test.API").pull_subscribe_bind("DUR", "aggregate")
    try:
        messages = await subscription.fetch(most, timeout=_REQUEST_DEADLINE)
    except (nats.errors.TimeoutError, nats.js.errors.ServiceUnavailableError):
        # What was pushed has not come to the consumer's leader yet, or that is not elected.
        return 0
    finally:
        await subscription.unsubscribe()
    for message in messages:
        await message.ack()
    return len(messages)


async def _answers(jetstream: JetStream, subject: str) -> bool:
    try:
        await request_json(jetstream.client, subject, None, dict[str, object], deadline=_REQUEST_DEADLINE)
    except (RequestFailed, ApiError):
        return False
    return True
