"""Judge of archived messages: is a message a valid record, and which of its instants are believed?

Invariants:

- The subject names the owner of a record, for permissions protect it; a body that contradicts it is quarantined.
- A record has one main instant (``at_us`` of an advisory, ``observed_through_us`` of a watermark) and others that the
  same clock wrote: a last sighting, the start of observation, the end of being unheard. The hub stored the record at an
  instant of its own clock: the main instant is believed to be no later than that, and no more than ``REACH`` earlier.
- All others move back by the same amount, up to ``LEAD``: a clock that is ahead by a constant changes no duration. None
  is believed to be later than the main instant, or more than ``LOOK_BACK`` earlier.

Pure: the live service, the tables and the topology's reports accept and refuse the same records.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache, wraps
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar, TypeVarTuple

import msgspec
from msgspec import UNSET

from shared.decoding import WireError
from shared.identifiers import AdvisoryKind, BlockId, Incarnation, InvalidIdentifier, is_token, parse_number
from shared.instants import DAY, EARLIEST, HOUR, LATEST, MINUTE, SECOND
from shared.policy import DeclareMaintenance, Revision, Scope, decode_revision, parse_policy_subject
from shared.subjects import BLOCKS_PER_SITE, ROOT, RecordType, parse_subject
from shared.wire import (
    CHORIA_EVENTS,
    SENDER_LIMIT,
    Advisory,
    ChoriaAdvisory,
    Watermark,
    decode_advisory,
    decode_watermark,
    parse_origin_header,
)

T = TypeVar("T")
P = ParamSpec("P")
Texts = TypeVarTuple("Texts")

CHORIA_BLOCK = "choria"
"""The block of plain Choria advisories that came on subjects of their own."""

LONGEST_SUBJECT = 256
"""In bytes: three names of 64 letters, and what stands around them in any subject of ours."""

LONGEST_INCARNATION = 64
"""In letters: what is longer is none, and would be kept with each block."""

REACH = 5 * 365 * DAY
"""The most by which an instant precedes the storing of its record: no link is cut, and no store keeps records, longer.
"""

LOOK_BACK = 400 * DAY
"""The most by which a last sighting, or the start of observation, precedes the main instant of its record: else the
tables would be as long as one body claims."""

UNSUPPORTED = 30 * DAY
"""The same of the first advisory of a sender, since no other record shows that it existed before."""

SKEW = MINUTE
"""Clocks of sites and of the hub differ by less; a claim further beyond the hub's time has no place in time."""

LEAD = HOUR
"""A clock that is ahead of the hub's by less is taken to be so constantly. Agents follow no clock further by default
(``max_clock_ahead``); a larger lead shows a clock that was set, and proves nothing about earlier instants."""

_MOST_CREATIONS = 10_000


class QuarantineReason(StrEnum):
    """Why a message was not taken."""

    UNKNOWN_SUBJECT = "unknown_subject"
    NOT_DECODABLE = "not_decodable"
    CONTRADICTS_SUBJECT = "contradicts_subject"
    IMPLAUSIBLE_INSTANT = "implausible_instant"
    NO_ORIGIN = "no_origin"
    NOT_TEXT = "not_text"
    NOT_JUDGED = "not_judged"
    TOO_MANY_BLOCKS = "too_many_blocks"


class SiteBlocks:
    """The blocks that count of each site: its first ones in the archive's order, as many as ``most``.

    Without a bound, the key of one site could make readers keep blocks without end. ``refused`` counts by site the
    records of all other blocks.
    """

    def __init__(self, most: int = BLOCKS_PER_SITE) -> None:
        self.most = most
        self.refused: dict[tuple[str, str], int] = {}
        self._known: dict[tuple[str, str], set[str]] = {}

    def add(self, region: str, site: str, block: str) -> None:
        """Add a block that counted before."""
        self._known.setdefault((region, site), set()).add(block)

    def admits(self, region: str, site: str, block: str) -> bool:
        """Return True if a record of a block counts; the block does from then on."""
        known = self._known.setdefault((region, site), set())
        if block in known or len(known) < self.most:
            known.add(block)
            return True
        self.refused[region, site] = self.refused.get((region, site), 0) + 1
        return False


class AdvisorySubject(NamedTuple):
    """Whose an advisory is, by its subject. A foreign subject does not say the kind and the site: they are None."""

    kind: AdvisoryKind | None
    region: str
    site: str | None
    block: str


class PlainAdvisory(msgspec.Struct, gc=False):
    """A plain Choria advisory under the names of our own fields."""

    event_id: str
    inspect_field: str
    value: str
    kind: AdvisoryKind
    region: str
    site: str
    block: str
    at_us: int
    last_seen_us: int
    stream: None = None
    incarnation: None = None
    sequence: None = None
    opening_sequence: None = None
    ordinal: None = None
    rebuilt: bool = False
    by_operator: bool = False
    unheard_until_us: None = None


AdvisoryBody: TypeAlias = Advisory | PlainAdvisory


class RegistrationOrigin(NamedTuple):
    """What the headers of a forwarded registration say of it; ``stored_at`` in microseconds."""

    stream: str
    incarnation: str
    sequence: int
    stored_at: int


