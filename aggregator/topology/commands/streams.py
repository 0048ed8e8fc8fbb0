"""The commands ``plan``, ``apply`` and ``report`` of ``muster-aggregator``."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from aggregator.config import settings_option
from aggregator.terminal import clear_errors
from aggregator.topology.apply import ApplyFailed, NotTaken
from aggregator.topology.apply import apply as apply_plan
from aggregator.topology.desired.model import lines_by_place
from aggregator.topology.desired.settings import TopologySettings
from aggregator.topology.desired.streams import archiving_of, desired, is_beside_the_archive
from aggregator.topology.observed.connections import Connections, connections
from aggregator.topology.observed.reader import observe
from aggregator.topology.observed.state import Found
from aggregator.topology.plan.changes import Change, Plan
from aggregator.topology.plan.changes import plan as make_plan
from aggregator.topology.plan.text import (
    format_plan,
    left_lines,
    named,
    plan_as_json,
    step_lines,
    summary,
    untaken,
    warning_lines,
)
from aggregator.topology.report.graph import replication_graph
from aggregator.topology.report.tables import report as make_report
from aggregator.topology.report.text import format_report
from shared.command_line.command_group import CommandGroup, examples, json_option
from shared.command_line.terminal import echo, json_text, width
from shared.settings import SettingsError, load_settings
from shared.subjects import ROOT

DEFAULT_PATH = Path("topology.toml")

T = TypeVar("T")

config_option = settings_option(DEFAULT_PATH, "The topology's settings file.")
again_option = click.option(
    "--again",
    "again",
    metavar="REGION",
    multiple=True,
    help="Take once more all that this region's FLEET holds, where ARCHIVE lost some of it. Readers count it once.",
)


@click.command(epilog=examples("muster-aggregator plan", "muster-aggregator plan --again eu-west --json"))
@config_option
@again_option
@json_option
def plan(config_path: Path, again: tuple[str, ...], as_json: bool) -> None:
    """Show what apply would do to make the streams as the settings say."""
    topology = load(config_path)
    todo = asyncio.run(_connected(topology, _planning(topology, again)))
    echo(json_text(plan_as_json(todo)) if as_json else format_plan(todo), prose=not as_json)
    _end(todo.problems or todo.refused or todo.sealed)


@click.command(epilog=examples("muster-aggregator apply", "muster-aggregator apply --force"))
@config_option
@again_option
@click.option("--force", is_flag=True, help="Carry out also what loses messages or cuts a flow.")
@json_option
def apply(config_path: Path, again: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Make the streams as the settings say; doing it again does nothing."""
    topology = load(config_path)
    planned = _planning(topology, again)

    def tell(change: Change) -> None:
        if not as_json:
            echo(f"{change.place}: " + "\n".join(step_lines(change)), prose=True)

    async def applied(opened: Connections) -> tuple[Plan, tuple[NotTaken, ...]]:
        todo = await planned(opened)
        if todo.refused:
            raise click.ClickException(f"nothing was changed: {'; '.join(todo.refused)}")
        if todo.destructive and not force:
            losses = (f"{each.place}: {each.action} {named(each)}, which {each.destroys}" for each in todo.destructive)
            raise click.ClickException(f"nothing was changed, this asks for --force: {'; '.join(losses)}")
        with clear_errors(ApplyFailed):
            return todo, await apply_plan(todo, opened, tell)

    done, missed = asyncio.run(_connected(topology, applied))
    not_applied = [untaken(*each) for each in missed]
    if as_json:
        echo(json_text(plan_as_json(done) | {"not_applied": not_applied}))
    else:
        for line in (*lines_by_place(done.problems.items()), *left_lines(done), *warning_lines(done)):
            echo(line, prose=True)
        for line in not_applied:
            echo(f"not applied: {line}", prose=True)
        count = len(done.changes) - len(missed)
        echo(f"applied {count} change{'s' * (count != 1)}" if done.changes else summary(done))
    _end(done.problems or done.sealed or missed)


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    epilog=examples("muster-aggregator report", "muster-aggregator report --dot - | dot -Tsvg > streams.svg"),
)
@config_option
@json_option
@click.option(
    "--dot",
    "dot_path",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    help="Write what copies what for GraphViz into this file; - prints it instead of the tables.",
)
@click.pass_context
def report(context: click.Context, config_path: Path, as_json: bool, dot_path: Path | None) -> None:
    """Show how the streams are, and how far each copy has come."""
    if context.invoked_subcommand is not None:
        return
    topology = load(config_path)
    wanted = desired(topology)

    async def observed(opened: Connections) -> Found:
        return await observe(wanted, opened)

    found = make_report(wanted, asyncio.run(_connected(topology, observed)))
    if dot_path is not None and str(dot_path) != "-":
        _write(dot_path, replication_graph(found))
    if dot_path is not None and str(dot_path) == "-":
        echo(replication_graph(found).rstrip())
    else:
        echo(json_text(found) if as_json else format_report(found, width()), prose=not as_json)
    _end(not found.complete)


def load(config_path: Path) -> TopologySettings:
    """Read the settings; raise click.ClickException."""
    with clear_errors(SettingsError):
        return load_settings(config_path, TopologySettings)


def _planning(topology: TopologySettings, again: tuple[str, ...]) -> Callable[[Connections], Awaitable[Plan]]:
    """Give what makes the plan, with everything once more from the regions that ``again`` names."""
    wanted = desired(topology)
    regions = {region.name: region for region in topology.regions}
    for name in again:
        if name not in regions:
            known = ", ".join(regions) or "the settings name no region"
            raise click.UsageError(f"--again {name}: there is no such [[region]]: {known}")
        if is_beside_the_archive(topology, regions[name]):
            (_, archive), (_, fleet) = archiving_of(topology, regions[name])
            raise click.UsageError(
                f"--again {name}: it is in the hub's domain, where {archive} copies {fleet} as it is: give that source"
                f" another filter, such as {ROOT}.{name}.>, with nats stream edit {archive}, and all comes once more"
            )
    wanted_again = frozenset(archiving_of(topology, regions[name]) for name in again)

    async def plan(opened: Connections) -> Plan:
        found = await observe(wanted, opened, with_orphans=True)
        return make_plan(wanted, msgspec.structs.replace(found, again=wanted_again))

    return plan


async def _connected(topology: TopologySettings, work: Callable[[Connections], Awaitable[T]]) -> T:
    async with connections(topology) as opened:
        return await work(opened)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{path}: cannot be written: {error.strerror or error}") from error


def _end(incomplete: object) -> None:
    """Tell a script, by the exit code, that something did not answer or is not there."""
    if incomplete:
        raise SystemExit(1)
