"""JetStream at the edge: a hub and two spokes of three servers each, joined by leaf nodes, in operator mode.

Source: "JetStream-LeafNodes-Demo" of Matthias Hanel, the script of "Persistence at the Edge".
"""

import asyncio
import re
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from aggregator.topology.report.graph import replication_graph
from aggregator.topology.report.tables import StreamReport
from aggregator.topology.report.text import format_report
from shared.instants import format_duration
from shared.nats.jetstream_api import ApiError, NoApi, RequestFailed, api_prefix, request_json
from tests.scenarios.edge_network import (
    CLUSTERS,
    HUB,
    SERVER_COUNT,
    SERVERS_EACH,
    SPOKES,
    Network,
    account_graph,
    starting,
)
from tests.scenarios.narrator import DEADLINE, Narrator
from tests.scenarios.server_reports import (
    GATHER_BRIEFLY,
    cluster_sizes,
    format_jetstream,
    format_servers,
    gather,
    is_meta_leader,
)
from tests.scenarios.stage import REQUEST_DEADLINE, JetStream, Topology, explicit_consumer
from tests.support.nats.insisting import insist
from tests.support.nats.operator_mode import Account, Operator

COUNT = 10
HELD = 70
BACKUP = "backup-test-spoke-1"
MIRRORS = (("spoke-1", "recv-cnc"), ("spoke-2", "recv-cnc"), ("spoke-2", BACKUP))
CNC_COUNTS = {"hub/cnc": 10, "spoke-1/recv-cnc": 10, "spoke-2/recv-cnc": 10}
CONSUMERS = "$JS.hub.API.CONSUMER.>"
NEXT = "CONSUMER.MSG.NEXT.aggregate.DUR"
ACKS = "$JS.ACK.aggregate.DUR.>"
ANSWERED_WITHIN = 1.0


def stream(name: str, at: str, *lines: str) -> str:
    """Return a stream of topology.toml with three replicas; ``at`` names its domain or place."""
    return "\n".join(["[[stream]]", f'name = "{name}"', at, "replicas = 3", *lines, ""])


def copy_of(name: str, at: str, *lines: str, how: str = "[stream.mirror]") -> str:
    return "\n".join([how, f'name = "{name}"', at, *lines, ""])


COMMANDS = stream("cnc", "", 'subjects = ["cnc"]')
CNC = COMMANDS + "".join(
    stream("recv-cnc", f'domain = "{spoke}"') + copy_of("cnc", 'domain = "hub"') for spoke in SPOKES
)
SHARED_SUBJECT = CNC + "".join(stream("test", f'domain = "{spoke}"', 'subjects = ["test"]') for spoke in SPOKES)
AGGREGATE = SHARED_SUBJECT + stream("aggregate", "") + "".join(
    copy_of("test", f'domain = "{spoke}"', how="[[stream.source]]") for spoke in SPOKES
)  # fmt: skip
IN_TEST = AGGREGATE + stream(BACKUP, 'domain = "spoke-2"') + copy_of("test", 'domain = "spoke-1"')
CROSS_ACCOUNT = IN_TEST + stream("crossacc", 'place = "IMPORTER"') + copy_of(
    "aggregate", 'place = "hub"', 'api = "JS.test@hub.API"', 'deliver = "deliver.importer.crossacc"'
)  # fmt: skip
ISOLATED = CROSS_ACCOUNT + "".join(
    stream("test", f'place = "LEAFACC-{spoke}"', 'subjects = ["test"]') for spoke in SPOKES
)
THROUGH_ACCOUNTS = ISOLATED + stream("aggregate", 'place = "HUBACC"') + "".join(
    copy_of(
        "test",
        f'place = "LEAFACC-{spoke}"',
        f'api = "$JS.leafacc.{spoke}.API"',
        f'deliver = "deliver.leafacc.{spoke}.hubacc.hub.aggregate"',
        how="[[stream.source]]",
    )
    for spoke in SPOKES
)  # fmt: skip


class Scene(NamedTuple):
    """A network with domains, its topology.toml, and connections of account TEST."""

    net: Network
    topology: Topology
    narrator: Narrator
    at_hub: JetStream
    at_first: JetStream
    at_second: JetStream


