"""Mutation runner: ``make mutants`` applies each listed mutation to a copy of the tree, and expects a test to fail.

A mutation that no test notices is a rule without a test. The list is ``mutations.toml``: a file, the text that stands
there once, its replacement, and the tests that must fail. Exit status: 0 if each mutation was caught, 1 otherwise.
"""

import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from shared.command_line.terminal import echo

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutations.toml")
DEADLINE = 900.0


class Mutation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One wrong change of the product: ``find`` is replaced in ``file``; one of ``tests`` must fail."""

    name: str
    file: str
    find: str
    replace: str
    tests: list[str]

    def applied(self, text: str) -> str:
        """Return the text of the file with the mutation; raise ValueError if ``find`` is not there exactly once."""
        if text.count(self.find) != 1:
            raise ValueError(f"{self.name}: {self.file} contains {text.count(self.find)} times: {self.find!r}")
        return text.replace(self.find, self.replace)


def mutations() -> list[Mutation]:
    """Return the listed mutations."""
    return msgspec.convert(tomllib.loads(LIST.read_text())["mutation"], list[Mutation])


def is_caught(mutation: Mutation, tree: Path) -> bool:
    """Return True if a test fails in ``tree``, a copy of the checkout, while the mutation is applied."""
    place = tree / mutation.file
    original = place.read_text()
    place.write_text(mutation.applied(original))
    try:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutation.tests]
        run = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=DEADLINE, check=False)
    finally:
        place.write_text(original)
    # 1: a test failed. Anything else, such as a test file that is not there, proves nothing.
    if run.returncode not in (0, 1):
        raise RuntimeError(f"{mutation.name}: pytest ended with {run.returncode}:\n{run.stdout[-2000:]}{run.stderr}")
    return run.returncode == 1


def copied_tree(directory: str) -> Path:
    """Return a copy of the files that git knows or would add."""
    tree = Path(directory) / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
    return tree


def chosen(names: tuple[str, ...]) -> Iterator[Mutation]:
    """Yield each mutation with one of ``names`` in its name; without names, yield all."""
    for mutation in mutations():
        if not names or any(name in mutation.name for name in names):
            yield mutation


@click.command()
@click.argument("names", nargs=-1)
def main(names: tuple[str, ...]) -> None:
    """Run all listed mutations, or only those with one of NAMES in their name."""
    survivors = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        tree = copied_tree(directory)
        for mutation in chosen(names):
            caught = is_caught(mutation, tree)
            echo(f"{'caught' if caught else 'SURVIVED':9} {mutation.name}")
            survivors += [] if caught else [mutation.name]
    if survivors:
        echo(f"{len(survivors)} survived: {', '.join(survivors)}")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