def _quarantines(judge: Callable[P, T]) -> Callable[P, T | QuarantineReason]:
    """Return a function that judges as ``judge`` does, and quarantines the record if that raises an exception.

    Readers of the archive begin again where they broke off: a record that ended one would end it at each restart.
    """

    @wraps(judge)
    def judged(*args: P.args, **kwargs: P.kwargs) -> T | QuarantineReason:
        try:
            return judge(*args, **kwargs)
        except UnicodeDecodeError:
            return QuarantineReason.NOT_TEXT
        except WireError:
            return QuarantineReason.NOT_DECODABLE
        except Exception:  # noqa: BLE001 - a defect of a rule costs one record, which is counted, and no service
            return QuarantineReason.NOT_JUDGED

    return judged


def _check_encoding(payload: bytes) -> None:
    """Raise UnicodeDecodeError if a payload is not UTF-8: a decoder checks no text that it skips."""
    if not payload.isascii():
        payload.decode()


def cached_by_subject(find: Callable[[bytes, *Texts], T]) -> Callable[[bytes, *Texts], T]:
    """Return ``find`` with a cache of its results by subject, its first argument.

    A longer subject than agents publish on is not kept: a site's key can make up such subjects without end.
    """
    cached = lru_cache(maxsize=10_000)(find)

    @wraps(find)
    def found(subject: bytes, /, *rest: *Texts) -> T:
        return cached(subject, *rest) if len(subject) <= LONGEST_SUBJECT else find(subject, *rest)

    return found


def _advisory_subject(subject: bytes, choria_region: str) -> AdvisorySubject | None:
    text = subject.decode(errors="backslashreplace")
    ours = parse_subject(text)
    if ours is not None and ours.record_type is RecordType.ADVISORY:
        return AdvisorySubject(ours.kind, *msgspec.structs.astuple(ours.block_id))
    if not choria_region or text.split(".", 1)[0] == ROOT or parse_policy_subject(text) is not None:
        return None
    return AdvisorySubject(None, choria_region, None, CHORIA_BLOCK)


@cached_by_subject
def advisory_subject(subject: bytes, choria_region: str) -> AdvisorySubject | None:
    """Return the block of an advisory, by its subject; None if messages on the subject are no advisories."""
    return _advisory_subject(subject, choria_region)


@cached_by_subject
def named_by(subject: bytes, choria_region: str) -> AdvisorySubject | BlockId | Scope | None:
    """Return the owner of the advisories, watermarks or revisions on a subject; None if it is for none of these."""
    text = subject.decode(errors="backslashreplace")
    ours = parse_subject(text)
    if ours is not None and ours.record_type is RecordType.WATERMARK:
        return ours.block_id
    return _advisory_subject(subject, choria_region) or parse_policy_subject(text)


@_quarantines
def judged_advisory(payload: bytes, named: AdvisorySubject, earliest: int) -> AdvisoryBody | QuarantineReason:
    """Read an advisory of the one whom its subject names, not older than ``earliest`` (microseconds)."""
    _check_encoding(payload)
    found = decode_advisory(payload)
    wanted = named
    if named.site is None:
        if not is_token(found.replicator):
            return QuarantineReason.NOT_DECODABLE
        wanted = AdvisorySubject(found.kind, named.region, found.replicator, named.block)
    body = _with_our_names(found, wanted) if isinstance(found, ChoriaAdvisory) else found
    if not body.value or (body.incarnation is not None and len(body.incarnation) > LONGEST_INCARNATION):
        return QuarantineReason.NOT_DECODABLE
    said = (body.kind, body.region, body.site, body.block)
    if said != wanted or found.event != CHORIA_EVENTS[body.kind]:
        return QuarantineReason.CONTRADICTS_SUBJECT
    # A sender that was never seen has no time of it: Choria writes what it has.
    is_plausible = earliest <= body.at_us <= LATEST and 0 <= body.last_seen_us <= body.at_us
    unheard_until = body.unheard_until_us
    if unheard_until is not UNSET and unheard_until is not None:
        is_plausible = is_plausible and 0 <= unheard_until <= LATEST
    return body if is_plausible else QuarantineReason.IMPLAUSIBLE_INSTANT


@_quarantines
def judged_watermark(payload: bytes, block_id: BlockId, earliest: int) -> Watermark | QuarantineReason:
    """Read a watermark of the block that its subject names, not older than ``earliest`` (microseconds)."""
    _check_encoding(payload)
    found = decode_watermark(payload)
    if len(found.incarnation) > LONGEST_INCARNATION:
        return QuarantineReason.NOT_DECODABLE
    if (found.region, found.site, found.block) != (block_id.region, block_id.site, block_id.block):
        return QuarantineReason.CONTRADICTS_SUBJECT
    is_plausible = EARLIEST <= found.observed_since_us <= found.observed_through_us <= LATEST
    is_plausible = is_plausible and 0 <= found.rebuilt_at_us <= LATEST
    is_plausible = is_plausible and (found.store_began_us is UNSET or 0 <= found.store_began_us <= LATEST)
    return found if is_plausible and found.observed_through_us >= earliest else QuarantineReason.IMPLAUSIBLE_INSTANT


