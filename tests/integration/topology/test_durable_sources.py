"""On real servers: what the archive copies from the regions is taken whole and once, whatever befalls the copying."""

import random
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client
from nats.js.errors import NoStreamResponseError

from aggregator.topology.apply import ApplyFailed, apply
from aggregator.topology.desired.settings import TopologySettings
from aggregator.topology.desired.streams import desired
from aggregator.topology.observed.connections import connections
from aggregator.topology.observed.reader import observe
from aggregator.topology.plan.changes import Action, Plan, plan
from shared.nats.connection import request_json
from shared.nats.jetstream_api import create_stream
from shared.settings import load_settings
from tests.support.topology.aggregator_command import muster, ran, refused
from tests.support.topology.archiving import RETRIED, acknowledged, applied, archived_sequences, holds_sequence, publish
from tests.support.topology.dying_apply import DEATH
from tests.support.topology.regions import answers, client_of, federation, holds, stream
from tests.support.waiting import until


@pytest.mark.parametrize("count", [3, 4])
async def test_a_fleet_that_was_made_anew_by_hand_is_noticed_and_archived_whole_after_apply(
    tmp_path: Path, count: int
) -> None:
    """Where its new consumer delivers as many as the old one had, here three, a server would not look again."""
    async with federation(tmp_path, ("us-east",)) as servers:
        config = ("--config", servers.topology_path)
        await applied(servers)
        async with await client_of(servers.regions["us-east"]) as agent, await client_of(servers.hub) as hub:
            await publish(agent, "us-east", 3)
            await until(partial(holds, hub, "ARCHIVE", 3), "the first messages are archived")
            old = (await stream(hub, "FLEET", "$JS.us-east.API"))["config"]
            await request_json(hub, "$JS.us-east.API.STREAM.DELETE.FLEET", None, dict[str, Any], deadline=60)
            assert "FLEET is missing" in (await refused("report", *config)).stdout
            await create_stream(hub, "$JS.us-east.API.STREAM.CREATE.FLEET", old, dict[str, Any], deadline=60)
            await publish(agent, "us-east", count)
            checked = await muster("check", *config)
            said = "us-east: FLEET lacks the consumer muster-archive, ARCHIVE of hub takes nothing from it: apply"
            assert (checked.returncode, checked.stdout.count("\n"), said in checked.stdout) == (2, 1, True)
            shown = await ran("plan", *config)
            assert "+ create consumer muster-archive on FLEET" in shown
            assert "FLEET of $JS.us-east.API: through the old consumer -> set aside" in shown
            assert "applied 3 changes" in await ran("apply", *config)
            await publish(agent, "us-east", 2)
            await until(partial(holds, hub, "ARCHIVE", 3 + count + 2), "the new stream is archived whole", RETRIED)
            assert await archived_sequences(hub) == [1, 2, 3, *range(1, count + 3)]
            assert await ran("plan", *config) == "nothing to do\n"


async def test_sourcing_changes_its_sort_without_losing_anything(tmp_path: Path) -> None:
    """A source that turns plain again may take once more what came while it was durable: docs/decisions/0018."""
    async with federation(tmp_path, ("us-east",)) as servers:
        durable = servers.topology_path.read_text()
        plain = durable + '[archive]\nsourcing = "plain"\n'
        async with await client_of(servers.regions["us-east"]) as agent, await client_of(servers.hub) as hub:
            count = again = 0
            for text in (plain, durable, plain, durable):
                servers.topology_path.write_text(text)
                await applied(servers)
                assert await ran("plan", "--config", servers.topology_path) == "nothing to do\n"
                count += 5
                await publish(agent, "us-east", 5)
                await until(partial(holds_sequence, hub, count), "all are archived")
                sequences = await archived_sequences(hub)
                assert set(sequences) == set(range(1, count + 1))
                taken_again = len(sequences) - count - again
                assert taken_again == 0 or (text == plain and taken_again <= 5)
                again += taken_again


