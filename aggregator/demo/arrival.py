"""Wait until the hub's archive and its mirror hold everything that the regions hold.

Rarely the hub's server leaves something out after an outage, and acknowledges it (docs/decisions/0019): it never goes
back for it. What is lacking then is wanted again, as an operator would.
"""

import asyncio
import time
from pathlib import Path
from typing import Any, Final

import msgspec
from nats.aio.client import Client

from aggregator.demo import scenario
from aggregator.demo.crew import run_shown
from aggregator.demo.stage import connected
from aggregator.demo.story import Story, Tone, muster
from aggregator.demo.watch import ARCHIVE, REPORT, stream_state
from shared.nats.jetstream_api import RequestFailed, request_json

_POLL: Final = 0.2
_REQUEST_DEADLINE: Final = 5.0
_QUIET_FOR: Final = 5.0


class NotInTime(Exception):
    """Something that had to happen did not within its deadline. The text says what."""


class _Region(msgspec.Struct, frozen=True):
    """How much a region holds that the archive lacks, and whether all of it was acknowledged."""

    lacking: int
    acknowledged: bool


async def until_archived(hub_url: str, topology_file: Path, story: Story, deadline: float) -> None:
    """Wait ``deadline`` seconds at most; raise NotInTime, or CommandFailed where what lacks cannot be wanted again."""
    client = await connected(hub_url)
    ends_at, left_out_since, wanted_again = time.monotonic() + deadline, dict[str, float](), set[str]()
    try:
        while True:
            try:
                found = {region: await _region(client, region) for region in scenario.REGIONS}
                problem = ", ".join(f"{each.lacking} of {region}" for region, each in found.items())
                is_whole = all(each.acknowledged and not each.lacking for each in found.values())
                if is_whole and await stream_state(client, ARCHIVE) == await stream_state(client, REPORT):
                    return
            except RequestFailed as error:
                found, problem = {}, str(error)
            now = time.monotonic()
            if now > ends_at:
                raise NotInTime(f"after {deadline:g} s the hub lacks what regions hold: {problem}")
            for region, each in found.items():
                if not (each.acknowledged and each.lacking) or region in wanted_again:
                    left_out_since.pop(region, None)
                elif now - left_out_since.setdefault(region, now) > _QUIET_FOR:
                    wanted_again.add(region)
                    text = f"its server left out {each.lacking} records of {region}: they are wanted again"
                    story.event(scenario.HUB, text, Tone.STRONG)
                    again = ("--again", region, "--config", topology_file)
                    await run_shown(story, "apply", muster("muster-aggregator", "apply", *again))
            await asyncio.sleep(_POLL)
    finally:
        await client.close()


async def _region(client: Client, region: str) -> _Region:
    held = await stream_state(client, "FLEET", region)
    consumer = f"$JS.{region}.API.CONSUMER.INFO.FLEET.muster-archive"
    taken = await request_json(client, consumer, None, dict[str, Any], deadline=_REQUEST_DEADLINE)
    of_region = {"subjects_filter": f"fleet.{region}.>"}
    info = f"$JS.API.STREAM.INFO.{ARCHIVE}"
    archive = await request_json(client, info, of_region, dict[str, Any], deadline=_REQUEST_DEADLINE)
    archived = sum((archive["state"].get("subjects") or {}).values())
    # What was wanted again stands there twice.
    return _Region(max(0, held.messages - archived), taken["ack_floor"]["stream_seq"] >= held.last_sequence)
