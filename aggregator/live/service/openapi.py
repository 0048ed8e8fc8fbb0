"""Describe the API as OpenAPI 3.1, out of the types that it answers with. Pure."""

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

import msgspec
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PREFIX = "/api/v1"


class _AnyText(Convertor[str]):
    """A sender's name as the rest of a path: whatever is in it, also what starts a new line."""

    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        """Take it as it is."""
        return value

    def to_string(self, value: str) -> str:
        """Give it as it is."""
        return value


register_url_convertor("text", _AnyText())


class Endpoint(NamedTuple):
    """One thing that can be asked: where, who answers, with what type, and how it is asked."""

    path: str
    answer: Callable[[Request], Awaitable[Response]]
    returns: Any
    summary: str
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    method: str = "GET"
    prefix: str = PREFIX

    @property
    def route(self) -> Route:
        """Give its route."""
        return Route(self.prefix + self.path, self.answer, methods=["POST" if self.body else self.method])


def document(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """Give the description."""
    endpoints = list(endpoints)
    types = [each for endpoint in endpoints for each in (endpoint.returns, endpoint.body) if each is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    by_type = dict(zip(map(repr, types), schemas, strict=True))
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        path = PREFIX + re.sub(r":\w+}", "}", endpoint.path)
        described: dict[str, Any] = {
            "summary": endpoint.summary,
            "operationId": endpoint.answer.__name__.strip("_"),
            "parameters": [*_path_parameters(path), *_query_parameters(endpoint.query)],
            "responses": {
                "200": {
                    "description": "The answer.",
                    "content": {"application/json": {"schema": by_type[repr(endpoint.returns)]}},
                },
                "default": {
                    "description": "Why there is none.",
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
                },
            },
        }
        if endpoint.body is not None:
            schema = by_type[repr(endpoint.body)]
            described["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        paths.setdefault(path, {})["post" if endpoint.body else endpoint.method.lower()] = described
    components["Error"] = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Muster, the live fleet", "version": "1"},
        "paths": paths,
        # Who needs no token to read, needs none.
        "security": [{}, {"token": []}],
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", path)
    ]


def _query_parameters(query: type[msgspec.Struct] | None) -> list[dict[str, Any]]:
    if query is None:
        return []
    _, components = msgspec.json.schema_components([query], ref_template="#/components/schemas/{name}")
    described = components[query.__name__]
    required = set(described.get("required", ()))
    # An empty one counts as one that is not there.
    return [
        {"name": name, "in": "query", "schema": schema}
        | ({"required": True} if name in required else {"allowEmptyValue": True})
        for name, schema in described["properties"].items()
    ]
