"""Durable sources, which the documentation does not know yet: they keep their place at the origin, and show there."""

from aggregator.scenarios.narrator import Narrator
from aggregator.scenarios.stage import JetStream, Topology, explicit_consumer

_ORIGIN = '[[stream]]\nname = "SAFE_ORIGIN"\nsubjects = ["safe.*"]\n'
_COPY = """
[[stream]]
name = "SAFE"
[[stream.source]]
name = "SAFE_ORIGIN"
start_sequence = 2
filter_subject = "safe.a"
"""
_QUEUE = '[[stream]]\nname = "SAFE_WORK"\nsubjects = ["safe_work"]\nretention = "workqueue"\n'
_DONE = '[[stream]]\nname = "SAFE_DONE"\n[[stream.source]]\nname = "SAFE_WORK"\n'
_ONE_CONSUMER_ONLY = "error 10099"


async def play(topology: Topology, at_hub: JetStream, narrator: Narrator) -> None:
    """Copy with a start and a filter, and a work queue; take the source away."""
    narrator.chapter("Durable sources (nats-server 2.14): start and filter belong to a consumer at the origin")
    await topology.apply(_ORIGIN)
    await at_hub.publish("safe.a", "1", "2")
    await at_hub.publish("safe.b", "3")
    await at_hub.publish("safe.a", "4")
    await topology.apply(_ORIGIN + _COPY)
    await narrator.comes("SAFE: start_sequence = 2, filter_subject = safe.a", lambda: at_hub.bodies("SAFE"), ["2", "4"])
    names = (await at_hub.request("CONSUMER.NAMES.SAFE_ORIGIN"))["consumers"] or []
    narrator.show("the origin shows a consumer for the copy", len(names), 1, note="copies make no visible consumer")
    config = (await at_hub.request(f"CONSUMER.INFO.SAFE_ORIGIN.{names[0]}"))["config"]
    kept = (config["opt_start_seq"], config["filter_subjects"], config["ack_policy"])
    narrator.show("which has start and filter, and keeps the place", kept, (2, ["safe.a"], "flow_control"))
    await topology.apply(_ORIGIN + '[[stream]]\nname = "SAFE"\nsubjects = ["own"]\n')
    left = (await at_hub.request("CONSUMER.NAMES.SAFE_ORIGIN"))["consumers"] or []
    narrator.show("with the source goes its consumer", left, [])

    await topology.apply(_QUEUE + _DONE)
    await at_hub.publish("safe_work", "1", "2")
    await narrator.comes("a work queue is copied", lambda: at_hub.bodies("SAFE_DONE"), ["1", "2"])
    refused = await at_hub.answer(*explicit_consumer("SAFE_WORK", "worker"))
    narrator.show("and nobody else may consume it meanwhile", refused, _ONE_CONSUMER_ONLY)
