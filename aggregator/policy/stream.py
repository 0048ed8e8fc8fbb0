"""Read the hub's policy, and add to it: a revision's number is its place in the stream, and nobody's is lost.

Whoever adds one says which was the last that they knew of. The server refuses it where another has come since; then
everything is read, checked and said again.
"""

from collections.abc import Callable

import msgspec
import nats.errors
import nats.js.errors
from nats.aio.client import Client

from aggregator.archive.reader import explain_refusal
from aggregator.policy.book import Book
from aggregator.topology.desired.model import Place
from aggregator.topology.observed.connections import REQUEST_DEADLINE
from aggregator.topology.observed.messages import read_messages
from shared.decoding import Count, ReportedInstant
from shared.nats.jetstream_api import ApiError, RequestFailed, request_json
from shared.policy import (
    EVERY_REVISION,
    STREAM,
    Order,
    Revision,
    Scope,
    ScopedRevision,
    encode_revision,
    read_scoped_revision,
)
from shared.sizes import format_size

WRONG_LAST_SEQUENCE = 10071
_MOST_ATTEMPTS = 20


class PolicyUnavailable(Exception):
    """The policy cannot be read or added to; the text is one line, with what to do."""


class Held(msgspec.Struct, frozen=True):
    """What the stream holds. ``now`` is the hub's clock, ``unread`` counts what is not understood."""

    book: Book
    created_at: int
    last_sequence: int
    now: int
    unread: int = 0


class _PolicyStreamState(msgspec.Struct, frozen=True):
    last_seq: Count = 0


class _PolicyStreamInfo(msgspec.Struct, frozen=True):
    created: ReportedInstant
    ts: ReportedInstant
    state: _PolicyStreamState


async def read_policy(client: Client, hub: Place) -> Held:
    """Read all of it; raise PolicyUnavailable."""
    try:
        info = await request_json(
            client, f"{hub.api}.STREAM.INFO.{STREAM}", None, _PolicyStreamInfo, deadline=REQUEST_DEADLINE
        )
        read = [each async for each in read_messages(client, (hub, STREAM), EVERY_REVISION)]
    except ApiError as error:
        raise PolicyUnavailable(explain_refusal(STREAM, error)) from error
    except RequestFailed as error:
        raise PolicyUnavailable(str(error)) from error
    said = [one for each in read if (one := read_scoped_revision(*each)) is not None]
    last = max([info.state.last_seq, *(each.sequence for each in read)])
    return Held(Book(said), info.created, last, info.ts, unread=len(read) - len(said))


async def say(client: Client, hub: Place, author: str, make: Callable[[Book], tuple[Scope, Order]]) -> ScopedRevision:
    """Add what ``make`` gives for the policy as it is; it is asked again where another revision came in between.

    Raise PolicyUnavailable, and what ``make`` raises.
    """
    for _ in range(_MOST_ATTEMPTS):
        held = await read_policy(client, hub)
        scope, order = make(held.book)
        revision = Revision(
            revision=held.last_sequence + 1,
            stream_created_us=held.created_at,
            given_at_us=held.now,
            author=author,
            order=order,
        )
        if await _is_added(client, scope, revision):
            return ScopedRevision(scope, revision)
    raise PolicyUnavailable("others go on adding revisions; nothing was said, try again")


async def _is_added(client: Client, scope: Scope, revision: Revision) -> bool:
    headers = {"Nats-Expected-Last-Sequence": str(revision.revision - 1), "Nats-Expected-Stream": STREAM}
    body = encode_revision(revision)
    try:
        await client.jetstream(timeout=REQUEST_DEADLINE).publish(scope.subject, body, headers=headers)
    except nats.js.errors.APIError as error:
        if error.err_code == WRONG_LAST_SEQUENCE:
            return False
        raise PolicyUnavailable(f"the hub refuses it: {error.description}") from error
    except nats.errors.MaxPayloadError as error:
        limit = format_size(client.max_payload)
        raise PolicyUnavailable(f"it is larger than a message to the hub may be ({limit}): say it in parts") from error
    except (nats.errors.Error, TimeoutError) as error:
        raise PolicyUnavailable(
            f"no word from the hub whether revision {revision.revision} was taken: see muster-aggregator policy history"
        ) from error
    return True
