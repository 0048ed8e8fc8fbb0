"""Judge every sender of a truth file by the tables as they stand."""

from pathlib import Path

from aggregator.demo.comparison import Figures, Rules, Verdict, judge
from aggregator.demo.tables import longest_silence, read
from shared.truth import Truth


def judged(truth: Truth, warehouse: Path) -> list[Verdict]:
    """Compare each sender; raise TablesUnreadable.

    Whoever was never heard, because it was never up for as long as a registration takes, is in no table and left out.
    """
    published = read(warehouse)
    stale_after = longest_silence(warehouse)
    ended_at = min(published.known_through, truth.through)
    nothing = Figures(())
    verdicts = [
        judge(
            truth,
            site,
            sender,
            published.figures.get((site, sender), nothing),
            Rules(tuple(published.known.get(site, ())), stale_after, ended_at),
        )
        for site, sender in truth.senders
    ]
    return [each for each in verdicts if each.observed or each.unmet]
