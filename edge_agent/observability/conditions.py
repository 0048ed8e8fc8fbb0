"""Catalogue of conditions: everything that can be wrong with an agent, and the text of each condition.

``status``, ``status --check``, ``doctor``, ``/readyz``, ``/metrics`` and the log show conditions and nothing else, so
they never contradict each other. docs/reference/conditions.md is generated from the catalogue (``make docs``). To add
one: define a Kind here, and raise it through ``StatusBoard.condition``, or in ``health.py`` if it follows from data
there.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from edge_agent.core.intake import MOST_REGISTRATIONS
from edge_agent.core.observation import Unopened
from shared.instants import format_seconds
from shared.nats.expiry import RENEWAL
from shared.wire import PAIR_ALONE as ALONE


class Severity(StrEnum):
    """Severity of a condition: an agent with an error is not useful; a warning still needs attention."""

    ERROR = "error"
    WARNING = "warning"


class Kind(msgspec.Struct, frozen=True):
    """One kind of condition: its stable name, its severity, its meaning in one sentence, and its remedy."""

    name: str
    severity: Severity
    meaning: str
    remedy: str

    def of(self, subject: str, what: str, *, stream: str = "", since: int = 0, remedy: str = "") -> "Condition":
        """Return this condition of ``subject``; ``remedy`` replaces the catalogue's if it fits better."""
        return Condition(self.name, self.severity, subject, stream, what, remedy or self.remedy, since)


class Condition(msgspec.Struct, frozen=True):
    """One fault: its subject, since when it holds (agent's clock, microseconds; 0: unknown), and its remedy.

    ``subject`` is named as ``status`` does (``source of nodes``, ``outbox``), ``stream`` is the block that it belongs
    to, "" for the whole agent.
    """

    name: str
    severity: Severity
    subject: str
    stream: str
    what: str
    remedy: str
    since: int = 0

    @property
    def is_error(self) -> bool:
        return self.severity is Severity.ERROR

    @property
    def text(self) -> str:
        return f"{self.subject}: {self.what}"

    def lasted(self, at: int) -> str:
        """Return its name and how long it has held."""
        if not self.since:
            return self.name
        return f"{self.name} for {format_seconds(max(at - self.since, 0))}"

    def line(self, at: int) -> str:
        return f"{self.severity}: {self.text}; {self.remedy} ({self.lasted(at)})"


def errors(conditions: Iterable[Condition]) -> list[Condition]:
    return [condition for condition in conditions if condition.is_error]


_E, _W = Severity.ERROR, Severity.WARNING

# The process

STARTING = Kind(
    "starting",
    _E,
    "The agent, or the reading of a stream, has begun and has not come to its work yet.",
    "wait some seconds; where it lasts, look at the stream's source and at the agent's log",
)
NOT_RUNNING = Kind(
    "not_running",
    _E,
    "No agent runs on this store: it was stopped, killed, or has crashed.",
    "look at its log (journalctl -u muster-agent), then start it",
)
AGENT_SILENT = Kind(
    "agent_silent",
    _E,
    "The agent's process is there and has written nothing for 10 s: it hangs, is suspended, or cannot write its store.",
    "end what keeps its store locked (fuser -v); else it hangs: kill -9 it and start it, nothing is lost",
)

# Its store

STORE_MOVED = Kind(
    "store_moved",
    _E,
    "A file of the store is not where the agent opened it: what is not there is lost when the process ends.",
    "put the very file back (mv, not cp); where only -wal or -shm is gone, stop the agent well",
)
DISK_FULL = Kind(
    "disk_full",
    _E,
    "The store's disk has less than 64 MiB left: reading pauses, and the site's stream keeps what is not read.",
    "make room; it goes on by itself",
)
DISK_FAILING = Kind(
    "disk_failing",
    _E,
    "The store cannot be written though its disk has room: reading pauses.",
    "look at the kernel's log (journalctl -k): the disk, its controller, or a quota; it goes on by itself",
)
STORE_LOCKED = Kind(
    "store_locked",
    _E,
    "Another process keeps the store's file locked: reading pauses.",
    "end that process (fuser -v); it goes on by itself",
)

STORE_LOST = Kind(
    "store_lost",
    _W,
    "The store began empty, and another one had served the block before: senders that do not register any more are "
    "unknown at the hub, not stale; this is shown for retire_after.",
    "keep the directory of store.path when a container or host is replaced; retire senders that are gone: "
    "muster-aggregator policy retire",
)

# The site's stream

