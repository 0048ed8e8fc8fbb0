"""Whatever a program on the site manages to store in the stream, the agent reads on, and passes on what can be sent.

Clients refuse to publish most of this; a socket does not.
"""

import asyncio
from pathlib import Path

import pytest

from edge_agent.source.port import SourceUnavailable
from shared.identifiers import AdvisoryKind, BlockId
from shared.subjects import watermark_subject
from tests.support.agent.agent_process import AgentProcess, Deployment, agent_process, deployed
from tests.support.agent.agent_stage import Stage, agent_stage
from tests.support.nats.source_site import STREAM, Site, reading, running_site
from tests.support.waiting import until

DEADLINE = 90.0
LARGEST = 1 << 20
DEEP = b"[" * 100_000 + b"]" * 100_000


def plain(subject: bytes, body: bytes) -> bytes:
    return b"PUB %b %d\r\n%b\r\n" % (subject, len(body), body)


def with_headers(headers: bytes, body: bytes) -> bytes:
    return b"HPUB registration.x %d %d\r\n%b%b\r\n" % (len(headers), len(headers) + len(body), headers, body)


HOSTILE = {
    "a subject that is not UTF-8": plain(b"registration.\xff\xfe", b'{"sender":"x"}'),
    "a subject with a vertical tab": plain(b"registration.a\x0bb", b'{"sender":"x"}'),
    "a subject with a form feed": plain(b"registration.a\x0cb", b'{"sender":"x"}'),
    "a subject with a carriage return": plain(b"registration.a\rb", b'{"sender":"x"}'),
    "a subject with NUL": plain(b"registration.a\x00b", b'{"sender":"x"}'),
    "a subject that would be a delivery": plain(b"registration.x\x0b2\x0b$JS.ACK.S.C.1.9.9.1.0", b'{"sender":"x"}'),
    "an empty body": plain(b"registration.x", b""),
    "a body that is not UTF-8": plain(b"registration.x", b'{"sender":"\xff\xfe"}'),
    "a body nested deeply": plain(b"registration.x", b'{"sender":"x","facts":%b}' % DEEP),
    "a sender nested deeply": plain(b"registration.x", b'{"sender":%b}' % DEEP),
    "a sender with NUL": plain(b"registration.x", b'{"sender":"a\\u0000b"}'),
    "a sender that is half a letter": plain(b"registration.x", b'{"sender":"\\ud83d"}'),
    "a sender as large as a message": plain(b"registration.x", b'{"sender":"%b"}' % (b"x" * (LARGEST - 20))),
    "headers without a version": with_headers(b"X-Rack: 7\r\n\r\n", b'{"sender":"x"}'),
    "no headers where there should be some": with_headers(b"", b'{"sender":"x"}'),
    "headers that end at once": with_headers(b"NATS/1.0", b'{"sender":"x"}'),
    "a status for a program": with_headers(b"NATS/1.0 503\r\n\r\n", b'{"sender":"x"}'),
    "a status that is not UTF-8": with_headers(b"NATS/1.0 \xff\xff\r\n\r\n", b'{"sender":"x"}'),
    "headers whose names no client may send": with_headers(
        b"NATS/1.0\r\nX(y): 1\r\n\xff: 2\r\n: 3\r\nX y: 4\r\nX-Rack: \xff\r\n\r\n", b'{"sender":"x"}'
    ),
    "headers that leave no room for ours": with_headers(
        b"NATS/1.0\r\nX-Rack: %b\r\n\r\n" % (b"7" * 20_000), b'{"sender":"x","pad":"%b"}' % (b"p" * (LARGEST - 20_100))
    ),
}


