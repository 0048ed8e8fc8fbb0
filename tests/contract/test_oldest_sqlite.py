"""On EL8 the packages run with SQLite 3.26.0, older than what developers have: the stores' tests, run with that one.

It is compiled once, into ``.cache``, out of a package of npm that brings its source.
"""

import _sqlite3
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

VERSION = "3.26.0"
PACKAGE, DIGEST = "better-sqlite3@5.2.1", "a8e1cd40565f580423326b84c5870c21457e91f2844da1e49f9be672b3b9fd61"
SOURCE = "package/deps/sqlite3.tar.gz"
ROOT = Path(__file__).parents[2]
BUILT = ROOT / ".cache" / f"sqlite-{VERSION}"
NAME = "libsqlite3.so.0"
# As EL8 compiles it; what is deleted is overwritten there, and SERIALIZE is what other distributions' Python asks for.
OPTIONS = (
    *("DISABLE_DIRSYNC", "ENABLE_COLUMN_METADATA", "ENABLE_DBSTAT_VTAB", "ENABLE_DESERIALIZE", "ENABLE_FTS3"),
    *("ENABLE_FTS5", "ENABLE_JSON1", "ENABLE_RTREE", "ENABLE_UNLOCK_NOTIFY", "SECURE_DELETE"),
)
TESTS = ("tests/contract", "tests/unit/live", "tests/unit/inspection", "tests/integration/pair/test_log.py")
LEFT_OUT = (Path(__file__).name, "test_private_files.py")
"""Itself, and a minute of agents that are started and refuse."""
RUN = f"""
import sqlite3, sys
import pytest
assert sqlite3.sqlite_version == {VERSION!r}, sqlite3.sqlite_version
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.fixture
def oldest() -> Path:
    """Give the directory of the library."""
    if NAME.encode() not in Path(getattr(_sqlite3, "__file__", os.devnull)).read_bytes():
        pytest.skip("this Python brings an SQLite of its own, and takes no other")
    if not (BUILT / NAME).exists():
        for tool in ("npm", "gcc"):
            if shutil.which(tool) is None:
                pytest.skip(f"SQLite {VERSION} cannot be built here: there is no {tool} (Debian: npm, gcc)")
        BUILT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILT) as directory:
            build(Path(directory)).replace(BUILT / NAME)
    return BUILT


def build(directory: Path) -> Path:
    pack = ("npm", "pack", "--silent", "--ignore-scripts", "--fetch-retries=1", "--fetch-timeout=60000", PACKAGE)
    packed = subprocess.run(pack, cwd=directory, capture_output=True, text=True, check=False)
    if packed.returncode:
        pytest.skip(f"SQLite {VERSION} cannot be built here: npm gives no {PACKAGE}: {packed.stderr}")
    (package,) = directory.glob("*.tgz")
    assert hashlib.sha256(package.read_bytes()).hexdigest() == DIGEST
    with tarfile.open(package) as brought, tarfile.open(fileobj=brought.extractfile(SOURCE)) as source:
        (code,) = (file.read() for each in source if each.name == "sqlite3.c" and (file := source.extractfile(each)))
    made = directory / NAME
    compiler = ("gcc", "-O1", "-w", "-shared", "-fPIC", f"-Wl,-soname,{NAME}")
    options = (f"-DSQLITE_{each}=1" for each in OPTIONS)
    subprocess.run(
        [*compiler, *options, "-x", "c", "-", "-o", made, "-lpthread", "-ldl", "-lm"], input=code, check=True
    )
    return made


def test_the_stores_do_what_they_must_with_the_oldest_sqlite(oldest: Path) -> None:
    left_out = (f"--ignore=tests/contract/{name}" for name in LEFT_OUT)
    ran = subprocess.run(
        [sys.executable, "-c", RUN, "-q", "--maxfail=5", "-pno:cacheprovider", "-pno:xdist", *left_out, *TESTS],
        cwd=ROOT,
        env=os.environ | {"LD_LIBRARY_PATH": str(oldest)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
