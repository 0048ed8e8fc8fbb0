"""Address, configuration and suitability of the consumer that a stream is read through. No I/O: see SourceApi."""

import msgspec

from shared.decoding import Count, Nanoseconds, ReportedInstant
from shared.instants import SECOND, format_instant

ACK_WAIT = 3_600 * 1_000_000_000
PULL_MESSAGES = 1_000
PULL_BYTES = 4 << 20
PULL_EXPIRES = 30.0
WORK_QUEUE = "workqueue"


class StartRule(msgspec.Struct, frozen=True):
    """Start of the first read: ``all``, ``new``, ``sequence``, ``time`` or ``delta`` (both in microseconds)."""

    kind: str = "all"
    value: int = 0


class SourceAddress(msgspec.Struct, frozen=True):
    """The stream that is read, the durable consumer, and the start."""

    stream: str
    consumer: str
    domain: str = ""
    creates_consumer: bool = True
    filter_subject: str = ""
    start: StartRule = StartRule()
    is_shared: bool = False
    """Whether the other member of a pair reads it too."""


class _Progress(msgspec.Struct, frozen=True):
    consumer_seq: Count = 0
    stream_seq: Count = 0


class _ConsumerConfig(msgspec.Struct):
    ack_policy: str = "none"
    deliver_policy: str = "all"
    filter_subject: str = ""
    filter_subjects: tuple[str, ...] = ()
    deliver_subject: str = ""
    inactive_threshold: Nanoseconds = 0
    pause_until: ReportedInstant = 0
    max_ack_pending: int = -1
    headers_only: bool = False
    replay_policy: str = "instant"
    priority_groups: tuple[str, ...] | None = None
    max_batch: int = 0
    max_bytes: int = 0
    max_expires: int = 0

    @property
    def filters(self) -> tuple[str, ...]:
        """The subjects that it delivers; empty: all of them."""
        return self.filter_subjects or ((self.filter_subject,) if self.filter_subject else ())


class _ConsumerCluster(msgspec.Struct, frozen=True):
    leader: str = ""


class ConsumerInfo(msgspec.Struct):
    """The part of CONSUMER.INFO that is needed here."""

    config: _ConsumerConfig
    delivered: _Progress
    num_pending: Count
    ts: ReportedInstant
    ack_floor: _Progress = _Progress()
    num_waiting: Count = 0
    num_ack_pending: Count = 0
    cluster: _ConsumerCluster = _ConsumerCluster()
    paused: bool = False

    @property
    def paused_until(self) -> int:
        """The end of its pause, in microseconds; 0 if it is not paused."""
        return self.config.pause_until if self.paused else 0

    @property
    def expires_after(self) -> int:
        """Microseconds without use after which the server removes it; 0: never."""
        return self.config.inactive_threshold // 1_000

    @property
    def unacknowledged(self) -> int:
        """The number of unacknowledged messages if it has reached max_ack_pending, else 0."""
        return self.num_ack_pending if 0 < self.config.max_ack_pending <= self.num_ack_pending else 0

    @property
    def acknowledges_each(self) -> bool:
        """True if every message is acknowledged separately, as a work queue requires."""
        return self.config.ack_policy == "explicit"

    @property
    def at(self) -> int:
        """The server's clock when it answered, in microseconds."""
        return self.ts


def creation(address: SourceAddress, retention: str, **start: object) -> dict[str, object]:
    """Return the body of CONSUMER.CREATE for a stream with ``retention``."""
    config = {
        "durable_name": address.consumer,
        "ack_policy": "explicit" if retention == WORK_QUEUE else "all",
        "ack_wait": ACK_WAIT,
        "max_ack_pending": -1,
        "max_deliver": -1,
        "deliver_policy": "all",
        **({"filter_subject": address.filter_subject} if address.filter_subject else {}),
        **start,
    }
    return {"stream_name": address.stream, "config": config}


def pause_of(paused_until: int) -> str:
    return f"somebody has paused it until {format_instant(paused_until // SECOND * SECOND)}"


def read_by_others(address: SourceAddress) -> str:
    return (
        f"consumer {address.consumer} of stream {address.stream} is read by somebody else: each would miss what goes "
        "to the other (what one that died had asked for ends within 30 s)"
    )


def unsuitable(info: ConsumerInfo, address: SourceAddress) -> str:
    """Return why an existing consumer cannot be used, and the remedy; "" if it can."""
    name, config = f"consumer {address.consumer} of stream {address.stream}", info.config
    if config.ack_policy not in ("all", "explicit") or config.deliver_subject:
        return (
            f"{name} must be a pull consumer with ack policy all or explicit, and is "
            f"{'a push consumer' if config.deliver_subject else f'one with {config.ack_policy}'}: delete it, or name "
            "another in stream.source.consumer"
        )
    if config.filters not in ((address.filter_subject,), (address.filter_subject,)[: bool(address.filter_subject)]):
        return (
            f"{name} filters {', '.join(map(repr, config.filters)) or repr('')}, the settings say "
            f"{address.filter_subject!r}: delete it, or name another consumer"
        )
    return (why := _hindrance(config)) and f"{name} {why}, or name another consumer"


def _hindrance(config: _ConsumerConfig) -> str:
    if config.deliver_policy in ("new", "last", "last_per_subject"):
        return f"cannot be set back to what was not read (deliver policy {config.deliver_policy}): delete it"
    if config.headers_only:
        return "delivers headers only: delete it"
    if config.replay_policy != "instant":
        return "replays what waits as slowly as it once came: delete it"
    if config.priority_groups:
        return "delivers to priority groups, and the agent is in none: delete it"
    wanted = {"max_batch": PULL_MESSAGES, "max_bytes": PULL_BYTES, "max_expires": int(PULL_EXPIRES * 1e9)}
    for limit, asked in wanted.items():
        if 0 < (most := getattr(config, limit)) < asked:
            return f"takes requests with {limit} of up to {most}, and the agent's have {asked}: take that limit from it"
    return ""
