"""Write what ``render`` gives: a directory for each server, and one for the keys of those who connect to them.

Keys and certificates that are there stay: who renders again changes no secret. What is secret can be read by its owner
alone.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from aggregator.topology.desired.settings import RenderSettings
from aggregator.topology.render import server_config as names
from aggregator.topology.render.keys import KeyKind, key_of, make_key
from aggregator.topology.render.server_config import server_config
from aggregator.topology.render.servers import Server
from shared.whole_files import replacing

if TYPE_CHECKING:
    from aggregator.topology.render.certificates import Pem

KEYS = "keys"
_AUTHORITY_KEY = "ca-key.pem"
_SECRET, _OPEN = 0o600, 0o644
_ACCOUNT = re.compile(r"^  (\S+) \{$")
_KEY = re.compile(r"^      # (\S+)$")
_PUBLIC = re.compile("U[A-Z2-7]{55}")


class SecretsMissing(Exception):
    """Keys or certificates are not there, and none were to be made. The text says which, and what to do."""


class RenderDirectory:
    """Where everything goes: absolute paths below ``root``. ``written`` lists every file in its order."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._keys = self.root / KEYS
        self.written: list[Path] = []

    def make_keys(self, servers: Iterable[Server]) -> None:
        for name in list(self._missing_keys(servers)):
            self._write(self._keys / f"{name}.nk", make_key(KeyKind.USER).seed + "\n", _SECRET)

    def make_certificates(self, servers: Iterable[Server]) -> None:
        """Make the certificates that are missing, and an authority for them where there is none."""
        # Only here: who brings certificates of his own needs nothing to make them with.
        try:
            from aggregator.topology.render.certificates import Pem, make_authority, make_certificate  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise SecretsMissing(f"certificates cannot be made here: install muster[aggregator] ({error})") from error

        authority_path, authority_key_path = self._keys / names.AUTHORITY, self._keys / _AUTHORITY_KEY
        if not authority_path.exists():
            self._write_pair(authority_path, authority_key_path, make_authority("muster"))
        without = [each for each in servers if not (self.root / each.name / names.CERTIFICATE).exists()]
        if without and not authority_key_path.exists():
            raise SecretsMissing(
                f"{authority_key_path}: not there, and without it no certificate of"
                f" {', '.join(each.name for each in without)} can be made: put it there, or their certificates"
            )
        for server in without:
            authority = Pem(authority_path.read_bytes(), authority_key_path.read_bytes())
            try:
                pem = make_certificate(authority, server.name, [server.address.host])
            except ValueError as error:
                raise SecretsMissing(f"{authority_path} and {authority_key_path.name}: {error}") from error
            place = self.root / server.name
            self._write_pair(place / names.CERTIFICATE, place / names.PRIVATE_KEY, pem)

    def write(self, servers: tuple[Server, ...], wanted: RenderSettings) -> list[str]:
        """Write each server's configuration; say what a running server needs to take it up.

        Raise SecretsMissing before anything is written.
        """
        self._check(servers, wanted)
        files: list[tuple[Path, str | bytes, int]] = []
        reload_steps = []
        for server in servers:
            place = self.root / server.name
            if wanted.encrypt:
                files.append((place / names.AUTHORITY, (self._keys / names.AUTHORITY).read_bytes(), _OPEN))
            if server.uplinks:
                seed = f"{names.LEAF_VARIABLE}: {self._seed(server.uplink_key)}\n"
                files.append((place / names.LEAF_SEED, seed, _SECRET))
            path = place / names.CONFIG
            before = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
            text = server_config(server, wanted, PurePosixPath(wanted.files or place), self._public)
            files.append((path, text, _OPEN))
            reload_steps.append(_reload_step(server.name, before, text))
        for each in files:
            self._write(*each)
        return list(filter(None, reload_steps))

    def _check(self, servers: tuple[Server, ...], wanted: RenderSettings) -> None:
        missing = [*self._missing_keys(servers)]
        if missing:
            raise SecretsMissing(
                f"{self._keys}: no key of {', '.join(missing)}: let --make-keys make them, or put public keys there,"
                f" such as {missing[0]}.pub"
            )
        for server in servers:
            if server.uplinks and not (self._keys / f"{server.uplink_key}.nk").exists():
                raise SecretsMissing(
                    f"{self._keys}/{server.uplink_key}.nk: {server.name} needs the seed itself for its leaf link"
                )
        without = [each.name for each in servers if not (self.root / each.name / names.CERTIFICATE).exists()]
        if wanted.encrypt and (without or not (self._keys / names.AUTHORITY).exists()):
            raise SecretsMissing(
                f"{self.root}: no certificate of {', '.join(without) or 'the authority'}: let --make-certificates make"
                f" them, put your own there ({KEYS}/{names.AUTHORITY}; {names.CERTIFICATE} and {names.PRIVATE_KEY}"
                " in each server's directory), or say encrypt = false in [render]"
            )

    def _missing_keys(self, servers: Iterable[Server]) -> Iterator[str]:
        for name in dict.fromkeys(grant.key for server in servers for grant in server.grants):
            if not any((self._keys / f"{name}{ending}").exists() for ending in (".nk", ".pub")):
                yield name

    def _public(self, name: str) -> str:
        open_half = self._keys / f"{name}.pub"
        if not open_half.exists():
            return key_of(self._seed(name)).public
        key = open_half.read_text(encoding="utf-8", errors="replace").strip()
        if not _PUBLIC.fullmatch(key):
            raise SecretsMissing(f"{open_half}: not a user's public key, which is one line that starts with U")
        return key

    def _seed(self, name: str) -> str:
        path = self._keys / f"{name}.nk"
        seed = path.read_text(encoding="utf-8", errors="replace").strip()
        try:
            key_of(seed)
        except ValueError as error:
            raise SecretsMissing(f"{path}: {error}; a user's seed is one line that starts with SU") from error
        return seed

    def _write_pair(self, certificate: Path, key: Path, pem: "Pem") -> None:
        """Write the certificate last: one that is there is never made again, and would stay without its key."""
        self._write(key, pem.key, _SECRET)
        self._write(certificate, pem.certificate, _OPEN)

    def _write(self, path: Path, content: str | bytes, mode: int) -> None:
        """Write a file that is there whole or as it was, and whose mode is right from its first byte."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as made:
            descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
        self.written.append(path)


def _reload_step(server: str, before: str, after: str) -> str:
    """Say in one line what a running server needs, to take up a configuration that was rendered anew; "" for nothing.

    A reload makes the imports of an account that it has not known before only the second time, and leaves open leaf
    links in the account in which they were opened (nats-server 2.15.1).
    """
    if before in ("", after):
        return ""
    were, are = _accounts(before), _accounts(after)
    links = ((account, key) for account, keys in are.items() for key in keys if key.endswith("-leaf"))
    moved = [key for account, key in links if key in _elsewhere(were, account)]
    new = [account for account in are if account not in were]
    if moved:
        return f"{server}: restart it, {', '.join(moved)} has another account, and open links keep theirs over a reload"
    if new:
        return f"{server}: reload it twice, {', '.join(new)} works from the second time on"
    return f"{server}: reload it"


def _elsewhere(accounts: dict[str, list[str]], name: str) -> set[str]:
    return {key for account, keys in accounts.items() if account != name for key in keys}


def _accounts(config: str) -> dict[str, list[str]]:
    """Read which accounts a configuration has, and the names of the keys in each."""
    found: dict[str, list[str]] = {}
    _, _, rest = config.partition("\naccounts {\n")
    account = ""
    for line in rest.splitlines():
        if line == "}":
            break
        if named := _ACCOUNT.match(line):
            account = named[1]
            found[account] = []
        elif key := _KEY.match(line):
            found[account].append(key[1])
    return found
