"""Draw what copies what as text for GraphViz (``dot -Tsvg``). Pure.

One box for each place, in it its streams, and an arrow from each origin to its copy: dashed and red where the copy does
not hear from it.
"""

from collections.abc import Iterator

import msgspec

from aggregator.topology.report.tables import ReplicationRow, StreamReport, StreamRow
from shared.nats.jetstream_api import api_prefix, domain_of

HEAD = ("  rankdir=LR;", "  nodesep=0.6;", '  node [fontname="sans-serif"];', '  edge [fontsize="10"];')
_SHAPES = {"origin": "box", "sourced": "box3d", "mirror": "folder"}


def replication_graph(report: StreamReport) -> str:
    nodes = {(row.place, row.name): _stream_node(row) for row in report.streams}
    for copied in report.replication:
        nodes.setdefault((copied.source_place, copied.source), _foreign_node(copied))
    lines = ["digraph replication {", *HEAD]
    for number, place in enumerate(dict.fromkeys(place for place, _ in nodes)):
        lines += [f"  subgraph cluster_{number} {{", f"    label={quoted(place)};"]
        lines += [f"    {node}" for (node_place, _), node in nodes.items() if node_place == place]
        lines.append("  }")
    lines += [f"  {edge}" for edge in map(_edge, report.replication)]
    return "\n".join([*lines, "}", ""])


def _stream_node(row: StreamRow) -> str:
    state = row.error or f"{row.storage}, R{row.replicas}, {row.messages:,} messages"
    colour = ', color="red"' if row.error else ""
    return f"{_node(row.place, row.name)} [shape={_SHAPES[row.kind]}, label={quoted(row.name, state)}{colour}];"


def _foreign_node(row: ReplicationRow) -> str:
    state = "not in the topology" if row.origin_last is not None else "not found"
    return f"{_node(row.source_place, row.source)} [shape=box, style=dotted, label={quoted(row.source, state)}];"


def _edge(row: ReplicationRow) -> str:
    label = quoted(*_edge_words(row))
    style = "" if row.healthy else ', style=dashed, color="red"'
    return f"{_node(row.source_place, row.source)} -> {_node(row.place, row.stream)} [label={label}{style}];"


def _edge_words(row: ReplicationRow) -> Iterator[str]:
    yield row.kind
    if row.api not in (api_prefix(domain_of(row.api)), row.source_place):
        yield row.api
    yield from row.takes
    if row.missing:
        yield "missing"
    else:
        yield f"lag {row.lag:,}" if row.behind is None else f"behind {row.behind:,}"
    if row.error:
        yield row.error


def _node(place: str, name: str) -> str:
    return quoted(f"{place}/{name}")


def quoted(*lines: str) -> str:
    """Quote as GraphViz does: for these characters, as JSON does; lines are joined by its own line break."""
    return '"' + r"\n".join(msgspec.json.encode(line).decode()[1:-1] for line in lines) + '"'
