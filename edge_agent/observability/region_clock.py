"""Hear the region's clock, in answers that a site's user may get: of its policy's consumer, or of the stream it fills.

Answers to publishes tell no time. Which stream that is says the refusal of a publish that expects another one: that is
permitted to whoever delivers there, and stores nothing.
"""

import asyncio

import msgspec
import nats.errors
from nats.aio.client import Client

from edge_agent.config.agent import AgentSettings
from edge_agent.observability.clocks import Clocks
from shared.instants import InvalidInstant, parse_instant
from shared.nats.jetstream_api import ApiError, PubAck, RequestFailed, api_prefix, request_json
from shared.policy import STREAM, consumer_name
from shared.subjects import watermark_subject
from shared.tasks import is_cancelled, wait_for_event

ASK_EVERY, ASK_SOON, SOON = 60.0, 5.0, 6
"""How often, in seconds, it is asked for: so many times sooner where a connection has not told it yet."""

DEADLINE = 3.0
_ANOTHER_STREAM = {"Nats-Expected-Stream": "."}
"""No stream can have this name."""


class _ServerTime(msgspec.Struct):
    ts: str


class RegionClock:
    """The region's clock over one link."""

    def __init__(self, client: Client, settings: AgentSettings, clocks: Clocks) -> None:
        self._client = client
        self._clocks = clocks
        self._api = api_prefix(settings.upstream.domain)
        self._consumer = f"CONSUMER.INFO.{STREAM}.{consumer_name(settings.site)}"
        first = next((block for block in settings.stream if block.mode == "sample"), None)
        self._subject = watermark_subject(settings.block_id(first), first.target.prefix) if first else ""
        self._asked = ""
        self._denied: set[str] = set()
        self._found = ""
        self._tries = 0
        self._changed = asyncio.Event()

    def break_off(self, _reason: str) -> None:
        """Ask again over a connection that is new: it may lead to another server, and permit more."""
        self._denied, self._found, self._tries = set(), "", 0
        self._changed.set()

    def takes_denial(self, reason: str) -> bool:
        """Take a permission violation that asking for the clock has caused."""
        if not self._asked or f'"{self._asked}"'.lower() not in reason.lower():
            return False
        self._denied.add(self._asked)
        return True

    async def hear(self) -> bool:
        """Ask once; tell whether there was an answer."""
        if await self._ask_time(self._consumer):
            return True
        self._found = self._found or await self._stream()
        return bool(self._found) and await self._ask_time(f"STREAM.INFO.{self._found}")

    async def run(self) -> None:
        """Ask now and then, until cancelled."""
        while not is_cancelled():
            self._changed.clear()
            is_known = self._client.is_connected and await self.hear()
            self._tries += 1
            await wait_for_event(self._changed, ASK_EVERY if is_known or self._tries > SOON else ASK_SOON)

    async def _ask_time(self, request: str) -> bool:
        subject = self._asked = f"{self._api}.{request}"
        if subject in self._denied:
            return False
        try:
            answer = await request_json(self._client, subject, None, _ServerTime, deadline=DEADLINE)
            self._clocks.hear_region(parse_instant(answer.ts))
        except (ApiError, RequestFailed, InvalidInstant):
            return False
        finally:
            self._asked = ""
        return True

    async def _stream(self) -> str:
        """Ask which stream stores what this site sends."""
        if not self._subject or self._subject in self._denied:
            return ""
        self._asked = self._subject
        try:
            answer = await self._client.request(self._subject, b"", timeout=DEADLINE, headers=_ANOTHER_STREAM)
            return msgspec.json.decode(answer.data, type=PubAck).stream
        except (nats.errors.Error, TimeoutError, msgspec.MsgspecError):
            return ""
        finally:
            self._asked = ""
