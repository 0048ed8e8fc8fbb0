"""Serve the page: one document for every address that is a view, and the few files that it needs.

No script or style stands in the documents, and nothing comes from elsewhere: the guard's policy allows neither.
"""

from importlib.resources import files
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from aggregator.live.service.server import Extension, Service
from shared.blake2 import blake2b

VIEWS: Final = ("/", "/sites", "/sites/{region}/{site:path}", "/senders", "/sender", "/advisories", "/incidents")
_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class Page(Extension):
    """The page, as an extension of the service."""

    def routes(self, _service: Service) -> list[BaseRoute]:
        """Give the routes of the views, of the page for signing in, and of their files."""
        root = files(__package__)
        document = _File(root.joinpath("shell.html").read_bytes(), "text/html")
        routes: list[BaseRoute] = [Route(view, document.answer) for view in VIEWS]
        routes.append(Route("/login", _File(root.joinpath("login.html").read_bytes(), "text/html").answer))
        for file in root.joinpath("static").iterdir():
            kind = _TYPES.get(file.name.rpartition(".")[2])
            if kind is not None:
                routes.append(Route(f"/static/{file.name}", _File(file.read_bytes(), kind).answer))

        async def missing(request: Request) -> Response:
            """Show a person the page, which says that there is no such view, and tell programs in JSON."""
            if "text/html" not in request.headers.get("accept", ""):
                raise HTTPException(404)
            answer = await document.answer(request)
            answer.status_code = 404
            return answer

        return [*routes, _AnyOther("/{path:path}", missing)]


class _AnyOther(Route):
    """Any address but the API's, which says itself what it does not have, and but what leads to one without a slash."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Tell whether it is the page's to answer."""
        path, is_read = scope["path"], scope.get("method") in ("GET", "HEAD")
        is_others = path.startswith("/api/") or path.endswith("/") or not is_read
        return (Match.NONE, {}) if is_others else super().matches(scope)


class _File:
    """A file in memory; a browser asks each time whether it is still the same, so that no two releases mix."""

    def __init__(self, content: bytes, kind: str) -> None:
        tag = blake2b(content, digest_size=12).hexdigest()
        self._content, self._kind = content, kind
        self._headers = {"Cache-Control": "no-cache", "ETag": f'"{tag}"'}

    async def answer(self, request: Request) -> Response:
        if request.headers.get("If-None-Match") == self._headers["ETag"]:
            return Response(status_code=304, headers=self._headers)
        return Response(self._content, headers=self._headers, media_type=self._kind)
