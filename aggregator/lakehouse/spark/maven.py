"""Resolve Maven coordinates with Spark's own resolver, in a process of its own, watched while bytes come in."""

import os
import re
import shlex
import signal
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from aggregator.lakehouse.spark.caches import write_whole

# Where Linux distributions keep their bundle, for a Python whose OpenSSL was built to look elsewhere.
_USUAL_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem")
_MAGIC, _VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2
_DIGEST_LENGTH = 20


def trust_options(directory: Path) -> tuple[str, ...]:
    """Give the JVM options that trust the machine's authorities, from a truststore made in ``directory``.

    The bundle is that of ``SSL_CERT_FILE``, else of OpenSSL, else of the distribution. Empty where there is none: then
    Java's own list holds. Raise OSError if the truststore cannot be written.
    """
    bundle = _authorities_bundle()
    if bundle is None:
        return ()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(bundle)
    truststore = directory / "authorities.jks"
    write_whole(truststore, java_keystore(context.get_ca_certs(binary_form=True)))
    return (f"-Djavax.net.ssl.trustStore={truststore}", "-Djavax.net.ssl.trustStoreType=JKS")


def java_keystore(certificates: Iterable[bytes]) -> bytes:
    """Write DER certificates as a JKS keystore of trusted authorities, to be opened without a password.

    The layout is that of OpenJDK's sun.security.provider.JavaKeyStore: big-endian; a header, the entries, and a digest
    over both that is checked only when a password is given. Nothing in it is secret, so none ever is.
    """
    entries = [
        struct.pack(">I", _TRUSTED_CERTIFICATE)
        + _text(f"authority-{number}")
        + struct.pack(">Q", 0)
        + _text("X.509")
        + struct.pack(">I", len(certificate))
        + certificate
        for number, certificate in enumerate(certificates, start=1)
    ]
    return struct.pack(">III", _MAGIC, _VERSION, len(entries)) + b"".join(entries) + bytes(_DIGEST_LENGTH)


def _authorities_bundle() -> Path | None:
    found = ssl.get_default_verify_paths().cafile
    places = [Path(place) for place in (found, *_USUAL_BUNDLES) if place]
    return next((place for place in places if place.is_file()), None)


def _text(text: str) -> bytes:
    encoded = text.encode("ascii")
    return struct.pack(">H", len(encoded)) + encoded


_STALLED_SECONDS = 90
_REPORT_SECONDS = 2.0
# What Ivy and the JVM write when they fail, the most telling first.
_REASONS = (
    re.compile(r"Server access error at url \S+ \((?:[\w.]+\.)?(.*?)\)?$", re.MULTILINE),
    re.compile(r"(Host \S+ not found)"),
    re.compile(r"^Caused by: (?:[\w.]+\.)?(.*)$", re.MULTILINE),
    re.compile(r"^Exception in thread .*?: (.*?)\]?$", re.MULTILINE),
)


class ResolveError(RuntimeError):
    """Spark's resolver did not come back with the files. Its text is the reason, in a few words."""


def resolve(coordinates: Sequence[str], home: Path, directory: Path, report: Callable[[int], None]) -> Path:
    """Fetch the jars of ``coordinates`` (not what they depend on) below ``directory``; give the directory they are in.

    Files there are called ``<group>_<artifact>-<version>.jar``. ``home`` is the JAVA_HOME to use. ``report`` gets the
    bytes that came in so far, every few seconds while they come. There is no limit to the whole, for a link may be
    thin, but 90 s without a byte are one. Raise ResolveError; OSError where the directory cannot be written.
    """
    application = directory / "nothing_to_run.py"
    application.touch()
    log = directory / "log"
    options = (*_trust_options(directory), *_proxy_options())
    spark = _spark_home()
    command = [
        str(spark / "bin" / "spark-submit"),
        *("--master", "local[1]"),
        *("--packages", ",".join(coordinates)),
        # Both jars are whole: Spark has the logging interface that one of them names.
        *("--exclude-packages", "org.slf4j:slf4j-api"),
        *("--conf", f"spark.jars.ivy={directory / 'ivy'}"),
        *("--driver-java-options", " ".join(shlex.quote(option) for option in options)),
        str(application),
    ]
    environment = {
        **os.environ,
        "JAVA_HOME": str(home),
        "SPARK_HOME": str(spark),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    with log.open("wb") as output, _running(command, environment, output.fileno()) as process:
        _watch(process, directory / "ivy" / "cache", report)
    found = directory / "ivy" / "jars"
    if process.returncode != 0 or not found.is_dir():
        raise ResolveError(_reason(log.read_text(errors="replace")))
    return found


def _trust_options(directory: Path) -> tuple[str, ...]:
    try:
        return trust_options(directory)
    except ssl.SSLError as error:
        raise ResolveError(f"this machine's certificates cannot be read ({error.reason}); see SSL_CERT_FILE") from error


def _spark_home() -> Path:
    package = find_spec("pyspark")
    if package is None or package.origin is None:
        raise ResolveError("the package pyspark is not installed (install muster[lakehouse])")
    return Path(package.origin).parent


@contextmanager
def _running(command: Sequence[str], environment: dict[str, str], output: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a process group of its own, of which nothing is left afterwards, whatever happens."""
    process = subprocess.Popen(  # noqa: S603 - Spark's own launcher, with arguments of ours
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _watch(process: subprocess.Popen[bytes], arriving: Path, report: Callable[[int], None]) -> None:
    received, moved_at = 0, time.monotonic()
    while process.poll() is None:
        try:
            process.wait(_REPORT_SECONDS)
        except subprocess.TimeoutExpired:
            before, received = received, _bytes_below(arriving)
            if received != before:
                moved_at = time.monotonic()
                report(received)
            elif time.monotonic() - moved_at > _STALLED_SECONDS:
                raise ResolveError(f"nothing came in for {_STALLED_SECONDS} s") from None


def _bytes_below(directory: Path) -> int:
    """Add up what is there, finished or not; files may be renamed meanwhile."""
    total = 0
    for place, _, names in os.walk(directory):
        for name in names:
            try:
                total += (Path(place) / name).stat().st_size
            except FileNotFoundError:
                continue
    return total


def _proxy_options() -> tuple[str, ...]:
    """Tell Java of the proxy that the environment names: it does not look there itself."""
    options: list[str] = []
    for scheme, proxy in getproxies().items():
        address = urlsplit(proxy)
        if scheme in {"http", "https"} and address.hostname:
            options += [f"-D{scheme}.proxyHost={address.hostname}", f"-D{scheme}.proxyPort={address.port or 80}"]
    return tuple(options)


def _reason(log: str) -> str:
    for pattern in _REASONS:
        found = pattern.search(log)
        if found:
            return found.group(1)
    lines = log.split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "Spark's resolver said nothing")
