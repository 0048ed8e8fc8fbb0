"""Carry out what operators order from the page: through the hub's policy, as the command ``policy`` does."""

import asyncio
from collections.abc import Iterator

from aggregator.config import AggregatorSettings
from aggregator.live.api import Operation, OperationDone, OperationKind
from aggregator.live.known_senders import unheard_of
from aggregator.live.service.server import OperationRefused
from aggregator.policy import book as rules
from aggregator.policy.book import Book
from aggregator.policy.stream import PolicyUnavailable, say
from aggregator.topology.desired.model import HUB, Place
from shared.identifiers import InvalidIdentifier, validated_token
from shared.nats.connection import ConnectFailed, connect
from shared.nats.jetstream_api import ApiError, RequestFailed
from shared.policy import ForwardSender, Order, RetireSender, Scope, ScopedRevision

CONNECT_DEADLINE = 5.0


class PolicyOperations:
    """Adds revisions to the policy of one hub."""

    def __init__(self, settings: AggregatorSettings) -> None:
        self._hub, self._live_path = settings.hub, settings.live_path

    async def carry_out(self, operation: Operation) -> OperationDone:
        """Say it to the agents; raise OperationRefused."""
        done: list[ScopedRevision] = []
        try:
            scope = _scope(operation)
            unheard = await asyncio.to_thread(unheard_of, self._live_path, scope, operation.senders)
            if unheard and operation.kind is not OperationKind.MAINTENANCE and not operation.force:
                raise rules.OrderRefused(f"{unheard}: nothing was said, this asks for force")
            async with await connect(self._hub, name="muster-live operations", deadline=CONNECT_DEADLINE) as client:
                place = Place(HUB, self._hub.domain)
                for ordered in _orders(operation):

                    def make(held: Book, ordered: Order | None = ordered) -> tuple[Scope, Order]:
                        if ordered is None:
                            return rules.cancelled_maintenance(held, operation.revision)
                        return scope, ordered

                    done.append(await say(client, place, operation.author, make))
        except (ConnectFailed, PolicyUnavailable, rules.OrderRefused, RequestFailed, ApiError) as error:
            said = ", ".join(str(each.revision.revision) for each in done)
            raise OperationRefused(f"{error}{f'; done before that: revisions {said}' if said else ''}") from error
        return OperationDone(
            tuple(each.revision.revision for each in done),
            "; ".join(f"{each.scope}: {rules.revision_text(each)}" for each in done),
            unheard,
        )


def _orders(operation: Operation) -> Iterator[Order | None]:
    """Give what is to be said; None: that a maintenance is taken back, which depends on what is held."""
    match operation.kind:
        case OperationKind.MAINTENANCE:
            span = operation.started_at_us, operation.ended_at_us
            yield rules.declared_maintenance(*span, operation.why, operation.senders)
        case OperationKind.CANCEL:
            yield None
        case kind:
            if not operation.block or not operation.senders or not all(operation.senders):
                raise rules.OrderRefused(f"{kind} is for senders of a block: name region, site, block and senders")
            order = RetireSender if kind is OperationKind.RETIRE else ForwardSender
            yield from (order(sender) for sender in operation.senders)


def _scope(operation: Operation) -> Scope:
    if operation.kind is OperationKind.CANCEL:
        return Scope("")
    if not operation.region or (operation.block and not operation.site):
        raise rules.OrderRefused("say for whom: a region, a site of it, or a block of that")
    try:
        for what in ("region", "site", "block"):
            validated_token(getattr(operation, what) or "none", what)
    except InvalidIdentifier as error:
        raise rules.OrderRefused(str(error)) from error
    return Scope(operation.region, operation.site, operation.block)
