"""The service shows what the hub's archive says, with the real server, and goes on where it stood."""

import asyncio
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import msgspec
import pytest

from aggregator.archive import consumer, direct_gets
from aggregator.archive.consumer import Messages
from aggregator.config import Reading
from aggregator.live import feed as feeds
from aggregator.live.feed import Feed
from aggregator.live.fold.changes import Changes
from aggregator.live.fold.senders import UP
from aggregator.live.fold.view import Sourcing
from aggregator.live.store import LiveStore, StoreReader, Wanted
from aggregator.records.judge import QuarantineReason
from shared.instants import MINUTE, SECOND
from shared.nats.dispatch import DirectClient
from shared.policy import DeclareMaintenance, Scope
from shared.tasks import cancel_all
from tests.support.lakehouse.hub import Block, Hub, Message, said
from tests.support.live.live_service import DEADLINE, LiveService, serving
from tests.support.waiting import until


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub(tmp_path / "hub") as running_hub:
        yield running_hub


@pytest.fixture
def service(hub: Hub, tmp_path: Path) -> Iterator[LiveService]:
    with serving(tmp_path, hub.connection, 'unknown_after = "1h"\n') as running_service:
        yield running_service


@asynccontextmanager
async def reading_feed(hub: Hub, tmp_path: Path, reading: Reading = "consumer") -> AsyncIterator[Feed]:
    """Read the hub's archive into ``live.db``."""
    feed = Feed(hub.connection, "ARCHIVE", tmp_path / "live.db", reading=reading)
    running = asyncio.create_task(feed.run())
    try:
        yield feed
    finally:
        await cancel_all([running])
        feed.close()


@pytest.mark.parametrize("reading", ["consumer", "direct"])
async def test_large_records_are_in_memory_few_at_a_time(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reading: Reading
) -> None:
    sizes, take = list[int](), Feed._take

    async def take_and_note_size(feed: Feed, messages: Messages) -> None:
        sizes.append(sum(map(len, messages.payloads)))
        await take(feed, messages)

    monkeypatch.setattr(Feed, "_take", take_and_note_size)
    block, at, count, size = Block("eu-west", "dub1"), now() - MINUTE, 12, 900_000
    last = await asyncio.to_thread(hub.publish, [block.new(f"{each}" + size * "x", at) for each in range(count)])
    async with reading_feed(hub, tmp_path, reading) as feed:
        await until(lambda: feed.is_ready and feed.fleet.sequence == last, "all is read")
        assert feed.fleet.refused == {QuarantineReason.NOT_DECODABLE: count}
    assert sum(sizes) > count * size
    # For direct gets, a server sends the message that exceeds the bound, too.
    assert max(sizes) < feeds.BATCH_BYTES + 2 * size


async def test_an_archive_that_was_not_made_yet_is_named_with_the_command_that_makes_it(
    hub: Hub, tmp_path: Path
) -> None:
    feed = Feed(hub.connection, "NONE", tmp_path / "live.db")
    reading = asyncio.create_task(feed.run())
    try:
        line = "the hub has no stream NONE: muster-aggregator apply makes it"
        await until(lambda: feed.wrong == line, "the feed says why it does not read", DEADLINE)
    finally:
        await cancel_all([reading])
        feed.close()


PATHS = ("sites", "senders", "advisories", "senders/eu-west/dub1/nodes/web1")


def now() -> int:
    return time.time_ns() // 1_000


