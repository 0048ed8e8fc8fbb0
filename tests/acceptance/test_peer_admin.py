"""The peer's own admin client prints our advisories; it runs where MUSTER_PEER names a built ``stream-replicator``."""

import asyncio
import json
import os
import re
from pathlib import Path

import pytest

from shared.identifiers import AdvisoryKind
from shared.wire import CHORIA_EVENTS
from tests.support.agent.agent_process import SETTINGS, Deployment, deployed
from tests.support.delivery.fleet_region import STREAM
from tests.support.waiting import until

PEER = os.environ.get("MUSTER_PEER", "")
DEADLINE = 60.0
NAMES = ["a.example.net", "b.example.net", "c.example.net"]
# [2026-01-31 12:00:00] timeout a.example.net seen 4s earlier on dub1
PRINTED = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] +(\w+) (\S+) seen (\S+) earlier on (\S+)$", re.MULTILINE)

pytestmark = pytest.mark.skipif(not PEER, reason="MUSTER_PEER names no built stream-replicator")


async def printed(deployment: Deployment, stream: str, directory: Path, *options: str) -> str:
    """Run ``stream-replicator admin advisories`` against the region's server, again where it gets no consumer.

    On a busy machine the server sometimes answers its request for one without saying which; it ends then.
    """
    found: list[str] = []

    async def is_printed() -> bool:
        code, output, errors = await run_client(deployment, stream, directory, *options)
        assert code == 0 or "expected a consumer name" in errors, errors
        found.append(output)
        return code == 0

    await until(is_printed, "the peer's client has printed", DEADLINE)
    return found[-1]


async def run_client(deployment: Deployment, stream: str, directory: Path, *options: str) -> tuple[int, str, str]:
    """Run it once; give its exit status, what it printed, and its errors."""
    contexts = directory / "nats" / "context"
    contexts.mkdir(parents=True, exist_ok=True)
    (contexts / "region.json").write_text(json.dumps({"url": deployment.region.server.url}))
    process = await asyncio.create_subprocess_exec(
        PEER,
        "admin",
        "advisories",
        "--context=region",
        "--since=1h",
        stream,
        *options,
        env={**os.environ, "XDG_CONFIG_HOME": str(directory), "HOME": str(directory)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(DEADLINE):
        output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


def events(output: str) -> list[tuple[str, str, str]]:
    return [(event, sender, site) for event, sender, _, site in PRINTED.findall(output)]


async def test_the_peers_admin_client_prints_every_advisory(tmp_path: Path) -> None:
    settings = SETTINGS.replace('retire_after = "1h"', 'retire_after = "6s"')
    async with deployed(tmp_path, settings) as deployment:
        deployment.agent.start()

        async def are_told(kind: AdvisoryKind, count: int) -> bool:
            return sum(advisory.kind is kind for advisory in await deployment.advisories()) == count

        async with deployment.senders(NAMES[:1]):
            async with deployment.senders(NAMES[1:2]):
                async with deployment.senders(NAMES[2:]):
                    await until(lambda: are_told(AdvisoryKind.NEW, 3), "all are known", DEADLINE)
                await until(lambda: are_told(AdvisoryKind.STALE, 1), "c is missed", DEADLINE)
                async with deployment.senders(NAMES[2:]):
                    await until(lambda: are_told(AdvisoryKind.RECOVERED, 1), "c is back", DEADLINE)
            await until(lambda: are_told(AdvisoryKind.RETIRED, 2), "b and c are forgotten", DEADLINE)
            await deployment.agent.stopped()

        advisories = await deployment.advisories()
        told = [(CHORIA_EVENTS[advisory.kind], advisory.value, "dub1") for advisory in advisories]
        assert {event for event, _, _ in told} == {"new", "timeout", "recover", "expire"}
        for sender in NAMES:
            output = await printed(deployment, STREAM, tmp_path / "home", sender)
            assert events(output) == [event for event in told if event[1] == sender]
        # All of them, as an operator of the peer would keep them: in a stream of their own.
        advisories_only = {
            "name": "ADVISORIES",
            "sources": [{"name": STREAM, "filter_subject": "fleet.*.*.*.advisory.>"}],
        }
        await deployment.region.api("STREAM.CREATE.ADVISORIES", advisories_only)

        async def are_sourced() -> bool:
            info = await deployment.region.api("STREAM.INFO.ADVISORIES")
            return int(info["state"]["messages"]) == len(told)

        await until(are_sourced, "the advisories are sourced", DEADLINE)
        output = await printed(deployment, "ADVISORIES", tmp_path / "home")
        assert events(output) == told
        assert "Could not process" not in output
        ages = {event: age for event, _, age, _ in PRINTED.findall(output)}
        assert (ages["timeout"], ages["expire"]) == ("4s", "6s")
