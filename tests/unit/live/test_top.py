"""At a narrow terminal each site and each incident stays one line, whatever its name."""

from aggregator.fleet.commands.top import incident_table, site_table
from aggregator.live.alerts.incidents import Incident, IncidentCause
from aggregator.live.api import Counts, SiteView, State, UnknownReason
from shared.instants import SECOND

AT = 1_795_723_787 * SECOND
NAMES = "dub1", "a-rather-long-name-of-a-site-" * 2 + "42"


def seen(name: str) -> SiteView:
    counts, reason = Counts(unknown=1_000), UnknownReason.ORDINALS_MISSING
    return SiteView(
        region="eu-west", site=name, state=State.UNKNOWN, counts=counts, reason=reason, since_us=AT, known_until_us=AT,
        changed_at_us=AT, blocks=(),
    )  # fmt: skip


def incident(name: str, clear_since: int | None = None) -> Incident:
    return Incident(
        incident_id=name, region="eu-west", site=name, cause=IncidentCause.STALE, reason="", started_at_us=AT,
        known_until_us=AT, node_count=230, expected_count=230, most_count=230,
        nodes=("\x1b[2J" + "web1" * 40, "web2", "web3"), clear_since_us=clear_since,
    )  # fmt: skip


def test_each_row_is_one_line_of_the_terminal() -> None:
    sites, incidents = [seen(name) for name in NAMES], [incident(name, AT) for name in NAMES]
    for width in (60, 80, 120):
        for table in (site_table(sites, width), incident_table(incidents, width)):
            rows = [line for line in table.splitlines() if "eu-west." in line]
            assert len(rows) == 2
            assert max(map(len, rows)) <= width


def test_nodes_are_named_where_there_is_room() -> None:
    assert "NODES" in incident_table([incident("dub1")], 80)
    assert "\\x1b[2Jweb1web1" in incident_table([incident("dub1")], 120)
    assert "NODES" not in incident_table([incident(NAMES[1])], 80)
