"""Turn advisories into the lives of senders: episodes, and in each the intervals in which a sender was up or down.

Rules. A sender's advisories are ordered by (occurred_at, claimed_at, rank of kind, event_id). At one instant, what ends
comes before what begins; but a ``retired`` at the very sighting that opened its episode comes after its ``new``.
- ``new`` opens an episode and ends one still open; a ``rebuilt`` new goes on with the open one. Where no episode is
  open, whatever comes opens one, except ``retired``: a history that begins in the middle is read from there on.
- A ``retired`` with ``unheard_until`` is of a sender that its stream had ceased to listen to: it is unknown from its
  last sighting (after ``stale`` from when that became true) until then, or until its next advisory, and absent
  afterwards.
- ``stale`` starts down at the last sighting, but nobody's first word further back than ``UNSUPPORTED``;
  ``recovered`` and ``new`` start up when they became true.
- Any other ``retired`` ends the episode when it became true; an operator's at the last sighting.
- ``recovered`` and ``retired`` say when the sender was seen before. Where no ``stale`` has said it (plain Choria's need
  not come, others may be missing), a sender that was up is down from then on: inferred, not told.
- Where several stores have spoken for the block (``archive/stores.py``), a sender with an open episode is unknown from
  the end of the earlier ones' coverage until its next advisory, unless a later store has announced it by then.
"""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from aggregator.lakehouse.tables.schemas import SITE_BUCKETS
from aggregator.lakehouse.warehouse.windows import DAY_US, day_of, floor_to
from aggregator.records.judge import UNSUPPORTED
from shared.identifiers import AdvisoryKind
from shared.instants import LATEST

BLOCK = ("region", "site", "block")
SENDER = (*BLOCK, "sender_id")

UP, DOWN, UNKNOWN, MAINTENANCE = "up", "down", "unknown", "maintenance"
REBUILT, UNHEARD, LOST_STORE = "rebuilt", "unheard", "lost_store"
INFERRED, AHEAD = "inferred", "ahead"
"""What a state rests on where no advisory says it as it is: see the column ``basis``."""

_AT_ONCE = len(AdvisoryKind)
"""The rank of a ``retired`` at the instant at which its episode began."""
_KINDS = {kind.rank: str(kind) for kind in AdvisoryKind} | {_AT_ONCE: str(AdvisoryKind.RETIRED)}
_REBUILT_WORD, _UNHEARD_WORD = len(_KINDS), len(_KINDS) + 1
_WORDS = {**_KINDS, _REBUILT_WORD: REBUILT, _UNHEARD_WORD: UNHEARD}
_UP_WORDS = (AdvisoryKind.NEW.rank, AdvisoryKind.RECOVERED.rank, _REBUILT_WORD)
_RANKS = len(_WORDS)
"""So much lower is the rank of what is ahead (``believed_times.py``), for each that follows it and is ahead too; so
much higher that of what claims a later instant than counts, for each microsecond."""
NO_INCARNATION = ""
"""The incarnation of words that are plain Choria advisories."""
_STORE_END = "store_end"
"""A column of words where several stores have spoken for a block: see ``_with_stores``."""
_DATED_BACK = (AdvisoryKind.STALE.rank, _UNHEARD_WORD)
"""What starts its state at the last sighting, so that a ``retired`` behind it ends that state when it became true."""


def words(advisories: DataFrame) -> DataFrame:
    """Give what lives are made of, out of advisories."""
    opened = [f.lit(None).cast("string").alias("opened_by"), f.lit(None).cast("timestamp").alias("opened_at")]
    told = ("kind", "occurred_at", "last_seen_at", "event_id", "rebuilt", "by_operator", "unheard_until")
    beyond = f.unix_micros("claimed_at") - f.unix_micros("occurred_at")
    place = f.when(f.col("is_ahead"), f.col("ahead_place")).otherwise(beyond)
    rank = (said_rank() + place * _RANKS).alias("rank")
    basis = f.when(f.col("is_ahead"), AHEAD).alias("basis")
    incarnation = f.coalesce("incarnation", f.lit(NO_INCARNATION)).alias("incarnation")
    return advisories.select(*SENDER, *told, *opened, rank, basis, incarnation)


