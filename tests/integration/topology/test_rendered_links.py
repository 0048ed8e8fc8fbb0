"""A region's link as rendered, attacked with its key by what servers do of themselves: answer, acknowledge, confirm."""

import re
from collections.abc import Iterator

import pytest

from tests.support.topology.leaf_intruder import LeafIntruder, intruding
from tests.support.topology.rendered import (
    REQUEST_DEADLINE,
    Rendered,
    Visitor,
    muster,
    rendered_servers,
    until_archived,
)
from tests.support.waiting import until

TAKEN = """
[[region]]
name = "us-east"
servers = ["nats://127.0.0.1:1"]

[[stream]]
name = "VICTIM"
subjects = ["victim"]
"""
PLANNED = ("--from", "2026-11-22T02:00:00Z", "--to", "2026-11-22T04:00:00Z", "--reason", "test")
DELIVERIES = "muster.source.eu-west.FLEET"


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rendered]:
    with rendered_servers(tmp_path_factory.mktemp("rendered"), TAKEN, away=("us-east",)) as servers:
        yield servers


@pytest.mark.parametrize("reply", ["muster.policy.us-east.region", "victim", "fleet.us-east.nyc1.nodes.watermark"])
async def test_no_answer_that_a_region_asks_for_is_stored_at_the_hub(rendered: Rendered, reply: str) -> None:
    async with (
        rendered.visited("hub", "aggregator") as hub,
        intruding(rendered.ports["leaf"], rendered.directory / "nats" / "keys", "eu-west-leaf") as intruder,
    ):
        before = [await count(hub, name) for name in ("MUSTER_POLICY", "VICTIM", "ARCHIVE")]
        await intruder.publish(own_request(rendered), b"{}", reply)
        await answered(rendered, intruder)
        assert [await count(hub, name) for name in ("MUSTER_POLICY", "VICTIM", "ARCHIVE")] == before


@pytest.mark.parametrize("word", [b"", b"+TERM", b"-NAK"])
async def test_a_regions_key_acknowledges_for_nobody_at_the_hub(rendered: Rendered, word: bytes) -> None:
    done = muster(rendered.directory, "policy", "maintenance", "--region", "us-east", *PLANNED)
    assert done.returncode == 0, done.stderr
    config = {"ack_policy": "explicit", "ack_wait": 3_600 * 10**9, "inactive_threshold": 60 * 10**9}
    async with rendered.visited("hub", "aggregator") as hub:
        stored = await count(hub, "VICTIM")
        made = {"stream_name": "MUSTER_POLICY", "config": config}
        name = (await hub.api("CONSUMER.CREATE.MUSTER_POLICY", made))["name"]
        request = b'{"batch": 1, "no_wait": true}'
        pull = f"$JS.API.CONSUMER.MSG.NEXT.MUSTER_POLICY.{name}"
        answer = await hub.client.request(pull, request, timeout=REQUEST_DEADLINE, old_style=True)
        keys = rendered.directory / "nats" / "keys"
        async with intruding(rendered.ports["leaf"], keys, "eu-west-leaf") as intruder:
            await intruder.publish(answer.reply, word, "victim")
            await answered(rendered, intruder)
        info = await hub.api(f"CONSUMER.INFO.MUSTER_POLICY.{name}")
        assert (info["num_ack_pending"], info["num_redelivered"], await count(hub, "VICTIM")) == (1, 0, stored)


@pytest.mark.parametrize(
    ("status", "as_reply"), [("100 FlowControl Request", True), ("100 Idle Heartbeat", False)], ids=["flow", "stalled"]
)
async def test_what_the_archive_confirms_of_itself_reaches_the_hubs_streams_and_no_regions(
    rendered: Rendered, status: str, as_reply: bool
) -> None:
    """The server sends an empty message wherever a delivery says (2.15.1): the manual says what that is good for.

    Where this fails at the hub's own stream, servers have become better than the manual.
    """

    async def confirm(intruder: LeafIntruder, subject: str) -> None:
        if as_reply:
            await intruder.control(DELIVERIES, status, subject)
        else:
            await intruder.control(DELIVERIES, status, Nats_Consumer_Stalled=subject)

    before = await rendered.archived()
    async with rendered.visited("eu-west", "dub1-agent", "_INBOX_dub1") as agent:
        await agent.store("fleet.eu-west.dub1.nodes.watermark", b"{}")
    await until_archived(rendered, before + 1)
    async with (
        rendered.visited("hub", "aggregator") as hub,
        intruding(rendered.ports["leaf"], rendered.directory / "nats" / "keys", "eu-west-leaf") as intruder,
    ):
        held = (await hub.of_domain("eu-west", "STREAM.INFO.FLEET"))["state"]["messages"]
        stored = await count(hub, "VICTIM")
        await confirm(intruder, "$JS.eu-west.API.STREAM.PURGE.FLEET")
        await confirm(intruder, "victim")

        async def is_stored() -> bool:
            return await count(hub, "VICTIM") == stored + 1

        await until(is_stored, "the hub's own stream has an empty message")
        assert held
        assert (await hub.of_domain("eu-west", "STREAM.INFO.FLEET"))["state"]["messages"] == held


def own_request(rendered: Rendered) -> str:
    """Name the one request that the region's key may ask of the hub."""
    found = re.search(r'"(\$JS\.hub\.API\.CONSUMER\.RESET\.[^"]*@eu-west)"', rendered.config("hub").read_text())
    assert found is not None
    return found[1]


async def answered(rendered: Rendered, intruder: LeafIntruder) -> None:
    """Wait until the hub has done what was asked of it before."""
    await intruder.subscribe("$JSC.R.probe")
    await intruder.publish(own_request(rendered), b"{}", "$JSC.R.probe")
    await until(lambda: "$JSC.R.probe" in intruder.heard, "the hub has answered")


async def count(hub: Visitor, stream: str) -> int:
    return int((await hub.api(f"STREAM.INFO.{stream}"))["state"]["messages"])
