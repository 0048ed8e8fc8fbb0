"""An origin that is reachable only now and then: copies across a leaf link that is cut."""

import time
from functools import partial

from aggregator.scenarios.narrator import Narrator
from aggregator.scenarios.semantics.sources import ORIGIN
from aggregator.scenarios.stage import JetStream, Topology, explicit_consumer
from shared.embedded.link import EmbeddedLink

STREAMS = """
[[stream]]
name = "EDGE"
domain = "edge"
subjects = ["edge.data"]

[[stream]]
name = "EDGE_COPY"
[[stream.source]]
name = "EDGE"
domain = "edge"

[[stream]]
name = "AT_EDGE"
domain = "edge"
mirror_direct = true
[stream.mirror]
name = "ORIGIN"
domain = "hub"
"""


async def play(
    topology: Topology, at_hub: JetStream, at_edge: JetStream, link: EmbeddedLink, narrator: Narrator
) -> None:
    """Copy both ways, cut the link, write on, and let it come back."""
    narrator.chapter("Copies across a leaf link, by domain: one up, one down")
    await topology.apply(ORIGIN + STREAMS)
    await at_edge.publish("edge.data", "1", "2")
    await narrator.comes("the hub has what the edge has", lambda: at_hub.bodies("EDGE_COPY"), ["1", "2"])
    origin = await at_hub.messages("ORIGIN")
    await narrator.comes("the edge has what the hub has", partial(at_edge.is_now, "AT_EDGE", origin), True)
    reached = {f"{row.stream} reads {row.api}": row.behind for row in (await topology.report()).replication}
    narrator.show(
        "through the domains' APIs; behind",
        reached,
        {"EDGE_COPY reads $JS.edge.API": 0, "AT_EDGE reads $JS.hub.API": 0},
    )

    narrator.chapter("The link is cut; at the edge a message is deleted, and a worker takes from a work queue")
    await link.cut()
    await at_edge.publish("edge.data", "3", "4")
    await at_hub.publish("o.a", "meanwhile")

    narrator.show(
        "the edge's mirror answers direct gets for the hub's stream",
        await at_edge.direct_get("ORIGIN", 1),
        "1",
    )
    narrator.show("the hub has", await at_hub.bodies("EDGE_COPY"), ["1", "2"])
    narrator.show("the hub reaches the edge's JetStream now", await at_hub.reaches("edge"), False)
    await at_edge.publish("edge.data", "deleted at once")
    await at_edge.request("STREAM.MSG.DELETE.EDGE", {"seq": 5})
    await _work(at_edge, narrator)

    narrator.chapter("The link is back")
    await link.restore()
    back_at = time.monotonic()
    await at_edge.publish("edge.data", "6")
    await narrator.comes(
        "the hub catches up, without what was deleted meanwhile",
        lambda: at_hub.bodies("EDGE_COPY"),
        ["1", "2", "3", "4", "6"],
        note="a copy of what is deleted soon may be inconsistent",
    )
    narrator.sentence(f"after {time.monotonic() - back_at:.1f} s: a durable source")
    await narrator.comes(
        "the copy of the work queue has what the worker took, too",
        lambda: at_hub.bodies("EDGE_DONE"),
        ["1", "2", "3", "4"],
    )
    narrator.sentence(f"after {time.monotonic() - back_at:.1f} s: a plain source")
    await narrator.comes("the edge catches up", lambda: at_edge.count("AT_EDGE"), len(origin) + 1)

    origin = await at_hub.messages("ORIGIN")
    narrator.show("sequences and times are still the origin's", await at_edge.messages("AT_EDGE") == origin, True)


async def _work(at_edge: JetStream, narrator: Narrator) -> None:
    await at_edge.publish("edge.work", "3", "4")
    await at_edge.request(*explicit_consumer("EDGE_WORK", "worker"))
    taken = await at_edge.fetch("EDGE_WORK", "worker", 2)
    narrator.show("a worker at the edge takes from the work queue", taken, ["3", "4"])
    narrator.show(
        "which keeps for the copy",
        await at_edge.bodies("EDGE_WORK"),
        ["3", "4"],
        note="meanwhile other clients may take and remove messages. Today they stay for the copy, 90 s at least",
    )
