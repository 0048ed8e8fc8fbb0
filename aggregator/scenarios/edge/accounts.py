"""Streams across accounts: mirrored, read through a durable consumer, and gathered through an account in between."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg

from aggregator.scenarios.edge import layout
from aggregator.scenarios.edge.domains import COUNT, Counts, counts_in, publish, until_heard
from aggregator.scenarios.edge.network import HUB, SPOKES
from aggregator.scenarios.edge.scene import Scene
from aggregator.scenarios.edge.tokens import Account
from aggregator.scenarios.stage import JetStream, explicit_consumer, insist
from aggregator.topology.report.graph import HEAD, quoted, replication_graph
from aggregator.topology.report.tables import Report
from aggregator.topology.report.text import format_report
from shared.nats.jetstream_api import ApiError, RequestFailed, request_json

HELD = 70
FIRST = {
    "subject": "test",
    "body": "hello world",
    "taken from": "test",
    "tries": 1,
    "sequence of the consumer": 1,
    "sequence of the stream": 1,
    "pending": HELD - 1,
}
_CONSUMERS = "$JS.hub.API.CONSUMER.>"
_NEXT = "CONSUMER.MSG.NEXT.aggregate.DUR"
_ACKS = "$JS.ACK.aggregate.DUR.>"
_COPIES = [
    "recv-cnc",
    "recv-cnc",
    "aggregate",
    "aggregate",
    "backup-test-spoke-1",
    "aggregate",
    "aggregate",
    "crossacc",
]
_ARROWS = [
    "EXCACC -> HUBACC",
    "HUBACC -> EXCACC",
    "LEAFACC -> EXCACC",
    "TEST -> IMPORTER",
    "spoke-1 -> hub",
    "spoke-2 -> hub",
]
_FETCH_DEADLINE = 20.0
_REQUEST_DEADLINE = 5.0
_IN_TEST = layout.CNC + layout.SHARED_SUBJECT + layout.AGGREGATE + layout.BACKUP


async def play(scene: Scene) -> None:
    """Connect what is in account TEST with others, in the order of the documentation; leave a map."""
    await _across(scene)
    await _through(scene)
    await _draw(scene)


async def _across(scene: Scene) -> None:
    test, importer, narrator = scene.test, Account("IMPORTER"), scene.narrator
    narrator.chapter("Across accounts: IMPORTER, made while the servers run, mirrors TEST's aggregate")
    test.lend_service(_CONSUMERS)
    test.lend_stream("deliver.>")
    importer.take_service(test, _CONSUMERS, "JS.test@hub.API.CONSUMER.>")
    importer.take_stream(test, "deliver.importer.>")
    await scene.push("servers that took the accounts' tokens, without a restart", test, importer)
    scene.place("IMPORTER", importer, HUB)
    await scene.topology.apply(_IN_TEST + layout.CROSS_ACCOUNT)
    async with scene.connected(importer) as as_importer:
        await narrator.comes("crossacc has what aggregate has", lambda: as_importer.count("crossacc"), HELD)
        await _consume(scene, importer, as_importer)


async def _consume(scene: Scene, importer: Account, as_importer: JetStream) -> None:
    test, narrator = scene.test, scene.narrator
    narrator.chapter("A durable consumer shared: TEST lends its next message and its acknowledgements, and no more")
    test.end_services()
    importer.end_services()
    test.lend_service(f"$JS.hub.API.{_NEXT}")
    importer.take_service(test, f"$JS.hub.API.{_NEXT}", f"from.test.API.{_NEXT}")
    test.lend_service(_ACKS)
    importer.take_service(test, _ACKS)
    await scene.push("servers that took them again", test, importer)
    async with scene.connected(test) as as_test:
        await as_test.insist(*explicit_consumer("aggregate", "DUR", deliver_policy="all"))
        await narrator.comes("the first of them", partial(_first, as_importer), FIRST)
        read = [1]

        async def fetched() -> int:
            read.append(len(await _fetched(as_importer, HELD - sum(read))))
            return sum(read)

        await narrator.comes("IMPORTER reads by the API prefix from.test.API", fetched, HELD)

        async def left() -> list[int]:
            info = await as_test.request("CONSUMER.INFO.aggregate.DUR")
            return [info["num_pending"], info["num_ack_pending"]]

        await narrator.comes("left for it: pending, not acknowledged", left, [0, 0])
    narrator.show(
        "it may ask about the consumer",
        await _answers(as_importer, "from.test.API.CONSUMER.INFO.aggregate.DUR"),
        False,
    )


async def _first(jetstream: JetStream) -> dict[str, str | int]:
    for message in await _fetched(jetstream, 1):
        return {
            "subject": message.subject,
            "body": message.data.decode(),
            "taken from": (message.headers or {}).get("Nats-Stream-Source", "").partition(":")[0],
            "tries": message.metadata.num_delivered,
            "sequence of the consumer": message.metadata.sequence.consumer,
            "sequence of the stream": message.metadata.sequence.stream,
            "pending": message.metadata.num_pending,
        }
    return {}


async def _through(scene: Scene) -> None:
    narrator, exchange = scene.narrator, Account("EXCACC", jetstream=False)
    hub, leaf = Account("HUBACC"), Account("LEAFACC")
    narrator.chapter("Through an account: one LEAFACC for all spokes, which EXCACC alone connects with HUBACC")
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
        await narrator.comes("HUBACC reaches LEAFACC's JetStream in", reached, list(SPOKES), note)
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
    narrator, topology = scene.narrator, scene.topology
    everything = _IN_TEST + layout.CROSS_ACCOUNT + layout.ISOLATED
    placed = {}
    for spoke in SPOKES:
        config = {"name": "test", "subjects": ["test"], "num_replicas": 3}
        subject = f"$JS.leafacc.{spoke}.API.STREAM.CREATE.test"
        placed[f"leafacc.{spoke}"] = (await insist(as_hub.client, subject, config))["cluster"]["name"]
    narrator.show(
        "HUBACC makes a stream test by each domain's name, in", placed, {f"leafacc.{spoke}": spoke for spoke in SPOKES}
    )
    await topology.apply(everything)

    async def held() -> Counts:
        return {name: count for name, count in (await counts_in(topology)).items() if "ACC" in name}

    for spoke in SPOKES:
        async with scene.connected(leaf, spoke) as as_leaf:
            await until_heard(as_leaf, "test", spoke)
            await publish(as_leaf, "test")
    isolated = {f"LEAFACC-{spoke}/test": COUNT for spoke in SPOKES}
    await narrator.comes("ten at each spoke stay there", held, isolated)
    async with scene.connected(leaf) as as_leaf:
        await publish(as_leaf, "test")
    await narrator.comes("ten of LEAFACC at the hub reach neither", held, isolated)
    await topology.apply(everything + layout.THROUGH_ACCOUNTS)
    await narrator.comes("HUBACC's aggregate has the spokes' twenty", held, isolated | {"HUBACC/aggregate": 2 * COUNT})


async def _draw(scene: Scene) -> None:
    narrator, topology = scene.narrator, scene.topology
    narrator.chapter("The reports and the map: muster-aggregator report --dot replication.dot")
    reports: list[Report] = []

    async def whole() -> list[str]:
        reports.append(await topology.report())
        return [row.stream for row in reports[-1].replication if row.behind == 0 and not row.error]

    await narrator.comes("copies that have all of their origins", whole, _COPIES)
    report = reports[-1]
    narrator.output(format_report(report, narrator.room))
    topology.path.with_name("replication.dot").write_text(replication_graph(report), encoding="utf-8")
    if not all(row.healthy for row in report.replication):
        narrator.sentence("after the hub was down, a mirror that has nothing to take may not be heard for a while")

    narrator.chapter("A map of the accounts, too: who lends what to whom, and what leaf nodes join (accounts.dot)")
    joined = [account.name for account in scene.net.joined]
    graph = account_graph(list(scene.accounts.values()), HUB, SPOKES, joined)
    topology.path.with_name("accounts.dot").write_text(graph, encoding="utf-8")
    arrows = sorted(line.split(" [")[0].strip().replace('"', "") for line in graph.splitlines() if " -> " in line)
    narrator.show("arrows", arrows, _ARROWS)
    narrator.show("what leaf nodes join", joined, ["SYS", "TEST", "EXCACC"])


async def _fetched(jetstream: JetStream, most: int) -> list[Msg]:
    """Read and acknowledge what the other account's consumer has."""
    subscription = await jetstream.client.jetstream(prefix="from.test.API").pull_subscribe_bind("DUR", "aggregate")
    try:
        messages = await subscription.fetch(most, timeout=_FETCH_DEADLINE)
    except (nats.errors.TimeoutError, nats.js.errors.ServiceUnavailableError):
        # What was pushed has not come to the consumer's leader yet, or that is not elected.
        return []
    finally:
        await subscription.unsubscribe()
    for message in messages:
        await message.ack()
    return messages


