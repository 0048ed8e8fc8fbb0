"""Check that a stream will store a fleet's registrations, before the first one.

A user that may only publish, as the nodes of a site, cannot check: then the first acknowledgements show it.
"""

import asyncio
from contextlib import suppress
from typing import Annotated, Any, Final

from msgspec import Meta
from nats.aio.client import Client

from shared.nats.client import EdgeClient
from shared.nats.connection import LinkEvent, LinkState, connect
from shared.nats.jetstream_api import NO_SUCH_STREAM, ApiError, RequestFailed, api_prefix, request_json
from shared.nats.settings import ConnectionSettings
from shared.subjects import covers
from shared.tasks import Interrupted, unless_set

_CONNECT_DEADLINE: Final = 10.0
_DEADLINE: Final = 5.0
_MAX_AGE: Final = 7 * 24 * 3600 * 1_000_000_000
"""What a stream made here keeps, in nanoseconds: longer than an agent's longest weekend, and not for ever."""


class NoSuchStream(Exception):
    """No stream will store the registrations. The text is one line with the remedy."""


class FleetConnection(ConnectionSettings, frozen=True):
    """The place where a fleet publishes, and its user."""

    inbox_prefix: Annotated[str, Meta(description="where the user may hear answers, such as _INBOX_nodes")] = "_INBOX"


class FleetClient:
    """A fleet's connection, and the denials of its server."""

    def __init__(self, settings: FleetConnection) -> None:
        self.client: EdgeClient
        self._settings = settings
        self._denial = ""
        self._is_denied = asyncio.Event()

    async def connect(self, name: str) -> EdgeClient:
        """Connect; raise ConnectFailed. While it is disconnected nothing is held, nor sent late."""
        self.client = await connect(
            self._settings,
            name=name,
            deadline=_CONNECT_DEADLINE,
            inbox_prefix=self._settings.inbox_prefix,
            on_state=self._note,
            pending_size=0,
        )
        return self.client

    def _note(self, state: LinkState) -> None:
        if state.event is LinkEvent.DENIED and not self._denial:
            self._denial = state.reason
            self._is_denied.set()

    async def ensure_stream(self, name: str, subject: str, *, create: bool) -> str:
        """Check that the stream takes ``subject`` (a wildcard covers all published ones), if this user may ask.

        ``create`` makes it where there is none. Give a line for people where this user may not ask. Raise NoSuchStream.
        """
        with suppress(Interrupted):
            await unless_set(self._is_denied, _ensure_stream(self.client, name, subject, create=create))
            return ""
        if "publish" not in self._denial.lower():
            raise NoSuchStream(
                f"{self._denial}: say in the file of --connection where this user hears answers, such as"
                ' inbox_prefix = "_INBOX_nodes"'
            )
        if create:
            raise NoSuchStream(f"{self._denial}: this user makes no stream: leave --create-stream out")
        return f"this user may not look at stream {name}: whether it stores what is sent, its acknowledgements tell"


async def _ensure_stream(client: Client, name: str, subject: str, *, create: bool) -> None:
    prefix = api_prefix()
    try:
        info = await request_json(client, f"{prefix}.STREAM.INFO.{name}", None, dict[str, Any], deadline=_DEADLINE)
    except ApiError as error:
        if error.err_code != NO_SUCH_STREAM:
            raise NoSuchStream(f"stream {name}: {error}") from error
        if not create:
            raise NoSuchStream(f"there is no stream {name}: make it, or add --create-stream") from error
        await _create(client, name, subject)
        return
    except RequestFailed as error:
        raise NoSuchStream(f"{error}: does the server have JetStream?") from error
    subjects: list[str] = info["config"].get("subjects", [])
    if not any(covers(pattern, subject) for pattern in subjects):
        raise NoSuchStream(
            f"stream {name} does not take {subject}, only {', '.join(subjects) or 'nothing'}: choose another --subject"
        )


async def _create(client: Client, name: str, subject: str) -> None:
    config = {
        "name": name,
        "subjects": [subject],
        "retention": "limits",
        "storage": "file",
        "discard": "old",
        "max_age": _MAX_AGE,
        "num_replicas": 1,
    }
    try:
        await request_json(client, f"{api_prefix()}.STREAM.CREATE.{name}", config, dict[str, Any], deadline=_DEADLINE)
    except (ApiError, RequestFailed) as error:
        raise NoSuchStream(f"stream {name} could not be made: {error}") from error
