"""A region that takes what is published and does not answer is not one that works, however often it is tried again."""

from pathlib import Path

import pytest

from edge_agent.delivery import uploader
from edge_agent.observability import health
from edge_agent.observability.status_report import read_status
from edge_agent.store.sqlite_store import SqliteStore
from shared.instants import SECOND
from tests.support.agent.agent_process import deployed
from tests.support.agent.agent_within import agent_within
from tests.support.agent.told_agent import BODIES
from tests.support.delivery.fleet_region import EMPTY, STREAM, Region, uploading
from tests.support.store.store_batches import advisory, batch, registration
from tests.support.waiting import until

SILENCE = "no acknowledgement for 0.5 s"


@pytest.fixture(autouse=True)
def silence_is_noticed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploader, "ACKNOWLEDGEMENT_PATIENCE", 0.5)
    monkeypatch.setattr(uploader, "LONGEST_RETRY", 0.2)


async def swallow(region: Region, subject: str = "fleet.>") -> None:
    """Listen where a stream should: publishes are delivered, and nobody answers them."""
    await region.client.subscribe(subject, cb=_nothing)
    await region.client.flush()


async def _nothing(_message: object) -> None:
    """Say nothing."""


async def test_silence_is_told_until_an_answer_has_come(region: Region, store: SqliteStore) -> None:
    await swallow(region)
    await store.commit(batch(1, [advisory("a"), registration("node", "r")]))
    async with uploading(region, store) as told:
        await until(lambda: told.count(SILENCE) >= 4, "the region was tried again and again")
        assert set(told[told.index(SILENCE) :]) == {SILENCE}
        await region.make_stream()
        await until(lambda: store.depths() == EMPTY and told[-1] == "", "the region has answered")


async def test_silence_is_over_where_nothing_waits_any_more(region: Region, store: SqliteStore) -> None:
    await swallow(region)
    await store.commit(batch(1, [registration("node", "r")]))
    async with uploading(region, store) as told:
        await until(lambda: told and told[-1] == SILENCE, "the silence is told")

        async def is_dropped() -> bool:
            await store.drop_registrations("*")
            return store.depths() == EMPTY

        await until(is_dropped, "the registration is dropped")
        await until(lambda: told[-1] == "", "there is nothing to complain of")


async def test_silence_of_one_lane_is_told_though_another_is_answered(region: Region, store: SqliteStore) -> None:
    await region.make_stream(subjects=["fleet.*.*.*.advisory.>"])
    await swallow(region, "fleet.*.*.*.registration")
    await store.commit(batch(1, [registration("node", "r")]))
    async with uploading(region, store) as told:
        await until(lambda: told and told[-1] == SILENCE, "the silence is told")
        for number in range(2, 5):
            await store.commit(batch(number, [advisory(f"{number}")]))

            async def has_arrived(count: int = number - 1) -> bool:
                return await region.stored_count() == count

            await until(has_arrived, "the advisory has arrived")
        assert set(told[told.index(SILENCE) :]) == {SILENCE}
        await region.update_stream(subjects=["fleet.>"])
        await until(lambda: store.depths() == EMPTY and told[-1] == "", "the region has answered")


async def test_an_agent_whose_region_is_silent_is_not_useful_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "DRAIN_PATIENCE", 4 * SECOND)
    async with deployed(tmp_path) as deployment:
        await deployment.region.api(f"STREAM.DELETE.{STREAM}")
        await swallow(deployment.region)
        async with agent_within(deployment.agent.config):
            await deployment.site.publish(*BODIES)

            await until(deployment.agent.status_json, "the agent has written a status")

            def is_told() -> bool:
                return any(
                    (each.name, each.text) == ("region_refuses", f"upstream: not accepted: {SILENCE}")
                    for each in read_status(deployment.agent.store).conditions
                )

            await until(is_told, "the silence has lasted for longer than is waited for")
