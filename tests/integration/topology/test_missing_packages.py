"""A command whose packages are not installed says in one line which they are and how to install them."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = "import sys; sys.path[:0] = sys.argv[1:3]; del sys.argv[1:3]; from aggregator.cli import main; main()"
SETTINGS = '[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = "tables"\n[live]\nlisten = "127.0.0.1:0"\n'


def run_without(package: str, directory: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    """Run a command with all packages of this environment but one."""
    packages = directory / "packages"
    packages.mkdir()
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if path.name.lower().partition("-")[0] != package and path.suffix != ".pth":
            (packages / path.name).symlink_to(path)
    (directory / "aggregator.toml").write_text(SETTINGS)
    return subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM, str(ROOT), str(packages), *command],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=directory,
        check=False,
    )


@pytest.mark.parametrize(
    ("package", "extra", "command"),
    [
        ("pyspark", "lakehouse", ("rollup",)),
        ("pyspark", "lakehouse", ("spark-sql",)),
        ("py4j", "lakehouse", ("rollup",)),
        ("starlette", "live", ("serve",)),
        ("prometheus_client", "live", ("serve",)),
        ("duckdb", "aggregator", ("sql", "SELECT 1")),
        ("pyiceberg", "aggregator", ("tables",)),
    ],
)
def test_a_missing_package_is_one_line_with_the_extra_that_brings_it(
    tmp_path: Path, package: str, extra: str, command: tuple[str, ...]
) -> None:
    run = run_without(package, tmp_path, *command)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith(f"muster-aggregator: this command needs {package}, which is not installed: ")
    assert f"pip install 'muster[{extra}]'" in run.stderr
    assert ("muster-aggregator-spark" in run.stderr) == (extra == "lakehouse")
    assert run.stderr.count("\n") == 1, run.stderr
