"""A probe shows that a quiet stream stores; where it is refused, silence proves nothing; nobody is taken for it."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from edge_agent import probe as probe_module
from edge_agent.source_consumer import SourceAddress
from edge_agent.storing import StoringPhase
from shared.identifiers import AdvisoryKind
from shared.instants import SECOND
from shared.nats_connection import AuthSettings
from tests.support.agent_process import SETTINGS, STALE_AFTER, Deployment, deployed
from tests.support.one_server import written
from tests.support.source_site import CONSUMER, STREAM, ProbeSettings, Reader, Site, reading, running_site
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
    return (await reader.source.check()).caught_up_through > 0


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
        assert reader.probe_reports == [(StoringPhase.STORED, "")]


async def test_probes_go_on_while_nobody_registers(site: Site) -> None:
    await site.make_stream()
    async with reading(site, probe=PROBE) as reader:

        async def several() -> bool:
            await proves(reader)
            return len(reader.received) >= 4

        await until(several, "four probes are read")
        instants = [message.stored_at for message in reader.received]
        assert all(later - before >= PROBE.interval for before, later in pairwise(instants))


async def test_a_stream_on_which_senders_register_is_not_probed(site: Site) -> None:
    await site.make_stream()
    async with reading(site, probe=ProbeSettings("registration.probe", interval=MINUTE)) as reader:
        await site.publish(b'{"sender":"a"}')
        for _ in range(5):
            assert await proves(reader)
        assert await site.last_sequence() == 1


@pytest.mark.parametrize("refusal", ["full", "sealed"])
async def test_a_probe_that_the_stream_would_refuse_is_not_sent_and_nothing_is_proved(site: Site, refusal: str) -> None:
    await site.make_stream(discard="new", max_msgs=3)
    async with reading(site, probe=PROBE) as reader:
        await site.publish(b'{"sender":"a"}')
        await until(lambda: proves(reader), "the check counts")
        if refusal == "full":
            while (missing := 3 - await site.last_sequence()) > 0:
                await site.publish(*[b'{"sender":"a"}'] * missing)
        else:
            await site.update_stream(sealed=True)

        async def is_told() -> bool:
            assert not await proves(reader)
            return bool(reader.probe_reports) and reader.probe_reports[-1][0] is StoringPhase.NOT_STORED

        await until(is_told, "it is said")
        why = "is full and refuses what is new" if refusal == "full" else "is sealed"
        said = f"registration.probe: the stream {why}; silence proves nothing meanwhile"
        assert reader.probe_reports[-1][1] == said
        last = await site.last_sequence()
        assert not await proves(reader)
        assert await site.last_sequence() == last


async def test_a_probe_that_the_stream_refuses_proves_nothing_until_one_is_stored(site: Site) -> None:
    # What STREAM.INFO does not show as full: one message for each subject, and no other in its place.
    await site.make_stream(discard="new", discard_new_per_subject=True, max_msgs_per_subject=1)
    async with reading(site, probe=PROBE) as reader:
        await until(lambda: proves(reader), "the first probe is stored and the check counts")

        async def is_told() -> bool:
            proven = await proves(reader)
            return not proven and reader.probe_reports[-1][0] is StoringPhase.NOT_STORED

        await until(is_told, "the next is refused and checks do not count")
        assert "maximum messages per subject exceeded" in reader.probe_reports[-1][1]
        await site.api(f"STREAM.PURGE.{STREAM}")
        await until(lambda: proves(reader), "a probe is stored again")
        assert reader.probe_reports[-1] == (StoringPhase.STORED, "")


async def test_a_probe_that_is_off_lets_no_check_count_of_a_stream_that_refuses_by_subject(site: Site) -> None:
    await site.make_stream(discard="new", discard_new_per_subject=True, max_msgs_per_subject=5)
    async with reading(site, probe=ProbeSettings(subject="nobody.listens.there")) as reader:
        assert (await reader.source.check()).caught_up_through == 0
        assert reader.probe_reports[-1][0] is StoringPhase.OFF


async def test_a_probe_without_an_answer_is_said_and_sent_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_module, "PATIENCE", 0.5)
    await site.make_stream(no_ack=True)
    async with reading(site, probe=PROBE) as reader:

        async def is_told() -> bool:
            await proves(reader)
            return bool(reader.probe_reports)

        await until(is_told, "it is said")
        assert reader.probe_reports[0] == (
            StoringPhase.NOT_STORED,
            "registration.probe: no answer within 0.5 s; silence proves nothing meanwhile",
        )
        # What comes back proves all the same: it was stored.
        await until(lambda: proves(reader), "what was stored proves")


async def test_others_probes_prove_as_much_and_no_more_are_sent_than_are_needed(site: Site) -> None:
    await site.make_stream()
    async with reading(site, probe=ProbeSettings("registration.probe", interval=MINUTE)) as reader:
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

        await until(both, "both prove by what either sent", deadline=60)
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
            return int((await site.api(f"STREAM.INFO.{STREAM}"))["state"]["messages"]) == 0

        await until(is_empty, "it is acknowledged and gone")


async def test_a_subject_that_the_stream_does_not_take_is_said_and_checks_count_without_probes(site: Site) -> None:
    await site.make_stream()
    async with reading(site, probe=ProbeSettings("probes.dub1")) as reader:
        assert await proves(reader)
        assert reader.probe_reports == [
            (StoringPhase.OFF, "the stream does not listen on probes.dub1: add it to its subjects")
        ]


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
                    StoringPhase.OFF,
                    f"not permitted: publish on {subject}; allow it, or take probe_subject out",
                )
            ]
            assert await proves(reader)
            await site.publish(b'{"sender":"a"}')
            await reader.read_on(1)
            await asyncio.sleep(0)
            assert len(reader.opened) == 1
            assert len(reader.probe_reports) == 1


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
        await deployment.until_observed(deadline=60)
        await deployment.site.publish(msgspec.json.encode({"sender": "a"}), subject="registration.a")

        async def is_told() -> bool:
            return (await part(deployment, "probe of nodes")).get("phase") == "not stored"

        await until(is_told, "status says that probes are refused", deadline=60)
        refused_through = await deployment.site_time() + 2 * STALE_AFTER

        async def has_passed() -> bool:
            return await deployment.site_time() > refused_through

        await until(has_passed, "the senders have been refused for a long time", deadline=60)
        assert {advisory.kind for advisory in await deployment.advisories()} == {AdvisoryKind.NEW}
        assert "maximum messages per subject exceeded" in (await part(deployment, "probe of nodes"))["reason"]

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
        await until(partial(have_said, deployment, 2), "it was new and is stale")
        kinds = [advisory.kind for advisory in await deployment.advisories()]
        assert kinds == [AdvisoryKind.NEW, AdvisoryKind.STALE]
        probe, source, stream = [
            await part(deployment, f"{name} nodes") for name in ("probe of", "source of", "stream")
        ]
        assert (probe["phase"], source["phase"], stream["phase"]) == ("off", "connected", "reading")
        assert probe["reason"] == "not permitted: publish on registration.probe; allow it, or take probe_subject out"
        assert deployment.agent.log.count("not permitted: publish on registration.probe") == 1
