"""Judge every sender of a truth file by the tables as they stand."""

from pathlib import Path

import msgspec

from aggregator.catalog_settings import CatalogSettings
from aggregator.demo.comparison import Figures, Rules, Verdict, judge
from aggregator.demo.spans import common
from aggregator.demo.tables import longest_silence, read_senders
from shared.truth import Truth


class Judgement(msgspec.Struct, frozen=True):
    """The outcome: ``unwatched`` names the sites of the truth of which nothing is known in all of its time."""

    verdicts: list[Verdict]
    unwatched: list[str]


def judged(truth: Truth, warehouse: Path, catalog: CatalogSettings) -> Judgement:
    """Compare each sender; raise TablesUnreadable.

    Whoever was never heard, because it was never up for as long as a registration takes, is in no table and left out.
    """
    told = read_senders(warehouse, catalog)
    stale_after = longest_silence(warehouse, catalog)
    began_at, ended_at = truth.header.started_at_us, min(told.known_through, truth.through)
    watched = {site for site, known in told.known.items() if common(known, [(began_at, ended_at)])}
    nothing = Figures(())
    verdicts = [
        judge(
            truth,
            site,
            sender,
            told.figures.get((site, sender), nothing),
            Rules(tuple(told.known.get(site, ())), stale_after, ended_at),
        )
        for site, sender in truth.senders
    ]
    return Judgement(
        verdicts=[each for each in verdicts if each.observed or each.unmet],
        unwatched=sorted({site for site, _ in truth.senders} - watched),
    )