@pytest.mark.parametrize(
    ("live", "said"),
    [
        (
            'tls_cert = "none.pem"\ntls_key = "bad.pem"',
            "tls_cert {}/none.pem, tls_key {}/bad.pem: no such file or directory",
        ),
        ('tls_cert = "bad.pem"\ntls_key = "bad.pem"', "tls_cert {}/bad.pem, tls_key {}/bad.pem: [SSL"),
        ('path = "bad.pem/live.db"', "{}/bad.pem: file exists"),
        ('path = "state/live.db"', "{}/state/live.db or {}/state/incidents.db: unable to open database file"),
    ],
)
def test_a_file_of_no_use_is_named_in_one_line(tmp_path: Path, live: str, said: str) -> None:
    (tmp_path / "bad.pem").touch()
    (tmp_path / "state" / "incidents.db").mkdir(parents=True)
    config = tmp_path / "aggregator.toml"
    config.write_text(
        f'[hub]\nservers = ["127.0.0.1:1"]\n[lakehouse]\npath = "lake"\n[live]\nlisten = "127.0.0.1:0"\n{live}'
    )
    done = subprocess.run(
        [sys.executable, "-c", "from aggregator.cli import main; main()", "serve", "--config", config],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"muster-aggregator: {said.replace('{}', str(tmp_path))}")
    assert len(done.stderr.splitlines()) == 1


def test_fleet_sites_senders_and_story_are_what_the_archive_says(hub: Hub, service: LiveService) -> None:
    at = now() - 20 * MINUTE
    dub1, ber1 = Block("eu-west", "dub1"), Block("eu-west", "ber1")
    messages = [dub1.new(f"web{number}", at) for number in range(5)] + [ber1.new("db1", at)]
    messages += [dub1.stale("web3", at), dub1.recovered("web3", at + 14 * MINUTE), dub1.stale("web4", at + SECOND)]
    through = now() - SECOND
    service.wait_through(hub.publish([*messages, dub1.watermark(at, through), ber1.watermark(at, through)]))

    fleet = service.get("fleet")
    assert fleet["counts"] == {"up": 5, "stale": 1, "unknown": 0, "maintenance": 0, "retired": 0}
    assert fleet["trust"] == "all 2 sites are current"
    page = service.get("sites", sort="trouble")
    assert [(site["site"], site["state"]) for site in page["sites"]] == [("dub1", "stale"), ("ber1", "up")]
    assert page["sites"][0]["since_us"] == at + SECOND
    assert page["sites"][0]["known_until_us"] == through

    first = service.get("senders", site="dub1", region="eu-west", limit=3)
    second = service.get("senders", site="dub1", region="eu-west", limit=3, after=first["after"])
    found = [(each["sender"], each["state"]) for each in (*first["senders"], *second["senders"])]
    assert found == [("web0", "up"), ("web1", "up"), ("web2", "up"), ("web3", "up"), ("web4", "stale")]
    assert second["after"] == ""
    assert [each["sender"] for each in service.get("senders", state="stale")["senders"]] == ["web4"]
    assert [each["sender"] for each in service.get("senders", search="EB2")["senders"]] == ["web2"]
    story = service.get("senders/eu-west/dub1/nodes/web3")
    assert [each["kind"] for each in story["advisories"]] == ["recovered", "stale", "new"]
    assert [each["sender"] for each in service.get("advisories", limit=2)["advisories"]] == ["web4", "web3"]


def test_a_key_that_may_make_no_consumer_is_enough(tmp_path: Path) -> None:
    denied = 'permissions: { publish: { deny: "$JS.API.CONSUMER.>" } }'
    users = f"authorization {{ users: [ {{ user: u, password: p, {denied} }} ] }}\nno_auth_user: u"
    at = now() - MINUTE
    dub1 = Block("eu-west", "dub1")
    with Hub(tmp_path / "hub", extra_config=users) as hub:
        registration = Message("fleet.eu-west.dub1.nodes.registration", b"{}")
        hub.publish([dub1.new("web1", at), registration, dub1.watermark(at, now()), registration])
        with serving(tmp_path, hub.connection, 'unknown_after = "1h"\n', reading="direct") as service:
            assert service.wait_through(4)["counts"]["up"] == 1
            # What comes later is read too, also where the stream's end was deleted.
            last = hub.publish([dub1.new("web2", at), registration])
            hub.request("STREAM.MSG.DELETE.ARCHIVE", {"seq": last})
            assert service.wait_through(last - 1)["counts"]["up"] == 2


