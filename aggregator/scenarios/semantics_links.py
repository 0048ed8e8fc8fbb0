"""An origin that is reachable only now and then: copies across a leaf link that is cut."""

from aggregator.scenarios.semantics_sources import ORIGIN
from aggregator.scenarios.stage import JetStream, Topology
from aggregator.scenarios.telling import Telling
from shared.embedded_link import EmbeddedLink

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


async def play(topology: Topology, at_hub: JetStream, at_edge: JetStream, link: EmbeddedLink, telling: Telling) -> None:
    """Copy both ways, cut the link, write on, and let it come back."""
    telling.chapter("Copies across a leaf link, by domain: one up, one down")
    await topology.apply(ORIGIN + STREAMS)
    await at_edge.publish("edge.data", "1", "2")
    await telling.comes("the hub has what the edge has", lambda: at_hub.bodies("EDGE_COPY"), ["1", "2"])
    origin = await at_hub.messages("ORIGIN")
    await telling.comes("the edge has what the hub has", at_edge.is_now("AT_EDGE", origin), True)
    reached = {f"{row.stream} reads {row.api}": row.behind for row in (await topology.report()).replication}
    telling.show(
        "through the domains' APIs; behind",
        reached,
        {"EDGE_COPY reads $JS.edge.API": 0, "AT_EDGE reads $JS.hub.API": 0},
    )

    telling.chapter("The link is cut")
    await link.cut()
    await at_edge.publish("edge.data", "3", "4")
    await at_hub.publish("o.a", "meanwhile")

    telling.show(
        "the edge's mirror answers direct gets for the hub's stream",
        await at_edge.direct_get("ORIGIN", 1),
        "1",
    )
    telling.show("the hub has", await at_hub.bodies("EDGE_COPY"), ["1", "2"])
    telling.show("nothing reaches the edge", await at_hub.reaches("edge"), False)

    telling.chapter("The link is back")
    await link.restore()
    await telling.comes("the hub catches up", lambda: at_hub.bodies("EDGE_COPY"), ["1", "2", "3", "4"])
    await telling.comes("the edge catches up", lambda: at_edge.count("AT_EDGE"), len(origin) + 1)

    origin = await at_hub.messages("ORIGIN")
    telling.show("sequences and times are still the origin's", await at_edge.messages("AT_EDGE") == origin, True)
