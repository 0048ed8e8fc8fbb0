"""Serve the live fleet over HTTP: the API, its events, the metrics and the page. The composition root of the service.

One loop reads the archive (``feed.py``); another looks at the state once a second, and publishes what changed. Both end
the process when they fail: whoever supervises it starts it again.
"""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from aggregator.config import AggregatorSettings
from aggregator.live.api import (
    AdvisoryPage,
    AdvisoryRow,
    FleetView,
    HistoryPoint,
    Operation,
    OperationDone,
    SenderFacts,
    SenderPage,
    SenderStory,
    SitePage,
    SiteView,
    State,
)
from aggregator.live.feed import Feed
from aggregator.live.fold.changes import Changes, StoryEntry
from aggregator.live.fold.fleet import Fleet
from aggregator.live.fold.view import View
from aggregator.live.service import answers
from aggregator.live.service.connections import StreamPlaces
from aggregator.live.service.events import Broadcast
from aggregator.live.service.facts import FactsFinder
from aggregator.live.service.guard import COOKIE, Guard, GuardedApp, Right
from aggregator.live.service.openapi import Endpoint, document
from aggregator.live.store import StoreReader
from shared.decoding import Decoder, WireError
from shared.identifiers import BlockId
from shared.instants import HOUR, MINUTE
from shared.memory import give_memory_back
from shared.nats.connection import ApiError, ConnectFailed, RequestFailed
from shared.nats.expiry import own_ends

TICK = 1.0
_MICROSECONDS = 1_000_000
"""Seconds between two looks at the state."""
PING = 15
"""Seconds of silence after which a listener is sent a comment."""
MOST_ADVISORIES = 200
"""So many advisories of one look are published; of more, the last ones."""
RECORDS_OF_EVENT = 200
MOST_BODY = 1 << 20
MOST_READERS = 4
"""So many questions are looked up at once, and others wait: threads are left for what is to be committed."""
_STORY = "/senders/{region}/{site}/{block}/{sender:text}"

T = TypeVar("T")
logger = logging.getLogger(__name__)


class OperationRefused(Exception):
    """An operation is not carried out; the text is one line."""


class Operations(Protocol):
    """Carries out what operators order."""

    async def carry_out(self, operation: Operation) -> OperationDone:
        """Do it; raise OperationRefused."""


class Extension:
    """A part that is served in addition to the API: incidents with their alerts, or the page."""

    def routes(self, service: "Service") -> Sequence[BaseRoute]:  # noqa: ARG002 - for those that override it
        """Return the routes of the extension."""
        return ()

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the routes that are part of the API's description."""
        return ()

    def metrics(self) -> Iterable[Metric]:
        """Return the current metrics."""
        return ()

    async def look(self, service: "Service", view: View) -> None:
        """Inspect the view, once a second."""

    def close(self) -> None:
        """Close files and end tasks."""


class _Shown(NamedTuple):
    """What of a site is worth an event: how far it is known moves on all the time."""

    state: object
    counts: tuple[int, ...]
    reason: object
    since: int
    maintenance: tuple[object, ...]