async def test_a_site_reads_on_behind_every_message_and_passes_on_what_can_be_sent(tmp_path: Path) -> None:
    async with agent_stage(tmp_path, probe="false") as stage, agent_process(stage.config_path) as agent:
        for number, message in enumerate(HOSTILE.values(), start=1):
            await stored_from_a_socket(stage.site, message, number)
        last = await stage.site.publish(b'{"sender":"behind"}')
        stuck_before = [*HOSTILE, "what came last", "nothing"]

        async def is_read() -> bool:
            status = await agent.report()
            position = status.blocks[0].state.position.sequence if status and status.blocks else 0
            assert agent.is_running, agent.log
            print(f"still to be read: {stuck_before[position]}")
            return position == last

        await until(is_read, "everything is read", DEADLINE)
        await until(lambda: is_passed_on(stage, b'{"sender":"behind"}'), "what came last is passed on", DEADLINE)
        await until(lambda: is_acknowledged(agent), "everything has left", DEADLINE)
        status = await agent.report()
        log = agent.log
    assert status is not None
    counters = status.blocks[0].state.counters
    assert counters["rejected"] == {"not_a_json_object": 1, "sender_not_text": 1, "sender_not_usable": 2}
    assert counters["tolerated"] == {"encoding": 1, "escape": 1, "too_deep": 1}
    assert sum(counters["valid"].values()) + sum(counters["rejected"].values()) == last
    assert status.outbox_counters["dropped"] == {"too_large": 2}
    assert "Traceback" not in log, log


NAMELESS = {
    "a byte that begins no letter": b"\xff\xfe",
    "half a letter": b"\xed\xa0\xbd",
    "the other half": b"\xed\xb8\x80",
    "letters of Latin-1": b"caf\xe9",
}


@pytest.mark.parametrize("rule", ['header = "X-Sender"', "subject = true", "subject_token = 2"])
async def test_a_sender_whose_name_is_no_text_stops_nobody(tmp_path: Path, rule: str) -> None:
    async with agent_stage(tmp_path) as stage:
        settings = stage.config_path.read_text()
        stage.config_path.write_text(settings.replace('json_path = "sender"', rule))
        async with agent_process(stage.config_path) as agent:
            for number, name in enumerate(NAMELESS.values(), start=1):
                headers = b"NATS/1.0\r\nX-Sender: %b\r\n\r\n" % name
                line = b"HPUB registration.%b %d %d\r\n" % (name, len(headers), len(headers) + 2)
                await stored_from_a_socket(stage.site, b"%b%b{}\r\n" % (line, headers), number)
            last = await stage.site.publish(b"behind", subject="registration.behind", headers={"X-Sender": "behind"})
            await until(lambda: is_passed_on(stage, b"behind"), "what came last is passed on", DEADLINE)
            await until(lambda: is_acknowledged(agent), "everything has left", DEADLINE)
            status = await agent.report()
            assert agent.is_running, agent.log
        assert status is not None
        counters = status.blocks[0].state.counters
        received = [sum(counters.get(what, {}).values()) for what in ("valid", "rejected")]
        assert sum(received) == last
        assert "Traceback" not in agent.log, agent.log


async def test_names_in_headers_are_told_apart_by_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    """What is passed on and what is copied has them too, as the letters that they are of Latin-1."""
    async with agent_stage(tmp_path) as stage:
        settings = stage.config_path.read_text().replace('json_path = "sender"', 'header = "X-Sender"')
        source = f'[stream.source]\nservers = ["{stage.site.link.url}"]\nstream = "{STREAM}"\nprobe = false\n'
        stage.config_path.write_text(f'{settings}[[stream]]\nname = "copies"\nmode = "copy"\n{source}')
        for number, name in enumerate((b"caf\xe9", b"caf\xe8", b"caf\xc3\xa9 \xff"), start=1):
            headers = b"NATS/1.0\r\nX-Sender: %b\r\n\r\n" % name
            line = b"HPUB registration.x %d %d\r\n" % (len(headers), len(headers) + 2)
            await stored_from_a_socket(stage.site, b"%b%b{}\r\n" % (line, headers), number)
        names = ["café", "cafè", "café ÿ"]
        async with agent_process(stage.config_path) as agent:

            async def are_in(part: str) -> bool:
                assert agent.is_running, agent.log
                records = await stage.region.records(part)
                return names == [each.headers["X-Sender"] for each in records]

            await until(lambda: are_in(".nodes.registration"), "all is passed on", DEADLINE)
            await until(lambda: are_in(".copies.copy."), "all is copied", DEADLINE)
        assert await stage.region.senders_with(AdvisoryKind.NEW) == names


