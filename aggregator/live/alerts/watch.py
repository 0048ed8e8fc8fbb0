"""Watch the fleet for incidents while it is served: list them, publish what changes, and have receivers told."""

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
    """Those that are open, or that began before an instant (microseconds)."""

    before: Place = 0
    limit: Limit = 100


class IncidentWatch(Extension):
    """Looks at each view of a service, and tells receivers in tasks of its own."""

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
        self._telling: asyncio.Task[None] | None = None

    def endpoints(self) -> Sequence[Endpoint]:
        """Give the list of incidents."""
        return [Endpoint("/incidents", self._get_incidents, IncidentPage, "List incidents.", IncidentQuery)]

    def metrics(self) -> Iterable[Metric]:
        """Give the open incidents, and who could be told of them."""
        held = GaugeMetricFamily("muster_live_open_incidents", "Incidents that go on, by cause", labels=["cause"])
        # What is part of a wider one is no incident of its own meanwhile.
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
        """Close the file, and tell nobody any more."""
        if self._telling is not None:
            self._telling.cancel()
        self.book.close()

    async def look(self, service: Service, view: View) -> None:
        """Judge the fleet as it is now."""
        changed = self.book.look(view)
        service.publish_all("incident", changed)
        if self._telling is None:
            self._service = service
            self._telling = asyncio.create_task(self._alerts.run())
        elif self._telling.done():
            self._telling.result()
        elif changed:
            self._alerts.wake()

    def _is_well(self) -> bool:
        """Tell whether the feed keeps up: what is connected, and hours behind, is not well."""
        service = self._service
        return service is not None and not service.feed.wrong and not service.view.is_hub_behind

    def _now(self) -> int:
        return self._service.view.now if self._service is not None else 0

    async def _get_incidents(self, request: Request) -> Response:
        query = query_of(request, IncidentQuery)
        found = self.book.recent(query.before, query.limit)
        over = [each for each in found if each.ended_at_us is not None]
        return json_answer(IncidentPage(tuple(found), over[-1].started_at_us if len(over) == query.limit else 0))
