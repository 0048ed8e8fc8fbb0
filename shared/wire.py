"""Define the records that cross the wire, byte for byte. Old versions are decoded for ever; golden bytes are tests.

An advisory is a valid ``io.choria.sr.v2.age_advisory`` with our own exact fields beside Choria's, so that existing
consumers keep working. Instants on the wire end in ``_us``: integer microseconds since the Unix epoch, UTC.
"""

import re
from enum import StrEnum
from typing import Annotated, Final, Literal, Self

import msgspec
from msgspec import UNSET, UnsetType

from shared.decoding import Count, Decoder, WireError
from shared.identifiers import (
    LARGEST_NUMBER,
    AdvisoryKind,
    BlockId,
    Incarnation,
    InvalidIdentifier,
    parse_number,
)
from shared.instants import SECOND

ADVISORY_PROTOCOL: Final = "io.choria.sr.v2.age_advisory"
WATERMARK_PROTOCOL: Final = "muster:watermark:1"
STOPPING: Final = "stopping"
"""The condition of a watermark after which its agent's run ends, as it was told to."""
PAIR_ALONE: Final = "pair_alone"
"""The condition of one of a redundant pair whose other would not take over."""

ORIGIN_HEADER = "Muster-Origin"
REASON_HEADER = "Muster-Reason"
SOURCE_HEADER = "Choria-SR-Source"
SENDER_HEADER = "Muster-Sender"
MESSAGE_ID_HEADER = "Nats-Msg-Id"

CHORIA_EVENTS = {
    AdvisoryKind.NEW: "new",
    AdvisoryKind.STALE: "timeout",
    AdvisoryKind.RECOVERED: "recover",
    AdvisoryKind.RETIRED: "expire",
}
SENDER_LIMIT: Final = 1_024
"""Characters of a sender's name, and of any other text in a record: agents send none that is longer."""
MOST_ENTRIES: Final = 1_000
Text = Annotated[str, msgspec.Meta(max_length=SENDER_LIMIT)]
Ordinal = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_NUMBER)]
Counts = Annotated[dict[Text, Count], msgspec.Meta(max_length=MOST_ENTRIES)]
KINDS_BY_CHORIA_EVENT = {event: kind for kind, event in CHORIA_EVENTS.items()}


class ForwardReason(StrEnum):
    """Why a registration was forwarded."""

    # That of the text that it equals, and not a function in Python.
    __hash__ = str.__hash__

    NEW = "new"
    INTERVAL = "interval"
    SIZE = "size"
    CHANGED = "changed"
    FORCED = "forced"
    RECOVERED = "recovered"
    POLICY = "policy"
    COPY = "copy"


class ChoriaAdvisory(msgspec.Struct, frozen=True):
    """An advisory as Choria's Stream Replicator writes it: no watermark vouches for it.

    Its schema says that ``age`` is an integer; its code writes a float.
    """

    protocol: Literal["io.choria.sr.v2.age_advisory"]
    event_id: Text
    inspect_field: Text
    value: Text
    age: float
    seen: int
    replicator: Text
    timestamp: int
    event: Literal["new", "timeout", "recover", "expire"]

    @property
    def kind(self) -> AdvisoryKind:
        return KINDS_BY_CHORIA_EVENT[self.event]