async def test_an_archive_that_was_laid_out_without_is_confined_and_takes_nothing_twice(tmp_path: Path) -> None:
    async with federation(tmp_path, ("us-east",)) as servers:
        config = ("--config", servers.topology_path)
        await applied(servers)
        async with await client_of(servers.regions["us-east"]) as agent, await client_of(servers.hub) as hub:
            before = (await stream(hub, "ARCHIVE"))["config"]
            del before["sources"][0]["subject_transforms"]
            await request_json(hub, "$JS.API.STREAM.UPDATE.ARCHIVE", before, dict[str, Any], deadline=60)
            await publish(agent, "us-east", 5)
            await until(partial(holds, hub, "ARCHIVE", 5), "all are archived")
            shown = await ran("plan", *config)
            assert "durable through muster-archive -> durable through muster-archive, all below fleet.us-east" in shown
            told = await ran("apply", *config)
            assert "~ update stream ARCHIVE\n    what comes in while this is applied may be taken twice\n" in told
            assert "applied 3 changes" in told
            assert await ran("plan", *config) == "nothing to do\n"
            await publish(agent, "us-east", 5)
            await until(partial(holds_sequence, hub, 10), "all are archived", RETRIED)
            assert await archived_sequences(hub) == list(range(1, 11))


async def test_an_archive_that_was_laid_out_without_takes_all_once_more_where_that_is_wanted(tmp_path: Path) -> None:
    async with federation(tmp_path, ("us-east",)) as servers:
        await applied(servers)
        async with await client_of(servers.regions["us-east"]) as agent, await client_of(servers.hub) as hub:
            before = (await stream(hub, "ARCHIVE"))["config"]
            del before["sources"][0]["subject_transforms"]
            await request_json(hub, "$JS.API.STREAM.UPDATE.ARCHIVE", before, dict[str, Any], deadline=60)
            await publish(agent, "us-east", 5)
            await until(partial(holds, hub, "ARCHIVE", 5), "all are archived")
            told = await ran("apply", "--again", "us-east", "--config", servers.topology_path)
            assert "~ update stream ARCHIVE\n    all that FLEET of us-east holds comes once more\n" in told
            await until(partial(holds, hub, "ARCHIVE", 10), "all are archived once more", RETRIED)
            assert await archived_sequences(hub) == [*range(1, 6), *range(1, 6)]


async def test_a_source_that_was_changed_by_hand_is_put_right_by_one_apply_and_brings_what_it_left_out(
    tmp_path: Path,
) -> None:
    """The one that goes and the one that comes read through the same consumer."""
    async with federation(tmp_path, ("us-east",)) as servers:
        await applied(servers)
        async with await client_of(servers.regions["us-east"]) as agent, await client_of(servers.hub) as hub:
            await publish(agent, "us-east", 3)
            await until(partial(holds, hub, "ARCHIVE", 3), "the first messages are archived")
            changed = (await stream(hub, "ARCHIVE"))["config"]
            changed["sources"][0]["subject_transforms"] = [{"src": "fleet.us-east.elsewhere.>", "dest": ""}]
            await request_json(hub, "$JS.API.STREAM.UPDATE.ARCHIVE", changed, dict[str, Any], deadline=60)
            await publish(agent, "us-east", 3)
            assert "applied 3 changes" in await ran("apply", "--force", "--config", servers.topology_path)
            await publish(agent, "us-east", 2)
            await until(partial(archive_ends, hub, 8), "the last is archived", RETRIED)
            assert set(await archived_sequences(hub)) == set(range(1, 9))


async def test_a_consumer_that_is_missing_is_made_again_and_messages_flow_on(tmp_path: Path) -> None:
    async with federation(tmp_path, ("us-east",)) as servers:
        await applied(servers)
        async with await client_of(servers.regions["us-east"]) as agent, await client_of(servers.hub) as hub:
            await publish(agent, "us-east", 3)
            await until(partial(holds, hub, "ARCHIVE", 3), "the first messages are archived")
            subject = "$JS.us-east.API.CONSUMER.DELETE.FLEET.muster-archive"
            await request_json(hub, subject, None, dict[str, Any], deadline=60)
            await publish(agent, "us-east", 2)
            assert "us-east: + create consumer muster-archive on FLEET" in await applied(servers)
            await publish(agent, "us-east", 2)
            await until(partial(holds_sequence, hub, 7), "what came before and after is archived", RETRIED)
            assert await archived_sequences(hub) == list(range(1, 8))


