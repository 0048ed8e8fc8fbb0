"""A server with one stream, a client beside it, and a link over which the agent comes to it."""

from collections.abc import Mapping
from typing import Any

from nats.aio.client import Client

from shared.embedded.link import EmbeddedLink
from shared.embedded.server import EmbeddedNats
from shared.nats.jetstream_api import create_stream, request_json

DEADLINE = 180.0


class LinkedServer:
    """What sites and regions have in common. A subclass says which ``stream`` it has, and on which ``subjects``."""

    stream: str
    subjects: str

    def __init__(self, server: EmbeddedNats, client: Client, link: EmbeddedLink) -> None:
        self.server = server
        self.client = client
        self.link = link

    async def api(self, subject: str, body: object = None) -> dict[str, Any]:
        """Ask the JetStream API; raise ApiError where it says no."""
        return await request_json(self.client, f"$JS.API.{subject}", body, dict[str, Any], deadline=DEADLINE)

    async def make_stream(self, **config: object) -> None:
        """Make the stream."""
        await self.create_stream(self.stream_config(**config))

    async def create_stream(self, config: Mapping[str, object]) -> None:
        """Make any stream."""
        await create_stream(
            self.client, f"$JS.API.STREAM.CREATE.{config['name']}", config, dict[str, Any], deadline=DEADLINE
        )

    def stream_config(self, **config: object) -> dict[str, object]:
        """Say what the stream is to be."""
        return {"name": self.stream, "subjects": [self.subjects], **config}

    async def update_stream(self, **config: object) -> None:
        """Change the stream's configuration."""
        known = (await self.api(f"STREAM.INFO.{self.stream}"))["config"]
        await self.api(f"STREAM.UPDATE.{self.stream}", {**known, **config})
