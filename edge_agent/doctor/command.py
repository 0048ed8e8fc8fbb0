"""The command ``muster-agent doctor``, and how its findings are printed."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path

import click
import msgspec

from edge_agent.config import agent
from edge_agent.config.agent import AgentSettings, config_option
from edge_agent.doctor.agent import check_agent
from edge_agent.doctor.files import check_files
from edge_agent.doctor.finding import Finding, Level, bad
from edge_agent.doctor.pair import check_pair
from edge_agent.doctor.source import check_source
from edge_agent.doctor.upstream import check_upstream
from edge_agent.observability.conditions import SERVER_TOO_OLD
from shared.command_line.command_group import examples, json_option
from shared.command_line.tables import wrap_text
from shared.command_line.terminal import echo, json_text, width
from shared.settings import SettingsError

COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}
SUBJECT = 18
NARROWEST = 50
_LEVEL = 6


def render_finding(finding: Finding, width: int) -> tuple[str, str]:
    """Give the level of one finding, and its lines behind that, of ``width`` columns where its words allow.

    Subjects and paths stay whole.
    """
    indent = " " * (SUBJECT + 2)
    is_named = finding.condition in finding.text
    text = finding.text if is_named else f"{finding.text} ({finding.condition})"
    room = max(width, NARROWEST) - _LEVEL
    lines = wrap_text(text, room, f"{finding.subject:{SUBJECT}}  ", indent)
    if finding.remedy:
        lines += wrap_text(finding.remedy, room, f"{indent}-> ", f"{indent}   ")
    return f"{finding.level.name:{_LEVEL}}", f"\n{' ' * _LEVEL}".join(lines)


def summary(findings: Sequence[Finding]) -> str:
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    warnings = f"{counts[Level.WARN]} warning{'' if counts[Level.WARN] == 1 else 's'}"
    end = "" if counts[Level.WARN] + counts[Level.FAIL] else ": all well"
    return f"{counts[Level.FAIL]} failed, {warnings}, {counts[Level.OK]} passed{end}"


@click.command(
    epilog=examples("sudo -u muster-agent muster-agent doctor", "muster-agent doctor --json | jq '.findings[]'")
)
@config_option
@json_option
def doctor(config_path: Path, as_json: bool) -> None:
    """Look at settings, files, servers, streams, permissions, clocks and disk, and say what to do.

    Changes nothing. Ends with 0 where all is well, 1 after a warning, 2 after a failure.
    """
    findings = asyncio.run(_examine(config_path, None if as_json else width()))
    worst = max(finding.level for finding in findings)
    if as_json:
        said = [msgspec.structs.asdict(finding) | {"level": finding.level.name} for finding in findings]
        echo(json_text({"worst": worst.name, "findings": said}))
    else:
        echo(f"\n{summary(findings)}")
    sys.exit(worst)


async def _examine(config_path: Path, columns: int | None) -> Sequence[Finding]:
    """Collect the findings, and print each as it comes where there are ``columns`` to print in."""
    findings = []
    async with aclosing(examination(config_path)) as found:
        async for finding in found:
            findings.append(finding)
            if columns is not None:
                level, lines = render_finding(finding, columns)
                echo(lines, lead=level, colour=COLOURS[finding.level])
    return findings


def is_known_of_server(finding: Finding, above: Sequence[Finding]) -> bool:
    """Return True if a doubt about a server was found before, on another block's way to it."""
    return (
        finding.level is Level.WARN
        and finding.condition == SERVER_TOO_OLD.name
        and any((each.text, each.condition) == (finding.text, finding.condition) for each in above)
    )


async def examination(config_path: Path) -> AsyncGenerator[Finding, None]:
    """Yield all findings, the nearest first. The caller has to close the generator: connections may be open."""
    try:
        settings: AgentSettings = agent.load(config_path)
    except SettingsError as error:
        yield bad("settings", str(error), "correct the file; muster-agent check-config reads it too")
        return
    above: list[Finding] = []
    for finding in check_files(config_path, settings):
        above.append(finding)
        yield finding
    sources = (check_source(settings, block) for block in settings.stream)
    for visits in (*sources, check_pair(settings), check_upstream(settings)):
        async with aclosing(visits) as findings:
            async for finding in findings:
                if is_known_of_server(finding, above):
                    continue
                above.append(finding)
                yield finding
    # The last: what it has trouble with is explained by what has failed.
    for finding in check_agent(settings, above):
        yield finding