async def test_an_apply_that_fails_half_way_is_seen_by_check_and_ended_by_the_next_one(tmp_path: Path) -> None:
    async with federation(tmp_path, ("us-east",)) as servers:
        config = ("--config", servers.topology_path)
        await applied(servers)
        topology = load_settings(servers.topology_path, TopologySettings)
        async with await client_of(servers.regions["us-east"]) as agent, await client_of(servers.hub) as hub:
            await publish(agent, "us-east", 3)
            await until(partial(holds, hub, "REPORT", 3), "the first messages are reported")
            subject = "$JS.us-east.API.CONSUMER.DELETE.FLEET.muster-archive"
            await request_json(hub, subject, None, dict[str, Any], deadline=60)
            async with connections(topology) as opened:
                aside, made, back = plan(desired(topology), await observe(desired(topology), opened)).changes
                nonsense = msgspec.structs.replace(made, config={"durable_name": made.consumer, "ack_policy": "odd"})
                with pytest.raises(ApplyFailed, match="; ARCHIVE of hub has set sources aside: apply again$"):
                    await apply(Plan((aside, nonsense, back), {}), opened, lambda _: None)
            checked = await muster("check", *config)
            assert checked.returncode == 2
            assert "hub: ARCHIVE does not copy FLEET of us-east: apply takes it up" in checked.stdout
            assert "ARCHIVE does not copy FLEET of us-east" in (await refused("report", *config)).stdout
            with pytest.raises(NoStreamResponseError):
                await hub.jetstream().publish("ARCHIVE", b"forged")
            await publish(agent, "us-east", 2)
            assert "applied 2 changes" in await ran("apply", *config)
            await until(partial(holds, hub, "REPORT", 5), "everything is archived, once", RETRIED)
            assert "subjects" not in (await stream(hub, "ARCHIVE"))["config"]
            assert await ran("plan", *config) == "nothing to do\n"


async def test_an_apply_that_is_killed_at_any_step_is_ended_by_the_next_one_and_nothing_is_lost_or_doubled(
    tmp_path: Path,
) -> None:
    """Each change of durable sourcing once, killed at a request that is drawn; the seed says which."""
    drawn = seeded()
    async with federation(tmp_path, ("us-east",)) as servers:
        durable = servers.topology_path.read_text()
        async with await client_of(servers.regions["us-east"]) as agent, await client_of(servers.hub) as hub:
            expected: list[int] = []
            held = 0

            async def killed_and_ended(text: str, *, flows: bool) -> None:
                """Change the settings and apply; ``flows``: what is published meanwhile reaches the archive as well."""
                nonlocal held
                servers.topology_path.write_text(text)
                await killed(servers.topology_path, drawn)
                if flows:
                    await publish(agent, "us-east", 2)
                    held += 2
                    await until(partial(archive_ends, hub, held), "what came in between is archived", RETRIED)
                await ran("apply", "--config", servers.topology_path)
                await publish(agent, "us-east", 2)
                held += 2
                await until(partial(archive_ends, hub, held), "the last is archived", RETRIED)
                expected.extend(range(max(expected, default=0) + 1, held + 1))
                assert await archived_sequences(hub) == expected

            await killed_and_ended(durable + '[archive]\nsourcing = "plain"\n', flows=False)
            await killed_and_ended(durable, flows=True)
            subject = "$JS.us-east.API.CONSUMER.DELETE.FLEET.muster-archive"
            await request_json(hub, subject, None, dict[str, Any], deadline=60)
            await killed_and_ended(durable, flows=False)
            assert await ran("plan", "--config", servers.topology_path) == "nothing to do\n"


def seeded() -> random.Random:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    return random.Random(seed)


async def killed(path: Path, drawn: random.Random) -> None:
    """Kill an apply at one of its requests."""
    topology = load_settings(path, TopologySettings)
    async with connections(topology) as opened:
        changes = plan(desired(topology), await observe(desired(topology), opened)).changes
    requests = sum(2 if change.action is Action.REPLACE else 1 for change in changes)
    death = f"{drawn.randint(1, requests)} {drawn.choice(('before', 'after'))}"
    print(f"{death} of {requests}")
    answer = await muster(
        "apply", "--config", path, module="tests.support.topology.dying_apply", environment={DEATH: death}
    )
    assert answer.returncode == -signal.SIGKILL


