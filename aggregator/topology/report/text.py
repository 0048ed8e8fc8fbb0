"""Write a report for people: its tables, and below them what is wrong. Pure."""

from collections import Counter

from aggregator.terminal import format_table
from aggregator.topology.desired.model import lines_by_place
from aggregator.topology.report.tables import ReplicationRow, StreamReport, StreamRow
from shared.command_line.tables import UNWRAPPED, TableColumn
from shared.instants import format_duration
from shared.sizes import format_size

_STREAM_COLUMNS: tuple[TableColumn[StreamRow], ...] = (
    TableColumn("stream", lambda row: row.name),
    TableColumn("kind", lambda row: row.kind, spare=1),
    TableColumn("domain", lambda row: row.place),
    TableColumn(
        "stored",
        lambda row: f"{row.storage}, R{row.replicas}" if row.storage else row.error.partition(":")[0],
        wraps=True,
    ),
    TableColumn("messages", lambda row: f"{row.messages:,}" if row.storage else "", right=True),
    TableColumn("size", lambda row: format_size(row.bytes) if row.storage else "", right=True),
    TableColumn("first", lambda row: f"{row.first_sequence:,}" if row.storage else "", right=True, spare=3),
    TableColumn("last", lambda row: f"{row.last_sequence:,}" if row.storage else "", right=True),
    TableColumn("deleted", lambda row: f"{row.deleted:,}" if row.deleted else "", right=True),
    TableColumn("lost", lambda row: f"{row.lost:,}" if row.lost else "", right=True),
    TableColumn("consumers", lambda row: str(row.consumers) if row.storage else "", right=True, spare=2),
)
_SERVER_COLUMNS: tuple[TableColumn[StreamRow], ...] = (
    TableColumn("stream", lambda row: row.name),
    TableColumn("domain", lambda row: row.place),
    TableColumn("placement", lambda row: ", ".join(row.placement), wraps=True),
    TableColumn("servers", lambda row: row.cluster, wraps=True),
)
_COPY_COLUMNS: tuple[TableColumn[ReplicationRow], ...] = (
    TableColumn("stream", lambda row: row.stream),
    TableColumn("domain", lambda row: row.place),
    TableColumn("kind", lambda row: row.kind.removesuffix(" source"), spare=1),
    TableColumn("api", lambda row: row.api, spare=3),
    TableColumn("source", lambda row: row.source),
)
_PROGRESS_COLUMNS: tuple[TableColumn[ReplicationRow], ...] = (
    TableColumn("heard", lambda row: "never" if row.silent_us < 0 else format_duration(row.silent_us), right=True),
    TableColumn("lag", lambda row: f"{row.lag:,}", right=True, spare=2),
    TableColumn("taken", lambda row: "?" if row.taken is None else f"{row.taken:,}", right=True),
    TableColumn("behind", lambda row: "?" if row.behind is None else f"{row.behind:,}", right=True),
    TableColumn("error", lambda row: "below" if row.error else ""),
)


def format_report(report: StreamReport, width: int = UNWRAPPED) -> str:
    """Lay out the tables within ``width`` columns, and below them what is wrong, one line each."""
    parts = [format_table(_STREAM_COLUMNS, report.streams, width)]
    spread = [row for row in report.streams if row.placement or row.servers not in ((), (row.place,))]
    if spread:
        parts.append(format_table(_SERVER_COLUMNS, spread, width))
    told_apart = Counter((row.place, row.stream, row.api, row.source) for row in report.replication)
    filtered = [row for row in report.replication if row.takes]
    alike = [row for row in filtered if told_apart[row.place, row.stream, row.api, row.source] > 1]
    if report.replication:
        takes = TableColumn[ReplicationRow](
            "takes", lambda row: ", ".join(row.takes) if row in alike else "", wraps=True
        )
        parts.append(format_table((*_COPY_COLUMNS, takes, *_PROGRESS_COLUMNS), report.replication, width))
    remarks = [
        (row.place, f"{row.stream} takes only {', '.join(row.takes)} of {row.source}")
        for row in filtered
        if row not in alike
    ]
    remarks += report.unreachable.items()
    remarks += report.harms
    remarks += [(each.place, each.text) for each in report.silent]
    wrong = [row for row in report.streams if row.error and row.place not in report.unreachable]
    remarks += [(row.place, f"{row.name} {row.error}") for row in wrong]
    remarks += [(row.place, _remark(row)) for row in report.replication if not row.healthy]
    return "\n\n".join([*parts, *(["\n".join(lines_by_place(remarks))] if remarks else [])])


def another_past(row: ReplicationRow) -> str:
    """Say of a copy that is beyond its origin what that means, and what helps."""
    taken = row.taken or 0
    if row.kind != "mirror":
        helps = "apply takes all of it once more" if row.confined else "with another filter apply --force takes it anew"
        return (
            f"{row.stream} has taken {row.source} of {row.source_place} up to {taken:,}, it ends at"
            f" {taken - row.beyond:,}: made anew or restored, what it stores up to there is left out: {helps}"
        )
    return (
        f"{row.stream} holds what {row.source} of {row.source_place} was before it was made anew or restored"
        f" (up to {taken:,}, it ends at {taken - row.beyond:,}) and takes nothing from it: apply makes it again"
    )


def not_copied(row: ReplicationRow) -> str:
    return f"{row.stream} does not copy {row.source} of {row.source_place}: apply takes it up"


def _remark(row: ReplicationRow) -> str:
    if row.missing:
        return not_copied(row)
    if row.beyond:
        return another_past(row)
    return f"{row.stream} does not hear from {row.source} ({row.api}){': ' + row.error if row.error else ''}"
