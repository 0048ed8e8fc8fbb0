"""Sources and mirrors: the effect of each option, deletes and retention of copies, and an origin that is away.

Source: "Source and Mirror Streams" of the NATS documentation. A hub and an edge server behind a link that can be cut,
each with a JetStream domain of its own.
"""

import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

from shared.embedded.link import EmbeddedLink
from shared.embedded.server import EmbeddedNats, LeafRemote, ServerSettings
from shared.instants import format_instant, parse_instant
from shared.nats.settings import AuthSettings
from shared.settings import FilePath
from tests.scenarios.narrator import Narrator
from tests.scenarios.stage import ACCEPTED, JetStream, Topology, connected, explicit_consumer

TEN = [str(number) for number in range(1, 11)]
DENIED = ', permissions: { publish: { deny: ["gathered.>"] } }'
USERS = f"""
authorization {{
  users: [
    {{ user: muster, password: muster }}
    {{ user: app, password: app{DENIED} }}
  ]
}}
no_auth_user: muster
"""
ORIGIN = '[[stream]]\nname = "ORIGIN"\nsubjects = ["o.>"]\n'


class Stage(NamedTuple):
    """The servers of hub and edge, the link between them, and connections to both."""

    hub: EmbeddedNats
    link: EmbeddedLink
    topology: Topology
    at_hub: JetStream
    as_app: JetStream
    at_edge: JetStream
    narrator: Narrator


async def test_sources_and_mirrors_do_as_documented_or_as_noted(tmp_path: Path, narrator: Narrator) -> None:
    narrator.chapter("A hub, and an edge behind a leaf link")
    hub_settings = ServerSettings(name="hub", store_dir=tmp_path / "hub", domain="hub", leaf_port=0, extra_config=USERS)
    password = tmp_path / "app.password"
    password.write_text("app")
    app = AuthSettings(user="app", password_file=FilePath(password))
    async with EmbeddedNats(hub_settings) as hub, EmbeddedLink(hub.leaf_port) as link:
        remote = LeafRemote(link.leaf_url.replace("//", "//muster:muster@"))
        edge_settings = ServerSettings(name="edge", store_dir=tmp_path / "edge", domain="edge", leaf_remotes=(remote,))
        async with (
            EmbeddedNats(edge_settings) as edge,
            connected(hub.url) as at_hub,
            connected(hub.url, auth=app) as as_app,
            connected(edge.url) as at_edge,
        ):
            await narrator.comes("the hub reaches the edge's JetStream", lambda: at_hub.reaches("edge"), True)
            head = f'[hub]\nservers = ["{hub.url}"]\ndomain = "hub"\n'
            topology = Topology(tmp_path / "topology.toml", head, narrator.sentence)
            stage = Stage(hub, link, topology, at_hub, as_app, at_edge, narrator)
            for chapter in (
                *(_options, _consumers_of_copies, _direct_writes, _changes_of_a_copy, _late_sources, _mirrors),
                *(_deletes, _consumers_of_a_mirror, _queue, _queue_behind_a_link, _interest, _durable, _cut_link),
            ):
                await chapter(stage)
            command = f"nats --server {hub.url}"
            ways = f"{command} stream report", f"{command} --js-domain edge stream report"
            await narrator.stay(topology.report_command, *ways)


async def _options(stage: Stage) -> None:
    topology, at_hub, narrator = stage.topology, stage.at_hub, stage.narrator
    narrator.chapter("Ten messages, on o.a and o.b in turn")
    await topology.apply(ORIGIN)
    for number in TEN:
        await at_hub.publish("o.a" if int(number) % 2 else "o.b", number)

    narrator.chapter("One origin, fanned out to many: each takes another part of it")
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
    for name, claim, bodies in (
        ("FROM_SEQUENCE", "start_sequence = 6", TEN[5:]),
        ("FROM_TIME", "start_time = that of the sixth, which counts", TEN[5:]),
        ("FILTERED", "filter_subject = o.a", TEN[::2]),
        ("RENAMED", "transforms of o.a and o.b, in the origin's order", TEN),
        ("PARTLY", "a transform of o.b alone filters", TEN[1::2]),
        ("GATHERED", "everything", TEN),
        ("TAKEN_OUT", "everything, and a retention of its own", TEN),
    ):
        await narrator.comes(f"{name}: {claim}", partial(at_hub.bodies, name), bodies)
    subjects = [message["subject"] for message in await at_hub.messages("RENAMED")]
    narrator.show("RENAMED: under the new names", subjects, ["new.a", "o.b"] * 5)
    sequences = [message["seq"] for message in await at_hub.messages("FROM_SEQUENCE")]
    narrator.show("FROM_SEQUENCE: sequences are its own", sequences, [1, 2, 3, 4, 5])
    listening = (await at_hub.info("FROM_SEQUENCE"))["config"].get("subjects") or []
    narrator.show("FROM_SEQUENCE: a replica that is only read listens on", listening, [])
    both = {"name": "ORIGIN", "filter_subject": "o.a", "subject_transforms": [{"src": "o.b", "dest": "b"}]}
    refused = await at_hub.answer("STREAM.CREATE.BOTH", {"name": "BOTH", "sources": [both]})
    narrator.show("of a source, a filter together with transforms", refused, "error 10144")
    refused = await at_hub.answer("STREAM.CREATE.BOTH", {"name": "BOTH", "mirror": both})
    narrator.show("of a mirror, a filter together with transforms", refused, "error 10150")


