"""Heartbeats move an idle stream: copies carry them on, nobody is taken for their sender, busy streams get none."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from nats.aio.msg import Msg

from edge_agent.core.block_state import BlockState
from edge_agent.observability.health import PartStatus
from edge_agent.source import own_messages
from edge_agent.source.own_messages import Heartbeat
from edge_agent.source.port import OwnMessagePhase
from shared.nats.jetstream_api import NO_STREAM_ANSWERS
from tests.support.agent.agent_process import Deployment, deployed
from tests.support.agent.mode_settings import ABOVE_BLOCKS, SAMPLING, block
from tests.support.nats.source_site import running_site
from tests.support.waiting import until

BEATING = '\n[stream.heartbeat]\ninterval = "1s"\nsubject = "{subject}"\n'
ON_SUBJECT = BEATING.format(subject="registration.heartbeat")
PATIENCE = 60.0


async def until_part(deployment: Deployment, part: str, wanted: PartStatus) -> None:
    async def is_there() -> bool:
        parts = msgspec.convert((await deployment.agent.status_json()).get("parts", {}), dict[str, PartStatus])
        return part in parts and (parts[part].phase, parts[part].reason) == (wanted.phase, wanted.reason)

    await until(is_there, f"{part} is {wanted}", PATIENCE)


async def test_heartbeats_of_an_idle_stream_are_copied(tmp_path: Path) -> None:
    async with deployed(tmp_path, ABOVE_BLOCKS + block("all", "copy", ON_SUBJECT)) as deployment:
        deployment.agent.start()

        async def beats() -> bool:
            return await deployment.region.stored_count() >= 2

        await until(beats, "two heartbeats are in the region", PATIENCE)
        record = (await deployment.region.stored())[0]
        assert record.subject == "fleet.eu-west.dub1.all.copy.registration.heartbeat"
        assert record.payload.isdigit()
        assert record.headers["Choria-SR-Originator"] == "dub1-a"
        assert record.headers["Choria-SR-Subject"] == "registration.heartbeat"
        await until_part(deployment, "heartbeat of all", PartStatus("stored"))


async def test_a_heartbeat_is_nobodys_registration(tmp_path: Path) -> None:
    # Heartbeats alone prove that the stream stores: two of them may be 2.25 s apart.
    patient = SAMPLING.replace('stale_after = "4s"', 'stale_after = "9s"').replace("1500ms", "4s")
    tables = block("nodes", "sample", patient + ON_SUBJECT, source="probe = false")
    async with deployed(tmp_path, ABOVE_BLOCKS + tables) as deployment:
        deployment.agent.start()

        async def are_read() -> bool:
            blocks = (await deployment.agent.status_json()).get("blocks", [])
            counters = msgspec.convert(blocks[0]["state"], BlockState).counters if blocks else {}
            return counters.get("probes", {}).get("heartbeat", 0) >= 2

        await until(are_read, "two heartbeats are read back", PATIENCE)
        watermark = await deployment.until_observed(await deployment.site_time(), PATIENCE)
        assert watermark.senders == {"heard": 0, "stale": 0}
        assert {record.subject.rpartition(".")[2] for record in await deployment.region.stored()} == {"watermark"}


async def test_a_heartbeat_that_no_stream_stores_is_said(tmp_path: Path) -> None:
    settings = ABOVE_BLOCKS + block("all", "copy", BEATING.format(subject="nowhere"))
    async with deployed(tmp_path, settings) as deployment:
        deployment.agent.start()
        said = PartStatus("not stored", f"nowhere: {NO_STREAM_ANSWERS}")
        await until_part(deployment, "heartbeat of all", said)


@pytest.mark.parametrize("is_read_back", [True, False])
async def test_a_heartbeat_that_is_not_answered_is_known_by_being_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_read_back: bool
) -> None:
    monkeypatch.setattr(own_messages, "PATIENCE", 0.5)
    loop, told = asyncio.get_running_loop(), list[tuple[OwnMessagePhase, str]]()
    read = 0.0

    async def note_read(_message: Msg) -> None:
        nonlocal read
        read = loop.time() if is_read_back else 0.0

    async with running_site(tmp_path) as site:
        await site.make_stream(no_ack=True)
        await site.client.subscribe("registration.beat", cb=note_read)
        heartbeat = Heartbeat(
            site.client, "registration.beat", 1_000, "dub1-a", lambda phase, reason: told.append((phase, reason))
        )
        beating = asyncio.create_task(heartbeat.run(lambda: read))
        await until(lambda: told, "it is told what has become of it")
        beating.cancel()
        await asyncio.wait({beating})
    said = (OwnMessagePhase.NOT_STORED, "registration.beat: no answer within 0.5 s")
    assert told[0] == ((OwnMessagePhase.STORED, "") if is_read_back else said)


async def test_a_busy_stream_gets_no_heartbeat(tmp_path: Path) -> None:
    loop, asked = asyncio.get_running_loop(), 0

    def read_at() -> float:
        nonlocal asked
        asked += 1
        return loop.time()

    async with running_site(tmp_path) as site:
        await site.make_stream()
        heartbeat = Heartbeat(site.client, "registration.beat", 1_000, "dub1-a", lambda _phase, _reason: None)
        beating = asyncio.create_task(heartbeat.run(read_at))
        await until(lambda: asked > 50, "it has looked fifty times")
        beating.cancel()
        await asyncio.wait({beating})
        assert await site.last_sequence() == 0


async def test_a_heartbeat_that_is_denied_is_said_and_not_repeated_on_this_connection(tmp_path: Path) -> None:
    told: list[tuple[OwnMessagePhase, str]] = []
    async with running_site(tmp_path) as site:
        await site.make_stream()
        heartbeat = Heartbeat(
            site.client,
            "registration.Beat",
            1_000,
            "dub1-a",
            lambda phase, reason: told.append((phase, reason)),
        )
        assert not heartbeat.takes_denial('nats: permissions violation for publish to "registration.other"')
        assert heartbeat.takes_denial('nats: permissions violation for publish to "registration.beat"')
        remedy = "not permitted: publish on registration.Beat; allow it, or take [stream.heartbeat] out"
        assert told == [(OwnMessagePhase.OFF, remedy)]
        looked = 0

        def read_at() -> float:
            nonlocal looked
            looked += 1
            return 0.0

        beating = asyncio.create_task(heartbeat.run(read_at))
        await until(lambda: looked > 20, "it has looked twenty times")
        assert await site.last_sequence() == 0
        heartbeat.break_off("the connection is new")
        await until(lambda: told[-1] == (OwnMessagePhase.STORED, ""), "it is sent again", PATIENCE)
        beating.cancel()
        await asyncio.wait({beating})
