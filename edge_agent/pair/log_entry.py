"""Define the entries of a pair's log: who leads, and what every commit of the leader's depends on beside the stream.

The log is one subject of one stream on the site's servers. Every entry is written behind the last one its writer knows
of, or not at all: whoever has missed an entry, a former leader that was suspended say, can write no more.
"""

import zlib
from enum import StrEnum

import msgspec

from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import RecordedInput

LARGE = 16 << 10


class EntryKind(StrEnum):
    """What an entry says.

    LEADS: from here on its writer leads. RENEWED: it still does. RESIGNED: it has ended in order. BEGUN: a block begins
    in ``state``. DECIDED: what a commit depends on, and the state that it leads to. PROVED: as DECIDED, but only time
    went on.
    """

    LEADS = "leads"
    RENEWED = "renewed"
    RESIGNED = "resigned"
    BEGUN = "begun"
    DECIDED = "decided"
    PROVED = "proved"


class Writer(msgspec.Struct, frozen=True):
    """Which run of which member writes.

    ``key`` is the fingerprint of its secret for message ids, ``settings`` that of what its blocks' decisions depend on.
    """

    member: str
    boot_id: str
    key: str
    settings: dict[str, str]


Delivered = dict[str, dict[str, int]]
"""By block and lane: the entry up to which everything decided has been acknowledged by the region."""


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="protocol", tag="muster:pair:1"):
    """One entry.

    ``generation`` names the log since it was founded, which an entry with ``founds`` did: ``"empty"`` by a member whose
    store knew nothing, ``"history"`` by one that went on from its own. ``recorded`` are the recorded inputs of one
    commit of ``block``, ``oldest_forwarded`` the instant before which messages were too old to be forwarded.
    """

    kind: EntryKind
    generation: str
    writer: Writer
    founds: str = ""
    block: str = ""
    state: BlockState | None = None
    recorded: tuple[RecordedInput, ...] = ()
    oldest_forwarded: int = 0
    delivered: Delivered = {}


def encode_entry(entry: Entry) -> bytes:
    """Write an entry as JSON, packed where it is large: one commit may have clamped thousands of messages."""
    body = msgspec.json.encode(entry)
    return body if len(body) < LARGE else zlib.compress(body, 1)


def decode_entry(body: bytes) -> Entry:
    """Read an entry; raise ValueError where it is none that this agent reads."""
    try:
        return msgspec.json.decode(body if body.startswith(b"{") else zlib.decompress(body), type=Entry)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(f"it is none that this agent reads: {error}") from error


class Logged(msgspec.Struct, frozen=True):
    """An entry where it stands in the log; ``stored_at`` by the server's clock, in microseconds."""

    sequence: int
    entry: Entry
    stored_at: int
