"""Read what is wrong with an agent in all six places where people look, and hold them against each other.

``status`` (the page, and ``--json``), ``status --check``, ``doctor``, ``/readyz``, ``/metrics`` and the log.
"""

import asyncio
import json
import logging
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from edge_agent.observability.conditions import CATALOGUE, Severity
from edge_agent.observability.log_format import LineFormatter
from tests.support.agent.agent_process import AgentProcess
from tests.support.observability.exposition import parsed
from tests.support.waiting import until

Places = Mapping[str, frozenset[str]]
"""The names of the conditions that hold, by place; the log has its own reading."""


def asked(agent: AgentProcess, path: str) -> tuple[int, str]:
    """Ask the agent's monitor; 0 while nobody answers."""
    listen = re.search(r'listen = "(.*)"', agent.config.read_text())
    assert listen
    try:
        with urllib.request.urlopen(f"http://{listen[1]}{path}", timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


async def places(agent: AgentProcess) -> Places:
    """Read five places at once; fail where one contradicts itself."""
    settings = ("--config", str(agent.config))
    (_, told, _), (_, page, _), (code, check, _), (_, examined, _), ready, (_, metrics) = await asyncio.gather(
        agent.run_command("status", "--json", *settings),
        agent.run_command("status", *settings),
        agent.run_command("status", "--check", *settings),
        agent.run_command("doctor", "--json", *settings),
        asyncio.to_thread(asked, agent, "/readyz"),
        asyncio.to_thread(asked, agent, "/metrics"),
    )
    found = {
        "json": [each["name"] for each in json.loads(told or "{}").get("conditions", [])],
        "page": re.findall(r"\((\w+)(?: for [\w .]+)?\)$", page, re.MULTILINE),
        "check": re.findall(r"\((\w+)(?: for [\w .]+)?\)$", check, re.MULTILINE),
        "doctor": [each["condition"] for each in json.loads(examined)["findings"] if each["subject"] == "agent"],
        "readyz": [each["name"] for each in json.loads(ready[1] or "{}").get("conditions", [])],
        "metrics": [
            dict(labels)["condition"]
            for (name, labels), value in (parsed(metrics) if metrics else {}).items()
            if name == "muster_agent_condition" and value == 1
        ],
    }
    named = {place: frozenset(CATALOGUE.keys() & set(names)) for place, names in found.items()}
    assert (code == 0) == (check == "useful\n"), f"{check!r} with {code}"
    if ready[0]:
        assert (ready[0] == 200) == (not any(CATALOGUE[name].severity is Severity.ERROR for name in named["readyz"])), (
            ready
        )
    return named


def lines_of(agent: AgentProcess, name: str) -> list[tuple[str, str]]:
    """Give level and text of the log's lines about a condition, in order."""
    return re.findall(rf'level=(\w+) .*msg="(.*?)" .*condition={name}\b', agent.log)


async def shown(agent: AgentProcess, *names: str) -> None:
    """Wait until all six places show these conditions, and no place shows any that another does not."""

    def begun(name: str) -> bool:
        return any(level == "WARNING" for level, _ in lines_of(agent, name))

    await _agree(
        agent,
        lambda held: held.issuperset(names) and all(map(begun, names)),
        f"all six places show {', '.join(names)}",
    )
    _check_log(agent, names)


async def over(agent: AgentProcess, *names: str) -> None:
    """Wait until no place shows these conditions any more, and the log has one line for the end of each."""

    def ended(name: str) -> bool:
        return lines_of(agent, name)[-1][0] == "INFO"

    await _agree(
        agent, lambda held: held.isdisjoint(names) and all(map(ended, names)), f"no place shows {', '.join(names)}"
    )
    _check_log(agent, names)


async def _agree(agent: AgentProcess, holds: Callable[[frozenset[str]], bool], what: str) -> None:
    found: Places = {}

    async def is_so() -> bool:
        nonlocal found
        # All places together cost four programs: they are asked once the cheapest shows what is awaited.
        code, told = await asyncio.to_thread(asked, agent, "/readyz")
        if code and not holds(frozenset(each["name"] for each in json.loads(told).get("conditions", []))):
            return False
        found = await places(agent)
        return len(set(found.values())) == 1 and holds(found["json"])

    try:
        await until(is_so, what)
    except AssertionError as error:
        error.add_note(f"{found}\n{agent.log}")
        raise


def _check_log(agent: AgentProcess, names: tuple[str, ...]) -> None:
    """Let no line come twice; another reason that a link gives for the same trouble is told, too."""
    for name in names:
        began = [text for level, text in lines_of(agent, name) if level == "WARNING"]
        assert len(began) == len(set(began)), agent.log


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Write what an agent within this process logs as one of its own would."""
    handler = logging.FileHandler(path)
    handler.setFormatter(LineFormatter("text", {}))
    logger = logging.getLogger("muster.agent")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
        handler.close()
