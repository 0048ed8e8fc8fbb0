"""See to it that a stream stores what a fleet will publish, before the first sender says a word."""

from typing import Any, Final

from nats.aio.client import Client

from shared.nats.jetstream_api import NO_SUCH_STREAM, ApiError, RequestFailed, api_prefix, request_json
from shared.subjects import covers

_DEADLINE: Final = 5.0
_MAX_AGE: Final = 7 * 24 * 3600 * 1_000_000_000
"""What a stream made here keeps, in nanoseconds: longer than an agent's longest weekend, and not for ever."""


class NoSuchStream(Exception):
    """No stream will store the registrations. The text is one line that says what to do."""


async def ensure_stream(client: Client, name: str, subject: str, *, create: bool) -> None:
    """Check that the stream takes ``subject`` (a wildcard covers what is published); make it where ``create`` says so.

    Raise NoSuchStream.
    """
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
