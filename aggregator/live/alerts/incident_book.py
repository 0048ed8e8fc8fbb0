"""SQLite file of incidents and of the notices that receivers have acknowledged, updated from each view of the fleet.

A notice is committed after its receiver has acknowledged it. A crash in between repeats it under the same id: delivery
is at least once.
"""

import heapq
import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from weakref import ref

import msgspec

from aggregator.live.alerts.incidents import SILENT, HubTimes, Incident, IncidentKey, IncidentRules, judge
from aggregator.live.fold.coverage import Block
from aggregator.live.fold.fleet import Fleet
from aggregator.live.fold.senders import LOST, RETIRED, STALE, UNHEARD, UP
from aggregator.live.fold.view import SiteVersion, View, cancellations
from shared.instants import SECOND
from shared.policy import DeclareMaintenance, Scope

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS incidents (
    incident_id TEXT PRIMARY KEY, started_at_us INTEGER NOT NULL, ended_at_us INTEGER, body BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS incidents_by_start ON incidents (started_at_us DESC);
-- ended: the stage of the notice.
CREATE TABLE IF NOT EXISTS notices (
    receiver TEXT NOT NULL, incident_id TEXT NOT NULL, ended INTEGER NOT NULL, told_count INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (receiver, incident_id, ended)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS receivers (receiver TEXT PRIMARY KEY) WITHOUT ROWID;
"""
_PENDING: Final = """
SELECT body, stage FROM (
    SELECT incident_id, 0 AS stage FROM incidents
    UNION ALL SELECT incident_id, 1 FROM incidents WHERE ended_at_us IS NOT NULL
    UNION ALL SELECT incident_id, 1 + json_extract(CAST(body AS TEXT), '$.growth_count') FROM incidents
        WHERE ended_at_us IS NULL AND json_extract(CAST(body AS TEXT), '$.growth_count') > 0
) AS due JOIN incidents USING (incident_id)
WHERE NOT EXISTS (SELECT 1 FROM notices WHERE receiver = :receiver AND incident_id = due.incident_id AND ended = stage)
    AND (stage = 1 AND :began OR coalesce(json_extract(CAST(body AS TEXT), '$.within'), '') = '')
    AND (stage < 2 OR json_extract(CAST(body AS TEXT), '$.told_count') > (
        SELECT max(told_count) FROM notices WHERE receiver = :receiver AND incident_id = due.incident_id))
ORDER BY started_at_us, stage LIMIT :limit
""".replace(
    ":began",
    "EXISTS (SELECT 1 FROM notices WHERE receiver = :receiver AND incident_id = due.incident_id AND ended = 0)",
)
_KNOWN_MOVES: Final = 10 * SECOND
MOST_ENDED: Final = 10_000
"""The number of ended incidents that are kept."""


class Notice(NamedTuple):
    """An event of an incident that a receiver has not acknowledged yet.

    ``stage``: 0 if the incident began, 1 if it ended, 1 + n if it has grown for the nth time.
    """

    incident: Incident
    stage: int

    @property
    def event(self) -> str:
        """The name of the event."""
        return ("began", "ended", "grew")[min(self.stage, 2)]

    @property
    def name(self) -> tuple[str, int]:
        """The identity of the notice: incident and stage."""
        return self.incident.incident_id, self.stage


class IncidentBook:
    """The incidents of a fleet, in a file of their own: they survive a rebuild of the live state."""

    def __init__(self, path: Path, rules: IncidentRules) -> None:
        self._database = sqlite3.connect(path, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.executescript(_SCHEMA)
        if "told_count" not in {row[1] for row in self._database.execute("PRAGMA table_info (notices)")}:
            self._database.execute("ALTER TABLE notices ADD COLUMN told_count INTEGER NOT NULL DEFAULT 0")
        rows = self._database.execute("SELECT body FROM incidents WHERE ended_at_us IS NULL ORDER BY started_at_us")
        self._rules, self._read_since = rules, 0
        self._fleet_ref: ref[Fleet] | None = None
        self._seen: dict[tuple[str, str], tuple[SiteVersion, SiteSnapshot]] = {}
        self._maintenance: object = None
        self.open: dict[IncidentKey, Incident] = {incident.key: incident for incident in map(_read, rows)}

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def look(self, view: View) -> list[Incident]:
        """Judge the fleet in ``view``; write and return the incidents that opened, changed or closed."""
        is_new = self._fleet_ref is None or self._fleet_ref() is not view.fleet
        # A state that was rebuilt has just begun to read the archive.
        if is_new or view.is_hub_behind:
            self._fleet_ref, self._read_since = ref(view.fleet), view.now
        over = ended_maintenance(view.fleet, view.now)
        if is_new or self._maintenance != (over, view.planned):
            self._seen, self._maintenance = {}, (over, view.planned)
        seen = [self._snapshot(view, name, over) for name in view.site_names]
        times = HubTimes(view.now, view.judged_until, self._read_since)
        judged = judge(seen, self.open, times, self._rules, view.is_closed)
        changed = [each for each in judged if self._has_changed(each)]
        self.save(changed)
        return changed

    def _snapshot(self, view: View, name: tuple[str, str], over: dict[Scope, int]) -> "SiteSnapshot":
        """Return the facts of a site; they are computed again only if the site has changed."""
        version = view.version_of(*name)
        before = self._seen.get(name)
        if before is None or before[0] != version:
            before = self._seen[name] = version, SiteSnapshot(view, *name, over)
        return before[1]

    def _has_changed(self, incident: Incident) -> bool:
        """Return True if more has changed than the end of coverage, which moves constantly."""
        before = self.open.get(incident.key)
        if before is None or incident.known_until_us - before.known_until_us >= _KNOWN_MOVES:
            return True
        return incident != msgspec.structs.replace(before, known_until_us=incident.known_until_us)

    def save(self, changed: Iterable[Incident]) -> None:
        """Write incidents, and delete the oldest of those that have ended."""
        rows, opened = [], []
        for each in changed:
            rows.append((each.incident_id, each.started_at_us, each.ended_at_us, msgspec.json.encode(each)))
            if each.ended_at_us is None:
                if each.key not in self.open:
                    opened.append((each.incident_id,))
                self.open[each.key] = each
            else:
                self.open.pop(each.key, None)
        if not rows:
            return
        with self._database as database:
            database.executemany("INSERT OR REPLACE INTO incidents VALUES (?, ?, ?, ?)", rows)
            # An incident that had ended and continues after all is reported again to every receiver.
            database.executemany("DELETE FROM notices WHERE incident_id = ?", opened)
            if any(row[2] is not None for row in rows):
                database.execute(
                    "DELETE FROM incidents WHERE incident_id IN (SELECT incident_id FROM incidents"
                    " WHERE ended_at_us IS NOT NULL ORDER BY started_at_us DESC LIMIT -1 OFFSET ?)",
                    (MOST_ENDED,),
                )
                database.execute("DELETE FROM notices WHERE incident_id NOT IN (SELECT incident_id FROM incidents)")

    def recent(self, before_us: int = 0, limit: int = 100) -> list[Incident]:
        """Return open incidents (if ``before_us`` is 0), then ended ones that began before it; each latest first."""
        rows = self._database.execute(
            "SELECT body FROM incidents WHERE ended_at_us IS NOT NULL AND started_at_us < ?"
            " ORDER BY started_at_us DESC LIMIT ?",
            (before_us or 1 << 62, limit),
        )
        current = [] if before_us else sorted(self.open.values(), key=lambda each: -each.started_at_us)
        return [*current, *map(_read, rows)]

    def introduce(self, receiver: str) -> None:
        """Add a receiver. A new one is notified of open and future incidents, but not of those that have ended."""
        with self._database as database:
            if database.execute("INSERT OR IGNORE INTO receivers VALUES (?)", (receiver,)).rowcount:
                database.execute(
                    "INSERT OR IGNORE INTO notices SELECT ?, incident_id, stage, 0 FROM incidents,"
                    " (SELECT 0 AS stage UNION SELECT 1) WHERE ended_at_us IS NOT NULL",
                    (receiver,),
                )

    def pending(self, receiver: str, limit: int = 100) -> list[Notice]:
        """Return notices that ``receiver`` has not acknowledged, the oldest first, each beginning before its end.

        An incident within a wider one is not reported, except its end to a receiver that acknowledged its beginning.
        Growth is reported once, however often it has grown, to a receiver whose last notice had a smaller count.
        """
        rows = self._database.execute(_PENDING, {"receiver": receiver, "limit": limit})
        return [Notice(_read(row), row[1]) for row in rows]

    def acknowledge(self, receiver: str, notices: Iterable[Notice]) -> None:
        """Commit that ``receiver`` has acknowledged ``notices``, except for ends that were withdrawn since."""
        rows = []
        for incident, stage in notices:
            # The notice of a beginning has the count of nodes at that time, so earlier growth is included.
            known = (0, 1 + incident.growth_count) if not stage and incident.growth_count else (stage,)
            ended_at, told_count = incident.ended_at_us, incident.node_count
            rows += [(receiver, each, incident.incident_id, ended_at, told_count) for each in known]
        if rows:
            with self._database as database:
                database.executemany(
                    "INSERT OR IGNORE INTO notices SELECT ?1, incident_id, ?2, ?5 FROM incidents"
                    " WHERE incident_id = ?3 AND (?2 <> 1 OR ended_at_us = ?4)",
                    rows,
                )

    def is_open(self, incident: Incident) -> bool:
        """Return True if the incident with this id is open now, even if it had ended when it was read."""
        now = self.open.get(incident.key)
        return now is not None and now.incident_id == incident.incident_id


class SiteSnapshot:
    """The facts of a site in one view: implements ``incidents.SiteFacts``.

    Counts are by the last advisories: all senders except retired ones are expected. An instance is valid until the site
    changes.
    """

    def __init__(self, view: View, region: str, site: str, over: dict[Scope, int]) -> None:
        self.region, self.site = region, site
        fleet, numbers = view.fleet, view.numbers_of(region, site)
        # A weak reference: the cache of these must not keep a replaced fleet in memory.
        self._fleet_ref, self._found, self._named = ref(fleet), dict[tuple[str, int], int](), dict[int, list[str]]()
        there = [number for number in numbers if not view.is_gone(number)]
        self.gone = not there
        numbers = there or numbers
        reasons = {number: view.reason(number) for number in numbers}
        unknown = [number for number, reason in reasons.items() if reason is not None]
        known = [number for number in numbers if reasons[number] is None] or numbers
        self._numbers, self._unknown = known, unknown
        self.expected_count, self.known_count = self._expected(numbers), self._expected(known)
        self.stale_count = sum(fleet.counts[number][STALE] for number in known)
        self.retired_count = sum(fleet.counts[number][RETIRED] for number in view.numbers_of(region, site))
        until = {number: fleet.blocks[number].watched_until or fleet.blocks[number].changed_at for number in numbers}
        self.known_until_us = min(until[number] for number in known)
        self.observed_since_us = max(fleet.blocks[number].known_since for number in known)
        planned = [number for number in numbers if view.maintenance(number) is not None]
        self.maintained = len(planned) == len(numbers)
        self.unknown_maintained = set(unknown) <= set(planned)
        told_of = [number for number in unknown if self.unknown_maintained or number not in planned]
        # If the agent of one block is heard, the site is not silent.
        self.unknown: str | None = min(
            (reasons[number] for number in told_of), key=lambda reason: reason in SILENT, default=None
        )
        self.unknown_count = self._expected(told_of)
        ended = {number: max(over.get(scope, 0) for scope in _scopes(fleet.blocks[number])) for number in numbers}
        self.maintained_until_us = max(ended.values())
        lost = {number: max(until[number], ended[number]) for number in unknown}
        self.unknown_since_us = min((lost[number] for number in told_of), default=self.known_until_us)
        self.lost_since_us = max(lost.values()) if len(unknown) == len(numbers) else None
        heard = [fleet.blocks[each] for each in numbers if fleet.blocks[each].heard_at and reasons[each] not in SILENT]
        self.is_heard = bool(heard)
        alone = [block for block in heard if block.alone_since]
        self.alone_since_us = min((block.alone_since for block in alone), default=0)
        self.lone_agents = tuple(dict.fromkeys(block.agent for block in alone))
        self.planned_count = sum(len(fleet.stale[number]) for number in set(known) & set(planned))
        for number in set(known) - set(planned):
            names = view.planned_senders(number)
            self.planned_count += sum(fleet.members[number][name] in fleet.stale[number] for name in names)

    @property
    def stale_blocks(self) -> tuple[str, ...]:
        """The names of the blocks that have stale senders."""
        fleet = self._fleet
        return tuple(sorted(fleet.blocks[number].block for number in self._numbers if fleet.stale[number]))

    def stale_among(self, senders: Sequence[str], blocks: Sequence[str]) -> int:
        """Return how many of ``senders`` are stale in one of ``blocks``."""
        fleet = self._fleet
        numbers = [number for number in self._numbers if self._is_of(number, blocks)]
        return sum(any(fleet.members[each].get(name) in fleet.stale[each] for each in numbers) for name in senders)

    def sees(self, blocks: Sequence[str]) -> bool:
        """Return True if each of ``blocks`` is known."""
        return not any(self._is_of(number, blocks) for number in self._unknown)

    def _is_of(self, number: int, blocks: Sequence[str]) -> bool:
        return self._fleet.blocks[number].block in blocks if blocks else bool(self._fleet.stale[number])

    def _expected(self, numbers: Iterable[int]) -> int:
        counts = self._fleet.counts
        return sum(counts[number][state] for number in numbers for state in (UP, STALE, UNHEARD, LOST))

    def stale_at(self, rank: int) -> int:
        """Return since when ``rank`` of the senders that are stale now have been stale under observation."""
        return self._smallest("at", rank)

    def silent_at(self, rank: int) -> int:
        """Return the instant by which ``rank`` of the senders that are stale now had been heard for the last time."""
        return self._smallest("since", rank)

    def stale_senders(self, most: int) -> list[str]:
        """Return the names of up to ``most`` stale senders, in the order in which they became stale."""
        if most not in self._named:
            senders = self._fleet.senders
            first = heapq.nsmallest(most, ((senders.since[each], senders.names[each]) for each in self._stale))
            self._named[most] = [name for _, name in first]
        return self._named[most]

    def _smallest(self, name: str, rank: int) -> int:
        if (name, rank) not in self._found:
            column: array[int] = getattr(self._fleet.senders, name)
            blocks = [(self._fleet.blocks[number].known_since, self._fleet.stale[number]) for number in self._numbers]
            instants = (max(column[each], begin if name == "at" else 0) for begin, stale in blocks for each in stale)
            self._found[name, rank] = heapq.nsmallest(rank, instants)[-1]
        return self._found[name, rank]

    @property
    def _fleet(self) -> Fleet:
        fleet = self._fleet_ref()
        assert fleet is not None
        return fleet

    @property
    def _stale(self) -> Iterator[int]:
        return (each for number in self._numbers for each in self._fleet.stale[number])


def _scopes(block: Block) -> tuple[Scope, Scope, Scope]:
    return Scope(block.region), Scope(block.region, block.site), Scope(block.region, block.site, block.block)


def ended_maintenance(fleet: Fleet, now: int) -> dict[Scope, int]:
    """Return when the last maintenance of each scope as a whole ended: at its end, or when it was cancelled."""
    cancelled = cancellations(fleet)
    ended: dict[Scope, int] = {}
    for key, each in fleet.revisions.items():
        if isinstance(each.order, DeclareMaintenance) and not each.order.sender_ids:
            ended_at = each.order.ended_at_us
            if key in cancelled:
                ended_at = min(ended_at, cancelled[key].given_at)
            if each.order.started_at_us < ended_at <= now:
                ended[each.scope] = max(ended.get(each.scope, 0), ended_at)
    return ended


def _read(row: tuple[bytes, ...]) -> Incident:
    return msgspec.json.decode(row[0], type=Incident)