LINK_DOWN = Kind(
    "link_down",
    _E,
    "No server of a stream's source can be reached: what it stores meanwhile is read later.",
    "start the server, open the way to it, or correct what the reason names; muster-agent doctor tries each server",
)
PERMISSION_DENIED = Kind(
    "permission_denied",
    _E,
    "The site's server refuses the agent's user what it needs to read a stream.",
    "allow what the reason names, or correct the name in the settings; muster-agent doctor lists what is missing",
)
STREAM_NOT_READ = Kind(
    "stream_not_read",
    _E,
    "The link is there, and the stream cannot be read.",
    "mend what the reason names; muster-agent doctor looks at stream, consumer and permissions",
)
CONSUMER_PAUSED = Kind(
    "consumer_paused",
    _E,
    "Somebody has paused the consumer that the agent reads through: nothing is delivered until that ends.",
    "resume it: nats consumer resume STREAM CONSUMER; muster-agent doctor names both",
)
CONSUMER_SHARED = Kind(
    "consumer_shared",
    _E,
    "Somebody else reads through the consumer that the agent reads through: each would miss what goes to the other, so "
    "the agent that came later reads nothing.",
    "stop that one, or give one of the two another source.consumer",
)
CONSUMER_EXPIRES = Kind(
    "consumer_expires",
    _W,
    "The server removes the agent's consumer when the agent is away for some time; an interest stream then drops what "
    "comes meanwhile.",
    "take inactive_threshold from the consumer, and from the consumer_limits of its stream",
)
NOT_MOVING = Kind(
    "not_moving",
    _E,
    "Messages wait to be read, and none has come for some time: the agent is behind and does not catch up.",
    "look who else reads through its consumer, and at the log of the site's server",
)
STREAM_NOT_STORING = Kind(
    "stream_not_storing",
    _E,
    "The stream does not take what is sent to it, or lacks what it copies: time is unknown, and nobody falls stale.",
    "give it room, or mend what the reason names; a seal no server takes back: senders need another stream then",
)
TIME_UNPROVEN = Kind(
    "time_unproven",
    _E,
    "All is read, and for blind_after nothing has proved that the stream can store: silence proves nothing, time is "
    "unknown.",
    "let the agent publish its probe (muster-agent doctor says what is in the way), or make blind_after longer",
)
CLOCK_AHEAD = Kind(
    "clock_ahead",
    _E,
    "The clock of the stream's server is further ahead of the others than max_clock_ahead: it is not followed, no time "
    "passes.",
    "set the server's clock right: all goes on by itself; muster-agent doctor says which two of three clocks agree",
)
STANDING_STILL = Kind(
    "standing_still",
    _E,
    "The clock of the stream's server was set back: no time passes until it shows again what it had shown.",
    "set the clock right where it is wrong, else wait: nothing is lost",
)
NARROWED = Kind(
    "narrowed",
    _W,
    "The stream takes less than it did: whose messages it takes no more is unknown, not stale.",
    "give the stream back what it took",
)
PROBE_NOT_STORED = Kind(
    "probe_not_stored",
    _W,
    "The agent's probe does not get into the stream: while all senders are silent, the time is unknown.",
    "mend what the reason names: the stream's subjects or limits, or the agent's permission to publish there",
)
HEARTBEAT_NOT_STORED = Kind(
    "heartbeat_not_stored",
    _W,
    "The heartbeat that the settings ask for does not get into the stream.",
    "let the stream listen on heartbeat.subject and the agent's user publish there, or take [stream.heartbeat] out",
)

# Senders

UNIDENTIFIED_REGISTRATIONS = Kind(
    "unidentified_registrations",
    _W,
    "Messages that name no sender were rejected within stale_after: a living node may be called stale.",
    "correct what the sender publishes, or [stream.sender], or leave it out by source.filter_subject",
)
BATCH_NOT_OPENED = Kind(
    "batch_not_opened",
    _E,
    "Messages hold registrations of several senders and are read as one, or hold more than 65,536 of them: any sender "
    "may be in what is not read, so the time until stale_after behind the last is unknown, and nobody falls stale.",
    'set batch = "lines" or "array" in [stream.sender], and publish at most 65,536 registrations in one message; '
    "muster-agent doctor shows which senders are then found",
)


def unopened_batch(unopened: str) -> tuple[str, str]:
    """Return the fault of messages with senders that were not read, and its remedy."""
    if unopened == Unopened.TOO_LARGE:
        most = f"{MOST_REGISTRATIONS:,} registrations"
        return f"hold more than {most}, and the rest is not read", f"publish at most {most} in one message"
    return "hold registrations of several senders, and are read as one", f'set batch = "{unopened}" in [stream.sender]'