async def _consumers_of_copies(stage: Stage) -> None:
    at_hub, narrator = stage.at_hub, stage.narrator
    consumers = (await at_hub.request("CONSUMER.NAMES.ORIGIN"))["consumers"] or []
    narrator.show("the origin shows consumers of its copies", consumers, [])
    await at_hub.request("STREAM.DELETE.PARTLY")
    left = (await at_hub.info("ORIGIN"))["state"]["consumer_count"]
    narrator.show("and after one copy was deleted, with nothing to clean up", left, 0)


async def _direct_writes(stage: Stage) -> None:
    hub, at_hub, as_app, narrator = stage.hub, stage.at_hub, stage.as_app, stage.narrator
    narrator.chapter("A stream with a source takes direct writes too, unless authorization denies the subject")
    await at_hub.publish("gathered.x", "directly")
    await narrator.comes("GATHERED: direct write", partial(_last, at_hub, "GATHERED"), "directly")
    await as_app.client.publish("gathered.x", b"as app, without permission")
    await as_app.client.flush()

    async def denied() -> bool:
        return any("gathered.x" in reason for reason in as_app.denials)

    await narrator.comes("a client without the permission is denied", denied, True)
    await at_hub.publish("o.a", "eleventh")
    await narrator.comes("GATHERED: sourced messages still come", partial(_last, at_hub, "GATHERED"), "eleventh")
    narrator.show("GATHERED: nothing of the denied client, all else", await at_hub.count("GATHERED"), 12)
    hub.reload(hub.settings.extra_config.replace(DENIED, ""))
    writes = partial(as_app.stores, "gathered.x", "again")
    await narrator.comes("for a time only: allowed again, it writes", writes, True)


async def _changes_of_a_copy(stage: Stage) -> None:
    at_hub, narrator = stage.at_hub, stage.narrator
    narrator.chapter("Changes of a copy stay there, and deletes in the origin are not replicated")
    origin = await at_hub.bodies("ORIGIN")
    narrator.show("ORIGIN has nothing of GATHERED's direct writes", origin, [*TEN, "eleventh"])
    await at_hub.request("STREAM.MSG.DELETE.GATHERED", {"seq": 2})
    await at_hub.request("STREAM.MSG.DELETE.ORIGIN", {"seq": 4})
    await at_hub.publish("o.a", "twelfth")
    await narrator.comes("GATHERED: goes on", partial(_last, at_hub, "GATHERED"), "twelfth")
    narrator.show(
        "has message 2, deleted in GATHERED, and 4, deleted in ORIGIN",
        {name: [await _has(at_hub, name, sequence) for sequence in (2, 4)] for name in ("ORIGIN", "GATHERED")},
        {"ORIGIN": [True, False], "GATHERED": [False, True]},
    )
    await at_hub.request(*explicit_consumer("TAKEN_OUT", "reader"))
    narrator.show("TAKEN_OUT, a work queue, gives its reader", await at_hub.fetch("TAKEN_OUT", "reader", 3), TEN[:3])

    async def first() -> int:
        return int((await at_hub.info("TAKEN_OUT"))["state"]["first_seq"])

    await narrator.comes("which leaves there, from sequence", first, 4)
    narrator.show("and in ORIGIN, which keeps all of it, still", await _has(at_hub, "ORIGIN", 1), True)


