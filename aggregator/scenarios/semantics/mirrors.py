"""What a mirror keeps of its origin, and what is its own."""

from functools import partial

from aggregator.scenarios.narrator import Narrator
from aggregator.scenarios.semantics.sources import ORIGIN
from aggregator.scenarios.stage import JetStream, Topology, explicit_consumer
from shared.instants import format_instant, parse_instant

MIRRORS = """
[[stream]]
name = "MIRROR"
[stream.mirror]
name = "ORIGIN"

[[stream]]
name = "MIRROR_FROM_SIX"
[stream.mirror]
name = "ORIGIN"
start_sequence = {start}

[[stream]]
name = "MIRROR_FROM_TIME"
[stream.mirror]
name = "ORIGIN"
start_time = {since}

[[stream]]
name = "MIRROR_OF_B"
[stream.mirror]
name = "ORIGIN"
filter_subject = "o.b"

[[stream]]
name = "SHORT"
storage = "memory"
max_messages = 3
[stream.mirror]
name = "ORIGIN"
"""

START = 5
_BOTH_FILTER_AND_TRANSFORMS = "error 10150"


async def play(topology: Topology, at_hub: JetStream, narrator: Narrator) -> None:
    """Mirror the origin of the sources, and change both sides."""
    narrator.chapter("Mirrors")
    origin = await at_hub.messages("ORIGIN")
    later = [message for message in origin if message["seq"] > START]
    since = format_instant(parse_instant(later[0]["time"]))
    await topology.apply(ORIGIN + MIRRORS.format(start=later[0]["seq"], since=since))
    of_b = [message for message in origin if message["subject"] == "o.b"]
    filters = 'elsewhere, that a mirror takes "no subject filter". Today it does'
    for name, claim, messages, note in (
        ("MIRROR", "subjects, sequences and times are the origin's", origin, ""),
        ("MIRROR_FROM_SIX", "start_sequence = 6", later, ""),
        ("MIRROR_FROM_TIME", "start_time of the sixth", later, ""),
        ("MIRROR_OF_B", "a filter, the origin's sequences", of_b, filters),
        ("SHORT", "a retention and storage of its own", origin[-3:], ""),
    ):
        await narrator.comes(f"{name}: {claim}", partial(at_hub.is_now, name, messages), True, note)
    narrator.show("what clients write to MIRROR is stored", await at_hub.takes("MIRROR"), False)
    both = {"name": "ORIGIN", "filter_subject": "o.a", "subject_transforms": [{"src": "o.b", "dest": "b"}]}
    refused = await at_hub.answer("STREAM.CREATE.BOTH", {"name": "BOTH", "mirror": both})
    narrator.show("of a mirror, a filter together with transforms", refused, _BOTH_FILTER_AND_TRANSFORMS)
    await _delete(at_hub, narrator)
    await _consume(at_hub, narrator)


async def _delete(at_hub: JetStream, narrator: Narrator) -> None:
    narrator.chapter("Deletes stay where they are made")
    await at_hub.request("STREAM.MSG.DELETE.ORIGIN", {"seq": 3})
    await at_hub.request("STREAM.MSG.DELETE.MIRROR", {"seq": 5})
    await at_hub.publish("o.a", "after the deletes")
    await narrator.comes("MIRROR goes on", lambda: at_hub.count("MIRROR"), await at_hub.count("ORIGIN"))
    both = {name: [await at_hub.has(name, sequence) for sequence in (3, 5)] for name in ("ORIGIN", "MIRROR")}
    narrator.show(
        "who has message 3, deleted in the origin, and 5, deleted in the mirror",
        both,
        {
            "ORIGIN": [False, True],
            "MIRROR": [True, False],
        },
    )


async def _consume(at_hub: JetStream, narrator: Narrator) -> None:
    narrator.chapter("A mirror has consumers like any stream")
    await at_hub.request(*explicit_consumer("MIRROR", "reader", filter_subject="o.b"))
    wanted = await at_hub.bodies("MIRROR_OF_B")
    narrator.show("a consumer with a filter gets", await at_hub.fetch("MIRROR", "reader", len(wanted)), wanted)
