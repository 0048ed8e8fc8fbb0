"""The command ``muster-aggregator check``: one line and an exit code, for monitors and cron."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import click

from aggregator.topology.commands.streams import config_option
from aggregator.topology.desired.settings import TopologySettings
from aggregator.topology.desired.stream_settings import HUB_PLACE
from aggregator.topology.desired.streams import desired
from aggregator.topology.observed.connections import connections
from aggregator.topology.observed.reader import observe
from aggregator.topology.report.checks import Limits, check, summary
from aggregator.topology.report.evidence import gather
from aggregator.topology.report.findings import CheckFinding, CheckKind, CheckStatus
from aggregator.topology.report.tables import report
from shared.command_line.command_group import Parsed, examples, json_option
from shared.command_line.terminal import echo, json_text
from shared.instants import DAY, parse_duration
from shared.nats.expiry import expiry, own_ends
from shared.nats.jetstream_api import ApiError, RequestFailed
from shared.settings import SettingsError, load_settings

_Command = TypeVar("_Command", bound=Callable[..., object])


def _limits(text: str) -> tuple[int, int]:
    """Read two durations, ``1m,15m``: from where on there is a warning, and from where on it is critical."""
    try:
        warning, critical = (parse_duration(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is not two durations such as 1m,15m") from None
    if warning > critical:
        raise ValueError(f"{text!r} would be critical before it is a warning: the shorter one comes first")
    return warning, critical


def _limits_option(name: str, default: str, text: str) -> Callable[[_Command], _Command]:
    limits = Parsed("duration,duration", _limits)
    return click.option(name, default=default, show_default=True, type=limits, help=text)


@click.command("check", epilog=examples("muster-aggregator check", "muster-aggregator check --watermark 2m,10m --json"))
@config_option
@json_option
@_limits_option(
    "--silent", "15s,1m", "From where on it warns and is critical: how long a copy has not heard from its origin."
)
@_limits_option("--behind", "1m,15m", "Likewise: how long what a copy lacks has waited.")
@_limits_option("--watermark", "1m,5m", "Likewise: how old the last watermark of a site is.")
def check_command(
    config_path: Path, as_json: bool, silent: tuple[int, int], behind: tuple[int, int], watermark: tuple[int, int]
) -> None:
    """Say in one line whether anything is wrong: exit code 0 (nothing), 1 (a warning) or 2 (critical).

    Copies that are not heard from, lag behind, or fail; mirrors of what their origin was before; retention that reaches
    what no copy has taken; sites whose watermarks are missing, or that have not taken the hub's policy; advisories that
    are missing from the archive; agents that contradict each other.
    """
    limits = Limits(silent=silent, waiting=behind, watermark=watermark)
    found, line = asyncio.run(_checked(config_path, limits))
    if as_json:
        shown = [
            {
                "name": each.kind.stable_name,
                "severity": each.severity.name,
                "place": each.place,
                "text": each.text,
                "remedy": each.kind.remedy,
            }
            for each in found
        ]
        echo(json_text(shown))
    else:
        echo(line, prose=True)
    raise SystemExit(int(max((each.severity for each in found), default=CheckStatus.OK)))


def _expiring(topology: TopologySettings) -> Iterator[CheckFinding]:
    """Yield a finding for each file of the settings that expires soon, or has expired."""
    at, reported = time.time_ns() // 1000, set[str]()
    for place, connection in ({HUB_PLACE: topology.hub} | topology.servers).items():
        for whose, until in own_ends(connection):
            text = expiry(whose, until, at)
            if text and text not in reported:
                reported.add(text)
                yield CheckKind.EXPIRES.of(place, text, CheckStatus.CRITICAL if until <= at else CheckStatus.WARNING)


async def _checked(config_path: Path, limits: Limits) -> tuple[list[CheckFinding], str]:
    try:
        topology = load_settings(config_path, TopologySettings)
    except SettingsError as error:
        # Exit code 1 would be a warning to a monitor, and nothing at all is being watched.
        return [CheckKind.SETTINGS_WRONG.of("settings", str(error))], f"CRITICAL - {error}"
    wanted = desired(topology)
    async with connections(topology) as opened:
        found = await observe(wanted, opened)
        shown = report(wanted, found)
        try:
            evidence = await gather(topology, found, shown, opened, DAY)
        except (ApiError, RequestFailed) as error:
            return [CheckKind.HUB_UNREADABLE.of("hub", str(error))], f"CRITICAL - hub: {error}"
    judged = [*_expiring(topology), *check(topology, wanted, found, evidence, limits)]
    judged.sort(key=lambda each: -each.severity)
    return judged, summary(judged, shown, evidence)