async def test_hub_and_spokes_hold_what_the_documentation_counts(tmp_path: Path, narrator: Narrator) -> None:
    operator, test = Operator("OP"), Account("TEST")
    narrator.chapter("Three clusters of three servers; the spokes' leaf nodes join the system account and TEST")
    net = Network(tmp_path / "domains", operator, test, narrator, domains=True)
    async with starting(net) as net_started:
        await net_started
        await _with_domains(net)
        merged = Network(tmp_path / "merged", operator, test, narrator, domains=False)
        # The others start while these are at work.
        async with starting(merged) as merged_started:
            topology = net.topology()
            async with (
                net.connected(test) as at_hub,
                net.connected(test, SPOKES[0]) as at_first,
                net.connected(test, SPOKES[1]) as at_second,
            ):
                scene = Scene(net, topology, narrator, at_hub, at_first, at_second)
                await _mirror_and_gather(scene)
                await _cut_links(scene)
                await _hub_down(scene)
            narrator.chapter("Meanwhile: as many other servers, without domains, whose JetStreams are one")
            await merged_started
            await _without_domains(merged)
        await _catch_up(topology, narrator)
        await _across_accounts(net, topology)
        await _through_an_account(net, topology)
        await _draw(net, topology, tmp_path)
        reports = (net.nats_command(test, cluster, "stream report") for cluster in CLUSTERS)
        await narrator.stay(topology.report_command, net.nats_command(net.system, HUB, "server list"), *reports)


async def _with_domains(net: Network) -> None:
    narrator = net.narrator
    async with net.connected(net.system) as administrator:
        client = administrator.client

        async def seen() -> dict[str, int]:
            return cluster_sizes(await gather(client, "STATSZ", SERVER_COUNT, GATHER_BRIEFLY))

        each = dict.fromkeys(CLUSTERS, SERVERS_EACH)
        await narrator.comes("the hub's system account sees", seen, each)
        narrator.output(format_servers(await gather(client, "STATSZ", SERVER_COUNT), narrator.room))
        claim = "with domains each cluster decides where its own streams are (servers that decide together)"
        await narrator.comes(claim, partial(_deciding, client), each)


async def _without_domains(net: Network) -> None:
    """Show that there is one JetStream, which the hub leads, and a spoke without the hub."""
    narrator = net.narrator
    async with net.connected(net.system) as administrator:
        client = administrator.client
        deciding, everyone = partial(_deciding, client), {HUB: SERVER_COUNT}
        await narrator.comes("all nine decide together, and the hub leads", deciding, everyone)
        await administrator.request("META.LEADER.STEPDOWN")
        await narrator.comes("when its leader steps down, the hub leads again", deciding, everyone)
        narrator.output(format_jetstream(await gather(client, "JSZ", SERVER_COUNT), narrator.room))
    async with net.connected(net.test, SPOKES[0]) as at_spoke:
        kept, new = ({"name": name, "subjects": [name], "num_replicas": SERVERS_EACH} for name in ("KEPT", "NEW"))
        await at_spoke.insist("STREAM.CREATE.KEPT", kept)

        async def placed() -> str:
            return str((await at_spoke.info("KEPT"))["cluster"]["name"])

        await narrator.comes("a stream made in spoke-1 is placed in", placed, SPOKES[0])
        narrator.chapter("Their hub is down, too")
        await net.kill_cluster(HUB)
        stores = partial(at_spoke.stores, "KEPT", "meanwhile")
        await narrator.comes("a stream that is there in spoke-1 still stores", stores, True)
        made = await _is_granted(at_spoke.client, "$JS.API.STREAM.CREATE.NEW", new, deadline=2.0)
        narrator.show("a stream can be made there", made, False)


async def _deciding(client: Client) -> dict[str, int]:
    """Return the size of each meta group by its leader's cluster."""
    states = await gather(client, "JSZ", SERVER_COUNT, GATHER_BRIEFLY)
    return {
        each["server"]["cluster"]: each["data"]["meta_cluster"]["cluster_size"]
        for each in states
        if is_meta_leader(each)
    }


