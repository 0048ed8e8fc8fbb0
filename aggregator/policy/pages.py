"""Lay out the policy for people, and as JSON: what holds, which maintenance is declared, who has taken what. Pure."""

from collections.abc import Iterable
from typing import Any

import msgspec

from aggregator.policy.book import Book, OrderWindow, revision_text
from aggregator.policy.runs import Run
from aggregator.terminal import format_table
from shared.command_line.tables import TableColumn
from shared.instants import SECOND, format_duration, format_instant
from shared.policy import ScopedRevision
from shared.thresholds import Thresholds


def show(book: Book, runs: Iterable[Run], now: int, width: int) -> str:
    """Give the page of ``policy show``, ``width`` columns wide; ``now`` is the hub's clock."""
    parts = _thresholds(book, width), _maintenance(book, now, width), _runs(list(runs), now, width)
    return "\n\n".join(filter(None, parts))


def show_as_json(book: Book, runs: Iterable[Run], now: int) -> dict[str, Any]:
    """Give the same as data; instants and durations in microseconds."""
    return {
        "thresholds": [
            {"revision": revision.revision, "scope": str(scope), **book.thresholds[scope].given}
            for scope, revision in sorted(book.set_by.items())
        ],
        "maintenance": [_window(window) | {"state": state(window, now)} for window in book.windows.values()],
        "blocks": [
            {
                "block": str(run.block_id),
                "taken": run.taken,
                "said": run.last_revision,
                "observed_through_us": run.seen_at,
                "remark": run.remark,
            }
            for run in runs
        ],
    }


def history(book: Book, width: int) -> str:
    """List all revisions, the newest last."""
    if not book.revisions:
        return "nothing was said yet"
    columns = (
        TableColumn[ScopedRevision]("revision", lambda each: str(each.revision.revision), right=True),
        TableColumn[ScopedRevision]("given", lambda each: _moment(each.revision.given_at_us)),
        TableColumn[ScopedRevision]("by", lambda each: each.revision.author),
        TableColumn[ScopedRevision]("for", lambda each: str(each.scope)),
        TableColumn[ScopedRevision]("says", revision_text, wraps=True),
    )
    return format_table(columns, book.revisions, width)


def history_as_json(book: Book) -> list[dict[str, Any]]:
    """Give the same as data, each revision as it stands in the stream."""
    return [{"scope": str(scope), **msgspec.to_builtins(revision)} for scope, revision in book.revisions]


def state(window: OrderWindow, now: int) -> str:
    if window.cancelled_by:
        return "cancelled"
    if now < window.order.started_at_us:
        return "declared"
    return "under way" if now < window.order.ended_at_us else "over"


def _thresholds(book: Book, width: int) -> str:
    rows = [(str(scope), book.thresholds[scope], revision) for scope, revision in sorted(book.set_by.items())]
    rows = [row for row in rows if row[1].given]
    if not rows:
        return "thresholds: none are said, each site's settings file holds"

    def cell(name: str) -> Any:
        return lambda row: format_duration(row[1].given[name]) if name in row[1].given else ""

    columns: list[TableColumn[Any]] = [TableColumn("for", lambda row: row[0])]
    columns += [TableColumn(name.replace("_", " "), cell(name), right=True) for name in Thresholds.__struct_fields__]
    columns += [
        TableColumn("revision", lambda row: str(row[2].revision), right=True),
        TableColumn("by", lambda row: row[2].author),
    ]
    return format_table(columns, rows, width)


def _maintenance(book: Book, now: int, width: int) -> str:
    open_ones = [window for window in book.windows.values() if state(window, now) in ("declared", "under way")]
    if not open_ones:
        return ""
    columns = (
        TableColumn[OrderWindow]("maintenance", lambda each: str(each.revision), right=True),
        TableColumn[OrderWindow]("for", lambda each: str(each.scope)),
        TableColumn[OrderWindow]("senders", lambda each: ", ".join(each.order.sender_ids) or "all", wraps=True),
        TableColumn[OrderWindow]("from", lambda each: _moment(each.order.started_at_us)),
        TableColumn[OrderWindow]("to", lambda each: _moment(each.order.ended_at_us)),
        TableColumn[OrderWindow]("state", lambda each: state(each, now), spare=1),
        TableColumn[OrderWindow]("reason", lambda each: each.order.reason, wraps=True),
    )
    return format_table(columns, open_ones, width)


def _runs(runs: list[Run], now: int, width: int) -> str:
    if not runs:
        return "no site has spoken yet"
    columns = (
        TableColumn[Run]("block", lambda each: str(each.block_id)),
        TableColumn[Run]("taken", lambda each: str(each.taken), right=True),
        TableColumn[Run]("said", lambda each: str(each.last_revision), right=True),
        TableColumn[Run]("last word", lambda each: f"{format_duration(_seconds(now - each.seen_at))} ago"),
        TableColumn[Run]("remark", lambda each: each.remark, wraps=True),
    )
    return format_table(columns, runs, width)


def _window(window: OrderWindow) -> dict[str, Any]:
    return {
        "revision": window.revision,
        "scope": str(window.scope),
        "author": window.author,
        "cancelled_by": window.cancelled_by,
        **msgspec.structs.asdict(window.order),
    }


def _seconds(duration: int) -> int:
    return max(duration, 0) // SECOND * SECOND


def _moment(at: int) -> str:
    return format_instant(at - at % SECOND)
