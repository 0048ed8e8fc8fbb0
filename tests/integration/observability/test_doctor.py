"""What the doctor finds around an agent: real servers with what goes wrong at them, and nothing changed by looking."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from edge_agent.observability.conditions import REGION_REFUSES
from shared.embedded.server import EmbeddedNats, ServerSettings
from shared.identifiers import AdvisoryKind
from shared.instants import DAY, HOUR
from shared.nats.connection import AuthSettings, ConnectionSettings, connect
from shared.nats.jetstream_api import request_json
from shared.settings import FilePath
from tests.support.agent.agent_stage import Stage, agent_stage, registering
from tests.support.agent.operated_agent import OperatedAgent, operated_agent
from tests.support.delivery.fleet_region import STREAM as FLEET
from tests.support.faults.disk import SmallDisk
from tests.support.nats.source_site import CONSUMER, STREAM
from tests.support.nats.stepped_clock import CANNOT_STEP, SteppedClock
from tests.support.waiting import until

SUBJECT = "fleet.eu-west.dub1.nodes"


@pytest_asyncio.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with agent_stage(tmp_path) as stage:
        yield stage


Findings = list[tuple[str, str, str]]


async def examined(config_path: Path) -> tuple[int, Findings]:
    """Give the exit code, and every finding that is not OK: its level, its text, and its remedy."""
    code, output, errors = await OperatedAgent(config_path).command("doctor", "--json")
    assert not errors
    report = msgspec.json.decode(output)
    wrong = [each for each in report["findings"] if each["level"] != "OK"]
    assert code == {"OK": 0, "WARN": 1, "FAIL": 2}[report["worst"]]
    assert all(each["remedy"] for each in wrong), "whoever hears of trouble hears what to do"
    return code, [(each["level"], each["text"], each["remedy"]) for each in wrong]


async def test_all_is_well_around_a_running_agent_and_nothing_is_changed_by_looking(stage: Stage) -> None:
    names = [f"node-{n}" for n in range(4)]
    async with registering(stage.site, *names) as nodes, operated_agent(stage.config_path) as agent:
        await until(lambda: stage.region.senders_with(AdvisoryKind.NEW), "the agent works")
        await until(lambda: nodes.published >= 4 * len(names), "it can be told how often the nodes register")
        await until(stage.region.observed_through, "the agent has vouched for the site")
        await until(lambda: "probe of nodes: stored" in agent.log_path.read_text(), "the agent has probed the stream")

        async def all_is_well() -> bool:
            return await examined(stage.config_path) == (0, [])

        await until(all_is_well, "all is well")
        began_with = agent.log_path.read_text()
        code, page, _ = await agent.command("doctor")
        assert (code, "all well" in page) == (0, True), page
        assert "every one of the last " in page
        assert "senders register about every " in page
        assert f"{FLEET} listens on all subjects of eu-west.dub1.nodes" in page
        assert agent.log_path.read_text() == began_with, "the agent has not noticed"
        consumers = (await stage.site.api(f"CONSUMER.NAMES.{STREAM}"))["consumers"]
        assert consumers == [CONSUMER]
    kinds = {record.subject.removeprefix(f"{SUBJECT}.").split(".")[0] for record in await stage.region.records()}
    assert kinds == {"advisory", "registration", "watermark"}
    assert all(record.payload for record in await stage.region.records()), "no empty probe was stored"


async def wrong_at_source(config_path: Path) -> list[tuple[str, str]]:
    """Give text and remedy of what is not OK about the stream and what it holds."""
    _, output, _ = await OperatedAgent(config_path).command("doctor", "--json")
    found = [each for each in msgspec.json.decode(output)["findings"] if each["subject"].endswith(" of nodes")]
    return [(each["text"], each["remedy"]) for each in found if each["level"] != "OK"]


@pytest.mark.parametrize("further", ["", 'filter_subject = "registration.*"'])
async def test_nobody_is_missed_before_stale_after_has_passed_and_whoever_never_comes_is_missed_then(
    stage: Stage, further: str
) -> None:
    settings = stage.config_path.read_text().replace("probe = true", f"probe = true\n{further}")
    stage.config_path.write_text(settings.replace('stale_after = "4s"', 'stale_after = "30m"'))

    async def nothing_is_wrong() -> bool:
        # On a busy machine a server may take longer to answer than a doctor waits.
        wrong = await wrong_at_source(stage.config_path)
        assert "nobody has registered" not in str(wrong)
        return not wrong

    await until(nothing_is_wrong, "the stream is empty")
    async with operated_agent(stage.config_path) as agent:
        await until(lambda: "probe of nodes: stored" in agent.log_path.read_text(), "the agent has probed the stream")
        await until(nothing_is_wrong, "the stream holds the agent's probe")
    stage.config_path.write_text(settings)
    passing = ", and pass source.filter_subject" if further else ""
    async with operated_agent(stage.config_path):

        async def is_missed() -> bool:
            wrong = await wrong_at_source(stage.config_path)
            missed = re.search(r"'the agent has watched for \d+s, and nobody has registered', '([^']+)'", str(wrong))
            return missed is not None and missed[1] == f"do senders publish on the subjects of {STREAM}{passing}?"

        await until(is_missed, "nobody has come in stale_after")


async def test_servers_that_do_not_answer_are_named_each(stage: Stage) -> None:
    await stage.site.publish(b'{"sender": "a"}')
    text = stage.config_path.read_text()
    stage.config_path.write_text(
        text.replace(f'["{stage.region.link.url}"]', f'["{stage.region.link.url}", "nats://127.0.0.1:1"]')
    )
    code, wrong = await examined(stage.config_path)
    assert code == 1
    assert ("WARN", "cannot connect within 4 s to 127.0.0.1:1: connection refused, nothing listens there") in [
        (level, said) for level, said, _ in wrong
    ]
    await stage.region.server.stop()
    code, wrong = await examined(stage.config_path)
    assert code == 2
    assert len([said for level, said, _ in wrong if level == "FAIL" and said.startswith("cannot connect")]) == 2


async def test_streams_that_are_missing_sealed_or_full_are_found(stage: Stage) -> None:
    await stage.site.delete_stream()
    await request_json(stage.region.client, f"$JS.API.STREAM.DELETE.{FLEET}", None, dict[str, Any], deadline=60)
    _, wrong = await examined(stage.config_path)
    assert ("FAIL", f"there is no stream {STREAM} in this account") in [(level, said) for level, said, _ in wrong]
    assert ("FAIL", f"{SUBJECT}.>: this account holds no stream in domain eu-west") in [
        (level, said) for level, said, _ in wrong
    ]

    await stage.site.make_stream(max_msgs=1, discard="new")
    await stage.site.publish(b'{"sender": "a"}')
    await stage.region.make_stream(max_msgs=1, discard="new")
    await stage.region.client.jetstream().publish(f"{SUBJECT}.x", b"x")
    said = " ".join(said for level, said, _ in (await examined(stage.config_path))[1] if level == "FAIL")
    assert f"stream {STREAM} is full and refuses what is new" in said
    assert f"{FLEET} takes nothing more: it is full" in said

    await stage.region.update_stream(max_msgs=-1, max_msgs_per_subject=1, discard_new_per_subject=True)
    remedies = {said: remedy for level, said, remedy in (await examined(stage.config_path))[1] if level == "FAIL"}
    said = f"{FLEET} refuses what is new on a subject that is full (discard_new_per_subject)"
    assert remedies[said].startswith(f"let {FLEET} discard what is old")

    await stage.site.update_stream(sealed=True)
    await stage.region.update_stream(sealed=True)
    remedies = {said: remedy for level, said, remedy in (await examined(stage.config_path))[1] if level == "FAIL"}
    assert f"stream {STREAM} is sealed" in " ".join(remedies)
    assert remedies[f"{FLEET} takes nothing more: it is sealed"].startswith("no server takes a seal back: ")


@pytest.mark.parametrize("way", ["acknowledges nothing", "copies"])
async def test_a_stream_that_answers_no_probe_or_needs_none_is_well_for_the_doctor_as_for_the_agent(
    stage: Stage, way: str
) -> None:
    if way == "copies":
        await stage.site.delete_stream()
        await stage.site.api("STREAM.CREATE.ORIGIN", {"name": "ORIGIN", "subjects": ["registration.>"]})
        await stage.site.api(f"STREAM.CREATE.{STREAM}", {"name": STREAM, "mirror": {"name": "ORIGIN"}})
    else:
        await stage.site.update_stream(no_ack=True)
    async with registering(stage.site, "a"), operated_agent(stage.config_path) as agent:
        await until(stage.region.observed_through, "the agent works")

        async def is_useful() -> bool:
            return (await agent.command("status", "--check"))[1] == "useful\n"

        await until(is_useful, "the agent is well")
        wrong = (await examined(stage.config_path))[1]
        assert not [said for _, said, _ in wrong if "probe" in said], wrong


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
async def test_a_stream_that_has_been_read_to_its_end_is_well_and_one_that_nobody_used_is_not(
    stage: Stage, retention: str
) -> None:
    await stage.site.delete_stream()
    await stage.site.make_stream(retention=retention)

    async def is_called_empty() -> bool:
        return f"stream {STREAM} is empty" in [said for _, said, _ in (await examined(stage.config_path))[1]]

    await until(is_called_empty, "senders have had stale_after to publish, and have not")
    async with registering(stage.site, "a"), operated_agent(stage.config_path):
        await until(stage.region.observed_through, "the agent has read what there is")

    async def is_drained() -> bool:
        await stage.site.api(f"STREAM.PURGE.{STREAM}")
        return not (await stage.site.api(f"STREAM.INFO.{STREAM}"))["state"]["messages"]

    await until(is_drained, "what came after the agent's end is gone")
    wrong = (await examined(stage.config_path))[1]
    assert not [said for _, said, _ in wrong if f"stream {STREAM}" in said], wrong


async def test_a_consumer_that_delivers_nothing_or_will_be_removed_is_named_as_the_agent_names_it(stage: Stage) -> None:
    consumer = f"{STREAM}.muster-dub1-nodes"
    config = {"durable_name": "muster-dub1-nodes", "ack_policy": "all", "inactive_threshold": 600_000_000_000}
    await stage.site.api(f"CONSUMER.CREATE.{consumer}", {"stream_name": STREAM, "config": config})
    await stage.site.api(f"CONSUMER.PAUSE.{consumer}", {"pause_until": "2099-01-01T00:00:00Z"})
    code, output, _ = await OperatedAgent(stage.config_path).command("doctor", "--json")
    found = {each["condition"]: (each["level"], each["text"]) for each in msgspec.json.decode(output)["findings"]}
    said = "consumer muster-dub1-nodes: somebody has paused it until 2099-01-01T00:00:00Z; "
    assert (code, found["consumer_paused"]) == (2, ("FAIL", f"{said}0 messages wait to be read"))
    said = "the server removes consumer muster-dub1-nodes when it has not been used for 10m"
    assert found["consumer_expires"] == ("WARN", said)


async def test_a_region_that_acknowledges_nothing_is_not_said_to_lack_a_stream(stage: Stage) -> None:
    await stage.site.publish(b'{"sender": "a"}')
    await request_json(stage.region.client, f"$JS.API.STREAM.DELETE.{FLEET}", None, dict[str, Any], deadline=60)
    await stage.region.make_stream(no_ack=True)
    _, wrong = await examined(stage.config_path)
    said = f"what listens on {SUBJECT}.> acknowledges nothing: a stream with no_ack, or no stream at all"
    assert [each for each in wrong if each[0] == "FAIL"] == [
        ("FAIL", said, "take no_ack from the stream, or let a stream listen there")
    ]


async def test_the_agents_trouble_points_at_what_fails_and_at_nothing_that_is_well(stage: Stage) -> None:
    async def remedies(expected: str) -> bool:
        wrong = (await examined(stage.config_path))[1]
        return [remedy for _, said, remedy in wrong if said.startswith("upstream: not accepted")] == [expected]

    async with registering(stage.site, "a"), operated_agent(stage.config_path):
        await until(lambda: stage.region.senders_with(AdvisoryKind.NEW), "the agent works")
        await request_json(stage.region.client, f"$JS.API.STREAM.DELETE.{FLEET}", None, dict[str, Any], deadline=60)
        await until(lambda: remedies("see above"), "the agent has noticed, and the doctor why")
        # It is not full, and has no room for any record.
        await stage.region.make_stream(max_bytes=100, discard="new")
        await until(lambda: remedies(REGION_REFUSES.remedy), "the agent has trouble that nothing above explains")


async def test_a_region_that_takes_small_messages_only_is_found(stage: Stage) -> None:
    await request_json(stage.region.client, f"$JS.API.STREAM.DELETE.{FLEET}", None, dict[str, Any], deadline=60)
    await stage.region.make_stream(max_msg_size=90)
    _, wrong = await examined(stage.config_path)
    limited = f"{FLEET} takes messages of at most 90 B: larger registrations are dropped, counted"
    assert ("WARN", limited) in [(level, said) for level, said, _ in wrong]


async def test_thresholds_that_do_not_fit_the_registrations_are_said(stage: Stage) -> None:
    stage.config_path.write_text(
        stage.config_path.read_text()
        .replace('"4s"', '"2100ms"')
        .replace('"1500ms"', '"1s"')
        .replace('settle = "300ms"', 'settle = "0s"')
    )
    for _ in range(3):
        await stage.site.publish(*(b'{"sender": "node-%d"}' % n for n in range(5)))
        await asyncio.sleep(2.2)
    code, wrong = await examined(stage.config_path)
    (interval,) = [said for level, said, _ in wrong if level == "FAIL"]
    assert code == 2
    pattern = r"senders register about every [2-9]s \(the stream's last 15 messages\), but stale_after is 2\.1s"
    assert re.match(pattern, interval), interval
    assert any("the whole site said nothing for longer than blind_after, 1s" in said for _, said, _ in wrong)


@pytest.mark.skipif(bool(CANNOT_STEP), reason=CANNOT_STEP)
@pytest.mark.parametrize(("ahead", "side"), [(HOUR // 2, "ahead of"), (-HOUR // 2, "behind")])
async def test_a_clock_that_does_not_agree_is_found(stage: Stage, ahead: int, side: str) -> None:
    with SteppedClock(stage.site.server) as clock:
        clock.set(ahead)
        # Measured between two readings of ours, which may lie a moment apart.
        beside = rf"(29m 5\ds|30m( \ds)?) {side} this host's, and the region's agrees with this host's"

        async def says_so() -> bool:
            _, wrong = await examined(stage.config_path)
            clocks = [(level, text) for level, text, _ in wrong if "its clock" in text]
            return len(clocks) == 1 and bool(re.fullmatch(f"WARN its clock is {beside}", " ".join(clocks[0])))

        await until(says_so, "it says which clock is wrong")


@pytest.mark.skipif(bool(CANNOT_STEP), reason=CANNOT_STEP)
async def test_a_site_clock_that_is_not_followed_or_has_been_set_back_is_found(stage: Stage) -> None:
    with SteppedClock(stage.site.server) as clock:
        clock.set(HOUR // 2)
        async with registering(stage.site, "a"), operated_agent(stage.config_path):
            await until(stage.region.observed_through, "it has vouched for a time to come")
            clock.set(0)
            set_back = r"STANDING STILL: its clock is (2\dm \d+s|30m( \ds)?) behind what it had shown before"
            await until(lambda: remedies(stage, set_back), "it says that the clock was set back")
            clock.set(365 * DAY)
            ahead = r"CLOCK AHEAD: its clock is 36\dd.* this host's, and the region's agrees with this host's"
            await until(lambda: remedies(stage, ahead), "it says that the clock is ahead")
        (remedy,) = await remedies(stage, ahead)
        assert remedy.startswith("set the site's server's clock")


async def remedies(stage: Stage, pattern: str) -> list[str]:
    """Give the remedies of what the doctor calls a failure in these words: under load it may be told less at first."""
    _, wrong = await examined(stage.config_path)
    return [remedy for level, text, remedy in wrong if level == "FAIL" and re.match(pattern, text)]


async def test_a_disk_that_has_no_room_or_will_have_none_is_found(stage: Stage, tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "disk") as disk:
        if not disk.is_small:
            pytest.skip("a disk of its own for the store can be mounted by root only")
        stage.store_path = disk.path / "agent.db"
        stage.write_settings()
        for left, level, found in (
            (80 << 20, "WARN", f"80 MiB free at {disk.path}, store.max_outbox is 2 GiB"),
            (1 << 20, "FAIL", f"1 MiB free at {disk.path}"),
        ):
            disk.fill(left)
            _, wrong = await examined(stage.config_path)
            assert [(how_bad, text) for how_bad, text, _ in wrong if "free at" in text] == [(level, found)]


async def test_messages_without_a_sender_are_said(stage: Stage) -> None:
    await stage.site.publish(b'{"sender": "a"}', b'{"certname": "b"}', b"not JSON")
    _, wrong = await examined(stage.config_path)
    assert (
        "WARN",
        "2 of the last 3 messages name no sender (no_sender 1, not_a_json_object 1): they are forwarded unsampled",
    ) in [(level, said) for level, said, _ in wrong]
    assert any('{"certname": "b"}; whoever sent it may be called stale' in said for _, said, _ in wrong)
    stage.config_path.write_text(stage.config_path.read_text().replace('"sender"', '"certname.name"'))
    code, wrong = await examined(stage.config_path)
    assert code == 2
    assert any(
        said.startswith("3 of the last 3 messages name no sender") for level, said, _ in wrong if level == "FAIL"
    )


async def test_what_copies_probes_and_heartbeats_need_is_looked_at(stage: Stage) -> None:
    await stage.site.publish(b'{"sender": "a"}', b"no JSON at all")
    text = stage.config_path.read_text().replace('settle = "300ms"', 'settle = "300ms"\nprobe_subject = "probe.nodes"')
    copying = f"""
