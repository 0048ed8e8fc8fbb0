"""What is read from servers one after the other, while they go on: that is no sign of an origin which was restored."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client

from aggregator.topology.desired.model import HUB
from aggregator.topology.desired.settings import TopologySettings
from aggregator.topology.desired.streams import desired
from aggregator.topology.observed import reader
from aggregator.topology.observed.state import AckFloor, FoundConsumer, Replication, StreamState
from aggregator.topology.plan.changes import plan
from shared.nats.jetstream_api import NO_SUCH_CONSUMER, NO_SUCH_STREAM, ApiError, RequestFailed
from shared.settings import parse_settings
from tests.support.topology.topologies import HUB_PLACE, TWO_REGIONS, applied, with_state

GATHERED = """
    [[stream]]
    name = "ORDERS"
    subjects = ["ORDERS.*"]
    [[stream]]
    name = "ALL"
    [[stream.source]]
    name = "ORDERS"
"""
LEVEL_OF_2_14 = 4


class RenamedHub:
    """A hub whose place is ``main`` now, before 2.15: ``sizes`` are what ORDERS holds, each time it is asked for.

    Played, since a real server cannot be made to store between two of our requests, and one of 2.14 is not installed.
    """

    def __init__(self, *sizes: int, acknowledged: int) -> None:
        found = applied(GATHERED)
        with_state(found, HUB_PLACE, "ALL", StreamState(messages=900, last_seq=900), Replication("ORDERS"))
        old = msgspec.structs.replace(
            found.consumers[HUB_PLACE, "ORDERS", "muster-ALL@hub"], ack_floor=AckFloor(acknowledged)
        )
        self._streams = {name: stream for (place, name), stream in found.streams.items() if place == HUB_PLACE}
        self._consumers = {"muster-ALL@hub": old}
        self._sizes = list(sizes)

    async def answer(self, _client: Client, subject: str, _body: Any, model: Any, **_deadline: float) -> Any:
        domain, _, asked = subject.removeprefix("$JS.").partition(".API.")
        kind, _, name = asked.partition(".INFO")
        stream, _, consumer = name.removeprefix(".").partition(".")
        if domain == "hub":
            raise RequestFailed("nobody answers there")
        if asked == "INFO":
            return msgspec.convert({"api": {"level": LEVEL_OF_2_14}}, model)
        if asked.startswith("CONSUMER.NAMES"):
            names = list(self._consumers) if asked.endswith(".ORDERS") else []
            return msgspec.convert({"total": len(names), "consumers": names}, model)
        if kind == "CONSUMER":
            return self._consumer(consumer)
        if domain != "main" or stream not in self._streams:
            raise ApiError(404, NO_SUCH_STREAM, "stream not found")
        held = self._streams[stream]
        if stream == "ORDERS":
            size = self._sizes.pop(0) if len(self._sizes) > 1 else self._sizes[0]
            return msgspec.structs.replace(held, state=StreamState(messages=size, last_seq=size))
        return held

    def _consumer(self, name: str) -> FoundConsumer:
        if name not in self._consumers:
            raise ApiError(404, NO_SUCH_CONSUMER, "consumer not found")
        return self._consumers[name]


@pytest.mark.parametrize(("sizes", "start"), [((1000, 1010), 1006), ((1000,), None)], ids=["moves on", "restored"])
async def test_an_origin_that_moves_on_while_an_old_consumer_is_asked_for_is_not_taken_for_restored(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], start: int | None
) -> None:
    """Before 2.15 only the consumer says how much was taken; all of it would come twice."""
    hub = RenamedHub(*sizes, acknowledged=1005)
    monkeypatch.setattr(reader, "request_json", hub.answer)
    renamed = TWO_REGIONS.replace('domain = "hub"', 'domain = "main"') + GATHERED
    wanted = desired(parse_settings(renamed, TopologySettings, Path("t")))
    found = await reader.observe(wanted, {HUB: Client()}, with_orphans=True)
    (made,) = [each for each in plan(wanted, found).changes if each.consumer == "muster-ALL@main"]
    assert made.config.get("opt_start_seq") == start
