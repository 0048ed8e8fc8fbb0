"""Origins whose messages go when they are read: work queues and interest. ``plan`` refuses what cannot be relied on."""

from aggregator.scenarios.narrator import Narrator
from aggregator.scenarios.stage import ACCEPTED, JetStream, Topology, explicit_consumer

QUEUE = '[[stream]]\nname = "WORK"\nsubjects = ["work"]\nretention = "workqueue"\n'
DONE = '[[stream]]\nname = "DONE"\n[[stream.source]]\nname = "WORK"\nsourcing = "plain"\n'
EDGE_QUEUE = '[[stream]]\nname = "EDGE_WORK"\ndomain = "edge"\nsubjects = ["edge.work"]\nretention = "workqueue"\n'
EDGE_DONE = (
    '[[stream]]\nname = "EDGE_DONE"\n[[stream.source]]\nname = "EDGE_WORK"\nsourcing = "plain"\ndomain = "edge"\n'
)
INTEREST = '[[stream]]\nname = "INTEREST"\nsubjects = ["interest"]\nretention = "interest"\n'
KEPT = '[[stream]]\nname = "KEPT"\n[[stream.source]]\nname = "INTEREST"\nsourcing = "plain"\n'
ALLOW = "allow = true\n"

LATE_QUEUE = '[[stream]]\nname = "LATE_WORK"\nsubjects = ["late"]\nretention = "workqueue"\n'
LATE_DONE = '[[stream]]\nname = "LATE_DONE"\n[[stream.source]]\nname = "LATE_WORK"\nsourcing = "plain"\n'


async def play(topology: Topology, at_hub: JetStream, at_edge: JetStream, narrator: Narrator) -> None:
    """Copy such origins where that works, and where NATS leaves it undefined."""
    narrator.chapter("A work queue as origin, in one domain")
    narrator.show("copies that plan refuses", len((await topology.apply(QUEUE + DONE)).refused), 0)
    await at_hub.publish("work", "1", "2", "3")
    await narrator.comes("the copy has the work", lambda: at_hub.bodies("DONE"), ["1", "2", "3"])
    await narrator.comes("the source removes it from the queue, which holds", lambda: at_hub.count("WORK"), 0)
    narrator.show(
        "a local consumer beside the source",
        await at_hub.answer(*explicit_consumer("WORK", "worker")),
        ACCEPTED,
        note="local clients that try to create further consumers will fail",
    )
    await at_hub.publish("work", "4")
    await narrator.comes("the copy goes on", lambda: at_hub.bodies("DONE"), ["1", "2", "3", "4"])
    narrator.show("and the local consumer gets it too", await at_hub.fetch("WORK", "worker", 1), ["4"])
    await _consumer_first(topology, at_hub, narrator)

    narrator.chapter("A work queue behind a leaf link")
    todo = await topology.plan(EDGE_QUEUE + EDGE_DONE)
    for reason in todo.refused:
        narrator.sentence(reason)
    narrator.show("of a leaf's work queue, copies that plan refuses", len(todo.refused), 1)
    narrator.show(
        "told allow = true, it refuses (copies)", len((await topology.apply(EDGE_QUEUE + EDGE_DONE + ALLOW)).refused), 0
    )
    await at_edge.publish("edge.work", "1", "2")
    await narrator.comes("while the link is up, the copy has the work", lambda: at_hub.bodies("EDGE_DONE"), ["1", "2"])
    await narrator.comes("and the queue, which holds then", lambda: at_edge.count("EDGE_WORK"), 0)

    narrator.chapter("An interest stream as origin")
    await topology.apply(INTEREST)
    await at_hub.publish("interest", "before")
    narrator.show("messages kept of what comes while nobody reads", await at_hub.count("INTEREST"), 0)
    todo = await topology.plan(INTEREST + KEPT)
    for reason in todo.refused:
        narrator.sentence(reason)
    narrator.show("of an interest stream, copies that plan refuses", len(todo.refused), 1)
    await topology.apply(INTEREST + KEPT + ALLOW)
    await narrator.comes("told allow = true, the copy hears from it", topology.all_copies_hear, True)
    await at_hub.publish("interest", "after")
    await narrator.comes(
        "the copy has what came while it was there", lambda: at_hub.bodies("KEPT"), ["after"], note="undefined"
    )


async def _consumer_first(topology: Topology, at_hub: JetStream, narrator: Narrator) -> None:
    await topology.apply(LATE_QUEUE)
    await at_hub.request(*explicit_consumer("LATE_WORK", "worker"))
    await at_hub.publish("late", "1", "2")
    await topology.apply(LATE_QUEUE + LATE_DONE)
    await narrator.comes(
        "a source of a queue that has a local consumer already takes",
        lambda: at_hub.bodies("LATE_DONE"),
        ["1", "2"],
        note="a source cannot be created where there is a local consumer",
    )
