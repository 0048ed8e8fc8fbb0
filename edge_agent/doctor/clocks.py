"""Check of clocks: site, region and this host against each other, and the site's against observed time."""

from collections.abc import Iterator

from edge_agent.config.agent import AgentSettings
from edge_agent.config.stream import StreamSettings
from edge_agent.doctor.finding import Finding, bad, good, warning
from edge_agent.doctor.visit import open_visit
from edge_agent.inspection.blocks import KnownBlock
from edge_agent.observability import conditions as kinds
from edge_agent.observability.clocks import Clocks, RegionClock
from edge_agent.observability.status_board import now
from shared.instants import MINUTE, SECOND, format_duration, format_instant
from shared.nats.connection import ConnectFailed

TOLERANCE = 2 * SECOND
_STANDS_STILL = (
    "if it is wrong now, set it right; else it was ahead: wait until it shows that time, or give up what was observed "
    "(the manual's page on clocks, STANDING STILL)"
)


def offset_of(server_at: int, asked_at: int, answered_at: int) -> int:
    """Return how far a server's clock is ahead of this host's, read before and after the question."""
    return 0 if asked_at <= server_at <= answered_at else server_at - (asked_at + answered_at) // 2


def region_clock(name: str, offset: int) -> Finding:
    """Return a finding about the clock of the region's server relative to this host's."""
    if abs(offset) <= TOLERANCE:
        return good(name, f"its clock agrees with this host's within {format_duration(TOLERANCE)}")
    text = f"its clock is {_relative(offset)} this host's"
    remedy = "synchronise both (chrony): beside it, a site's clock is followed to source.max_clock_ahead"
    return warning(name, text, remedy)


async def region_offset(settings: AgentSettings) -> int | None:
    """Return how far the region's clock is ahead of this host's; None if unknown."""
    clocks = Clocks()
    try:
        async with open_visit(settings, settings.upstream) as visit:
            await RegionClock(visit.client, settings, clocks).hear()
    except ConnectFailed:
        return None
    return None if clocks.region is None else clocks.region - now()


def source_clock(name: str, block: StreamSettings, offset: int, region: int | None) -> Finding:
    """Return a finding about the clock of a site's server relative to the other two, and which of them is wrong.

    ``offset`` is how far it is ahead of this host's, ``region`` how far the region's is.
    """
    max_ahead = 0 if block.mode == "copy" else int(block.source.max_clock_ahead)
    if abs(offset) <= TOLERANCE:
        return good(name, f"its clock agrees with this host's within {format_duration(TOLERANCE)}")
    text = f"its clock is {_relative(offset)} this host's"
    if region is None:
        text += "; the region's is not known"
        wrong = "whichever of the two is wrong (chrony)"
    elif abs(region) <= MINUTE:
        text += ", and the region's agrees with this host's"
        wrong = "the site's server's clock (chrony): two of three say that it is wrong"
    elif abs(region - offset) <= MINUTE:
        text += ", and agrees with the region's"
        wrong = "this host's clock (chrony): two of three say that it is wrong"
    else:
        text += f", and {_relative(offset - region)} the region's: no two agree"
        wrong = "all three (chrony)"
    if max_ahead and region is not None and offset > max(region, 0) + max_ahead:
        limit = format_duration(max_ahead)
        text = f"CLOCK AHEAD: {text}; beyond {limit} it is not followed: no time passes, and nobody falls stale"
        return bad(
            name, text, f"set {wrong}; where the site's is meant so, raise source.max_clock_ahead", kinds.CLOCK_AHEAD
        )
    remedy = f"set {wrong}; within source.max_clock_ahead decisions go by the site's all the same"
    return warning(name, text, remedy)


def standstill(name: str, block: StreamSettings, known: KnownBlock | None, server_at: int) -> Iterator[Finding]:
    """Return the finding that the agent stands still, since the site's clock shows times observed before."""
    if block.mode != "sample" or known is None:
        return
    state = known.state
    behind = state.observed_through - server_at
    if behind > state.policy.blind_after:
        shown = format_instant(state.observed_through - state.observed_through % SECOND)
        text = (
            f"STANDING STILL: its clock is {format_duration(behind)} behind what it had shown before ({shown}): until "
            "then no time passes, and nobody falls stale"
        )
        yield bad(name, text, _STANDS_STILL, kinds.STANDING_STILL)


def _relative(offset: int) -> str:
    return f"{format_duration(abs(offset))} {'ahead of' if offset > 0 else 'behind'}"
