"""Write an advisory as an agent would, from everything that it says."""

from shared.identifiers import AdvisoryKind, BlockId, Incarnation, advisory_event_id
from shared.wire import Advisory


def advisory_of(
    block_id: BlockId,
    kind: AdvisoryKind,
    *,
    sender_id: str,
    inspect_field: str,
    at: int,
    last_seen_at: int,
    stream: str,
    incarnation: Incarnation,
    sequence: int,
    opening: tuple[Incarnation, int],
    ordinal: int,
    rebuilt: bool = False,
) -> Advisory:
    """Fill in what follows from the rest: the id and Choria's fields."""
    event_id = advisory_event_id(block_id, opening, sender_id, kind, at)
    blank = Advisory.blank(block_id, kind, inspect_field, stream, incarnation, rebuilt)
    return blank.filled(event_id, sender_id, (at, last_seen_at), (sequence, opening[1]), ordinal)
