"""Look at what the agent itself says, as its store has it: does it run, is a part of it in trouble."""

from collections.abc import Collection, Iterator
from pathlib import Path

from edge_agent.config import AgentSettings
from edge_agent.doctor.finding import Finding, bad, doubtful, good
from edge_agent.inspection.moments import relative, rough
from edge_agent.status_board import UPSTREAM, block_of, now
from edge_agent.status_report import STARTS, Life, read_status
from edge_agent.store.reading import StoreDisplaced, StoreForbidden, StoreMissing, StoreUnreadable

UNEXPLAINED = "nothing above fails for it: mend what the reason names; if it lasts, look at that server's log"
_NEEDS = {UPSTREAM: "region", "policy": "region", "other member": "pair"}


def check_agent(settings: AgentSettings, failed: Collection[str] = ()) -> Iterator[Finding]:
    """Read the status that the agent writes every two seconds; ``failed`` are the subjects that have failed above."""
    path = Path(settings.store.path)
    try:
        report = read_status(path)
    except StoreUnreadable as error:
        yield _unshown(error)
        return
    agent = report.agent
    for concern in (*report.too_large, *report.warnings):
        yield doubtful("agent", concern.what, concern.remedy)
    if report.life is Life.STARTING:
        yield doubtful("agent", f"it is starting: {STARTS}", "wait, then look again; its log says what it does")
        return
    if report.life is Life.SILENT:
        text = f"process {agent.pid} is there, but has written nothing for {rough(now() - agent.written_at)}"
        remedy = f"make room where its disk is full, or end what keeps {path} locked (fuser -v {path}); else it hangs:"
        yield bad("agent", text, f"{remedy} kill -9 it and start it, nothing is lost")
        return
    if report.life is Life.STOPPED:
        yield doubtful("agent", f"stopped {relative(agent.stopped_at, now())}, as it was told", "start it")
        return
    if not report.is_running:
        text = f"not running, last sign of life {relative(agent.written_at, now())}: killed or crashed"
        yield doubtful("agent", text, "look at its log, then start it")
        return
    if (agent.region, agent.site) != (settings.region, settings.site):
        text = f"it runs as site {agent.site} of region {agent.region}, not as these settings say"
        yield doubtful("agent", text, "start it anew, or name the settings that it runs with")
    troubled = {name: part for name, part in report.parts.items() if part.reason}
    for name, part in troubled.items():
        remedy = "see above" if failed_for(name, failed) else UNEXPLAINED
        yield doubtful("agent", f"{name}: {part.phase} for {rough(now() - part.since)}: {part.reason}", remedy)
    if not troubled:
        yield good("agent", f"running for {rough(now() - agent.started_at)}, all its parts do their work")


def failed_for(part: str, failed: Collection[str]) -> bool:
    """Tell whether what failed is something that a part of the agent needs.

    >>> failed_for("upstream", ["region"]), failed_for("probe of nodes", ["source of other", "region"])
    (True, False)
    """
    block = block_of(part)
    needed = {f"source of {block}", f"settings of {block}"} if block else {_NEEDS.get(part, part)}
    return not {*needed, "disk", "store", "secrets"}.isdisjoint(failed)


def _unshown(error: StoreUnreadable) -> Finding:
    if isinstance(error, StoreDisplaced):
        text, _, remedy = str(error).partition("; ")
        return bad("agent", text, remedy)
    if isinstance(error, StoreMissing):
        return doubtful("agent", "it has not run on this store yet", "start it: muster-agent run")
    if isinstance(error, StoreForbidden):
        return doubtful("agent", str(error), "run the doctor as the agent's user")
    text, _, remedy = str(error).rpartition("; ")
    return doubtful("agent", text, remedy)
