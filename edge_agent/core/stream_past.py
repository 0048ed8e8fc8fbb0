"""Decide where reading goes on, given what was committed and what the stream shows on a connect.

A stream's past can change while its name and creation time stay: it is restored from an older copy, or a memory stream
restarts and uses its sequences again. Sequences are believed only where the message at the committed position is
still the one that was read. A stream that was recreated holds nothing that was read; in any other past, what was stored
no later than the last message read was read. That may be many pasts ago.
"""

from enum import StrEnum

import msgspec

from shared.identifiers import Incarnation, SourcePosition
from shared.instants import format_instant
from shared.subjects import covers


class StreamTakes(msgspec.Struct, frozen=True):
    """What a stream's configuration lets it take.

    ``max_message_size`` in bytes, 0: no limit of the stream's own. ``routing`` stands for what it copies from others,
    and for how it renames subjects: the same text as long as both are the same. ``permits`` names what else it lets
    messages ask for, and refuses them where it does not.
    """

    subjects: tuple[str, ...] = ()
    max_message_size: int = 0
    routing: str = ""
    permits: tuple[str, ...] = ()

    def lost_in(self, later: "StreamTakes") -> str:
        """Say what a stream that took this takes no more where it takes ``later``; "" where that is nothing.

        >>> StreamTakes(("a.>", "b")).lost_in(StreamTakes(("a.*", "b", "c")))
        'no longer listens on a.>'
        """
        others = set(self.subjects) - set(later.subjects)
        gone = [each for each in self.subjects if each in others and not any(covers(it, each) for it in later.subjects)]
        if gone:
            return f"no longer listens on {', '.join(gone)}"
        if later.max_message_size and not 0 < self.max_message_size <= later.max_message_size:
            return f"no longer takes messages of more than {later.max_message_size} bytes"
        if taken_back := [each for each in self.permits if each not in later.permits]:
            return f"no longer has {', '.join(taken_back)}, and refuses messages that need it"
        return "" if self.routing == later.routing else "copies or renames messages otherwise than before"

    def union(self, later: "StreamTakes") -> "StreamTakes":
        """Give what either takes; the routing is this one's."""
        sizes = (self.max_message_size, later.max_message_size)
        subjects = tuple(dict.fromkeys(self.subjects + later.subjects))
        permits = tuple(dict.fromkeys(self.permits + later.permits))
        return StreamTakes(subjects, max(sizes) if all(sizes) else 0, self.routing, permits)


class StreamFacts(msgspec.Struct, frozen=True):
    """What STREAM.INFO shows. Instants in microseconds; ``server_at`` is the server's clock when it answered.

    ``storage_fault`` says why what a sender has sent may not be in the stream, "" where it would be: it is sealed, or
    full, or lacks what it copies from another. Silence then proves nothing, nor of the last ``unheard_for``
    microseconds, in which the streams that it copies from were not heard, or the servers that hold it too: ``leader``
    names the one that leads them, "" where one server alone holds it.

    ``publish_error`` says why it refuses what is sent to it now, "" where it shows no reason. A stream that
    ``refuses_by_subject`` does not show which subjects are full. ``takes`` is what its configuration lets it take,
    ``mean_size`` what a message of it takes on the average, in bytes.

    ``first_stored_at`` is that of its first message, 0 where it is empty. One that ``awaits_consumers`` lets go of a
    message when no consumer needs it any more; one that ``copies`` stores what other streams hold, one that ``gathers``
    stores from several places.
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
    """Whether a sequence that is missing is that of a message that was let go."""
    subject_count: int = 0
    """How many subjects its messages have, where one message may take the place of another; else 0."""

    @property
    def is_empty(self) -> bool:
        return self.first_sequence > self.last_sequence

    def holds_what(self, other: "StreamFacts | None") -> bool:
        """Tell whether nothing was stored since ``other``."""
        return other is not None and (self.created_at, self.last_sequence) == (other.created_at, other.last_sequence)

    def incarnation(self, previous: Incarnation | None = None) -> Incarnation:
        """Name the past that begins now by the server's clock; never as ``previous`` was named."""
        epoch_ms = self.server_at // 1000
        if previous is not None and previous.created_at == self.created_at:
            epoch_ms = max(epoch_ms, previous.epoch_ms + 1)
        return Incarnation(self.created_at, epoch_ms)


class PastChange(StrEnum):
    """How a stream showed that its past is not the one that was read.

    RESTORED is one that is older than what was read: it was recreated, and then a copy from before was put back.
    FORGOTTEN is no other past of the stream, but of ours: more of it was read than we remember.
    """

    RECREATED = "recreated"
    RESTORED = "restored"
    SHORTENED = "shortened"
    REWRITTEN = "rewritten"
    FORGOTTEN = "forgotten"


def change_in_words(change: PastChange, position: SourcePosition, facts: StreamFacts) -> str:
    """Say to people how the past of a stream that was read up to ``position`` has changed.

    Nothing of one that was forgotten: who finds that out knows more of it.
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
    """Tell from the stream's facts whether the past has changed since ``position``."""
    if facts.created_at > position.incarnation.created_at:
        return PastChange.RECREATED
    if facts.created_at < position.incarnation.created_at:
        return PastChange.RESTORED
    if facts.last_sequence < position.sequence:
        return PastChange.SHORTENED
    return None


def is_forgotten(position: SourcePosition, acknowledged_through: int, facts: StreamFacts) -> bool:
    """Tell whether what follows the position was read and acknowledged, and we do not know of it.

    An acknowledgement follows its commit. What the stream has let go of shows nothing: a consumer then counts as
    acknowledged what never was. Nor does a position at which nothing was read yet: a block begins, or an epoch.
    """
    return (
        position.stored_at > 0
        and acknowledged_through > position.sequence
        and (acknowledged_through >= facts.first_sequence)
    )


def is_unread(position: SourcePosition, stored_at: int, last_stored_at: int) -> bool:
    """Tell whether the message now at the position is another one than was read up to there.

    Where nothing was read of this past yet, it is one that was read in a past before, or was stored later than those.
    """
    return stored_at != position.stored_at if position.stored_at else stored_at > last_stored_at


def is_gap(read_through: int, facts: StreamFacts) -> bool:
    """Tell whether retention outran the reader: messages behind ``read_through`` are gone unread."""
    return facts.first_sequence > read_through + 1
