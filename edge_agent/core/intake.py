"""Read a registration: who sent it, whether it must go on at once, and a digest of what it says.

Only what is needed is decoded, in one pass. A message without a sender is a value (``Rejected``), not an exception: it
is forwarded unsampled, counted, and cannot stop the site.
"""

import base64
import hashlib
import zlib
from collections.abc import Iterable
from functools import reduce
from typing import Any

import msgspec

from edge_agent.core.draft import Draft
from edge_agent.core.observation import (
    HEARTBEAT_HEADER,
    PROBE_HEADER,
    Observation,
    ProbeSighting,
    Rejected,
    RejectReason,
    SourceMessage,
    Taken,
)

EVERY_PATH = "*"
SENDER_LIMIT = 1024

# Whoever registers may send a few bytes that become gigabytes.
UNZIPPED_LIMIT = 16 << 20
_GZIP_OR_ZLIB = 47
# In base64, what gzip begins with, and zlib at its levels.
_ZIPPED = ("H4", "eA", "eF", "eJ", "eN")

# Nesting deeper than Python's stack ends in a RecursionError; nobody who registers may end the agent by it.
_UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)


class SenderByPath(msgspec.Struct, frozen=True):
    """The sender is the text at a JSON path: keys joined by dots."""

    path: str

    @property
    def inspect_field(self) -> str:
        """Name what identifies the sender, as advisories do."""
        return self.path


class SenderByHeader(msgspec.Struct, frozen=True):
    """The sender is the value of a header."""

    header: str

    @property
    def inspect_field(self) -> str:
        """Name what identifies the sender, as advisories do."""
        return self.header


class SenderBySubjectToken(msgspec.Struct, frozen=True):
    """The sender is one token of the subject, counted from 1."""

    token: int

    @property
    def inspect_field(self) -> str:
        """Name what identifies the sender, as advisories do."""
        return f"subject_token_{self.token}"


class SenderBySubject(msgspec.Struct, frozen=True):
    """The sender is the whole subject."""

    @property
    def inspect_field(self) -> str:
        """Name what identifies the sender, as advisories do."""
        return "subject"


SenderRule = SenderByPath | SenderByHeader | SenderBySubjectToken | SenderBySubject


class DigestRule(msgspec.Struct, frozen=True):
    """Which JSON paths make up the content whose change is worth forwarding; ``*`` is all but the ignored ones."""

    paths: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


class Intake:
    """Turn messages into observations by one block's rules. ``probe_origin`` is what the block's own probes carry."""

    def __init__(
        self, sender: SenderRule, force_path: str = "", digest: DigestRule | None = None, probe_origin: str = ""
    ) -> None:
        self._sender = sender
        self._probe_origin = probe_origin
        sender_path = sender.path if isinstance(sender, SenderByPath) else ""
        shape, (self._sender_field, self._force_field) = _shape(_keys(sender_path), _keys(force_path))
        self._decoder = msgspec.json.Decoder(shape)
        self._reads_body = bool(self._sender_field or self._force_field)
        self._digest = digest if digest and digest.paths else None

    def read(self, message: SourceMessage) -> Taken:
        """Identify the sender and what else decides about forwarding; the payload itself is left as it is."""
        if message.headers and PROBE_HEADER in message.headers:
            return ProbeSighting(message, message.headers[PROBE_HEADER] == self._probe_origin)
        if message.headers and HEARTBEAT_HEADER in message.headers:
            return ProbeSighting(message, is_own=False, is_heartbeat=True)
        body: Any = None
        if self._reads_body:
            try:
                body = self._decoder.decode(message.payload)
            except _UNREADABLE:
                if self._sender_field:
                    return Rejected(message, RejectReason.NOT_AN_OBJECT)
        sender_id = self._sender_of(message, body)
        if not isinstance(sender_id, str) or not sender_id:
            is_absent = sender_id is None or sender_id == ""
            return Rejected(message, RejectReason.NO_SENDER if is_absent else RejectReason.SENDER_NOT_TEXT)
        if len(sender_id) > SENDER_LIMIT or "\0" in sender_id or not _is_encodable(sender_id):
            # An advisory must fit into a message, and SQLite's JSON ends a text at NUL.
            return Rejected(message, RejectReason.SENDER_NOT_USABLE)
        forced = self._force_field is not None and self._force_field.of(body) is True
        digest = content_digest(message.payload, self._digest) if self._digest else 0
        return Observation(sender_id, message, digest, forced)

    def give(self, draft: Draft, message: SourceMessage, *, too_old: bool) -> bool:
        """Give a message to a draft; False where that is full. One that is ``too_old`` is seen, but not forwarded."""
        taken = self.read(message)
        if isinstance(taken, Observation):
            return draft.observe(taken, too_old=too_old)
        return draft.reject(taken, too_old=too_old) if isinstance(taken, Rejected) else draft.pass_over(taken)

    def _sender_of(self, message: SourceMessage, body: Any) -> Any:
        if self._sender_field is not None:
            return self._sender_field.of(body)
        match self._sender:
            case SenderByHeader(header):
                return (message.headers or {}).get(header)
            case SenderBySubjectToken(token):
                tokens = message.subject.split(".")
                return tokens[token - 1] if token <= len(tokens) else None
        return message.subject


