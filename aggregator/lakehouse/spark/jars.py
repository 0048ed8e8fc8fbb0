"""Have the jars at hand that Spark needs for Iceberg and its catalog: these exact ones, every byte vouched for.

They are named by their coordinates, and Spark's own resolver (``spark-submit --packages``) knows where such things are
found: no address stands here, and a host's settings for Spark (``DEFAULT_ARTIFACT_REPOSITORY``, an Ivy settings file in
``SPARK_CONF_DIR``) hold. What was fetched once is kept, and from then on no network is needed.
"""

import fcntl
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from aggregator.catalog_settings import ON_S3, CatalogSettings
from aggregator.lakehouse.spark.java import java_home
from aggregator.lakehouse.spark.maven import ResolveError, resolve

_OTHER_PROCESS_SECONDS = 900
_RETRY_SECONDS = 0.2
_SCRATCH = "fetching-"
_REMEDY = "put the jars into a directory and name it: --jars DIR, or [lakehouse] jars"


class Jar(msgspec.Struct, frozen=True):
    """One jar: its coordinates, and the only content that counts as it."""

    group: str
    artifact: str
    version: str
    sha256: str
    size: int

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


# Proven together with pyspark 4.1.4. Another version is another row here, and a run of tests/lakehouse.
ICEBERG = Jar(
    "org.apache.iceberg",
    "iceberg-spark-runtime-4.1_2.13",
    "1.12.0",
    "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
    48_309_426,
)
SQLITE = Jar(
    "org.xerial",
    "sqlite-jdbc",
    "3.54.1.0",
    "f8dce420a6016278497f4f0560f65602b9db858de141b541cf91a4644ebe4639",
    12_132_578,
)
POSTGRESQL = Jar(
    "org.postgresql",
    "postgresql",
    "42.7.8",
    "2a32a9dcbc42d67a50ad3a0de5efd102c8d2be46720045f2cbd6689f160ab7c7",
    1_116_727,
)
AWS = Jar(
    "org.apache.iceberg",
    "iceberg-aws-bundle",
    "1.12.0",
    "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
    69_034_612,
)
JARS = (ICEBERG, SQLITE)
"""What the default catalog takes."""


def jars_for(catalog: CatalogSettings) -> tuple[Jar, ...]:
    driver = {"sqlite": (SQLITE,), "postgresql": (POSTGRESQL,), "rest": ()}[catalog.type]
    return (ICEBERG, *driver, *((AWS,) if _may_be_on_s3(catalog) else ()))


def _may_be_on_s3(catalog: CatalogSettings) -> bool:
    if catalog.warehouse.startswith("/") or "://" in catalog.warehouse:
        return catalog.warehouse.startswith(ON_S3)
    # Only a REST catalog knows where that is, and it tells nobody before there are tables.
    return catalog.type == "rest"


class JarsUnavailable(RuntimeError):
    """The jars cannot be had, or one is not what it should be. Its text is one line: what, where, what to do."""


def iceberg_jars(
    cache: Path, given: Path | None, progress: Callable[[str], None], wanted: Sequence[Jar] = JARS
) -> tuple[Path, ...]:
    """Give the paths of the jars, from the directory ``given`` or from ``cache``, which is filled when it lacks them.

    ``progress`` gets lines for people while jars come in, and nothing otherwise. Every jar is read and compared with
    its SHA-256 each time (40 ms for 60 MB). A damaged one in the cache is fetched again; in ``given`` nothing is
    ever changed. Raise JarsUnavailable, and JavaUnavailable where a jar must be fetched and there is no Java.
    """
    if given is not None:
        return tuple(_vouched(given, jar) for jar in wanted)
    directory = cache / "jars"
    paths = tuple(directory / jar.file_name for jar in wanted)
    try:
        if not _missing(directory, wanted):
            return paths
        directory.mkdir(parents=True, exist_ok=True)
        with _alone(directory / "lock", progress):
            missing = _missing(directory, wanted)
            if missing:
                _fetch(missing, cache, progress)
    except OSError as error:
        raise JarsUnavailable(f"the jars cannot be kept in {directory}: {error.strerror}; set MUSTER_CACHE") from error
    return paths


def _fetch(jars: list[Jar], cache: Path, progress: Callable[[str], None]) -> None:
    directory = cache / "jars"
    names = " and ".join(jar.file_name for jar in jars)
    size = sum(jar.size for jar in jars)
    progress(f"fetching {names}, once ({size / 1e6:.0f} MB)")

    def report(received: int) -> None:
        progress(f"  {min(received, size) / 1e6:.0f} of {size / 1e6:.0f} MB")

    for left_by_a_killed_process in directory.glob(f"{_SCRATCH}*"):
        shutil.rmtree(left_by_a_killed_process, ignore_errors=True)
    with TemporaryDirectory(prefix=_SCRATCH, dir=directory) as scratch:
        try:
            found = resolve([jar.coordinates for jar in jars], java_home(cache), Path(scratch), report)
        except ResolveError as error:
            raise JarsUnavailable(f"could not fetch {names}: {error}; mend that, or {_REMEDY}") from error
        for jar in jars:
            fetched = found / f"{jar.group}_{jar.file_name}"
            if not _is_whole(fetched, jar):
                raise JarsUnavailable(
                    f"what came as {jar.coordinates} is not that jar (its SHA-256 is not {jar.sha256}) and was thrown "
                    f"away; ask who runs the repository or the proxy, or {_REMEDY}"
                )
            fetched.replace(directory / jar.file_name)
    progress(f"kept in {directory}")


def _missing(directory: Path, wanted: Sequence[Jar]) -> list[Jar]:
    return [jar for jar in wanted if not _is_whole(directory / jar.file_name, jar)]


def _vouched(directory: Path, jar: Jar) -> Path:
    path = directory / jar.file_name
    try:
        if _is_whole(path, jar):
            return path
    except OSError as error:
        raise JarsUnavailable(f"{path} cannot be read: {error.strerror}; let this user read it") from error
    wrong = "is not the jar of that name" if path.exists() else "is not there"
    raise JarsUnavailable(f"{path} {wrong}: put {jar.coordinates} there (SHA-256 {jar.sha256})")


def _is_whole(path: Path, jar: Jar) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256
    except FileNotFoundError:
        return False


@contextmanager
def _alone(lock: Path, progress: Callable[[str], None]) -> Iterator[None]:
    """Let one process fetch at a time; the others wait, for they want the same files."""
    deadline = time.monotonic() + _OTHER_PROCESS_SECONDS
    said = False
    with lock.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise JarsUnavailable(f"another process holds {lock} for too long; end it and try again") from None
            if not said:
                progress("another process is fetching the jars: waiting for it")
                said = True
            time.sleep(_RETRY_SECONDS)
        yield
