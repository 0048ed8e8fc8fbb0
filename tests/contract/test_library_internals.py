"""Names that nats-py and aiosqlite keep to themselves, and that this product uses: one adapter each, checked by name.

When an upgrade breaks a test here: read what the library does now in place of the name, change the adapter that the
message names, then run ``tests/integration/nats`` and ``tests/integration/delivery`` (nats-py) or ``tests/contract``
(aiosqlite) before the pin in ``pyproject.toml`` is moved.
"""

import ast
import inspect
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import aiosqlite
import pytest
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.protocol.parser import Parser

from edge_agent.store.sqlite import in_thread
from shared.nats.client import EdgeClient
from shared.nats.dispatch import DirectClient, WideTransport, _FrameParser

ROOT = Path(__file__).parents[2]
NATS_ADAPTERS = ("shared/nats/client.py", "shared/nats/dispatch.py")
ADAPTERS = {*NATS_ADAPTERS, "edge_agent/store/sqlite.py"}

CLIENT_STATE = {
    "_flush_queue", "_flusher_task", "_max_payload", "_max_pending_size", "_pending", "_pending_data_size",
    "_ping_interval_task", "_pings_outstanding", "_pongs", "_ps", "_public_nkey", "_reading_task", "_reconnection_task",
    "_server_info", "_status", "_subs", "_transport",
}  # fmt: skip


def classes_of(adapter: str) -> Iterator[ast.ClassDef]:
    for node in ast.parse((ROOT / adapter).read_text()).body:
        if isinstance(node, ast.ClassDef):
            yield node


def private_names_of_self(node: ast.ClassDef) -> set[str]:
    names = (each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute) and of_self(each))
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def of_self(attribute: ast.Attribute) -> bool:
    return isinstance(attribute.value, ast.Name) and attribute.value.id == "self"


def test_the_clients_state_that_is_used_is_in_nats_py() -> None:
    missing = CLIENT_STATE - set(vars(Client()))
    assert not missing, f"nats-py's client has no {missing}: adapt {' and '.join(NATS_ADAPTERS)}"


def test_whatever_else_the_clients_use_is_their_own_or_a_method_of_nats_py() -> None:
    """A name that nats-py dropped would be an attribute that nobody sets; a new one belongs in CLIENT_STATE."""
    own: set[str] = set()
    used: set[str] = set()
    for adapter in NATS_ADAPTERS:
        for node in classes_of(adapter):
            if node.name in (EdgeClient.__name__, DirectClient.__name__):
                used |= private_names_of_self(node)
                stores = [each for each in ast.walk(node) if isinstance(each, ast.Attribute) and of_self(each)]
                own |= {each.attr for each in stores if isinstance(each.ctx, ast.Store)} - CLIENT_STATE
                own |= {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    unknown = {name for name in used - own - CLIENT_STATE if not callable(getattr(Client, name, None))}
    assert not unknown, f"nats-py's client has no {unknown}: adapt {' and '.join(NATS_ADAPTERS)}"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(EdgeClient, Client), (DirectClient, Client), (WideTransport, TcpTransport), (_FrameParser, Parser)],
)
def test_what_is_overridden_is_called_by_nats_py_with_the_same_parameters(ours: type, theirs: type) -> None:
    for name, method in vars(ours).items():
        original = getattr(theirs, name, None)
        if not inspect.isfunction(method) or not inspect.isfunction(original):
            continue
        if name in ("__init__", "publish", "request", "flush"):
            # The last three pass on whatever they are given.
            continue
        expected = list(inspect.signature(original).parameters)
        assert list(inspect.signature(method).parameters) == expected, (
            f"{theirs.__name__}.{name} of nats-py has changed"
        )


PRIVATE_OVERRIDES = {
    "_attempt_reconnect", "_close", "_connect_command", "_connect_to_server", "_flush_pending",
    "_ping_interval", "_process_connect_init", "_process_err", "_process_headers", "_process_info", "_process_op_err",
    "_process_pong", "_remove_sub",
}  # fmt: skip


def test_what_is_overridden_is_still_there_to_be_overridden() -> None:
    """An override of a method that nats-py no longer has is never called, and what it was for is back."""
    gone = {name for name in PRIVATE_OVERRIDES if not inspect.isfunction(getattr(Client, name, None))}
    assert not gone, f"nats-py's client has no {gone}: adapt {' and '.join(NATS_ADAPTERS)}"
    ours = {name for each in (EdgeClient, DirectClient) for name in vars(each) if name in dir(Client)}
    assert {name for name in ours if name.startswith("_") and not name.startswith("__")} == PRIVATE_OVERRIDES


def test_transports_and_subscriptions_of_nats_py_have_what_is_used_of_them() -> None:
    transport = vars(TcpTransport())  # type: ignore[no-untyped-call]
    assert {"_io_reader", "_io_writer"} <= set(transport), "adapt WideTransport, and EdgeClient.abort()"
    assert "_id" in vars(Subscription(Client(), 7)), "adapt DirectClient.subscribe_directly()"


async def test_aiosqlite_runs_what_it_is_given_in_the_thread_of_its_connection(tmp_path: Path) -> None:
    """``aiosqlite.Connection._execute`` and ``_conn``, used by ``edge_agent/store/sqlite.py`` and nowhere else."""
    ran: list[tuple[object, int]] = []

    async with aiosqlite.connect(tmp_path / "file.db") as database:
        for _ in range(2):
            await in_thread(database, lambda connection: ran.append((type(connection), threading.get_ident())))
    (first, second) = ran
    assert first == second
    assert first[0] is sqlite3.Connection
    assert first[1] != threading.get_ident()


def test_no_other_module_uses_private_names_of_libraries() -> None:
    users = {
        str(path.relative_to(ROOT))
        for folder in ("edge_agent", "shared")
        for path in (ROOT / folder).rglob("*.py")
        if "noqa: SLF001" in path.read_text() or "_io_writer" in path.read_text()
    }
    assert users == ADAPTERS
