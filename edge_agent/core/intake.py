"""Reader of registrations: the sender, the force flag, and a digest of the content.

Only the fields that are needed are decoded, in one pass. A body that strict decoding refuses is read once more by a
tolerant decoder: a sender that can be identified is heard, however broken the rest of the body is. A message without a
sender is a value (``Rejected``), not an exception: it is forwarded unsampled, counted, and cannot stop the site.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from enum import StrEnum
from itertools import islice
from math import isfinite
from typing import Any

import msgspec

from edge_agent.core.batch import registrations_of, values_of
from edge_agent.core.draft import Draft
from edge_agent.core.observation import (
    DELETE_OPERATIONS,
    HEARTBEAT_HEADER,
    MARKER_HEADER,
    OPERATION_HEADER,
    PROBE_HEADER,
    Batch,
    BatchForm,
    IntakeResult,
    Observation,
    ProbeSighting,
    ProofCause,
    Rejected,
    RejectReason,
    SourceMessage,
    Unopened,
)
from edge_agent.core.payload import (
    UNREADABLE,
    Deviations,
    DigestRule,
    content_digest,
    decode_tolerantly,
    keys_of,
    value_at,
)
from shared.blake2 import blake2b
from shared.decoding import decode_deep
from shared.tolerant_json import Deviation
from shared.wire import SENDER_LIMIT

MOST_REGISTRATIONS = 65_536
"""Registrations of one message that are read: a second's work. The time behind a longer message is unknown."""

EXAMINED = 1_000
"""Parts of a body that are searched for other senders if no batch is configured."""


class NameForm(StrEnum):
    """How a name is normalized: HOSTNAME removes case, space and a final full stop, which identify no host."""

    NONE = "none"
    HOSTNAME = "hostname"

    def of(self, name: str) -> str:
        """Return the sender that a name identifies.

        >>> NameForm.HOSTNAME.of(" Web1.Example.NET. "), NameForm.NONE.of("Web1")
        ('web1.example.net', 'Web1')
        """
        return name if self is NameForm.NONE else name.strip().removesuffix(".").rstrip().casefold()


