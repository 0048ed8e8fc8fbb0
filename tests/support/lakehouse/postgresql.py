"""Start a real PostgreSQL for a test: its programs are those of the machine."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import URL, Engine, NullPool, create_engine, text
from sqlalchemy.exc import OperationalError

from tests.support.nats.free_ports import free_ports

_PLACES = ("/usr/lib/postgresql", "/usr/pgsql", "/opt/homebrew/opt")
USER, PASSWORD = "muster", "not a secret: it lives as long as the test"


class PostgreSql(NamedTuple):
    """A server with one database, and the file that holds its user's password."""

    port: int
    password_file: Path

    @property
    def uri(self) -> str:
        return f"postgresql://127.0.0.1:{self.port}/muster"

    def ask(self, query: str) -> Any:
        """Give the one value that answers ``query``."""
        engine = _engine(self.port, "muster")
        with engine.connect() as connection:
            return connection.execute(text(query)).scalar_one()


def find_programs() -> Path | None:
    """Find the directory of ``initdb`` and ``postgres``: Debian keeps them off the PATH."""
    found = shutil.which("initdb")
    candidates = [Path(found).parent] if found else []
    for place in map(Path, _PLACES):
        candidates += [program.parent for program in place.glob("*/bin/initdb")]
    return next((place for place in candidates if (place / "postgres").exists()), None)


@contextmanager
def postgresql() -> Iterator[PostgreSql]:
    """Run a server meanwhile; skip the test where the machine has none."""
    programs = find_programs()
    if programs is None:
        pytest.skip("there is no PostgreSQL server on this machine: install postgresql (apt-get install postgresql)")
    # PostgreSQL refuses to run as root, and the directories of pytest are for nobody else.
    runner: dict[str, Any] = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}
    directory = Path(tempfile.mkdtemp(prefix="muster-postgresql-"))
    password_file = directory / "password"
    password_file.write_text(f"{PASSWORD}\n")
    if runner:
        shutil.chown(directory, runner["user"])
        shutil.chown(password_file, runner["user"])
    (port,) = free_ports(1)
    data = directory / "data"
    made = [f"--pgdata={data}", f"--username={USER}", f"--pwfile={password_file}", "--auth=scram-sha-256", "--no-sync"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": directory, **runner}
    subprocess.run([str(programs / "initdb"), *made, "--encoding=UTF8"], check=True, timeout=120, **quiet)
    settings = [f"port={port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={directory}", "fsync=off"]
    options = [part for setting in settings for part in ("-c", setting)]
    server = subprocess.Popen([str(programs / "postgres"), "-D", str(data), *options], **quiet)
    try:
        _create_database(port, server)
        yield PostgreSql(port, password_file)
    finally:
        # It would wait for those who are still connected; this way it does not.
        server.send_signal(signal.SIGINT)
        server.wait(60)
        shutil.rmtree(directory)


def _create_database(port: int, server: "subprocess.Popen[bytes]") -> None:
    engine = _engine(port, "postgres")
    ends_at = time.monotonic() + 60
    while True:
        try:
            with engine.connect() as connection:
                connection.execute(text("CREATE DATABASE muster"))
        except OperationalError:
            assert server.poll() is None, "PostgreSQL ended by itself"
            assert time.monotonic() < ends_at, "PostgreSQL does not answer"
            time.sleep(0.05)
        else:
            return


def _engine(port: int, database: str) -> Engine:
    url = URL.create("postgresql+psycopg2", USER, PASSWORD, "127.0.0.1", port, database)
    return create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