def last_words(going_on: DataFrame) -> DataFrame:
    """Give what lives are made of, out of intervals that go on: the advisory each rests on, with its episode.

    Nothing before it matters to what follows, unless a store was lost (``state`` unknown).
    """
    return going_on.select(
        *SENDER,
        f.col("advisory_kind").alias("kind"),
        f.col("advisory_at").alias("occurred_at"),
        f.col("started_at").alias("last_seen_at"),
        f.col("advisory_id").alias("event_id"),
        f.lit(False).alias("rebuilt"),
        f.lit(False).alias("by_operator"),
        f.lit(None).cast("timestamp").alias("unheard_until"),
        f.col("episode").alias("opened_by"),
        f.col("episode_started_at").alias("opened_at"),
        _rank(f.col("advisory_kind")).cast("bigint").alias("rank"),
        "basis",
        f.lit(None).cast("string").alias("incarnation"),
    )


def place() -> Column:
    """Give the place among its sender's of a row of ``believed_advisories``: the lesser comes first."""
    return f.struct("occurred_at", "claimed_at", said_rank().alias("rank"), "event_id")


def said_rank() -> Column:
    """Give the rank of a row of the table ``advisories`` among those of its instant."""
    is_of_one_sighting = f.col("sequence") == f.col("opening_sequence")
    at_once = (f.col("kind") == AdvisoryKind.RETIRED) & (f.col("last_seen_at") == f.col("occurred_at"))
    return f.when(at_once & is_of_one_sighting, _AT_ONCE).otherwise(_rank(f.col("kind")))


def sender_intervals(words: DataFrame, stores: DataFrame | None, known_through: int) -> DataFrame:
    """Return the rows of the table ``sender_intervals`` for the senders of ``words``.

    ``stores`` is the order of the stores of blocks for which several have spoken (``coverage/stores.py``); None if
    there is no such block. ``known_through`` (microseconds) cuts the last day, for ``last_whole_day`` only.
    """
    cut = _following(words) if stores is None else _split_at_lost_stores(_following(_with_stores(words, stores)))
    return with_whole_days(cut.where("ended_at IS NULL OR started_at < ended_at"), known_through)


