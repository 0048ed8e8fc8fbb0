"""Data replication: two short-lived streams, an archive that gathers both, and a report that mirrors the archive.

Source: "Data Replication" of the NATS documentation.
"""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from aggregator.topology.report.graph import replication_graph
from aggregator.topology.report.tables import SILENT_AFTER, ReplicationRow
from aggregator.topology.report.text import format_report
from shared.instants import SECOND, format_duration
from tests.scenarios.narrator import Narrator
from tests.scenarios.stage import JetStream, Topology, connected
from tests.support.nats.embedded_cluster import EmbeddedCluster, Member

STREAMS = """
[[stream]]
name = "ORDERS"
subjects = ["ORDERS.*"]
storage = "memory"
replicas = 3
max_age = "1h"

[[stream]]
name = "RETURNS"
subjects = ["RETURNS.*"]
storage = "memory"
replicas = 3
max_age = "1h"

[[stream]]
name = "ARCHIVE"
subjects = ["ARCHIVE"]
replicas = 3
[[stream.source]]
name = "ORDERS"
[[stream.source]]
name = "RETURNS"

[[stream]]
name = "REPORT"
max_age = "30d"
[stream.mirror]
name = "ARCHIVE"
"""
COUNT = 100
NAMES = ("ORDERS", "RETURNS", "ARCHIVE", "REPORT")
COPIES = ("ARCHIVE of ORDERS", "ARCHIVE of RETURNS", "REPORT of ARCHIVE")


async def test_orders_and_returns_reach_archive_and_report(tmp_path: Path, narrator: Narrator) -> None:
    narrator.chapter("A cluster of three servers")
    async with EmbeddedCluster("c2", tmp_path, [Member(f"n{number}-c2") for number in (1, 2, 3)]) as cluster:
        servers = ", ".join(f'"{url}"' for url in cluster.urls)
        topology = Topology(tmp_path / "topology.toml", f"[hub]\nservers = [{servers}]\n", narrator.sentence)
        async with connected(*cluster.urls) as jetstream:
            await _set_up(jetstream, topology, narrator)
            await _replicate(jetstream, topology, narrator)
            await _draw(topology, tmp_path / "replication.dot", narrator)
            await _write_directly(jetstream, narrator)
            await _expire(jetstream, topology, narrator)
            await _lose_a_server(cluster, jetstream, narrator)
            await narrator.stay(topology.report_command, f"nats --server {cluster.urls[0]} stream report")


