"""Decoders of what another program wrote are of one class, which raises one error whatever the bytes are."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DECODING = {
    *(f"msgspec.{codec}.{name}" for codec in ("json", "msgpack", "toml", "yaml") for name in ("decode", "Decoder")),
    *("json.load", "json.loads", "pickle.load", "pickle.loads", "marshal.loads"),
}
WITHOUT = {
    "aggregator/lakehouse/archive/json_repair.py": "bodies of senders, which it reads with tolerance",
    "aggregator/lakehouse/archive/hub_time.py": "what a task of Spark has written for its driver",
    "aggregator/lakehouse/archive/slices.py": "what the driver of Spark has written for its workers",
    "aggregator/lakehouse/bronze/spark_source.py": "what the driver of Spark has written for its workers",
    "aggregator/lakehouse/warehouse/place.py": "Iceberg's metadata, in the warehouse",
    "aggregator/lakehouse/warehouse/upkeep.py": "Iceberg's metadata, as its library writes it",
    "aggregator/live/alerts/incident_book.py": "rows of the service's own database",
    "aggregator/live/store.py": "rows of the service's own database",
    "edge_agent/core/batch.py": "bodies of senders, which it reads with tolerance",
    "edge_agent/core/intake.py": "bodies of senders, which it reads with tolerance",
    "edge_agent/core/payload.py": "bodies of senders, which it reads with tolerance",
    "edge_agent/migration/peer.py": "YAML of the peer's settings, of which msgspec has no decoder to keep",
    "shared/tolerant_json.py": "single words of bodies of senders",
}
"""Modules that decode otherwise, and what."""


def names_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def test_every_decoder_is_of_the_class_that_raises_one_error() -> None:
    found = {
        str(path.relative_to(ROOT))
        for package in ("edge_agent", "aggregator", "shared")
        for path in (ROOT / package).rglob("*.py")
        if path.relative_to(ROOT).parts[1] != "demo" and not DECODING.isdisjoint(names_in(ast.parse(path.read_text())))
    }
    assert found == set(WITHOUT)