FORGED = {
    "a delivery without numbers": plain(b"INBOX $JS.ACK.", b"{}"),
    "a reply that is not UTF-8": plain(b"INBOX \xff\xfe", b"{}"),
    "a heartbeat that counts in words": with_headers(b"NATS/1.0 100\r\nNats-Last-Consumer: many\r\n\r\n", b""),
    "an end that counts in words": with_headers(b"NATS/1.0 408\r\nNats-Pending-Messages: many\r\n\r\n", b""),
}


@pytest.mark.parametrize("forged", FORGED)
async def test_a_program_that_publishes_to_the_agents_inbox_ends_no_reading(tmp_path: Path, forged: str) -> None:
    async with running_site(tmp_path) as site:
        await site.make_stream()
        pulls = await site.client.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.>")
        async with reading(site) as reader:
            pull = asyncio.create_task(reader.source.read(DEADLINE))
            inbox = (await pulls.next_msg(DEADLINE)).reply.encode()
            await said_on_a_socket(site, FORGED[forged].replace(b"INBOX", inbox, 1).replace(b"registration.x", inbox))
            with pytest.raises(SourceUnavailable, match="^(not a|the server ended)[^\n]{1,200}$"):
                await pull
            last = await site.publish(b'{"sender":"behind"}')
            await reader.read_on(last)
            assert reader.client.is_connected


async def said_on_a_socket(site: Site, message: bytes) -> None:
    """Let the site's server take what a socket says."""
    async with asyncio.timeout(DEADLINE):
        reader, writer = await asyncio.open_connection("127.0.0.1", site.server.port)
        await reader.readline()
        writer.write(b'CONNECT {"verbose":false,"headers":true,"no_responders":true,"protocol":0}\r\n')
        writer.write(message + b"PING\r\n")
        assert await reader.readline() == b"PONG\r\n"
        writer.close()
        await writer.wait_closed()


async def stored_from_a_socket(site: Site, message: bytes, last_sequence: int) -> None:
    """Let the site's server store what a socket says."""
    await said_on_a_socket(site, message)

    async def is_stored() -> bool:
        return await site.last_sequence() == last_sequence

    await until(is_stored, f"message {last_sequence} is stored", DEADLINE)


async def is_passed_on(stage: Stage, body: bytes) -> bool:
    return body in [record.payload for record in await stage.region.records(".registration")]


async def is_acknowledged(agent: AgentProcess) -> bool:
    status = await agent.report()
    return status is not None and not any(lane.rows for lane in status.outbox.values())


@pytest.mark.parametrize(
    "body", [b"[" * 997 + b"]" * 997, b'{"x":' * 5_000, b'"\xff"'], ids=["nested", "open", "no text"]
)
async def test_a_watermark_below_its_own_names_stops_no_agent(tmp_path: Path, body: bytes) -> None:
    async with deployed(tmp_path) as deployment:
        subject = watermark_subject(BlockId("eu-west", "dub1", "nodes"))
        hostile = b'{"protocol":"muster:watermark:1","agent":%b}' % body
        await deployment.region.client.publish(subject, hostile)
        deployment.agent.start()
        # A second one of its own comes once it has looked who else publishes under its names.
        await until(lambda: count_marks(deployment, subject), "watermarks of its own follow", DEADLINE)
        assert deployment.agent.process.poll() is None


async def count_marks(deployment: Deployment, subject: str) -> bool:
    return len([each for each in await deployment.region.stored() if each.subject == subject]) > 2
