"""Turn the files that settings name into what a NATS client needs, and say in one line what is wrong with them.

Files are read again for every connection attempt, so that a rotated secret works without a restart. An error while
reconnecting is a ``nats.errors.Error``: nats-py tries again after those, and dies silently of others.
"""

import base64
import itertools
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import nats.errors
import nkeys  # type: ignore[import-untyped]

from shared.decoding import Decoder, WireError
from shared.instants import SECOND
from shared.nats.settings import AuthSettings, TlsSettings

_LAST_SECOND = 1 << 40
"""Beyond it, an end is none that anybody sees."""

_JWT = "BEGIN NATS USER JWT"
_SEED = "BEGIN USER NKEY SEED"


class _Claims(msgspec.Struct):
    """The part of a JWT that is needed here: RFC 7519; ``exp`` is in Unix seconds."""

    exp: int = 0


_claims = Decoder(_Claims, "the claims of a JWT")


class UnusableSecret(nats.errors.Error):
    """A file of the settings is missing, unreadable, or not what it should be. Its text is one clear line."""


class Login(NamedTuple):
    """What goes into the client's CONNECT; each part is asked for again at every attempt."""

    user: Callable[[], str] | None = None
    password: Callable[[], str] | None = None
    token: Callable[[], str] | None = None
    jwt: Callable[[], bytes] | None = None
    seed: Callable[[], str] | None = None
    seed_file: str = ""
    certificate: str = ""

    def check(self) -> None:
        """Read every file once; raise UnusableSecret, which names it."""
        for secret in (self.user, self.password, self.token, self.jwt, self.seed):
            if secret is not None:
                secret()
        if self.seed is not None:
            try:
                sign(self.seed(), "")
            except UnusableSecret as error:
                raise UnusableSecret(f"{self.seed_file}: {error}") from error

    @property
    def whom(self) -> str:
        """The name of the user in words, without a secret; "" where its file cannot be read now."""
        try:
            if self.seed is not None:
                return f"{'the user' if self.jwt else 'nkey'} {sign(self.seed(), '')[0]}"
        except UnusableSecret:
            return ""
        if self.user:
            return f"user {self.user()}"
        if self.token:
            return "who has the token"
        return f"the owner of certificate {self.certificate}" if self.certificate else "a user without auth"

    @property
    def is_by_certificate(self) -> bool:
        """True if the certificate is all that a server knows us by."""
        return bool(self.certificate) and not (self.seed or self.user or self.token)

    @property
    def is_anonymous(self) -> bool:
        return not (self.certificate or self.seed or self.user or self.token)

    @property
    def valid_until(self) -> int:
        """The instant at which the user's JWT expires; 0 where there is no JWT, or no end. Raises UnusableSecret."""
        if self.jwt is None:
            return 0
        payload = [*self.jwt().split(b"."), b""][1]
        try:
            end = _claims(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4))).exp
        except (ValueError, WireError):
            # The server refuses it, with a reason of its own.
            return 0
        return end * SECOND if 0 < end < _LAST_SECOND else 0


def login(auth: AuthSettings, tls: TlsSettings | None = None) -> Login:
    """Return how a connection logs in; no file is read yet."""
    way = _way(auth)
    return way._replace(certificate=tls.cert) if tls is not None else way


def _way(auth: AuthSettings) -> Login:
    if auth.nkey_seed_file:
        named = f"nkey_seed_file {auth.nkey_seed_file}"
        return Login(seed=lambda: _first_line("nkey_seed_file", auth.nkey_seed_file), seed_file=named)
    if auth.credentials_file:
        return Login(
            jwt=lambda: _section(auth.credentials_file, _JWT).encode(),
            seed=lambda: _section(auth.credentials_file, _SEED),
            seed_file=f"credentials_file {auth.credentials_file}",
        )
    if auth.user:
        return Login(user=lambda: auth.user, password=lambda: _first_line("password_file", auth.password_file))
    if auth.token_file:
        return Login(token=lambda: _first_line("token_file", auth.token_file))
    return Login()


def sign(seed: str, nonce: str) -> tuple[str, bytes]:
    """Sign the server's nonce; return the public key and the signature in base64; raise UnusableSecret."""
    try:
        pair = nkeys.from_seed(bytearray(seed, "ascii", "replace"))
        public_key = pair.public_key.decode()
        if not public_key.startswith("U"):
            raise UnusableSecret("the seed is not a user's: those start with SU")
        return public_key, base64.b64encode(pair.sign(nonce.encode()))
    except (nkeys.NkeysError, ValueError) as error:
        raise UnusableSecret("the nkey seed is damaged: a user's seed is one line that starts with SU") from error


def tls_context(tls: TlsSettings) -> ssl.SSLContext:
    """Load the authorities and our certificate; raise UnusableSecret."""
    for key, path in (("ca", tls.ca), ("cert", tls.cert), ("key", tls.key)):
        if path:
            _text(f"tls.{key}", path)
    try:
        context = ssl.create_default_context(cafile=tls.ca or None)
    except ssl.SSLError as error:
        raise UnusableSecret(f"tls.ca {tls.ca}: holds no certificate in PEM") from error
    if tls.cert:
        try:
            context.load_cert_chain(tls.cert, tls.key)
        except ssl.SSLError as error:
            mismatch = "MISMATCH" in str(error)
            cause = "does not fit the certificate" if mismatch else "or the certificate is not valid PEM"
            raise UnusableSecret(f"tls.key {tls.key}: {cause} {tls.cert}") from error
    return context


def _section(path: str, marker: str) -> str:
    """Take the line after the marker's from a credentials file."""
    lines = _text("credentials_file", path).splitlines()
    for line, following in itertools.pairwise(lines):
        if marker in line and following.strip():
            return following.strip()
    raise UnusableSecret(f"credentials_file {path}: has no section {marker!r}")


def _first_line(key: str, path: str) -> str:
    line = _text(key, path).strip().partition("\n")[0].strip()
    if not line:
        raise UnusableSecret(f"{key} {path}: is empty")
    return line


def _text(key: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UnusableSecret(f"{key} {path}: there is no such file") from error
    except UnicodeDecodeError as error:
        raise UnusableSecret(f"{key} {path}: is not text") from error
    except OSError as error:
        raise UnusableSecret(f"{key} {path}: cannot be read: {error.strerror}") from error
