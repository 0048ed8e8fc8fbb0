"""Servers that know their users by JWTs: an operator, its accounts and their users, as nsc makes them.

Source: the JWT library of NATS, version 2 of its claims. A token is signed with Ed25519 by its issuer.
"""

import base64
import hashlib
import time
from pathlib import Path
from typing import Any

import msgspec

from aggregator.topology.render.keys import KeyKind, Nkey, make_key
from shared.settings import FilePath

_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}
_LIMITS = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1) | {"wildcards": True}
_JETSTREAM_LIMITS = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)


class Account:
    """One account: its ``exports`` to other accounts, and its ``imports`` from them."""

    def __init__(self, name: str, *, jetstream: bool = True) -> None:
        self.name = name
        self.key = make_key(KeyKind.ACCOUNT)
        self.has_jetstream = jetstream
        self.exports: list[dict[str, Any]] = []
        self.imports: list[dict[str, Any]] = []

    def export(self, kind: str, subject: str) -> None:
        """Export a ``service``, with any number of answers, or a ``stream``."""
        more = {"response_type": "Stream"} if kind == "service" else {}
        self.exports.append({"name": subject, "subject": subject, "type": kind} | more)

    def take(self, kind: str, exporter: "Account", subject: str, own: str = "") -> None:
        """Import from another account, under a subject of its own if one is given."""
        more = {"local_subject": own} if own else {}
        taken = {"name": subject, "subject": subject, "account": exporter.key.public, "type": kind}
        self.imports.append(taken | more)

    def end_services(self) -> None:
        """Remove all exports and imports of services; streams stay."""
        for each in (self.exports, self.imports):
            each[:] = [entry for entry in each if entry["type"] != "service"]

    def credentials(self, path: Path, *, expires_at: int = 0, payload: int = -1) -> FilePath:
        """Write the credentials file of a new user. ``expires_at`` is in Unix seconds, 0: it does not expire."""
        user = make_key(KeyKind.USER)
        ends = {"exp": expires_at} if expires_at else {}
        token = _signed(self.key, user.public, self.name.lower(), ends, type="user", subs=-1, data=-1, payload=payload)
        path.touch(mode=0o600)
        path.write_text(
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )
        return FilePath(path)


class Operator:
    """The issuer of accounts, one of which is the servers' own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.system = Account("SYS", jetstream=False)
        self._key = make_key(KeyKind.OPERATOR)

    @property
    def token(self) -> str:
        """The token that every server is started with."""
        system = self.system.key.public
        return _signed(self._key, self._key.public, self.name, type="operator", system_account=system)

    def account_token(self, account: Account) -> str:
        """Return the token of an account as it is now."""
        limits = _LIMITS | (_JETSTREAM_LIMITS if account.has_jetstream else {})
        shared: dict[str, Any] = {"exports": account.exports, "imports": account.imports}
        return _signed(self._key, account.key.public, account.name, None, type="account", limits=limits, **shared)


class OperatorMode:
    """An operator with a system account and one account with JetStream; it signs the JWTs of users."""

    def __init__(self) -> None:
        self._operator = Operator("OP")
        self._account = Account("TEST")
        self.credentials = self._account.credentials

    @property
    def config(self) -> str:
        """The part of a server's configuration that makes it trust the operator."""
        accounts = (self._operator.system, self._account)
        tokens = ", ".join(f"{each.key.public}: {self._operator.account_token(each)}" for each in accounts)
        return f"operator: {self._operator.token}\nresolver: MEMORY\nresolver_preload: {{ {tokens} }}\n"


def _signed(issuer: Nkey, subject: str, name: str, registered: dict[str, int] | None = None, **claims: object) -> str:
    body: dict[str, Any] = {"iat": int(time.time()), "iss": issuer.public, "name": name, "sub": subject}
    body |= {**(registered or {}), "nats": {"version": 2, **claims}}
    # An id that follows from the content, as nsc's does.
    body["jti"] = base64.b32encode(hashlib.sha256(msgspec.json.encode(body)).digest()).rstrip(b"=").decode()
    unsigned = b".".join(map(_encoded, (msgspec.json.encode(_HEADER), msgspec.json.encode(body))))
    return b".".join((unsigned, _encoded(issuer.sign(unsigned)))).decode()


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
