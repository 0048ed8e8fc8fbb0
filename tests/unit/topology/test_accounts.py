"""Streams of other accounts: where they are asked for, what is copied through which API, and how reports find it."""

import pytest

from aggregator.topology.desired.model import DesiredStream, Place
from aggregator.topology.desired.streams import desired
from aggregator.topology.observed.state import External, Replication, StreamState
from aggregator.topology.report.graph import replication_graph
from aggregator.topology.report.tables import report
from shared.settings import SettingsError
from tests.support.topology.topologies import HUB_PLACE, applied, as_applied, topology, with_state

IMPORTER = Place("IMPORTER", "hub")
ACCOUNT = """
    [[account]]
    name = "IMPORTER"
    server = { servers = ["nats://hub:4222"], domain = "hub" }
"""
AGGREGATE = """
    [[stream]]
    name = "aggregate"
    subjects = ["test"]
"""
COPY = """
    [[stream]]
    name = "crossacc"
    place = "IMPORTER"
    [stream.mirror]
    name = "aggregate"
    place = "hub"
    api = "JS.test@hub.API"
    deliver = "deliver.importer.crossacc"
"""


def test_a_copy_across_accounts_reads_through_the_imported_api() -> None:
    wanted = desired(topology(ACCOUNT + AGGREGATE + COPY))[-1]
    assert isinstance(wanted, DesiredStream)
    assert wanted.place == IMPORTER
    assert wanted.config["mirror"]["external"] == {"api": "JS.test@hub.API", "deliver": "deliver.importer.crossacc"}
    assert [(origin.place, origin.name) for origin in wanted.origins] == [(HUB_PLACE, "aggregate")]


def test_its_origin_is_found_in_the_other_account_and_drawn() -> None:
    wanted = desired(topology(ACCOUNT + AGGREGATE + COPY))
    found = as_applied(wanted)
    with_state(found, HUB_PLACE, "aggregate", StreamState(messages=70, last_seq=70))
    with_state(
        found,
        IMPORTER,
        "crossacc",
        StreamState(messages=60, last_seq=60),
        Replication("aggregate", External("JS.test@hub.API"), active=1_000_000, seq=60),
    )
    made = report(wanted, found)
    row = next(row for row in made.replication if row.stream == "crossacc")
    assert (row.source_place, row.origin_last, row.behind) == ("hub", 70, 10)
    assert r'"hub/aggregate" -> "IMPORTER/crossacc" [label="source\nJS.test@hub.API\nbehind 10"];' in replication_graph(
        made
    )


def test_an_origin_in_another_account_that_was_restored_is_noticed() -> None:
    text = ACCOUNT + AGGREGATE + COPY.replace("[stream.mirror]", "[[stream.source]]")
    wanted, found = desired(topology(text)), applied(text)
    with_state(found, HUB_PLACE, "aggregate", StreamState(messages=50, last_seq=50))
    copied = Replication("aggregate", External("JS.test@hub.API"), active=1_000_000, seq=60)
    with_state(found, IMPORTER, "crossacc", StreamState(messages=60, last_seq=60), copied)
    assert [row.beyond for row in report(wanted, found).replication if row.stream == "crossacc"] == [10]
    found.unreachable[HUB_PLACE] = "nobody answers"
    assert [row.beyond for row in report(wanted, found).replication if row.stream == "crossacc"] == [0]


def test_an_origin_whose_place_is_not_said_is_not_asked_for() -> None:
    wanted = desired(topology(ACCOUNT + COPY.replace('place = "hub"', "")))[-1]
    assert isinstance(wanted, DesiredStream)
    assert wanted.origins == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (COPY, "'crossacc' is placed at 'IMPORTER': neither 'hub', nor a region"),
        (ACCOUNT + COPY.replace('place = "hub"', 'place = "nowhere"'), "is placed at 'nowhere'"),
        (ACCOUNT + COPY.replace('deliver = "deliver.importer.crossacc"', ""), "api and deliver belong together"),
        (ACCOUNT + COPY.replace('place = "hub"', 'domain = "hub"'), "domain and api exclude each other"),
        (ACCOUNT + COPY.replace('api = "JS.test@hub.API"', "").replace("deliver =", "filter_subject ="), "place says"),
        (ACCOUNT.replace("IMPORTER", "eu-west"), "place 'eu-west' stands here more than once"),
        (ACCOUNT * 2, "place 'IMPORTER' stands here more than once"),
    ],
)
def test_what_does_not_fit_is_said(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        topology(text)


def test_a_transform_without_a_destination_only_filters() -> None:
    source = """
    [[stream]]
    name = "SOME"
    [[stream.source]]
    name = "ARCHIVE"
    transforms = [{ source = "fleet.*.*.*.watermark" }]
    """
    wanted = desired(topology(source))[-1]
    assert isinstance(wanted, DesiredStream)
    assert wanted.config["sources"][0]["subject_transforms"] == [{"src": "fleet.*.*.*.watermark", "dest": ""}]
