"""Ask a running live service, as its commands do."""

import http.client
import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode, urlsplit

import click

from aggregator.config import AggregatorSettings
from shared.command_line.tables import visible
from shared.decoding import Decoder, WireError
from shared.redirects import NoRedirects
from shared.system_errors import reason_of

DEADLINE = 20.0
TOKEN_VARIABLE = "MUSTER_TOKEN"  # noqa: S105 - the name of a variable

T = TypeVar("T")


class LiveClient:
    """Asks one service. The token comes from the environment: an argument could be seen by others."""

    def __init__(self, settings: AggregatorSettings, url: str | None) -> None:
        live = settings.live
        address = f"[{live.address}]" if ":" in live.address else live.address
        self.url = (url or f"{'https' if live.tls_cert else 'http'}://{address}:{live.port}").rstrip("/")
        if not _is_of_a_service(self.url):
            raise click.ClickException(f"{self.url} is not the address of a service: write http://... or https://...")
        self._token = os.environ.get(TOKEN_VARIABLE, "").strip()
        if not (self._token.isascii() and self._token.isprintable()):
            raise click.ClickException(f"{TOKEN_VARIABLE} holds no token, which is one line of ASCII")
        context = ssl.create_default_context()
        if live.tls_cert and url is None:
            try:
                context.load_verify_locations(Path(live.tls_cert))
            except OSError as error:
                raise click.ClickException(f"tls_cert {live.tls_cert}: {reason_of(error)}") from error
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context), NoRedirects
        )

    def get(self, path: str, model: type[T], **query: object) -> T:
        """Ask the API; raise click.ClickException, one clear line."""
        asked = f"{self.url}/api/v1/{path}" + (f"?{urlencode(query)}" if query else "")
        request = urllib.request.Request(  # noqa: S310 - http and https alone, see above
            asked, headers={"Authorization": f"Bearer {self._token}"} if self._token else {}
        )
        try:
            with self._opener.open(request, timeout=DEADLINE) as answer:
                return Decoder(model, "what this version expects")(answer.read())
        except urllib.error.HTTPError as error:
            raise click.ClickException(f"{self.url}: {_error_text(error, has_token=bool(self._token))}") from error
        except (OSError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", error)
            reason = reason_of(cause) if isinstance(cause, OSError) else cause
            raise click.ClickException(
                f"{self.url} does not answer: {reason}; is muster-aggregator serve running?"
            ) from error
        except WireError as error:
            raise click.ClickException(f"{self.url} answers {error}") from error


_refusal = Decoder(dict[str, str], "a refusal")


def _is_of_a_service(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _error_text(error: urllib.error.HTTPError, *, has_token: bool) -> str:
    body = error.read(10_000)
    if error.code == 401 and has_token:
        return f"it does not know the token in {TOKEN_VARIABLE}"
    if error.code == 401:
        return f"a token is needed: set {TOKEN_VARIABLE}"
    if 300 <= error.code < 400:
        return f"not the service itself: it redirects to {visible(error.headers.get('Location', 'nowhere'))[:200]}"
    try:
        return _refusal(body)["error"]
    except (WireError, KeyError):
        return f"{error.code} {body.decode(errors='replace').strip()}"
