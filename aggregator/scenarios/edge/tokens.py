"""An operator, its accounts and their users, in tokens that servers take: what nsc makes, as far as it is needed here.

Source: the JWT library of NATS, version 2 of its claims. A token is signed with Ed25519 by whoever vouches for it.
"""

import base64
import hashlib
import time
from typing import Any

import msgspec

from aggregator.topology.render.keys import Key, KeyKind, make_key

_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}
_UNLIMITED = -1
_LIMITS = ("subs", "data", "payload", "imports", "exports", "conn", "leaf")
_JETSTREAM_LIMITS = ("mem_storage", "disk_storage", "streams", "consumer")


class Account:
    """One account: what it lends to others (``exports``), and what it takes from them (``imports``)."""

    def __init__(self, name: str, *, jetstream: bool = True) -> None:
        self.name = name
        self.key = make_key(KeyKind.ACCOUNT)
        self.exports: list[dict[str, Any]] = []
        self.imports: list[dict[str, Any]] = []
        self.has_jetstream = jetstream

    def lend_service(self, subject: str) -> None:
        """Let others ask what answers on a subject, with any number of messages."""
        self.exports.append({"name": subject, "subject": subject, "type": "service", "response_type": "Stream"})

    def lend_stream(self, subject: str) -> None:
        self.exports.append({"name": subject, "subject": subject, "type": "stream"})

    def take_service(self, lender: "Account", subject: str, own: str = "") -> None:
        """Ask a service of another account, under a name of our own where one is given."""
        self._take("service", lender, subject, own)

    def take_stream(self, lender: "Account", subject: str) -> None:
        self._take("stream", lender, subject, "")

    def end_services(self) -> None:
        """Lend and take no services any more; streams stay."""
        self.exports = [each for each in self.exports if each["type"] != "service"]
        self.imports = [each for each in self.imports if each["type"] != "service"]

    def credentials(self, user_name: str) -> str:
        """Make a user that may do all in this account; give what stands in its ``.creds`` file."""
        user = make_key(KeyKind.USER)
        limits = dict.fromkeys(("subs", "data", "payload"), _UNLIMITED)
        claims = {"pub": {}, "sub": {}, "type": "user", "version": 2} | limits
        token = _signed(self.key, user.public, user_name, claims)
        return (
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )

    def claims(self) -> dict[str, Any]:
        limits: dict[str, Any] = dict.fromkeys(_LIMITS, _UNLIMITED) | {"wildcards": True}
        if self.has_jetstream:
            limits |= dict.fromkeys(_JETSTREAM_LIMITS, _UNLIMITED)
        return {
            "limits": limits,
            "exports": self.exports,
            "imports": self.imports,
            "default_permissions": {"pub": {}, "sub": {}},
            "type": "account",
            "version": 2,
        }

    def _take(self, kind: str, lender: "Account", subject: str, own: str) -> None:
        taken = {"name": subject, "subject": subject, "account": lender.key.public, "type": kind}
        self.imports.append(taken | ({"local_subject": own} if own else {}))


class Operator:
    """Who vouches for accounts, one of which is the servers' own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.system = Account("SYS", jetstream=False)
        self._key = make_key(KeyKind.OPERATOR)

    @property
    def token(self) -> str:
        """Give the token that every server is started with."""
        claims = {"system_account": self.system.key.public, "type": "operator", "version": 2}
        return _signed(self._key, self._key.public, self.name, claims)

    def vouch(self, account: Account) -> str:
        """Give the token of an account, as it is now."""
        return _signed(self._key, account.key.public, account.name, account.claims())


def _signed(issuer: Key, subject: str, name: str, claims: dict[str, Any]) -> str:
    body: dict[str, Any] = {"iat": int(time.time()), "iss": issuer.public, "name": name, "sub": subject, "nats": claims}
    # An id that follows from the content, as nsc's does.
    body["jti"] = base64.b32encode(hashlib.sha256(msgspec.json.encode(body)).digest()).rstrip(b"=").decode()
    unsigned = b".".join(map(_encoded, (msgspec.json.encode(_HEADER), msgspec.json.encode(body))))
    return b".".join((unsigned, _encoded(issuer.sign(unsigned)))).decode()


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
