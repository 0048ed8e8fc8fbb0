"""The command ``muster-aggregator serve``."""

import asyncio
import logging
import resource
import signal
import socket
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aggregator.config import AggregatorSettings, config_option, load
from shared.command_line.command_group import examples
from shared.command_line.terminal import echo
from shared.instants import SECOND
from shared.memory import collect_rarely
from shared.settings import SettingsError
from shared.system_errors import reason_of

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

GRACE = 5
"""Seconds for answers under way when the service ends; streams of events end at once."""


@click.command(
    epilog=examples("muster-aggregator serve", "muster-aggregator serve --config /etc/muster/aggregator.toml")
)
@config_option
def serve(config_path: Path) -> None:
    """Show what is up right now: a page, an API and metrics over HTTP."""
    from aggregator.live.service.connections import PatientLoop
    from aggregator.live.service.guard import TokensUnreadable
    from aggregator.live.store import set_aside_damaged

    settings, loop = load(config_path), PatientLoop()
    loop.patience = settings.live.drop_listener_after / SECOND
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(_serve(settings))
    except (sqlite3.DatabaseError, ExceptionGroup) as error:
        # A task that failed comes as one of a group.
        found = _first(BaseExceptionGroup("", [error]).subgroup(sqlite3.DatabaseError))
        if found is None:
            raise
        files = settings.live_path, settings.incidents_path
        if damaged := set_aside_damaged(files):
            names = " and ".join(map(str, damaged))
            raise click.ClickException(f"damaged, and set aside as {names}: made anew at the next start") from error
        if isinstance(found, sqlite3.OperationalError):
            raise click.ClickException(f"{' or '.join(map(str, files))}: {found}") from error
        raise
    except (TokensUnreadable, SettingsError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        reason = reason_of(error)
        raise click.ClickException(reason if error.filename else f"{settings.live.listen}: {reason}") from error


def _first(error: BaseException | None) -> BaseException | None:
    """Give the first that is in a group of groups."""
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


async def _serve(settings: AggregatorSettings) -> None:
    from aggregator.fleet.operations import PolicyOperations
    from aggregator.live.alerts.watch import IncidentWatch
    from aggregator.live.page.routes import Page
    from aggregator.live.service.server import Service

    collect_rarely()
    # A handshake of TLS that does not go on holds a file for a while, before the connection counts as one.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    service = Service(settings, PolicyOperations(settings), (IncidentWatch(settings), Page()))
    live = settings.live
    family = socket.AF_INET6 if ":" in live.address else socket.AF_INET
    listening = socket.create_server((live.address, live.port), family=family, backlog=1_024)
    host = f"[{live.address}]" if family is socket.AF_INET6 else live.address
    server, ended = _server(settings, service.app()), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    working = asyncio.create_task(service.run())
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    echo(f"serving {'https' if live.tls_cert else 'http'}://{host}:{listening.getsockname()[1]}/", err=True)
    ending = asyncio.create_task(ended.wait())
    try:
        await asyncio.wait((working, serving, ending), return_when=asyncio.FIRST_COMPLETED)
        # A stream of events would have the server wait for it.
        service.broadcast.end()
        server.should_exit = True
        await serving
        if working.done():
            await working
    finally:
        for task in (working, ending):
            task.cancel()
        await asyncio.gather(working, ending, return_exceptions=True)
        service.close()


def _server(settings: AggregatorSettings, app: "ASGIApp") -> "uvicorn.Server":
    import uvicorn

    from aggregator.live.service.connections import bounded

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Leave signals to the command: uvicorn would send itself another one at its end."""
            yield

    live = settings.live
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        ssl_certfile=live.tls_cert or None,
        ssl_keyfile=live.tls_key or None,
        timeout_graceful_shutdown=GRACE,
        http=bounded(live.drop_listener_after / SECOND),
    )
    try:
        config.load()
    except OSError as error:
        raise click.ClickException(f"tls_cert {live.tls_cert}, tls_key {live.tls_key}: {reason_of(error)}") from error
    return Server(config)
