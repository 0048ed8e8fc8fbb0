"""What a hub says anew after MUSTER_POLICY was restored from an older copy is heard, under whatever number."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from edge_agent.core.policy import PolicyRevisions
from edge_agent.policy.feed import PolicyFeed
from shared.instants import MINUTE
from shared.nats.connection import connect
from shared.nats.jetstream_api import request_json
from shared.policy import EVERY_REVISION, STREAM, Revision, Scope, SetThresholds, encode_revision
from shared.thresholds import Thresholds
from tests.support.nats.one_server import server_in, settings_for
from tests.support.waiting import until

CREATED_AT = 1_700_000_000_000_000
DUB1 = Scope("eu-west", "dub1")
TAKEN = PolicyRevisions(CREATED_AT, 3, CREATED_AT + 3 * MINUTE, knows_latest=True)
"""Of the hub that there was: revisions 1, 2 and 3, said one, two and three minutes after it began."""


def revision(number: int, said_after: int) -> bytes:
    order = SetThresholds(Thresholds(stale_after=(60 + number) * MINUTE))
    given_at = CREATED_AT + said_after * MINUTE
    return encode_revision(
        Revision(revision=number, stream_created_us=CREATED_AT, given_at_us=given_at, author="ops", order=order)
    )


@pytest.mark.parametrize(
    ("said_after", "new"),
    [
        pytest.param([1, 2, 100], [3], id="as many as before"),
        pytest.param([1, 2, 100, 101], [3, 4], id="more than before"),
        pytest.param([1, 100], [2], id="fewer than before"),
        pytest.param([1, 2, 3, 100], [4], id="nothing was lost"),
    ],
)
async def test_what_is_said_anew_is_heard(tmp_path: Path, said_after: Sequence[int], new: list[int]) -> None:
    async with server_in(tmp_path) as server:
        client = await connect(settings_for(server), name="test", deadline=60)
        config = {"name": STREAM, "subjects": [EVERY_REVISION]}
        await request_json(client, f"$JS.API.STREAM.CREATE.{STREAM}", config, dict[str, Any], deadline=60)
        for number, after in enumerate(said_after, 1):
            await client.request(DUB1.subject, revision(number, after), timeout=60)
        feed = PolicyFeed("eu-west", "dub1", "", lambda _phase, _reason: None)
        listening = asyncio.create_task(feed.run(client, [TAKEN]))
        try:

            def untaken() -> list[int]:
                return [said.revision.revision for said in feed.orders() if not TAKEN.has(said.revision)]

            await until(lambda: untaken() == new, "what is new is heard", 60)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            await client.close()