def test_a_restart_continues_and_a_rebuild_from_the_archive_says_the_same(hub: Hub, tmp_path: Path) -> None:
    at = now() - 20 * MINUTE
    dub1 = Block("eu-west", "dub1")
    with serving(tmp_path, hub.connection, 'unknown_after = "1h"\n') as service:
        service.wait_through(hub.publish([dub1.new("web1", at), dub1.new("web2", at), dub1.watermark(at, now())]))
        assert service.stop() == 0
    last = hub.publish([dub1.stale("web1", at), dub1.watermark(at, now())])
    with serving(tmp_path, hub.connection, 'unknown_after = "1h"\n') as service:
        service.wait_through(last)
        continued = [
            service.get(path) for path in ("sites", "senders", "advisories", "senders/eu-west/dub1/nodes/web1")
        ]
        service.stop()
    (tmp_path / "lake" / "live.db").unlink()
    with serving(tmp_path, hub.connection, 'unknown_after = "1h"\n') as service:
        service.wait_through(last)
        rebuilt = [service.get(path) for path in PATHS]
    assert [each["sender"] for each in continued[2]["advisories"]] == ["web1", "web2", "web1"]
    assert continued == rebuilt


def test_events_tell_what_changed_and_resume_behind_the_last_one_seen(hub: Hub, service: LiveService) -> None:
    at = now() - 20 * MINUTE
    dub1 = Block("eu-west", "dub1")
    service.wait_through(hub.publish([dub1.new("web1", at), dub1.watermark(at, now())]))
    with service.events() as events:
        assert next(events)[1] == "reset"
        hub.publish([dub1.stale("web1", at), dub1.watermark(at, now())])
        event_id, name, data = next(each for each in events if each[1] == "advisory")
        assert (name, data[-1]["kind"], data[-1]["sender"]) == ("advisory", "stale", "web1")
    hub.publish([dub1.recovered("web1", now())])
    with service.events(event_id) as events:
        seen = []
        for _, name, data in events:
            seen.append(name)
            if name == "advisory":
                assert [each["kind"] for each in data] == ["recovered"]
                break
    assert "reset" not in seen


def test_whatever_is_not_known_now_is_unknown_with_its_reason(hub: Hub, tmp_path: Path) -> None:
    at = now() - 20 * MINUTE
    silent, holed, current = (Block("eu-west", site) for site in ("dub1", "ber1", "ams1"))
    messages = [block.new("web1", at) for block in (silent, holed, current)]
    messages += [silent.stale("web1", at), silent.watermark(at, at + 13 * MINUTE)]
    holed.ordinal += 1
    with serving(tmp_path, hub.connection, 'unknown_after = "2m"\n') as service:
        last = hub.publish([*messages, holed.watermark(at, now()), current.watermark(at, now())])
        # The hub's own time is what it stored them at: the silent site's last word is as old as it says.
        fleet = service.wait_through(last)
        assert fleet["counts"] == {"up": 1, "stale": 0, "unknown": 2, "maintenance": 0, "retired": 0}
        found = {site["site"]: site for site in service.get("sites")["sites"]}
        assert {name: (each["state"], each["reason"]) for name, each in found.items()} == {
            "dub1": ("unknown", "agent_behind"),
            "ber1": ("unknown", "ordinals_missing"),
            "ams1": ("up", None),
        }
        assert found["dub1"]["since_us"] == at + 13 * MINUTE
        assert found["ber1"]["blocks"][0]["missing_count"] == 1
        (sender,) = service.get("senders", site="dub1", region="eu-west")["senders"]
        assert (sender["state"], sender["last_state"], sender["reason"]) == ("unknown", "stale", "agent_behind")
        assert service.get("senders", state="stale")["senders"] == []
        assert len(service.get("senders", state="unknown")["senders"]) == 2