async def _mirror_and_gather(scene: Scene) -> None:
    topology, narrator, at_hub, at_first = scene.topology, scene.narrator, scene.at_hub, scene.at_first
    counts = partial(_counts_in, topology)
    narrator.chapter("Command and control: the hub's cnc, mirrored into each spoke")
    await topology.apply(COMMANDS)
    await _until_heard(at_hub, "cnc", HUB)
    await _publish(at_hub, "cnc")
    await narrator.comes("ten commands to the hub", lambda: at_hub.count("cnc"), COUNT)
    await topology.apply(CNC)
    claim = "each spoke has the hub's earlier commands, in a stream of one name in two domains"
    await narrator.comes(claim, counts, CNC_COUNTS)

    narrator.chapter("The same subject in both spokes: domains do not hold messages back")
    await topology.apply(SHARED_SUBJECT)

    async def stored() -> dict[str, int]:
        return {name: count for name, count in (await counts()).items() if name.endswith("/test")}

    for publisher in (at_first, at_hub):
        await _until_heard(publisher, "test", *SPOKES)
    await _publish(at_hub, "test")
    await narrator.comes("ten at the hub are stored in both", stored, {"spoke-1/test": 10, "spoke-2/test": 10})
    await _publish(at_first, "test")
    await narrator.comes("ten at spoke-1 too", stored, {"spoke-1/test": 20, "spoke-2/test": 20})
    await topology.apply(AGGREGATE)
    await narrator.comes("so the aggregate has each twice", lambda: at_hub.count("aggregate"), 40)

    narrator.chapter("spoke-1's stream, backed up in spoke-2: copies need not follow the links")
    await topology.apply(IN_TEST)
    await _publish(at_first, "test")
    more = {"spoke-1/test": 30, "spoke-2/test": 30, "hub/aggregate": 60, f"spoke-2/{BACKUP}": 30}
    await narrator.comes("ten more at spoke-1", counts, CNC_COUNTS | more)
    narrator.output(format_report(await topology.report(), narrator.room))


async def _cut_links(scene: Scene) -> None:
    net, narrator, at_hub = scene.net, scene.narrator, scene.at_hub
    narrator.chapter("Leaf nodes off the hub (their remotes are taken away): commands of that time are not lost")
    net.cut()

    async def reached() -> list[str]:
        return [spoke for spoke in SPOKES if not await _is_off(at_hub, spoke)]

    async def held() -> dict[str, int]:
        spokes = {SPOKES[0]: scene.at_first, SPOKES[1]: scene.at_second}
        return {HUB: await at_hub.count("cnc")} | {name: await at.count("recv-cnc") for name, at in spokes.items()}

    await narrator.comes("spokes that the hub reaches", reached, [])
    await _publish(at_hub, "cnc")
    await narrator.comes("ten more stay with the hub", held, {"hub": 20, "spoke-1": 10, "spoke-2": 10})
    net.restore()
    await narrator.comes("and come to the spokes when they are back", held, dict.fromkeys(CLUSTERS, 20))


async def _hub_down(scene: Scene) -> None:
    net, narrator, at_first = scene.net, scene.narrator, scene.at_first
    narrator.chapter("The hub is down: kill -9 of its three servers")
    await net.kill_cluster(HUB)
    narrator.show("a client of the hub gets an answer", await net.answers(net.test, HUB), False)
    await _publish(at_first, "test")
    await narrator.comes("spoke-1 still stores", lambda: at_first.count("test"), 4 * COUNT)
    narrator.show("spoke-2's backup has what it had", await scene.at_second.count(BACKUP), 3 * COUNT)
    seen: dict[str, dict[str, Any]] = {}

    async def silent() -> dict[str, bool]:
        """An origin that is there is heard every second: ``active`` (nanoseconds) grows, ``lag`` stays."""
        for (spoke, name), jetstream in zip(MIRRORS, (at_first, scene.at_second, scene.at_second), strict=True):
            seen[f"{spoke}/{name}"] = (await jetstream.info(name))["mirror"]
        return {name: mirror["active"] > 3 * 10**9 for name, mirror in seen.items()}

    mirrors = [f"{spoke}/{name}" for spoke, name in MIRRORS]
    await narrator.comes("copies have not heard from their origins for 3s", silent, dict.fromkeys(mirrors, True))
    for name, mirror in seen.items():
        narrator.sentence(f"{name}: active {format_duration(mirror['active'] // 1000)}, lag {mirror['lag']}")
    lags = {name: mirror["lag"] for name, mirror in seen.items()}
    narrator.show("their lag, as of the last message", lags, dict.fromkeys(mirrors, 0))
    narrator.sentence("its servers are started again; copies look for a silent origin every ten seconds")
    await net.start_cluster(HUB)


