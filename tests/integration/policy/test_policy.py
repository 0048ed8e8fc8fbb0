"""What is said at the hub is done at the site, however late the link returns; nobody's revision is lost on the way."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from aggregator.policy.book import Book, changed_thresholds
from aggregator.policy.stream import read_policy, say
from aggregator.topology.desired.model import HUB, Place
from edge_agent.policy import feed as feed_module
from edge_agent.policy.feed import PolicyFeed
from shared.embedded.link import EmbeddedLink
from shared.identifiers import AdvisoryKind
from shared.instants import MINUTE
from shared.nats.connection import ConnectionSettings, LinkEvent, LinkState, connect
from shared.policy import Order, Scope, SetThresholds
from shared.tasks import cancel_all
from shared.thresholds import Thresholds
from tests.support.agent.agent_stage import Stage, agent_stage, registering
from tests.support.agent.operated_agent import OperatedAgent
from tests.support.nats.one_server import server_in
from tests.support.topology.policy_hub import said, write_topology
from tests.support.topology.regions import client_of, federation
from tests.support.topology.rendered import muster
from tests.support.waiting import until

DUB1 = Scope("eu-west", "dub1")
HERE = Place(HUB, "eu-west")


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with agent_stage(tmp_path) as stage:
        write_topology(stage)
        yield stage


@pytest.mark.provokes("policy_refused")
async def test_an_agent_does_what_was_said_while_it_was_cut_off(stage: Stage) -> None:
    agent = OperatedAgent(stage.config_path)
    await said(stage, "apply", "--force")
    await agent.start()
    try:
        async with registering(stage.site, "web1", "web2") as nodes:
            await until(lambda: known(stage, "web2"), "both are known")
            await until(stage.region.observed_through, "the agent vouches")
            await stage.region.link.cut()
            nodes.fall_silent("web2")
            await said(stage, "policy", "set", "--site", "dub1", "--sample-interval", "2h", "--stale-after", "10m")
            await said(stage, "policy", "forward", "--site", "dub1", "--sender", "web1")
            await said(stage, "policy", "retire", "--site", "dub1", "--sender", "web2")
            await said(stage, "policy", "retire", "--site", "dub1", "--sender", "wbe2")
            checked = await asyncio.to_thread(muster, stage.config_path.parent, "check", "--watermark", "1ms,1h")
            assert "dub1, block nodes has not taken what the hub's policy said" in checked.stdout
            await stage.region.link.restore()
            await until(lambda: stage.region.senders_with(AdvisoryKind.RETIRED), "the hub hears that web2 is gone")
            await until(lambda: asked_for(agent), "web1 is forwarded")

            async def told() -> bool:
                return (await stage.region.watermarks())[-1].policy_revision == 4

            await until(told, "watermarks say which revision the agent runs")
        (retired,) = [each for each in await stage.region.advisories() if each.kind is AdvisoryKind.RETIRED]
        assert (retired.value, retired.by_operator) == ("web2", True)
        assert (await stage.region.watermarks())[-1].stale_after == 10 * MINUTE
        (block,) = (await agent.json("status"))["blocks"]
        assert (block["state"]["policy"]["sample_interval"], block["state"]["policy"]["revision"]) == (120 * MINUTE, 4)
        _, page, _ = await agent.command("status")
        assert "revision 4: sample_interval 2h (for eu-west.dub1), stale_after 10m (for eu-west.dub1)" in page
        await said(stage, "policy", "set", "--site", "dub1", "--block", "nodes", "--blind-after", "1s")
        await until(lambda: refuses(agent), "the doctor tells what is refused")
        await until(lambda: remarked(stage), "so does the hub")
    finally:
        await agent.end()


async def test_an_agent_makes_its_consumer_where_nobody_has(stage: Stage) -> None:
    """Where sites are not named in the topology; that there is no stream yet is not worth a word."""
    directory = stage.config_path.parent
    topology = directory / "topology.toml"
    topology.write_text(topology.read_text().partition("[[site]]")[0])
    agent = OperatedAgent(stage.config_path)
    await agent.start()
    try:
        await until(stage.region.observed_through, "the agent vouches")
        await said(stage, "apply", "--force")
        await said(stage, "policy", "set", "--region", "eu-west", "--site", "dub1", "--sample-interval", "2h")
        assert "policy" not in agent.log_path.read_text()
        await stage.region.link.cut()
        await stage.region.link.restore()

        async def told() -> bool:
            return (await stage.region.watermarks())[-1].policy_revision == 1

        await until(told, "what was said is taken")
    finally:
        await agent.end()


async def test_policy_is_heard_in_the_domain_that_the_agent_names(tmp_path: Path) -> None:
    """An agent's servers may be in another domain than the region's; it asks what operators are told to permit."""
    site = '[policy]\n[[site]]\nname = "dub1"\nregion = "eu-west"\n'
    async with federation(tmp_path, ("eu-west",), site) as servers:
        for command in (("apply", "--force"), ("policy", "set", "--site", "dub1", "--stale-after", "10m")):
            done = await asyncio.to_thread(muster, tmp_path, *command)
            assert done.returncode == 0, done.stderr
        asked: set[str] = set()

        async def note(message: Msg) -> None:
            asked.add(message.subject)

        async with await client_of(servers.hub) as spy, await client_of(servers.hub) as client:
            await spy.subscribe("$JS.*.API.CONSUMER.*.MUSTER_POLICY.muster-dub1", cb=note)
            await spy.subscribe("$JS.*.API.CONSUMER.MSG.NEXT.MUSTER_POLICY.muster-dub1", cb=note)
            await spy.flush()
            feed = PolicyFeed("eu-west", "dub1", "eu-west", lambda _phase, _reason: None)
            hearing = asyncio.create_task(feed.run(client, ()))
            await until(feed.orders, "what was said is heard")
            await until(lambda: len(asked) >= 3, "what was asked for is known")
            await cancel_all([hearing])
    assert [each.revision.order for each in feed.orders()] == [SetThresholds(Thresholds(stale_after=10 * MINUTE))]
    assert asked == {
        f"$JS.eu-west.API.CONSUMER.{action}.MUSTER_POLICY.muster-dub1" for action in ("INFO", "RESET", "MSG.NEXT")
    }


async def test_without_a_link_nothing_is_listened_to_nor_asked_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day without a link would otherwise bring thousands of subscriptions and requests at once."""
    for name in ("LOOK_AGAIN", "RETRY_AFTER", "RETRY_WHERE_UNKNOWN", "REQUEST_DEADLINE"):
        monkeypatch.setattr(feed_module, name, 0.05)
    failed_attempts: list[LinkState] = []

    def note(state: LinkState) -> None:
        if state.event is LinkEvent.RETRY_FAILED:
            failed_attempts.append(state)

    asked: list[Msg] = []

    async def hear(message: Msg) -> None:
        asked.append(message)

    async with (
        server_in(tmp_path) as server,
        EmbeddedLink(server.port) as link,
        await connect(ConnectionSettings(servers=(link.url,)), name="test", deadline=60, on_state=note) as client,
        await client_of(server) as spy,
    ):
        await spy.subscribe("$JS.API.CONSUMER.>", cb=hear)
        await spy.flush()
        feed = PolicyFeed("eu-west", "dub1", "", lambda _phase, _reason: None)
        hearing = asyncio.create_task(feed.run(client, ()))
        await until(lambda: asked, "policy is asked for")
        await link.cut()
        await until(lambda: len(failed_attempts) >= 4, "the link is down for a while")
        assert client.pending_data_size == 0
        asked.clear()
        await link.restore()
        await until(lambda: asked, "policy is asked for again")
        await cancel_all([hearing])


