"""Name everything that ``check`` can find wrong: the one catalogue, and what one finding says.

docs/reference/hub_conditions.md is written from it (``make docs``). Names are stable: monitors may rely on them.
"""

from enum import Enum, IntEnum, unique

import msgspec

from shared.nats.expiry import RENEWAL


class CheckStatus(IntEnum):
    """The status of a check, which is the exit code by the convention of monitoring plugins."""

    OK = 0
    WARNING = 1
    CRITICAL = 2


_W, _C = (CheckStatus.WARNING,), (CheckStatus.CRITICAL,)
_GRADED = (CheckStatus.WARNING, CheckStatus.CRITICAL)


@unique
class CheckKind(Enum):
    """One kind of finding: how bad it can be, what it means in one sentence, and what helps."""

    SETTINGS_WRONG = (
        _C,
        "The file of the topology cannot be read or contradicts itself, so nothing is being watched.",
        "mend what the line names in topology.toml",
    )
    EXPIRES = (
        _GRADED,
        "A certificate, an authority or a user's JWT that topology.toml names expires within 14 days, or has expired.",
        RENEWAL,
    )
    UNREACHABLE = (
        _C,
        "The hub, or the JetStream domain of a region, does not answer.",
        "start its servers, or mend the link between them and the hub; what regions store meanwhile comes later",
    )
    SERVER_TOO_OLD = (
        _GRADED,
        "A nats-server is too old to be used, or for what is wanted of it, or has known security holes.",
        "upgrade it as the line says; docs/reference/versions.md lists the versions that were tried together",
    )
    NO_ANSWER = (
        _C,
        "A stream or a consumer of a place that answers gives no answer itself.",
        "wait until its cluster has a leader for it; where that lasts, start the servers that hold it",
    )
    HUB_UNREADABLE = (
        _C,
        "A server answered, and failed when it was asked what its streams hold.",
        "look at that server's log; where something is not permitted, give the aggregator's user what render gives it",
    )
    STREAM_MISSING = (_C, "A stream of the topology is not there.", "muster-aggregator apply")
    STREAM_SEALED = (
        _C,
        "Somebody sealed a stream: it takes nothing any more, and no server takes that back.",
        "move what it holds to a stream of another name, or delete it, and let apply make it again",
    )
    CONSUMER_MISSING = (
        _C,
        "A consumer is not there through which a copy, a site or a relay takes what is stored.",
        "muster-aggregator apply",
    )
    CONSUMER_PAUSED = (
        _C,
        "Somebody has paused a consumer through which a copy, a site or a relay takes what is stored.",
        "at its place: nats consumer resume STREAM CONSUMER",
    )
    NO_LEADER = (
        _C,
        "The servers that hold a stream have no leader, so it takes no messages.",
        "start the servers that are away, until more than half of them are there",
    )
    REPLICAS_AWAY = (
        _W,
        "Servers that hold a stream are away, or behind its leader.",
        "start the servers that are named; one that is behind catches up by itself",
    )
    MESSAGES_LOST = (
        _C,
        "A server misses messages in its own store of a stream: a disk failed, or files were removed.",
        (
            "mend the disk, and restore the stream from a replica or a backup; apply --again takes once more what FLEET"
            " holds"
        ),
    )
    PROMISE_BROKEN = (
        _GRADED,
        "Somebody set something on one of our streams by which records are lost, hidden or forged, or soon may be.",
        "muster-aggregator apply, where the line says so; else take it back by hand",
    )
    COPY_REFUSED = (
        _W,
        "Somebody made a copy that apply would not make.",
        "remove it, or change topology.toml so that it is not needed",
    )
    COPY_MISSING = (_C, "A stream does not copy what it should.", "muster-aggregator apply")
    COPY_FAILING = (
        _C,
        "The server says why a stream cannot copy another.",
        "mend what the server names; muster-aggregator report shows API, source and error",
    )
    ORIGIN_SILENT = (
        _GRADED,
        "A copy has not heard from its origin for longer than --silent says.",
        (
            "see that the origin's servers run and that the link to them is up; where both are well, at the copy's"
            " place: nats stream cluster step-down STREAM (a source of nats-server 2.14.2 stood still for 22 hours)"
        ),
    )
    ANOTHER_PAST = (
        _C,
        "A copy has taken more than its origin holds: that was made anew, or restored from an older copy.",
        "what the line says: apply, or apply --force",
    )
    COPY_BEHIND = (
        _GRADED,
        "What a copy lacks has waited for longer than --behind says.",
        "wait where it becomes less; else look at the link's bandwidth and at the hub's disk",
    )
    NEARLY_FULL = (
        _GRADED,
        (
            "A stream or a place has nearly taken the room that it has, and soon refuses what is new or lets go of the"
            " oldest."
        ),
        "what the line says: see who fills it, raise max_bytes or max_store, or shorten max_age",
    )
    RETENTION_NEAR = (
        _GRADED,
        "An origin will soon let go of what its copy lacks, or has begun to.",
        "mend the copying before that, or raise max_age and the limits of the origin in topology.toml, and apply",
    )
    SITE_UNHEARD = (
        _C,
        "No watermark of a site that topology.toml names has ever come.",
        "start its agent, and see muster-agent doctor there; where it is closed, take it out of topology.toml",
    )
    WATERMARK_LATE = (
        _GRADED,
        "The last watermark of a block vouches for a time that is longer ago than --watermark says.",
        "look at muster-agent status at the site; where that is well, at the link to its region",
    )
    POLICY_WAITS = (
        _W,
        "A block has not taken what the hub's policy says.",
        "muster-aggregator policy show says which revision; see that its agent runs and reaches its region",
    )
    ADVISORIES_MISSING = (
        _C,
        "A watermark counts advisories that the archive lacks: the block's time is unknown from there on.",
        "muster-aggregator apply --again REGION; where FLEET does not have them any more, begin the agent's store anew",
    )
    RECORDS_REFUSED = (
        _W,
        "A block's records cannot be read as what their subjects say, and count nowhere.",
        "see who else has the site's key; the table quarantine and the metric muster_live_refused count them",
    )
    TOO_MANY_BLOCKS = (
        _C,
        "A site has more stream blocks than count of one site: what others say is quarantined.",
        (
            "see who else has the site's key; where the site has so many, raise blocks_per_site in aggregator.toml and"
            " in topology.toml"
        ),
    )
    CONTESTED = (
        _C,
        "Two agents that know nothing of each other speak for one block: nobody knows which of them is right.",
        (
            "end one of them, make them a pair ([pair]), or give each site a name of its own; known time then begins by"
            " itself"
        ),
    )
    PUT_BACK = (
        _C,
        "Two runs of an agent count the same advisories in two ways: an older copy of its store was put back.",
        "begin the agent's store anew: move agent.db, -wal and -shm away, leave agent.db.marker, and start it",
    )

    def __init__(self, severities: tuple[CheckStatus, ...], meaning: str, remedy: str) -> None:
        self.severities, self.meaning, self.remedy = severities, meaning, remedy

    @property
    def stable_name(self) -> str:
        return self.name.lower()

    def of(self, place: str, text: str, severity: CheckStatus | None = None) -> "CheckFinding":
        """Say that it holds of a place; ``severity`` where the kind has more than one."""
        return CheckFinding(self, self.severities[-1] if severity is None else severity, place, text)


class CheckFinding(msgspec.Struct, frozen=True):
    """One thing that is wrong, in one line."""

    kind: CheckKind
    severity: CheckStatus
    place: str
    text: str
