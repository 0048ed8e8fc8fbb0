"""Decide who may ask: by the name that was asked for, the address that asks, and tokens of which only hashes are kept.

Every answer has headers that forbid a browser whatever the page does not need. The checks hold for the page, the API
and the metrics alike.
"""

import hashlib
import hmac
import re
from enum import IntEnum
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator.config import LiveSettings
from aggregator.live.service.connections import network_of
from shared.system_errors import reason_of

COOKIE = "muster_token"
OPEN_PATHS = frozenset(("/healthz", "/login", "/api/v1/session"))
"""Who has no token yet may ask for these, and for what is the same for everybody, below ``STATIC``."""
STATIC = "/static/"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'self';"
        " worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_HASH = re.compile(r"[0-9a-f]{64}")
_FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
"""Headers by which a proxy says that it passes on a request of another client."""
_LOCAL_NAMES = frozenset(("localhost", "127.0.0.1", "::1"))
_MOST_TOKEN_BYTES = 1_024


class Right(IntEnum):
    """What a token allows; the greater includes the lesser."""

    NONE = 0
    READ = 1
    OPERATE = 2


class TokensUnreadable(Exception):
    """A file of tokens cannot be used; the text is one line."""


class Guard:
    """The checks, as settings say."""

    def __init__(self, settings: LiveSettings) -> None:
        # A URL's host is read in lower case.
        self._names = _LOCAL_NAMES | {settings.address, *map(str.lower, settings.hosts)}
        self._proxy = settings.proxy
        self._is_secure = bool(settings.tls_cert or settings.proxy)
        self._hashes = {
            Right.READ: _hashes(settings.read_token_file),
            Right.OPERATE: _hashes(settings.operate_token_file),
        }

    @property
    def is_secure(self) -> bool:
        """Tell whether readers come through TLS."""
        return self._is_secure

    @property
    def asks_for_tokens(self) -> bool:
        """Tell whether reading needs a token."""
        return bool(self._hashes[Right.READ])

    def right_of(self, headers: Headers) -> Right:
        """Say what whoever asks may do."""
        own = self.right_of_token(_token(headers))
        return own if own or self.asks_for_tokens else Right.READ

    def right_of_token(self, token: str) -> Right:
        """Say what a token allows."""
        hashed = hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()
        for right in (Right.OPERATE, Right.READ):
            # Each is compared, and each takes the same time.
            if token and sum(hmac.compare_digest(hashed, each) for each in self._hashes[right]):
                return right
        return Right.NONE

    def reader_of(self, scope: Scope, headers: Headers) -> tuple[str, str]:
        """Return the hash of a known token and the network that a request comes from; "" if unknown.

        The proxy alone may connect, so that the last address that it names, with or without a port, is the one it got
        the request from. If that cannot be read, the network is the proxy's.
        """
        token, client = _token(headers), scope.get("client")
        named = ",".join(headers.getlist("x-forwarded-for")).rpartition(",")[2].strip(' "') if self._proxy else ""
        addresses = named, _host_name(named), client[0] if client else ""
        known = hashlib.sha256(token.encode()).hexdigest() if self.right_of_token(token) else ""
        return known, next(filter(None, map(network_of, addresses)), "")

    def refusal(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        """Say with which status, and why, a request is refused before anything looks at it; None: it is not."""
        host = _host_name(headers.get("host", ""))
        if host not in self._names:
            return 421, "this service does not go by that name: add it to hosts in [live]"
        client = scope.get("client")
        if self._proxy and client is not None and not _is_from(client[0], self._proxy):
            return 403, "only the proxy that the settings name may connect"
        if not self.asks_for_tokens and any(name in headers for name in _FORWARDED):
            return 403, "a proxy opens this service to others: name it as proxy in [live], and a read_token_file"
        if scope["method"] not in ("GET", "HEAD") and not _is_same_origin(headers):
            return 403, "a request from another site is refused"
        is_open = scope["path"] in OPEN_PATHS or scope["path"].startswith(STATIC)
        if not is_open and self.right_of(headers) < Right.READ:
            return 401, "a token is needed: send it as Authorization: Bearer TOKEN"
        return None


class GuardedApp:
    """An ASGI application behind a guard."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app, self._guard = app, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or let the application answer, with the headers that every answer has."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        headers = Headers(scope=scope)
        refusal = self._guard.refusal(scope, headers)
        if refusal is None:
            await self._app(scope, receive, send_guarded)
            return
        status, why = refusal
        challenge = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
        if status == 401 and scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
            status, challenge = 303, {"Location": _login_for(scope)}
        await PlainTextResponse(f"{why}\n", status, challenge)(scope, receive, send_guarded)


def _login_for(scope: Scope) -> str:
    """Give the address of the page for signing in, which then leads to what was asked for."""
    asked = quote(scope["path"]) + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
    return "/login" if asked == "/" else f"/login?next={quote(asked, safe='')}"


def _hashes(path: str) -> tuple[str, ...]:
    if not path:
        return ()
    try:
        lines = Path(path).read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise TokensUnreadable(f"{path}: cannot be read: {reason_of(error, Path(path))}") from error
    except UnicodeDecodeError as error:
        raise TokensUnreadable(f"{path}: cannot be read: not plain text") from error
    found = tuple(line.split()[0].lower() for line in lines if line.strip() and not line.startswith("#"))
    wrong = [number for number, each in enumerate(found, start=1) if not _HASH.fullmatch(each)]
    if wrong or not found:
        raise TokensUnreadable(f"{path}: write one SHA-256 in hex (64 digits) a line: printf %s TOKEN | sha256sum")
    return found


def _token(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()[:_MOST_TOKEN_BYTES]
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return cookie.value[:_MOST_TOKEN_BYTES] if cookie is not None else ""


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "") if "@" not in host and "/" not in host else ""
    except ValueError:
        return ""


def _is_same_origin(headers: Headers) -> bool:
    """Tell whether a browser says that the service's own page asks; what is no browser says nothing."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host", "")


def _is_from(address: str, proxy: str) -> bool:
    try:
        return address == proxy or ip_address(address) == ip_address(proxy)
    except ValueError:
        return False
