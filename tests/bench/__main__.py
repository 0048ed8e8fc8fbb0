"""Run the benchmarks: ``python -m tests.bench [--quick] [NAME ...]``.

Every measure runs next to its own yardstick, in turns, on the same server and the same messages: a machine's speed and
noise then cancel out of the ratio. Figures are medians of the turns.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import click

from tests.bench.agent_reading import bench_agent_reading
from tests.bench.report import Measure, print_measures
from tests.bench.tracker_rules import bench_tracker
from tests.bench.uploading import bench_uploading

Benchmark = Callable[[bool], Coroutine[Any, Any, list[Measure]]]

BENCHMARKS: dict[str, Benchmark] = {
    "tracker": bench_tracker,
    "reading": bench_agent_reading,
    "uploading": bench_uploading,
}


@click.command()
@click.option("--quick", is_flag=True, help="Fewer messages and turns: under two minutes.")
@click.argument("names", nargs=-1, type=click.Choice(sorted(BENCHMARKS)))
def main(quick: bool, names: Annotated[tuple[str, ...], "all when empty"]) -> None:
    """Run all benchmarks, or the named ones."""
    for name in names or BENCHMARKS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        print_measures(name, asyncio.run(BENCHMARKS[name](quick)))


if __name__ == "__main__":
    main()
