"""Say what the two loops need of the world: a source, a store, an upstream. Tests hold the adapters to it."""

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Protocol

import msgspec

from edge_agent.core.block_mode import BlockDraft
from edge_agent.core.block_state import BlockState, Counters
from edge_agent.core.decisions import Decision, RecordedInput
from edge_agent.core.observation import SourceMessage
from edge_agent.core.policy import Policy
from edge_agent.core.policy_revisions import Standing
from edge_agent.core.records import Lane, OutboxRow
from edge_agent.core.senders import SenderChanges
from edge_agent.core.stream_past import PastChange, StreamFacts
from edge_agent.delivery.shipment import Answer, Shipment, SizeLimit, TooLarge
from shared.identifiers import BlockId
from shared.instants import HOUR

EVERYTHING = (1 << 63) - 1
DROPPED_LATELY = 24 * HOUR
"""For so long people are told of records that were dropped for their size, unless a limit has risen that is enough."""


class StoreUnwritable(Exception):
    """A commit cannot be made now; nothing was changed. Try again: ``cause`` and the message say what is in the way."""

    cause: ClassVar[str]


class StoreFull(StoreUnwritable):
    """The disk has no room for it."""

    cause = "disk full"


class StoreFailing(StoreUnwritable):
    """The disk has room, and fails."""

    cause = "disk failing"


class StoreLocked(StoreUnwritable):
    """Another process keeps the store locked."""

    cause = "store locked"


class SourceUnavailable(Exception):
    """The source cannot be read now; the message says why. Try again."""


class ConsumerPaused(SourceUnavailable):
    """An operator has paused the consumer: nothing is delivered."""


class ConsumerShared(SourceUnavailable):
    """Somebody else reads through the consumer."""


class BatchCommit(msgspec.Struct, frozen=True):
    """Everything that one batch changes: committed together or not at all.

    ``decisions``, where there are any, are what ``rows`` say, one each, for the log. What was stored before
    ``oldest_forwarded`` was too old to be forwarded. ``is_behind``: much more waits to be read.
    """

    block_id: BlockId
    state: BlockState
    changes: SenderChanges
    rows: Sequence[OutboxRow]
    recorded: Sequence[RecordedInput] = ()
    decisions: Sequence[Decision] = ()
    oldest_forwarded: int = 0
    is_behind: bool = False


class LaneDepth(msgspec.Struct, frozen=True):
    """How much waits in one lane."""

    rows: int = 0
    size: int = 0


class LaneRows(Protocol):
    """What a lane needs of where its rows are."""

    def at_hand(self, lane: Lane, after_row_id: int, row_limit: int) -> list[OutboxRow] | None:
        """Give what ``pending`` does where that takes no time; None where it may take some."""

    async def pending(
        self, lane: Lane, after_row_id: int, row_limit: int, byte_limit: int = EVERYTHING
    ) -> list[OutboxRow]:
        """Read a lane's rows after one, in order; from then on they are in flight and are not replaced.

        Out of the file no more than the row that reaches ``byte_limit``.
        """

    def delete_through(self, lane: Lane, row_id: int) -> None:
        """Let rows that were acknowledged go with the next transaction; losing this only sends them again."""

    def is_filling(self) -> bool:
        """Tell whether reading is behind and brings registrations by the hundred."""

    def release(self, lane: Lane) -> None:
        """Take back that rows are in flight: they will be read and sent again."""

    async def set_apart(self, rows: Sequence[tuple[OutboxRow, TooLarge]]) -> None:
        """Keep rows that their target cannot take where they hold up nobody; registrations, watermarks go, counted.

        Raise StoreUnwritable.
        """


class SetApart(msgspec.Struct, frozen=True):
    """The smallest row of one block in one lane that is over one limit, and what it needs."""

    lane: Lane
    block: str
    row_id: int
    too_large: TooLarge


class DroppedTooLarge(msgspec.Struct, frozen=True):
    """Registrations or watermarks of a block were dropped for one limit; what the largest needs, when the last was."""

    block: str
    too_large: TooLarge
    at: int


class SetApartSum(msgspec.Struct, frozen=True):
    """Records of one stream block and lane that are over one limit, the oldest of them since ``oldest_at``.

    ``needed`` is how large messages have to be allowed to be for all of them, in bytes, headers included.
    """

    stream: str
    lane: str
    limit: SizeLimit
    count: int
    size: int
    needed: int
    oldest_at: int

    @property
    def records(self) -> str:
        """Name them."""
        return {"copies": "copy", "advisories": "advisory"}[self.lane] if self.count == 1 else self.lane


