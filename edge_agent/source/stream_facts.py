"""Decoder of STREAM.INFO: whether the stream's silence proves anything, its limits, its fullness. No I/O."""

import msgspec

from edge_agent.core.stream_past import StreamFacts, StreamTakes
from shared.blake2 import blake2b
from shared.decoding import Count, Nanoseconds, ReportedInstant
from shared.subjects import covers

LARGE_REGISTRATION = 256 << 10
INTEREST = "interest"
LIMITS = "limits"
HEARD_WITHIN = 15_000_000_000
"""Nanoseconds: a server hears a stream that it copies from about every second, also if nothing is new."""


class _ReportedState(msgspec.Struct):
    messages: Count
    bytes: Count
    first_seq: Count
    last_seq: Count
    first_ts: ReportedInstant
    num_subjects: Count = 0


class _ReportedConfig(msgspec.Struct):
    subjects: tuple[str, ...] = ()
    retention: str = "limits"
    sealed: bool = False
    discard: str = "old"
    discard_new_per_subject: bool = False
    max_msgs: int = -1
    max_bytes: int = -1
    max_msg_size: int = -1
    max_msgs_per_subject: int = -1
    max_age: int = 0
    no_ack: bool = False
    duplicate_window: int = 0
    allow_msg_ttl: bool = False
    allow_rollup_hdrs: bool = False
    allow_atomic: bool = False
    allow_batched: bool = False
    allow_msg_schedules: bool = False
    subject_transform: msgspec.Raw = msgspec.Raw()
    mirror: msgspec.Raw = msgspec.Raw()
    sources: msgspec.Raw = msgspec.Raw()

    @property
    def deletes_singly(self) -> bool:
        """True if it may delete a message before an older one."""
        return self.max_msgs_per_subject > 0 or self.allow_msg_ttl or self.allow_rollup_hdrs

    @property
    def takes(self) -> StreamTakes:
        parts = [bytes(part) for part in (self.subject_transform, self.mirror, self.sources)]
        routing = blake2b(b"\n".join(parts), digest_size=8).hexdigest() if any(parts) else ""
        permits = tuple(name for name in self.__struct_fields__ if name.startswith("allow_") and getattr(self, name))
        return StreamTakes(self.subjects, max(self.max_msg_size, 0), routing, permits)


class CopiedStream(msgspec.Struct):
    """A stream that this one copies from: heard ``active`` nanoseconds ago (-1: never), ``lag`` messages behind it."""

    name: str
    active: Nanoseconds
    lag: Count = 0


class _Replica(msgspec.Struct, frozen=True):
    """One of the servers that do not lead: heard ``active`` nanoseconds ago, 0: not yet."""

    active: Nanoseconds = 0
    offline: bool = False


class Cluster(msgspec.Struct, frozen=True):
    """The servers that hold a stream: the leader and the others."""

    leader: str = ""
    replicas: tuple[_Replica, ...] | None = None

    @property
    def is_leaderless(self) -> bool:
        """True if none leads: an answer then shows one server's own copy, which may be old."""
        return bool(self.replicas) and not self.leader

    @property
    def unheard_for(self) -> int | None:
        """For how many nanoseconds the leader has not heard a majority, which may have elected another leader.

        None if it has not heard a majority yet.
        """
        if not self.replicas:
            return 0
        heard = sorted(replica.active for replica in self.replicas if replica.active > 0 and not replica.offline)
        others_of_most = (len(self.replicas) + 1) // 2
        return heard[others_of_most - 1] if len(heard) >= others_of_most else None


class StreamInfo(msgspec.Struct):
    """The part of STREAM.INFO that is needed here; the stream copies from ``mirror`` and ``sources``."""

    config: _ReportedConfig
    state: _ReportedState
    created: ReportedInstant
    ts: ReportedInstant
    mirror: CopiedStream | None = None
    sources: tuple[CopiedStream, ...] = ()
    cluster: Cluster = Cluster()

    @property
    def facts(self) -> StreamFacts:
        origins, most_unheard_for = self.origins, self.cluster.unheard_for or 0
        return StreamFacts(
            created_at=self.created,
            first_sequence=self.state.first_seq,
            last_sequence=self.state.last_seq,
            server_at=self.ts,
            storage_fault=self._storage_fault,
            publish_error=self._publish_error or (self._unheard if self._gathers else ""),
            takes=self.config.takes,
            mean_size=self.state.bytes // self.state.messages if self.state.messages else 0,
            refuses_by_subject=self.config.discard == "new" and self.config.discard_new_per_subject,
            unheard_for=max([most_unheard_for, *(origin.active for origin in origins)]) // 1_000,
            first_stored_at=self.state.first_ts if self.state.messages else 0,
            awaits_consumers=self.config.retention == INTEREST,
            copies=bool(origins),
            gathers=self._gathers,
            leader=self.cluster.leader if self.cluster.replicas else "",
            # A mirror keeps the sequences of its origin, of which it may copy a part.
            shows_holes=self.config.deletes_singly or self.mirror is None,
            subject_count=self.state.num_subjects if self._replaces else 0,
        )

    def takes_unanswered(self, subject: str) -> bool:
        """Return True if the stream stores messages on a subject without acknowledging them."""
        return self.config.no_ack and any(covers(each, subject) for each in self.config.subjects)

    @property
    def fullness(self) -> float:
        """The used share of its tightest limit, from 0 to 1, if it refuses new messages when full; else 0."""
        if self.config.discard != "new":
            return 0.0
        limits = ((self.state.messages, self.config.max_msgs), (self.state.bytes, self.config.max_bytes))
        return max((taken / limit for taken, limit in limits if limit > 0), default=0.0)

    @property
    def _replaces(self) -> bool:
        """True if one message may replace another; without limits retention, read messages leave no subject behind."""
        return self.config.deletes_singly and self.config.retention == LIMITS and self.mirror is None

    @property
    def origins(self) -> tuple[CopiedStream, ...]:
        return (self.mirror, *self.sources) if self.mirror else self.sources

    @property
    def _storage_fault(self) -> str:
        """Why it may lack a registration that was sent; "" if there is no reason."""
        publish_error = self._refuses(LARGE_REGISTRATION)
        if publish_error:
            return publish_error
        if self.cluster.unheard_for is None or self.cluster.unheard_for > HEARD_WITHIN:
            return "does not hear most of the servers that hold it"
        if self._unheard:
            return self._unheard
        behind = [origin.name for origin in self.origins if origin.lag]
        return f"is behind {', '.join(behind)}, which it copies from" if behind else ""

    @property
    def _gathers(self) -> bool:
        """True if it stores from several places: messages of one prove nothing about another that is cut off."""
        return len(self.origins) + bool(self.sources and self.config.subjects) > 1

    @property
    def _unheard(self) -> str:
        unheard = [origin.name for origin in self.origins if not 0 <= origin.active <= HEARD_WITHIN]
        return f"does not hear {', '.join(unheard)}, which it copies from" if unheard else ""

    @property
    def _publish_error(self) -> str:
        """Why it refuses a message of average size now; "" if it shows no reason."""
        return self._refuses(self.state.bytes // self.state.messages if self.state.messages else 0)

    def _refuses(self, size: int) -> str:
        config, state = self.config, self.state
        if config.sealed:
            return "is sealed"
        room = min(size, config.max_bytes // 10)
        is_full = 0 < config.max_msgs <= state.messages or 0 < config.max_bytes < state.bytes + room
        return "is full and refuses what is new" if config.discard == "new" and is_full else ""