async def _late_sources(stage: Stage) -> None:
    topology, at_hub, narrator = stage.topology, stage.at_hub, stage.narrator
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
        "by start_time: messages from before its own last one are skipped",
        partial(at_hub.bodies, "BY_TIME"),
        ["before", "after"],
        note="any message equal to or newer than the start time is included",
    )
    whole = ["before", *(body for body in TEN if body != "4"), "eleventh", "twelfth", "after"]
    await narrator.comes("by start_sequence: everything comes", partial(at_hub.bodies, "BY_SEQUENCE"), whole)


async def _mirrors(stage: Stage) -> None:
    at_hub, narrator = stage.at_hub, stage.narrator
    narrator.chapter("Mirrors")
    origin = await at_hub.messages("ORIGIN")
    later = [message for message in origin if message["seq"] > 5]
    since = format_instant(parse_instant(later[0]["time"]))
    await stage.topology.apply(
        ORIGIN
        + _mirror("MIRROR")
        + _mirror("MIRROR_FROM_SIX", f"start_sequence = {later[0]['seq']}")
        + _mirror("MIRROR_FROM_TIME", f"start_time = {since}")
        + _mirror("MIRROR_OF_B", 'filter_subject = "o.b"')
        + _mirror("SHORT", own='storage = "memory"\nmax_messages = 3')
    )
    of_b = [message for message in origin if message["subject"] == "o.b"]
    filters = 'elsewhere, that a mirror takes "no subject filter". Today it does'
    for name, claim, messages, note in (
        ("MIRROR", "subjects, sequences and times are the origin's", origin, ""),
        ("MIRROR_FROM_SIX", "start_sequence = 6", later, ""),
        ("MIRROR_FROM_TIME", "start_time of the sixth", later, ""),
        ("MIRROR_OF_B", "a filter, the origin's sequences", of_b, filters),
        ("SHORT", "a retention and storage of its own", origin[-3:], ""),
    ):
        await narrator.comes(f"{name}: {claim}", partial(_is_now, at_hub, name, messages), True, note)
    narrator.show("what clients write to MIRROR is stored", await at_hub.takes("MIRROR"), False)


async def _deletes(stage: Stage) -> None:
    at_hub, narrator = stage.at_hub, stage.narrator
    narrator.chapter("Deletes stay where they are made")
    await at_hub.request("STREAM.MSG.DELETE.ORIGIN", {"seq": 3})
    await at_hub.request("STREAM.MSG.DELETE.MIRROR", {"seq": 5})
    await at_hub.publish("o.a", "after the deletes")
    await narrator.comes("MIRROR goes on", lambda: at_hub.count("MIRROR"), await at_hub.count("ORIGIN"))
    narrator.show(
        "has message 3, deleted in the origin, and 5, deleted in the mirror",
        {name: [await _has(at_hub, name, sequence) for sequence in (3, 5)] for name in ("ORIGIN", "MIRROR")},
        {"ORIGIN": [False, True], "MIRROR": [True, False]},
    )


async def _consumers_of_a_mirror(stage: Stage) -> None:
    stage.narrator.chapter("A mirror has consumers like any stream")
    await stage.at_hub.request(*explicit_consumer("MIRROR", "reader", filter_subject="o.b"))
    read = await stage.at_hub.fetch("MIRROR", "reader", 4)
    stage.narrator.show("a consumer with a filter gets", read, ["2", "6", "8", "10"])


async def _queue(stage: Stage) -> None:
    topology, at_hub, narrator = stage.topology, stage.at_hub, stage.narrator
    narrator.chapter("A work queue as origin, in one domain")
    todo = await topology.apply(_work_queue("WORK", "work") + _plain_copy("DONE", "WORK"))
    narrator.show("copies that plan refuses", len(todo.refused), 0)
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
    late = _work_queue("LATE_WORK", "late")
    await topology.apply(late)
    await at_hub.request(*explicit_consumer("LATE_WORK", "worker"))
    await at_hub.publish("late", "1", "2")
    await topology.apply(late + _plain_copy("LATE_DONE", "LATE_WORK"))
    await narrator.comes(
        "a source of a queue that has a local consumer already takes",
        lambda: at_hub.bodies("LATE_DONE"),
        ["1", "2"],
        note="a source cannot be created where there is a local consumer",
    )


