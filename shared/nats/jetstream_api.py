"""Ask a JetStream API by its subjects and read the answer as a Struct, or say in one line why there is none.

nats-py's own dataclasses drop fields that they do not know, so nothing that is to be sent back may pass through them.
Source: the JetStream API reference, ``$JS.API.>``; in another domain ``$JS.<domain>.API.>``.
"""

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from shared.decoding import Count, Decoder, WireError
from shared.tasks import keep_cancellation

T = TypeVar("T")

_NO_RESPONDERS = "503"
NO_SUCH_STREAM = 10059
NO_SUCH_CONSUMER = 10014
NO_SUCH_MESSAGE = 10037
NO_QUORUM = 10008
_QUORUM_LOST = "no quorum: most JetStream servers there are down, or cut off"
_START_SERVERS = "start those servers, or mend the routes between them; nats server report jetstream lists them"
_ENABLE = "log in as a user of the account that holds the streams, or enable JetStream for this account"
_CAUSES = {
    NO_QUORUM: (_QUORUM_LOST, _START_SERVERS),
    10118: ("the stream is offline: most of its servers are down", _START_SERVERS),
    10119: ("the consumer is offline: most of its servers are down", _START_SERVERS),
    10039: ("JetStream is not enabled for this account", _ENABLE),
    10076: (
        "JetStream is not enabled on this server",
        "enable it there, or correct servers and domain in the settings",
    ),
}
"""Refusals whose descriptions name neither cause nor remedy, by ``err_code`` (nats-server's errors.json)."""

_NO_STORE = "error creating store for stream"
_NO_STORE_PATIENCE, _NO_STORE_RETRY = 5.0, 0.1
_LOOK_AT_LINK = 0.1


NO_STREAM_ANSWERS = "no stream answers there: none has that subject, or the one that has it is without a leader"
"""What a publish without responders proves."""

ANOTHER_STREAM = {"Nats-Expected-Stream": "."}
"""No stream can have this name: whoever would have stored a message with it says its own, and stores nothing."""


class RequestFailed(Exception):
    """A request got no usable answer: nobody listens, it took too long, or the link is down. Trying again may help."""


class NotPermitted(RequestFailed):
    """The server denies this user the subject of a request."""


class NoApi(RequestFailed):
    """No server answers JetStream's API on that subject, of that domain."""


class ApiError(Exception):
    """The server refused a request. ``err_code`` is its own, finer code (10059: no such stream).

    ``remedy`` is empty where the code alone does not name one.
    """

    def __init__(self, code: int, err_code: int, description: str) -> None:
        cause, self.remedy = _CAUSES.get(err_code, (description, ""))
        super().__init__(f"{cause} ({err_code})")
        self.code = code
        self.err_code = err_code
        self.description = description


class Failure(msgspec.Struct):
    """Why a server refused, in its own words. ``err_code`` is finer than ``code``, which is HTTP's."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class PubAck(msgspec.Struct):
    """What a stream answers to a publish. One that refuses names itself, too, and 0 for the sequence."""

    stream: str = ""
    seq: Count = 0
    error: Failure | None = None


class _Envelope(msgspec.Struct):
    error: Failure | None = None


_DOMAIN_API = re.compile(r"\$JS\.([^.]+)\.API")

_envelope = Decoder(_Envelope, "an answer")
decode_pub_ack = Decoder(PubAck, "an acknowledgement")


def api_prefix(domain: str = "") -> str:
    """``$JS.API``, or ``$JS.<domain>.API`` for a domain that is not the connection's own."""
    return f"$JS.{domain}.API" if domain else "$JS.API"


def domain_of(api: str) -> str:
    """Give the domain of ``$JS.<domain>.API``, "" for any other API."""
    match = _DOMAIN_API.fullmatch(api)
    return match[1] if match else ""


def domain_inbox(prefix: str, domain: str, token: str) -> str:
    """Name where answers of another domain come: below the client's own inbox, and in no other domain's."""
    return f"{prefix}.{domain}.{token}"