class OutboxLevel(msgspec.Struct, frozen=True):
    """How much waits in the outbox, of how much at most, in bytes; and what is too large for the region, beside it."""

    size: int = 0
    limit: int = 0
    set_apart: tuple[SetApartSum, ...] = ()
    dropped: tuple[DroppedTooLarge, ...] = ()


class PutBack(msgspec.Struct, frozen=True):
    """Rows of a block in a lane that are over a limit, need at most so many bytes, and are to be sent again.

    Those before a row, and of them, the smallest first, no more than the one that reaches ``byte_limit``.
    """

    lane: Lane
    block: str
    limit: SizeLimit
    needed: int
    before: int = EVERYTHING
    byte_limit: int = EVERYTHING


class OutboxStore(LaneRows, Protocol):
    """What the uploader needs of the store."""

    async def wait_for_too_large(self) -> None:
        """Wait until something is set apart, or is known to have been dropped for its size."""

    async def dropped_too_large(self) -> list[DroppedTooLarge]:
        """Say what is known to have been dropped for its size."""

    async def forget_dropped(self, dropped: Sequence[DroppedTooLarge]) -> None:
        """Forget what was dropped, where nothing was since; raise StoreUnwritable."""

    async def smallest_set_apart(self) -> list[SetApart]:
        """Name what is set apart, for each block, lane and limit the smallest row."""

    async def put_back(self, which: PutBack) -> list[int]:
        """Append rows that are set apart to their lane again; give their new ids."""

    async def has_set_apart(self, row_id: int) -> bool:
        """Tell whether a row is set apart."""

    def acknowledged_through(self) -> dict[Lane, int]:
        """Name by lane the row up to which none waits any more."""

    async def wait_for_rows(self, seen: int) -> int:
        """Wait until the count of appends differs from ``seen``; give the new count."""

    def reads_ahead(self, lane: Lane, give_back: Callable[[], int]) -> None:
        """Let ``give_back`` be called before an operator drops a lane's rows: what was read and has not left.

        It gives the last row that may have left; those behind it are read again, where they are still there.
        """


class BatchStore(Protocol):
    """What the ingest loop needs of the store."""

    def is_paused(self) -> bool:
        """Tell whether what may not be dropped has reached the outbox's limit."""

    async def wait_for_room(self) -> None:
        """Wait until it has not."""

    async def commit(self, batch: BatchCommit) -> None:
        """Make one batch durable; raise StoreUnwritable, having changed nothing, where that cannot be done now."""

    async def let_uploads_follow(self) -> None:
        """Wait a moment where copies are read faster than they leave."""

    def depths(self) -> dict[Lane, LaneDepth]:
        """Measure what waits."""

    def outbox_counters(self, block: str) -> Counters:
        """Give what was compacted and dropped, by cause."""


class Journal(Protocol):
    """What the ingest loop of a redundant pair's leader needs: nothing is committed that the other could not decide."""

    async def record(self, batch: BatchCommit) -> BatchCommit:
        """Write down what a batch depends on; give the batch to be committed. Raise where another agent leads."""

    async def prove(self, block_id: BlockId, state: BlockState) -> None:
        """Write down, now and then, that only time has gone on."""

    def committed(self, batch: BatchCommit) -> None:
        """Note that a batch is durable."""


class Opened(msgspec.Struct, frozen=True):
    """How the source stands to the committed position.

    ``change`` says that the past is another one, to be read behind ``sequence``; ``is_gap`` that messages were lost to
    retention.
    """

    facts: StreamFacts
    sequence: int
    change: PastChange | None = None
    is_gap: bool = False


class ConsumerState(msgspec.Struct, frozen=True):
    """What a consumer shows of itself: ``pending`` messages of its stream wait to be read, delivered or not.

    The server removes it when it has not been used for ``expires_after`` microseconds; 0: never.
    """

    pending: int = 0
    expires_after: int = 0


class Checked(msgspec.Struct, frozen=True):
    """What a stream shows now, and the consumer that it is read through.

    ``caught_up_through`` is the instant up to which everything sent was stored and read, or 0. ``examined_sequence`` is
    the stream's last sequence where all of it was read, passed the filter or not, whatever that proves; else 0.
    ``refusal`` says why the stream refuses what is sent to it, "" where it does not, None where that is not known: as
    it was before.
    """

    facts: StreamFacts
    caught_up_through: int = 0
    examined_sequence: int = 0
    refusal: str | None = ""
    consumer: ConsumerState = ConsumerState()