async def _queue_behind_a_link(stage: Stage) -> None:
    topology, at_hub, at_edge, narrator = stage.topology, stage.at_hub, stage.at_edge, stage.narrator
    narrator.chapter("A work queue behind a leaf link")
    streams = _work_queue("EDGE_WORK", "edge.work", "edge") + _plain_copy("EDGE_DONE", "EDGE_WORK", "edge")
    refused = (await topology.plan(streams)).refused
    for reason in refused:
        narrator.sentence(reason)
    narrator.show("of a leaf's work queue, copies that plan refuses", len(refused), 1)
    allowed = await topology.apply(f"{streams}allow = true\n")
    narrator.show("with allow = true, it refuses (copies)", len(allowed.refused), 0)
    await at_edge.publish("edge.work", "1", "2")
    await narrator.comes("while the link is up, the copy has the work", lambda: at_hub.bodies("EDGE_DONE"), ["1", "2"])
    await narrator.comes("and the queue, which holds then", lambda: at_edge.count("EDGE_WORK"), 0)


async def _interest(stage: Stage) -> None:
    topology, at_hub, narrator = stage.topology, stage.at_hub, stage.narrator
    narrator.chapter("An interest stream as origin")
    interest = '[[stream]]\nname = "INTEREST"\nsubjects = ["interest"]\nretention = "interest"\n'
    await topology.apply(interest)
    await at_hub.publish("interest", "before")
    narrator.show("messages kept while there is no reader", await at_hub.count("INTEREST"), 0)
    streams = interest + _plain_copy("KEPT", "INTEREST")
    refused = (await topology.plan(streams)).refused
    for reason in refused:
        narrator.sentence(reason)
    narrator.show("of an interest stream, copies that plan refuses", len(refused), 1)
    await topology.apply(f"{streams}allow = true\n")
    await narrator.comes("with allow = true, the copy hears from it", topology.is_healthy, True)
    await at_hub.publish("interest", "after")
    kept = partial(at_hub.bodies, "KEPT")
    await narrator.comes("the copy has messages published while it was there", kept, ["after"], note="undefined")


async def _durable(stage: Stage) -> None:
    topology, at_hub, narrator = stage.topology, stage.at_hub, stage.narrator
    narrator.chapter("Durable sources (nats-server 2.14): start and filter belong to a consumer at the origin")
    origin = '[[stream]]\nname = "SAFE_ORIGIN"\nsubjects = ["safe.*"]\n'
    source = '[[stream.source]]\nname = "SAFE_ORIGIN"\nstart_sequence = 2\nfilter_subject = "safe.a"\n'
    await topology.apply(origin)
    await at_hub.publish("safe.a", "1", "2")
    await at_hub.publish("safe.b", "3")
    await at_hub.publish("safe.a", "4")
    await topology.apply(f'{origin}[[stream]]\nname = "SAFE"\n{source}')
    await narrator.comes("SAFE: start_sequence = 2, filter_subject = safe.a", lambda: at_hub.bodies("SAFE"), ["2", "4"])
    names = (await at_hub.request("CONSUMER.NAMES.SAFE_ORIGIN"))["consumers"] or []
    narrator.show("the origin shows a consumer for the copy", len(names), 1, note="copies make no visible consumer")
    config = (await at_hub.request(f"CONSUMER.INFO.SAFE_ORIGIN.{names[0]}"))["config"]
    kept = (config["opt_start_seq"], config["filter_subjects"], config["ack_policy"])
    narrator.show("which has start and filter, and keeps the place", kept, (2, ["safe.a"], "flow_control"))
    await topology.apply(f'{origin}[[stream]]\nname = "SAFE"\nsubjects = ["own"]\n')
    left = (await at_hub.request("CONSUMER.NAMES.SAFE_ORIGIN"))["consumers"] or []
    narrator.show("with the source goes its consumer", left, [])

    done = '[[stream]]\nname = "SAFE_DONE"\n[[stream.source]]\nname = "SAFE_WORK"\n'
    await topology.apply(_work_queue("SAFE_WORK", "safe_work") + done)
    await at_hub.publish("safe_work", "1", "2")
    await narrator.comes("a work queue is copied", lambda: at_hub.bodies("SAFE_DONE"), ["1", "2"])
    refused = await at_hub.answer(*explicit_consumer("SAFE_WORK", "worker"))
    narrator.show("and another consumer of it meanwhile", refused, "error 10099")