def test_declared_maintenance_is_shown_and_ends_when_it_is_taken_back(hub: Hub, service: LiveService) -> None:
    at = now() - 20 * MINUTE
    dub1 = Block("eu-west", "dub1")
    whole = DeclareMaintenance(at, now() + 60 * MINUTE, "new switch")
    named = DeclareMaintenance(at, now() + 60 * MINUTE, "new disk", ("db1",))
    messages = [dub1.new("web1", at), dub1.new("db1", at), dub1.watermark(at, now())]
    service.wait_through(hub.publish([*messages, said(Scope("eu-west", "dub1"), 1, at, named)]))
    assert service.get("fleet")["counts"]["maintenance"] == 1
    assert [each["sender"] for each in service.get("senders", state="maintenance")["senders"]] == ["db1"]
    service.wait_through(hub.publish([said(Scope("eu-west"), 2, at, whole)]))
    (site,) = service.get("sites")["sites"]
    assert (site["state"], site["blocks"][0]["maintenance"]["reason"]) == ("maintenance", "new switch")
    assert service.get("fleet")["counts"]["maintenance"] == 2


def test_a_hub_that_is_away_makes_all_unknown_and_one_that_comes_back_is_read_on(hub: Hub, tmp_path: Path) -> None:
    at = now() - MINUTE
    dub1 = Block("eu-west", "dub1")
    with serving(tmp_path, hub.connection, 'unknown_after = "5s"\n') as service:
        service.wait_through(hub.publish([dub1.new("web1", at), dub1.watermark(at, now())]))
        asyncio.run(hub.server.stop())
        ends_at = time.monotonic() + DEADLINE
        while (site := service.get("sites")["sites"][0])["reason"] != "hub_behind":
            assert time.monotonic() < ends_at, site
            time.sleep(0.1)
        assert service.get("fleet")["counts"]["unknown"] == 1
        asyncio.run(hub.server.start())
        last = hub.publish([dub1.new("web2", now()), dub1.watermark(at, now())])
        fleet = service.wait_through(last)
        while fleet["counts"]["up"] != 2:
            assert time.monotonic() < ends_at, fleet
            last = hub.publish([dub1.watermark(at, now())])
            fleet = service.wait_through(last)


def test_an_archive_that_was_created_again_is_read_anew_and_the_old_state_set_aside(hub: Hub, tmp_path: Path) -> None:
    at = now() - MINUTE
    before, after = Block("eu-west", "dub1"), Block("eu-west", "ber1")
    with serving(tmp_path, hub.connection, 'unknown_after = "1h"\n') as service:
        service.wait_through(hub.publish([before.new("web1", at), before.new("web2", at), before.watermark(at, now())]))
        for name in ("REPORT", "ARCHIVE"):
            hub.request(f"STREAM.DELETE.{name}")
        hub.create_archive()
        hub.create_report()
        hub.publish([after.new("db1", at), after.watermark(at, now())])
        ends_at = time.monotonic() + DEADLINE
        while [site["site"] for site in service.get("sites")["sites"]] != ["ber1"]:
            assert time.monotonic() < ends_at, service.process.said
            time.sleep(0.1)
    assert (tmp_path / "lake" / "live.db.before").exists()


async def test_what_was_read_of_an_archive_that_is_gone_does_not_stand_for_the_next(hub: Hub, tmp_path: Path) -> None:
    async with reading_feed(hub, tmp_path) as feed:
        await until(lambda: feed.is_ready, "read")
        for subject in ("DELETE.REPORT", "DELETE.ARCHIVE"):
            await asyncio.to_thread(hub.request, f"STREAM.{subject}")
        await asyncio.to_thread(hub.create_archive)
        await until(lambda: feed.restored, "set aside")
        # It begins anew after a pause: meanwhile nothing is known, whoever was known before.
        assert (feed.is_ready, feed.sourcing) == (False, Sourcing())
        await until(lambda: feed.is_ready, "read anew")