class Progress(msgspec.Struct, frozen=True):
    """How far a block's reading has come, for people; instants are the stream's own time, 0 where there was none yet.

    ``pending`` messages of the stream waited to be read, ``pending_ago`` microseconds before; with any waiting, nothing
    has come for ``idle_for``. The stream was last looked at ``checked_ago`` before; ``server_at`` is the server's clock
    now, counted on from there. ``doubt`` says why the stream proves nothing, ``loss`` what it takes no more, where
    somebody may be missed because of that; no time ``is_covered`` while it is known not to take what is sent.
    ``expires_after`` is the consumer's. ``contradiction`` says how the server's clock stands to others, where it is too
    far ahead of them to be followed.
    """

    pending: int
    server_at: int
    checked_ago: int
    observed_through: int
    senders: dict[str, int]
    mode: str = "sample"
    blind_after: int = 0
    doubt: str = ""
    loss: str = ""
    is_covered: bool = True
    pending_ago: int = 0
    idle_for: int = 0
    expires_after: int = 0
    contradiction: str = ""

    @property
    def behind(self) -> int:
        """Give how far reading lies behind the server's clock, in microseconds."""
        return max(self.server_at - self.observed_through, 0) if self.observed_through else 0

    @property
    def ahead(self) -> int:
        """Give how far what was observed lies ahead of the server's clock, which was set back then."""
        return max(self.observed_through - self.server_at, 0)


class ClockBound(Protocol):
    """How far the ingest loop follows its stream's clock: what no other clock shows is not believed."""

    def bound(self, state: BlockState | None) -> int:
        """Give the latest instant that is followed now, by a block in ``state``."""

    def reference(self) -> int:
        """Give what the other clocks show."""

    async def compare(self, site_at: int) -> None:
        """Wait for another clock where one contradicts the stream's, and nothing else is known yet."""

    def follow(self, site_at: int) -> None:
        """Note what the stream's clock shows now, which is followed."""

    def contradiction(self, site_at: int) -> str:
        """Say how the stream's clock stands to the others."""


class Orders(Protocol):
    """What the ingest loop needs of the hub's policy."""

    def policy(self, standing: Standing) -> Policy:
        """Give the thresholds that hold after what was taken."""

    def inputs(self, state: BlockState) -> Iterable[Callable[[BlockDraft], bool]]:
        """Give what drafts of ``state`` are to be given, one for each revision that was not taken yet."""


class Source(Protocol):
    """What the ingest loop needs of a stream. Everything may raise SourceUnavailable: open() again."""

    @property
    def delivered_sequence(self) -> int:
        """Give the last sequence that was delivered, read or not."""

    @property
    def holds_unread(self) -> bool:
        """Tell whether something was delivered that has not been read."""

    @property
    def is_behind(self) -> bool:
        """Tell whether much waits behind what was read."""

    async def resolve_start(self) -> tuple[StreamFacts, int]:
        """Give the stream's facts and the last sequence before the configured start."""

    async def open(self, state: BlockState) -> Opened:
        """Point the consumer behind what ``state`` has read, checking that the past is still the same."""

    async def read(self, patience: float) -> Sequence[SourceMessage]:
        """Give the next messages, in order and without a hole; none if none came within ``patience`` seconds."""

    async def read_on(self) -> Sequence[SourceMessage]:
        """Give what follows closely, where reading is behind the stream: none else."""

    async def check(self, blind_after: int) -> Checked:
        """Ask the stream for its facts, and whether everything stored has been read; ``blind_after``: as in Policy."""

    async def consumer(self) -> ConsumerState:
        """Ask for what the consumer shows, whatever keeps reading from going on."""

    async def acknowledge(self, through: int | None = None) -> None:
        """Acknowledge what was read, up to a sequence where one is given; call it after the commit."""

    async def comes_back(self, within: float) -> bool:
        """Wait before another open(): True as soon as the connection is back, False after ``within`` seconds."""


class UpstreamUnavailable(Exception):
    """The upstream takes nothing now; the message says why. Everything unacknowledged is to be sent again."""


class Upstream(Protocol):
    """What the uploader needs of the region. Everything may raise UpstreamUnavailable."""

    async def ready(self) -> None:
        """Wait until there is a connection; what was in flight on an older one is lost."""

    async def send(self, shipment: Shipment) -> None:
        """Publish without waiting for the answer. One that no server takes is answered at once."""

    async def answers(self, patience: float) -> Sequence[Answer]:
        """Give what was answered since the last call; none if none came within ``patience`` seconds or poke()."""

    @property
    def max_payload(self) -> int:
        """Give how many bytes a message may have, headers included, as far as is known."""

    async def ask_max_payload(self) -> int:
        """Give the same as the server says it now, or said some seconds ago."""

    def poke(self) -> None:
        """Let answers() return: there is something to send."""

    def give_up(self) -> None:
        """Publish nothing more of what was sent."""

    def takes_more(self) -> bool:
        """Tell whether the link has taken bytes since the last call, and has more to take."""