async def request(
    client: Client, subject: str, payload: bytes, deadline: float, headers: Mapping[str, str] | None = None
) -> Msg:
    """Ask, and of another domain wait where nobody but that need be let answer: permissions can tell domains apart.

    While the link is down, wait for it first, for another ``deadline`` seconds at most. Raise what nats-py's
    ``request`` does.
    """
    await _wait_for_link(client, deadline)
    domain, sent = _DOMAIN_API.match(subject), dict(headers) if headers else None
    if domain is None:
        return await client.request(subject, payload, timeout=deadline, headers=sent)
    prefix, _, token = client.new_inbox().rpartition(".")
    inbox = domain_inbox(prefix, domain[1], token)
    answers = await client.subscribe(inbox)
    try:
        await client.publish(subject, payload, reply=inbox, headers=sent)
        with keep_cancellation():
            answer = await answers.next_msg(timeout=deadline)
    finally:
        # Also while the link is down: every reconnect subscribes again to what the client knows.
        if not client.is_closed:
            await answers.unsubscribe()
    if tells_of_nobody(answer):
        raise nats.errors.NoRespondersError
    return answer


def tells_of_nobody(answer: Msg) -> bool:
    """Tell whether it is the server's word that nobody listens there."""
    return (answer.headers or {}).get("Status") == _NO_RESPONDERS


async def stream_behind(client: Client, subject: str, deadline: float) -> str:
    """Ask which stream stores what is published on a subject, by a publish that it refuses; "" where it is none.

    Raise what ``request`` does.
    """
    return stream_in(await request(client, subject, b"", deadline, ANOTHER_STREAM))


def stream_in(answer: Msg) -> str:
    """Give the stream that an answer to a publish names, "" where it is no stream's."""
    try:
        return decode_pub_ack(answer.data).stream
    except WireError:
        return ""


async def _wait_for_link(client: Client, within: float) -> None:
    """Keep a request back: nats-py would send it at the reconnect, also when nobody waits for the answer any more."""
    give_up_at = time.monotonic() + within
    while not client.is_connected:
        if client.is_closed:
            raise nats.errors.ConnectionClosedError
        if time.monotonic() >= give_up_at:
            raise nats.errors.TimeoutError
        await asyncio.sleep(_LOOK_AT_LINK)


async def request_json(client: Client, subject: str, body: Any, model: type[T], *, deadline: float) -> T:
    """Send ``body`` as JSON (None: nothing; bytes: as they are) and decode the answer as ``model``.

    ``deadline`` is in seconds: for the answer, and before that for a link that is down. Raise ApiError where the server
    says no, RequestFailed where it says nothing usable.
    """
    payload = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
    try:
        reply = await request(client, subject, payload, deadline)
    except nats.errors.NoRespondersError as error:
        raise NoApi(
            f"{subject}: nobody answers there (JetStream off, domain down, wrong name, or no permission)"
        ) from error
    except (nats.errors.Error, TimeoutError) as error:
        cause = "no answer" if isinstance(error, TimeoutError) else str(error).removeprefix("nats: ")
        # A server that forbids to ask gives no answer, too.
        remedy = " (stalled, cut off, or no permission)" if isinstance(error, TimeoutError) else ""
        why = remedy if client.is_connected else ", the connection is down"
        raise RequestFailed(f"{subject}: {cause} within {deadline:g} s{why}") from error
    try:
        failure = _envelope(reply.data).error
        if failure is not None:
            raise ApiError(failure.code, failure.err_code, failure.description)
        return Decoder(model, "what was expected")(reply.data)
    except WireError as error:
        raise RequestFailed(f"{subject}: the answer is {error}") from error


async def create_stream(client: Client, subject: str, config: Any, model: type[T], *, deadline: float) -> T:
    """Ask for a stream as ``request_json`` does, and again for some seconds where its store cannot be made.

    A server that has deleted an account's last stream removes the account's directories only after it has answered
    (nats-server's ``stream.stop``): it can take away what it is just making for the next one.
    """
    give_up_at = time.monotonic() + _NO_STORE_PATIENCE
    while True:
        try:
            return await request_json(client, subject, config, model, deadline=deadline)
        except ApiError as error:
            if error.description != _NO_STORE or time.monotonic() >= give_up_at:
                raise
        await asyncio.sleep(_NO_STORE_RETRY)