@_quarantines
def judged_revision(payload: bytes) -> Revision | QuarantineReason:
    """Return a revision of the policy, or the reason to quarantine it."""
    _check_encoding(payload)
    found = decode_revision(payload)
    is_plausible = EARLIEST <= found.given_at_us <= LATEST
    if isinstance(found.order, DeclareMaintenance):
        started_at, ended_at = found.order.started_at_us, found.order.ended_at_us
        if started_at >= ended_at:
            return QuarantineReason.NOT_DECODABLE
        is_plausible = is_plausible and started_at >= EARLIEST and ended_at <= LATEST
    return found if is_plausible else QuarantineReason.IMPLAUSIBLE_INSTANT


@_quarantines
def judged_registration(
    origin: str | None, source: str | None, sender: str | None, block_id: BlockId
) -> RegistrationOrigin | QuarantineReason:
    """Return the origin of a registration, or the reason to quarantine it.

    The headers are ``Muster-Origin``, ``Choria-SR-Source`` and ``Muster-Sender``.
    """
    if sender is not None and len(sender) > SENDER_LIMIT:
        return QuarantineReason.NOT_DECODABLE
    parts = (source or "").split(" ")
    try:
        named, _, sequence = parse_origin_header(origin or "")
        stored_ms = parse_number(parts[-1])
    except (WireError, InvalidIdentifier):
        return QuarantineReason.NO_ORIGIN
    if len(parts) < 5 or origin is None:
        return QuarantineReason.NO_ORIGIN
    if named != block_id:
        return QuarantineReason.CONTRADICTS_SUBJECT
    if not EARLIEST <= stored_ms * 1_000 <= LATEST:
        return QuarantineReason.IMPLAUSIBLE_INSTANT
    return RegistrationOrigin(parts[0], origin.split(".")[3], sequence, stored_ms * 1_000)


def _with_our_names(plain: ChoriaAdvisory, named: AdvisorySubject) -> PlainAdvisory:
    return PlainAdvisory(
        event_id=plain.event_id,
        inspect_field=plain.inspect_field,
        value=plain.value,
        kind=plain.kind,
        region=named.region,
        site=plain.replicator,
        block=named.block,
        at_us=plain.timestamp * SECOND,
        last_seen_us=plain.seen * SECOND,
    )


class Operators(NamedTuple):
    """The operators of numbers; Spark's columns have others, and the same rules."""

    least: Callable[..., Any] = min
    most: Callable[..., Any] = max
    choose: Callable[[Any, Any, Any], Any] = lambda condition, one, other: one if condition else other


_OF_NUMBERS = Operators()


def believed(
    claimed_at: Any, stored_at: Any, is_clock_behind: Any, operators: Operators = _OF_NUMBERS
) -> tuple[Any, Any, Any]:
    """Return the believed main instant of a record, its lead, and whether it is ahead.

    The other instants move back by the lead. A record that is ahead claims an instant so far beyond the hub's time that
    it has no place in time of its own. While the hub's clock is behind, its time of a record proves nothing against the
    claim: only the main instant moves, and no record is ahead.
    """
    choose = operators.choose
    at = operators.least(claimed_at, stored_at)
    lead = choose(claimed_at - at <= LEAD, choose(is_clock_behind, 0, claimed_at - at), 0)
    return at, lead, choose(is_clock_behind, False, claimed_at > stored_at + SKEW)


def believed_earlier(
    earlier: Any, believed_at: Any, lead: Any, created_at: Any, operators: Operators = _OF_NUMBERS
) -> Any:
    """Return the believed instant of ``earlier``, which a record claims next to its main instant.

    ``created_at`` is the creation of the stream unless the record claims to be older.
    """
    least, most, _ = operators
    return least(most(earlier - lead, created_at - lead, believed_at - LOOK_BACK), believed_at)


class BelievedTimes:
    """The believed instants of single records, with a cache of the creation times of streams by incarnation."""

    def __init__(self) -> None:
        self._created: dict[str, int] = {}

    def last_seen(self, advisory: AdvisoryBody, at: int, lead: int) -> int:
        """Return the believed last registration before an advisory that is believed to be of ``at``."""
        created_at = self._created_at(advisory.incarnation or "", advisory.at_us)
        return int(believed_earlier(advisory.last_seen_us, at, lead, created_at))

    def since(self, watermark: Watermark, through: int, lead: int) -> int:
        """Return the believed start of the span of a watermark that is believed to be of ``through``."""
        created_at = self._created_at(watermark.incarnation, watermark.observed_through_us)
        return int(believed_earlier(watermark.observed_since_us, through, lead, created_at))

    def _created_at(self, incarnation: str, claimed_at: int) -> int:
        """Return the creation time of an incarnation's stream; 0 if it is later than ``claimed_at`` or unreadable."""
        created = self._created.get(incarnation)
        if created is None:
            try:
                created = Incarnation.parse(incarnation).created_at
            except InvalidIdentifier:
                created = 0
            if len(self._created) < _MOST_CREATIONS:
                self._created[incarnation] = created
        return created if created <= claimed_at else 0