async def _answers(jetstream: JetStream, subject: str) -> bool:
    try:
        await request_json(jetstream.client, subject, None, dict[str, object], deadline=_REQUEST_DEADLINE)
    except (RequestFailed, ApiError):
        return False
    return True


def account_graph(accounts: Sequence[Account], hub: str, spokes: Iterable[str], joined: Iterable[str]) -> str:
    """Draw for GraphViz who takes what of whom, and which leaf nodes each spoke joins."""
    names = {account.key.public: account.name for account in accounts}
    lines = ["digraph accounts {", *HEAD]
    lines += [f"  {quoted(account.name)} [shape=box, label={_label(account)}];" for account in accounts]
    for account in accounts:
        for lender in dict.fromkeys(each["account"] for each in account.imports):
            taken = list(_taken(account, lender))
            lines.append(f"  {quoted(names[lender])} -> {quoted(account.name)} [label={quoted(*taken)}];")
    lines += [f"  {quoted(place)} [shape=ellipse];" for place in (hub, *spokes)]
    links = quoted("leaf nodes join", *joined)
    lines += [f"  {quoted(spoke)} -> {quoted(hub)} [dir=both, style=dashed, label={links}];" for spoke in spokes]
    return "\n".join([*lines, "}", ""])


def _label(account: Account) -> str:
    lent = [f"{each['type']} {each['subject']}" for each in account.exports]
    return quoted(account.name, "JetStream" if account.has_jetstream else "no JetStream", *lent)


def _taken(account: Account, lender: str) -> Iterator[str]:
    for each in account.imports:
        if each["account"] == lender:
            own = each.get("local_subject", "")
            yield f"{each['type']} {each['subject']}" + (f" as {own}" if own else "")
