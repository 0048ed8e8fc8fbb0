"""Encoding of shipments in NATS' protocol, and of JetStream's answers: bytes in, bytes out.

Atomic batches follow ADR-50: every message names the batch and its place in it, the last one commits and is answered.
Tried on nats-server 2.15.1: messages without a reply subject are staged in silence; a batch is accepted or refused as a
whole when it is committed; the answer about an unexpected last sequence of a subject precedes that about a duplicate
for single messages, and follows it in a batch.

A message that is too large may leave without optional headers that this agent has added. Headers that the message
arrived with (another agent's, too), the id and the origin are never omitted.
"""

from collections.abc import Iterator, Mapping

import msgspec

from edge_agent.core.records import Lane, OutboxRow, size_of_headers
from edge_agent.delivery.shipment import Answer, Form, Outcome, Shipment
from shared.decoding import Count, Decoder, WireError
from shared.wire import MESSAGE_ID_HEADER, REASON_HEADER, SENDER_HEADER, SOURCE_HEADER

BEHIND_HEADER = "Nats-Expected-Last-Subject-Sequence"
NEVER = (1 << 63) - 1
"""A sequence that no message has: on the condition of following it, a message is never stored."""

SPARED_HEADERS = {
    Lane.ADVISORIES: (),
    Lane.REGISTRATIONS: (REASON_HEADER, SOURCE_HEADER, SENDER_HEADER),
    Lane.COPIES: (REASON_HEADER, SOURCE_HEADER),
}
"""Optional headers, in the order in which they are omitted; none is needed to distinguish records. The sender is last,
since tables take its name from nowhere else; that of a copy was written by another agent. Relayed records keep all."""

_VERSION = "NATS/1.0\r\n"
_NEWLINES = str.maketrans("\r\n", "  ")

MESSAGE_TOO_LARGE = 10054
_OUTCOMES = {
    MESSAGE_TOO_LARGE: Outcome.TOO_LARGE,
    10071: Outcome.MISPLACED,
    10158: Outcome.BUSY,
    10164: Outcome.MISPLACED,
    10174: Outcome.NO_BATCHES,
    10201: Outcome.DUPLICATE,
    10210: Outcome.BUSY,
    10211: Outcome.BUSY,
}


