"""Say which time watermarks vouch for, and keep per block what it takes to go on from there with new records alone.

Rules. A watermark vouches for the time since the watermark before it (or since the end of its blind span, where that is
later), if the hub holds every advisory that its store has issued so far: ordinals count them from 1, without holes, in
each life (an incarnation of a block) that watermarks tell of. What a sender is rests on all that was said before, so as
long as one is missing, no later watermark of that store vouches for anything, also when the stream's past changes. A
store that took the place of a lost one begins anew. So neither an advisory on its way nor one that was lost makes
silence look like life.

What a store issued before the first that the hub holds of its first life is history before the archive's, and not
missed: no state rests on it. Who was not heard of since is not there.

An ordinal that two advisories have, or a count that falls, is of an older copy of a store that was put back: what one
of its pasts lacks, the other's may stand in for. Counts are compared in the order of the instants that watermarks
claim, since the hub's time may be one for many of them. From the first watermark that counts such an ordinal, none of
that store vouches for anything.

What has been said is final as long as a block's records come in their order: each watermark is later than those of its
store before, or says the last one again, each ordinal beyond the last one counted. ``out_of_order`` names the blocks of
which that is not so: that of a hole that is filled is among them.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from aggregator.lakehouse.derive.intervals.episodes import BLOCK, supported
from aggregator.lakehouse.spark.effort import computed_once
from aggregator.lakehouse.tables.causes import Cause
from shared.identifiers import AdvisoryKind

LIFE = (*BLOCK, "incarnation")

PAGE_BITS = 6
"""A page has 64 ordinals: as many as a BIGINT has bits."""

_RANGE = ("first_observed_since", "first_observed_through", "first_archived_at", "last_archived_at", "first_told_at")


def ledger(advisories: DataFrame) -> DataFrame:
    """Sum up what advisories say of their block: one row for each page of 64 ordinals of one of its lives.

    ``held`` has a bit for each ordinal of the page that is there, and ``said_count`` counts the advisories that have
    them; ``page`` is null where they have none (plain Choria's). ``assumed_from``, ``assumed_to``, ``first_word_at``
    and ``first_told_at`` as in the table ``continuations``. It is persisted: a block's advisories are read once, and
    hardly any of them is shuffled.
    """
    assumed_at = f.when(f.col("assumed"), f.col("occurred_at"))
    stale, seen = f.col("kind") == AdvisoryKind.STALE, supported(f.col("last_seen_at"), f.col("occurred_at"))
    return (
        advisories.groupBy(*LIFE, _page(f.col("ordinal")).alias("page"))
        .agg(
            f.bit_or(_bit(f.col("ordinal"))).alias("held"),
            f.count("ordinal").alias("said_count"),
            f.min("ordinal").alias("first_held"),
            f.min(assumed_at).alias("assumed_from"),
            f.max(assumed_at).alias("assumed_to"),
            f.min(f.when(stale, seen).otherwise(f.col("occurred_at"))).alias("first_word_at"),
            f.min("archived_at").alias("first_told_at"),
        )
        .persist()
    )


def doubts(watermarks: DataFrame, advisories: DataFrame, pages: DataFrame, before: DataFrame) -> DataFrame:
    """Give the lives of which two pasts were told: (life, ``doubled_ordinal``, ``put_back_from``: microseconds).

    Nearly always there is none. ``pages`` and ``before`` as for ``vouched``; ``advisories`` are those of the pages.
    """
    no_count = f.lit(None).cast("bigint")
    marks = watermarks.select(
        *LIFE,
        f.col("advisory_ordinal").alias("reached"),
        f.unix_micros("observed_through").alias("through"),
        f.unix_micros("claimed_through").alias("claimed"),
        no_count.alias("doubled_ordinal"),
        no_count.alias("put_back_from"),
    )
    ends = before.where("observed_through IS NOT NULL OR doubled_ordinal IS NOT NULL").select(
        *LIFE,
        f.col("advisory_ordinal").alias("reached"),
        f.unix_micros("observed_through").alias("through"),
        f.unix_micros("observed_through").alias("claimed"),
        "doubled_ordinal",
        f.unix_micros("put_back_from").alias("put_back_from"),
    )
    told = marks.unionAll(ends)
    twice = _told_twice(advisories, pages, before)
    if twice is not None:
        told = told.unionByName(twice, allowMissingColumns=True)
    of_life = Window.partitionBy(*LIFE)
    earlier = of_life.orderBy("claimed", "reached").rowsBetween(Window.unboundedPreceding, -1)
    falls = f.col("reached") < f.col("most_before")
    counts_it = f.col("reached") >= f.col("first_doubled")
    return computed_once(
        told.withColumn("most_before", f.max("reached").over(earlier))
        .withColumn("first_doubled", f.min("doubled_ordinal").over(of_life))
        .groupBy(*LIFE)
        .agg(
            f.min("doubled_ordinal").alias("doubled_ordinal"),
            f.least(f.min("put_back_from"), f.min(f.when(falls | counts_it, f.col("through")))).alias("put_back_from"),
        )
        .where("doubled_ordinal IS NOT NULL OR put_back_from IS NOT NULL")
    )


def vouched(watermarks: DataFrame, pages: DataFrame, before: DataFrame, doubts: DataFrame) -> DataFrame:
    """Give the span (microseconds) that each of ``watermarks`` speaks for: observed, advisories missing, or put back.

    ``pages`` is the ledger of the advisories. ``before`` has rows of the table ``continuations``: what of each life of
    a block lies before all of these records. ``doubts`` as of the function.
    """
    no_count = f.lit(None).cast("bigint")
    ends = before.where("observed_through IS NOT NULL").select(
        *LIFE,
        f.col("advisory_ordinal").alias("reached"),
        f.lit(False).alias("speaks"),
        store().alias("store"),
        f.unix_micros("observed_through").alias("since"),
        f.unix_micros("observed_through").alias("through"),
        f.unix_micros("observed_through").alias("claimed"),
        f.unix_micros("first_observed_through").alias("began_at"),
        _held_before().alias("held_before"),
        f.col("counted_from").alias("first_held"),
        no_count.alias("put_back_from"),
        no_count.alias("hub_sequence"),
    )
    marks = watermarks.select(
        *LIFE,
        f.col("advisory_ordinal").alias("reached"),
        f.lit(True).alias("speaks"),
        f.col("rebuilt_at").alias("store"),
        f.unix_micros("observed_since").alias("since"),
        f.unix_micros("observed_through").alias("through"),
        f.unix_micros("claimed_through").alias("claimed"),
        f.unix_micros("observed_through").alias("began_at"),
        no_count.alias("held_before"),
        no_count.alias("first_held"),
        no_count.alias("put_back_from"),
        "hub_sequence",
    )
    held = _held(pages, before).select(
        *LIFE,
        no_count.alias("reached"),
        f.lit(False).alias("speaks"),
        f.lit(None).cast("timestamp").alias("store"),
        no_count.alias("since"),
        no_count.alias("through"),
        no_count.alias("claimed"),
        no_count.alias("began_at"),
        no_count.alias("held_before"),
        "first_held",
        no_count.alias("put_back_from"),
        no_count.alias("hub_sequence"),
        "page",
        "held",
    )
    doubtful = doubts.select(*LIFE, "put_back_from")
    by_page = Window.partitionBy(*LIFE).orderBy("page", "speaks")
    so_far = by_page.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    through_page = f.sum(f.coalesce(f.bit_count("held"), "held_before", f.lit(0))).over(so_far)
    # Of its own page, a watermark speaks of the ordinals up to its own only.
    last_page = f.last(f.when(f.col("held").isNotNull(), f.struct("page", "held")), ignorenulls=True).over(so_far)
    later = _later(last_page["held"], f.col("reached"))
    beyond = f.when(last_page["page"] == f.col("page"), f.bit_count(later))
    held_count = through_page - f.coalesce(beyond, f.lit(0))
    # Of those that say the same, the first that came counts: an agent says its last one again.
    in_time = Window.partitionBy(*LIFE).orderBy("through", "claimed", "reached", "hub_sequence")
    of_store = Window.partitionBy(*BLOCK, "store").orderBy("through", "claimed")
    up_to_now = of_store.rangeBetween(Window.unboundedPreceding, Window.currentRow)
    counted = (
        marks.unionAll(ends)
        .select("*", _page(f.col("reached")).alias("page"), f.lit(None).cast("bigint").alias("held"))
        .unionAll(held)
        .unionByName(doubtful, allowMissingColumns=True)
        .withColumn("held_count", held_count)
        .withColumn("first_held", f.min("first_held").over(Window.partitionBy(*LIFE)))
        .withColumn("put_back_from", f.min("put_back_from").over(Window.partitionBy(*LIFE)))
        .where("through IS NOT NULL")
        .withColumn("began_at", f.min("began_at").over(Window.partitionBy(*LIFE)))
        # Of an older agent, or an older hub, some of a life's watermarks do not name its store.
        .withColumn("store", f.max("store").over(Window.partitionBy(*LIFE)))
        .withColumn("counted_from", _counted_from(f.col("began_at"), f.col("store")))
        .withColumn("vouched_before", f.lag("through").over(in_time))
        # Only whether any is missing counts: a sum of counts that a site makes up would leave 64 bits.
        .withColumn("missing", f.least(_missing_count(f.col("reached"), f.col("held_count")), f.lit(1)))
        .withColumn("missing_more", f.col("missing") - f.lag("missing", 1, 0).over(in_time))
        .withColumn("missing_of_store", f.sum("missing_more").over(up_to_now))
        .withColumn("is_put_back", f.coalesce(f.col("through") >= f.col("put_back_from"), f.lit(False)))
        .withColumn("is_put_back", f.max("is_put_back").over(up_to_now))
        .where("speaks")
    )
    whole = (f.col("missing_of_store") == 0) & ~_is_before_all(f.col("reached"))
    return counted.select(
        *BLOCK,
        f.greatest("since", "vouched_before").alias("started_at"),
        f.col("through").alias("ended_at"),
        f.when(f.col("is_put_back"), Cause.PUT_BACK)
        .when(whole, Cause.OBSERVED)
        .otherwise(Cause.ADVISORIES_MISSING)
        .alias("cause"),
    )


def continuations(
    watermarks: DataFrame, pages: DataFrame, before: DataFrame, doubts: DataFrame, known_through: int
) -> DataFrame:
    """Give the rows of the table ``continuations`` after these records; ``pages`` and so on as for ``vouched``."""
    known = before.select(
        *LIFE,
        _mark("observed_through", "advisory_ordinal").alias("final"),
        _mark("last_observed_through", "last_advisory_ordinal").alias("last"),
        "most_advisory_ordinal",
        _held_before().alias("held_before"),
        f.col("counted_from").alias("first_held"),
        *_RANGE,
        "lost_at",
        "assumed_from",
        "assumed_to",
        "first_word_at",
    )
    mark = _mark("observed_through", "advisory_ordinal")
    from_watermarks = watermarks.select(
        *LIFE,
        f.when(f.unix_micros("observed_through") <= known_through, mark).alias("final"),
        mark.alias("last"),
        f.col("advisory_ordinal").alias("most_advisory_ordinal"),
        f.col("observed_since").alias("first_observed_since"),
        f.col("observed_through").alias("first_observed_through"),
        f.col("archived_at").alias("first_archived_at"),
        f.col("archived_at").alias("last_archived_at"),
        f.col("archived_at").alias("first_told_at"),
        f.when(f.col("rebuilt_at").isNotNull(), f.array("rebuilt_at")).alias("lost_at"),
    )
    from_advisories = pages.select(*LIFE, "assumed_from", "assumed_to", "first_word_at", "first_told_at")
    told = known.unionByName(from_watermarks, allowMissingColumns=True)
    lives = (
        told.unionByName(from_advisories, allowMissingColumns=True)
        .groupBy(*LIFE)
        .agg(
            f.max("final").alias("final"),
            f.max("last").alias("last"),
            f.max("most_advisory_ordinal").alias("most_advisory_ordinal"),
            f.max("held_before").alias("held_before"),
            f.min("first_held").alias("first_held_before"),
            *((f.max if name.startswith("last") else f.min)(name).alias(name) for name in _RANGE),
            f.array_sort(f.array_distinct(f.flatten(f.collect_set("lost_at")))).alias("lost_at"),
            f.min("assumed_from").alias("assumed_from"),
            f.max("assumed_to").alias("assumed_to"),
            f.min("first_word_at").alias("first_word_at"),
        )
    )
    page, reached, first = f.col("page"), f.col("final.reached"), f.col("page") * (1 << PAGE_BITS)
    beyond = f.when(page < _page(reached), 0).when(page == _page(reached), _later(f.col("held"), reached))
    of_page = f.sequence(first, first + ((1 << PAGE_BITS) - 1))
    in_page = f.filter(of_page, lambda ordinal: f.col("beyond").bitwiseAND(_bit(ordinal)) != 0)
    counted = (
        _held(pages, before)
        .join(f.broadcast(lives.select(*LIFE, "final")), [*LIFE])
        .select(*LIFE, "page", "held", "first_held", beyond.otherwise(f.col("held")).alias("beyond"))
        .groupBy(*LIFE)
        .agg(
            f.sum(f.bit_count("held") - f.bit_count("beyond")).alias("held_count"),
            f.min("first_held").alias("first_held"),
            f.array_sort(f.flatten(f.collect_list(f.when(f.col("beyond") != 0, in_page)))).alias("held_ordinals"),
        )
    )
    held_count = f.coalesce("held_before", f.lit(0)) + f.coalesce("held_count", f.lit(0))
    began_at = f.unix_micros("first_observed_through")
    # Plain advisories have no incarnation, and no ordinals.
    ended = (
        lives.join(counted, [*LIFE], "left")
        .join(f.broadcast(doubts), [*LIFE], "left")
        .withColumn("first_held", f.least("first_held", "first_held_before"))
        .withColumn("counted_from", f.when(reached.isNotNull(), _counted_from(began_at, store())))
    )
    return ended.select(
        *LIFE,
        f.col("final.through").alias("observed_through"),
        f.col("final.reached").alias("advisory_ordinal"),
        "counted_from",
        _missing_count(reached, held_count).alias("missing_count"),
        f.col("last.through").alias("last_observed_through"),
        f.col("last.reached").alias("last_advisory_ordinal"),
        "most_advisory_ordinal",
        *_RANGE,
        "doubled_ordinal",
        f.timestamp_micros("put_back_from").alias("put_back_from"),
        f.coalesce("held_ordinals", f.array().cast("array<bigint>")).alias("held_ordinals"),
        "lost_at",
        "assumed_from",
        "assumed_to",
        "first_word_at",
    )


def out_of_order(watermarks: DataFrame, ahead: DataFrame, advisories: DataFrame, before: DataFrame) -> DataFrame:
    """Give the (region, site, block) of which ``before`` is no place to go on from.

    ``watermarks`` and ``advisories`` are new; ``ahead`` are the watermarks that lay beyond known time ``before``.
    """
    mark = _mark("observed_through", "advisory_ordinal")
    reached = f.col("advisory_ordinal").alias("reached")
    told = (
        watermarks.select(*LIFE, mark.alias("mark"), reached, f.col("rebuilt_at").alias("store"))
        .unionByName(ahead.select(*LIFE, reached), allowMissingColumns=True)
        .unionByName(advisories.select(*LIFE, "ordinal"), allowMissingColumns=True)
        .groupBy(*LIFE)
        .agg(
            f.min("mark").alias("mark"),
            f.min("reached").alias("reached"),
            f.min("ordinal").alias("ordinal"),
            f.max("store").alias("store"),
        )
        .withColumnRenamed("incarnation", "life")
    )
    last = _mark("last_observed_through", "last_advisory_ordinal")
    # What lay beyond known time counts ordinals too, and what counted more before an older store was put back.
    final, counted = f.col("advisory_ordinal"), f.col("most_advisory_ordinal")
    is_behind = (f.col("mark.through") <= f.col("last_observed_through")) & (f.col("mark") != last)
    late = is_behind | (f.col("reached") < final) | (f.col("ordinal") <= counted)
    # The first that is held says what came before it and is not missed: the next incarnations may be whole then.
    late |= f.col("ordinal").isNotNull() & f.col("counted_from").isNull() & (counted > 0)
    is_same_life = f.col("life") == f.col("incarnation")
    late_in_store = f.col("store").eqNullSafe(store()) & (f.col("mark.through") <= f.col("last_observed_through"))
    found = before.join(told, [*BLOCK]).where(f.when(is_same_life, late).otherwise(late_in_store))
    return found.select(*BLOCK).distinct()


def assumed_spans(after: DataFrame) -> DataFrame:
    """Give the spans between the first and the last plain Choria advisory of each block."""
    return (
        after.where("assumed_from IS NOT NULL")
        .groupBy(*BLOCK)
        .agg(
            f.min(f.unix_micros("assumed_from")).alias("started_at"),
            f.max(f.unix_micros("assumed_to")).alias("ended_at"),
        )
        .withColumn("cause", f.lit(Cause.ASSUMED))
    )


def first_words(after: DataFrame) -> DataFrame:
    """Begin every block's time with the first sighting that any advisory speaks of: an empty span."""
    return (
        after.where("first_word_at IS NOT NULL")
        .groupBy(*BLOCK)
        .agg(f.min(f.unix_micros("first_word_at")).alias("started_at"))
        .select(*BLOCK, "started_at", f.col("started_at").alias("ended_at"), f.lit(Cause.UNOBSERVED).alias("cause"))
    )


def _held(pages: DataFrame, before: DataFrame) -> DataFrame:
    """Give the ordinals that the hub holds: (life, ``page``, ``held``: a bit for each), a page's in one row.

    ``said_count`` counts the advisories that have them.
    """
    kept = before.select(*LIFE, f.explode("held_ordinals").alias("ordinal"))
    page, bit = _page(f.col("ordinal")).alias("page"), _bit(f.col("ordinal")).alias("held")
    bits = kept.select(*LIFE, page, bit, "ordinal", f.lit(1).cast("bigint"))
    new = pages.where("page IS NOT NULL").select(*LIFE, "page", "held", "first_held", "said_count")
    held = f.bit_or("held").alias("held"), f.min("first_held").alias("first_held")
    return new.unionAll(bits).groupBy(*LIFE, "page").agg(*held, f.sum("said_count").alias("said_count"))


def _told_twice(advisories: DataFrame, pages: DataFrame, before: DataFrame) -> DataFrame | None:
    """Give the first ordinal of each life that two advisories have (life, ``doubled_ordinal``); None: nearly always.

    ``before`` holds none of those that its own watermarks count: an advisory that comes as late is out of order.
    """
    is_doubled = f.col("said_count") > f.bit_count("held")
    lives = computed_once(_held(pages, before).where(is_doubled).select(*LIFE).distinct())
    if lives.isEmpty():
        return None
    kept = before.select(*LIFE, f.explode("held_ordinals").alias("ordinal"))
    ordinals = advisories.where("ordinal IS NOT NULL").select(*LIFE, "ordinal").unionAll(kept)
    return (
        ordinals.join(f.broadcast(lives), [*LIFE], "left_semi")
        .groupBy(*LIFE, "ordinal")
        .count()
        .where("count > 1")
        .groupBy(*LIFE)
        .agg(f.min("ordinal").alias("doubled_ordinal"))
    )


def _held_before() -> Column:
    """Count the ordinals up to ``advisory_ordinal`` that the hub holds, of a row of the table ``continuations``."""
    return _issued(f.col("advisory_ordinal")) - f.col("missing_count")


def _counted_from(through: Column, store: Column) -> Column:
    """Give the first ordinal that counts: of a store's first life, which ends first, the first that the hub holds."""
    is_first = through == f.min(through).over(Window.partitionBy(*BLOCK, store))
    return f.when(is_first, f.col("first_held")).otherwise(1)


def _missing_count(reached: Column, held_count: Column) -> Column:
    """Count the ordinals up to ``reached`` that count, and that the hub lacks; all, where it holds none of them."""
    return _issued(reached) - held_count


def _issued(reached: Column) -> Column:
    counted = f.when(_is_before_all(reached), 0)
    return counted.when(f.col("counted_from") <= reached, reached - f.col("counted_from") + 1).otherwise(reached)


def _is_before_all(reached: Column) -> Column:
    """Tell whether a watermark counts only what was issued before the first that the hub holds: nothing vouches."""
    return f.coalesce((reached > 0) & (f.col("counted_from") > reached), f.lit(False))


def store() -> Column:
    """Return the store that a row of the table ``continuations`` is of; null: its watermarks name none."""
    return f.array_max("lost_at")


def _page(ordinal: Column) -> Column:
    return f.shiftright(ordinal, PAGE_BITS)


def _bit(ordinal: Column) -> Column:
    return _shifted(1, ordinal)


def _later(held: Column, reached: Column) -> Column:
    """Take from a page's ``held`` the bits up to an ordinal of that page."""
    return held.bitwiseAND(_shifted(-2, reached))


def _shifted(bits: int, ordinal: Column) -> Column:
    """Shift ``bits`` to the place that an ordinal has in its page."""
    place = ordinal.bitwiseAND(f.lit((1 << PAGE_BITS) - 1)).cast("int")
    return f.call_function("shiftleft", f.lit(bits).cast("bigint"), place)


def _mark(through: str, reached: str) -> Column:
    """Give a watermark's place among its life's; null where there is none."""
    place = f.struct(f.col(through).alias("through"), f.col(reached).alias("reached"))
    return f.when(f.col(through).isNotNull(), place)
