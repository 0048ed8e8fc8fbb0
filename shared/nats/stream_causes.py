"""Causes of a publish that no stream answers, found by questions to JetStream's API.

"No responders" proves little: nothing listens for a replicated stream while it has no leader. The API lists the streams
of the account by subject, whether they have leaders or not (tried on 2.15.1: STREAM.NAMES lists a stream of which two
of three servers are dead, and answers 10008 once most servers of the cluster are).
"""

import contextlib
from typing import Protocol, TypeVar

import msgspec

from shared.nats.causes import LinkCause
from shared.nats.client import EdgeClient
from shared.nats.jetstream_api import (
    NO_STREAM_ANSWERS,
    ApiError,
    NoApi,
    NotPermitted,
    RequestFailed,
    api_prefix,
    domain_of,
    request_json,
)
from shared.tasks import Interrupted, unless_set

T = TypeVar("T")

DEADLINE = 3.0
_START = "start its servers, or mend the routes between them; nats server report jetstream lists them"


class Ask(Protocol):
    """A request to JetStream's API; raises ApiError, NoApi and RequestFailed."""

    async def __call__(self, subject: str, body: object, model: type[T], /) -> T:
        """Return the answer."""


class _Names(msgspec.Struct):
    streams: tuple[str, ...] | None = None


class _Cluster(msgspec.Struct):
    leader: str = ""


class _Stream(msgspec.Struct):
    cluster: _Cluster | None = None

    @property
    def is_led(self) -> bool:
        # A single server reports no cluster.
        return self.cluster is None or bool(self.cluster.leader)


class _Account(msgspec.Struct):
    streams: int = 0
    domain: str = ""


async def explain_unanswered(ask: Ask, subject: str, domain: str, user: str, creation: str = "create it") -> LinkCause:
    """Return why no stream answers a publish on ``subject``; the text calls it "that subject".

    ``domain`` is the one of the settings, "" for the connection's own. ``user`` is the user of the connection,
    ``creation`` the remedy where there is no such stream.
    """
    api = api_prefix(domain)
    try:
        names = (await ask(f"{api}.STREAM.NAMES", {"subject": subject}, _Names)).streams or ()
    except ApiError as error:
        return LinkCause(f"no stream answers there: {error}", remedy=error.remedy or f"mend what {api} answers")
    except NoApi:
        of_domain = f" of domain {domain}" if domain else ""
        remedy = "enable JetStream there, correct servers, auth or domain in the settings, or mend the leaf link to it"
        return LinkCause(f"no stream answers there, nor does JetStream's API{of_domain} ({api})", remedy=remedy)
    except RequestFailed:
        remedy = (
            "look at the servers and streams there: nats server report jetstream, nats stream report; for the doctor "
            f"to tell which, let {user} publish on {api}.STREAM.NAMES"
        )
        return LinkCause(NO_STREAM_ANSWERS, remedy=remedy)
    if names:
        return await _of_stream(ask, api, names[0], user)
    return await _of_account(ask, api, user, creation)


async def _of_stream(ask: Ask, api: str, stream: str, user: str) -> LinkCause:
    is_led = False
    try:
        is_led = (await ask(f"{api}.STREAM.INFO.{stream}", None, _Stream)).is_led
    except NotPermitted:
        # A denial proves nothing about the leader.
        text = f"stream {stream} has that subject and does not answer: it has no leader, or publishes do not reach it"
        return LinkCause(text, remedy=f"{_START}; or let {user} publish on {api}.STREAM.INFO.{stream} to know which")
    except (ApiError, RequestFailed):
        pass
    if is_led:
        remedy = f"let what {user} publishes reach it: servers of its domain, or an import of that subject"
        return LinkCause(f"stream {stream} has that subject, but publishes do not reach it from here", remedy=remedy)
    return LinkCause(f"stream {stream} has no leader: most of its servers are down, or cut off", remedy=_START)


async def _of_account(ask: Ask, api: str, user: str, creation: str) -> LinkCause:
    text = "no stream of this account has that subject"
    with contextlib.suppress(ApiError, RequestFailed):
        account = await ask(f"{api}.INFO", None, _Account)
        domain = account.domain or domain_of(api)
        where = f" in domain {domain}" if domain else ""
        if account.streams:
            text = f"no stream of this account{where} has that subject"
        else:
            text = f"this account holds no stream{where}"
    remedy = f"{creation}; or correct servers and auth: {user} may belong to another account than the stream"
    return LinkCause(text, remedy=remedy)


class QuietAsk:
    """Asks over an open connection; the server's denial ends the wait and is not reported."""

    def __init__(self, client: EdgeClient) -> None:
        self._client = client

    async def __call__(self, subject: str, body: object, model: type[T], /) -> T:
        asking = request_json(self._client, subject, body, model, deadline=DEADLINE)
        with self._client.deniable(subject) as denied:
            try:
                return await unless_set(denied, asking)
            except Interrupted:
                raise NotPermitted(f"{subject}: not permitted") from None
