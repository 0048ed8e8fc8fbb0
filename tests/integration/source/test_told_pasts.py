"""What becomes of a stream is one line of the log when it begins, and the line names the cause."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.agent.agent_process import Deployment, deployed
from tests.support.nats.source_site import STREAM
from tests.support.waiting import until

NAMES = ["a", "b"]


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[Deployment]:
    async with deployed(tmp_path) as deployment:
        yield deployment


async def reading(deployment: Deployment) -> None:
    deployment.agent.start()
    await deployment.until_observed(await deployment.site_time())


def lines(deployment: Deployment) -> list[str]:
    """Give the warnings that tell of the stream's state, not those of links that were down on the way."""
    said = re.findall(r'level=WARNING .*msg="(.*?)" ', deployment.agent.log)
    return [line for line in said if "epoch" in line or "stream_not_storing" in line]


async def is_told(deployment: Deployment, cause: str, then: str) -> None:
    await until(lambda: any(cause in line for line in lines(deployment)), f"the log tells that it {cause}")
    told = lines(deployment)
    assert len(told) == 1, told
    assert told[0].startswith("stream nodes: ")
    assert then in told[0]


async def test_a_stream_that_was_made_anew_is_told_when_it_is_found(deployment: Deployment) -> None:
    async with deployment.senders(NAMES):
        await reading(deployment)
        await deployment.site.delete_stream()
        await deployment.site.make_stream()
        await is_told(
            deployment, f"stream {STREAM} was deleted and made anew at ", "a new epoch begins: the time is unkn"
        )
        await deployment.until_observed(await deployment.site_time())
    assert len(lines(deployment)) == 1


async def test_a_stream_that_was_restored_is_told_when_it_is_found(deployment: Deployment, tmp_path: Path) -> None:
    async with deployment.senders(NAMES):
        await reading(deployment)
        await deployment.site.copy_store(tmp_path / "copy")
        await deployment.until_observed(await deployment.site_time())
    await deployment.site.restore_store(tmp_path / "copy")
    await is_told(deployment, "an older copy of its server's store was put back", "a new epoch begins")


async def test_a_stream_that_is_full_is_told_when_it_refuses(deployment: Deployment) -> None:
    async with deployment.senders(NAMES):
        await reading(deployment)
        await deployment.site.update_stream(max_msgs=1, discard="new")
        await is_told(deployment, "is full and refuses what is new", "stream_not_storing")
