"""Make the history of a fleet as an archive holds it, in Parquet: advisories and watermarks of many sites and days.

DuckDB draws it out of hashes, so that the same sizes give the same history. Senders are born in the first hour and then
go down now and then; every site is blind for two hours of every ten days.
"""

from pathlib import Path

import duckdb
import msgspec

from shared.instants import DAY, HOUR, MINUTE, parse_instant

START = parse_instant("2025-01-01T00:00:00Z")
STALE_AFTER = 12 * MINUTE
_BLIND_EVERY, _BLIND = 10 * DAY, 2 * HOUR


class Fleet(msgspec.Struct, frozen=True):
    """How many senders on how many sites, for how many days, and how often each goes down in that time.

    ``mark_every`` (microseconds) is how far apart a site's watermarks are.
    """

    senders: int
    sites: int
    days: int
    outages: int
    mark_every: int = 10 * MINUTE

    @property
    def advisory_count(self) -> int:
        """Count the advisories."""
        return self.senders * (1 + 2 * self.outages)

    @property
    def end(self) -> int:
        """Give the instant (microseconds) at which its history ends."""
        return START + self.days * DAY


def sequence_at(instant: int) -> int:
    """Give the archive's sequence of what happened at an instant: its milliseconds since ``START``."""
    return (instant - START) // 1_000


def write_history(fleet: Fleet, directory: Path) -> tuple[Path, Path]:
    """Write the rows of the tables ``advisories`` and ``watermarks``, in the order of their time; give the files."""
    directory.mkdir(parents=True, exist_ok=True)
    advisories, watermarks = directory / "advisories.parquet", directory / "watermarks.parquet"
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET threads = 2")
        connection.execute(f"SET temp_directory = '{directory}/spill'")
        connection.execute(f"COPY ({_advisories(fleet)}) TO '{advisories}' (ROW_GROUP_SIZE 200_000)")
        connection.execute(f"COPY ({_watermarks(fleet, advisories)}) TO '{watermarks}'")
    return advisories, watermarks


def _advisories(fleet: Fleet) -> str:
    period = fleet.days * DAY // max(1, fleet.outages)
    longest = min(2 * HOUR, period // 3)
    shortest = STALE_AFTER + MINUTE
    archived = _archived("moment")
    return f"""
        WITH senders AS (
            SELECT range AS n, {START} + (hash(range) % {HOUR})::BIGINT AS born FROM range({fleet.senders})
        ),
        outages AS (
            SELECT n, k, {START + 2 * HOUR} + k * {period} + (hash(n, k) % {period // 2})::BIGINT AS down_at,
                {shortest} + (hash(k, n, 1) % {longest})::BIGINT AS length
            FROM senders, (SELECT range AS k FROM range({fleet.outages}))
        ),
        said AS (
            SELECT n, -1 AS k, 'new' AS kind, born AS moment, born AS seen FROM senders
            UNION ALL SELECT n, k, 'stale', down_at + {STALE_AFTER}, down_at FROM outages
            UNION ALL SELECT n, k, 'recovered', down_at + length, down_at FROM outages
        ),
        placed AS (SELECT *, (n % {fleet.sites})::INT AS s FROM said WHERE moment < {fleet.end})
        SELECT 'region' || s % 10 AS region, 'site' || s AS site, 'nodes' AS block,
            'node' || n || '.example' AS sender_id, kind, make_timestamptz(moment) AS occurred_at,
            make_timestamptz(seen) AS last_seen_at,
            md5(n || ',' || k || kind) AS event_id, 'sender' AS inspect_field, 'REGISTRATION' AS stream,
            '1-1' AS incarnation, moment // 1000 AS sequence, n AS opening_sequence,
            row_number() OVER (PARTITION BY s ORDER BY moment, n) AS ordinal, false AS rebuilt,
            false AS assumed, false AS by_operator, NULL::TIMESTAMPTZ AS unheard_until, {archived}
        FROM placed ORDER BY moment
    """


def _watermarks(fleet: Fleet, advisories: Path) -> str:
    archived, every = _archived("through"), fleet.mark_every
    return f"""
        WITH sites AS (SELECT range::INT AS s FROM range({fleet.sites})),
        marks AS (
            SELECT s, 'site' || s AS site, through,
                {START} + greatest((through - {START} - s * {HOUR}) // {_BLIND_EVERY} * {_BLIND_EVERY}, 0) AS period,
            FROM sites, (SELECT {START} + range AS through FROM range({every}, {fleet.days * DAY + 1}, {every}))
        ),
        sighted AS (
            SELECT s, site, through, if(period = {START}, {START}, period + s * {HOUR} + {_BLIND}) AS since FROM marks
        ),
        issued AS (SELECT site, epoch_us(occurred_at) AS moment, ordinal FROM '{advisories}')
        SELECT 'region' || s % 10 AS region, sighted.site, 'nodes' AS block, sighted.site || '-a' AS agent,
            'boot' AS boot_id, make_timestamptz(since) AS observed_since, make_timestamptz(through) AS observed_through,
            coalesce(issued.ordinal, 0) AS advisory_ordinal, NULL::TIMESTAMPTZ AS rebuilt_at, 'REGISTRATION' AS stream,
            '1-1' AS incarnation, through // 1000 AS sequence, NULL::MAP(VARCHAR, BIGINT) AS senders,
            NULL::MAP(VARCHAR, BIGINT) AS outbox, NULL::MAP(VARCHAR, MAP(VARCHAR, BIGINT)) AS counters,
            {STALE_AFTER}::BIGINT AS stale_after_us, {2 * DAY}::BIGINT AS retire_after_us,
            {STALE_AFTER // 4}::BIGINT AS blind_after_us, 0::BIGINT AS policy_revision, '0' AS version, {archived},
            NULL::TIMESTAMPTZ AS store_began_at
        FROM sighted ASOF LEFT JOIN issued ON sighted.site = issued.site AND sighted.through >= issued.moment
        WHERE since < through ORDER BY through
    """


def _archived(instant: str) -> str:
    return f"({instant} - {START}) // 1000 AS hub_sequence, make_timestamptz({instant}) AS archived_at"
