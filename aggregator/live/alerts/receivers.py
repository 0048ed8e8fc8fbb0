"""Delivery of incidents to Alertmanager, webhooks and commands, and of heartbeats while the service is well.

Every receiver has a task and a thread of its own: one that does not answer delays neither the others nor the service. A
webhook or command receives one notice at a time; a notice that it refuses does not hold up the others. A notice is
given up only if a webhook repeatedly rejects its content while it accepts others.

Alertmanager receives every open incident repeatedly, as it expects. Its ``endsAt`` lies a day ahead, so that a crash of
the hub resolves nothing. The crash shows by the missing heartbeat, which is sent only while the feed keeps up and whose
receiver has to report its absence.
"""

import asyncio
import logging
import urllib.error
import urllib.request
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from urllib.parse import quote, unquote, urlsplit

import msgspec

from aggregator.alert_settings import (
    AlertmanagerSettings,
    AlertSettings,
    CommandSettings,
    HeartbeatAddress,
    WebhookSettings,
)
from aggregator.live.alerts.incident_book import IncidentBook, Notice
from aggregator.live.alerts.incidents import Incident, IncidentCause
from shared.blake2 import blake2b
from shared.command_line.tables import visible
from shared.instants import DAY, SECOND, format_instant
from shared.redirects import NoRedirects
from shared.system_errors import reason_of

_LOG: Final = logging.getLogger(__name__)
_FIRING_FOR: Final = DAY
_DEADLINE: Final = 10.0
_COMMAND_DEADLINE: Final = 60.0
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
_MOST_NOTICES: Final = 100
_MOST_IN_A_ROW: Final = 3
"""After this number of failures in a row delivery pauses: the receiver probably accepts nothing at present."""
_MOST_REFUSALS: Final = 5
_OF_THE_SENDER: Final = (401, 403, 407, 408, 425, 429)
"""The 4xx answers that concern the client, its rate or timing, and not the content."""
_NOT_DELIVERED: Final = "cannot tell %s of incidents: %s; next attempt in %g s"
_MOST_LISTED: Final = 20
_ALERTS: Final = {
    IncidentCause.STALE: "MusterSendersStale",
    IncidentCause.UNKNOWN: "MusterUnknown",
    IncidentCause.ALONE: "MusterPairAlone",
}
WATCHDOG: Final = "MusterWatchdog"


class Undelivered(Exception):
    """A receiver did not acknowledge a message. The text is one line."""


class AlertRefused(Undelivered):
    """The receiver rejected the content of an alert."""


_Name: TypeAlias = tuple[str, int]
"""The identity of a notice: the incident's id and the stage."""


class Receiver(Protocol):
    """A receiver of one notice at a time."""

    name: str
    """Its name in the book, the same after a restart."""

    async def send(self, notice: Notice) -> None:
        """Send a notice; raise Undelivered if it was not acknowledged."""


class _Failures:
    """The notices that a receiver has not acknowledged, and the next attempt, in seconds of the loop's clock."""

    def __init__(self) -> None:
        self.counts: Counter[_Name] = Counter()
        self.again_at = 0.0
        self._refusals: dict[_Name, tuple[int, int]] = {}
        """How often each was refused although another was accepted since its last failure, and the accepted count."""

    def due(self, notices: Sequence[Notice], now: float) -> list[Notice]:
        """Return the notices to send now: those that never failed, then the failed ones if it is time for these.

        Failures of notices that are no longer in ``notices`` are deleted.
        """
        for name in self.counts.keys() - {each.name for each in notices}:
            self.forget(name)
        due = [each for each in notices if now >= self.again_at or each.name not in self.counts]
        return sorted(due, key=lambda each: self.counts[each.name])

    def add(self, name: _Name, error: Undelivered, taken_count: int) -> bool:
        """Count a failure; return True to give up. ``taken_count``: all notices that the receiver has accepted."""
        self.counts[name] += 1
        refusals, taken_before = self._refusals.get(name, (0, taken_count))
        # A receiver that accepts nothing else either may be out of order.
        refusals += isinstance(error, AlertRefused) and taken_count > taken_before
        self._refusals[name] = refusals, taken_count
        return refusals >= _MOST_REFUSALS

    def forget(self, name: _Name) -> None:
        """Delete the failures of a notice."""
        self.counts.pop(name, None)
        self._refusals.pop(name, None)

    def pause(self, names: Iterable[_Name], now: float) -> float:
        """Return the pause in seconds after ``names`` have failed: it doubles with their smallest count of failures."""
        attempts = min(self.counts[name] for name in names)
        seconds: float = min(_FIRST_PAUSE * 2.0 ** min(attempts - 1, 16), _LONGEST_PAUSE)
        self.again_at = now + seconds
        return seconds