class Advisory(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Say that a sender became new, stale, recovered or retired at ``at_us``.

    ``age`` and ``seen`` are whole seconds, as Choria's consumers expect them; of a ``recovered`` they, and
    ``last_seen_us``, are those of the sighting before. ``sequence`` is that of the last sighting, which for ``new`` and
    ``recovered`` is the one that caused the advisory. ``ordinal`` counts the block's advisories within the incarnation
    from 1, without holes. ``by_operator`` is there, and true, where the hub's policy retired a sender;
    ``unheard_until_us`` where it was retired because nobody could hear it: the stream did not take any more what it
    published. Whether it lives is unknown from its last sighting (where it was stale, from ``at_us``) until then, or
    until its next advisory.
    """

    protocol: Literal["io.choria.sr.v2.age_advisory"] = ADVISORY_PROTOCOL
    event_id: Text
    inspect_field: Text
    value: Text
    age: Annotated[int, msgspec.Meta(ge=-1, le=LARGEST_NUMBER)]
    seen: int
    replicator: Text
    timestamp: int
    event: Literal["new", "timeout", "recover", "expire"]
    kind: AdvisoryKind
    region: Text
    site: Text
    block: Text
    at_us: int
    last_seen_us: int
    stream: Text
    incarnation: Text
    sequence: Count
    opening_sequence: Count
    ordinal: Ordinal
    rebuilt: bool = False
    by_operator: bool | UnsetType = UNSET
    unheard_until_us: int | UnsetType = UNSET

    def filled(
        self, event_id: str, sender_id: str, instants: tuple[int, int], sequences: tuple[int, int], ordinal: int
    ) -> Self:
        """Fill in a blank: what each advisory has of its own, and what follows from that.

        ``instants``: its own, and when the sender was last seen. ``sequences``: that of the last sighting, and that of
        the one that opened the episode.
        """
        at, last_seen_at = instants
        return _replace(
            self,
            event_id=event_id,
            value=sender_id,
            age=-1 if self.kind is AdvisoryKind.NEW else (at - last_seen_at) // SECOND,
            seen=last_seen_at // SECOND,
            timestamp=at // SECOND,
            at_us=at,
            last_seen_us=last_seen_at,
            sequence=sequences[0],
            opening_sequence=sequences[1],
            ordinal=ordinal,
        )

    @classmethod
    def blank(
        cls,
        block_id: BlockId,
        kind: AdvisoryKind,
        inspect_field: str,
        stream: str,
        incarnation: Incarnation,
        rebuilt: bool,
    ) -> Self:
        """Fill in once what a block's advisories of one kind have in common: most of their fields."""
        return cls(
            event_id="",
            inspect_field=inspect_field,
            value="",
            age=0,
            seen=0,
            replicator=block_id.site,
            timestamp=0,
            event=CHORIA_EVENTS[kind],  # type: ignore[arg-type]
            kind=kind,
            region=block_id.region,
            site=block_id.site,
            block=block_id.block,
            at_us=0,
            last_seen_us=0,
            stream=stream,
            incarnation=str(incarnation),
            sequence=0,
            opening_sequence=0,
            ordinal=0,
            rebuilt=rebuilt,
        )


class Watermark(msgspec.Struct, frozen=True, kw_only=True):
    """Vouch that everything the source stored in ``[observed_since_us, observed_through_us]`` was read and decided.

    ``stale_after``, ``retire_after`` and ``blind_after`` are in microseconds. ``rebuilt_at_us`` is 0, or the instant
    since which this store, after one was lost, has been learning its senders again: whoever it has not announced since
    then is unknown to it. ``counters`` maps what happened (rejected, dropped, compacted, clamped, ...) to cause to
    count. ``condition`` is there where it repeats the last one while no further one comes: the name of the agent's
    condition that keeps time from passing, or STOPPING. ``conditions`` names all that the agent is in, the worst first.
    ``store_began_us`` is the server's time at which the store began with the block, which names the store; unset where
    that is not known.
    """

    protocol: Literal["muster:watermark:1"] = WATERMARK_PROTOCOL
    region: Text
    site: Text
    block: Text
    agent: Text
    observed_since_us: int
    observed_through_us: int
    stream: Text
    incarnation: Text
    sequence: Count
    advisory_ordinal: Count
    senders: Counts
    outbox: Counts
    counters: Annotated[dict[Text, Counts], msgspec.Meta(max_length=MOST_ENTRIES)]
    stale_after: Count
    retire_after: Count
    blind_after: Count
    policy_revision: Count
    version: Text
    boot_id: Text
    rebuilt_at_us: int = 0
    condition: Text | UnsetType = UNSET
    conditions: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MOST_ENTRIES)] | UnsetType = UNSET
    store_began_us: int | UnsetType = UNSET


_FIT_FOR_HEADER = re.compile(r"(?! )[ -$&-~]+(?<! )")
_UNFIT_FOR_HEADER = re.compile(rb"[^ -$&-~]+|\A +| +\Z")
_ENCODED = re.compile(rb"%([0-9A-Fa-f]{2})")
_replace = msgspec.structs.replace
_encoder = msgspec.json.Encoder()
_advisory = Decoder(Advisory, "an advisory")
_choria_advisory = Decoder(ChoriaAdvisory, "an advisory of Choria")
decode_watermark = Decoder(Watermark, "a watermark")


def encode(record: Advisory | Watermark) -> bytes:
    """Write a record as compact JSON, its fields in the order of their definition."""
    return _encoder.encode(record)


def decode_advisory(body: bytes) -> Advisory | ChoriaAdvisory:
    """Read an advisory, ours or a plain Choria one; raise WireError with the reason."""
    try:
        return _advisory(body)
    except WireError as ours:
        try:
            plain = _choria_advisory(body)
        except WireError:
            raise ours from None
        if b'"at_us"' in body:
            raise
        return plain


def origin_header(block_id: BlockId, incarnation: Incarnation, sequence: int) -> str:
    """``<region>.<site>.<block>.<incarnation>.<sequence>``: a forwarded registration's identity."""
    return f"{block_id}.{incarnation}.{sequence}"


def parse_origin_header(text: str) -> tuple[BlockId, Incarnation, int]:
    """Read ``Muster-Origin``; raise WireError where it is not one."""
    tokens = text.split(".")
    if len(tokens) != 5:
        raise WireError(f"not an origin: {text!r}")
    region, site, block, incarnation, sequence = tokens
    try:
        return BlockId(region, site, block), Incarnation.parse(incarnation), parse_number(sequence)
    except InvalidIdentifier as error:
        raise WireError(f"not an origin: {text!r}") from error


def source_header(stream: str, sequence: int, site: str, name: str, stored_at: int) -> str:
    """``<stream> <sequence> <site> <name> <unix ms>``: where a copied message came from, in Choria's format."""
    return f"{stream} {sequence} {site} {name} {stored_at // 1000}"


def sender_header(sender_id: str) -> str:
    """Write a sender for a header: all but printable ASCII, and "%", is percent-encoded (RFC 3986, UTF-8, upper case).

    So are blanks at either end, which readers of headers remove. ``parse_sender_header`` gives any sender back.

    >>> sender_header(" büro 7%")
    '%20b%C3%BCro 7%25'
    """
    if _FIT_FOR_HEADER.fullmatch(sender_id):
        return sender_id
    return _UNFIT_FOR_HEADER.sub(
        lambda found: b"%%%b" % found[0].hex("%").upper().encode(), sender_id.encode()
    ).decode()


def parse_sender_header(text: str) -> str:
    """Read ``Muster-Sender``; whatever is no percent-encoded byte stands for itself.

    >>> parse_sender_header("%20b%C3%BCro 7%25")
    ' büro 7%'
    """
    if "%" not in text:
        return text
    return _ENCODED.sub(lambda found: bytes.fromhex(found[1].decode()), text.encode(errors="surrogatepass")).decode(
        errors="replace"
    )