def _following(words: DataFrame) -> DataFrame:
    """Give each state with when it starts and ends, the advisory that it rests on, and which episode it is part of."""
    # The hash settles nearly every comparison of the sort, of which the names, long and alike, would settle few. All of
    # them are columns: where the order has an expression in it, Spark sorts anew for each window.
    ordered = Window.partitionBy("sender_hash", *SENDER).orderBy("occurred_at", "rank", "event_id")
    so_far = ordered.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    word, before, after = f.col("word"), f.col("word_before"), f.col("word_after")
    starts_at = f.when(before.isin(*_DATED_BACK), f.col("after_stale_at")).otherwise(f.col("after_other_at"))
    ends_a_silence = before.isin(*_UP_WORDS) & (f.col("silent_since") >= f.col("occurred_before"))
    starts_at = f.when(ends_a_silence, f.col("occurred_at")).otherwise(starts_at)
    is_first = before.isNull() & f.col("opened_by").isNull()
    starts_at = f.when(is_first, supported(f.col("after_other_at"), f.col("occurred_at"))).otherwise(starts_at)
    ends_at = f.when(word.isin(*_DATED_BACK), f.col("next_after_stale_at")).otherwise(f.col("next_after_other_at"))
    starts_a_state = word != AdvisoryKind.RETIRED.rank
    nothing_open = before.isNull() | before.isin(AdvisoryKind.RETIRED.rank, _UNHEARD_WORD)
    opens = starts_a_state & (nothing_open | (word == AdvisoryKind.NEW.rank))
    # Of two instants the one that is there, where one is not.
    ended_at = f.least(f.when(after.isNotNull(), f.greatest("started_at", ends_at)), "unheard_until")
    episode = f.coalesce("opened_by", f.when(opens, f.col("event_id")))
    opened_at = f.coalesce("opened_at", f.when(opens, f.col("started_at")))
    # What was seen before the state began is what the advisory before told of.
    of_stores = (_STORE_END,) if _STORE_END in words.columns else ()
    silence_told = word.isin(*_UP_WORDS) & (f.col("next_silent_since") >= f.col("occurred_at"))
    silent_since = f.when(silence_told, f.greatest("started_at", "next_silent_since"))
    following = (
        _narrow(words)
        .withColumns(
            {
                "word_before": f.lag("word").over(ordered),
                "occurred_before": f.lag("occurred_at").over(ordered),
                "word_after": f.lead("word").over(ordered),
                "heard_again_at": f.lead("occurred_at").over(ordered),
                "next_after_stale_at": f.lead("after_stale_at").over(ordered),
                "next_after_other_at": f.lead("after_other_at").over(ordered),
                "next_silent_since": f.lead("silent_since").over(ordered),
                "next_rank": f.lead("rank").over(ordered),
                "next_event_id": f.lead("event_id").over(ordered),
            }
        )
        .withColumns(
            {
                # A sighting before the one that the last state rests on cannot take that state back.
                "started_at": f.max(starts_at).over(so_far),
                "episode": f.last(episode, ignorenulls=True).over(so_far),
            }
        )
        .withColumn("episode_started_at", f.last(opened_at, ignorenulls=True).over(so_far))
        .withColumns({name: f.max(name).over(so_far) for name in of_stores})
        .where(starts_a_state)
        .withColumn("told_silent_since", silent_since)
    )
    ended_by = f.when(ended_at == f.col("unheard_until"), AdvisoryKind.RETIRED).otherwise(_named(after, _WORDS))

    silent_since, is_silent = f.col("told_silent_since"), f.col("is_silent")
    # Which parts there are, and not the parts themselves: those would be put into an array for every row.
    parts = f.when(silent_since.isNull(), f.array(f.lit(False))).otherwise(f.array(f.lit(False), f.lit(True)))

    def part(name: str, own: Column, of_silence: Column) -> Column:
        return f.when(is_silent, of_silence).otherwise(own).alias(name)

    return following.withColumn("is_silent", f.explode(parts)).select(
        *SENDER,
        "episode",
        "episode_started_at",
        "heard_again_at",
        part("state", _state(word), f.lit(DOWN)),
        part("started_at", f.col("started_at"), silent_since),
        part("ended_at", f.coalesce(silent_since, ended_at), f.col("heard_again_at")),
        f.when(~is_silent & silent_since.isNotNull(), AdvisoryKind.STALE).otherwise(ended_by).alias("ended_by"),
        part("advisory_at", f.col("occurred_at"), f.col("heard_again_at")),
        _named(f.pmod(part("rank", f.col("rank"), f.col("next_rank")), f.lit(_RANKS)), _KINDS).alias("advisory_kind"),
        part("advisory_id", f.col("event_id"), f.col("next_event_id")),
        part("basis", f.col("basis"), f.lit(INFERRED)),
        *of_stores,
    )


def supported(last_seen_at: Column, occurred_at: Column) -> Column:
    """Say from when on a sender's first word may tell of it: nothing else tells that it lived before."""
    return f.greatest(last_seen_at, f.timestamp_micros(f.unix_micros(occurred_at) - UNSUPPORTED))


def _narrow(words: DataFrame) -> DataFrame:
    """Give of each word what is sorted and looked at from row to row: kinds are numbers.

    ``after_stale_at`` and ``after_other_at`` say when it ends the state before it and starts its own, where that was
    stale or unheard, and where not. ``silent_since`` is the last sighting before it where that shows a silence.
    ``unheard_until`` is null where the sender was heard to the end.
    """
    kind, last_seen_at, occurred_at = f.col("kind"), f.col("last_seen_at"), f.col("occurred_at")
    is_stale, is_retired = kind == AdvisoryKind.STALE, kind == AdvisoryKind.RETIRED
    by_operator = is_retired & f.coalesce("by_operator", f.lit(False))
    is_unheard = is_retired & ~by_operator & f.col("unheard_until").isNotNull()
    is_rebuilt = (kind == AdvisoryKind.NEW) & f.col("rebuilt")
    ends_a_silence = (kind == AdvisoryKind.RECOVERED) | (is_retired & ~by_operator & ~is_unheard)
    return words.select(
        f.xxhash64(*SENDER).alias("sender_hash"),
        *SENDER,
        "event_id",
        "occurred_at",
        "opened_by",
        "opened_at",
        "rank",
        "basis",
        f.when(is_rebuilt, _REBUILT_WORD).when(is_unheard, _UNHEARD_WORD).otherwise(_rank(kind)).alias("word"),
        f.when(ends_a_silence & (last_seen_at < occurred_at), last_seen_at).alias("silent_since"),
        f.when(is_unheard, f.col("unheard_until")).alias("unheard_until"),
        f.when(is_stale | by_operator, last_seen_at).otherwise(occurred_at).alias("after_stale_at"),
        f.when(is_stale | is_retired, last_seen_at).otherwise(occurred_at).alias("after_other_at"),
        *((_STORE_END,) if _STORE_END in words.columns else ()),
    )


