"""Extension of the live service for incidents: its endpoint, events and metrics, and delivery to receivers."""

import asyncio
from collections.abc import Iterable, Sequence

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.requests import Request
from starlette.responses import Response

from aggregator.config import AggregatorSettings
from aggregator.live.alerts.incident_book import IncidentBook
from aggregator.live.alerts.incidents import IncidentCause, IncidentPage, IncidentRules
from aggregator.live.alerts.receivers import Alerts
from aggregator.live.fold.view import View
from aggregator.live.service.answers import Limit, Place
from aggregator.live.service.openapi import Endpoint
from aggregator.live.service.server import Extension, Service, json_answer, query_of


class IncidentQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Parameters of a list of incidents; ``before`` is an instant in microseconds."""

    before: Place = 0
    limit: Limit = 100


class IncidentWatch(Extension):
    """Judges each view of a service, and delivers notices in tasks of its own."""

    def __init__(self, settings: AggregatorSettings) -> None:
        asked = settings.live.incidents
        rules = IncidentRules(
            open_after=asked.open_after,
            unknown_after=asked.unknown_after,
            close_after=asked.close_after,
            least_share=asked.least_share,
            least_senders=asked.least_senders,
        )
        settings.live_path.parent.mkdir(parents=True, exist_ok=True)
        self.book = IncidentBook(settings.incidents_path, rules)
        self._service: Service | None = None
        page = settings.live.page or f"http://{settings.live.listen}"
        self._alerts = Alerts(self.book, settings.live.alerts, self._is_well, self._now, page)
        self._delivery: asyncio.Task[None] | None = None

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoint that lists incidents."""
        return [Endpoint("/incidents", self._get_incidents, IncidentPage, "List incidents.", IncidentQuery)]

    def metrics(self) -> Iterable[Metric]:
        """Yield the metrics of open incidents and of deliveries."""
        held = GaugeMetricFamily("muster_live_open_incidents", "Incidents that go on, by cause", labels=["cause"])
        # An incident within a wider one does not count while that is open.
        causes = [each.cause for each in self.book.open.values() if not each.within]
        for cause in IncidentCause:
            held.add_metric([cause], causes.count(cause))
        delivered = CounterMetricFamily("muster_live_alerts_delivered", "What was acknowledged", labels=["receiver"])
        failed = CounterMetricFamily("muster_live_alerts_failed", "Failed attempts to tell", labels=["receiver"])
        given_up = CounterMetricFamily("muster_live_alerts_given_up", "News that was refused", labels=["receiver"])
        alerts = self._alerts
        for counts, family in (
            (alerts.delivered_count, delivered),
            (alerts.failed_count, failed),
            (alerts.given_up_count, given_up),
        ):
            for receiver, count in counts.items():
                family.add_metric([receiver], count)
        yield from (held, delivered, failed, given_up)

    def close(self) -> None:
        """Stop delivery and close the file."""
        if self._delivery is not None:
            self._delivery.cancel()
        self.book.close()

    async def look(self, service: Service, view: View) -> None:
        """Judge the fleet in ``view``, and publish the incidents that changed."""
        changed = self.book.look(view)
        service.publish_all("incident", changed)
        if self._delivery is None:
            self._service = service
            self._delivery = asyncio.create_task(self._alerts.run())
        elif self._delivery.done():
            self._delivery.result()
        elif changed:
            self._alerts.wake()

    def _is_well(self) -> bool:
        """Return True if the feed keeps up: one that is connected, but hours behind, is not well."""
        service = self._service
        return service is not None and not service.feed.wrong and not service.view.is_hub_behind

    def _now(self) -> int:
        return self._service.view.now if self._service is not None else 0

    async def _get_incidents(self, request: Request) -> Response:
        query = query_of(request, IncidentQuery)
        found = self.book.recent(query.before, query.limit)
        over = [each for each in found if each.ended_at_us is not None]
        return json_answer(IncidentPage(tuple(found), over[-1].started_at_us if len(over) == query.limit else 0))
