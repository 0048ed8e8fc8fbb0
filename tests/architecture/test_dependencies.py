"""What is imported is declared: nothing relies on what another package happens to bring."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
OURS = {"aggregator", "edge_agent", "shared", "tests"}
EXTRAS = {
    "edge_agent": (),
    "shared": (),
    "aggregator": ("aggregator", "lakehouse", "live", "demo"),
    "tests": ("aggregator", "lakehouse", "live", "demo", "dev"),
}


def declared(extras: tuple[str, ...]) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    return {canonicalize_name(Requirement(line).name) for line in lines}


def imported(folder: str) -> dict[str, Path]:
    """Give each package that is imported from elsewhere, with a file that does so."""
    return {
        name: path
        for path in (ROOT / folder).rglob("*.py")
        for name in modules_of(path)
        if name not in sys.stdlib_module_names and name not in OURS
    }


def modules_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names):
                yield from (name.name.split(".")[0] for name in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.split(".")[0]


@pytest.mark.parametrize("folder", EXTRAS)
def test_every_package_that_is_imported_is_declared(folder: str) -> None:
    found, distributions, named = imported(folder), packages_distributions(), declared(EXTRAS[folder])
    assert "msgspec" in found
    lacking = {
        name: str(path.relative_to(ROOT))
        for name, path in found.items()
        if not named.intersection(map(canonicalize_name, distributions.get(name, [name])))
    }
    assert lacking == {}