class Service:
    """Feed, view, listeners and routes of one process."""

    def __init__(
        self,
        settings: AggregatorSettings,
        operations: Operations | None = None,
        extensions: Sequence[Extension] = (),
    ) -> None:
        self.settings, self.guard = settings, Guard(settings.live)
        self._operations, self.extensions = operations, extensions
        self.broadcast = Broadcast(secrets.token_hex(4))
        self.places = StreamPlaces()
        self.message_count = 0
        lakehouse = settings.lakehouse
        self.feed = Feed(
            settings.hub, lakehouse.archive_stream, settings.live_path,
            reading=lakehouse.reading, choria_region=lakehouse.choria_region, on_changes=self._on_changes,
        )  # fmt: skip
        self.feed.blocks_per_site = settings.blocks_per_site
        self._facts = FactsFinder(settings.hub, lakehouse.archive_stream, lakehouse.reading)
        self._advisories: list[AdvisoryRow] = []
        self._shown: dict[tuple[str, str], _Shown] = {}
        self._fleet: FleetView | None = None
        self._sampled_at = self._generation = 0
        self._readers: list[StoreReader] = []
        self._reading = asyncio.Semaphore(MOST_READERS)
        self._view: View | None = None
        self._viewed_at = 0.0
        registry = CollectorRegistry(auto_describe=False)
        registry.register(LiveCollector(self))
        self._registry = registry

    @property
    def view(self) -> View:
        """Give the state as of now: not older than a look."""
        if self._view is None or time.monotonic() - self._viewed_at > TICK:
            self._view = View(self.feed.fleet, self.feed.sourcing, self.settings.live.unknown_after, self._view)
            self._viewed_at = time.monotonic()
        return self._view

    async def run(self) -> None:
        """Read and look for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.feed.run())
            tasks.create_task(self._look_on())
            tasks.create_task(give_memory_back())

    def close(self) -> None:
        """Close all files."""
        for extension in self.extensions:
            extension.close()
        for reader in self._readers:
            reader.close()
        self.feed.close()

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[StoreReader]:
        """Lend a reader of what was committed; raise HTTPException before anything was."""
        if not self.feed.is_open:
            raise HTTPException(503, f"nothing was read yet: {self.feed.wrong}")
        path = self.settings.live_path
        async with self._reading:
            while self._readers and self._readers[-1].generation != self.feed.restored:
                self._readers.pop().close()
            reader = (
                self._readers.pop() if self._readers else await asyncio.to_thread(StoreReader, path, self.feed.restored)
            )
            try:
                yield reader
            finally:
                self._readers.append(reader)

    def app(self) -> ASGIApp:
        """Give the application that answers."""
        routes: list[BaseRoute] = [endpoint.route for endpoint in self._endpoints()]
        for extension in self.extensions:
            routes += extension.routes(self)
        handlers: dict[Any, Any] = {
            HTTPException: _told_plainly,
            answers.NotFound: _said_with(404),
            answers.BadQuery: _said_with(400),
            Exception: _failed,
        }
        return GuardedApp(Starlette(routes=routes, exception_handlers=handlers), self.guard)

    def publish(self, name: str, record: object) -> None:
        """Give every listener an event."""
        self.broadcast.publish(name, msgspec.json.encode(record))

    def publish_all(self, name: str, records: Sequence[object]) -> None:
        """Give every listener events of many records each: only so many may wait until it gets its turn."""
        for begin in range(0, len(records), RECORDS_OF_EVENT):
            self.publish(name, records[begin : begin + RECORDS_OF_EVENT])

    def _on_changes(self, changes: Changes) -> None:
        self.message_count += changes.message_count
        if not self.feed.is_ready:
            # What an archive had told before is no news.
            return
        rows = [_row(self.feed.fleet, each) for each in changes.entries[-MOST_ADVISORIES:]]
        self._advisories = [*self._advisories, *rows][-MOST_ADVISORIES:]

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            view = self.view
            if not (self.feed.is_ready and view.sourcing.caught_up_at):
                # A view from before the archive was read, which somebody may just have asked for, knows nothing.
                continue
            self._publish(view)
            for extension in self.extensions:
                await extension.look(self, view)
            await self._sample(view)

    def _publish(self, view: View) -> None:
        if self._generation != self.feed.restored:
            # Of what the archive before told, nothing is said any more.
            self._generation = self.feed.restored
            self._shown.clear()
            self.publish("reset", {})
        if view.whole != self._fleet:
            self._fleet = view.whole
            self.publish("fleet", view.whole)
        self.publish_all("site", list(self._changed_sites(view)))
        if self._advisories:
            self.publish("advisory", self._advisories)
            self._advisories = []

    def _changed_sites(self, view: View) -> Iterable[SiteView]:
        for site in view.sites:
            counts = msgspec.structs.astuple(site.counts)
            maintenance = tuple(block.maintenance for block in site.blocks)
            shown = _Shown(site.state, counts, site.reason, site.since_us, maintenance)
            if self._shown.get((site.region, site.site)) != shown:
                self._shown[site.region, site.site] = shown
                yield site

    async def _sample(self, view: View) -> None:
        minute = view.now - view.now % MINUTE
        if minute <= self._sampled_at:
            return
        self._sampled_at = minute
        blocks = enumerate(self.feed.fleet.blocks)
        contested = {number for number, block in blocks if block.silent or block.contested_until}
        await asyncio.to_thread(self.feed.store.sample, HistoryPoint(minute, view.whole.counts), contested)

    def _endpoints(self) -> list[Endpoint]:
        own = [
            Endpoint("/fleet", self._get_fleet, FleetView, "Count the fleet, and say how far it can be trusted."),
            Endpoint("/sites", self._get_sites, SitePage, "List sites.", answers.SiteQuery),
            Endpoint("/sites/{region}/{site}", self._get_site, SiteView, "Give one site."),
            Endpoint("/senders", self._get_senders, SenderPage, "List senders.", answers.SenderQuery),
            Endpoint(_STORY, self._get_story, SenderStory, "Tell one sender's story."),
            Endpoint(
                "/facts", self._get_facts, SenderFacts, "Give the last sample of a sender's registrations.",
                answers.StoryQuery,
            ),
            Endpoint(
                "/advisories", self._get_advisories, AdvisoryPage, "List the last advisories.", answers.AdvisoryQuery
            ),
            Endpoint(
                "/history", self._get_history, list[HistoryPoint], "Give the fleet's curve.", answers.HistoryQuery
            ),
            Endpoint(
                "/operations", self._post_operation, OperationDone, "Order something; needs the right to operate.",
                body=Operation,
            ),
            *(each for extension in self.extensions for each in extension.endpoints()),
        ]  # fmt: skip
        described = msgspec.json.encode(document(own))

        async def get_description(_request: Request) -> Response:
            return Response(described, media_type="application/json")

        return [
            *own,
            Endpoint("/openapi.json", get_description, None, ""),
            Endpoint("/events", self._get_events, None, ""),
            Endpoint("/story", self._get_story_by_name, None, ""),
            Endpoint("/session", self._post_session, None, "", method="POST"),
            Endpoint("/healthz", self._get_health, None, "", prefix=""),
            Endpoint("/readyz", self._get_readiness, None, "", prefix=""),
            Endpoint("/metrics", self._get_metrics, None, "", prefix=""),
        ]

    async def _get_fleet(self, _request: Request) -> Response:
        return json_answer(self.view.whole)

    async def _get_sites(self, request: Request) -> Response:
        return json_answer(answers.sites(self.view, query_of(request, answers.SiteQuery)))

    async def _get_site(self, request: Request) -> Response:
        region, site = request.path_params["region"], request.path_params["site"]
        try:
            return json_answer(self.view.site(region, site))
        except KeyError:
            raise answers.NotFound(f"nothing was heard of {region}.{site}") from None

    async def _get_senders(self, request: Request) -> Response:
        query, view = query_of(request, answers.SenderQuery), self.view
        async with self.reader() as reader:
            return json_answer(await asyncio.to_thread(answers.senders, view, reader, query))

    async def _get_story(self, request: Request) -> Response:
        region, site, block, sender = (request.path_params[name] for name in ("region", "site", "block", "sender"))
        view = self.view
        async with self.reader() as reader:
            return json_answer(await asyncio.to_thread(answers.story, view, reader, (region, site, block, sender)))

    async def _get_story_by_name(self, request: Request) -> Response:
        """Tell a story also of a sender whose name no path can hold: clients take ``..`` for the folder above."""
        query, view = query_of(request, answers.StoryQuery), self.view
        async with self.reader() as reader:
            return json_answer(await asyncio.to_thread(answers.story, view, reader, msgspec.structs.astuple(query)))

    async def _get_facts(self, request: Request) -> Response:
        """Ask the hub, for what nobody may have asked for before: nothing of it is kept."""
        query, view = query_of(request, answers.StoryQuery), self.view
        async with self.reader() as reader:
            story = await asyncio.to_thread(answers.story, view, reader, msgspec.structs.astuple(query))
        block_id = BlockId(query.region, query.site, query.block)
        try:
            sender = story.sender
            # Of one that is up, its last advisory says when it was heard last before that.
            about = sender.known_until_us if sender.last_state is State.UP else sender.last_seen_us
            found = await self._facts.last(block_id, query.sender, about)
        except (ConnectFailed, RequestFailed, ApiError, TimeoutError) as error:
            raise HTTPException(503, f"the hub cannot be asked: {str(error) or 'no answer'}") from error
        if found is None:
            raise HTTPException(404, "no sample of its registrations is found about when it was last heard")
        return json_answer(found)

    async def _get_advisories(self, request: Request) -> Response:
        query, view = query_of(request, answers.AdvisoryQuery), self.view
        async with self.reader() as reader:
            return json_answer(await asyncio.to_thread(answers.advisories, view, reader, query))

    async def _get_history(self, request: Request) -> Response:
        since = self.view.now - round(query_of(request, answers.HistoryQuery).hours * HOUR)
        async with self.reader() as reader:
            return json_answer(await asyncio.to_thread(reader.history, since))

    async def _get_events(self, request: Request) -> Response:
        last_id = request.headers.get("last-event-id", request.query_params.get("last_event_id", ""))
        return _EventStream(self, self.guard.reader_of(request.scope, request.headers), last_id)

    async def _post_operation(self, request: Request) -> Response:
        if self.guard.right_of(request.headers) < Right.OPERATE:
            raise HTTPException(403, "this needs a token with the right to operate")
        operation = await body_of(request, Operation)
        if self._operations is None:
            raise HTTPException(501, "this service was started without a policy")
        try:
            return json_answer(await self._operations.carry_out(operation))
        except OperationRefused as error:
            raise HTTPException(409, str(error)) from error

    async def _post_session(self, request: Request) -> Response:
        """Keep a token in a cookie that no script can read, so that a browser may ask."""
        given = await body_of(request, _Session)
        right = self.guard.right_of_token(given.token)
        if given.token and not right:
            raise HTTPException(401, "not a token that this service knows")
        answer = json_answer({"right": (right or self.guard.right_of(request.headers)).name.lower()})
        if given.token:
            answer.set_cookie(COOKIE, given.token, httponly=True, samesite="strict", secure=self.guard.is_secure)
        else:
            answer.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=self.guard.is_secure)
        return answer

    async def _get_health(self, _request: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def _get_readiness(self, _request: Request) -> Response:
        if not self.feed.is_ready:
            return PlainTextResponse(f"not ready: {self.feed.wrong or 'the archive is being read'}\n", 503)
        return PlainTextResponse(f"{'behind: ' + self.feed.wrong if self.feed.wrong else 'ready'}\n")

    async def _get_metrics(self, _request: Request) -> Response:
        return Response(generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


class _EventStream(Response):
    """The stream of events, while there is a place for it."""

    def __init__(self, service: Service, reader: tuple[str, str], last_id: str) -> None:
        self._service, self._last_id = service, last_id
        self._token, self._address = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the client is gone, or refuse in one line."""
        places = self._service.places
        refusal = places.take(self._token, self._address)
        if refusal is not None:
            headers = {"Retry-After": str(PING), "Connection": "close"}
            await _refused(*refusal, headers)(scope, receive, send)
            return
        try:
            events = EventSourceResponse(self._service.broadcast.listen(self._last_id), ping=PING)
            await events(scope, receive, send)
        finally:
            places.leave(self._token, self._address)


