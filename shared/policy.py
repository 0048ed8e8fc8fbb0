"""Define what the hub tells its sites: a record for each revision of the policy, and the subjects they travel on.

A revision's number is its sequence in the hub's stream; mirrors keep it. Whom it is for stands in its subject alone,
which permissions protect: a region, a site, or a stream block. Each site's consumer takes its own subjects.
"""

from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from shared.decoding import Count, Decoder, WireError
from shared.identifiers import LARGEST_NUMBER, BlockId, is_token
from shared.thresholds import InvalidThresholds, Thresholds
from shared.wire import SENDER_LIMIT

PROTOCOL = "muster:policy:1"
STREAM: Final = "MUSTER_POLICY"
ROOT = ("muster", "policy")
EVERY_REVISION = "muster.policy.>"
_REGION, _SITE = "region", "site"


class Scope(msgspec.Struct, frozen=True, order=True):
    """Whom a revision is for: a whole region, a site of it, or one block of a site."""

    region: str
    site: str = ""
    block: str = ""

    def __str__(self) -> str:
        return ".".join(filter(None, (self.region, self.site, self.block)))

    @property
    def subject(self) -> str:
        """``muster.policy.<region>.region``, ``...<region>.site.<site>`` or ``...<region>.site.<site>.<block>``."""
        rest = (_SITE, self.site, self.block) if self.site else (_REGION,)
        return ".".join(filter(None, (*ROOT, self.region, *rest)))

    def covers(self, other: "Scope") -> bool:
        """Tell whether all that ``other`` is for, this is for."""
        return all(
            mine in ("", theirs) for mine, theirs in zip(*map(msgspec.structs.astuple, (self, other)), strict=True)
        )


def scopes_of(block_id: BlockId) -> tuple[Scope, Scope, Scope]:
    """Give the scopes that a block lies in, the most general first."""
    region, site, block = block_id.region, block_id.site, block_id.block
    return Scope(region), Scope(region, site), Scope(region, site, block)


def subjects_of_region(region: str) -> str:
    """Give the subject of all that is said to a region and to those in it."""
    return ".".join((*ROOT, region, ">"))


def subjects_of_site(region: str, site: str) -> tuple[str, str, str]:
    """Give the subjects of all that is said to a site: as one of its region, as itself, and to its blocks."""
    own = Scope(region, site).subject
    return Scope(region).subject, own, f"{own}.*"


def parse_policy_subject(subject: str) -> Scope | None:
    """Return the scope that a subject names; None if it is no subject of the policy."""
    tokens = subject.split(".")
    if tuple(tokens[:2]) != ROOT or not all(map(is_token, tokens)):
        return None
    match tokens[2:]:
        case [region, "region"]:
            return Scope(region)
        case [region, "site", site]:
            return Scope(region, site)
        case [region, "site", site, block]:
            return Scope(region, site, block)
    return None


class SetThresholds(msgspec.Struct, frozen=True, tag="thresholds", tag_field="kind"):
    """From now on these hold for the scope; those said for it before are void."""

    thresholds: Thresholds


SenderName = Annotated[str, Meta(min_length=1, max_length=SENDER_LIMIT)]


class ForwardSender(msgspec.Struct, frozen=True, tag="forward", tag_field="kind"):
    """Forward the sender's next registration."""

    sender_id: SenderName


class RetireSender(msgspec.Struct, frozen=True, tag="retire", tag_field="kind"):
    """End the sender's life now: it is gone for good, and not to be waited for."""

    sender_id: SenderName


class DeclareMaintenance(msgspec.Struct, frozen=True, tag="maintenance", tag_field="kind"):
    """Whoever is meant is in maintenance in ``[started_at_us, ended_at_us)``; without ``sender_ids`` all are."""

    started_at_us: int
    ended_at_us: int
    reason: str
    sender_ids: tuple[SenderName, ...] = ()


class CancelMaintenance(msgspec.Struct, frozen=True, tag="cancel", tag_field="kind"):
    """Take back the maintenance that ``revision`` declared, wholly."""

    revision: Annotated[int, Meta(ge=1, le=LARGEST_NUMBER)]


Order = SetThresholds | ForwardSender | RetireSender | DeclareMaintenance | CancelMaintenance


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """One revision. ``stream_created_us`` tells in which past of the hub's stream its number counts.

    ``given_at_us`` is the hub's clock when it was given, ``author`` who says to have given it.
    """

    protocol: str = PROTOCOL
    revision: Count
    stream_created_us: Count
    given_at_us: int
    author: str
    order: Order


_revision = Decoder(Revision, "a revision of the policy")


def encode_revision(revision: Revision) -> bytes:
    return msgspec.json.encode(revision)


def decode_revision(body: bytes) -> Revision:
    """Read a revision; raise WireError with the reason."""
    revision = _revision(body)
    if revision.protocol != PROTOCOL:
        raise WireError(f"not a revision of the policy: protocol {revision.protocol!r}")
    if isinstance(revision.order, SetThresholds):
        try:
            revision.order.thresholds.check()
        except InvalidThresholds as error:
            raise WireError(f"not a revision of the policy: {error}") from error
    return revision


class ScopedRevision(NamedTuple):
    """One revision, and whom it is for."""

    scope: Scope
    revision: Revision


def read_scoped_revision(subject: str, body: bytes, sequence: int) -> ScopedRevision | None:
    """Read a message of the stream; None where it is no revision that this version understands."""
    scope = parse_policy_subject(subject)
    try:
        revision = decode_revision(body)
    except WireError:
        return None
    return ScopedRevision(scope, revision) if scope is not None and revision.revision == sequence else None


def consumer_name(site: str) -> str:
    """Name the durable consumer through which a site's agent hears what it is told."""
    return f"muster-{site}"


def consumer_config(region: str, site: str) -> dict[str, object]:
    """Configure it, in JetStream's words: the agent keeps its own position, so nothing is acknowledged."""
    return {
        "durable_name": consumer_name(site),
        "filter_subjects": list(subjects_of_site(region, site)),
        "ack_policy": "none",
        "max_deliver": -1,
    }
