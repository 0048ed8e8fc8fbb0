"""Read revisions of the policy out of archived messages: columns over what ``decode.py`` has read.

The rules are those of ``shared/policy.py``. Whom a revision is for stands in its subject alone.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from aggregator.archive.judgement import QuarantineReason
from aggregator.lakehouse.bronze.quarantine import sure
from aggregator.lakehouse.tables.policy import CANCEL_KIND, MAINTENANCE_KIND, POLICY
from shared.instants import EARLIEST, LATEST
from shared.policy import PROTOCOL, ROOT

_THRESHOLDS = ("sample_interval", "stale_after", "retire_after", "blind_after")
FIELDS = {
    "protocol": "STRING",
    "revision": "BIGINT",
    "stream_created_us": "BIGINT",
    "given_at_us": "BIGINT",
    "author": "STRING",
    "order": f"STRUCT<kind: STRING, thresholds: STRUCT<{', '.join(f'{name}: BIGINT' for name in _THRESHOLDS)}>,"
    " sender_id: STRING, started_at_us: BIGINT, ended_at_us: BIGINT, reason: STRING, sender_ids: ARRAY<STRING>,"
    " revision: BIGINT>",
}
_BODY, _ORDER = "policy.", "policy.order."


def is_policy(token: Column) -> Column:
    """Tell by its subject's tokens whether a message is a revision."""
    count, what = f.size(token), f.get(token, f.lit(3))
    of_region, of_site = (what == "region") & (count == 4), (what == "site") & count.isin(5, 6)
    return (token[0] == ROOT[0]) & (f.get(token, f.lit(1)) == ROOT[1]) & (of_region | of_site)


def scope(token: Column, is_revision: Column, otherwise: dict[str, Column]) -> dict[str, Column]:
    """Give region, site and block out of a revision's subject; of other messages what is given."""
    places = {"region": 2, "site": 4, "block": 5}
    return {
        name: f.when(is_revision, f.get(token, f.lit(place))).otherwise(otherwise[name])
        for name, place in places.items()
    }


def reason() -> Column:
    """Give the reason to quarantine a revision, null where there is none."""
    kind, started_at, ended_at = (f.col(_ORDER + name) for name in ("kind", "started_at_us", "ended_at_us"))
    sender_id, senders = f.col(_ORDER + "sender_id"), f.coalesce(_ORDER + "sender_ids", f.array())
    said = (
        f.when(kind == "thresholds", f.col(_ORDER + "thresholds").isNotNull())
        .when(kind.isin("forward", "retire"), f.length(sender_id) > 0)
        .when(kind == MAINTENANCE_KIND, (started_at < ended_at) & f.forall(senders, lambda each: f.length(each) > 0))
        .when(kind == CANCEL_KIND, f.col(_ORDER + "revision") > 0)
    )
    head = [f.col(_BODY + name) for name in ("revision", "stream_created_us", "author")]
    whole = (f.col(_BODY + "protocol") == PROTOCOL) & said
    for column in head:
        whole &= column.isNotNull()
    plausible = f.col(_BODY + "given_at_us").between(EARLIEST, LATEST)
    plausible &= (kind != MAINTENANCE_KIND) | (started_at.between(EARLIEST, LATEST) & (ended_at <= LATEST))
    return f.when(~sure(whole), QuarantineReason.NOT_DECODABLE).when(
        ~sure(plausible), QuarantineReason.IMPLAUSIBLE_INSTANT
    )


def given_at() -> Column:
    """Say when a revision was given."""
    return f.timestamp_micros(_BODY + "given_at_us")


def policy(decoded: DataFrame) -> DataFrame:
    """Give the rows of the table ``policy``."""
    named, one = f.col(_ORDER + "sender_ids"), f.col(_ORDER + "sender_id")
    senders = f.when(one.isNotNull(), f.array(one)).when(f.size(named) > 0, named)
    return decoded.where(f.col("table_name") == POLICY.name).select(
        _BODY + "revision",
        f.timestamp_micros(_BODY + "stream_created_us").alias("stream_created_at"),
        given_at().alias("given_at"),
        _BODY + "author",
        "region",
        "site",
        "block",
        _ORDER + "kind",
        *(f.col(f"{_ORDER}thresholds.{name}").alias(f"{name}_us") for name in _THRESHOLDS),
        senders.alias("sender_ids"),
        f.timestamp_micros(_ORDER + "started_at_us").alias("started_at"),
        f.timestamp_micros(_ORDER + "ended_at_us").alias("ended_at"),
        _ORDER + "reason",
        f.col(_ORDER + "revision").alias("cancelled_revision"),
        "hub_sequence",
        "archived_at",
    )
