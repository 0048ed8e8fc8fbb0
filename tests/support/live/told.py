"""A fleet that is told of as a test says, and looked at as of an instant."""

import msgspec

from aggregator.live.fold.changes import Archived, Changes, StoryEntry
from aggregator.live.fold.fleet import Fleet
from aggregator.live.fold.view import Source, Sourcing, View
from shared.instants import MINUTE
from shared.wire import decode_watermark, encode
from tests.support.lakehouse.hub import Block, Message

START = 1_795_600_000_000_000
AFTER = 2 * MINUTE
KNOWN_UNTIL = START + 20 * MINUTE
LATE = KNOWN_UNTIL + AFTER + 1


class Told:
    """A fleet whose messages are archived when a test says so."""

    def __init__(self, fleet: Fleet | None = None) -> None:
        self._stored: dict[int, StoryEntry] = {}
        self.fleet = fleet or Fleet(history=self._stored.get)
        self.archived: list[Archived] = []

    def at(self, archived_at: int, *messages: Message) -> Changes:
        first = self.fleet.sequence + 1
        told = [
            Archived(sequence, message.subject.encode(), archived_at, message.body)
            for sequence, message in enumerate(messages, start=first)
        ]
        self.archived += told
        changes = self.fleet.fold(told)
        self._stored |= {entry.sequence: entry for entry in changes.entries}
        return changes

    def view(self, now: int, caught_up_at: int | None = None, **sources: Source) -> View:
        regions = {name.replace("_", "-"): source for name, source in sources.items()}
        return View(self.fleet, Sourcing(0, now, now if caught_up_at is None else caught_up_at, regions), AFTER)


def restatement(block: Block, through: int, condition: str) -> Message:
    """Say a watermark again, with what keeps the next one from coming."""
    message = block.watermark(START, through)
    return message._replace(body=message.body[:-1] + b',"condition":"%s"}' % condition.encode())


def in_conditions(message: Message, *names: str) -> Message:
    """Let a watermark name what its agent is in."""
    return message._replace(body=encode(msgspec.structs.replace(decode_watermark(message.body), conditions=names)))
