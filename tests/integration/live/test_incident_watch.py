"""Incidents of a running service: told once, also across restarts and where the live state is made anew."""

import asyncio
import json
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from msgspec.structs import replace

from aggregator.config import AggregatorSettings, load
from aggregator.live.alerts.incidents import Incident
from aggregator.live.alerts.watch import IncidentWatch
from aggregator.live.fold.view import View
from aggregator.live.service.server import Service
from shared.instants import HOUR, MINUTE
from shared.nats.settings import ConnectionSettings
from shared.tasks import cancel_all
from tests.support.agent.agent_stage import registering
from tests.support.command_process import running
from tests.support.delivery.fleet_region import STREAM as FLEET
from tests.support.lakehouse.hub import Block, Hub
from tests.support.live.live_service import LiveService, serving, write_settings
from tests.support.pair.pair_stage import pair_stage
from tests.support.waiting import until

SETTINGS = (
    'unknown_after = "30m"\n[live.incidents]\nopen_after = "1s"\nunknown_after = "1s"\nclose_after = "1s"\n'
    '[[live.alerts]]\nkind = "webhook"\nurl = "http://127.0.0.1:{port}/"\n'
)


def now() -> int:
    return time.time_ns() // 1_000


class Receiver:
    """A web server that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        told = self.told

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def wait(condition: Callable[[], object], service: LiveService) -> None:
    ends_at = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < ends_at, service.process.said
        time.sleep(0.05)


def is_acknowledged(book: Path) -> bool:
    with closing(sqlite3.connect(book)) as database:
        return bool(database.execute("SELECT 1 FROM notices").fetchone())


def test_an_incident_is_told_once_across_restarts_and_a_new_state_and_its_end_too(tmp_path: Path) -> None:
    receiver, at = Receiver(), now() - 2 * HOUR
    settings = SETTINGS.format(port=receiver.port)
    dub1 = Block("eu-west", "dub1")
    silent_at = now() - 13 * MINUTE

    def incidents(service: LiveService) -> Any:
        return service.get("incidents")["incidents"]

    with Hub(tmp_path / "hub") as hub:
        new = [dub1.new(f"web{number}", at) for number in range(20)]
        stale = [dub1.stale(f"web{number}", silent_at + number) for number in range(12)]
        last = hub.publish([*new, *stale, dub1.watermark(at, now())])
        with serving(tmp_path, hub.connection, settings) as service:
            wait(lambda: receiver.told and is_acknowledged(tmp_path / "lake" / "incidents.db"), service)
            (incident,) = incidents(service)
            service.stop()
        with serving(tmp_path, hub.connection, settings) as service:
            service.wait_through(last)
            wait(lambda: "muster_live_open_incidents" in service.request("/metrics").body.decode(), service)
            service.stop()
        # The state is made anew from the archive: it is the same incident.
        (tmp_path / "lake" / "live.db").unlink()
        with serving(tmp_path, hub.connection, settings) as service:
            recovered = [dub1.recovered(f"web{number}", now()) for number in range(12)]
            service.wait_through(hub.publish([*recovered, dub1.watermark(at, now())]))

            def over() -> bool:
                hub.publish([dub1.watermark(at, now())])
                return len(receiver.told) > 1

            wait(over, service)
            (ended,) = incidents(service)
    receiver.close()
    assert [(each["event"], each["incident_id"]) for each in receiver.told] == [
        ("began", incident["incident_id"]),
        ("ended", incident["incident_id"]),
    ]
    assert incident["started_at_us"] == silent_at
    assert (incident["node_count"], incident["expected_count"], incident["cause"]) == (12, 20, "stale")
    assert incident["nodes"][:2] == ["web0", "web1"]
    assert (ended["incident_id"], ended["outcome"]) == (incident["incident_id"], "recovered")


def test_damaged_files_are_set_aside_in_one_line_and_a_backup_tells_nobody_twice(tmp_path: Path) -> None:
    receiver, at, dub1 = Receiver(), now() - 2 * HOUR, Block("eu-west", "dub1")
    settings = SETTINGS.format(port=receiver.port)
    lake = tmp_path / "lake"
    files = lake / "live.db", lake / "incidents.db"
    with Hub(tmp_path / "hub") as hub:
        new = [dub1.new(f"web{number}", at) for number in range(20)]
        stale = [dub1.stale(f"web{number}", now() - 13 * MINUTE) for number in range(12)]
        hub.publish([*new, *stale, dub1.watermark(at, now())])

        with serving(tmp_path, hub.connection, settings) as service:
            wait(lambda: receiver.told and is_acknowledged(files[1]), service)
            with closing(sqlite3.connect(files[1])) as source, closing(sqlite3.connect(tmp_path / "copy")) as copy:
                source.backup(copy)
            service.stop()
        for file in files:
            with file.open("r+b") as damaged:
                damaged.write(b"damage" * 1_000)
            with running(tmp_path, "serve", "--config", str(tmp_path / "aggregator.toml")) as process:
                said = process.wait_for(f"{file}.damaged")
            assert said.splitlines()[-1] == (
                f"muster-aggregator: damaged, and set aside as {file}.damaged: made anew at the next start"
            )
            assert "Traceback" not in said
        shutil.copy(tmp_path / "copy", files[1])
        with serving(tmp_path, hub.connection, settings) as service:
            service.wait_through(hub.publish([dub1.recovered(f"web{number}", now()) for number in range(12)]))

            def over() -> bool:
                hub.publish([dub1.watermark(at, now())])
                return len(receiver.told) > 1

            wait(over, service)
    receiver.close()
    (began, ended) = receiver.told
    assert [began["event"], ended["event"]] == ["began", "ended"]
    assert began["incident_id"] == ended["incident_id"]


class ServiceAskedEarly(Service):
    """Shows at first what somebody asked for before the archive was read."""

    shown_early = 0

    @property
    def view(self) -> View:
        if not self.feed.is_ready or self.shown_early == 2:
            return super().view
        self.shown_early += 1
        return View(self.feed.fleet, replace(self.feed.sourcing, caught_up_at=0), HOUR)


class CountedLooks(IncidentWatch):
    count = 0

    async def look(self, service: Service, view: View) -> None:
        await super().look(service, view)
        self.count += 1


def test_a_view_from_before_the_archive_was_read_opens_no_incident(tmp_path: Path) -> None:
    dub1, at = Block("eu-west", "dub1"), now() - HOUR

    async def looked_at(settings: AggregatorSettings) -> list[Incident]:
        watch = CountedLooks(settings)
        service = ServiceAskedEarly(settings, extensions=[watch])
        serving_on = asyncio.create_task(service.run())
        try:
            await until(lambda: watch.count and service.shown_early == 2, "it has looked")
            return watch.book.recent()
        finally:
            await cancel_all([serving_on])
            service.close()

    with Hub(tmp_path / "hub") as hub:
        hub.publish([dub1.new("web1", at), dub1.watermark(at, now())])
        settings = load(write_settings(tmp_path, hub.connection, 'unknown_after = "2h"\n'))
        assert asyncio.run(looked_at(settings)) == []


@asynccontextmanager
async def beside(context: AbstractContextManager[LiveService]) -> AsyncIterator[LiveService]:
    """Run the service while this loop carries what servers and agents say to each other."""
    service = await asyncio.to_thread(context.__enter__)
    try:
        yield service
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


async def test_a_pair_of_which_one_was_stopped_is_an_incident_until_that_one_is_back(tmp_path: Path) -> None:
    rules = '[live.incidents]\nunknown_after = "1s"\nclose_after = "1s"\n'
    async with pair_stage(tmp_path) as pair, registering(pair.stage.site, "web1"):
        region = pair.stage.region
        # It is its own hub.
        await region.api(
            "STREAM.CREATE.ARCHIVE", {"name": "ARCHIVE", "sources": [{"name": FLEET}], "allow_direct": True}
        )
        await pair.start()
        async with beside(serving(tmp_path, ConnectionSettings(servers=(region.server.url,)), rules)) as service:

            async def told() -> list[dict[str, Any]]:
                answer = await asyncio.to_thread(service.get, "incidents")
                return [each for each in answer["incidents"] if each["cause"] == "alone"]

            async def is_over() -> bool:
                return bool((await told())[0]["ended_at_us"])

            await until(region.observed_through, "the pair vouches for its site")
            assert await told() == []
            await pair.a.agent.stop()
            await until(told, "one agent is gone")
            (incident,) = await told()
            assert (incident["region"], incident["site"], incident["nodes"]) == ("eu-west", "dub1", ["dub1-b"])
            pair.a.agent.start()
            await until(is_over, "it is back")
            (over,) = await told()
            assert (over["incident_id"], over["outcome"]) == (incident["incident_id"], "recovered")
