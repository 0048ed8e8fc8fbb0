"""Registrations of several senders in one message: each is heard, or nobody is accused and people are told."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from shared.identifiers import AdvisoryKind
from shared.wire import ORIGIN_HEADER, SENDER_HEADER, parse_origin_header
from tests.support.agent.agent_stage import Stage, agent_stage
from tests.support.agent.operated_agent import OperatedAgent, operated_agent
from tests.support.waiting import until

NAMES = [f"node-{number}" for number in range(6)]
Writes = Callable[[list[dict[str, object]]], bytes]


def lines(registrations: list[dict[str, object]]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in registrations)


def array(registrations: list[dict[str, object]]) -> bytes:
    return json.dumps([[1_700_000_000.5, each] for each in registrations]).encode()


@asynccontextmanager
async def gateway(stage: Stage, write: Writes, names: list[str]) -> AsyncIterator[list[str]]:
    """Publish what all ``names`` say in one message, in any order; whoever is taken out of the list falls silent."""

    async def publish() -> None:
        for turn in count():
            body = write([{"sender": name, "turn": turn} for name in random.sample(names, len(names))])
            await stage.site.publish(body)
            await asyncio.sleep(0.25)

    publishing = asyncio.create_task(publish())
    try:
        yield names
    finally:
        publishing.cancel()
        await asyncio.wait({publishing})


def set_batch(stage: Stage, batch: str) -> None:
    settings = stage.config_path.read_text()
    stage.config_path.write_text(settings.replace('json_path = "sender"', f'json_path = "sender"\nbatch = "{batch}"'))


async def is_useful(agent: OperatedAgent) -> bool:
    return (await agent.command("status", "--check"))[1] == "useful\n"


@pytest.mark.parametrize(("batch", "write"), [("lines", lines), ("array", array)])
async def test_every_sender_in_a_message_is_heard_and_the_message_goes_on_untouched(
    tmp_path: Path, batch: str, write: Writes
) -> None:
    async with agent_stage(tmp_path) as stage:
        set_batch(stage, batch)
        async with operated_agent(stage.config_path) as agent, gateway(stage, write, list(NAMES)) as names:
            await until(lambda: stage.region.senders_with(AdvisoryKind.NEW), "the agent works")
            names.remove("node-2")

            async def is_missed() -> bool:
                return await stage.region.senders_with(AdvisoryKind.STALE) == ["node-2"]

            await until(is_missed, "who fell silent is stale")
            await until(lambda: is_useful(agent), "the agent is useful")
        assert sorted(await stage.region.senders_with(AdvisoryKind.NEW)) == NAMES
        forwarded = await stage.region.records(".registration")
        origins = [record.headers[ORIGIN_HEADER] for record in forwarded]
        assert len(set(origins)) == len(origins) >= 1
        for record, origin in zip(forwarded, origins, strict=True):
            _, _, sequence = parse_origin_header(origin)
            assert record.payload == (await stage.site.stored(sequence)).payload
            # It speaks for several: none of them is named.
            assert SENDER_HEADER not in record.headers


@pytest.mark.parametrize(("form", "write"), [("lines", lines), ("array", array)])
async def test_a_batch_that_nobody_has_configured_accuses_nobody_and_says_what_to_set(
    tmp_path: Path, form: str, write: Writes
) -> None:
    async with agent_stage(tmp_path) as stage:
        await stage.site.publish(b'{"sender":"node-0"}')
        async with operated_agent(stage.config_path) as agent, gateway(stage, write, list(NAMES)):

            async def is_told() -> bool:
                code, output, _ = await agent.command("status", "--check")
                return code != 0 and "batch_not_opened" in output and f'batch = "{form}"' in output

            await until(is_told, "the condition and its remedy are shown")
            covered_through = await stage.region.observed_through()
            _, output, _ = await agent.command("doctor")
            assert f'batch = "{form}"' in output, output
            # Three times stale_after and more.
            last = await stage.site.time() + 13_000_000

            async def has_passed() -> bool:
                blocks = (await agent.json("status"))["blocks"]
                return bool(blocks[0]["state"]["observed_through"] > last)

            await until(has_passed, "time has passed")
            assert await stage.region.senders_with(AdvisoryKind.STALE) == []
            assert await stage.region.observed_through() == covered_through
