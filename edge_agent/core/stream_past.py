"""Detection of a changed past, from the committed position and the stream's facts on a connect.

A stream's past can change while its name and creation time stay: it is restored from an older copy, or a memory stream
restarts and uses its sequences again. Sequences are valid only if the message at the committed position is still the
one that was read. A stream that was recreated holds nothing that was read; in any other past, messages stored no later
than the last message read were read. That may be many pasts ago.
"""

from enum import StrEnum

import msgspec

from shared.identifiers import Incarnation, SourcePosition
from shared.instants import format_instant
from shared.subjects import covers


class StreamTakes(msgspec.Struct, frozen=True):
    """The messages that a stream's configuration lets it take.

    ``max_message_size`` in bytes, 0: no limit of the stream's own. ``routing`` is a digest of its mirror, its sources
    and its subject transform. ``permits`` are the options (``allow_...``) without which it refuses messages that use
    them.
    """

    subjects: tuple[str, ...] = ()
    max_message_size: int = 0
    routing: str = ""
    permits: tuple[str, ...] = ()

    def lost_in(self, later: "StreamTakes") -> str:
        """Return a clause on the messages that a stream no longer takes if it takes ``later``; "" if there are none.

        >>> StreamTakes(("a.>", "b")).lost_in(StreamTakes(("a.*", "b", "c")))
        'no longer listens on a.>'
        """
        others = set(self.subjects) - set(later.subjects)
        gone = [each for each in self.subjects if each in others and not any(covers(it, each) for it in later.subjects)]
        if gone:
            return f"no longer listens on {', '.join(gone)}"
        if later.max_message_size and not 0 < self.max_message_size <= later.max_message_size:
            return f"no longer takes messages of more than {later.max_message_size} bytes"
        if missing := [option for option in self.permits if option not in later.permits]:
            return f"no longer has {', '.join(missing)}, and refuses messages that need it"
        return "" if self.routing == later.routing else "copies or renames messages otherwise than before"

    def union(self, later: "StreamTakes") -> "StreamTakes":
        """Return a configuration that takes the messages of either; the routing is this one's."""
        sizes = (self.max_message_size, later.max_message_size)
        subjects = tuple(dict.fromkeys(self.subjects + later.subjects))
        permits = tuple(dict.fromkeys(self.permits + later.permits))
        return StreamTakes(subjects, max(sizes) if all(sizes) else 0, self.routing, permits)


class StreamFacts(msgspec.Struct, frozen=True):
    """The facts of STREAM.INFO. Instants in microseconds; ``server_at`` is the server's clock when it answered.

    ``storage_fault`` is why the stream may lack messages that were sent (it is sealed or full, or behind a stream that
    it copies from); "" if there is no reason. Silence then proves nothing, nor does silence of the last ``unheard_for``
    microseconds, in which the streams that it copies from, or most of its replicas, were not heard. ``leader`` is the
    server that leads the replicas, "" if one server alone holds the stream.

    ``publish_error`` is why it refuses messages now, "" if it shows no reason. A stream that ``refuses_by_subject``
    does not show which subjects are full. ``takes`` is what its configuration lets it take, ``mean_size`` the average
    size of a message in bytes.

    ``first_stored_at`` is that of its first message, 0 if it is empty. A stream that ``awaits_consumers`` deletes a
    message when no consumer needs it any more; one that ``copies`` stores messages of other streams, one that
    ``gathers`` stores from several places.
    """

    created_at: int
    first_sequence: int
    last_sequence: int
    server_at: int
    storage_fault: str = ""
    publish_error: str = ""
    refuses_by_subject: bool = False
    takes: StreamTakes = StreamTakes()
    mean_size: int = 0
    unheard_for: int = 0
    first_stored_at: int = 0
    awaits_consumers: bool = False
    gathers: bool = False
    copies: bool = False
    leader: str = ""
    shows_holes: bool = False
    """Whether a missing sequence is that of a deleted message."""
    subject_count: int = 0
    """How many subjects its messages have, if one message may replace another; else 0."""

    @property
    def is_empty(self) -> bool:
        return self.first_sequence > self.last_sequence

    def holds_what(self, other: "StreamFacts | None") -> bool:
        """Return True if nothing was stored since ``other``."""
        return other is not None and (self.created_at, self.last_sequence) == (other.created_at, other.last_sequence)

    def incarnation(self, previous: Incarnation | None = None) -> Incarnation:
        """Return the incarnation that begins now by the server's clock; always another one than ``previous``."""
        epoch_ms = self.server_at // 1000
        if previous is not None and previous.created_at == self.created_at:
            epoch_ms = max(epoch_ms, previous.epoch_ms + 1)
        return Incarnation(self.created_at, epoch_ms)


class PastChange(StrEnum):
    """How a stream showed that its past is not the one that was read.

    RESTORED: it is older than the one that was read, which had replaced it. FORGOTTEN: the stream is the same, but
    this store is an older copy: more was read and acknowledged than it holds.
    """

    RECREATED = "recreated"
    RESTORED = "restored"
    SHORTENED = "shortened"
    REWRITTEN = "rewritten"
    FORGOTTEN = "forgotten"


def describe_change(change: PastChange, position: SourcePosition, facts: StreamFacts) -> str:
    """Return a message about the changed past of a stream that was read up to ``position``.

    It is empty for FORGOTTEN, which SourceApi.is_forgotten() logs with more detail.
    """
    stream, made_at = f"stream {position.stream}", format_instant(facts.created_at)
    match change:
        case PastChange.RECREATED:
            return f"{stream} was deleted and made anew at {made_at}: it is read from its beginning"
        case PastChange.RESTORED:
            return f"{stream} is one of {made_at} again, older than the one that was read: a copy of it was put back"
        case PastChange.SHORTENED:
            read = f"{stream} ends at message {facts.last_sequence}, and was read through {position.sequence}"
            return f"{read}: an older copy of its server's store was put back, or it was in memory and lost"
        case PastChange.REWRITTEN:
            read = f"{stream} holds another message {position.sequence} than was read"
            return f"{read}: an older copy of its server's store was put back, or it was in memory and lost"
        case PastChange.FORGOTTEN:
            return ""


def past_change(position: SourcePosition, facts: StreamFacts) -> PastChange | None:
    """Return how the past has changed since ``position`` by the stream's facts, None if they show no change."""
    if facts.created_at > position.incarnation.created_at:
        return PastChange.RECREATED
    if facts.created_at < position.incarnation.created_at:
        return PastChange.RESTORED
    if facts.last_sequence < position.sequence:
        return PastChange.SHORTENED
    return None


def is_forgotten(position: SourcePosition, acknowledged_through: int, facts: StreamFacts) -> bool:
    """Return True if messages behind the position were read and acknowledged before, so that this store is older.

    An acknowledgement follows its commit. If the stream has deleted those messages it proves nothing: a consumer then
    counts them as acknowledged. Nor does a position at which nothing was read yet: a block or an epoch begins there.
    """
    return (
        position.stored_at > 0
        and acknowledged_through > position.sequence
        and (acknowledged_through >= facts.first_sequence)
    )


def is_unread(position: SourcePosition, stored_at: int, last_stored_at: int) -> bool:
    """Return True if the message now at the position is not the one that was read there.

    If nothing of this past was read yet, it is unread if it was stored later than every message read before.
    """
    return stored_at != position.stored_at if position.stored_at else stored_at > last_stored_at


def is_gap(read_through: int, facts: StreamFacts) -> bool:
    """Return True if retention has deleted messages behind ``read_through`` before they were read."""
    return facts.first_sequence > read_through + 1
