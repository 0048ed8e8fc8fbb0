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
from tests.support.agent_process import BLIND_AFTER, SETTINGS, STALE_AFTER, Deployment, deployed
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
        assert reader.probe_reports == [(StoringPhase.STORED, "")]


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


async def test_a_busy_stream_is_probed_once_in_blind_after(site: Site) -> None:
    """One that is full and lets go of old messages takes some of what is sent: only a refused probe shows the rest."""
    await site.make_stream()
    async with reading(site, probe=PROBE) as reader:

        async def is_probed() -> bool:
            await site.publish(b'{"sender":"a"}')
            await proves(reader)
            return "eu-west.dub1.nodes" in origins(reader)

        began_at = reader.position.stored_at
        await until(is_probed, "a probe comes among the registrations")
        first = next(each for each in reader.received if each.headers)
        assert first.stored_at - (began_at or reader.received[0].stored_at) >= PROBE.blind_after // 2


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


@pytest.mark.parametrize(
    ("subjects", "filter_subject", "probe", "why"),
    [
        (
            "registration.>",
            "",
            ProbeSettings("probes.dub1", blind_after=1_500_000),
            "the stream does not listen on probes.dub1: add it to its subjects",
        ),
        (
            "registration.nodes",
            "",
            ProbeSettings(blind_after=1_500_000),
            "the subjects that are read from the stream have no wildcard: add muster.probe.eu-west.dub1 to them",
        ),
        (
            "registration.>",
            "registration.nodes",
            ProbeSettings(blind_after=1_500_000),
            "the subjects that are read from the stream have no wildcard: set source.probe_subject to one that passes",
        ),
    ],
)
async def test_where_no_probe_can_be_published_silence_proves_nothing(
    site: Site, subjects: str, filter_subject: str, probe: ProbeSettings, why: str
) -> None:
    await site.make_stream(subjects=[subjects])
    address = SourceAddress(STREAM, CONSUMER, filter_subject=filter_subject)
    async with reading(site, address, probe=probe) as reader:
        assert reader.probe_reports == [(StoringPhase.OFF, why)]
        assert not await proves(reader), "nothing was ever stored"
        await reader.read_on(await site.publish(b'{"sender":"a"}'))
        assert await proves(reader), "somebody was stored just now"

        async def proves_nothing() -> bool:
            return not await proves(reader)

        await until(proves_nothing, "that is long ago")


@pytest.mark.parametrize(
    ("subjects", "filter_subject", "chosen"),
    [
        (["registration.>"], "", "registration.muster-probe"),
        (["one", "site.*.facts"], "", "site.muster-probe.facts"),
        (["registration.>", "muster.probe.eu-west.dub1"], "", "muster.probe.eu-west.dub1"),
        (["registration.>", "muster.probe.eu-west.dub1"], "registration.*", "registration.muster-probe"),
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
                    StoringPhase.OFF,
                    f"not permitted: publish on {subject}; allow the agent's user to",
                )
            ]
            await site.publish(b'{"sender":"a"}')
            await reader.read_on(1)
            assert await proves(reader)
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

        async def is_blind() -> bool:
            (wrong,) = (await deployment.agent.status_json())["problems"] or [""]
            return wrong.startswith("stream nodes: blind for") and "(probe off: not permitted" in wrong

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
        assert deployment.agent.log.count("not permitted: publish on registration.probe") == 1


# Streams that do not take what is sent to them, under default settings


class Cause:
    """What keeps the stream from storing, and what lets it store again."""

    site_config = ""
    loses_messages = True

    def __init__(self, deployment: Deployment) -> None:
        self.site = deployment.site

    async def begins(self) -> None:
        raise NotImplementedError

    async def ends(self) -> None:
        raise NotImplementedError

    async def _fill(self) -> None:
        """Fill what the server, or the account, may store, by another stream."""
        await self.site.api("STREAM.CREATE.OTHER", {"name": "OTHER", "subjects": ["other"]})
        for size in (64 << 10, 1 << 10, 16):
            while b'"error"' not in (answer := await self.site.client.request("other", b"x" * size)).data:
                pass
            assert b"resource" in answer.data, answer.data


class ServerStorage(Cause):
    site_config = "jetstream: {max_file_store: 1MB}"

    async def begins(self) -> None:
        await self._fill()

    async def ends(self) -> None:
        await self.site.api("STREAM.DELETE.OTHER")


class AccountStorage(ServerStorage):
    site_config = "accounts: { A: { users: [{user: a, password: a}], jetstream: {max_file: 1MB} } }, no_auth_user: a"


class Subjects(Cause):
    async def begins(self) -> None:
        await self.site.update_stream(subjects=["elsewhere.>"])

    async def ends(self) -> None:
        await self.site.update_stream(subjects=["registration.>"])