async def _catch_up(topology: Topology, narrator: Narrator) -> None:
    narrator.chapter("Back to the domains, whose hub was started again")
    of_test = {"spoke-1/test": 40, "spoke-2/test": 30, "hub/aggregate": HELD, f"spoke-2/{BACKUP}": 40}
    await narrator.comes(
        "the backup has caught up, and so has the aggregate; spoke-2 never heard the last ten",
        partial(_counts_in, topology),
        dict.fromkeys(CNC_COUNTS, 2 * COUNT) | of_test,
    )


async def _across_accounts(net: Network, topology: Topology) -> None:
    test, importer, narrator = net.test, Account("IMPORTER"), net.narrator
    narrator.chapter("Across accounts: IMPORTER, made while the servers run, mirrors TEST's aggregate")
    test.export("service", CONSUMERS)
    test.export("stream", "deliver.>")
    importer.take("service", test, CONSUMERS, "JS.test@hub.API.CONSUMER.>")
    importer.take("stream", test, "deliver.importer.>")
    await net.push("servers that took the accounts' tokens, without a restart", test, importer)
    topology.add(net.place_toml("IMPORTER", importer, HUB))
    await topology.apply(CROSS_ACCOUNT)
    async with net.connected(importer) as as_importer:
        await narrator.comes("crossacc has what aggregate has", lambda: as_importer.count("crossacc"), HELD)

        narrator.chapter("A durable consumer shared: TEST exports its next message and its acknowledgements alone")
        test.end_services()
        importer.end_services()
        for subject, own in ((f"$JS.hub.API.{NEXT}", f"from.test.API.{NEXT}"), (ACKS, "")):
            test.export("service", subject)
            importer.take("service", test, subject, own)
        await net.push("servers that took them again", test, importer)
        async with net.connected(test) as as_test:
            await as_test.insist(*explicit_consumer("aggregate", "DUR", deliver_policy="all"))
            first = {"subject": "test", "body": "hello world", "taken from": "test", "tries": 1}
            sequences = {"sequence of the consumer": 1, "sequence of the stream": 1, "pending": HELD - 1}
            await narrator.comes("the first of them", partial(_first, as_importer), first | sequences)
            read = [1]

            async def fetched() -> int:
                read.append(len(await _fetched(as_importer, HELD - sum(read))))
                return sum(read)

            async def left() -> list[int]:
                info = await as_test.request("CONSUMER.INFO.aggregate.DUR")
                return [info["num_pending"], info["num_ack_pending"]]

            await narrator.comes("IMPORTER reads by the API prefix from.test.API", fetched, HELD)
            await narrator.comes("left for it: pending, not acknowledged", left, [0, 0])
        asked = await _is_granted(as_importer.client, "from.test.API.CONSUMER.INFO.aggregate.DUR", None, deadline=5.0)
        narrator.show("it may ask about the consumer", asked, False)


async def _first(jetstream: JetStream) -> dict[str, str | int]:
    for message in await _fetched(jetstream, 1):
        metadata = message.metadata
        return {
            "subject": message.subject,
            "body": message.data.decode(),
            "taken from": (message.headers or {}).get("Nats-Stream-Source", "").partition(":")[0],
            "tries": metadata.num_delivered,
            "sequence of the consumer": metadata.sequence.consumer,
            "sequence of the stream": metadata.sequence.stream,
            "pending": metadata.num_pending,
        }
    return {}