async def test_a_leader_that_is_behind_for_a_moment_costs_no_state_and_an_older_copy_is_noticed(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "ELECTION_PAUSES", (0.1, 0.2))
    monkeypatch.setattr(feeds, "LOOK_EVERY", 0.1)
    dub1, at, directory = Block("eu-west", "dub1"), now() - MINUTE, tmp_path / "hub"
    first = await asyncio.to_thread(hub.publish, [dub1.new("web1", at), dub1.new("web2", at)])
    await asyncio.to_thread(hub.stop)
    await asyncio.to_thread(shutil.copytree, directory, tmp_path / "copy")
    await asyncio.to_thread(hub.start)
    last = await asyncio.to_thread(hub.publish, [dub1.new("web3", at)])
    said, left_behind, info = Counter[int](), 0, Feed._info

    async def behind_for_a_moment(feed: Feed, client: DirectClient) -> feeds._ArchiveInfo:
        nonlocal left_behind
        found = await info(feed, client)
        if left_behind:
            left_behind -= 1
            found = msgspec.structs.replace(found, state=feeds._LastSequence(first))
        said[left_behind] += 1
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Feed, "_info", behind_for_a_moment)
        async with reading_feed(hub, tmp_path) as feed:
            await until(lambda: feed.is_ready and feed.fleet.sequence == last, "read")
            said.clear()
            left_behind = 2
            await until(lambda: said[1] > 0 and said[0] > 2, "behind while it was read, and not behind any more")
            assert (feed.restored, feed.fleet.sequence) == (0, last)
        left_behind = 2
        async with reading_feed(hub, tmp_path) as feed:
            await until(lambda: feed.is_ready, "read from where it stood")
            assert (left_behind, feed.restored, feed.fleet.sequence) == (0, 0, last)
    await asyncio.to_thread(hub.stop)
    await asyncio.to_thread(shutil.rmtree, directory)
    (tmp_path / "copy").rename(directory)
    await asyncio.to_thread(hub.start)
    async with reading_feed(hub, tmp_path) as feed:
        await until(lambda: feed.is_ready, "read anew")
        assert (feed.restored, feed.fleet.sequence) == (1, first)


@pytest.mark.parametrize("reading", ["consumer", "direct"])
async def test_each_message_counts_once_wherever_reading_ahead_is_broken_off(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reading: Reading
) -> None:
    for module in (consumer, direct_gets):
        monkeypatch.setattr(module, "BATCH_MESSAGES", 7)
    site, at = Block("eu-west", "dub1"), now() - 20 * MINUTE
    last = await asyncio.to_thread(hub.publish, [site.new(f"web{number}", at) for number in range(700)])
    news = Counter[int]()

    def note(changes: Changes) -> None:
        news.update(entry.sequence for entry in changes.entries)

    for through in (120, 240, 360, 480, last):
        feed = Feed(hub.connection, "ARCHIVE", tmp_path / "live.db", reading=reading, on_changes=note)
        task = asyncio.create_task(feed.run())
        try:
            if through < last:
                await until(lambda: feed.fleet.sequence >= through, "some more are folded")  # noqa: B023
            else:
                await until(lambda: feed.is_ready, "all are read")  # noqa: B023
        finally:
            await cancel_all([task])
            feed.close()
    with closing(StoreReader(tmp_path / "live.db")) as reader:
        assert reader.count(0, Wanted(frozenset((UP,)))) == last
        entries = reader.entries_before(last + 1, last + 1)
    assert sorted(entry.sequence for entry, _, _ in entries) == list(range(1, last + 1))
    # Who is broken off between a commit and its news tells of that batch no more.
    assert max(news.values()) == 1


def test_maintenance_may_name_more_senders_than_a_statement_takes_parameters(tmp_path: Path) -> None:
    path, names = tmp_path / "live.db", frozenset(f"web{number}" for number in range(300_000))
    with closing(LiveStore(path)), closing(StoreReader(path)) as reader:
        assert reader.senders(0, Wanted(frozenset((UP,)), "", names), "", 10) == []
        assert reader.count(0, Wanted(frozenset((UP,)), "", None, names)) == 0
