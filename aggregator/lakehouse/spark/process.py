"""Know the process that Spark runs in: what ends it, and how it ended. Nothing else looks at it."""

import atexit
import logging
import signal
import subprocess
from contextlib import suppress
from socketserver import BaseServer
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError

GONE = (Py4JError, ConnectionError)
"""What calls raise whose JVM has ended: py4j passes on what its socket says."""

_DYING_SECONDS = 2.0
"""A connection breaks a moment before its process has ended."""

_ENDING_SECONDS = 30.0
"""Its end takes a JVM half a second of processor time; systemd waits 90 s for that of a service."""


def leave_its_end_to_python() -> None:
    """Have the JVM that this process has started go on after a SIGTERM, and end before Python does.

    systemd and ``timeout`` signal a whole group of processes. Python ends between two commits (``stop_signal``), for
    which it needs the JVM. SIGINT pyspark keeps away from it already. One that has started Python, as ``spark-submit``
    does, is not ours to change.
    """
    gateway = SparkContext._gateway  # noqa: SLF001 - there is no public question
    java: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if gateway is None or java is None:
        return
    # pyspark waits for nothing; a service whose process has ended may not leave one that ignores SIGTERM.
    atexit.register(_end, java)
    # By their full names: package by package, each is a search through all jars.
    signals, handlers = (getattr(gateway.jvm, f"sun.misc.{name}") for name in ("Signal", "SignalHandler"))
    # With -Xrs among its options, a JVM leaves its signals alone.
    with suppress(Py4JJavaError):
        signals.handle(signals("TERM"), handlers.SIG_IGN)


def _end(java: "subprocess.Popen[bytes]") -> None:
    """End a JVM as pyspark does, by the end of its input, and wait for it; kill one that does not end."""
    assert java.stdin is not None
    java.stdin.close()
    try:
        java.wait(_ENDING_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        java.kill()
        java.wait()


def tell_failed_calls_once() -> None:
    """Keep py4j from logging each call that fails, traceback and all: whoever made the call is told, and tells."""
    logging.getLogger().addFilter(lambda record: record.module != "java_gateway")


def say_nothing_of_its_end(server: BaseServer) -> None:
    """Keep what hears the JVM's accumulators from writing a traceback when that ends, killed or asked to."""
    tell = server.handle_error

    def tell_of_others(*connection: Any) -> None:
        java: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - as above
        ends = java is not None and ((java.stdin is not None and java.stdin.closed) or _status(java) is not None)
        if not ends:
            tell(*connection)

    # Its class depends on pyspark's settings.
    vars(server)["handle_error"] = tell_of_others


def did_not_start(error: BaseException) -> bool:
    """Tell whether ``error`` says that a JVM ended before Python could call it."""
    return isinstance(error, PySparkRuntimeError) and error.getCondition() == "JAVA_GATEWAY_EXITED"


def how_it_ended(error: BaseException) -> str | None:
    """Say how the JVM ended whose call raised ``error``; None where it lives, or where there is none."""
    if not isinstance(error, GONE) or isinstance(error, Py4JJavaError):
        return None
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - as above
    status = None if process is None else _status(process)
    if status is None:
        return None
    return _name_of(-status) if status < 0 else f"exit code {status}"


def _status(java: "subprocess.Popen[bytes]") -> int | None:
    """Give the status that a JVM ended with; None where it lives on."""
    try:
        return java.wait(_DYING_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        # Those of real time have no names, but for the first and the last.
        return f"signal {number}"