async def archive_ends(hub: Client, sequence: int) -> bool:
    """Tell whether the archive has a region's message of a sequence last."""
    return (await archived_sequences(hub))[-1:] == [sequence]


async def test_a_region_that_is_added_brings_all_that_it_held_before_once(tmp_path: Path) -> None:
    """Older than what the copies hold already: by time it would be passed over."""
    gather = '[[stream]]\nname = "GATHER"\n'
    source = '[[stream.source]]\nname = "FLEET"\ndomain = "{}"\nsourcing = "plain"\n'
    async with federation(tmp_path) as servers:
        both = servers.topology_path.read_text()
        one = both.replace('[[region]]\nname = "eu-west"\n', "")
        async with (
            await client_of(servers.regions["us-east"]) as east,
            await client_of(servers.regions["eu-west"]) as west,
            await client_of(servers.hub) as hub,
        ):
            config = {"name": "FLEET", "subjects": ["fleet.eu-west.>"]}
            await request_json(west, "$JS.API.STREAM.CREATE.FLEET", config, dict[str, Any], deadline=60)
            await publish(west, "eu-west", 5)
            servers.topology_path.write_text(one + gather + source.format("us-east"))
            await ran("apply", "--config", servers.topology_path)
            await publish(east, "us-east", 3)
            for name in ("ARCHIVE", "GATHER"):
                await until(partial(holds, hub, name, 3), f"{name} holds what is newer")
            servers.topology_path.write_text(both + gather + source.format("us-east") + source.format("eu-west"))
            await ran("apply", "--config", servers.topology_path)
            await publish(west, "eu-west", 2)
            for name in ("ARCHIVE", "GATHER"):
                await until(partial(holds, hub, name, 10), f"{name} holds what was there before, too", RETRIED)
                assert await archived_sequences(hub, name) == [1, 2, 3, *range(1, 8)]


async def test_a_region_that_was_restored_from_an_older_copy_is_noticed_and_taken_whole_after_apply(
    tmp_path: Path,
) -> None:
    """It uses sequences again that the archive has taken: the server leaves out what stands there, without an error.

    The first apply is killed at a request that is drawn; the seed says which.
    """
    drawn = seeded()
    async with federation(tmp_path, ("us-east",)) as servers:
        config, region = ("--config", servers.topology_path), servers.regions["us-east"]
        store, copy = tmp_path / "us-east" / "jetstream", tmp_path / "copy"
        await applied(servers)
        async with await client_of(servers.hub) as hub, await client_of(region) as agent:

            async def restarted(*, restored: bool) -> None:
                await region.stop()
                if restored:
                    shutil.rmtree(store)
                shutil.copytree(*((copy, store) if restored else (store, copy)))
                await region.start()
                await until(lambda: agent.is_connected, "the agent is back")
                await until(partial(answers, hub, "us-east"), "the hub reaches the region")

            await publish(agent, "us-east", 3, b"before")
            await until(partial(holds, hub, "ARCHIVE", 3), "the first are archived")
            await acknowledged(hub, "us-east", 3)
            await restarted(restored=False)
            await publish(agent, "us-east", 3, b"lost in the region")
            await until(partial(holds, hub, "ARCHIVE", 6), "the next are archived", RETRIED)
            await restarted(restored=True)
            await publish(agent, "us-east", 2, b"after")
            checked = await muster("check", *config)
            said = "hub: ARCHIVE has taken FLEET of us-east up to 6, it ends at 5: made anew or restored"
            assert (checked.returncode, said in checked.stdout) == (2, True), checked.stdout
            assert "FLEET of us-east was restored: all that it holds comes once more" in await ran("plan", *config)
            await killed(servers.topology_path, drawn)
            await ran("apply", *config)
            await until(partial(archive_ends, hub, 5), "all that the region holds is archived", RETRIED)
            assert await archived_sequences(hub) == [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5]
            assert (await hub.jetstream().get_msg("ARCHIVE", 11)).data == b"after"
            assert await ran("plan", *config) == "nothing to do\n"