async def _cut_link(stage: Stage) -> None:
    topology, at_hub, at_edge, narrator = stage.topology, stage.at_hub, stage.at_edge, stage.narrator
    narrator.chapter("Copies across a leaf link, by domain: one up, one down")
    await topology.apply(
        ORIGIN
        + '[[stream]]\nname = "EDGE"\ndomain = "edge"\nsubjects = ["edge.data"]\n'
        + '[[stream]]\nname = "EDGE_COPY"\n[[stream.source]]\nname = "EDGE"\ndomain = "edge"\n'
        + _mirror("AT_EDGE", 'domain = "hub"', own='domain = "edge"\nmirror_direct = true')
    )
    await at_edge.publish("edge.data", "1", "2")
    await narrator.comes("the hub has what the edge has", lambda: at_hub.bodies("EDGE_COPY"), ["1", "2"])
    origin = await at_hub.messages("ORIGIN")
    await narrator.comes("the edge has what the hub has", partial(_is_now, at_edge, "AT_EDGE", origin), True)
    reached = {f"{row.stream} reads {row.api}": row.behind for row in (await topology.report()).replication}
    through = {"EDGE_COPY reads $JS.edge.API": 0, "AT_EDGE reads $JS.hub.API": 0}
    narrator.show("through the domains' APIs; behind", reached, through)

    narrator.chapter("The link is cut; at the edge a message is deleted, and a worker takes from a work queue")
    await stage.link.cut()
    await at_edge.publish("edge.data", "3", "4")
    await at_hub.publish("o.a", "meanwhile")
    got = await at_edge.direct_get("ORIGIN", 1)
    narrator.show("the edge's mirror answers direct gets for the hub's stream", got, "1")
    narrator.show("the hub has", await at_hub.bodies("EDGE_COPY"), ["1", "2"])
    narrator.show("the hub reaches the edge's JetStream now", await at_hub.reaches("edge"), False)
    await at_edge.publish("edge.data", "deleted at once")
    await at_edge.request("STREAM.MSG.DELETE.EDGE", {"seq": 5})
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

    narrator.chapter("The link is back")
    await stage.link.restore()
    back_at = time.monotonic()
    await at_edge.publish("edge.data", "6")
    await narrator.comes(
        "the hub catches up, without the message deleted meanwhile",
        lambda: at_hub.bodies("EDGE_COPY"),
        ["1", "2", "3", "4", "6"],
        note="a copy of what is deleted soon may be inconsistent",
    )
    narrator.sentence(f"after {time.monotonic() - back_at:.1f} s: a durable source")
    done = partial(at_hub.bodies, "EDGE_DONE")
    await narrator.comes("the copy of the work queue has what the worker took, too", done, ["1", "2", "3", "4"])
    narrator.sentence(f"after {time.monotonic() - back_at:.1f} s: a plain source")
    await narrator.comes("the edge catches up", lambda: at_edge.count("AT_EDGE"), len(origin) + 1)
    is_whole = await _is_now(at_edge, "AT_EDGE", await at_hub.messages("ORIGIN"))
    narrator.show("sequences and times are still the origin's", is_whole, True)


def _copy(name: str, takes: str, own: str = "") -> str:
    """Return a stream with a plain source, as documented: durable ones have a chapter of their own."""
    return f'[[stream]]\nname = "{name}"\n{own}\n[[stream.source]]\nname = "ORIGIN"\nsourcing = "plain"\n{takes}\n'


def _mirror(name: str, takes: str = "", own: str = "") -> str:
    return f'[[stream]]\nname = "{name}"\n{own}\n[stream.mirror]\nname = "ORIGIN"\n{takes}\n'


def _work_queue(name: str, subject: str, domain: str = "hub") -> str:
    at = f'name = "{name}"\ndomain = "{domain}"'
    return f'[[stream]]\n{at}\nsubjects = ["{subject}"]\nretention = "workqueue"\n'


def _plain_copy(name: str, origin: str, domain: str = "hub") -> str:
    source = f'name = "{origin}"\ndomain = "{domain}"\nsourcing = "plain"'
    return f'[[stream]]\nname = "{name}"\n[[stream.source]]\n{source}\n'


async def _has(jetstream: JetStream, stream: str, sequence: int) -> bool:
    return await jetstream.message(stream, seq=sequence) is not None


async def _is_now(jetstream: JetStream, stream: str, messages: list[dict[str, object]]) -> bool:
    return await jetstream.messages(stream) == messages


async def _last(jetstream: JetStream, stream: str) -> str:
    return ((await jetstream.bodies(stream)) or [""])[-1]
