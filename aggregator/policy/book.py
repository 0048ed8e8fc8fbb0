"""Fold the revisions of the policy: what holds for whom, which maintenance is declared, what may be said next. Pure."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from shared.identifiers import BlockId
from shared.instants import EARLIEST, LATEST, format_duration, format_instant
from shared.policy import (
    CancelMaintenance,
    DeclareMaintenance,
    Order,
    Revision,
    Scope,
    ScopedRevision,
    SetThresholds,
    scopes_of,
)
from shared.thresholds import InvalidThresholds, Thresholds


class OrderRefused(ValueError):
    """An order contradicts the policy in force, or has no effect. The text is one line."""


class OrderWindow(msgspec.Struct, frozen=True):
    """A declared maintenance; ``cancelled_by`` is the revision that took it back, 0 where none did."""

    revision: int
    scope: Scope
    order: DeclareMaintenance
    author: str
    cancelled_by: int = 0


class Book:
    """Everything that was said, in its order."""

    def __init__(self, revisions: Iterable[ScopedRevision]) -> None:
        self.revisions = tuple(revisions)
        self.thresholds: dict[Scope, Thresholds] = {}
        self.set_by: dict[Scope, Revision] = {}
        self.windows: dict[int, OrderWindow] = {}
        for scope, revision in self.revisions:
            match revision.order:
                case SetThresholds(thresholds):
                    self.thresholds[scope], self.set_by[scope] = thresholds, revision
                case DeclareMaintenance() as declared:
                    number = revision.revision
                    self.windows[number] = OrderWindow(number, scope, declared, revision.author)
                case CancelMaintenance(number) if number in self.windows:
                    cancelled = msgspec.structs.replace(self.windows[number], cancelled_by=revision.revision)
                    self.windows[number] = cancelled

    def revisions_for(self, block_id: BlockId) -> list[Revision]:
        block = Scope(block_id.region, block_id.site, block_id.block)
        return [revision for scope, revision in self.revisions if scope.covers(block)]

    def wanted_of(self, block_id: BlockId) -> Thresholds:
        """Give the thresholds that are said for a block; what is not set is its settings file's."""
        wanted = Thresholds()
        for scope in scopes_of(block_id):
            wanted = wanted.overlaid(self.thresholds.get(scope, Thresholds()))
        return wanted


def changed_thresholds(book: Book, scope: Scope, changes: Mapping[str, int], unset: Iterable[str]) -> SetThresholds:
    """Give what holds for a scope with ``changes`` (microseconds) to it, less what is ``unset``; raise OrderRefused.

    Checked is all that is known to hold beside it: for larger scopes, and for each smaller one.
    """
    before = book.thresholds.get(scope, Thresholds())
    kept = {name: value for name, value in before.given.items() if name not in set(unset)}
    wanted = Thresholds(**(kept | dict(changes)))
    if wanted == before:
        raise OrderRefused(f"{scope}: nothing changes, this holds already")
    after = {**book.thresholds, scope: wanted}
    for smaller in sorted(other for other in after if scope.covers(other)):
        together = Thresholds()
        for larger in sorted(other for other in after if other.covers(smaller)):
            together = together.overlaid(after[larger])
        try:
            together.check()
        except InvalidThresholds as error:
            raise OrderRefused(f"{smaller}: {error}") from error
    return SetThresholds(wanted)


def declared_maintenance(started_at: int, ended_at: int, reason: str, sender_ids: Iterable[str]) -> DeclareMaintenance:
    """Give a window of maintenance (microseconds); raise OrderRefused."""
    if ended_at <= started_at:
        raise OrderRefused(
            f"maintenance must end after it starts: {format_instant(started_at)} to {format_instant(ended_at)}"
        )
    if started_at < EARLIEST or ended_at > LATEST:
        between = f"{format_instant(EARLIEST)} and {format_instant(LATEST)}"
        raise OrderRefused(f"maintenance must lie between {between}: the tables take no other")
    if not reason.strip():
        raise OrderRefused("maintenance needs a reason: say why")
    senders = tuple(dict.fromkeys(sender_ids))
    if not all(senders):
        raise OrderRefused("a sender's name is not empty")
    return DeclareMaintenance(started_at, ended_at, reason, senders)


def cancelled_maintenance(book: Book, number: int) -> tuple[Scope, Order]:
    """Take back the maintenance that a revision declared; raise OrderRefused."""
    window = book.windows.get(number)
    if window is None:
        known = ", ".join(str(each.revision) for each in book.windows.values() if not each.cancelled_by)
        raise OrderRefused(f"revision {number} declares no maintenance; those that do: {known or 'none'}")
    if window.cancelled_by:
        raise OrderRefused(f"revision {number} is cancelled already, by revision {window.cancelled_by}")
    return window.scope, CancelMaintenance(number)


def revision_text(scoped: ScopedRevision) -> str:
    return " ".join(_order_parts(scoped.revision.order))


def _order_parts(order: Order) -> Iterator[str]:
    match order:
        case SetThresholds(thresholds):
            given = thresholds.given
            yield ", ".join(f"{name} {format_duration(value)}" for name, value in given.items()) or "nothing of its own"
        case DeclareMaintenance(started_at, ended_at, reason, senders):
            yield f"maintenance {format_instant(started_at)} to {format_instant(ended_at)}"
            if senders:
                yield f"of {', '.join(senders)}"
            yield f"({reason})"
        case CancelMaintenance(number):
            yield f"maintenance of revision {number} cancelled"
        case _:
            yield f"{order.__struct_config__.tag} {order.sender_id}"