def content_digest(payload: bytes, rule: DigestRule) -> int:
    """Give a 64-bit BLAKE2b of the chosen content, whatever the order of its keys; 0 where it cannot be read as JSON.

    Adapters carry a registration as JSON text inside JSON, and nodes zip it: a path goes on into either.
    """
    try:
        body = msgspec.json.decode(payload)
        if EVERY_PATH in rule.paths:
            chosen: Any = reduce(_without, (_keys(path) for path in rule.ignored), body)
        else:
            chosen = [
                reduce(_without, _below(path, rule.ignored), _opened(_at(body, _keys(path)))) for path in rule.paths
            ]
        canonical = msgspec.json.encode(chosen, order="deterministic")
    except _UNREADABLE:
        return 0
    return int.from_bytes(hashlib.blake2b(canonical, digest_size=8).digest(), "big")


def _is_encodable(text: str) -> bool:
    """Tell whether a text has bytes in UTF-8: half a letter, as a wrong byte in a header becomes, has none."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _keys(path: str) -> tuple[str, ...]:
    return tuple(path.split(".")) if path else ()


def _below(path: str, ignored: Iterable[str]) -> list[tuple[str, ...]]:
    return [_keys(inner.removeprefix(f"{path}.")) for inner in ignored if inner.startswith(f"{path}.")]


def _opened(value: Any) -> Any:
    """Open JSON that stands as text inside JSON, zipped (Choria's ``zcontent``: base64 of gzip or zlib) or not."""
    if not isinstance(value, str):
        return value
    body: str | bytes = value if value[:1] in ("{", "[") else _unzipped(value) if value[:2] in _ZIPPED else ""
    try:
        return msgspec.json.decode(body) if body else value
    except _UNREADABLE:
        return value


def _unzipped(text: str) -> bytes:
    try:
        stream = zlib.decompressobj(_GZIP_OR_ZLIB)
        content = stream.decompress(base64.b64decode(text, validate=True), UNZIPPED_LIMIT)
    except (ValueError, zlib.error):
        return b""
    return content if stream.eof else b""


def _at(value: Any, keys: tuple[str, ...]) -> Any:
    """Give what stands at a path, None where nothing does."""
    for key in keys:
        value = _opened(value)
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _without(value: Any, keys: tuple[str, ...]) -> Any:
    """Copy a JSON value, less what stands at a path."""
    opened = _opened(value)
    if not keys or not isinstance(opened, dict):
        return value
    if keys[0] not in opened:
        # Opened all the same: whether the ignored path is there must not show in the digest.
        return opened
    kept = {key: inner for key, inner in opened.items() if key != keys[0]}
    if len(keys) > 1:
        kept[keys[0]] = _without(opened[keys[0]], keys[1:])
    return kept


class _Field(msgspec.Struct, frozen=True):
    """Where a path's value is found in a decoded body: an attribute, and the keys below it."""

    attribute: str
    keys: tuple[str, ...]

    def of(self, body: Any) -> Any:
        value = getattr(body, self.attribute, None)
        return _at(value, self.keys) if self.keys else value


def _shape(*paths: tuple[str, ...]) -> tuple[Any, list[_Field | None]]:
    """Make the type that decodes the given paths' first keys and skips the rest, and say where each path went."""
    attributes = {key: f"field_{n}" for n, key in enumerate(dict.fromkeys(keys[0] for keys in paths if keys))}
    shape = msgspec.defstruct(
        "Registration",
        [(attribute, Any, None) for attribute in attributes.values()],
        rename={attribute: key for key, attribute in attributes.items()},
        frozen=True,
        gc=False,
    )
    return shape, [_Field(attributes[keys[0]], keys[1:]) if keys else None for keys in paths]
