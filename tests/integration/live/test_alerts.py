"""Receivers of alerts: a real Alertmanager, a web server and a program."""

import asyncio
import json
import shutil
import sys
import time
import urllib.request
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import msgspec
import pytest

from aggregator.alert_settings import (
    AlertmanagerSettings,
    AlertSettings,
    CommandSettings,
    HeartbeatAddress,
    WebhookSettings,
)
from aggregator.live.alerts import receivers
from aggregator.live.alerts.incident_book import IncidentBook
from aggregator.live.alerts.incidents import (
    Incident,
    IncidentCause,
    IncidentKey,
    IncidentOutcome,
    IncidentRules,
    incident_id,
)
from aggregator.live.alerts.receivers import WATCHDOG, Alerts, incident_text
from shared.instants import MINUTE, SECOND, parse_instant
from shared.settings import Duration, FilePath
from tests.support.nats.free_ports import free_ports
from tests.support.waiting import until

PAGE = "http://127.0.0.1:8222"


def now_us() -> int:
    return time.time_ns() // 1000


def an_incident(started_at_us: int | None = None, **changed: Any) -> Incident:
    began = now_us() - MINUTE if started_at_us is None else started_at_us
    incident = Incident(
        incident_id=incident_id(IncidentKey("eu", "dub1", IncidentCause.STALE), began),
        region="eu",
        site="dub1",
        cause=IncidentCause.STALE,
        reason="",
        started_at_us=began,
        known_until_us=began + MINUTE,
        node_count=214,
        expected_count=230,
        most_count=214,
        nodes=("web1", "<b>web2</b>\u202e"),
    )
    return msgspec.structs.replace(incident, **changed)


def ended(incident: Incident) -> Incident:
    return msgspec.structs.replace(
        incident,
        node_count=0,
        ended_at_us=now_us() - SECOND,
        outcome=IncidentOutcome.RECOVERED,
        known_until_us=now_us(),
    )


class Inbox:
    """A web server that keeps what it is sent, and refuses it while ``refuses`` is set.

    ``answer`` says by what it was sent how; it counts what it was asked.
    """

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.refuses = False
        self.asked_count = 0
        self.answer: Callable[[dict[str, Any]], int] = lambda _told: 200
        inbox = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                inbox.asked_count += 1
                status = 503 if inbox.refuses else inbox.answer(json.loads(body or b"{}"))
                if status == 200:
                    inbox.got.append(body)
                self.send_response(status)
                self.end_headers()

            do_GET = do_POST  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?token=secret"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def inbox() -> Any:
    box = Inbox()
    yield box
    box.close()


@pytest.fixture
def book(tmp_path: Path) -> Any:
    kept = IncidentBook(tmp_path / "incidents.db", IncidentRules())
    yield kept
    kept.close()


@asynccontextmanager
async def telling(book: IncidentBook, *settings: AlertSettings, well: bool = True) -> AsyncIterator[Alerts]:
    alerts = Alerts(book, settings, lambda: well, now_us, PAGE)
    task = asyncio.create_task(alerts.run())
    try:
        yield alerts
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_webhook_is_told_of_a_beginning_its_growth_and_its_end_once_each(
    book: IncidentBook, inbox: Inbox
) -> None:
    incident = an_incident()
    book.save([incident])
    async with telling(book, WebhookSettings(url=inbox.url)) as alerts:
        await until(lambda: len(inbox.got) == 1, "told of the beginning")
        book.save([msgspec.structs.replace(incident, node_count=220)])
        alerts.wake()
        grown = msgspec.structs.replace(incident, node_count=229, growth_count=1, told_count=229)
        book.save([grown])
        alerts.wake()
        await until(lambda: [*alerts.delivered_count.values()] == [2], "told of its growth, and the book knows")
    async with telling(book, WebhookSettings(url=inbox.url)) as alerts:
        book.save([msgspec.structs.replace(grown, node_count=230, growth_count=3, told_count=230)])
        await until(lambda: len(inbox.got) == 3, "told, after a restart, of what it has grown to alone")
        book.save([ended(grown)])
        alerts.wake()
        await until(lambda: [*alerts.delivered_count.values()] == [2], "told of the end, and the book knows")
    async with telling(book, WebhookSettings(url=inbox.url)):
        other = an_incident(1_790_000_000_000_000)
        book.save([other])
        await until(lambda: len(inbox.got) == 5, "told of the next one alone, after a restart")
    told = [json.loads(body) for body in inbox.got]
    assert [(each["incident_id"], each["event"]) for each in told] == [
        (incident.incident_id, "began"),
        (incident.incident_id, "grew"),
        (incident.incident_id, "grew"),
        (incident.incident_id, "ended"),
        (other.incident_id, "began"),
    ]
    assert [(each["node_count"], each["growth_count"]) for each in told[:3]] == [(214, 0), (229, 1), (230, 3)]
    assert told[0]["protocol"] == "muster:incident:1"
    assert told[0]["url"] == f"{PAGE}/sites/eu/dub1"