class _Failure(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _PubAck(msgspec.Struct):
    stream: str = ""
    seq: Count = 0
    batch: str = ""
    error: _Failure | None = None


_acknowledgement = Decoder(_PubAck, "an acknowledgement")


def header_lines(headers: Mapping[str, str]) -> str:
    """Write headers as lines; a value's line ends become spaces, as clients send them."""
    return "".join([f"{name}: {_one_line(value)}\r\n" for name, value in headers.items()])


def shorter_forms(row: OutboxRow) -> Iterator[OutboxRow]:
    """Yield the row without one optional header, without two, and so on; nothing if it has none."""
    kept = dict(row.headers)
    for name in () if _is_relayed(row) else SPARED_HEADERS[row.lane]:
        if kept.pop(name, None) is not None:
            yield msgspec.structs.replace(row, headers=dict(kept))


def _is_relayed(row: OutboxRow) -> bool:
    """Return True if a registration is another agent's record: it arrived with all its headers but the id."""
    if row.lane is not Lane.REGISTRATIONS or not row.headers_size:
        return False
    came_with = {name: value for name, value in row.headers.items() if name != MESSAGE_ID_HEADER}
    return row.headers_size == size_of_headers(came_with)


def without_spared(row: OutboxRow) -> OutboxRow:
    """Leave out every header that can be spared; the row itself where it has none."""
    *_, shortest = row, *shorter_forms(row)
    return shortest


def least_size(row: OutboxRow) -> int:
    """Return the message size in bytes that a server and a stream must accept for a row sent alone and shortest."""
    around = _condition(NEVER) if row.is_watermark else ""
    return len(_head((around, ""), without_spared(row).headers)) + len(row.payload)


def _condition(sequence: int) -> str:
    return f"{BEHIND_HEADER}: {sequence}\r\n"


class MessageTooLarge(Exception):
    """A message has more bytes than a server takes; the text says how many."""


def frames_of(shipment: Shipment, reply: str, batch_id: str, max_payload: int) -> list[bytes]:
    """Write a shipment's messages, in parts; the last one is answered on ``reply``. Raise MessageTooLarge."""
    parts: list[bytes] = []
    rows = shipment.rows
    match shipment.form:
        case Form.SINGLE:
            lines = _condition(shipment.behind.sequence) if shipment.behind else ""
            _write(parts, f"{rows[0].subject} {reply}", (lines, ""), rows[0].headers, rows[0].payload, max_payload)
        case Form.QUESTION:
            lines = (
                f"Nats-Batch-Id: {batch_id}\r\nNats-Batch-Sequence: 1\r\nNats-Batch-Commit: 1\r\n{_condition(NEVER)}"
            )
            headers = {MESSAGE_ID_HEADER: rows[0].headers[MESSAGE_ID_HEADER]}
            _write(parts, f"{rows[0].subject} {reply}", (lines, ""), headers, b"", max_payload)
        case Form.BATCH:
            _write_batch(parts, shipment, reply, batch_id, max_payload)
        case Form.CHAIN:
            _write_chain(parts, shipment, reply, max_payload)
    return parts


def _write_batch(parts: list[bytes], shipment: Shipment, reply: str, batch_id: str, max_payload: int) -> None:
    rows, behind = shipment.rows, shipment.behind
    lines = f"{_condition(behind.sequence)}{BEHIND_HEADER}-Subject: {behind.subject}\r\n" if behind else ""
    of_batch, last = f"Nats-Batch-Id: {batch_id}\r\nNats-Batch-Sequence: ", len(rows)
    for place, row in enumerate(rows, 1):
        lines = f"{lines}{of_batch}{place}\r\n"
        if place == last:
            around = lines, "Nats-Batch-Commit: 1\r\n"
            _write(parts, f"{row.subject} {reply}", around, row.headers, row.payload, max_payload)
        else:
            _write(parts, row.subject, (lines, ""), row.headers, row.payload, max_payload)
        lines = ""


def _write_chain(parts: list[bytes], shipment: Shipment, reply: str, max_payload: int) -> None:
    rows, behind = shipment.rows, shipment.behind
    assert behind is not None
    before, sequence, last = behind.subject, behind.sequence, rows[-1]
    # Both conditions: after a message of another client, the stream's end alone would let a row pass the previous one;
    # and of rows of one subject, every second one would match the subject's end.
    for row in rows:
        subject = f"Nats-Expected-Last-Subject-Sequence-Subject: {before}\r\n" if before != row.subject else ""
        lines = (
            f"Nats-Expected-Last-Sequence: {sequence}\r\nNats-Expected-Last-Subject-Sequence: {sequence}\r\n{subject}"
        )
        address = f"{row.subject} {reply}" if row is last else row.subject
        _write(parts, address, (lines, ""), row.headers, row.payload, max_payload)
        before, sequence = row.subject, sequence + 1


def _write(
    parts: list[bytes],
    address: str,
    around: tuple[str, str],
    headers: Mapping[str, str],
    payload: bytes,
    max_payload: int,
) -> None:
    """Write one message. ``address`` is its subject, and the one to answer on where it is answered."""
    head = _head(around, headers)
    if len(head) + len(payload) > max_payload:
        raise MessageTooLarge(f"{len(head) + len(payload)} bytes are more than the region's servers take")
    parts += (f"HPUB {address} {len(head)} {len(head) + len(payload)}\r\n".encode() + head, payload, b"\r\n")


def _head(around: tuple[str, str], headers: Mapping[str, str]) -> bytes:
    return f"{_VERSION}{around[0]}{header_lines(headers)}{around[1]}\r\n".encode()


def answer_to(shipment_number: int, form: Form, body: bytes) -> Answer:
    try:
        reply = _acknowledgement(body)
    except WireError as error:
        return Answer(shipment_number, Outcome.REFUSED, reason=str(error))
    if reply.error is not None:
        reason = reply.error.description or str(reply.error.err_code)
        return Answer(shipment_number, _OUTCOMES.get(reply.error.err_code, Outcome.REFUSED), reason=reason)
    if not reply.stream:
        return Answer(shipment_number, Outcome.REFUSED, reason="the answer names no stream: it was not stored")
    if form is Form.BATCH and not reply.batch:
        # A server without batches has stored the rows one by one, the last of them for certain.
        return Answer(shipment_number, Outcome.NO_BATCHES, reason="the server takes no batches")
    return Answer(shipment_number, Outcome.STORED, reply.seq)


def _one_line(value: str) -> str:
    value = value.strip()
    return value.translate(_NEWLINES) if "\r" in value or "\n" in value else value