class Alerts:
    """Delivery of the notices in the book to every receiver.

    ``is_well`` returns True if the feed keeps up: only then are heartbeats sent. ``now`` returns the hub's time in
    microseconds. ``page`` is the address of the page, for links. ``failed_count`` counts failed attempts,
    ``given_up_count`` notices that were given up.
    """

    def __init__(
        self,
        book: IncidentBook,
        settings: Sequence[AlertSettings],
        is_well: Callable[[], bool],
        now: Callable[[], int],
        page: str,
    ) -> None:
        self._book, self._is_well, self._now = book, is_well, now
        self._web = _Web(len(settings))
        self._heartbeats = [
            (_name("heartbeat", each.address), each.address, each.every / SECOND)
            for each in settings
            if isinstance(each, HeartbeatAddress)
        ]
        self._receivers = [
            _receiver(each, page, is_well, self._web) for each in settings if not isinstance(each, HeartbeatAddress)
        ]
        self._woken = [asyncio.Event() for _ in self._receivers]
        self.delivered_count = {receiver.name: 0 for receiver in self._receivers}
        self.given_up_count = dict.fromkeys(self.delivered_count, 0)
        self.failed_count = dict.fromkeys((*self.delivered_count, *(beat[0] for beat in self._heartbeats)), 0)
        for receiver in self._receivers:
            book.introduce(receiver.name)

    def wake(self) -> None:
        """Send new notices at once."""
        for event in self._woken:
            event.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for receiver, woken in zip(self._receivers, self._woken, strict=True):
                    if isinstance(receiver, _Alertmanager):
                        group.create_task(self._repeat(receiver, woken))
                    else:
                        group.create_task(self._serve(receiver, woken))
                for heartbeat in self._heartbeats:
                    group.create_task(self._beat(*heartbeat))
        finally:
            self._web.close()

    async def _serve(self, receiver: Receiver, woken: asyncio.Event) -> None:
        clock, failures = asyncio.get_running_loop().time, _Failures()
        while True:
            woken.clear()
            if not await self._deliver(receiver, failures, clock):
                await _wait(woken, max(0, failures.again_at - clock()) if failures.counts else None)

    async def _deliver(self, receiver: Receiver, failures: _Failures, clock: Callable[[], float]) -> bool:
        """Send the notices that are due; return True if the book has changed."""
        has_moved, failed, in_a_row = False, dict[_Name, str](), 0
        for each in failures.due(self._book.pending(receiver.name, _MOST_NOTICES + len(failures.counts)), clock()):
            name, is_end = each.name, each.event == "ended"
            if is_end and (each.incident.incident_id, 0) in failures.counts:
                # The beginning must be delivered first.
                continue
            if is_end and self._book.is_open(each.incident):
                # The end was withdrawn while other notices were sent.
                has_moved = True
                continue
            try:
                await receiver.send(each)
            except Undelivered as error:
                self.failed_count[receiver.name] += 1
                in_a_row += 1
                if failures.add(name, error, self.delivered_count[receiver.name]):
                    self.given_up_count[receiver.name] += 1
                    _LOG.error(
                        "%s takes others, but not incident %s: it is given up: %s", receiver.name, name[0], error
                    )
                else:
                    failed[name] = str(error)
                    if in_a_row == _MOST_IN_A_ROW:
                        break
                    continue
            else:
                self.delivered_count[receiver.name] += 1
                in_a_row = 0
            self._book.acknowledge(receiver.name, [each])
            failures.forget(name)
            has_moved = True
        if failed:
            pause = failures.pause(failed, clock())
            _LOG.warning(_NOT_DELIVERED, receiver.name, [*failed.values()][-1], pause)
        return has_moved

    async def _repeat(self, receiver: "_Alertmanager", woken: asyncio.Event) -> None:
        pause = _FIRST_PAUSE
        while True:
            woken.clear()
            notices = self._book.pending(receiver.name)
            try:
                await receiver.send(notices, tuple(self._book.open.values()), self._now())
            except Undelivered as error:
                self.failed_count[receiver.name] += 1
                _LOG.warning(_NOT_DELIVERED, receiver.name, error, pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            self._book.acknowledge(receiver.name, notices)
            self.delivered_count[receiver.name] += len(notices)
            pause = _FIRST_PAUSE
            if not notices:
                await _wait(woken, receiver.repeats_after)

    async def _beat(self, name: str, url: str, every: float) -> None:
        while True:
            if self._is_well():
                try:
                    await self._web.ask(url, None)
                except Undelivered as error:
                    self.failed_count[name] += 1
                    _LOG.warning("cannot send the %s: %s", name, error)
            await asyncio.sleep(every)


class IncidentText(NamedTuple):
    """The text of an incident: names are bounded in number and length, and control characters are visible."""

    title: str
    nodes: str


def incident_text(incident: Incident) -> IncidentText:
    """Return the text of an incident, as the page shows it.

    ``eu-west.dub1: 214 of 230 stale since 2026-11-26T10:42:00Z, known until 2026-11-26T10:43:00Z``
    """
    what = f"{incident.summary} since {format_instant(incident.started_at_us)}"
    if incident.cause is IncidentCause.ALONE:
        what += ", and nobody takes over from it"
    elif incident.cause is IncidentCause.STALE:
        what += f", known until {format_instant(incident.known_until_us)}"
    if incident.ended_at_us is not None:
        how = {"retired": "nobody is expected there any more"}.get(incident.outcome or "", "over")
        what += f"; {how} since {format_instant(incident.ended_at_us)}"
    elif incident.clear_since_us is not None:
        what += f"; over since {format_instant(incident.clear_since_us)}, unless it returns"
    listed = [visible(node)[:64] for node in incident.nodes[:_MOST_LISTED]]
    more = incident.most_count - len(listed)
    return IncidentText(what, ", ".join(listed) + (f" and {more:,} more" if listed and more > 0 else ""))


def message(notice: Notice, page: str) -> dict[str, Any]:
    """Return the object that webhooks and commands receive: ``muster:incident:1``."""
    title, _ = incident_text(notice.incident)
    return {
        "protocol": "muster:incident:1",
        "event": notice.event,
        "text": title,
        "url": address(page, notice.incident),
        **msgspec.to_builtins(notice.incident),
    }


def address(page: str, incident: Incident) -> str:
    """Return the address on the page of the incident's place."""
    place = "/".join(quote(part, safe="") for part in ("sites", incident.region, incident.site) if part)
    return f"{page.rstrip('/')}/{place if incident.site else 'incidents'}"


class _Alertmanager:
    def __init__(self, settings: AlertmanagerSettings, page: str, is_well: Callable[[], bool], web: "_Web") -> None:
        self.name, self._web = _name("alertmanager", settings.address), web
        self.repeats_after = settings.resend_every / SECOND
        self._url = settings.address.rstrip("/") + "/api/v2/alerts"
        self._page, self._is_well = page, is_well

    async def send(self, notices: Sequence[Notice], again: Sequence[Incident], now_us: int) -> None:
        """Send all open and ended incidents in one request, as Alertmanager expects; raise Undelivered."""
        ended = [each.incident for each in notices if each.incident.ended_at_us is not None]
        alerts = [
            self._alert(incident, now_us) for incident in {each.incident_id: each for each in (*again, *ended)}.values()
        ]
        if self._is_well():
            alerts.append(self._watchdog(now_us))
        if alerts:
            await self._web.ask(self._url, msgspec.json.encode(alerts))

    def _alert(self, incident: Incident, now_us: int) -> dict[str, Any]:
        title, nodes = incident_text(incident)
        name = _ALERTS[incident.cause]
        labels = {"alertname": name, "region": incident.region, "site": incident.site, "incident": incident.incident_id}
        ends_at = now_us + _FIRING_FOR if incident.ended_at_us is None else incident.ended_at_us
        return {
            "labels": {label: value for label, value in labels.items() if value}
            | {"severity": "critical" if incident.cause is IncidentCause.STALE or not incident.site else "warning"},
            "annotations": {"summary": title, "nodes": nodes},
            "startsAt": format_instant(incident.started_at_us),
            "endsAt": format_instant(ends_at),
            "generatorURL": address(self._page, incident),
        }

    def _watchdog(self, now_us: int) -> dict[str, Any]:
        lasts = int(5 * self.repeats_after * SECOND)
        return {
            # Prometheus has a watchdog of the same name: with the same labels, it would stand in for a dead hub.
            "labels": {"alertname": WATCHDOG, "severity": "none", "source": "hub"},
            "annotations": {"summary": "Muster's hub is awake and keeps up: this alert always fires."},
            "endsAt": format_instant(now_us + lasts),
            "generatorURL": self._page,
        }


class _Webhook:
    def __init__(self, settings: WebhookSettings, page: str, web: "_Web") -> None:
        self._url, self._page, self._web = settings.address, page, web
        self.name = _name("webhook", self._url)

    async def send(self, notice: Notice) -> None:
        await self._web.ask(self._url, msgspec.json.encode(message(notice, self._page)))


class _Command:
    def __init__(self, settings: CommandSettings, page: str) -> None:
        program, *arguments = self._command = settings.command
        self.name = f"command {program}" + (_digest(*arguments) if arguments else "")
        self._page = page

    async def send(self, notice: Notice) -> None:
        await _run(self._command, msgspec.json.encode(message(notice, self._page)) + b"\n")


def _receiver(
    settings: AlertSettings, page: str, is_well: Callable[[], bool], web: "_Web"
) -> "Receiver | _Alertmanager":
    match settings:
        case AlertmanagerSettings():
            return _Alertmanager(settings, page, is_well, web)
        case WebhookSettings():
            return _Webhook(settings, page, web)
        case CommandSettings():
            return _Command(settings, page)
        case HeartbeatAddress():
            raise TypeError("a heartbeat is told nothing")


def _name(kind: str, url: str) -> str:
    """Return a unique name without the possibly secret parts of the address (credentials, path, query)."""
    parts = urlsplit(url)
    host = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
    return f"{kind} {host}" + ("" if url.rstrip("/") == host else _digest(url))


def _digest(*texts: str) -> str:
    return f" #{blake2b(msgspec.json.encode(texts), digest_size=4).hexdigest()}"


class _Web:
    """HTTP client; each request runs in a thread that blocks nothing else."""

    def __init__(self, most: int) -> None:
        self._threads = ThreadPoolExecutor(max(1, most), "muster-alerts")
        self._opener = urllib.request.build_opener(NoRedirects)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def ask(self, url: str, body: bytes | None) -> None:
        """Send a GET, or a POST of JSON. A 2xx answer is an acknowledgement; all else raises Undelivered."""
        parts, headers = urlsplit(url), {"Content-Type": "application/json"}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = f"Basic {b64encode(user.encode()).decode()}"
            url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        request = urllib.request.Request(url, body, headers)  # noqa: S310 - its settings allow no other scheme
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._answered, request)
        except (OSError, ValueError, HTTPException) as error:
            code = 0
            if isinstance(error, urllib.error.HTTPError):
                code = error.code
                error.close()
            is_refused = 400 <= code < 500 and code not in _OF_THE_SENDER
            raise (AlertRefused if is_refused else Undelivered)(
                visible(str(error) or type(error).__name__)[:200]
            ) from error

    def _answered(self, request: urllib.request.Request) -> None:
        with self._opener.open(request, timeout=_DEADLINE) as answer:
            answer.read(65_536)


async def _run(command: Sequence[str], given: bytes) -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise Undelivered(f"cannot start it: {reason_of(error)}") from error
    try:
        async with asyncio.timeout(_COMMAND_DEADLINE):
            _, complaint = await process.communicate(given)
    except TimeoutError as error:
        raise Undelivered(f"not done after {_COMMAND_DEADLINE:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise Undelivered(f"ended with {process.returncode}: {visible(complaint.decode(errors='replace'))[:200]}")


async def _wait(event: asyncio.Event, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