class Sizes(Cause):
    async def begins(self) -> None:
        await self.site.update_stream(max_msg_size=10)

    async def ends(self) -> None:
        await self.site.update_stream(max_msg_size=-1)


class Payload(Cause):
    """The server takes no message as large as a registration any more; small ones it would take."""

    site_config = "max_payload: 1MB"

    async def begins(self) -> None:
        self.site.server.reload("max_payload: 2000")

    async def ends(self) -> None:
        self.site.server.reload("max_payload: 1MB")


class Sealed(Cause):
    """There is no way back: a sealed stream stays sealed."""

    async def begins(self) -> None:
        await self.site.update_stream(sealed=True)


class Consumer(Cause):
    """Somebody lets the agent's consumer deliver other subjects; what it did not deliver is read later."""

    loses_messages = False

    async def begins(self) -> None:
        await self._filtered("registration.nobody")

    async def ends(self) -> None:
        await self._filtered("")

    async def _filtered(self, subject: str) -> None:
        config = (await self.site.api(f"CONSUMER.INFO.{STREAM}.{CONSUMER}"))["config"]
        config = {**config, "filter_subject": subject} if subject else {**config, "filter_subject": None}
        await self.site.api(
            f"CONSUMER.CREATE.{STREAM}.{CONSUMER}", {"stream_name": STREAM, "config": config, "action": "update"}
        )


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (ServerStorage, "the stream refuses what is sent to it: insufficient resources"),
        (AccountStorage, "the stream refuses what is sent to it: resource limits exceeded for account"),
        (Subjects, "the stream no longer listens on registration.>"),
        (Sizes, "the stream "),
        (Payload, "the stream refuses what is sent to it: nats: maximum payload exceeded"),
        (Sealed, "the stream is sealed"),
        (Consumer, "filters 'registration.nobody'"),
    ],
)
async def test_a_stream_that_cannot_store_accuses_nobody_and_says_why(
    tmp_path: Path, cause: type[Cause], said: str
) -> None:
    async with (
        deployed(tmp_path, SETTINGS, site_config=cause.site_config) as deployment,
        deployment.senders(NAMES, size=3_000),
    ):
        deployment.agent.start()
        await until(partial(have_said, deployment, len(NAMES)), "all are new")
        trouble = cause(deployment)
        await trouble.begins()
        began_at = await deployment.site_time()

        async def is_told() -> bool:
            return said in " ".join((await deployment.agent.status_json()).get("problems", []))

        await until(is_told, "status says why")
        refused_through = began_at + 2 * STALE_AFTER

        async def has_passed() -> bool:
            return await deployment.site_time() > refused_through

        await until(has_passed, "the senders were not stored for a long time")
        if cause is not Sealed:
            await trouble.ends()
            mark = await deployment.until_observed(await deployment.site_time() + SECOND)
            assert (mark.observed_since_us > refused_through) is cause.loses_messages, "what is lost is unknown"

            async def is_well() -> bool:
                return not (await deployment.agent.status_json())["problems"]

            await until(is_well, "status says no more of it")
        assert {advisory.kind for advisory in await deployment.advisories()} == {AdvisoryKind.NEW}


async def test_whom_a_narrowed_stream_does_not_take_is_unknown_and_who_dies_beside_is_stale(tmp_path: Path) -> None:
    async with deployed(tmp_path) as deployment:
        await deployment.site.update_stream(subjects=["registration.>", "rack.*"])
        deployment.agent.start()
        async with deployment.senders(["lives"]):
            async with deployment.senders(["dies"]), deployment.senders(["moved"], subject="rack.a"):
                await until(partial(have_said, deployment, 3), "all are new")
                await deployment.site.update_stream(subjects=["registration.>"])
                narrowed_at = await deployment.site_time()

                async def is_told() -> bool:
                    warnings = (await deployment.agent.status_json())["warnings"]
                    return any("the stream no longer listens on rack.*: who is" in each["what"] for each in warnings)

                await until(is_told, "status says it")
                await deployment.until_observed(narrowed_at + SECOND)
            await until(partial(have_said, deployment, 5), "one is stale, one unheard")
            told = {advisory.value: advisory for advisory in (await deployment.advisories())[3:]}
            assert {sender: advisory.kind for sender, advisory in told.items()} == {
                "dies": AdvisoryKind.STALE,
                "moved": AdvisoryKind.RETIRED,
            }
            assert told["dies"].unheard_until_us is msgspec.UNSET
            unheard = told["moved"]
            assert unheard.unheard_until_us == unheard.last_seen_us + 3_600 * SECOND
            code, page, _ = await deployment.agent.run_command(
                "explain", "moved", "--config", str(deployment.agent.config)
            )
            assert code == 0
            assert "the stream may not take what it sends; whether it lives is not known" in " ".join(page.split())
            mark = await deployment.until_observed(unheard.at_us)
            assert mark.observed_since_us < narrowed_at + BLIND_AFTER, "of the others the time is known"
