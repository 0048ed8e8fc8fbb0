"""What a source takes of its origin: all of it, from a sequence, from a time, filtered, renamed."""

from functools import partial

from aggregator.scenarios.narrator import Narrator
from aggregator.scenarios.stage import JetStream, Topology, explicit_consumer
from shared.embedded.server import EmbeddedNats
from shared.instants import format_instant, parse_instant

ORIGIN = '[[stream]]\nname = "ORIGIN"\nsubjects = ["o.>"]\n'
COUNT = 10
DENIED = ', permissions: { publish: { deny: ["gathered.>"] } }'
"""What stands in the way of a user who shall not write directly."""
_ALL = [str(number) for number in range(1, COUNT + 1)]
_BOTH_FILTER_AND_TRANSFORMS = "error 10144"


async def play(topology: Topology, hub: EmbeddedNats, at_hub: JetStream, as_app: JetStream, narrator: Narrator) -> None:
    """Lay out an origin with ten messages on two subjects, and every sort of source of it."""
    narrator.chapter("Ten messages, on o.a and o.b in turn")
    await topology.apply(ORIGIN)
    for number in _ALL:
        await at_hub.publish("o.a" if int(number) % 2 else "o.b", number)
    await _options(topology, at_hub, narrator)
    await _fan_out(at_hub, narrator)
    await _listening(hub, at_hub, as_app, narrator)
    await _own_changes(at_hub, narrator)
    await _late(topology, at_hub, narrator)


