"""Commands run as another user, who can reach this checkout wherever it was cloned.

A clone below a directory of mode 0700, such as root's home, cannot be entered by another user. The command then runs in
a mount namespace of its own, where each closed directory is replaced by an empty one that holds the checkout, the
interpreter and the directory of temporary files at their own paths. Nothing outside the namespace changes.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OTHER = 65_534
"""A user id that owns nothing here: nobody's."""
FIRST_DESCRIPTOR = 3


def command_as(user: int, *command: str, group: int | None = None) -> list[str]:
    """Return a command that runs ``command`` as ``user`` with one group, the user's by default.

    Skip the test where that cannot be done, with a line that names what is missing.
    """
    if reason := missing():
        pytest.skip(reason)
    return [*entering(), *identity(user, user if group is None else group), *command]


@cache
def missing() -> str:
    """Return what hinders another user from running this Python; "" if nothing does."""
    if os.geteuid() != 0:
        return "only root can run a command as another user"
    if absent := [tool for tool in ("setpriv", "unshare") if shutil.which(tool) is None]:
        return f"no {absent[0]} (util-linux) to run a command as another user"
    program = [sys.executable, "-c", "import aggregator.cli"]
    probe = subprocess.run(
        [*entering(), *identity(OTHER, OTHER), *program], capture_output=True, text=True, check=False
    )
    if probe.returncode == 0:
        return ""
    return f"user {OTHER} cannot run {sys.executable}: {(probe.stderr.splitlines() or ['no reason given'])[-1]}"


def identity(user: int, group: int) -> list[str]:
    """Return the beginning of a command that runs as ``user`` with one group."""
    return ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--"]


def entering() -> list[str]:
    """Return the beginning of a command that runs where other users can reach this checkout; [] where they can."""
    places = {Path(place).resolve() for place in (ROOT, sys.prefix, sys.base_prefix, tempfile.gettempdir())}
    behind = {place: closed for place in sorted(places) if (closed := closed_directory(place)) is not None}
    if not behind:
        return []
    # Held open before anything is mounted over them.
    held = list(enumerate(behind, FIRST_DESCRIPTOR))
    steps = [
        *(f"exec {number}<{shlex.quote(str(place))}" for number, place in held),
        *(f"mount -t tmpfs -o mode=0755 tmpfs {shlex.quote(str(closed))}" for closed in sorted({*behind.values()})),
        *(
            f"mkdir -p {shlex.quote(str(place))} && mount -c --rbind /proc/self/fd/{number} {shlex.quote(str(place))}"
            for number, place in held
        ),
        *(f"exec {number}<&-" for number, _ in held),
        'exec "$@"',
    ]
    return ["unshare", "--mount", "sh", "-ec", "\n".join(["umask 022", *steps]), "sh"]


def closed_directory(path: Path) -> Path | None:
    """Return the topmost directory on the way to ``path``, itself included, that other users may not enter."""
    for directory in (*reversed(path.parents), path):
        if not directory.stat().st_mode & 0o001:
            return directory
    return None
