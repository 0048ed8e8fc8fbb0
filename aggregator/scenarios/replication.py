"""Data replication: two short-lived streams, an archive that gathers both, and a report that is its copy.

Source: "Data Replication" of the NATS documentation.
"""

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from aggregator.scenarios.stage import JetStream, Topology, connected
from aggregator.scenarios.telling import Telling
from aggregator.topology.graph import replication_graph
from aggregator.topology.report import Report, format_report
from shared.embedded_cluster import EmbeddedCluster, Member

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


async def play(directory: Path, telling: Telling) -> None:
    """Play it in ``directory``: topology.toml, replication.json and replication.dot stay there."""
    telling.chapter("A cluster of three servers")
    async with EmbeddedCluster("c2", directory, [Member(f"n{number}-c2") for number in (1, 2, 3)]) as cluster:
        servers = ", ".join(f'"{url}"' for url in cluster.urls)
        topology = Topology(directory / "topology.toml", f"[hub]\nservers = [{servers}]\n", telling.output)
        async with connected(cluster.urls[0]) as jetstream:
            await _set_up(topology, telling)
            await _replicate(jetstream, topology, telling)
            await _write_directly(jetstream, telling)
            await _forget(jetstream, telling)
            await _draw(topology, directory / "replication.dot", telling)


async def _set_up(topology: Topology, telling: Telling) -> None:
    telling.chapter("Four streams are laid out: muster-aggregator apply")
    todo = await topology.apply(STREAMS)
    made = [change.stream for change in todo.changes if not change.consumer]
    telling.show("origins are made before their copies", made, list(_NAMES))
    telling.show("doing it again changes", len((await topology.apply()).changes), 0)

    async def streams() -> dict[str, Any]:
        return {row.name: (row.kind, row.storage, len(row.servers)) for row in (await topology.report()).streams}

    await telling.comes(
        "each has its kind, storage and servers",
        streams,
        {
            "ORDERS": ("origin", "memory", 3),
            "RETURNS": ("origin", "memory", 3),
            "ARCHIVE": ("sourced", "file", 3),
            "REPORT": ("mirror", "file", 1),
        },
    )

    async def heard() -> list[bool]:
        return [row.healthy for row in (await topology.report()).replication]

    await telling.comes(
        "each copy has heard from its origin, before any message",
        heard,
        [True, True, True],
        note='"never", until there is a message. Today idle heartbeats count',
    )


async def _replicate(jetstream: JetStream, topology: Topology, telling: Telling) -> None:
    telling.chapter(f"{COUNT} messages into each of the two")
    for number in range(COUNT):
        await jetstream.publish("ORDERS.new", f"ORDER {number}")
        await jetstream.publish("RETURNS.new", f"RETURN {number}")

    async def counts() -> dict[str, int]:
        return {row.name: row.messages for row in (await topology.report()).streams}

    await telling.comes(
        "they are replicated", counts, {"ORDERS": COUNT, "RETURNS": COUNT, "ARCHIVE": 2 * COUNT, "REPORT": 2 * COUNT}
    )

    async def behind() -> dict[str, Any]:
        return _copies(await topology.report())

    await telling.comes(
        "the replication report: kind, API, lag, behind, error",
        behind,
        {
            "ARCHIVE of ORDERS": ("durable source", "$JS.API", 0, 0, ""),
            "ARCHIVE of RETURNS": ("durable source", "$JS.API", 0, 0, ""),
            "REPORT of ARCHIVE": ("mirror", "$JS.API", 0, 0, ""),
        },
    )
    archived = await jetstream.messages("ARCHIVE")
    for name in ("ORDERS", "RETURNS"):
        origin = [message["data"] for message in await jetstream.messages(name)]
        taken = [message["data"] for message in archived if message["subject"] == f"{name}.new"]
        telling.show(f"ARCHIVE has {name} whole and in order", taken == origin, True)
    times = [message["time"] for message in archived]
    telling.show(
        "ARCHIVE's times rise",
        times == sorted(times),
        True,
        note="older and newer times are mixed. Today a source stamps what it takes with the time of its arrival",
    )
    telling.show("REPORT is ARCHIVE, with sequences and times", await jetstream.messages("REPORT") == archived, True)


async def _write_directly(jetstream: JetStream, telling: Telling) -> None:
    telling.chapter("Direct writes")
    await jetstream.publish("ARCHIVE", "written directly")
    await telling.comes("ARCHIVE takes them", lambda: jetstream.count("ARCHIVE"), 2 * COUNT + 1)
    await telling.comes("and REPORT has them from it", lambda: jetstream.count("REPORT"), 2 * COUNT + 1)
    telling.show("REPORT takes none of its own", await jetstream.takes("REPORT"), False)
    config = (await jetstream.info("REPORT"))["config"]
    asked = config | {"subjects": ["REPORT"]}
    telling.show(
        "the server gives a mirror no subjects (error)", await jetstream.refusal("STREAM.UPDATE.REPORT", asked), 10034
    )
    telling.show("REPORT keeps for days", config["max_age"] // (86_400 * 10**9), 30)


async def _forget(jetstream: JetStream, telling: Telling) -> None:
    telling.chapter("The two are short-lived: they are emptied")
    for name in ("ORDERS", "RETURNS"):
        await jetstream.request(f"STREAM.PURGE.{name}")
    await jetstream.publish("ORDERS.new", "after")
    await telling.comes("ARCHIVE goes on behind it", lambda: jetstream.count("ARCHIVE"), 2 * COUNT + 2)
    telling.show("ORDERS holds", await jetstream.count("ORDERS"), 1)
    await telling.comes("REPORT holds", lambda: jetstream.count("REPORT"), 2 * COUNT + 2)


async def _draw(topology: Topology, path: Path, telling: Telling) -> None:
    telling.chapter(f"The reports, as JSON too, and the map: muster-aggregator report [--json] --dot {path.name}")
    report = await topology.report()
    telling.output(format_report(report))
    as_json = msgspec.json.format(msgspec.json.encode(report))
    await asyncio.to_thread(path.with_suffix(".json").write_bytes, as_json)
    graph = replication_graph(report)
    await asyncio.to_thread(path.write_text, graph, encoding="utf-8")

    arrows = [line.split(" [")[0].strip() for line in graph.splitlines() if "->" in line]
    telling.show(
        "an arrow from each origin to its copy",
        arrows,
        ['"hub/ORDERS" -> "hub/ARCHIVE"', '"hub/RETURNS" -> "hub/ARCHIVE"', '"hub/ARCHIVE" -> "hub/REPORT"'],
    )


def _copies(report: Report) -> dict[str, Any]:
    return {
        f"{row.stream} of {row.source}": (row.kind, row.api, row.lag, row.behind, row.error)
        for row in report.replication
    }


_NAMES = ("ORDERS", "RETURNS", "ARCHIVE", "REPORT")
