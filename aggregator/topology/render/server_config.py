"""Write the configuration of one nats-server. Pure: secrets stand in files beside it, which it names.

Source: the configuration reference of nats-server 2.15; what the keys may do is in docs/howto/hub/render.md.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from aggregator.topology.desired.settings import RenderSettings
from aggregator.topology.render.permissions import CLIENTS, Account, Grant
from aggregator.topology.render.servers import Server, authority
from shared.settings import quoted

CONFIG, AUTHORITY, CERTIFICATE, PRIVATE_KEY, LEAF_SEED = (
    "nats-server.conf",
    "ca.pem",
    "server.pem",
    "server-key.pem",
    "leaf-seed.conf",
)
LEAF_VARIABLE = "LEAF_SEED"
_ROOM = 100
"""Connections beyond those that each account may have: of leaves, operators, and of who has not logged in yet."""
_PATIENCE = 2
_API = re.compile(r"\$JS\.([^.]+\.)?API\.")
_WHOLE_API = "$JS.API.>"
_ANSWERED_OFTEN = re.compile(r"\.MSG\.NEXT\.|\.DIRECT\.GET\.|\.API\.>$")


def server_config(
    server: Server, wanted: RenderSettings, files: PurePosixPath, public_key: Callable[[str], str]
) -> str:
    """Write it; ``files`` is where the server will find its own, ``public_key`` gives a key by its name."""
    bounded = sum(each.most_connections for each in server.accounts)
    lines = [
        "# Written by muster-aggregator render from topology.toml: change that, and render again.",
        f"server_name: {quoted(server.name)}",
        _listen(server, wanted, server.address.port),
        f"max_connections: {max(wanted.max_connections, _ROOM + bounded)}",
        # Who has not said within this who he is makes room for others.
        f"authorization {{ timeout: {_PATIENCE} }}",
        f"max_payload: {int(wanted.max_payload)}",
        "write_deadline: 10s",
        *_block("jetstream", _jetstream(server, wanted)),
        *(_tls(files, handshake_first=True) if wanted.encrypt else ()),
        *_accounts(server, public_key),
    ]
    if server.takes_leaves or server.uplinks:
        # Not needed any more, but a server that runs with it takes up no configuration without.
        lines += _block("feature_flags", ["js_api_reply_v2: true"])
    if server.takes_leaves:
        tls = _tls(files, handshake_first=True) if wanted.encrypt else []
        # Leaves learn the addresses that they were given, and none that goes round a proxy or load balancer. Servers
        # before 2.15 take a hub of 2.15 that advertises none (no_advertise) for a port of clients, and never link.
        lines += _block(
            "leafnodes",
            [
                _listen(server, wanted, wanted.leaf_port),
                f"advertise: {quoted(authority(server.address.host, wanted.leaf_port))}",
                *tls,
            ],
        )
    if server.uplinks:
        lines += _block("leafnodes", _uplink(server, wanted, files))
    if server.peers:
        lines += _block("cluster", _cluster(server, wanted, files))
    return "\n".join([*(["include " + quoted(LEAF_SEED)] if server.uplinks else []), *lines, ""])


def _listen(server: Server, wanted: RenderSettings, port: int) -> str:
    return f"listen: {quoted(authority(wanted.listen or server.address.host, port))}"


def _jetstream(server: Server, wanted: RenderSettings) -> list[str]:
    lines = [f"store_dir: {quoted(PurePosixPath(wanted.store) / server.name)}"]
    if server.domain:
        lines.append(f"domain: {quoted(server.domain)}")
    if server.stands_alone:
        # One disk: without it the server acknowledges up to two minutes before the disk has it.
        lines.append("sync_interval: always")
    if wanted.max_store:
        lines.append(f"max_file: {int(wanted.max_store)}")
    return lines


def _tls(files: PurePosixPath, *, handshake_first: bool = False, verify: bool = False) -> list[str]:
    lines = [
        f"cert_file: {quoted(files / CERTIFICATE)}",
        f"key_file: {quoted(files / PRIVATE_KEY)}",
        f"ca_file: {quoted(files / AUTHORITY)}",
    ]
    if handshake_first:
        lines.append("handshake_first: true")
        lines.append(f"timeout: {_PATIENCE}")
    if verify:
        lines.append("verify: true")
    return _block("tls", lines)


def _accounts(server: Server, public_key: Callable[[str], str]) -> list[str]:
    return _block(
        "accounts", [line for each in server.accounts for line in _block(each.name, [*_account(each, public_key)])]
    )


def _account(account: Account, public_key: Callable[[str], str]) -> Iterator[str]:
    if account.jetstream:
        yield "jetstream: enabled"
    if account.most_connections:
        yield f"limits {{ max_connections: {account.most_connections} }}"
    mapped = _mapped(account)
    if mapped or account.mapped:
        others = ((subject, mapped.get(to, to)) for subject, to in account.mapped)
        pairs = [f"{quoted(subject)}: {quoted(to)}" for subject, to in (*others, *mapped.items())]
        yield from _block("mappings", pairs)
    users = [line for grant in account.grants for line in _user(grant, public_key(grant.key), mapped)]
    given = [*_exports("service", account.lends), *_exports("stream", account.sends)]
    taken = [
        f"{{ service: {{ account: {quoted(lender)}, subject: {quoted(subject)} }}"
        f"{f', to: {quoted(mapped[subject])}' if subject in mapped else ''} }}"
        for subject, lender in account.takes
    ]
    taken += [
        f"{{ stream: {{ account: {quoted(sender)}, subject: {quoted(subject)} }} }}"
        for subject, sender in account.hears
    ]
    for name, lines in (("users", users), ("exports", given), ("imports", taken)):
        if lines:
            yield from (f"{name}: [", *_indented(lines), "]")


def _mapped(account: Account) -> dict[str, str]:
    """Take what is asked of an API away from the account's own JetStream, which would answer first: that it has none.

    Where all of the API is another account's, the server leaves it to that.
    """
    if account.jetstream or _WHOLE_API in [subject for subject, _ in account.takes]:
        return {}
    asked = [(subject, lender) for subject, lender in account.takes if _API.match(subject)]
    return {subject: f"JS.{lender}.API.{_API.sub('', subject)}" for subject, lender in asked}


def _exports(kind: str, lent: tuple[tuple[str, str], ...]) -> Iterator[str]:
    """Name each subject once, with all to whom it is lent or sent."""
    others: dict[str, list[str]] = {}
    for subject, to in lent:
        others.setdefault(subject, []).append(to)
    for subject, names in others.items():
        # Pulls are answered with as many messages as were asked for.
        many = "response: stream, " if kind == "service" and _ANSWERED_OFTEN.search(subject) else ""
        accounts = ", ".join(map(quoted, names))
        yield f"{{ {kind}: {quoted(subject)}, {many}accounts: [{accounts}] }}"


def _user(grant: Grant, key: str, mapped: dict[str, str]) -> Iterator[str]:
    yield f"# {grant.key}"
    yield f"{{ nkey: {key}, allowed_connection_types: [{quoted(grant.connection)}], permissions: {{"
    # What a client publishes is looked at as it is once it is mapped, what comes over a leaf link as it came.
    is_mapped_before = grant.connection == CLIENTS
    published = tuple(mapped.get(subject, subject) if is_mapped_before else subject for subject in grant.publish)
    yield from _indented(_allowed("publish", published))
    yield from _indented(_allowed("subscribe", grant.subscribe))
    yield "} }"


def _allowed(action: str, subjects: tuple[str, ...]) -> list[str]:
    return [f"{action}: {{ allow: [", *_indented(quoted(subject) for subject in subjects), "] }"]


def _uplink(server: Server, wanted: RenderSettings, files: PurePosixPath) -> list[str]:
    scheme = "tls" if wanted.encrypt else "nats-leaf"
    urls = ", ".join(quoted(f"{scheme}://{authority(host, wanted.leaf_port)}") for host in server.uplinks)
    tls = _block("tls", [f"ca_file: {quoted(files / AUTHORITY)}", "handshake_first: true"]) if wanted.encrypt else []
    remote = [f"urls: [{urls}]", f"account: {quoted(server.accounts[0].name)}", f"nkey: ${LEAF_VARIABLE}", *tls]
    return ["reconnect: 2s", "remotes: [ {", *_indented(remote), "} ]"]


def _cluster(server: Server, wanted: RenderSettings, files: PurePosixPath) -> list[str]:
    routes = ", ".join(quoted(f"nats-route://{authority(peer.host, wanted.route_port)}") for peer in server.peers)
    tls = _tls(files, verify=True) if wanted.encrypt else []
    return [
        f"name: {quoted(server.cluster)}",
        _listen(server, wanted, wanted.route_port),
        f"routes: [{routes}]",
        *tls,
    ]


def _block(name: str, lines: list[str]) -> list[str]:
    return [f"{name} {{", *_indented(lines), "}"]


def _indented(lines: object) -> list[str]:
    return [f"  {line}" for line in lines]  # type: ignore[attr-defined]