async def _through_an_account(net: Network, topology: Topology) -> None:
    narrator, exchange = net.narrator, Account("EXCACC", jetstream=False)
    hub, leaf = Account("HUBACC"), Account("LEAFACC")
    narrator.chapter("Through an account: one LEAFACC for all spokes, which EXCACC alone connects with HUBACC")
    await net.push("servers that took three accounts, not connected yet", exchange, hub, leaf)
    net.join(exchange)
    for exporter, domain in ((hub, HUB), *((leaf, spoke) for spoke in SPOKES)):
        name = f"{exporter.name.lower()}.{domain}"
        exporter.export("service", f"$JS.{domain}.API.>")
        exchange.take("service", exporter, f"$JS.{domain}.API.>", f"$JS.{name}.API.>")
        exporter.export("stream", f"deliver.{name}.>")
        exchange.take("stream", exporter, f"deliver.{name}.>")
    exchange.export("service", "$JS.>")
    exchange.export("stream", "deliver.>")
    hub.take("service", exchange, "$JS.leafacc.>")
    hub.take("stream", exchange, "deliver.leafacc.>")
    await net.push("servers that took them, connected", exchange, hub, leaf)
    topology.add(net.place_toml("HUBACC", hub, HUB))
    for spoke in SPOKES:
        topology.add(net.place_toml(f"LEAFACC-{spoke}", leaf, spoke))
    async with net.connected(hub) as as_hub:

        async def reached() -> list[str]:
            return [spoke for spoke in SPOKES if await as_hub.reaches(f"leafacc.{spoke}")]

        note = "servers are restarted for another leaf node remote. Today they take it while they run (SIGHUP)"
        await narrator.comes("HUBACC reaches LEAFACC's JetStream in", reached, list(SPOKES), note)
        placed = {}
        for spoke in SPOKES:
            config = {"name": "test", "subjects": ["test"], "num_replicas": 3}
            made = await insist(as_hub.client, f"$JS.leafacc.{spoke}.API.STREAM.CREATE.test", config)
            placed[f"leafacc.{spoke}"] = made["cluster"]["name"]
        wanted = {f"leafacc.{spoke}": spoke for spoke in SPOKES}
        narrator.show("HUBACC makes a stream test by each domain's name, in", placed, wanted)
    await _gather_through(net, topology, leaf)


async def _gather_through(net: Network, topology: Topology, leaf: Account) -> None:
    narrator = net.narrator
    await topology.apply(ISOLATED)

    async def held() -> dict[str, int]:
        return {name: count for name, count in (await _counts_in(topology)).items() if "ACC" in name}

    for spoke in SPOKES:
        async with net.connected(leaf, spoke) as as_leaf:
            await _until_heard(as_leaf, "test", spoke)
            await _publish(as_leaf, "test")
    isolated = {f"LEAFACC-{spoke}/test": COUNT for spoke in SPOKES}
    await narrator.comes("ten at each spoke stay there", held, isolated)
    async with net.connected(leaf) as as_leaf:
        await _publish(as_leaf, "test")
    await narrator.comes("ten of LEAFACC at the hub reach neither", held, isolated)
    await topology.apply(THROUGH_ACCOUNTS)
    await narrator.comes("HUBACC's aggregate has the spokes' twenty", held, isolated | {"HUBACC/aggregate": 2 * COUNT})


async def _draw(net: Network, topology: Topology, directory: Path) -> None:
    narrator = net.narrator
    narrator.chapter("The reports and the map: muster-aggregator report --dot replication.dot")
    reports: list[StreamReport] = []

    async def whole() -> list[str]:
        reports.append(await topology.report())
        return [row.stream for row in reports[-1].replication if row.behind == 0 and not row.error]

    copies = ["recv-cnc", "recv-cnc", "aggregate", "aggregate", BACKUP, "aggregate", "aggregate", "crossacc"]
    await narrator.comes("copies that have all of their origins", whole, copies)
    narrator.output(format_report(reports[-1], narrator.room))
    if not all(row.healthy for row in reports[-1].replication):
        narrator.sentence("after the hub was down, a mirror that has nothing to take may not be heard for a while")
    graph = replication_graph(reports[-1])
    (directory / "replication.dot").write_text(graph)
    narrator.show(
        "its arrows",
        _arrows_in(graph),
        [
            "LEAFACC-spoke-1/test -> HUBACC/aggregate",
            "LEAFACC-spoke-2/test -> HUBACC/aggregate",
            "hub/aggregate -> IMPORTER/crossacc",
            "hub/cnc -> spoke-1/recv-cnc",
            "hub/cnc -> spoke-2/recv-cnc",
            "spoke-1/test -> hub/aggregate",
            f"spoke-1/test -> spoke-2/{BACKUP}",
            "spoke-2/test -> hub/aggregate",
        ],
    )
    through = sorted({api for api in re.findall(r"\\n(\S+API)\\n", graph) if "acc" in api or "@" in api})
    apis = ["$JS.leafacc.spoke-1.API", "$JS.leafacc.spoke-2.API", "JS.test@hub.API"]
    narrator.show("APIs of other accounts on them", through, apis)

    narrator.chapter("A map of the accounts, too: their exports and imports, and the leaf nodes' joins (accounts.dot)")
    graph = account_graph(net.accounts.values(), net.joined)
    (directory / "accounts.dot").write_text(graph)
    arrows = [
        *("EXCACC -> HUBACC", "HUBACC -> EXCACC", "LEAFACC -> EXCACC"),
        *("TEST -> IMPORTER", "spoke-1 -> hub", "spoke-2 -> hub"),
    ]
    narrator.show("its arrows", _arrows_in(graph), arrows)
    narrator.show("the leaf nodes join", [each.name for each in net.joined], ["SYS", "TEST", "EXCACC"])
    assert r'"EXCACC" [shape=box, label="EXCACC\nno JetStream\n' in graph
    assert r'"EXCACC" -> "HUBACC" [label="service $JS.leafacc.>\nstream deliver.leafacc.>"];' in graph
    assert r'"spoke-2" -> "hub" [dir=both, style=dashed, label="leaf nodes join\nSYS\nTEST\nEXCACC"];' in graph