async def known(stage: Stage, sender_id: str) -> bool:
    return sender_id in await stage.region.senders_with(AdvisoryKind.NEW)


async def refuses(agent: OperatedAgent) -> bool:
    _, output, _ = await agent.command("doctor", "--json")
    refused = "refused, policy for eu-west.dub1.nodes: source.settle (300ms) must be shorter than policy.blind_after"
    _, checked, _ = await agent.command("status", "--check")
    return refused in output and "(policy_refused for " in checked


async def remarked(stage: Stage) -> bool:
    shown = await said(stage, "policy", "show")
    return "refused by its settings, runs blind_after 1.5s" in shown and "; 1 named a sender that it did not" in shown


async def asked_for(agent: OperatedAgent) -> bool:
    (block,) = (await agent.json("status"))["blocks"]
    return bool(block["counters"]["forwarded"].get("policy") == 1)


async def test_two_operators_at_once_lose_no_revision(stage: Stage) -> None:
    await said(stage, "apply", "--force")
    client = stage.region.client

    async def set_one(name: str) -> int:
        def make(book: Book) -> tuple[Scope, Order]:
            return DUB1, changed_thresholds(book, DUB1, {name: 30 * MINUTE}, ())

        return (await say(client, HERE, name, make)).revision.revision

    numbers = await asyncio.gather(*(set_one(name) for name in ("sample_interval", "stale_after")))
    assert sorted(numbers) == [1, 2]
    book = (await read_policy(client, HERE)).book
    both = Thresholds(sample_interval=30 * MINUTE, stale_after=30 * MINUTE)
    assert book.revisions[-1].revision.order == SetThresholds(both)


