"""Start a real nats-server for demos and tests, know when it is ready, and never leave it behind.

The server is a child of this process; the kernel kills it when this process ends, however it ends. It must be started
from a thread that lives as long as the server shall.
"""

import asyncio
import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import IO, Self

import msgspec

from shared.settings import quoted

START_DEADLINE = 60.0
STOP_DEADLINE = 10.0
_POLL = 0.02
_STOP_POLL = 0.001
_HTTP_DEADLINE = 2.0
_LOG_TAIL = 4000


class HeldPort:
    """A port of ``host`` that is free but for whoever knows it, as long as this object lives; raise OSError.

    A socket that never listens is bound to it. The server listens beside it, since both let the address be used again,
    as nats-server's do; while it is away, whoever connects is refused.
    """

    def __init__(self, host: str) -> None:
        holding = socket.socket()
        weakref.finalize(self, holding.close)
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holding.bind((host, 0))
        self.number: int = holding.getsockname()[1]


_PR_SET_PDEATHSIG = 1


def dies_with(parent_pid: int) -> Callable[[], None]:
    """Prepare, before the fork, what the child does after it: ask the kernel to be killed when its parent ends.

    To be passed as ``preexec_fn``; ``parent_pid`` is this process's own: a parent that ended meanwhile is noticed. The
    signal (prctl(2), PR_SET_PDEATHSIG) comes also after kill -9. It watches the thread that started the child: that one
    must live as long as the child shall. A child's own children are not watched.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def ask() -> None:
        if prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0 or os.getppid() != parent_pid:
            os._exit(1)

    return ask


class ServerFailed(Exception):
    """A server could not be started or stopped. The text says why; where it has a log, its end is in the text."""


class LeafRemote(msgspec.Struct, frozen=True):
    """A leaf connection to keep: ``url`` such as ``nats-leaf://127.0.0.1:7422``; ``options`` are further lines."""

    url: str
    options: str = ""


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a server shall be. Ports of 0 are chosen by the system, and kept over restarts.

    ``domain``: its JetStream domain ("": none of its own). ``sync_always``: acknowledge after fsync, as a site should.
    ``leaf_port``: where it accepts leaf connections (None: nowhere); by ``leaf_options`` its address is not advertised,
    so that leaves stay on the way they were given. ``max_file``, ``max_memory``: JetStream's limits as nats-server
    writes them.
    ``extra_config``: further lines at the top level (accounts, TLS, ...); ``jetstream_config``: in JetStream's block.
    """

    name: str
    store_dir: Path
    host: str = "127.0.0.1"
    port: int = 0
    jetstream: bool = True
    domain: str = ""
    sync_always: bool = False
    max_file: str = ""
    max_memory: str = ""
    leaf_port: int | None = None
    leaf_options: str = "no_advertise: true"
    leaf_remotes: tuple[LeafRemote, ...] = ()
    jetstream_config: str = ""
    extra_config: str = ""


class EmbeddedNats:
    """One nats-server: started, stopped, killed, suspended and restarted at will, always on the same port and store."""

    def __init__(self, settings: ServerSettings) -> None:
        if settings.jetstream and re.search(r"^\s*jetstream\b", settings.extra_config, re.MULTILINE):
            raise ValueError("extra_config: a second jetstream block would replace the first: give jetstream_config")
        self.settings = settings
        self.log_path = settings.store_dir / "nats-server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._port = settings.port
        self._leaf_port = settings.leaf_port or 0
        self._monitoring_port = 0
        self._held: list[HeldPort] = []

    @property
    def url(self) -> str:
        return f"nats://{self.settings.host}:{self._port}"

    @property
    def leaf_url(self) -> str:
        return f"nats-leaf://{self.settings.host}:{self._leaf_port}"

    @property
    def port(self) -> int:
        """The port for clients, known from the first start."""
        return self._port

    @property
    def leaf_port(self) -> int:
        """The port for leaf nodes, known from the first start."""
        return self._leaf_port

    @property
    def monitoring_url(self) -> str:
        """Where the server answers ``/healthz``, ``/leafz`` and the like."""
        return f"http://{self.settings.host}:{self._monitoring_port}"

    @property
    def pid(self) -> int:
        """The process id; raise ServerFailed while it does not run."""
        if not self.is_running:
            raise ServerFailed(f"nats-server {self.settings.name} does not run")
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Tell whether the process lives; a suspended one does."""
        return self._process is not None and self._process.poll() is None

    @property
    def has_died(self) -> bool:
        """Tell whether the process ended although nobody stopped or killed it through this object."""
        return self._process is not None and self._process.poll() is not None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.stop()

    async def start(self, deadline: float = START_DEADLINE) -> None:
        """Start and wait until the server is healthy, JetStream recovered; raise ServerFailed after ``deadline`` s."""
        if self.is_running:
            return
        command = find_command()
        self.settings.store_dir.mkdir(parents=True, exist_ok=True)
        self._port = self._port or self._hold_port()
        self._monitoring_port = self._monitoring_port or self._hold_port()
        if self.settings.leaf_port is not None:
            self._leaf_port = self._leaf_port or self._hold_port()
        self._config_path.write_text(self._config(), encoding="utf-8")
        with self.log_path.open("ab") as log:
            self._process = self._spawn(command, log)
        try:
            await self._until_healthy(deadline)
        except BaseException:
            await self.kill()
            raise

    async def stop(self, deadline: float = STOP_DEADLINE) -> None:
        """End it as an operator would, suspended or not; kill it after ``deadline`` s."""
        if self._process is None:
            return
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
            self._process.send_signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, deadline)
        await self.kill()

    async def kill(self) -> None:
        """End it at once, as a power cut of the process would (SIGKILL)."""
        # Whoever starts it may give up at the same time, and kill it too.
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.kill()
        await asyncio.to_thread(process.wait, STOP_DEADLINE)
        self._process = None

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def reload(self, extra_config: str) -> None:
        """Let it take other further lines while it runs (SIGHUP); what it cannot take so stands in its log."""
        text = self._config_path.read_text(encoding="utf-8").replace(self.settings.extra_config, extra_config)
        self._config_path.write_text(text, encoding="utf-8")
        self.settings = msgspec.structs.replace(self.settings, extra_config=extra_config)
        os.kill(self.pid, signal.SIGHUP)

    def suspend(self) -> None:
        """Stop the process from running, its connections stay open (SIGSTOP): a hung server.

        The signal stops the threads one by one, and one that runs may answer once more: wait for the last of them.
        """
        pid, ends_at = self.pid, time.monotonic() + STOP_DEADLINE
        os.kill(pid, signal.SIGSTOP)
        while not _is_stopped(pid):
            if time.monotonic() > ends_at:
                raise ServerFailed(f"nats-server {self.settings.name} still runs {STOP_DEADLINE:g} s after SIGSTOP")
            time.sleep(_STOP_POLL)

    def resume(self) -> None:
        """Let a suspended process run on (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def log_tail(self) -> str:
        """Give the end of the server's log, "" where there is none."""
        try:
            return self.log_path.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL:]
        except FileNotFoundError:
            return ""

    def _hold_port(self) -> int:
        self._held.append(HeldPort(self.settings.host))
        return self._held[-1].number

    def _spawn(self, command: str, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(  # noqa: S603 - our own command and settings
            [command, "-c", str(self._config_path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=dies_with(os.getpid()),  # noqa: PLW1509 - one system call, nothing that could deadlock
        )

    async def _until_healthy(self, deadline: float) -> None:
        assert self._process is not None
        process, ends_at = self._process, time.monotonic() + deadline
        while process.poll() is None and time.monotonic() < ends_at:
            if await self._is_healthy():
                return
            await asyncio.sleep(_POLL)
        cause = f"is not healthy after {deadline:g} s" if process.poll() is None else f"ended ({process.returncode})"
        raise ServerFailed(f"nats-server {self.settings.name} {cause}; the end of {self.log_path}:\n{self.log_tail()}")

    async def _is_healthy(self) -> bool:
        """Ask the monitoring port: ``/healthz`` says 200 once it listens everywhere, and JetStream has recovered."""
        try:
            async with asyncio.timeout(_HTTP_DEADLINE):
                reader, writer = await asyncio.open_connection(self.settings.host, self._monitoring_port)
                try:
                    writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
                    answer = await reader.read()
                finally:
                    writer.close()
                    await writer.wait_closed()
        except (OSError, TimeoutError):
            return False
        return b" 200 " in answer.partition(b"\r\n")[0]

    @property
    def _config_path(self) -> Path:
        return self.settings.store_dir / "nats-server.conf"

    def _config(self) -> str:
        wanted = self.settings
        lines = [
            f"server_name: {quoted(wanted.name)}",
            f"listen: {quoted(f'{wanted.host}:{self._port}')}",
            f"http: {quoted(f'{wanted.host}:{self._monitoring_port}')}",
            f"log_file: {quoted(self.log_path)}",
        ]
        if wanted.jetstream:
            options = {
                "store_dir": quoted(wanted.store_dir / "jetstream"),
                "domain": quoted(wanted.domain) if wanted.domain else "",
                "sync_interval": "always" if wanted.sync_always else "",
                "max_file": wanted.max_file,
                "max_mem": wanted.max_memory,
            }
            given = [f"  {key}: {value}" for key, value in options.items() if value]
            lines += ["jetstream {", *given, wanted.jetstream_config, "}"]
        if wanted.leaf_port is not None or wanted.leaf_remotes:
            lines += ["leafnodes {", *self._leaf_lines(), "}"]
        return "\n".join([*lines, wanted.extra_config, ""])

    def _leaf_lines(self) -> list[str]:
        lines = []
        if self.settings.leaf_port is not None:
            address = quoted(f"{self.settings.host}:{self._leaf_port}")
            lines += [f"  listen: {address}", f"  {self.settings.leaf_options}"]
        if self.settings.leaf_remotes:
            remotes = [
                f"    {{ url: {quoted(remote.url)}, {remote.options} }}" for remote in self.settings.leaf_remotes
            ]
            lines += ["  reconnect: 1s", "  remotes: [", *remotes, "  ]"]
        return lines


def find_command() -> str:
    """Find nats-server beside this Python, else on PATH; raise ServerFailed."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("nats-server")
    if found is None:
        raise ServerFailed(f"nats-server is neither beside {sys.executable} nor on PATH: install muster[demo]")
    return found


def _is_stopped(pid: int) -> bool:
    """Tell whether no thread of a process runs: its state, behind the command in parentheses, is T (proc(5))."""
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        # A thread that ends between the two runs no more either.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if thread.read_text().rpartition(")")[2].split()[0] != "T":
                return False
    return True