async def _options(topology: Topology, at_hub: JetStream, narrator: Narrator) -> None:
    narrator.chapter("One origin, fanned out to many: each takes something else of it")
    sixth = format_instant(parse_instant((await at_hub.messages("ORIGIN"))[5]["time"]))
    await topology.apply(
        ORIGIN
        + _copy("FROM_SEQUENCE", "start_sequence = 6")
        + _copy("FROM_TIME", f"start_time = {sixth}")
        + _copy("FILTERED", 'filter_subject = "o.a"')
        + _copy("RENAMED", 'transforms = [{ source = "o.a", destination = "new.a" }, { source = "o.b" }]')
        + _copy("PARTLY", 'transforms = [{ source = "o.b", destination = "new.b" }]')
        + _copy("GATHERED", "", 'subjects = ["gathered.>"]')
        + _copy("TAKEN_OUT", "", 'retention = "workqueue"')
    )
    expected = {
        "FROM_SEQUENCE": ("start_sequence = 6", _ALL[5:]),
        "FROM_TIME": ("start_time = that of the sixth, which counts", _ALL[5:]),
        "FILTERED": ("filter_subject = o.a", _ALL[::2]),
        "RENAMED": ("transforms of o.a and o.b, in the origin's order", _ALL),
        "PARTLY": ("a transform of o.b alone filters", _ALL[1::2]),
        "GATHERED": ("everything", _ALL),
        "TAKEN_OUT": ("everything, and a retention of its own", _ALL),
    }
    for name, (claim, bodies) in expected.items():
        await narrator.comes(f"{name}: {claim}", partial(at_hub.bodies, name), bodies)
    narrator.show("RENAMED: under the new names", await at_hub.subjects("RENAMED"), ["new.a", "o.b"] * (COUNT // 2))
    sequences = [message["seq"] for message in await at_hub.messages("FROM_SEQUENCE")]
    narrator.show("FROM_SEQUENCE: sequences are its own", sequences, [1, 2, 3, 4, 5])
    listening = (await at_hub.info("FROM_SEQUENCE"))["config"].get("subjects") or []
    narrator.show("FROM_SEQUENCE: a replica that is only read listens on", listening, [])
    both = {"name": "ORIGIN", "filter_subject": "o.a", "subject_transforms": [{"src": "o.b", "dest": "b"}]}
    refused = await at_hub.answer("STREAM.CREATE.BOTH", {"name": "BOTH", "sources": [both]})
    narrator.show("of a source, a filter together with transforms", refused, _BOTH_FILTER_AND_TRANSFORMS)


async def _fan_out(at_hub: JetStream, narrator: Narrator) -> None:
    consumers = (await at_hub.request("CONSUMER.NAMES.ORIGIN"))["consumers"] or []
    narrator.show("the origin shows consumers of its copies", consumers, [])
    await at_hub.request("STREAM.DELETE.PARTLY")
    left = (await at_hub.info("ORIGIN"))["state"]["consumer_count"]
    narrator.show("and after one copy was deleted, with nothing to clean up", left, 0)


async def _listening(hub: EmbeddedNats, at_hub: JetStream, as_app: JetStream, narrator: Narrator) -> None:
    narrator.chapter("A stream with a source takes direct writes too, unless authorization takes the subject away")
    await at_hub.publish("gathered.x", "directly")
    await narrator.comes("GATHERED: direct write", partial(_last, at_hub, "GATHERED"), "directly")
    await as_app.client.publish("gathered.x", b"as app, who may not")
    await as_app.client.flush()

    async def denied() -> bool:
        return any("gathered.x" in reason for reason in as_app.denials)

    await narrator.comes("a client without the permission is denied", denied, True)
    await at_hub.publish("o.a", "eleventh")
    await narrator.comes("GATHERED: what is sourced still comes", partial(_last, at_hub, "GATHERED"), "eleventh")
    narrator.show("GATHERED: nothing of the denied client, all else", await at_hub.count("GATHERED"), COUNT + 2)
    hub.reload(hub.settings.extra_config.replace(DENIED, ""))
    await narrator.comes(
        "for a time only: allowed again, it writes", lambda: as_app.stores("gathered.x", "again"), True
    )


async def _own_changes(at_hub: JetStream, narrator: Narrator) -> None:
    narrator.chapter("What is done to a copy stays there, and deletes in the origin are not replicated")
    origin = await at_hub.bodies("ORIGIN")
    narrator.show("ORIGIN has nothing of what GATHERED took directly", origin, [*_ALL, "eleventh"])
    await at_hub.request("STREAM.MSG.DELETE.GATHERED", {"seq": 2})
    await at_hub.request("STREAM.MSG.DELETE.ORIGIN", {"seq": 4})
    await at_hub.publish("o.a", "twelfth")
    await narrator.comes("GATHERED: goes on", partial(_last, at_hub, "GATHERED"), "twelfth")
    both = {name: [await at_hub.has(name, sequence) for sequence in (2, 4)] for name in ("ORIGIN", "GATHERED")}
    narrator.show(
        "who has message 2, deleted in GATHERED, and 4, deleted in ORIGIN",
        both,
        {"ORIGIN": [True, False], "GATHERED": [False, True]},
    )
    await at_hub.request(*explicit_consumer("TAKEN_OUT", "reader"))
    narrator.show("TAKEN_OUT, a work queue, gives its reader", await at_hub.fetch("TAKEN_OUT", "reader", 3), _ALL[:3])
    await narrator.comes("which leaves there", partial(_first, at_hub, "TAKEN_OUT"), 4)
    narrator.show("and in ORIGIN, which keeps all of it, still", await at_hub.has("ORIGIN", 1), True)


async def _late(topology: Topology, at_hub: JetStream, narrator: Narrator) -> None:
    narrator.chapter("Sources by sequence, not by time, where the stream holds something already")
    both = '[[stream]]\nname = "BY_TIME"\nsubjects = ["t"]\n[[stream]]\nname = "BY_SEQUENCE"\nsubjects = ["s"]\n'
    await topology.apply(ORIGIN + both)
    await at_hub.publish("t", "before")
    await at_hub.publish("s", "before")
    first = format_instant(parse_instant((await at_hub.messages("ORIGIN"))[0]["time"]))
    await topology.apply(
        ORIGIN
        + _copy("BY_TIME", f"start_time = {first}", 'subjects = ["t"]')
        + _copy("BY_SEQUENCE", "start_sequence = 1", 'subjects = ["s"]')
    )
    await at_hub.publish("o.a", "after")
    await narrator.comes(
        "by start_time: what came before its own last message is skipped",
        partial(at_hub.bodies, "BY_TIME"),
        ["before", "after"],
        note="any message equal to or newer than the start time is included",
    )
    held = [body for body in _ALL if body != "4"]
    whole = ["before", *held, "eleventh", "twelfth", "after"]
    await narrator.comes("by start_sequence: everything comes", partial(at_hub.bodies, "BY_SEQUENCE"), whole)


def _copy(name: str, takes: str, own: str = "") -> str:
    # As the documentation has them: durable ones come in a chapter of their own.
    return f'[[stream]]\nname = "{name}"\n{own}\n[[stream.source]]\nname = "ORIGIN"\nsourcing = "plain"\n{takes}\n'


async def _first(jetstream: JetStream, stream: str) -> int:
    return int((await jetstream.info(stream))["state"]["first_seq"])


async def _last(jetstream: JetStream, stream: str) -> str:
    return ((await jetstream.bodies(stream)) or [""])[-1]
