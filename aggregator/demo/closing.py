"""Say at the end where everything is, and which commands to try next."""

from typing import Final

from aggregator.demo.directory import DemoDirectory, shown
from aggregator.demo.scenario import BEHIND_THE_CUT
from aggregator.demo.story import Story, Tone, muster, typed

QUERIES: Final = (
    "SELECT site, sender_id, started_at, ended_at, ended_by FROM outages ORDER BY started_at LIMIT 10",
    "SELECT site, started_at, ended_at, known, cause FROM site_coverage ORDER BY site, started_at",
    "SELECT * FROM sender_availability_daily ORDER BY availability_known LIMIT 10",
    "SHOW TABLES",
)


def tell_where_it_is(story: Story, directory: DemoDirectory, *, kept: bool) -> None:
    """Print it; ``kept`` tells whether the demo ended well."""
    story.text()
    if kept:
        story.text("SUCCESS: every promise was kept.", Tone.GOOD)
    else:
        story.text(
            f"FAILED: see above. {shown(directory.logs)}/ has what agents, fleets and servers said; if the fleets'"
            " registrations were late by seconds, this machine was too busy to tell.",
            Tone.BAD,
        )
    story.text()
    story.raw(f"  page    file://{directory.page.absolute()}")
    story.raw(f"  tables  {shown(directory.tables)}/ (Apache Iceberg)")
    story.raw(f"  logs    {shown(directory.logs)}/")
    story.text()
    story.text("Try next:", Tone.STRONG)
    config = ("--config", directory.aggregator_file)
    for query in QUERIES:
        story.raw("  " + typed(muster("muster-aggregator", "sql", *config)) + " \\", Tone.COMMAND)
        story.raw("      " + typed([query]), Tone.COMMAND)
    story.raw(
        "  " + typed(muster("muster-agent", "status", "--config", directory.agent_file(BEHIND_THE_CUT))), Tone.COMMAND
    )