def _arrows_in(graph: str) -> list[str]:
    return sorted(" -> ".join(ends) for ends in re.findall(r'^  "(\S+)" -> "(\S+)"', graph, re.MULTILINE))


async def _counts_in(topology: Topology) -> dict[str, int]:
    """Count the messages of each existing stream, by place and name."""
    return {f"{row.place}/{row.name}": row.messages for row in (await topology.report()).streams if not row.error}


async def _publish(jetstream: JetStream, subject: str) -> None:
    """Publish ten messages as ``nats pub`` does, without an acknowledgement."""
    for _ in range(COUNT):
        await jetstream.client.publish(subject, b"hello world")
    await jetstream.client.flush()


async def _until_heard(publisher: JetStream, name: str, *domains: str) -> None:
    """Publish until the stream of each domain has stored one message, then purge: interest takes time to spread.

    Stream and subject have one name. Raise RequestFailed after ``DEADLINE``.
    """
    ends_at = time.monotonic() + DEADLINE
    while not await _all_store(publisher, name, set(domains)):
        if time.monotonic() > ends_at:
            raise RequestFailed(f"{name}: not stored in {', '.join(domains)} within {DEADLINE:g} s")
    for domain in domains:
        subject = f"{api_prefix(domain)}.STREAM.PURGE.{name}"
        await request_json(publisher.client, subject, None, dict[str, Any], deadline=REQUEST_DEADLINE)


async def _all_store(publisher: JetStream, subject: str, waited_for: set[str]) -> bool:
    """Publish one message; return True if each domain acknowledges it, and so has stored all earlier ones."""
    inbox = publisher.client.new_inbox()
    answers = await publisher.client.subscribe(inbox)
    try:
        await publisher.client.publish(subject, b"", reply=inbox)
        async with asyncio.timeout(ANSWERED_WITHIN):
            while waited_for:
                answer = await answers.next_msg(timeout=ANSWERED_WITHIN)
                # An answer without a body means that there is no stream.
                waited_for.discard(msgspec.json.decode(answer.data or b"{}").get("domain", ""))
    except TimeoutError:
        return False
    finally:
        await answers.unsubscribe()
    return True


async def _is_off(jetstream: JetStream, domain: str) -> bool:
    """Return True if the server knows that nothing answers there; a busy machine may answer too late, too."""
    subject = f"{api_prefix(domain)}.INFO"
    try:
        await request_json(jetstream.client, subject, None, dict[str, Any], deadline=ANSWERED_WITHIN)
    except NoApi:
        return True
    except RequestFailed:
        return False
    return False


async def _is_granted(client: Client, subject: str, body: dict[str, Any] | None, *, deadline: float) -> bool:
    try:
        await request_json(client, subject, body, dict[str, Any], deadline=deadline)
    except (RequestFailed, ApiError):
        return False
    return True


async def _fetched(jetstream: JetStream, most: int) -> list[Msg]:
    """Fetch and acknowledge messages of the other account's consumer."""
    subscription = await jetstream.client.jetstream(prefix="from.test.API").pull_subscribe_bind("DUR", "aggregate")
    try:
        messages = await subscription.fetch(most, timeout=REQUEST_DEADLINE)
    except (nats.errors.TimeoutError, nats.js.errors.ServiceUnavailableError):
        # The pushed tokens have not reached the consumer's leader yet, or there is none.
        return []
    finally:
        await subscription.unsubscribe()
    for message in messages:
        await message.ack()
    return messages
