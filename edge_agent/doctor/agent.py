"""Check of the agent's own status in its store: does it run, is a part of it in trouble."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import msgspec

from edge_agent.config.agent import AgentSettings
from edge_agent.delivery.name_fence import NamePhase
from edge_agent.doctor.finding import Finding, Level, bad, good, warning
from edge_agent.inspection.moments import rough
from edge_agent.observability.conditions import NOT_RUNNING, STARTING, STORE_MOVED, Condition
from edge_agent.observability.health import NAMES, block_of, of_parts
from edge_agent.observability.status_board import UPSTREAM, now
from edge_agent.observability.status_report import read_status
from edge_agent.store.read_only import StoreDisplaced, StoreForbidden, StoreMissing, StoreUnreadable

_STREAM = "stream "
_NEEDS = {UPSTREAM: "region", "policy": "region", "other member": "pair"}


def check_agent(settings: AgentSettings, above: Sequence[Finding] = ()) -> Iterator[Finding]:
    """Check the status that the agent writes every two seconds; ``above`` are the earlier findings."""
    path = Path(settings.store.path)
    try:
        report = read_status(path)
    except StoreUnreadable as error:
        yield _unshown(error)
        return
    agent = report.agent
    if report.is_running and (agent.region, agent.site) != (settings.region, settings.site):
        text = f"it runs as site {agent.site} of region {agent.region}, not as these settings say"
        yield warning("agent", text, "start it anew, or name the settings that it runs with")
    held = {(condition.name, condition.subject) for condition in report.conditions}
    parts = of_parts(report.parts, now(), with_patience=False) if report.is_running else ()
    soon = [condition for condition in parts if (condition.name, condition.subject) not in held]
    for condition in report.conditions:
        yield _finding_of(condition, above, has_failed=bool(agent.failure))
    for condition in soon:
        yield msgspec.structs.replace(_finding_of(condition, above), level=Level.WARN, condition="")
    names = report.parts.get(NAMES)
    if report.is_running and names and names.phase == NamePhase.UNWATCHED:
        yield good("agent", f"names {names.phase}: {names.reason}")
    if not report.conditions and not soon:
        yield good("agent", f"running for {rough(now() - agent.started_at)}, nothing is wrong with it")


def _finding_of(condition: Condition, above: Sequence[Finding], *, has_failed: bool = False) -> Finding:
    """Return the finding of a condition: a failure if the agent is not useful, but was not stopped and does not start.

    An agent that ``has_failed`` ended by an error of its own.
    """
    remedy = "see above" if is_explained(condition, above) else condition.remedy
    text = f"{condition.text} ({condition.lasted(now())})"
    is_expected = condition.name == STARTING.name or (condition.name == NOT_RUNNING.name and not has_failed)
    level = Level.WARN if not condition.is_error or is_expected else Level.FAIL
    return Finding(level, "agent", text, remedy, condition.name)


def is_explained(condition: Condition, above: Sequence[Finding]) -> bool:
    """Return True if an earlier finding says the same, or names a failure that explains this one."""
    if any(each.condition == condition.name and block_of(each.subject) == condition.stream for each in above):
        return True
    # A warning about a stream has a cause of its own, other than its reading.
    is_of_part = condition.is_error or not condition.subject.startswith(_STREAM)
    return is_of_part and failed_for(condition.subject, {each.subject for each in above if each.level is Level.FAIL})


def failed_for(part: str, failed: Collection[str]) -> bool:
    """Return True if a failed check concerns something that a part of the agent needs.

    >>> failed_for("upstream", ["region"]), failed_for("probe of nodes", ["source of other", "region"])
    (True, False)
    """
    block = block_of(part)
    needed = {f"source of {block}", f"settings of {block}"} if block else {_NEEDS.get(part, part)}
    return not {*needed, "disk", "store", "secrets"}.isdisjoint(failed)


def _unshown(error: StoreUnreadable) -> Finding:
    if isinstance(error, StoreDisplaced):
        text, _, remedy = str(error).partition("; ")
        return bad("agent", text, remedy, STORE_MOVED)
    if isinstance(error, StoreMissing):
        return warning("agent", "it has not run on this store yet", "start it: muster-agent run")
    if isinstance(error, StoreForbidden):
        return warning("agent", str(error), "run the doctor as the agent's user")
    text, _, remedy = str(error).rpartition("; ")
    return warning("agent", text, remedy)