MISTAKES = (
    (
        ("set", "--site", "dub1", "--stale-after", "soon"),
        "Invalid value for '--stale-after': not a duration: 'soon', write",
    ),
    (("set", "--site", "dub1", "--stale-after", "2h", "--retire-after", "1h"), "stale_after (2h) must be shorter"),
    (("set", "--site", "dbu1", "--stale-after", "2h"), "site 'dbu1' is not in the topology, did you mean dub1?"),
    (("retire", "--region", "eu-west", "--sender", "web1"), "say at which site the sender is: --site"),
    (("retire", "--site", "dub1", "--sender", ""), "a sender's name is not empty"),
    (("set", "--site", "dub1"), "say what to set: --sample-interval, --stale-after, --retire-after, --blind-after, or"),
    (("set", "--site", "dub1", "--stale-after", "1h", "--unset", "stale_after"), "stale_after cannot be set and unset"),
    (("cancel", "7"), "revision 7 declares no maintenance; those that do: none"),
)


async def test_a_mistake_is_said_in_one_line_and_changes_nothing(stage: Stage) -> None:
    directory = stage.config_path.parent
    done = await asyncio.to_thread(muster, directory, "policy", "history")
    assert done.stderr == ("muster-aggregator: the hub has no stream MUSTER_POLICY: muster-aggregator apply makes it\n")
    await said(stage, "apply", "--force")
    for command, line in MISTAKES:
        done = await asyncio.to_thread(muster, directory, "policy", *command)
        assert done.returncode != 0
        assert line in done.stderr
        assert done.stderr.count("\n") == (4 if "Invalid value" in line else 1)
    span = ("--from", "2026-01-01T00:00:00Z", "--to", "2026-01-02T00:00:00Z", "--reason", "moved")
    many = [part for number in range(12_000) for part in ("--sender", f"{number:x>90}")]
    done = await asyncio.to_thread(muster, directory, "policy", "maintenance", "--site", "dub1", *span, *many)
    assert done.stderr == (
        "muster-aggregator: it is larger than a message to the hub may be (1 MiB): say it in parts\n"
    )
    assert await said(stage, "policy", "history") == "nothing was said yet\n"
    (directory / "topology.toml").write_text('[hub]\nservers = ["nats://nowhere"]\n')
    done = await asyncio.to_thread(muster, directory, "policy", "show")
    assert "topology.toml has no policy: add a line [policy]" in done.stderr
