"""Lay out the demo's directory: settings as people write them, room for stores, tables and logs."""

import fcntl
import os
import shutil
from pathlib import Path
from typing import IO

from aggregator.demo import scenario
from aggregator.demo.scenario import REGIONS, SITES, Scenario
from shared.settings import quoted
from shared.truth import Truth, read_truth

_MARK = ".muster-demo"


class DirectoryTaken(Exception):
    """The directory holds what is not the demo's, or another demo runs in it. The text says what to do."""


class DemoDirectory:
    """Where everything of one run is: absolute paths below ``root``."""

    def __init__(self, root: Path) -> None:
        root = root.absolute()
        self.root = root
        self.topology_file = root / "topology.toml"
        self.aggregator_file = root / "aggregator.toml"
        self.tables = root / "tables"
        self.page = root / "report.html"
        self.logs = root / "logs"
        self._lock: IO[str] | None = None

    def prepare(self) -> bool:
        """Make it anew, and hold it until this process ends; tell whether a previous run was removed.

        Raise DirectoryTaken, or OSError where it cannot be made.
        """
        mark = self.root / _MARK
        if self.root.exists() and not mark.is_file() and (not self.root.is_dir() or any(self.root.iterdir())):
            raise DirectoryTaken(f"{self.root} holds something else than a demo: name another place with --dir")
        self.root.mkdir(parents=True, exist_ok=True)
        self._lock = mark.open("a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DirectoryTaken(f"another demo is running in {self.root}: wait for it, or use --dir") from None
        previous = [path for path in self.root.iterdir() if path != mark]
        for path in previous:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        for directory in (self.logs, *map(self.site, SITES)):
            directory.mkdir()
        return bool(previous)

    def site(self, site: str) -> Path:
        return self.root / site

    def server(self, name: str) -> Path:
        return self.root / "servers" / name

    def agent_file(self, site: str) -> Path:
        return self.site(site) / "agent.toml"

    def script_file(self, site: str) -> Path:
        return self.site(site) / "outages.toml"

    def truth_file(self, site: str) -> Path:
        return self.site(site) / "truth.jsonl"

    def truth(self, site: str) -> Truth:
        """Read what a site's simulator has written so far; raise TruthError, and OSError where it has not begun."""
        with self.truth_file(site).open("rb") as lines:
            return read_truth(lines)

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def write_settings(
        self, played: Scenario, hub_url: str, uplinks: dict[str, str], sites: dict[str, str], live: str
    ) -> None:
        """Write every settings file.

        ``uplinks`` are where agents find their regions, ``sites`` the sites' servers; ``live`` is where the live page
        is to be, as host and port.
        """
        self.topology_file.write_text(_topology(hub_url, sites))
        self.aggregator_file.write_text(_aggregator(played, hub_url, self.tables.relative_to(self.root), live))
        for site, region in SITES.items():
            self.agent_file(site).write_text(_agent(played, site, uplinks[region], sites[site]))
            self.script_file(site).write_text(played.script(site))


def shown(path: Path) -> str:
    """Write a path as a person in this directory would: relative where that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)


def _topology(hub_url: str, sites: dict[str, str]) -> str:
    regions = "".join(f"[[region]]\nname = {quoted(region)}\n\n" for region in REGIONS)
    tables = "\n".join(
        f"[[site]]\nname = {quoted(site)}\nregion = {quoted(SITES[site])}\nserver = {{ servers = [{quoted(url)}] }}\n"
        for site, url in sites.items()
    )
    return (
        "# Which streams there are, from the sites to the hub: muster-aggregator plan, apply and report read this.\n\n"
        f"[hub]\nservers = [{quoted(hub_url)}]\ndomain = {quoted(scenario.HUB)}\n\n{regions}{tables}"
    )


def _aggregator(played: Scenario, hub_url: str, tables: Path, live: str) -> str:
    soon = played.setting(scenario.INCIDENT_AFTER)
    return (
        "# Where the hub, the tables and the live page are: muster-aggregator serve, rollup and sql read this.\n\n"
        f"[hub]\nservers = [{quoted(hub_url)}]\ndomain = {quoted(scenario.HUB)}\n\n"
        f"[lakehouse]\npath = {quoted(tables)}\n"
        f'registration_interval = "{played.setting(scenario.REGISTRATION_INTERVAL)}"\n\n'
        f'[live]\nlisten = {quoted(live)}\npath = "live.db"\n'
        f'unknown_after = "{played.setting(scenario.UNKNOWN_AFTER)}"\n\n'
        f'[live.incidents]\nopen_after = "{soon}"\nunknown_after = "{soon}"\nclose_after = "{soon}"\n'
    )


def _agent(played: Scenario, site: str, upstream_url: str, source_url: str) -> str:
    return f"""\
# The agent of {site}. The intervals are those of the demo; in real life senders register every few minutes.

site = {quoted(site)}
region = {quoted(SITES[site])}
name = {quoted(f"{site}-a")}

[upstream]                       # the region's servers
servers = [{quoted(upstream_url)}]

[store]
path = "agent.db"

[watermark]
interval = "{played.setting(scenario.WATERMARK_INTERVAL)}"

[monitor]
listen = ""                      # no metrics over HTTP here

[[stream]]
name = {quoted(scenario.BLOCK)}

[stream.source]
servers = [{quoted(source_url)}]
stream = "REGISTRATION"
settle = "{played.setting(scenario.SETTLE)}"

[stream.sender]
json_path = "sender"

[stream.policy]                  # senders register every {played.length_text(scenario.REGISTRATION_INTERVAL)} here
sample_interval = "{played.setting(scenario.SAMPLE_INTERVAL)}"
stale_after = "{played.setting(scenario.STALE_AFTER)}"
retire_after = "{played.setting(scenario.RETIRE_AFTER)}"
blind_after = "{played.setting(scenario.BLIND_AFTER)}"
"""