class _Session(msgspec.Struct, forbid_unknown_fields=True):
    """A token to keep; "" forgets the one that is kept."""

    token: str


def json_answer(record: object) -> Response:
    """Write a record as JSON."""
    return Response(msgspec.json.encode(record), media_type="application/json")


def query_of(request: Request, model: type[T]) -> T:
    """Read a query; raise HTTPException where it is not one."""
    given = dict(request.query_params)
    # An empty field of a form is one that was not filled in.
    given = {name: value for name, value in given.items() if value}
    try:
        return msgspec.convert(given, model, strict=False)
    except msgspec.ValidationError as error:
        raise HTTPException(400, str(error)) from error


async def body_of(request: Request, model: type[T]) -> T:
    """Read a JSON body; raise HTTPException where it is not one."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "send JSON, with Content-Type: application/json")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY:
            raise HTTPException(413, "too long")
    try:
        return Decoder(model, "what is asked for")(bytes(body))
    except WireError as error:
        raise HTTPException(400, str(error)) from error


async def _told_plainly(_request: Request, error: HTTPException) -> Response:
    return _refused(error.status_code, error.detail, error.headers)


def _said_with(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(_request: Request, error: Exception) -> Response:
        return _refused(status, str(error))

    return answer


async def _failed(_request: Request, _error: Exception) -> Response:
    return _refused(500, "this should not happen: the service's log says what did")


def _refused(status: int, why: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode({"error": why}), status, headers, "application/json")


def _row(fleet: Fleet, entry: StoryEntry) -> AdvisoryRow:
    return answers.advisory_row(fleet, entry, fleet.senders.block[entry.sender], fleet.senders.names[entry.sender])


class LiveCollector(Collector):
    """The metrics of one service, for Prometheus; each scrape reads the view, nothing is kept."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of the fleet, of reading, and of the extensions."""
        yield from self._of_fleet()
        yield from self._of_reading()
        for extension in self._service.extensions:
            yield from extension.metrics()

    def _of_fleet(self) -> Iterable[Metric]:
        whole, view = self._service.view.whole, self._service.view
        senders = GaugeMetricFamily("muster_live_senders", "Senders by how they are shown", labels=["region", "state"])
        lag = GaugeMetricFamily("muster_live_source_lag_messages", "Messages still to be copied", labels=["region"])
        silent = GaugeMetricFamily(
            "muster_live_source_silent_seconds", "Since the source was heard; -1: never", labels=["region"]
        )
        behind = GaugeMetricFamily("muster_live_region_behind", "1: nothing new comes from it", labels=["region"])
        for region in whole.regions:
            for state, count in msgspec.structs.asdict(region.counts).items():
                senders.add_metric([region.region, state], count)
            lag.add_metric([region.region], region.source_lag)
            seconds = region.source_silent_us / _MICROSECONDS if region.source_silent_us >= 0 else -1
            silent.add_metric([region.region], seconds)
            behind.add_metric([region.region], region.is_behind)
        sites = GaugeMetricFamily("muster_live_sites", "Sites by state", labels=["region", "state"])
        for (name, state), count in Counter((site.region, site.state) for site in view.sites).items():
            sites.add_metric([name, state], count)
        unknown = GaugeMetricFamily("muster_live_unknown_sites", "Unknown sites by reason", labels=["region", "reason"])
        reasons = Counter((site.region, site.reason) for site in view.sites if site.reason is not None)
        for (name, reason), count in reasons.items():
            unknown.add_metric([name, reason], count)
        yield from (senders, lag, silent, behind, sites, unknown)
        known_until = whole.known_until_us / _MICROSECONDS
        yield GaugeMetricFamily("muster_live_known_until_seconds", "Until then all known sites are known", known_until)
        yield GaugeMetricFamily("muster_live_hub_time_seconds", "The hub's own time", whole.now_us / _MICROSECONDS)
        yield GaugeMetricFamily(
            "muster_live_hub_clock_behind_seconds",
            "How far the hub's clock is behind what its archive holds",
            whole.hub_clock_behind_us / _MICROSECONDS,
        )
        yield CounterMetricFamily(
            "muster_live_hub_clock_steps", "Times that the hub's clock was set back", whole.hub_clock_steps
        )

    def _of_reading(self) -> Iterable[Metric]:
        service, fleet = self._service, self._service.feed.fleet
        sourcing = service.feed.sourcing
        ends = [until for _, until in own_ends(service.settings.hub)]
        if ends:
            until = min(ends) / _MICROSECONDS
            yield GaugeMetricFamily("muster_live_login_expires_seconds", "When the login at the hub expires", until)
        yield GaugeMetricFamily("muster_live_ready", "1: all that the archive held was read", service.feed.is_ready)
        caught_up_at = sourcing.caught_up_at / _MICROSECONDS
        yield GaugeMetricFamily("muster_live_caught_up_seconds", "When all of it was read last", caught_up_at)
        yield GaugeMetricFamily("muster_live_sequence", "The archive's last message that was read", fleet.sequence)
        yield CounterMetricFamily("muster_live_messages", "Messages folded", service.message_count)
        refused = CounterMetricFamily("muster_live_refused", "Records that were not taken", labels=["reason"])
        for reason, count in fleet.refused.items():
            refused.add_metric([reason], count)
        yield refused
        yield CounterMetricFamily("muster_live_restored", "Archives that took another's place", service.feed.restored)
        yield GaugeMetricFamily("muster_live_listeners", "Open streams of events", service.broadcast.listener_count)
        refused_streams = service.places.refused_count
        yield CounterMetricFamily("muster_live_listeners_refused", "Streams of events without a place", refused_streams)
        dropped = service.broadcast.dropped_count
        yield CounterMetricFamily("muster_live_listeners_dropped", "Listeners that were too slow", dropped)
