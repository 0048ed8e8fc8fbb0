"""Run the benchmarks: ``python -m tests.bench [--quick] [--peer PATH] [MEASURE ...]``.

Servers and programs are real processes, their files on disk. Where the peer runs too, it runs in the same run, on the
same servers and the same messages, in turns: the machine's speed cancels out of the ratio. A figure never fails a run;
lost records do.
"""

import asyncio
import os
import platform
import random
import shutil
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import click
import uvloop

from tests.bench.measures import (
    accuracy,
    backlog,
    copying,
    distance,
    lakehouse,
    lakehouse_import,
    lakehouse_runs,
    lakehouse_sites,
    lakehouse_year,
    live,
    million,
    pair,
    sampling,
    silence,
    stalled_link,
    steady,
    tracker_rules,
    year,
)
from tests.bench.report import RecordsLost, Report, Table, render, write_json
from tests.bench.stage import Options

Measure = Callable[[Options], Coroutine[Any, Any, Table]]

MEASURES: dict[str, Measure] = {
    **copying.MEASURES,
    **distance.MEASURES,
    **sampling.MEASURES,
    **million.MEASURES,
    **live.MEASURES,
    **pair.MEASURES,
    **steady.MEASURES,
    **silence.MEASURES,
    **stalled_link.MEASURES,
    **accuracy.MEASURES,
    **backlog.MEASURES,
    **tracker_rules.MEASURES,
    **year.MEASURES,
}
LAKEHOUSE: dict[str, Measure] = {
    **lakehouse_runs.MEASURES,
    **lakehouse.MEASURES,
    **lakehouse_sites.MEASURES,
    **lakehouse_year.MEASURES,
    **lakehouse_import.MEASURES,
}
LONGER = ("pair", "accuracy", "probes", "live-100k", "live-10k", "live-hour", "year")
"""Spark's start, a pair's, real troubles and quiet would each take a third of what the quick run may take."""
GROUPS = {"lakehouse": tuple(LAKEHOUSE)}
ROOT = Path(__file__).resolve().parents[2]
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")


@click.command()
@click.option("--quick", is_flag=True, help="Small sizes, one turn: the agent in two minutes; figures mean little.")
@click.option("--peer", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A built stream-replicator.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write a file, too.")
@click.option("--directory", type=click.Path(path_type=Path), default=ROOT / "build" / "bench", help="On a real disk.")
@click.option("--backlog", "backlog_size", type=click.IntRange(min=100), help="Messages of the measure backlog.")
@click.option("--scale", type=click.FloatRange(min=0.0001), default=1.0, help="Share of the lakehouse's full sizes.")
@click.option("--seed", type=click.IntRange(min=0), help="What accuracy plays; drawn where not given.")
@click.argument("measures", nargs=-1, type=click.Choice([*MEASURES, *GROUPS, *LAKEHOUSE]))
def main(
    *,
    quick: bool,
    peer: Path | None,
    json_path: Path | None,
    directory: Path,
    backlog_size: int | None,
    scale: float,
    seed: int | None,
    measures: tuple[str, ...],
) -> None:
    """Run all measures, or the named ones; lakehouse names all of its own. --quick leaves out what takes longer."""
    options = Options(
        is_quick=quick,
        peer=peer.absolute() if peer else None,
        directory=directory.absolute(),
        backlog=backlog_size or (100_000 if quick else 10_000_000),
        scale=scale,
        seed=random.randrange(1_000_000) if seed is None else seed,
    )
    machine = _machine(options)
    print("; ".join(f"{name}: {value}" for name, value in machine.items()))
    if quick:
        print("quick: small sizes and one turn each, to see that everything runs; the figures mean little")
    tables: list[Table] = []
    failures = 0
    everything = [name for name in MEASURES if name not in LONGER] if quick else [*MEASURES, *LAKEHOUSE]
    wanted = [each for named in measures for each in GROUPS.get(named, (named,))]
    for name in wanted or everything:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                table = runner.run({**MEASURES, **LAKEHOUSE}[name](options))
        except RecordsLost as error:
            failures += 1
            print(f"\n{name}: RECORDS LOST: {error}", flush=True)
            continue
        tables.append(table)
        print(render(table), flush=True)
        if json_path is not None:
            write_json(json_path, Report(machine, quick, tables))
    if failures:
        sys.exit(1)


def _machine(options: Options) -> dict[str, str]:
    options.directory.mkdir(parents=True, exist_ok=True)
    return {
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "load before": f"{os.getloadavg()[0]:.1f}",
        "Python": platform.python_version(),
        "directory": f"{options.directory} ({_file_system(options.directory)}, {_free(options.directory)} GB free)",
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _free(directory: Path) -> int:
    return shutil.disk_usage(directory).free // 10**9


def _file_system(directory: Path) -> str:
    """Name the kind of file system, and say when it is none on a disk: servers there are faster than any real one."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    holding = [(point, kind) for point, kind in mounts if directory.is_relative_to(point)]
    kind = max(holding, key=lambda each: len(each[0]))[1]
    return f"{kind}, NOT A DISK" if kind in MEMORY_FILE_SYSTEMS else kind


if __name__ == "__main__":
    main()
