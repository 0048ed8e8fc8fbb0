"""Name the things that records speak of, and derive the ids that must come out the same everywhere.

Nothing here draws a random number: an id that is derived is the same after a crash, on the other agent of a
pair, and in a reader that checks it.
"""

import re
from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache

import msgspec

from shared.blake2 import blake2b

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")
LARGEST_NUMBER = (1 << 53) - 1
"""The largest number that a record may hold: sums of some such numbers fit into 64 bits, and JSON readers that know
only doubles read it exactly."""
_NUMBER = re.compile(r"[0-9]{1,16}")


class InvalidIdentifier(ValueError):
    """A name cannot be used as one token of a NATS subject."""


class AdvisoryKind(StrEnum):
    """What became true of a sender. The order of the members is the rank of kinds at one instant."""

    STALE = "stale"
    RETIRED = "retired"
    RECOVERED = "recovered"
    NEW = "new"

    # That of the text that it equals; and Enum's own is a function in Python, several times for each advisory.
    __hash__ = str.__hash__

    @property
    def rank(self) -> int:
        """Order kinds that fall on one instant: stale, retired, recovered, new."""
        return _RANKS[self]


_encode = msgspec.json.Encoder().encode
_RANKS = {kind: rank for rank, kind in enumerate(AdvisoryKind)}


class BlockId(msgspec.Struct, frozen=True, order=True):
    """Name one stream block: state, coverage, watermarks and ids belong to (region, site, block)."""

    region: str
    site: str
    block: str

    def __str__(self) -> str:
        return f"{self.region}.{self.site}.{self.block}"


@lru_cache(maxsize=16)
def _incarnation_text(created_at: int, epoch_ms: int) -> str:
    """Write an incarnation once: it stands five times in the records of every sighting that is forwarded."""
    return f"{created_at}-{epoch_ms}"


class Incarnation(msgspec.Struct, frozen=True, order=True):
    """Tell one past of a source stream from another.

    ``created_at`` is the stream's creation time (microseconds, UTC); ``epoch_ms`` the server's time in milliseconds
    when the agent's store began with this past. On the wire: ``<created_at>-<epoch_ms>``, one subject token.
    """

    created_at: int
    epoch_ms: int

    def __str__(self) -> str:
        return _incarnation_text(self.created_at, self.epoch_ms)

    @property
    def epoch_at(self) -> int:
        """The epoch in microseconds."""
        return self.epoch_ms * 1_000

    @classmethod
    def parse(cls, text: str) -> "Incarnation":
        """Read ``<created_at>-<epoch_ms>``; raise InvalidIdentifier for anything else."""
        created_at, _, epoch_ms = text.partition("-")
        try:
            return cls(parse_number(created_at), parse_number(epoch_ms))
        except InvalidIdentifier as error:
            raise InvalidIdentifier(f"not an incarnation: {text!r}, expected <microseconds>-<milliseconds>") from error


class SourcePosition(msgspec.Struct, frozen=True):
    """Say how far a source stream has been read: everything up to and including ``sequence`` is done.

    ``stored_at`` is the stream's own time of the message at ``sequence`` (0 where none was read yet): when a server
    comes back with another message there, its past has changed.
    """

    stream: str
    incarnation: Incarnation
    sequence: int
    stored_at: int = 0

    @property
    def next_sequence(self) -> int:
        return self.sequence + 1


def parse_number(text: str) -> int:
    """Return 0 to LARGEST_NUMBER; raise InvalidIdentifier for all else that int() takes: "-5", " 5", "1_0", "५"."""
    if _NUMBER.fullmatch(text) and (number := int(text)) <= LARGEST_NUMBER:
        return number
    raise InvalidIdentifier(f"not a number from 0 to {LARGEST_NUMBER}: {text[:64]!r}")


def is_token(name: str) -> bool:
    """Return True if ``name`` can be one subject token of ours."""
    return _TOKEN.fullmatch(name) is not None


def validated_token(name: str, what: str) -> str:
    """Return ``name`` if it can be one subject token; raise InvalidIdentifier, naming ``what`` it was for.

    Stricter than NATS, which forbids only blanks, ``.``, ``*`` and ``>``: names also stand in headers, file names,
    consumer names and permissions.
    """
    if is_token(name):
        return name
    raise InvalidIdentifier(f"{what} {name!r} is not usable in a subject: use 1 to 64 of A-Z a-z 0-9 _ -")


def advisory_event_id(
    block_id: BlockId, opening: tuple[Incarnation, int], sender_id: str, kind: AdvisoryKind, at: int
) -> str:
    """Derive an advisory's id: 128-bit BLAKE2b, hex, of a compact JSON array in UTF-8.

    ``opening`` is the incarnation and the sequence of the sighting that opened the sender's episode; ``at`` is in
    microseconds.
    """
    incarnation, sequence = opening
    return advisory_event_ids(block_id, incarnation)(sequence, sender_id, kind, at)


def advisory_event_ids(block_id: BlockId, incarnation: Incarnation) -> Callable[[int, str, AdvisoryKind, int], str]:
    """Prepare the ids of advisories whose episodes opened in one incarnation: advisory_event_id()'s, in half the time.

    They take the opening sequence, the sender, the kind, and the instant.
    """
    common = blake2b(digest_size=16)
    return _ids(common, (block_id.region, block_id.site, block_id.block, str(incarnation)))


def message_id(key: bytes, *identity: str | int) -> str:
    """Derive a ``Nats-Msg-Id``: keyed 128-bit BLAKE2b, hex, of the record's identity as a compact JSON array.

    ``key`` is the site's secret (16 to 64 bytes). Without it another site could publish the id first and have the
    real message swallowed as a duplicate. Readers never use this id.
    """
    keyed = _keyed_hash(key).copy()
    keyed.update(msgspec.json.encode(identity))
    return keyed.hexdigest()


def message_ids(key: bytes, *identity: str | int) -> Callable[..., str]:
    """Prepare ids of records whose identities differ in their last parts alone: message_id()'s, in half the time.

    >>> message_ids(bytes(32), "eu-west", "dub1")(7, "b") == message_id(bytes(32), "eu-west", "dub1", 7, "b")
    True
    """
    return _ids(_keyed_hash(key).copy(), identity)


def _ids(common: blake2b, identity: tuple[str | int, ...]) -> Callable[..., str]:
    """Hash what compact JSON arrays begin with, once; what they end with is given later."""
    common.update(msgspec.json.encode(identity)[:-1] + b",")

    def of(*rest: str | int) -> str:
        hashed = common.copy()
        hashed.update(_encode(rest)[1:])
        return hashed.hexdigest()

    return of


@lru_cache(maxsize=4)
def _keyed_hash(key: bytes) -> blake2b:
    """Hash the key once: as much work as the rest of a message id."""
    return blake2b(digest_size=16, key=key)
