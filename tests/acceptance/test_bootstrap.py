"""The environment of every make target is made once, and anew where it cannot work any more."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTIONS_PYTHON = "/usr/bin/python3"
PROJECT = """
[project]
name = "small"
version = "1"

[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
# What a builder has to do, at its smallest: nothing is fetched.
BACKEND = """
import zipfile

NAME = "small-1-py3-none-any.whl"

def build_editable(directory, settings=None, metadata=None):
    with zipfile.ZipFile(f"{directory}/{NAME}", "w") as wheel:
        wheel.writestr("small-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: small\\nVersion: 1\\n")
        wheel.writestr("small-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("small-1.dist-info/RECORD", "")
    return NAME
"""
# The host's Python was replaced by a newer one: what was installed for the old one is not there for it.
ANOTHER_PYTHON = """#!/bin/sh
case "$1" in
  -c) echo cpython-399 ;;
  *) exit 1 ;;
esac
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Give a clone of a project that needs nothing, with the real script."""
    clone = tmp_path / "clone"
    (clone / "packaging").mkdir(parents=True)
    shutil.copy(ROOT / "packaging" / "bootstrap.sh", clone / "packaging")
    (clone / "pyproject.toml").write_text(PROJECT)
    (clone / "backend.py").write_text(BACKEND)
    for lock in ("build", "dev", "older"):
        (clone / "packaging" / f"requirements-{lock}.txt").touch()
    return clone


def bootstrapped(clone: Path, **environment: str) -> str:
    """Run the script; give what it said."""
    environment = {**os.environ, "PYTHON": sys.executable, **environment}
    run = subprocess.run(
        [clone / "packaging" / "bootstrap.sh"],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stderr


def works(clone: Path) -> bool:
    """Tell whether its commands run, and find what is installed."""
    try:
        listed = subprocess.run([clone / ".venv" / "bin" / "pip", "list"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        # The interpreter that its first line names.
        return False
    return listed.returncode == 0 and "small" in listed.stdout


def test_an_environment_is_made_once_and_brought_up_to_date(clone: Path) -> None:
    assert "making .venv" in bootstrapped(clone)
    assert works(clone)
    assert bootstrapped(clone) == ""
    (clone / "packaging" / "requirements-dev.txt").write_text("# another content\n")
    assert "bringing .venv up to date" in bootstrapped(clone)
    assert works(clone)


def test_an_environment_whose_clone_was_moved_is_made_anew(clone: Path) -> None:
    bootstrapped(clone)
    moved = clone.rename(clone.with_name("moved"))
    assert not works(moved)
    assert "making .venv" in bootstrapped(moved)
    assert works(moved)
    assert bootstrapped(moved) == ""


def test_an_environment_whose_python_was_replaced_is_made_anew(clone: Path) -> None:
    bootstrapped(clone)
    python = clone / ".venv" / "bin" / "python"
    python.unlink()
    python.write_text(ANOTHER_PYTHON)
    python.chmod(0o755)
    assert "making .venv" in bootstrapped(clone)
    assert works(clone)
    assert bootstrapped(clone) == ""


def test_the_distributions_python_is_preferred_to_what_stands_beside_it(clone: Path, tmp_path: Path) -> None:
    if not can_make_environments(DISTRIBUTIONS_PYTHON):
        pytest.skip(f"{DISTRIBUTIONS_PYTHON} is not there, older than 3.11, or cannot make environments")
    beside, was_asked = tmp_path / "beside", tmp_path / "asked"
    beside.mkdir()
    (beside / "python3").write_text(f'#!/bin/sh\ntouch "{was_asked}"\nexec "{sys.executable}" "$@"\n')
    (beside / "python3").chmod(0o755)
    bootstrapped(clone, PYTHON="", PATH=f"{beside}:{os.environ['PATH']}")
    assert works(clone)
    assert not was_asked.exists()


def can_make_environments(python: str) -> bool:
    looks = "import ensurepip, sys, venv; assert sys.version_info >= (3, 11)"
    return (
        Path(python).exists() and not subprocess.run([python, "-c", looks], capture_output=True, check=False).returncode
    )
