"""A week without a link, in accelerated form: what waits is bounded, no advisory is lost, and the space comes back.

Fourteen senders register as often as in a week of five-minute intervals, five of them silent in turn; many more with
large registrations come, go, and are forgotten. Meanwhile the region cannot be reached.
"""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client

from edge_agent.observability.status_report import StatusReport, read_status
from edge_agent.store.housekeeping import FREE_PAGES_KEPT, PAGE_SIZE
from edge_agent.store.read_only import StoreUnreadable
from shared.nats.jetstream_api import request_json
from tests.support.faults.evidence import client_of, gather, last_sequence
from tests.support.faults.run import has_said_everything
from tests.support.faults.stage import STREAM, FaultStage, fault_stage
from tests.support.faults.verdict import judge
from tests.support.waiting import until

ROUNDS = 7 * 24 * 12
SENDERS = 14
SILENT = 5
SILENT_FOR = ROUNDS // 3
# A silence lasts SILENT_FOR * PAUSE at least: 3.7 s, longer than stale_after.
PAUSE = 0.0055
POLICY = """
sample_interval = "2s"
stale_after = "3s"
retire_after = "5s"
blind_after = "1300ms"
"""
ROUNDS_AT_ONCE = 8
SUBJECT = "registration.nodes"
VISITORS = 2_500
VISITORS_PER_ROUND = 1 + 2 * VISITORS // ROUNDS
VISITOR_FILLING = "x" * 20_000
LOOK_EVERY = 0.5
DEADLINE = 300.0
MOST_KEPT = FREE_PAGES_KEPT * PAGE_SIZE + (8 << 20)


async def test_a_week_without_a_link_costs_one_registration_of_each_sender_and_no_advisory(tmp_path: Path) -> None:
    async with (
        fault_stage(tmp_path, atomic=True, copies=False, small_disk=False, servers_die=False, policy=POLICY) as stage,
        client_of(stage.site) as client,
    ):
        await stage.uplink.cut()
        stage.start_agent()
        watching = asyncio.create_task(watch(stage))
        published = await live_for_a_week(client)
        await until(lambda: is_stored(stage, published), "everything is stored", DEADLINE)
        last = await last_sequence(stage.site, STREAM, SUBJECT)
        await until(lambda: has_read(stage, last), "everything is read", DEADLINE)
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
        size = stage.store_path.stat().st_size
        assert size > 1.5 * MOST_KEPT, "too little to see that space is given back"

        await stage.uplink.restore()
        await until(lambda: has_said_everything(stage, {"nodes": last}), "everything has arrived", DEADLINE)
        await until(lambda: stage.store_path.stat().st_size < MOST_KEPT, "the space is given back", DEADLINE)
        assert await stage.stop_agent() == 0
        verdict = judge(await gather(stage, set()))
    assert verdict.is_clean, (verdict.line, verdict.lost[:5], verdict.duplicated[:5], verdict.wrong[:5])
    assert verdict.counts["registrations read"] == published
    assert verdict.counts["advisories: stale"] >= SENDERS


async def live_for_a_week(client: Client) -> int:
    """Publish what a week's registrations are; give how many."""
    published = 0
    for number in range(ROUNDS):
        first_silent = number // SILENT_FOR * SILENT
        silent = range(first_silent, first_silent + SILENT)
        names = [(f"node-{each:02}", "") for each in range(SENDERS) if each not in silent]
        if number < ROUNDS // 2:
            visitors = range(number * VISITORS_PER_ROUND, (number + 1) * VISITORS_PER_ROUND)
            names += [(f"visitor-{each % VISITORS:04}", VISITOR_FILLING) for each in visitors]
        bodies = [
            msgspec.json.encode({"sender": name, "number": number, "filling": filling}) for name, filling in names
        ]
        for body in bodies:
            await client.publish(SUBJECT, body)
        published += len(bodies)
        if number % ROUNDS_AT_ONCE == 0:
            # It is stored behind all of them: its answer keeps us from going faster than the server.
            await client.request(SUBJECT, bodies[0], timeout=DEADLINE)
            published += 1
        await asyncio.sleep(PAUSE)
    return published


async def is_stored(stage: FaultStage, published: int) -> bool:
    """Count what the senders published: probes lie between."""
    async with client_of(stage.site) as client:
        wanted = {"subjects_filter": SUBJECT}
        info = await request_json(client, f"$JS.API.STREAM.INFO.{STREAM}", wanted, dict[str, Any], deadline=DEADLINE)
    return bool(info["state"].get("subjects", {}).get(SUBJECT, 0) == published)


async def watch(stage: FaultStage) -> None:
    """See, again and again, that at most one registration of each sender waits, and what the store takes for it."""
    while True:
        await asyncio.sleep(LOOK_EVERY)
        status = status_of(stage)
        if status is None:
            continue
        outbox = status.outbox
        assert outbox["registrations"].rows <= SENDERS + VISITORS
        most = 2 * (outbox["registrations"].size + outbox["advisories"].size) + MOST_KEPT
        assert stage.store_path.stat().st_size < most, "the file grows with what was replaced"


def status_of(stage: FaultStage) -> StatusReport | None:
    try:
        return read_status(stage.store_path)
    except StoreUnreadable:
        return None


def has_read(stage: FaultStage, through: int) -> bool:
    status = status_of(stage)
    return status is not None and any(block.state.position.sequence >= through for block in status.blocks)