[[stream]]
name = "events"
mode = "copy"
source = {{ servers = ["{stage.site.link.url}"], stream = "{STREAM}" }}
target = {{ prefix = "elsewhere" }}
heartbeat = {{ interval = "5s", subject = "registration.heartbeat" }}
"""
    stage.config_path.write_text(text + copying)
    code, wrong = await examined(stage.config_path)
    assert code == 2
    assert {text: remedy for level, text, remedy in wrong if level == "FAIL"} == {
        f"stream {STREAM} does not listen on probe.nodes (source.probe_subject)": (
            f"add it to the subjects of {STREAM}, or correct source.probe_subject"
        ),
        "elsewhere.>: no stream of this account in domain eu-west has that subject": (
            "create the stream with the subject elsewhere.>, or correct target.prefix; or correct servers and auth: "
            "a user without auth may belong to another account than the stream"
        ),
    }
    stage.config_path.write_text(
        text.replace("probe.nodes", "registration.probe") + copying.replace("elsewhere", "fleet.x")
    )
    _, page, _ = await OperatedAgent(stage.config_path).command("doctor")
    page = " ".join(page.split())
    assert f"stream {STREAM} listens on registration.probe (source.probe_subject), publishing is permitted" in page
    assert f"stream {STREAM} listens on registration.heartbeat (heartbeat.subject), publishing is permitted" in page
    assert f"{FLEET} listens on fleet.x.>, publishing is permitted" in page
    assert "settings of events" not in page, "a copy names no senders"
    assert (await stage.site.api(f"STREAM.INFO.{STREAM}"))["state"]["messages"] == 2, "nothing was stored by looking"


async def test_what_is_stored_unanswered_is_well(stage: Stage) -> None:
    await stage.site.delete_stream()
    await stage.site.make_stream(no_ack=True)
    await stage.site.publish(b'{"sender": "a"}')
    beating = '[stream.heartbeat]\ninterval = "5s"\nsubject = "registration.heartbeat"\n'
    stage.config_path.write_text(stage.config_path.read_text() + beating)
    _, page, _ = await OperatedAgent(stage.config_path).command("doctor")
    page = " ".join(page.split())
    for key in ("registration.muster-probe (the probe)", "registration.heartbeat (heartbeat.subject)"):
        assert f"stream {STREAM} listens on {key}, publishing is permitted, and what is stored is read back" in page


async def test_senders_that_repeat_an_id_are_said(stage: Stage) -> None:
    await stage.site.publish(b'{"sender": "a"}', headers={"Nats-Msg-Id": "boot"})
    _, wrong = await examined(stage.config_path)
    said = "a sender that repeated its Nats-Msg-Id would be stored once in 2m (duplicate_window), and be stale"
    assert said in [text for _, text, _ in wrong]

    await stage.site.delete_stream()
    await stage.site.make_stream(duplicate_window=100_000_000)
    for count in (1, 2):

        async def is_stored(count: int = count) -> bool:
            await stage.site.client.request(
                "registration.nodes", b'{"sender": "a"}', headers={"Nats-Msg-Id": "boot"}, timeout=60
            )
            return await stage.site.last_sequence() >= count

        await until(is_stored, "the server has forgotten the id")
    _, wrong = await examined(stage.config_path)
    said = (
        "senders that repeat a Nats-Msg-Id: 1, for example a with boot: of those the server stores one in 100ms "
        "(duplicate_window), and who sends it is not heard in between"
    )
    assert ("WARN", said, "let them send a new id each time, or none") in wrong


async def test_a_consumer_that_cannot_serve_is_found(stage: Stage) -> None:
    text = stage.config_path.read_text()
    told = 'settle = "300ms"\ncreate_consumer = false\nfilter_subject = "registration.*"'
    stage.config_path.write_text(text.replace('settle = "300ms"', told))
    await stage.site.delete_stream()
    await stage.site.make_stream(retention="workqueue")
    _, wrong = await examined(stage.config_path)
    (remedy,) = [
        remedy
        for level, said, remedy in wrong
        if (level, said) == ("FAIL", f"there is no consumer {CONSUMER}, and create_consumer is false")
    ]
    command = re.fullmatch(r"nats req '\$JS\.API\.(.*)' '(.*)', or let create_consumer be true", remedy)
    assert command
    made = await stage.site.api(command[1], msgspec.json.decode(command[2]))
    config = {"ack_policy": "explicit", "max_ack_pending": -1, "max_deliver": -1, "filter_subject": "registration.*"}
    assert config.items() <= made["config"].items()
    assert not [said for _, said, _ in (await examined(stage.config_path))[1] if "consumer" in said]
    await stage.site.delete_stream()
    await stage.site.make_stream()
    body = {"stream_name": STREAM, "config": {"durable_name": CONSUMER, "ack_policy": "none"}}
    await stage.site.api(f"CONSUMER.CREATE.{STREAM}.{CONSUMER}", body)
    _, wrong = await examined(stage.config_path)
    assert any(
        "must be a pull consumer with ack policy all or explicit, and is one with none" in said for _, said, _ in wrong
    )


async def test_files_that_others_can_read_or_change_are_found(stage: Stage, tmp_path: Path) -> None:
    await stage.site.publish(b'{"sender": "a"}')
    token = tmp_path / "token"
    token.write_text("secret\n")
    token.chmod(0o644)
    text = stage.config_path.read_text().replace(
        "[store]", f'[upstream.auth]\ntoken_file = "{token}"\n[store]\nmax_outbox = "900TiB"'
    )
    stage.config_path.write_text(text)
    stage.config_path.chmod(0o666)
    (tmp_path / "agent.db.corrupt-1").touch(mode=0o640)
    stage.store_path.touch(mode=0o644)
    _, wrong = await examined(stage.config_path)
    said = {text: remedy for level, text, remedy in wrong if level == "WARN"}
    assert said[f"{stage.config_path} can be changed by everyone on this host"] == f"chmod o-w {stage.config_path}"
    named = f"upstream.auth.token_file {token} is open to everyone on this host"
    assert said[named] == f"chmod 600 {token}, and renew the secret"
    assert f"set aside as corrupt: {tmp_path}/agent.db.corrupt-1" in said
    assert f"{stage.store_path}: open to everyone on this host" in said
    assert any(text.endswith("store.max_outbox is 900.00 TiB") for text in said)
    token.unlink()
    code, wrong = await examined(stage.config_path)
    assert code == 2
    assert ("FAIL", f"upstream.auth.token_file {token}: there is no such file") in [
        (level, text) for level, text, _ in wrong
    ]


async def test_settings_that_cannot_be_read_end_the_examination(tmp_path: Path) -> None:
    config_path = tmp_path / "agent.toml"
    config_path.write_text('site = "dub1"\nregion = "eu west"\n')
    code, wrong = await examined(config_path)
    assert code == 2
    assert [said.partition(": ")[0] for _, said, _ in wrong] == [str(config_path)]


USERS = """
authorization {{ users: [
  {{ user: admin, password: admin }}
  {{ user: agent, password: agent, permissions: {{
    publish: {{ allow: [{publish}] }}
    subscribe: {{ allow: ["{inbox}"] }}
  }} }}
] }}
"""
CREATE = f"$JS.API.CONSUMER.CREATE.{STREAM}.{CONSUMER}"
LEAST = (
    f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{CONSUMER}",
    f"$JS.ACK.{STREAM}.{CONSUMER}.>",
    f"$JS.API.CONSUMER.INFO.{STREAM}.{CONSUMER}",
    f"$JS.API.CONSUMER.RESET.{STREAM}.{CONSUMER}",
    f"$JS.API.STREAM.INFO.{STREAM}",
    f"{SUBJECT}.>",
    "registration.muster-probe",
)


@pytest.mark.parametrize("missing", [None, *LEAST])
async def test_a_permission_that_is_missing_is_named_and_the_least_are_enough(
    tmp_path: Path, missing: str | None
) -> None:
    code, wrong = await examined_where(tmp_path, [subject for subject in LEAST if subject != missing], is_new=False)
    if missing is None:
        assert [said for _, said, _ in wrong] == ["it has not run on this store yet"]
    else:
        assert code == 2
        (failure,) = [said for level, said, _ in wrong if level == "FAIL"]
        assert missing in failure


@pytest.mark.parametrize("missing", [CREATE, *LEAST[:2], LEAST[3]])
async def test_a_permission_that_is_missing_is_named_before_the_consumer_is_made(tmp_path: Path, missing: str) -> None:
    permitted = [subject for subject in (CREATE, *LEAST) if subject != missing]
    code, wrong = await examined_where(tmp_path, permitted, is_new=True)
    assert (code, [said for level, said, _ in wrong if level == "FAIL"]) == (
        2,
        [f"not permitted: publish on {missing}, as user agent"],
    )


@pytest.mark.parametrize(
    ("written", "mistyped", "keys", "denied"),
    [
        (f'stream = "{STREAM}"', 'stream = "REGISTRATON"', "source.stream or source.domain", "STREAM.INFO.REGISTRATON"),
        (
            f'stream = "{STREAM}"',
            f'stream = "{STREAM}"\ndomain = "hbu"',
            "source.stream or source.domain",
            "$JS.hbu.API",
        ),
        ('region = "eu-west"', 'region = "eu-wset"', "region, site or the block's name", "fleet.eu-wset.dub1.nodes.>"),
    ],
)
async def test_what_is_mistyped_is_named_before_a_permission_is_asked_for(
    tmp_path: Path, written: str, mistyped: str, keys: str, denied: str
) -> None:
    _, wrong = await examined_where(tmp_path, list(LEAST), is_new=False, instead=(written, mistyped))
    (remedy,) = [
        remedy for level, said, remedy in wrong if level == "FAIL" and denied in said and "as user agent" in said
    ]
    assert remedy.startswith(f"correct {keys} if that is mistyped; else allow user agent to publish there")


async def test_an_agent_that_may_not_listen_is_not_told_to_create_a_stream(tmp_path: Path) -> None:
    _, wrong = await examined_where(tmp_path, list(LEAST), is_new=False, inbox="_INBOX_other.>")
    failed = [(said.partition(": ")[2], remedy) for level, said, remedy in wrong if level == "FAIL"]
    assert failed == 2 * [
        (
            "not permitted: subscribe to _INBOX_dub1.>, as user agent: no answer is heard",
            "correct site if that is mistyped; else allow user agent to subscribe there",
        )
    ]


async def examined_where(
    tmp_path: Path,
    permitted: list[str],
    *,
    is_new: bool,
    instead: tuple[str, str] = ("", ""),
    inbox: str = "_INBOX_dub1.>",
) -> tuple[int, Findings]:
    """Examine a site whose agent may publish only there, and whose consumer, where it ``is_new``, it shall make.

    Of ``instead``, the second stands in the settings in the place of the first.
    """
    publish = ", ".join(f'"{subject}"' for subject in permitted)
    settings = ServerSettings(
        name="both", store_dir=tmp_path / "nats", extra_config=USERS.format(publish=publish, inbox=inbox)
    )
    (tmp_path / "password").write_text("agent\n")
    (tmp_path / "password").chmod(0o600)
    async with EmbeddedNats(settings) as server:
        await with_streams(server, tmp_path, with_consumer=not is_new)
        config_path = tmp_path / "agent.toml"
        creates = "true" if is_new else "false"
        auth = f'user = "agent"\npassword_file = "{tmp_path}/password"'
        config_path.write_text(
            f'site = "dub1"\nregion = "eu-west"\n[upstream]\nservers = ["{server.url}"]\n[upstream.auth]\n{auth}\n'
            f'[store]\npath = "{tmp_path}/agent.db"\n[[stream]]\nname = "nodes"\n'
            f'[stream.source]\nservers = ["{server.url}"]\nstream = "{STREAM}"\ncreate_consumer = {creates}\n'
            f'[stream.source.auth]\n{auth}\n[stream.sender]\njson_path = "sender"\n'
        )
        config_path.write_text(config_path.read_text().replace(*instead))
        return await examined(config_path)


async def with_streams(server: EmbeddedNats, directory: Path, *, with_consumer: bool) -> None:
    password = directory / "admin"
    password.write_text("admin\n")
    auth = AuthSettings(user="admin", password_file=FilePath(password))
    client = await connect(ConnectionSettings(servers=(server.url,), auth=auth), name="test", deadline=10)
    try:
        jetstream = client.jetstream()
        await jetstream.add_stream(name=STREAM, subjects=["registration.>"])
        await jetstream.add_stream(name=FLEET, subjects=["fleet.>"])
        await jetstream.publish("registration.a", b'{"sender": "a"}')
        config = {"durable_name": CONSUMER, "ack_policy": "all", "max_ack_pending": -1}
        body = {"stream_name": STREAM, "config": config}
        if with_consumer:
            await request_json(client, CREATE, body, dict[str, Any], deadline=60)
    finally:
        await client.close()
