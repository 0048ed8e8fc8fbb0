"""Lay findings out for a terminal."""

import textwrap
from collections.abc import Sequence

import click

from edge_agent.doctor.finding import Finding, Level

COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}
SUBJECT = 18
NARROWEST = 50
_LEVEL = 6


def render_finding(finding: Finding, width: int) -> str:
    """Give the lines of one finding, of ``width`` columns where its words allow: subjects and paths stay whole."""
    indent = " " * (SUBJECT + 2)
    is_named = finding.condition in finding.text
    text = finding.text if is_named else f"{finding.text} ({finding.condition})"
    lines = _wrapped(text, width, f"{finding.subject:{SUBJECT}}  ", indent)
    if finding.remedy:
        lines += _wrapped(finding.remedy, width, f"{indent}-> ", f"{indent}   ")
    level = click.style(f"{finding.level.name:{_LEVEL}}", fg=COLOURS[finding.level])
    return level + f"\n{' ' * _LEVEL}".join(lines)


def _wrapped(text: str, width: int, first: str, others: str) -> list[str]:
    return textwrap.wrap(
        text,
        max(width, NARROWEST) - _LEVEL,
        initial_indent=first,
        subsequent_indent=others,
        break_on_hyphens=False,
        break_long_words=False,
    )


def summary(findings: Sequence[Finding]) -> str:
    """Count the findings by level, in one line."""
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    warnings = f"{counts[Level.WARN]} warning{'' if counts[Level.WARN] == 1 else 's'}"
    end = "" if counts[Level.WARN] + counts[Level.FAIL] else ": all well"
    return f"{counts[Level.FAIL]} failed, {warnings}, {counts[Level.OK]} passed{end}"
