"""A year of a site in virtual time, through the agent's own tracker and store: what does not stop growing shows.

Senders register every five minutes, fail, and are replaced by others; the agent is down now and then, the region cannot
be reached for days. What is uploaded is let go of as the uploader does it.
"""

import asyncio
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from edge_agent.core.block_state import BlockState
from edge_agent.core.observation import Observation, SourceMessage
from edge_agent.core.records import Emitter, Lane, WatermarkContext
from edge_agent.core.tracker import Tracker
from edge_agent.store.port import BatchCommit
from edge_agent.store.sqlite_store import SqliteStore
from shared.identifiers import SourcePosition
from shared.instants import HOUR, MINUTE, SECOND
from tests.bench.children import MEGABYTE
from tests.bench.report import RecordsLost, Row, Table
from tests.bench.stage import Options
from tests.support.store.store_batches import ALL_ROWS, BLOCK_ID, INCARNATION, POLICY, opened

START = 1_700_000_000 * SECOND
INTERVAL = 5 * MINUTE
SIZE = 1_000
FAILS_ONCE_IN, LASTS_FOR = 20 * 24, 2.0
REPLACED_ONCE_IN = 90 * 24
"""Hours; an outage's length is exponential."""
AGENT_DOWN_EVERY, AGENT_DOWN = 30 * 24, 2
LINK_DOWN_EVERY, LINK_DOWN = 60 * 24, 6 * 24
NO_LIMIT = 1 << 60
LOOKS = 12


async def year(options: Options) -> Table:
    """Look twelve times at the store's files, and at what the program has resident."""
    senders, hours = options.size(100, 10), options.size(365 * 24, 30 * 24)
    place = options.directory / "year"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    looks: list[tuple[float, float, float]] = []
    tracker = Tracker(BlockState(SourcePosition("REGISTRATION", INCARNATION, 0), POLICY))
    emitter = Emitter(BLOCK_ID, "dub1-a", "a" * 32, "0.1.0", "sender", bytes(32))
    nothing, uploaded, most = WatermarkContext({}, {}, {}), 0, 0.0
    async with opened(place / "agent.db") as store:
        for hour, heard in _hours(senders, hours, options.seed):
            draft = tracker.draft(decision_limit=NO_LIMIT)
            if not all(map(draft.observe, heard)):
                raise AssertionError("a draft without a limit takes all")
            state = draft.state()
            rows = [*emitter.rows(draft.decisions, state, nothing), emitter.watermark(state, nothing)]
            # A watermark is nobody's decision: it is committed alone, as the agent does.
            await store.commit(
                BatchCommit(BLOCK_ID, state, draft.changes(), rows[:-1], draft.recorded, draft.decisions)
            )
            tracker.adopt(draft)
            await store.commit(BatchCommit(BLOCK_ID, state, tracker.draft().changes(), rows[-1:]))
            if hour % LINK_DOWN_EVERY < LINK_DOWN_EVERY - LINK_DOWN:
                uploaded += await _upload(store)
            most = max(most, _size(place))
            if (hour + 1) % (hours // LOOKS) == 0:
                looks.append((_size(place), _resident(), sum(tracker.sender_counts().values())))
        await _upload(store)
        counts = tracker.sender_counts()
    if counts["heard"] > senders or not uploaded:
        raise RecordsLost(f"{counts} of {senders} senders, {uploaded} uploaded")
    figures = [
        *(Row(f"month {number}: store", "MB", size) for number, (size, _, _) in enumerate(looks, 1)),
        Row("the store at most, while the region is away", "MB", most),
        *(Row(f"month {number}: resident", "MB", looks[number - 1][1]) for number in (1, 6, LOOKS)),
        Row("senders known at the end", "", looks[-1][2]),
        Row("resident, last month by the third", "times", looks[-1][1] / looks[2][1], None, 1.1, "less"),
        Row(
            "store, last quarter's most by the second's",
            "times",
            _most(looks[9:]) / _most(looks[3:6]),
            None,
            1.1,
            "less",
        ),
    ]
    title = f"{senders} senders for {hours // 24} days of virtual time, {uploaded:,} records uploaded"
    return Table("year", title, options.command("year"), figures)


MEASURES = {"year": year}


def _hours(senders: int, hours: int, seed: int) -> Iterator[tuple[int, list[Observation]]]:
    """Give what is heard in each hour in which the agent runs."""
    draw, payload = random.Random(f"year {seed}"), b"x" * SIZE
    names, back_at, sequence = [f"node{number}" for number in range(senders)], [0.0] * senders, 0
    for hour in range(hours):
        for number in range(senders):
            if draw.randrange(REPLACED_ONCE_IN) == 0:
                names[number] = f"node{number}-since-{hour}"
            if draw.randrange(FAILS_ONCE_IN) == 0:
                back_at[number] = hour + draw.expovariate(1 / LASTS_FOR)
        heard = []
        for turn in range(HOUR // INTERVAL):
            for number, name in enumerate(names):
                at = hour * HOUR + turn * INTERVAL + number * INTERVAL // senders
                if at >= back_at[number] * HOUR:
                    sequence += 1
                    heard.append(Observation(name, SourceMessage("registration", payload, None, sequence, START + at)))
        if hour % AGENT_DOWN_EVERY >= AGENT_DOWN:
            yield hour, heard


async def _upload(store: SqliteStore) -> int:
    count = 0
    for lane in Lane:
        rows = await store.pending(lane, store.acknowledged_through()[lane], ALL_ROWS)
        if rows:
            store.delete_through(lane, rows[-1].row_id)
        count += len(rows)
    await asyncio.sleep(0)
    return count


def _size(place: Path) -> float:
    return sum(path.stat().st_size for path in place.glob("agent.db*")) / MEGABYTE


def _resident() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / MEGABYTE
    raise RuntimeError("VmRSS cannot be read")


def _most(looks: list[tuple[float, float, float]]) -> float:
    return max(size for size, _, _ in looks)
