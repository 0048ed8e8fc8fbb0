"""Say in numbers, for Prometheus, what the fleet is and how well it is seen. Nothing is kept: each scrape looks."""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.nats.expiry import own_ends

if TYPE_CHECKING:
    from aggregator.live.service.server import Service

_MICROSECONDS = 1_000_000


class LiveCollector(Collector):
    """The metrics of one service."""

    def __init__(self, service: "Service") -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        """Give them all."""
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
        sourcing = service.sourcing
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