async def test_what_a_receiver_refused_it_is_told_after_a_restart_and_others_do_not_wait(
    book: IncidentBook, inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    other = Inbox()
    inbox.refuses = True
    book.save([an_incident()])
    async with telling(book, WebhookSettings(url=inbox.url), WebhookSettings(url=other.url)) as alerts:
        await until(lambda: any(alerts.delivered_count.values()), "the other told")
        await until(lambda: any(alerts.failed_count.values()), "a failure counted")
    inbox.refuses = False
    async with telling(book, WebhookSettings(url=inbox.url), WebhookSettings(url=other.url)):
        await until(lambda: inbox.got, "told after all")
    other.close()
    assert len(other.got) == 1
    assert "503" in caplog.text
    assert "secret" not in caplog.text


def some_incidents(count: int) -> list[Incident]:
    return [an_incident(1_790_000_000_000_000 + number) for number in range(count)]


def ids(box: Inbox) -> list[str]:
    return [json.loads(body)["incident_id"] for body in box.got]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what failed tried again soon."""
    monkeypatch.setattr(receivers, "_FIRST_PAUSE", 0.02)
    monkeypatch.setattr(receivers, "_LONGEST_PAUSE", 0.05)


@pytest.mark.usefixtures("impatient")
async def test_what_a_webhook_refuses_keeps_nothing_else_from_it_and_is_given_up_after_a_while(
    book: IncidentBook, inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    first, wrong, *others, last = some_incidents(8)
    inbox.answer = lambda told: 400 if told["incident_id"] == wrong.incident_id else 200
    book.save([first, wrong])
    settings = WebhookSettings(url=inbox.url)
    async with telling(book, settings) as alerts:
        for other in others:
            asked_count = inbox.asked_count
            await until(lambda: inbox.asked_count > asked_count + 1, "refused since another was taken")  # noqa: B023
            assert not any(alerts.given_up_count.values())
            book.save([other])
            alerts.wake()
            await until(lambda: other.incident_id in ids(inbox), "another taken")  # noqa: B023
        await until(lambda: any(alerts.given_up_count.values()), "one given up")
        assert ids(inbox) == [each.incident_id for each in (first, *others)]
    assert caplog.text.count("it is given up: HTTP Error 400") == 1
    asked_count = inbox.asked_count
    book.save([last])
    async with telling(book, settings):
        await until(lambda: last.incident_id in ids(inbox), "the next one told")
    assert inbox.asked_count == asked_count + 1


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("status", [400, 401, 503])
async def test_a_webhook_that_refuses_all_is_told_of_all_in_the_end(
    book: IncidentBook, inbox: Inbox, status: int
) -> None:
    told = some_incidents(8)
    inbox.answer = lambda _told: status
    book.save(told)
    async with telling(book, WebhookSettings(url=inbox.url)) as alerts:
        await until(lambda: inbox.asked_count > 100, "asked often")
        inbox.answer = lambda _told: 200
        await until(lambda: [*alerts.delivered_count.values()] == [8], "all taken")
        assert [*alerts.given_up_count.values()] == [0]
    assert sorted(ids(inbox)) == sorted(each.incident_id for each in told)


@pytest.mark.usefixtures("impatient")
async def test_what_was_refused_before_a_webhook_took_another_is_not_given_up_when_it_refuses_all_again(
    book: IncidentBook, inbox: Inbox
) -> None:
    refused, taken = some_incidents(2)
    inbox.answer = lambda _told: 404
    book.save([refused])
    async with telling(book, WebhookSettings(url=inbox.url)) as alerts:
        await until(lambda: inbox.asked_count, "refused")
        inbox.answer = lambda told: 200 if told["incident_id"] == taken.incident_id else 404
        book.save([taken])
        alerts.wake()
        await until(lambda: [*alerts.delivered_count.values()] == [1], "the other taken")
        asked_count = inbox.asked_count
        await until(lambda: inbox.asked_count > asked_count + 20, "asked often")
        inbox.answer = lambda _told: 200
        await until(lambda: [*alerts.delivered_count.values()] == [2], "taken after all")
    assert ids(inbox) == [taken.incident_id, refused.incident_id]


@pytest.mark.usefixtures("impatient")
async def test_a_webhook_that_takes_so_many_at_once_gets_the_others_later_and_none_twice(
    book: IncidentBook, inbox: Inbox
) -> None:
    told = some_incidents(20)
    inbox.answer = lambda _told: 429 if inbox.asked_count % 7 > 3 else 200
    book.save(told)
    async with telling(book, WebhookSettings(url=inbox.url)) as alerts:
        await until(lambda: [*alerts.delivered_count.values()] == [20], "all taken")
    assert sorted(ids(inbox)) == sorted(each.incident_id for each in told)


@pytest.mark.usefixtures("impatient")
async def test_an_end_waits_for_the_beginning_that_was_not_taken(book: IncidentBook, inbox: Inbox) -> None:
    (incident,) = some_incidents(1)
    inbox.answer = lambda told: 500 if told["event"] == "began" and inbox.asked_count < 6 else 200
    async with telling(book, WebhookSettings(url=inbox.url)) as alerts:
        book.save([incident])
        book.save([ended(incident)])
        alerts.wake()
        await until(lambda: [*alerts.delivered_count.values()] == [2], "told of both")
    assert [json.loads(body)["event"] for body in inbox.got] == ["began", "ended"]


async def test_an_end_that_is_taken_back_while_others_are_told_is_not_told(book: IncidentBook, inbox: Inbox) -> None:
    first, again, last = some_incidents(3)
    again = msgspec.structs.replace(again, site="lon1")
    asked, goes_on = Event(), Event()

    def answer(told: dict[str, Any]) -> int:
        if (told["incident_id"], told["event"]) == (first.incident_id, "ended"):
            asked.set()
            goes_on.wait(180)
        return 200

    inbox.answer = answer
    async with telling(book, WebhookSettings(url=inbox.url)) as alerts:
        book.save([first, again])
        await until(lambda: [*alerts.delivered_count.values()] == [2], "both begun")
        book.save([ended(first), ended(again)])
        alerts.wake()
        await until(asked.is_set, "the first end under way")
        book.save([again, msgspec.structs.replace(last, site="ber1")])
        alerts.wake()
        goes_on.set()
        await until(lambda: last.incident_id in ids(inbox), "told of all")
    assert [(each["incident_id"], each["event"]) for each in map(json.loads, inbox.got)][2:] == [
        (first.incident_id, "ended"),
        (again.incident_id, "began"),
        (last.incident_id, "began"),
    ]


@pytest.mark.usefixtures("impatient")
async def test_what_a_command_fails_at_keeps_nothing_else_from_it_and_is_tried_again(
    book: IncidentBook, tmp_path: Path
) -> None:
    first, wrong, later = some_incidents(3)
    out, mended = tmp_path / "told", tmp_path / "mended"
    program = (
        "import json, pathlib, sys; told = json.load(sys.stdin)['incident_id']\n"
        f"if told == {wrong.incident_id!r} and not pathlib.Path({str(mended)!r}).exists(): sys.exit(1)\n"
        f"open({str(out)!r}, 'a').write(told + ' ')"
    )
    book.save([first, wrong, later])
    async with telling(book, CommandSettings(command=(sys.executable, "-c", program))) as alerts:
        await until(lambda: [*alerts.delivered_count.values()] == [2], "the others told")
        mended.touch()
        await until(lambda: [*alerts.delivered_count.values()] == [3], "told of it after all")
    assert out.read_text().split() == [each.incident_id for each in (first, later, wrong)]


async def test_a_command_gets_the_incident_on_its_standard_input(book: IncidentBook, tmp_path: Path) -> None:
    out = tmp_path / "told"
    program = f"import sys; open({str(out)!r}, 'a').write(sys.stdin.read())"
    book.save([an_incident()])
    async with telling(book, CommandSettings(command=(sys.executable, "-c", program))) as alerts:
        await until(lambda: any(alerts.delivered_count.values()), "the program ended")
    assert json.loads(out.read_text())["nodes"] == ["web1", "<b>web2</b>\u202e"]


async def test_a_command_that_fails_is_started_again(book: IncidentBook, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    program = f"import pathlib, sys; p = pathlib.Path({str(flag)!r}); e = p.exists(); p.touch(); sys.exit(not e)"
    book.save([an_incident()])
    async with telling(book, CommandSettings(command=(sys.executable, "-c", program))) as alerts:
        await until(lambda: any(alerts.delivered_count.values()), "the program succeeded")
        assert sum(alerts.failed_count.values()) == 1


async def test_a_heartbeat_goes_out_while_all_is_well_and_only_then(book: IncidentBook, inbox: Inbox) -> None:
    beat = HeartbeatAddress(url=inbox.url, every=Duration(SECOND // 20))
    async with telling(book, beat):
        await until(lambda: len(inbox.got) >= 2, "two heartbeats")
    # The last of those may still be on its way: what goes out now goes elsewhere.
    never, other = Inbox(), Inbox()
    book.save([an_incident()])
    beat = HeartbeatAddress(url=never.url, every=Duration(SECOND // 20))
    async with telling(book, beat, WebhookSettings(url=other.url), well=False):
        await until(lambda: other.got, "the incident told")
    never.close()
    other.close()
    assert never.got == []


@pytest.mark.parametrize("answer", [b"HTTP/1.1 302 Found\r\nLocation: /login\r\n\r\n", b"no HTTP at all\r\n"])
async def test_what_acknowledges_nothing_is_a_failure_and_is_told_again(book: IncidentBook, answer: bytes) -> None:
    asked: list[bytes] = []

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(answer if asked[-1].startswith(b"POST") else b"HTTP/1.1 200 OK\r\n\r\n")
        writer.close()

    book.save([an_incident()])
    async with await asyncio.start_server(reply, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        async with telling(book, WebhookSettings(url=url)) as alerts:
            await until(lambda: sum(alerts.failed_count.values()) >= 2, "failed and tried again")
            assert not any(alerts.delivered_count.values())
    assert all(line.startswith(b"POST /hook") for line in asked)


async def test_two_receivers_at_one_address_are_both_told(book: IncidentBook, inbox: Inbox) -> None:
    book.save([an_incident()])
    async with telling(book, WebhookSettings(url=inbox.url)) as alerts:
        await until(lambda: any(alerts.delivered_count.values()), "the first told")
    other = inbox.url.replace("/hook", "/other")
    async with telling(book, WebhookSettings(url=inbox.url), WebhookSettings(url=other)) as alerts:
        await until(lambda: any(alerts.delivered_count.values()), "the other told")
        assert len(inbox.got) == 2
        assert sorted(alerts.delivered_count.values()) == [0, 1]
        assert not any("secret" in name or "hook?" in name for name in alerts.delivered_count)


async def test_a_new_receiver_is_not_told_of_what_has_been_over_for_long(book: IncidentBook, inbox: Inbox) -> None:
    book.save([ended(an_incident())])
    current = an_incident(1_790_000_000_000_000)
    book.save([current])
    async with telling(book, WebhookSettings(url=inbox.url)) as alerts:
        await until(lambda: any(alerts.delivered_count.values()), "told")
        assert [json.loads(body)["incident_id"] for body in inbox.got] == [current.incident_id]


async def test_a_secret_address_stands_in_a_file(book: IncidentBook, tmp_path: Path) -> None:
    asked: list[bytes] = []

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        writer.close()

    book.save([an_incident()])
    async with await asyncio.start_server(reply, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        (tmp_path / "hook").write_text(f"http://ann:p%40ss@127.0.0.1:{port}/T0/secret\n")
        async with telling(book, WebhookSettings(url_file=FilePath(tmp_path / "hook"))) as alerts:
            await until(lambda: any(alerts.delivered_count.values()), "told")
            assert all(name.startswith(f"webhook http://127.0.0.1:{port} #") for name in alerts.delivered_count)
    assert asked[0].startswith(b"POST /T0/secret HTTP/1.1")
    assert b"Authorization: Basic " + b64encode(b"ann:p@ss") in asked[0]


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("file:///etc/passwd", "must begin with http"),
        ("https://host.example.net:port/x", "not an address of the web"),
        ("https://host.example.net/a b", "not an address of the web"),
        ("https://ann:secret@host.example.net/", "secrets are files"),
        ("", "either url or url_file"),
    ],
)
def test_an_address_must_be_one_of_the_web(book: IncidentBook, url: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong) as refused:
        Alerts(book, [WebhookSettings(url=url)], lambda: True, now_us, PAGE)
    assert "secret@" not in str(refused.value)


def test_an_incident_reads_as_a_sentence() -> None:
    at = parse_instant("2026-11-26T10:42:00Z")
    incident = an_incident(at, known_until_us=at + MINUTE)
    assert incident_text(incident).title == (
        "eu.dub1: 214 of 230 stale since 2026-11-26T10:42:00Z, known until 2026-11-26T10:43:00Z"
    )
    assert incident_text(incident).nodes == "web1, <b>web2</b>\\u202e and 212 more"
    lost = msgspec.structs.replace(
        incident, site="", cause=IncidentCause.UNKNOWN, reason="region_behind", node_count=2, expected_count=3
    )
    assert incident_text(lost).title == "eu: unknown (region behind, 2 of 3 sites) since 2026-11-26T10:42:00Z"
    part = msgspec.structs.replace(lost, site="dub1", reason="agent_silent")
    assert incident_text(part).title == "eu.dub1: unknown (agent silent, 2 of 3 senders) since 2026-11-26T10:42:00Z"
    assert msgspec.structs.replace(part, node_count=3).summary == "eu.dub1: unknown (agent silent)"


def test_an_incident_that_is_over_tells_how_many_it_took_and_not_how_many_are_left() -> None:
    at = parse_instant("2026-11-26T10:42:00Z")
    clear = an_incident(at, known_until_us=at + 2 * MINUTE, node_count=0, clear_since_us=at + MINUTE)
    began = "eu.dub1: 214 of 230 stale since 2026-11-26T10:42:00Z, known until 2026-11-26T10:44:00Z"
    assert incident_text(clear).title == f"{began}; over since 2026-11-26T10:43:00Z, unless it returns"
    ended = msgspec.structs.replace(clear, ended_at_us=at + MINUTE, outcome=IncidentOutcome.RECOVERED)
    assert incident_text(ended).title == f"{began}; over since 2026-11-26T10:43:00Z"


@pytest.fixture
async def alertmanager(tmp_path: Path) -> AsyncIterator[tuple[str, Inbox]]:
    program = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if program is None:
        pytest.skip("no Alertmanager is installed here (Debian: prometheus-alertmanager)")
    box, port = Inbox(), free_ports(1)[0]
    (tmp_path / "alertmanager.yml").write_text(
        "route: {receiver: box, group_by: [incident], group_wait: 0s, group_interval: 1s, repeat_interval: 1h}\n"
        f"receivers: [{{name: box, webhook_configs: [{{url: '{box.url}', send_resolved: true}}]}}]\n"
    )
    process = await asyncio.create_subprocess_exec(
        program,
        f"--config.file={tmp_path / 'alertmanager.yml'}",
        f"--storage.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        await until(lambda: _get(f"{url}/-/ready") is not None, "Alertmanager ready")
        yield url, box
    finally:
        process.terminate()
        await process.wait()
        box.close()


def _get(url: str) -> bytes | None:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310
            read: bytes = answer.read()
            return read
    except OSError:
        return None


def _alerts_of(url: str) -> dict[str, dict[str, Any]]:
    found = json.loads(_get(f"{url}/api/v2/alerts") or b"[]")
    return {each["labels"]["alertname"]: each for each in found}


async def test_an_alertmanager_holds_an_incident_until_it_ends(
    book: IncidentBook, alertmanager: tuple[str, Inbox]
) -> None:
    url, box = alertmanager
    incident = an_incident()
    book.save([incident])
    settings = AlertmanagerSettings(url=url, resend_every=Duration(SECOND // 5))

    def notified() -> list[str]:
        groups = [json.loads(body) for body in box.got]
        return [
            each["status"] for group in groups for each in group["alerts"] if each["labels"]["alertname"] != WATCHDOG
        ]

    async with telling(book, settings) as alerts:
        await until(lambda: notified() == ["firing"], "Alertmanager notified")
        held = _alerts_of(url)
        assert set(held) == {"MusterSendersStale", WATCHDOG}
        # Prometheus' own has another source.
        assert held[WATCHDOG]["labels"] == {"alertname": WATCHDOG, "severity": "none", "source": "hub"}
        firing = held["MusterSendersStale"]
        assert firing["labels"]["incident"] == incident.incident_id
        assert firing["annotations"]["summary"].startswith("eu.dub1: 214 of 230 stale since ")
        assert firing["generatorURL"] == f"{PAGE}/sites/eu/dub1"
        # The numbers move: it is the same alert.
        book.save([msgspec.structs.replace(incident, node_count=220)])
        await until(
            lambda: _alerts_of(url)["MusterSendersStale"]["annotations"]["summary"].startswith("eu.dub1: 220 of 230"),
            "the numbers brought up to date",
        )
    # The hub is away: nothing resolves. A day from now it would.
    assert parse_instant(_alerts_of(url)["MusterSendersStale"]["endsAt"]) > now_us() + 20 * 60 * MINUTE
    book.save([ended(incident)])
    async with telling(book, settings) as alerts:
        await until(lambda: notified() == ["firing", "resolved"], "Alertmanager resolved it")
        assert alerts.failed_count == {f"alertmanager {url}": 0}
