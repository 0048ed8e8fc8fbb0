"""What arrives at the hub, kept by identity, and held against a straight run."""

from collections.abc import Iterable

import msgspec

from edge_agent.core.decisions import Advise, BlindSpan, Decision, Forward
from edge_agent.core.records import Emitter, Lane, OutboxRow, WatermarkContext
from shared import wire
from shared.wire import Advisory, Watermark
from tests.support.agent.mortal_agent import BLOCK_ID, StoreLife
from tests.support.core.straight_replay import replay

NOTHING_ELSE = WatermarkContext({}, {}, {})


class Hub:
    """Records as readers see them: the same record twice is one record, and must be the same bytes."""

    def __init__(self) -> None:
        self.advisories: dict[str, bytes] = {}
        self.registrations: dict[str, OutboxRow] = {}
        self.watermarks: list[Watermark] = []
        self._ordinals: dict[str, set[int]] = {}

    def receive(self, rows: Iterable[OutboxRow]) -> None:
        """Store rows as they come, however often; a watermark must find everything that it vouches for."""
        for row in rows:
            if row.lane is Lane.REGISTRATIONS:
                origin = row.headers[wire.ORIGIN_HEADER]
                known = self.registrations.setdefault(origin, row)
                assert (known.payload, known.headers) == (row.payload, row.headers), "one origin, two registrations"
            elif row.is_watermark:
                self._receive_watermark(wire.decode_watermark(row.payload))
            else:
                advisory = wire.decode_advisory(row.payload)
                assert isinstance(advisory, Advisory)
                known_bytes = self.advisories.setdefault(advisory.event_id, row.payload)
                assert known_bytes == row.payload, "one event id, two advisories"
                self._ordinals.setdefault(advisory.incarnation, set()).add(advisory.ordinal)

    def _receive_watermark(self, watermark: Watermark) -> None:
        held = self._ordinals.get(watermark.incarnation, set())
        assert set(range(1, watermark.advisory_ordinal + 1)) <= held, "a watermark overtook its advisories"
        self.watermarks.append(watermark)

    def advisories_in_order(self) -> dict[str, list[bytes]]:
        """Give every incarnation's advisories in the order of their ordinals, which must have no holes."""
        ordered: dict[str, list[tuple[int, bytes]]] = {}
        for payload in self.advisories.values():
            advisory = wire.decode_advisory(payload)
            assert isinstance(advisory, Advisory)
            ordered.setdefault(advisory.incarnation, []).append((advisory.ordinal, payload))
        for entries in ordered.values():
            entries.sort()
        return {incarnation: [payload for _, payload in entries] for incarnation, entries in ordered.items()}


class StraightRun:
    """What one store's life must have led to."""

    def __init__(self, life: StoreLife, emitter: Emitter) -> None:
        self.life = life
        self.decisions: list[Decision] = replay(life.began_as, life.read, life.recorded, life.observed_through)
        rows = emitter.rows(
            [decision for decision in self.decisions if isinstance(decision, Advise)], life.began_as, NOTHING_ELSE
        )
        self.advisories = [msgspec.json.decode(row.payload, type=Advisory) for row in rows]
        self.payloads: dict[str, list[bytes]] = {}
        for row, advisory in zip(rows, self.advisories, strict=True):
            self.payloads.setdefault(advisory.incarnation, []).append(row.payload)

    @property
    def blind_spans(self) -> list[BlindSpan]:
        """Give the blind spans that have a length."""
        spans = [item for item in self.life.recorded if isinstance(item, BlindSpan)]
        return [span for span in spans if span.started_at < span.ended_at]

    @property
    def forwarded(self) -> dict[str, tuple[bytes, str]]:
        """Give body and reason of everything that was chosen for forwarding, by its origin."""
        incarnations = {id(taken.message): incarnation for incarnation, taken in self.life.read}
        return {
            wire.origin_header(BLOCK_ID, incarnations[id(decision.message)], decision.message.sequence): (
                decision.message.payload,
                str(decision.reason),
            )
            for decision in self.decisions
            if isinstance(decision, Forward)
        }