async def _set_up(jetstream: JetStream, topology: Topology, narrator: Narrator) -> None:
    narrator.chapter("Four streams are laid out: muster-aggregator apply")
    todo = await topology.apply(STREAMS)
    made = [change.stream for change in todo.changes if not change.consumer]
    narrator.show("origins are made before their copies", made, list(NAMES))
    narrator.show("doing it again changes", len((await topology.apply()).changes), 0)

    async def streams() -> dict[str, Any]:
        return {row.name: (row.kind, row.storage, len(row.servers)) for row in (await topology.report()).streams}

    origin, archive, report = ("origin", "memory", 3), ("sourced", "file", 3), ("mirror", "file", 1)
    wanted = {"ORDERS": origin, "RETURNS": origin, "ARCHIVE": archive, "REPORT": report}
    await narrator.comes("each has its kind, storage and servers", streams, wanted)
    configs = {name: (await jetstream.info(name))["config"] for name in NAMES}
    ages = {name: config["max_age"] * SECOND // 10**9 for name, config in configs.items()}
    narrator.show(
        "each keeps its messages for",
        {name: format_duration(age) if age else "ever" for name, age in ages.items()},
        {"ORDERS": "1h", "RETURNS": "1h", "ARCHIVE": "ever", "REPORT": "30d"},
    )
    narrator.show(
        "each listens on",
        {name: config.get("subjects") or [] for name, config in configs.items()},
        {"ORDERS": ["ORDERS.*"], "RETURNS": ["RETURNS.*"], "ARCHIVE": ["ARCHIVE"], "REPORT": []},
    )
    await narrator.comes(
        f"each copy has heard from its origin within {format_duration(SILENT_AFTER)}, before any message",
        partial(_active, topology),
        dict.fromkeys(COPIES, True),
        note='active "never", until there is a message. Today idle heartbeats count',
    )


async def _replicate(jetstream: JetStream, topology: Topology, narrator: Narrator) -> None:
    narrator.chapter(f"{COUNT} messages into each of the two")
    for number in range(COUNT):
        await jetstream.publish("ORDERS.new", f"ORDER {number}")
        await jetstream.publish("RETURNS.new", f"RETURN {number}")

    async def counts() -> dict[str, int]:
        return {row.name: row.messages for row in (await topology.report()).streams}

    async def copies() -> dict[str, Any]:
        return {
            name: (row.kind, row.api, row.lag, row.behind, row.error) for name, row in (await _rows(topology)).items()
        }

    held = {"ORDERS": COUNT, "RETURNS": COUNT, "ARCHIVE": 2 * COUNT, "REPORT": 2 * COUNT}
    await narrator.comes("they are replicated", counts, held)
    kinds = zip(COPIES, ("durable source", "durable source", "mirror"), strict=True)
    wanted = {name: (kind, "$JS.API", 0, 0, "") for name, kind in kinds}
    await narrator.comes("the replication report: kind, API, lag, behind, error", copies, wanted)
    await narrator.comes("and all are active", partial(_active, topology), dict.fromkeys(COPIES, True))
    archived = await jetstream.messages("ARCHIVE")
    for name in ("ORDERS", "RETURNS"):
        origin = [message["data"] for message in await jetstream.messages(name)]
        taken = [message["data"] for message in archived if message["subject"] == f"{name}.new"]
        narrator.show(f"ARCHIVE has {name} whole and in order", taken == origin, True)
    times = [message["time"] for message in archived]
    narrator.show(
        "ARCHIVE's times rise",
        times == sorted(times),
        True,
        note="older and newer times are mixed. Today a source stamps each message with the time of its arrival",
    )
    narrator.show("REPORT is ARCHIVE, with sequences and times", await jetstream.messages("REPORT") == archived, True)


async def _draw(topology: Topology, path: Path, narrator: Narrator) -> None:
    narrator.chapter(f"The reports, as JSON too, and the map: muster-aggregator report [--json] --dot {path.name}")
    report = await topology.report()
    narrator.output(format_report(report, narrator.room))
    as_json = msgspec.json.format(msgspec.json.encode(report))
    await asyncio.to_thread(path.with_suffix(".json").write_bytes, as_json)
    graph = replication_graph(report)
    await asyncio.to_thread(path.write_text, graph, encoding="utf-8")
    arrows = [line.split("\\n")[0].replace('"', "").strip() for line in graph.splitlines() if "->" in line]
    narrator.show(
        "an arrow from each origin to its copy",
        arrows,
        [
            "hub/ORDERS -> hub/ARCHIVE [label=durable source",
            "hub/RETURNS -> hub/ARCHIVE [label=durable source",
            "hub/ARCHIVE -> hub/REPORT [label=mirror",
        ],
    )


async def _write_directly(jetstream: JetStream, narrator: Narrator) -> None:
    narrator.chapter("Direct writes: ARCHIVE takes them, REPORT refuses them")
    await jetstream.publish("ARCHIVE", "written directly")
    await narrator.comes("ARCHIVE holds", lambda: jetstream.count("ARCHIVE"), 2 * COUNT + 1)
    await narrator.comes("and REPORT, which has it from there", lambda: jetstream.count("REPORT"), 2 * COUNT + 1)
    narrator.show("a message published to REPORT is stored", await jetstream.takes("REPORT"), False)
    listening = (await jetstream.info("REPORT"))["config"] | {"subjects": ["REPORT"]}
    refused = await jetstream.answer("STREAM.UPDATE.REPORT", listening)
    narrator.show("a mirror that listens, too", refused, "error 10034")
    gathering = {"name": "BOTH", "mirror": {"name": "ARCHIVE"}, "sources": [{"name": "ORDERS"}]}
    refused = await jetstream.answer("STREAM.CREATE.BOTH", gathering)
    narrator.show("a mirror that has a source, too", refused, "error 10031")


async def _expire(jetstream: JetStream, topology: Topology, narrator: Narrator) -> None:
    narrator.chapter("Short-lived: ORDERS and RETURNS now keep for a second")
    await topology.apply(STREAMS.replace('max_age = "1h"', 'max_age = "1s"\nduplicate_window = "1s"'))

    async def counts() -> dict[str, int]:
        return {name: await jetstream.count(name) for name in NAMES}

    left = {"ORDERS": 0, "RETURNS": 0, "ARCHIVE": 2 * COUNT + 1, "REPORT": 2 * COUNT + 1}
    await narrator.comes("their messages are gone, and the copies are not", counts, left)
    await topology.apply(STREAMS)
    await jetstream.publish("ORDERS.new", "after")
    more = {"ORDERS": 1, "RETURNS": 0, "ARCHIVE": 2 * COUNT + 2, "REPORT": 2 * COUNT + 2}
    await narrator.comes("copying continues behind the gap", counts, more)


async def _lose_a_server(cluster: EmbeddedCluster, jetstream: JetStream, narrator: Narrator) -> None:
    # REPORT looks for ARCHIVE's new leader only after ten to twenty seconds.
    spared = [(await jetstream.info(name))["cluster"]["leader"] for name in ("ARCHIVE", "REPORT")]
    lost = next(name for name in cluster.servers if name not in spared)
    narrator.chapter(f"One of three servers is down: kill -9 of {lost}, which neither leads ARCHIVE nor holds REPORT")
    await cluster.servers[lost].kill()
    await narrator.comes("ORDERS takes writes", lambda: jetstream.stores("ORDERS.new", "meanwhile"), True)

    async def have_it() -> list[str]:
        return [name for name in NAMES if await jetstream.last_body(name, "ORDERS.new") == "meanwhile"]

    await narrator.comes("and it comes through", have_it, ["ORDERS", "ARCHIVE", "REPORT"])
    await cluster.start(lost)


async def _rows(topology: Topology) -> dict[str, ReplicationRow]:
    return {f"{row.stream} of {row.source}": row for row in (await topology.report()).replication}


async def _active(topology: Topology) -> dict[str, bool]:
    return {name: 0 <= row.silent_us <= SILENT_AFTER for name, row in (await _rows(topology)).items()}
