"""A probe shows that a quiet stream stores; where it is refused, silence proves nothing; nobody is taken for it."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from nats.aio.msg import Msg

from edge_agent.source import own_messages
from edge_agent.source.consumer import SourceAddress
from edge_agent.source.port import OwnMessagePhase
from shared.identifiers import AdvisoryKind
from shared.instants import SECOND
from shared.nats.connection import AuthSettings
from tests.support.agent.agent_process import SETTINGS, STALE_AFTER, Deployment, deployed
from tests.support.nats.one_server import written
from tests.support.nats.source_site import (
    CONSUMER,
    STREAM,
    SUBJECT,
    ProbeSettings,
    Reader,
    Site,
    exhaust,
    reading,
    running_site,
)
from tests.support.waiting import until

PROBE = ProbeSettings("registration.probe")
MINUTE = 60_000_000


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        yield site


async def proves(reader: Reader) -> bool:
    """Read what there is, check as the agent does, and tell whether the check is a proof."""
    await reader.take(await reader.source.read(0.05))
    return (await reader.check()).caught_up_through > 0


def origins(reader: Reader) -> list[str]:
    return [(message.headers or {}).get("Muster-Probe", "") for message in reader.received]


async def test_a_quiet_stream_is_probed_and_the_probe_is_read_back(site: Site) -> None:
    await site.make_stream()
    async with reading(site, probe=PROBE) as reader:
        assert not await proves(reader), "nothing was ever stored"
        await until(lambda: proves(reader), "the probe is read and the check counts")
        assert origins(reader) == ["eu-west.dub1.nodes"]
        assert reader.received[0].subject == "registration.probe"
        assert msgspec.json.decode(reader.received[0].payload) == {
            "protocol": "muster:probe:1",
            "origin": "eu-west.dub1.nodes",
        }
        assert reader.probe_reports == [(OwnMessagePhase.STORED, "")]


async def test_probes_go_on_while_nobody_registers(site: Site) -> None:
    await site.make_stream()
    async with reading(site, probe=PROBE) as reader:

        async def several() -> bool:
            await proves(reader)
            return len(reader.received) >= 4

        await until(several, "four probes are read")
        instants = [message.stored_at for message in reader.received]
        assert all(later - before >= PROBE.blind_after // 4 for before, later in pairwise(instants))


async def test_a_stream_on_which_senders_register_is_seldom_probed(site: Site) -> None:
    await site.make_stream()
    async with reading(site, probe=ProbeSettings("registration.probe", blind_after=4 * MINUTE)) as reader:
        await site.publish(b'{"sender":"a"}')
        await reader.read_on(1)
        for _ in range(5):
            assert await proves(reader)
        assert await site.last_sequence() == 1


async def test_a_busy_stream_is_probed_when_it_is_opened_and_once_in_blind_after(site: Site) -> None:
    """One that is full and lets go of old messages takes some of what is sent: only a refused probe shows the rest."""
    await site.make_stream()
    async with reading(site, probe=PROBE) as reader:

        async def is_probed_again() -> bool:
            await site.publish(b'{"sender":"a"}')
            await proves(reader)
            return origins(reader).count("eu-west.dub1.nodes") >= 2

        await until(is_probed_again, "two probes come among the registrations")
        first, second = [each.stored_at for each in reader.received if each.headers][:2]
        assert first - reader.received[0].stored_at < PROBE.blind_after
        assert second - first >= PROBE.blind_after // 2


async def test_a_probe_is_as_large_as_the_streams_messages(site: Site) -> None:
    """What lets only small messages through, or has little room, is seen."""
    await site.make_stream()
    await site.publish(*[b"x" * 5_000] * 3)
    async with reading(site, probe=PROBE) as reader:
        await until(lambda: proves(reader), "the probe is read and the check counts")
        await until(lambda: has_probed(reader), "a probe is read")
        probe = next(each for each in reader.received if each.headers)
        assert 4_500 < len(probe.payload) <= 5_000


async def has_probed(reader: Reader) -> bool:
    await proves(reader)
    return any(message.headers for message in reader.received)


@pytest.mark.parametrize("publish_error", ["full", "sealed"])
async def test_a_probe_that_the_stream_would_refuse_is_not_sent_and_nothing_is_proved(
    site: Site, publish_error: str
) -> None:
    await site.make_stream(discard="new", max_msgs=3)
    async with reading(site, probe=PROBE) as reader:
        await site.publish(b'{"sender":"a"}')
        await until(lambda: proves(reader), "the check counts")
        if publish_error == "full":
            while (missing := 3 - await site.last_sequence()) > 0:
                await site.publish(*[b'{"sender":"a"}'] * missing)
        else:
            await site.update_stream(sealed=True)

        async def is_told() -> bool:
            assert not await proves(reader)
            return bool(reader.probe_reports) and reader.probe_reports[-1][0] is OwnMessagePhase.NOT_STORED

        await until(is_told, "it is said")
        why = "is full and refuses what is new" if publish_error == "full" else "is sealed"
        said = f"registration.probe: the stream {why}; silence proves nothing meanwhile"
        assert reader.probe_reports[-1][1] == said
        last = await site.last_sequence()
        assert not await proves(reader)
        assert await site.last_sequence() == last


async def test_a_probe_that_the_stream_refuses_proves_nothing_until_one_is_stored(tmp_path: Path) -> None:
    """What STREAM.INFO does not show: another stream has taken all that the server may store."""
    async with running_site(tmp_path, max_file="1MB") as site:
        await site.make_stream()
        async with reading(site, probe=PROBE) as reader:
            await until(lambda: proves(reader), "the first probe is stored and the check counts")
            await exhaust(site)

            async def is_told() -> bool:
                proven = await proves(reader)
                return not proven and reader.probe_reports[-1][0] is OwnMessagePhase.NOT_STORED

            await until(is_told, "the next is refused and checks do not count")
            assert "insufficient" in reader.probe_reports[-1][1]
            await site.api("STREAM.DELETE.OTHER")
            await until(lambda: proves(reader), "a probe is stored again")
            assert reader.probe_reports[-1] == (OwnMessagePhase.STORED, "")


async def test_a_probe_that_is_not_answered_is_known_by_being_read_back(site: Site) -> None:
    await site.make_stream(no_ack=True)
    async with reading(site, probe=PROBE) as reader:
        await until(lambda: proves(reader), "what was stored proves")
        assert reader.probe_reports == [(OwnMessagePhase.STORED, "")]


async def test_a_probe_without_an_answer_that_does_not_come_back_is_said(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_messages, "PATIENCE", 0.5)
    transform = {"src": "registration.probe", "dest": "elsewhere.probe"}
    await site.make_stream(no_ack=True, subject_transform=transform)
    address = SourceAddress(STREAM, CONSUMER, filter_subject="registration.>")
    async with reading(site, address, probe=PROBE) as reader:

        async def is_told() -> bool:
            assert not await proves(reader)
            return bool(reader.probe_reports)

        await until(is_told, "it is said")
        said = "registration.probe: no answer within 0.5 s; silence proves nothing meanwhile"
        assert reader.probe_reports == [(OwnMessagePhase.NOT_STORED, said)]


async def test_others_probes_prove_as_much_and_no_more_are_sent_than_are_needed(site: Site) -> None:
    await site.make_stream()
    async with reading(site, probe=ProbeSettings("registration.probe", blind_after=4 * MINUTE)) as reader:
        await site.publish(b"{}", subject="registration.other.probe", headers={"Muster-Probe": "eu-west.dub1.other"})
        for _ in range(5):
            assert await proves(reader)
        assert origins(reader) == ["eu-west.dub1.other"]


async def test_two_readers_may_probe_one_stream(site: Site) -> None:
    await site.make_stream()
    other = SourceAddress(STREAM, "muster-dub1-other")
    theirs = ProbeSettings("registration.other.probe", "eu-west.dub1.other")
    async with reading(site, probe=PROBE) as one, reading(site, other, probe=theirs) as two:

        async def both() -> bool:
            proven = [await proves(one), await proves(two)]
            return all(proven) and len(one.received) >= 3 and len(two.received) >= 3

        await until(both, "both prove by what either sent")
        assert origins(one)[:3] == origins(two)[:3]


async def test_a_probe_passes_the_filter_that_covers_it(site: Site) -> None:
    await site.make_stream(subjects=["registration.>", "other.>"])
    address = SourceAddress(STREAM, CONSUMER, filter_subject="registration.*")
    async with reading(site, address, probe=PROBE) as reader:
        await site.publish(b"of others", subject="other.one")
        await until(lambda: proves(reader), "the probe is read and the check counts")
        assert origins(reader) == ["eu-west.dub1.nodes"]


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
async def test_a_stream_that_keeps_only_what_is_unread_is_probed(site: Site, retention: str) -> None:
    await site.make_stream(retention=retention)
    async with reading(site, probe=PROBE) as reader:
        await until(lambda: proves(reader), "the probe is read and the check counts")

        async def is_empty() -> bool:
            # The check that counted may have sent another.
            await reader.take(await reader.source.read(0.05))
            return int((await site.api(f"STREAM.INFO.{STREAM}"))["state"]["messages"]) == 0

        await until(is_empty, "it is acknowledged and gone")


OWN = "muster.probe.eu-west.dub1.nodes"
BY_SUBJECT_TAKES_NONE = (
    "the stream refuses by subject, and that it stores a probe says nothing of others: take discard_new_per_subject "
    "from it"
)
BY_SUBJECT = {"discard": "new", "discard_new_per_subject": True, "max_msgs_per_subject": 5}
COPYING = {"sources": [{"name": "ORIGIN"}]}


@pytest.mark.parametrize(
    ("config", "filter_subject", "subject", "why"),
    [
        ({}, "", "probes.dub1", "the stream does not listen on probes.dub1: add it to its subjects"),
        (
            {"subjects": ["registration.nodes"]},
            "",
            "",
            f"no subject below registration.nodes is free for a probe: add {OWN} to the stream's subjects",
        ),
        (
            {},
            "registration.nodes",
            "",
            "no subject below registration.nodes is free for a probe: set source.probe_subject to one that passes",
        ),
        (BY_SUBJECT, "", "", BY_SUBJECT_TAKES_NONE),
        (COPYING, "", "", ""),
    ],
)
async def test_where_no_probe_can_be_published_silence_proves_nothing(
    site: Site, config: dict[str, object], filter_subject: str, subject: str, why: str
) -> None:
    await site.api("STREAM.CREATE.ORIGIN", {"name": "ORIGIN", "subjects": ["origin"]})
    await site.make_stream(**config)
    address = SourceAddress(STREAM, CONSUMER, filter_subject=filter_subject)
    async with reading(site, address, probe=ProbeSettings(subject, blind_after=1_500_000)) as reader:
        phase = OwnMessagePhase.OFF if why else OwnMessagePhase.NOT_NEEDED
        assert reader.probe_reports == [(phase, why)]
        assert not await proves(reader), "nothing was ever stored"

        async def proves_by_somebody() -> bool:
            await site.client.publish(SUBJECT, b'{"sender":"a"}')
            return await proves(reader)

        await until(proves_by_somebody, "somebody was stored just now")

        async def proves_nothing() -> bool:
            return not await proves(reader)

        await until(proves_nothing, "that is long ago")


async def test_a_stream_whose_subjects_are_not_reached_from_here_takes_no_probe(site: Site) -> None:
    """The API may be reached, by an import or a domain, where what the stream listens on is not."""
    await site.make_stream()
    async with reading(site, probe=ProbeSettings("registration.probe", blind_after=2_000_000)) as reader:
        answer = Msg(reader.client, headers={"Status": "503"})
        await reader.source._probe._take_answer(answer)  # type: ignore[union-attr]
        why = "no stream answers on registration.probe: what is published here does not reach it"
        assert reader.probe_reports == [(OwnMessagePhase.OFF, why)]
        assert (await reader.check()).publish_error == ""


@pytest.mark.parametrize(
    ("subjects", "filter_subject", "chosen"),
    [
        (["registration.>"], "", "registration.muster-probe"),
        (["one", "site.*.facts"], "", "site.muster-probe.facts"),
        (["registration.>", "muster.probe.eu-west.dub1.nodes"], "", "muster.probe.eu-west.dub1.nodes"),
        (["registration.>", "muster.probe.eu-west.dub1.nodes"], "registration.*", "registration.muster-probe"),
    ],
)
async def test_a_subject_is_chosen_that_no_registration_uses(
    site: Site, subjects: list[str], filter_subject: str, chosen: str
) -> None:
    await site.make_stream(subjects=subjects)
    address = SourceAddress(STREAM, CONSUMER, filter_subject=filter_subject)
    async with reading(site, address, probe=ProbeSettings()) as reader:
        await until(lambda: has_probed(reader), "a probe is read")
        assert {message.subject for message in reader.received} == {chosen}


@pytest.mark.parametrize("subject", ["registration.probe", "registration.Probe"])
async def test_a_probe_that_is_not_permitted_is_said_once_and_reading_goes_on(tmp_path: Path, subject: str) -> None:
    permissions = """
    authorization { users: [
      { user: admin, password: secret }
      { user: agent, password: secret, permissions: { publish: { allow: ["$JS.API.>", "$JS.ACK.>"] } } }
    ] }
    no_auth_user: admin
    """
    password = written(tmp_path / "password", "secret")
    async with running_site(tmp_path, permissions) as site:
        await site.make_stream()
        auth = AuthSettings(user="agent", password_file=password)
        async with reading(site, probe=ProbeSettings(subject), auth=auth) as reader:

            async def is_told() -> bool:
                await proves(reader)
                return bool(reader.probe_reports)

            await until(is_told, "it is said")
            assert reader.probe_reports == [
                (
                    OwnMessagePhase.OFF,
                    f"not permitted: publish on {subject}; allow the agent's user to",
                )
            ]
            await site.publish(b'{"sender":"a"}')
            await reader.read_on(1)
            assert await proves(reader)
            await asyncio.sleep(0)
            assert len(reader.opened) == 1
            assert len(reader.probe_reports) == 1


async def test_a_probe_is_published_as_soon_as_it_is_permitted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_messages, "RETRY", 0.5)
    permissions = """
    authorization {{ users: [
      {{ user: admin, password: secret }}
      {{ user: agent, password: secret, permissions: {{ publish: {{ deny: "{denied}" }} }} }}
    ] }}
    no_auth_user: admin
    """
    password = written(tmp_path / "password", "secret")
    async with running_site(tmp_path, permissions.format(denied="registration.probe")) as site:
        await site.make_stream()
        auth = AuthSettings(user="agent", password_file=password)
        async with reading(site, probe=PROBE, auth=auth) as reader:

            async def is_said(phase: OwnMessagePhase) -> bool:
                await proves(reader)
                return bool(reader.probe_reports) and reader.probe_reports[-1][0] is phase

            await until(lambda: is_said(OwnMessagePhase.OFF), "it is said that it is not permitted")
            site.server.reload(permissions.format(denied="elsewhere"))
            await until(lambda: is_said(OwnMessagePhase.STORED), "a probe is stored, over the same connection")
            assert await proves(reader)
            assert [phase for phase, _ in reader.probe_reports] == [OwnMessagePhase.OFF, OwnMessagePhase.STORED]
            assert len(reader.opened) == 1


# The whole agent


WITH_PROBE = SETTINGS.replace('settle = "200ms"', 'settle = "200ms"\nprobe_subject = "registration.probe"')
NAMES = ["a.example.net", "b.example.net"]


async def have_said(deployment: Deployment, count: int) -> bool:
    return len(await deployment.advisories()) >= count


async def counted(deployment: Deployment, what: str) -> dict[str, int]:
    status = await deployment.agent.status_json()
    return dict(status["blocks"][0]["state"]["counters"].get(what, {})) if status.get("blocks") else {}


async def part(deployment: Deployment, name: str) -> dict[str, str]:
    return dict((await deployment.agent.status_json()).get("parts", {}).get(name, {}))


async def test_senders_of_a_quiet_site_are_reported_and_probes_are_not_passed_on(tmp_path: Path) -> None:
    async with deployed(tmp_path, WITH_PROBE) as deployment:
        deployment.agent.start()
        await deployment.until_observed(deadline=60)
        await deployment.site.publish(*(msgspec.json.encode({"sender": name}) for name in NAMES))
        await until(partial(have_said, deployment, 2 * len(NAMES)), "all were new and are stale")
        advisories = await deployment.advisories()
        assert [(advisory.kind, advisory.value) for advisory in advisories] == [
            *((AdvisoryKind.NEW, name) for name in NAMES),
            *((AdvisoryKind.STALE, name) for name in NAMES),
        ]
        assert (await counted(deployment, "probes"))["own"] >= 3
        assert await counted(deployment, "valid") == {"registrations": 2}
        assert not await counted(deployment, "rejected")
        records = await deployment.region.stored()
        assert sum(record.subject.endswith(".registration") for record in records) == 2
        assert (await part(deployment, "probe of nodes"))["phase"] == "stored"


async def test_nobody_is_accused_who_could_not_have_been_stored(tmp_path: Path) -> None:
    """STREAM.INFO shows nothing of this refusal: without probes, the senders would be taken for silent."""
    async with deployed(tmp_path, WITH_PROBE) as deployment:
        await deployment.site.update_stream(discard="new", discard_new_per_subject=True, max_msgs_per_subject=1)
        deployment.agent.start()
        await deployment.site.publish(msgspec.json.encode({"sender": "a"}), subject="registration.a")
        await until(partial(have_said, deployment, 1), "it is new")

        async def is_told() -> bool:
            return (await part(deployment, "probe of nodes")).get("phase") == "off"

        await until(is_told, "status says that probes would prove nothing", deadline=60)
        refused_through = await deployment.site_time() + 2 * STALE_AFTER

        async def has_passed() -> bool:
            return await deployment.site_time() > refused_through

        await until(has_passed, "the senders have been refused for a long time", deadline=60)
        assert {advisory.kind for advisory in await deployment.advisories()} == {AdvisoryKind.NEW}
        assert "refuses by subject" in (await part(deployment, "probe of nodes"))["reason"]

        await deployment.site.update_stream(discard_new_per_subject=False, discard="old", max_msgs_per_subject=-1)
        mark = await deployment.until_observed(await deployment.site_time() + SECOND, deadline=60)
        assert mark.observed_since_us > refused_through
        assert {advisory.kind for advisory in await deployment.advisories()} == {AdvisoryKind.NEW}


async def test_an_agent_whose_probes_are_not_permitted_says_so_and_reads_on(tmp_path: Path) -> None:
    permissions = """
    authorization { users: [
      { user: admin, password: secret }
      { user: agent, password: secret, permissions: { publish: { allow: ["$JS.API.>", "$JS.ACK.>"] } } }
    ] }
    no_auth_user: admin
    """
    written(tmp_path / "password", "secret")
    auth = '[stream.source.auth]\nuser = "agent"\npassword_file = "password"\n\n[stream.sender]'
    settings = WITH_PROBE.replace("[stream.sender]", auth)
    async with deployed(tmp_path, settings, site_config=permissions) as deployment:
        deployment.agent.start()

        async def is_told() -> bool:
            return await part(deployment, "probe of nodes") != {}

        await until(is_told, "status says it", deadline=60)
        await deployment.site.publish(msgspec.json.encode({"sender": "a"}))

        async def is_blind() -> bool:
            found = {each["name"]: each["what"] for each in (await deployment.agent.status_json())["conditions"]}
            assert "probe_not_stored" in found
            return "(probe off: not permitted" in found.get("time_unproven", "")

        await until(is_blind, "it is said that silence proves nothing, and why")
        long_after = await deployment.site_time() + 2 * STALE_AFTER

        async def has_passed() -> bool:
            return await deployment.site_time() > long_after

        await until(has_passed, "the sender has been silent for a long time")
        assert [advisory.kind for advisory in await deployment.advisories()] == [AdvisoryKind.NEW]
        probe, source, stream = [
            await part(deployment, f"{name} nodes") for name in ("probe of", "source of", "stream")
        ]
        assert (probe["phase"], source["phase"], stream["phase"]) == ("off", "connected", "reading")
        assert probe["reason"] == "not permitted: publish on registration.probe; allow the agent's user to"
        assert deployment.agent.log.count("probe of nodes: off: not permitted: publish on registration.probe") == 1
