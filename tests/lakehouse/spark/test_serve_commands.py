"""A server that cannot start, or should not, says why in one line. Spark itself is not reached here."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from aggregator.lakehouse.tables.schemas import SENDER_INTERVALS
from tests.support.lakehouse.small_lakehouse import SmallLakehouse
from tests.support.nats.free_ports import free_ports
from tests.support.other_user import OTHER, command_as

TOKEN = "0123456789abcdef" * 2

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="another user's server is started by root alone")


@pytest.fixture
def place() -> Iterator[Path]:
    """Give a directory that everybody may read, unlike pytest's, with tables and a token."""
    with TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        SmallLakehouse(place / "lake").append(SENDER_INTERVALS, [{"sender_id": "a"}])
        (place / "token").write_text(TOKEN)
        (place / "token").chmod(0o600)
        yield place


def serve(place: Path, *options: str, settings: str = "", user: int | None = OTHER) -> str:
    """Run the server until it ends by itself, with its place as its home; give the line that it ends with."""
    config = place / "aggregator.toml"
    config.write_text(f'[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = "lake"\n{settings}')
    if user is not None:
        os.chown(place / "token", user, user)
    (port,) = free_ports(1)
    given = ["--config", str(config), "--token-file", str(place / "token"), "--port", str(port), *options]
    command = [sys.executable, "-c", "from aggregator.cli import main; main()", "serve-sql", *given]
    environment = os.environ | {"HOME": str(place)}
    ended = subprocess.run(
        command if user is None else command_as(user, *command),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=place,
        env=environment,
    )
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1), ended.stderr
    return ended.stderr


def test_whoever_may_write_the_tables_is_refused(place: Path) -> None:
    if os.geteuid() == 0:
        assert "start it as a user of its own" in serve(place, user=None)
    else:
        assert f"{place / 'lake'} belongs to this user" in serve(place, user=None)


@only_root
@pytest.mark.parametrize("place_of", ["", "catalog.db", "muster/sender_intervals/data"])
def test_a_user_who_may_write_any_of_the_tables_is_refused(place: Path, place_of: str) -> None:
    writable = place / "lake" / place_of
    writable.chmod(0o777)
    line = serve(place)
    assert line.startswith(f"muster-aggregator: {writable} belongs to this user, or may be written by it")
    writable.chmod(0o755)
    os.chown(writable, OTHER, OTHER)
    assert str(writable) in serve(place)


@only_root
def test_a_token_that_others_may_read_or_guess_is_refused(place: Path) -> None:
    (place / "token").write_text("secret")
    assert "a token has at least 32 letters and digits" in serve(place)
    (place / "token").write_text(TOKEN)
    (place / "token").chmod(0o644)
    assert "may be read or written by others than its owner" in serve(place)


@only_root
def test_a_catalog_on_a_server_is_refused_unless_the_operator_answers_for_its_rights(place: Path) -> None:
    settings = '[lakehouse.catalog]\ntype = "postgresql"\nuri = "postgresql://127.0.0.1:1/muster"\nuser = "u"\n'
    assert "--trust-catalog" in serve(place, settings=settings)
    assert "--trust-catalog" not in serve(place, "--trust-catalog", settings=settings)