class _SenderNaming(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the sender rules. Each has an ``inspect_field``, which advisories name."""

    normalize: NameForm = NameForm.NONE


class SenderByPath(_SenderNaming, frozen=True):
    """The sender is the text or number at a JSON path: keys joined by dots. ``batch``: of each part of a body."""

    path: str
    batch: BatchForm = BatchForm.NONE

    @property
    def inspect_field(self) -> str:
        return self.path


class SenderByHeader(_SenderNaming, frozen=True):
    """The sender is the value of a header."""

    header: str

    @property
    def inspect_field(self) -> str:
        return self.header


class SenderBySubjectToken(_SenderNaming, frozen=True):
    """The sender is one token of the subject, counted from 1."""

    token: int

    @property
    def inspect_field(self) -> str:
        return f"subject_token_{self.token}"


class SenderBySubject(_SenderNaming, frozen=True):
    """The sender is the whole subject."""

    @property
    def inspect_field(self) -> str:
        return "subject"


SenderRule = SenderByPath | SenderByHeader | SenderBySubjectToken | SenderBySubject


class GoodbyeRule(msgspec.Struct, frozen=True):
    """A message with one of the ``values`` at a JSON path is a sender's goodbye, not a registration."""

    path: str
    values: tuple[str, ...]


class Intake:
    """Turns messages into observations by one block's rules. ``probe_origin`` is the header of the block's own probes.

    ``slow_count`` counts the messages that may have taken long to read.
    """

    def __init__(
        self,
        sender: SenderRule,
        force_path: str = "",
        digest: DigestRule | None = None,
        probe_origin: str = "",
        goodbye: GoodbyeRule | None = None,
    ) -> None:
        self._sender = sender
        self._normalizes = sender.normalize is not NameForm.NONE
        self._probe_origin = probe_origin
        self._sender_keys = keys_of(sender.path if isinstance(sender, SenderByPath) else "")
        self._goodbyes = goodbye.values if goodbye else ()
        paths = self._sender_keys, keys_of(force_path), keys_of(goodbye.path if goodbye else "")
        self._shape, (self._sender_field, self._force_field, self._goodbye_field) = _shape(*paths)
        self._decode = msgspec.json.Decoder(self._shape).decode
        # The sender is mostly a key of the body itself: this saves a call for each message.
        self._sender_top = self._sender_field.attribute if self._sender_field and not self._sender_field.keys else ""
        self._reads_body = bool(self._sender_field or self._force_field or self._goodbye_field)
        self._digest = digest if digest and digest.paths else None
        self._batch = sender.batch if isinstance(sender, SenderByPath) else BatchForm.NONE
        self._opens_batches = self._batch is not BatchForm.NONE
        self.slow_count = 0
        self._deviations: Deviations = []

    def read(self, message: SourceMessage, deviations: Deviations | None = None) -> IntakeResult:
        """Return the senders of a message and the facts that decide about forwarding; the payload stays as it is.

        Deviations from JSON are added to ``deviations``.
        """
        if message.headers and (cause := self.proof_cause(message.headers)):
            return ProbeSighting(message, cause)
        deviations = [] if deviations is None else deviations
        if self._opens_batches:
            return self._read_batch(message, deviations)
        result = self._read_one(message, deviations)
        if (deviations or isinstance(result, Rejected)) and self._sender_keys and not isinstance(result, ProbeSighting):
            return self._with_unopened(result, deviations)
        return result

    def _read_one(self, message: SourceMessage, deviations: Deviations) -> Observation | Rejected | ProbeSighting:
        """Read a message, or a part of one, as one registration."""
        body: Any = None
        if self._reads_body:
            try:
                body = self._decode(message.payload)
            except UNREADABLE as error:
                body = self._decode_again(message.payload, deviations, error)
        if self._goodbye_field is not None and self._goodbye_field.of(body, deviations) in self._goodbyes:
            return ProbeSighting(message, ProofCause.GOODBYE)
        top = self._sender_top
        sender_id = getattr(body, top, None) if top else self._sender_of(message, body, deviations)
        if not isinstance(sender_id, str):
            sender_id = _number_text(sender_id)
            if sender_id is None:
                return Rejected(message, RejectReason.SENDER_NOT_TEXT)
        if self._normalizes:
            sender_id = self._sender.normalize.of(sender_id)
        if not sender_id:
            # The sender may be in the part of the body that could not be read.
            is_broken = self._sender_field is not None and (body is None or any(deviations))
            return Rejected(message, RejectReason.NOT_AN_OBJECT if is_broken else RejectReason.NO_SENDER)
        if not is_usable(sender_id):
            return Rejected(message, RejectReason.SENDER_NOT_USABLE)
        forced = self._force_field is not None and self._force_field.of(body, deviations) is True
        digest = content_digest(message.payload, self._digest, deviations) if self._digest else 0
        return Observation(
            sender_id, message, digest, forced, next(filter(None, deviations), None) if deviations else None
        )

    def give(self, draft: Draft, message: SourceMessage, *, too_old: bool) -> bool:
        # One list for all: most messages leave it empty.
        deviations = self._deviations
        result = self.read(message, deviations)
        if deviations:
            deviations.clear()
            self.slow_count += 1
        if isinstance(result, Observation):
            return draft.observe(result, too_old=too_old)
        if isinstance(result, Batch):
            self.slow_count += 1
            return draft.observe_batch(result, too_old=too_old)
        return draft.reject(result, too_old=too_old) if isinstance(result, Rejected) else draft.pass_over(result)

    def _read_batch(self, message: SourceMessage, deviations: Deviations) -> IntakeResult:
        """Read each registration of a body; those of one sender make one observation."""
        payload = message.payload
        values, deviation = values_of(payload) if self._batch is BatchForm.LINES else ([payload], None)
        found: dict[str, list[Observation]] = {}
        rejected: list[Rejected] = []
        count = goodbyes = 0
        for result in self._registrations(message, values, [deviation] if deviation else []):
            count += 1
            if count > MOST_REGISTRATIONS:
                break
            if isinstance(result, Rejected):
                rejected.append(result)
            elif isinstance(result, ProbeSighting):
                goodbyes += 1
            else:
                found.setdefault(result.sender_id, []).append(result)
        observations = tuple(_merged(each) for each in found.values())
        if any(each.deviation for each in observations):
            deviations.append(None)
        unopened = Unopened.TOO_LARGE if count > MOST_REGISTRATIONS else None
        if self._batch is BatchForm.ARRAY and (deviations or not observations):
            unopened = unopened or self._other_senders(message, set(found))
        if goodbyes and count == 1:
            return ProbeSighting(message, ProofCause.GOODBYE)
        if not observations and count <= 1:
            reason = rejected[0].reason if rejected else RejectReason.NO_SENDER
            return Rejected(message, RejectReason.BATCH if unopened else reason, unopened)
        if len(observations) == 1 and not rejected and not goodbyes:
            return msgspec.structs.replace(observations[0], message=message, unopened=unopened)
        return Batch(message, observations, tuple(rejected), goodbyes, unopened)

    def _registrations(
        self, message: SourceMessage, values: Iterable[bytes], deviations: Deviations
    ) -> Iterator[Observation | Rejected | ProbeSighting]:
        """Yield the reading of each value, or of each registration in its arrays if it names no sender itself.

        ``deviations`` are those of the whole sequence: the first reading bears them.
        """
        for value in values:
            whole = None if value.lstrip()[:1] == b"[" else self._read_part(message, value, deviations)
            is_named = isinstance(whole, Observation)
            parts: list[bytes] = []
            if whole is None or isinstance(whole, Rejected) or (isinstance(whole, Observation) and whole.deviation):
                parts, deviation = registrations_of(value, self._sender_keys, is_named=is_named)
                deviations += [deviation] if deviation else []
            if not parts:
                yield whole or self._read_part(message, value, deviations)
                deviations = []
            for part in parts:
                yield self._read_part(message, part, deviations)
                deviations = []

    def _read_part(
        self, message: SourceMessage, part: bytes, deviations: Deviations
    ) -> Observation | Rejected | ProbeSighting:
        element = SourceMessage(message.subject, part, message.headers, message.sequence, message.stored_at)
        return self._read_one(element, list(deviations))

    def _with_unopened(self, result: Observation | Rejected, deviations: Deviations) -> Observation | Rejected:
        """Set ``unopened`` if a message that was read as one registration holds registrations of other senders."""
        read = {result.sender_id} if isinstance(result, Observation) else set()
        unopened = self._other_senders(result.message, read)
        if unopened is None:
            return result
        deviations.append(None)
        if isinstance(result, Rejected):
            return Rejected(result.message, RejectReason.BATCH, unopened)
        deviation = result.deviation or Deviation.SURPLUS
        return msgspec.structs.replace(result, deviation=deviation, unopened=unopened)

    def _other_senders(self, message: SourceMessage, read: set[str]) -> Unopened | None:
        """Return the form of the batch that a body is, if it has senders other than ``read``."""
        values, _ = values_of(message.payload)
        for result in islice(self._registrations(message, values, []), EXAMINED):
            if isinstance(result, Observation) and result.sender_id not in read:
                return Unopened.LINES if len(values) > 1 else Unopened.ARRAY
        return None

    def proof_cause(self, headers: Mapping[str, str]) -> ProofCause | None:
        """Return the cause of a message that only proves time; None for a registration."""
        if PROBE_HEADER in headers:
            return ProofCause.OWN if headers[PROBE_HEADER] == self._probe_origin else ProofCause.OTHERS
        if HEARTBEAT_HEADER in headers:
            return ProofCause.HEARTBEAT
        is_deleted = MARKER_HEADER in headers or headers.get(OPERATION_HEADER, "").strip().upper() in DELETE_OPERATIONS
        return ProofCause.DELETE_MARKER if is_deleted else None

    def _decode_again(self, payload: bytes, deviations: Deviations, refusal: Exception) -> Any:
        """Decode with tolerance a body that strict decoding refused; return None if it holds no object."""
        if isinstance(refusal, RecursionError):
            with contextlib.suppress(*UNREADABLE):
                return decode_deep(self._decode, payload)
        try:
            body = decode_tolerantly(payload, deviations, self._sender_keys)
        except msgspec.DecodeError:
            return None
        if isinstance(body, dict):
            return msgspec.convert(body, self._shape)
        deviations[:] = [None]
        return None

    def _sender_of(self, message: SourceMessage, body: Any, deviations: Deviations) -> Any:
        if self._sender_field is not None:
            return self._sender_field.of(body, deviations)
        match self._sender:
            case SenderByHeader(header):
                return (message.headers or {}).get(header)
            case SenderBySubjectToken(token):
                tokens = message.subject.split(".")
                return tokens[token - 1] if token <= len(tokens) else None
        return message.subject


def _merged(observations: list[Observation]) -> Observation:
    """Return the registrations of one sender in one message as one."""
    first = observations[0]
    if len(observations) == 1:
        return first
    digests = [each.digest.to_bytes(8, "big") for each in observations]
    digest = int.from_bytes(blake2b(b"".join(digests), digest_size=8).digest(), "big") if first.digest else 0
    return msgspec.structs.replace(
        first,
        message=msgspec.structs.replace(
            first.message, payload=b"\n".join(each.message.payload for each in observations)
        ),
        digest=digest,
        forced=any(each.forced for each in observations),
        deviation=next((each.deviation for each in observations if each.deviation), None),
        count=len(observations),
    )


def is_usable(sender_id: str) -> bool:
    """Return True if records and the store can carry a name.

    An advisory must fit into a message, SQLite's JSON ends a text at NUL, and a lone surrogate has no UTF-8 form.
    """
    if len(sender_id) > SENDER_LIMIT or "\0" in sender_id:
        return False
    if sender_id.isascii():
        return True
    try:
        sender_id.encode()
    except UnicodeEncodeError:
        return False
    return True


def _number_text(value: Any) -> str | None:
    """Return a number as text, as the peer writes it: never with an exponent. None: it is not a number.

    >>> _number_text(1e3), _number_text(1.50), _number_text(None), _number_text(True)
    ('1000', '1.5', '', None)
    """
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        # No decoder returns an integer with more digits than str() converts.
        return str(value)
    if not isinstance(value, float) or not isfinite(value):
        return None
    text = format(Decimal(repr(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


class _Field(msgspec.Struct, frozen=True):
    """Location of a path's value in a decoded body: an attribute, and the keys below it."""

    attribute: str
    keys: tuple[str, ...]

    def of(self, body: Any, deviations: Deviations) -> Any:
        value = getattr(body, self.attribute, None)
        return value_at(value, self.keys, deviations) if self.keys else value


def _shape(*paths: tuple[str, ...]) -> tuple[Any, list[_Field | None]]:
    """Return a type that decodes the first keys of the paths and skips the rest, and the field of each path."""
    attributes = {key: f"field_{n}" for n, key in enumerate(dict.fromkeys(keys[0] for keys in paths if keys))}
    shape = msgspec.defstruct(
        "Registration",
        [(attribute, Any, None) for attribute in attributes.values()],
        rename={attribute: key for key, attribute in attributes.items()},
        frozen=True,
        gc=False,
    )
    return shape, [_Field(attributes[keys[0]], keys[1:]) if keys else None for keys in paths]