def with_whole_days(intervals: DataFrame, known_through: int) -> DataFrame:
    """Add, or renew, the days that lie wholly in each interval, and the bucket of the site."""
    started_at, ended_at = f.unix_micros("started_at"), f.unix_micros("ended_at")
    first = floor_to(started_at + (DAY_US - 1), DAY_US)
    # Of an interval that has ended these days are fixed: only those that go on are written anew by every run.
    last = f.coalesce(floor_to(ended_at, DAY_US) - DAY_US, floor_to(f.lit(known_through - 1), DAY_US))
    return intervals.select(
        *SENDER,
        "episode",
        "episode_started_at",
        "state",
        "started_at",
        "ended_at",
        "ended_by",
        "advisory_at",
        "advisory_kind",
        "advisory_id",
        f.when(first <= last, _day(first)).alias("first_whole_day"),
        f.when(first <= last, _day(last)).alias("last_whole_day"),
        "basis",
        site_bucket().alias("site_bucket"),
    )


def site_bucket() -> Column:
    """Spread sites over the buckets by which derived tables are partitioned."""
    return f.pmod(f.crc32("site"), f.lit(SITE_BUCKETS)).cast("int")


def _rank(kind: Column) -> Column:
    ranks = f.when(kind == AdvisoryKind.STALE, AdvisoryKind.STALE.rank)
    for other in (AdvisoryKind.RETIRED, AdvisoryKind.RECOVERED, AdvisoryKind.NEW):
        ranks = ranks.when(kind == other, other.rank)
    return ranks


def _named(number: Column, names: Mapping[int, str]) -> Column:
    (first, name), *others = names.items()
    named = f.when(number == first, name)
    for each, name in others:
        named = named.when(number == each, name)
    return named


def _state(word: Column) -> Column:
    return f.when(word == AdvisoryKind.STALE.rank, DOWN).when(word == _UNHEARD_WORD, UNKNOWN).otherwise(UP)


def _with_stores(words: DataFrame, stores: DataFrame) -> DataFrame:
    """Add the instant (microseconds) at which the coverage of each word's store and those before it ended.

    It is ``LATEST`` for the last store, on an advisory of which a going-on interval rests that is not unknown yet.
    """
    named = words.join(f.broadcast(stores), [*BLOCK, "incarnation"], "left")
    return named.withColumn(_STORE_END, f.coalesce(_STORE_END, f.lit(LATEST)))


def _split_at_lost_stores(following: DataFrame) -> DataFrame:
    """Cut each interval of a sender that the next store has not announced: after the cut, the sender is unknown."""
    is_known = f.col(_STORE_END) == LATEST
    found = f.when(~is_known, f.greatest(f.timestamp_micros(_STORE_END), "advisory_at"))
    holds = (
        # A sender that is unknown already stays so for the reason that came first.
        (f.col("state") != UNKNOWN)
        & (f.col("heard_again_at").isNull() | (found < f.col("heard_again_at")))
        & (f.col("ended_at").isNull() | (found < f.col("ended_at")))
    )
    cut = f.col("cut")

    def part(state: Column, started_at: Column, ended_at: Column, ended_by: Column) -> Column:
        return f.struct(
            state.alias("state"),
            started_at.alias("started_at"),
            ended_at.alias("ended_at"),
            ended_by.alias("ended_by"),
        )

    state, started_at, ended_at, ended_by = (f.col(name) for name in ("state", "started_at", "ended_at", "ended_by"))
    whole = f.array(part(state, started_at, ended_at, ended_by))
    parts = f.array(part(state, started_at, cut, f.lit(LOST_STORE)), part(f.lit(UNKNOWN), cut, ended_at, ended_by))
    return following.withColumn("cut", f.when(holds, found)).select(
        *SENDER,
        "episode",
        "episode_started_at",
        "advisory_at",
        "advisory_kind",
        "advisory_id",
        "basis",
        f.inline(f.when(cut.isNull(), whole).otherwise(parts)),
    )


def _day(microseconds: Column) -> Column:
    return f.date_from_unix_date(day_of(microseconds))