TOO_MANY_SENDERS = Kind(
    "too_many_senders",
    _W,
    "max_senders is reached: messages of senders beyond it were rejected within stale_after.",
    "raise it, or correct [stream.sender] where that names messages",
)

# The region

REGION_UNREACHABLE = Kind(
    "region_unreachable",
    _E,
    "For a minute no server of the region could be reached: what the agent has to say waits in the outbox.",
    "start the server, open the way to it, or correct what the reason names; muster-agent doctor tries each server",
)
REGION_REFUSES = Kind(
    "region_refuses",
    _E,
    "For a minute the region has refused what is published, or not answered: it waits in the outbox.",
    "mend what the reason names; muster-agent doctor looks at the region's stream and permissions",
)
NAME_TAKEN = Kind(
    "name_taken",
    _E,
    "Another agent publishes under the same region, site and block: this one was there later, and reads and publishes "
    "nothing more; where nobody can tell who was first, both go on, and what they say is mixed.",
    "give one of two sites another name (site), stop one of two agents of a site, or make them a pair ([pair])",
)
NAME_CONTESTED = Kind(
    "name_contested",
    _W,
    "Another agent publishes under the same region, site and block, and came later: it should withdraw.",
    "nothing, where that ends within a minute or two; else stop that one, or give its site another name",
)
OUTBOX_FULL = Kind(
    "outbox_full",
    _E,
    "What may not be dropped has reached store.max_outbox: reading pauses, and the site's stream holds the rest.",
    "mend the way to the region, or raise store.max_outbox",
)
OUTBOX_NEARLY_FULL = Kind(
    "outbox_nearly_full",
    _W,
    "The outbox has taken nine tenths of store.max_outbox: beyond it the oldest registrations are dropped, counted.",
    "mend the way to the region, or raise store.max_outbox",
)
SET_APART = Kind(
    "set_apart",
    _W,
    "Copies or advisories are larger than the region takes: they wait beside the outbox for a larger limit.",
    "raise the limit that it names; muster-agent outbox set-apart lists them",
)
TOO_LARGE_DROPPED = Kind(
    "too_large_dropped",
    _W,
    "Registrations or watermarks were larger than the region takes, and dropped, within a day.",
    "raise the limit that it names",
)
POLICY_NOT_HEARD = Kind(
    "policy_not_heard",
    _W,
    "The hub's policy does not reach this agent: what was taken of it holds, and the settings.",
    "mend what the reason names: a permission on the policy's stream, a consumer that is paused, or an older server",
)
POLICY_REFUSED = Kind(
    "policy_refused",
    _W,
    "The hub's policy contradicts a block's settings: that part of it is not taken.",
    "say it otherwise at the hub (muster-aggregator policy set), or change the settings",
)

# Servers

SERVER_TOO_OLD = Kind(
    "server_too_old",
    _W,
    "A server that a link leads to is too old, older than a setting needs, or has known security holes; where there is "
    "another way, the agent takes it.",
    "upgrade that server, or change the setting that is named",
)
CERTIFICATE_EXPIRES = Kind(
    "certificate_expires",
    _W,
    "A certificate (a server's, the agent's own or an authority's) or the JWT of the agent's user expires within 14 "
    "days, or has expired: the next connection fails then.",
    RENEWAL,
)

# A pair

PAIR_NOT_READY = Kind(
    "pair_not_ready",
    _E,
    "This member of a pair can neither lead nor stand by.",
    "mend what the reason names; muster-agent doctor looks at secret, settings and log of the pair",
)
PAIR_ALONE = Kind(
    ALONE,
    _W,
    "The other member of the pair is not heard, or has not stood by for 5 minutes: nobody takes over from this one.",
    "start it, or look at its link and its own status",
)

# Its own pages, and its log

LOG_LOST = Kind(
    "log_lost",
    _W,
    "Lines of the agent's log cannot be written: its target is full, or nobody reads it any more.",
    "make room, or let somebody read; where its reader was replaced, start the agent anew",
)

MONITOR_NOT_LISTENING = Kind(
    "monitor_not_listening",
    _W,
    "The address of the health pages cannot be had: nobody can ask there.",
    "end the program that has the port, or choose another monitor.listen",
)

CATALOGUE: dict[str, Kind] = {kind.name: kind for kind in list(globals().values()) if isinstance(kind, Kind)}
