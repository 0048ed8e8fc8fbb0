"""Servers that know their users by JWTs: the configuration of one account, and credentials files of its users."""

import base64
import os
from pathlib import Path
from typing import Any

import msgspec
import nkeys  # type: ignore[import-untyped]

from shared.settings import FilePath

_UNLIMITED = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
_JETSTREAM = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)


class OperatorMode:
    """An operator with a system account and one account with JetStream; it signs the JWTs of users."""

    def __init__(self) -> None:
        self._operator = _nkey(nkeys.PREFIX_BYTE_OPERATOR)
        self._system = _nkey(nkeys.PREFIX_BYTE_ACCOUNT)
        self._account = _nkey(nkeys.PREFIX_BYTE_ACCOUNT)

    @property
    def config(self) -> str:
        """The part of a server's configuration that makes it trust the operator."""
        system, account = (each.public_key.decode() for each in (self._system, self._account))
        limits = {**_UNLIMITED, "wildcards": True}
        of_system = _signed(self._operator, self._system, type="account", limits=limits)
        of_account = _signed(self._operator, self._account, type="account", limits=limits | _JETSTREAM)
        return f"""
operator: {_signed(self._operator, self._operator, type="operator", system_account=system)}
system_account: {system}
resolver: MEMORY
resolver_preload: {{ {system}: {of_system}, {account}: {of_account} }}
"""

    def credentials(self, path: Path, *, expires_at: int = 0, payload: int = -1) -> FilePath:
        """Write the credentials file of a new user. ``expires_at`` is in Unix seconds, 0: it does not expire."""
        user = _nkey(nkeys.PREFIX_BYTE_USER)
        ends = {"exp": expires_at} if expires_at else {}
        token = _signed(self._account, user, ends, type="user", subs=-1, data=-1, payload=payload)
        path.write_text(f"""
-----BEGIN NATS USER JWT-----
{token}
------END NATS USER JWT------
-----BEGIN USER NKEY SEED-----
{user.seed.decode()}
------END USER NKEY SEED------
""")
        path.chmod(0o600)
        return FilePath(path)


def _nkey(prefix: int) -> Any:
    return nkeys.from_seed(bytearray(nkeys.encode_seed(os.urandom(32), prefix)))


def _signed(signer: Any, subject: Any, registered: dict[str, int] | None = None, **claims: object) -> str:
    public_key = subject.public_key.decode()
    body = {
        "iss": signer.public_key.decode(),
        "sub": public_key,
        "jti": public_key,
        **(registered or {}),
        "nats": {"version": 2, **claims},
    }
    parts = {"typ": "JWT", "alg": "ed25519-nkey"}, body
    text = ".".join(_unpadded(msgspec.json.encode(part)) for part in parts)
    return f"{text}.{_unpadded(signer.sign(text.encode()))}"


def _unpadded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).decode().rstrip("=")
