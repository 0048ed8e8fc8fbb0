"""Give the columns of an answer types that Parquet has: DuckDB writes others as what no program reads back.

A sum of whole numbers is 128 bits wide, and would become a DOUBLE, which counts exactly to 2^53; a length of time would
become twelve bytes without a meaning.
"""

from collections.abc import Sequence
from typing import Any

_LENGTH = "interval"
_KEPT_AS = {"hugeint": "DECIMAL(38, 0)", "uhugeint": "DECIMAL(38, 0)", _LENGTH: "VARCHAR"}


def parquet_columns(names: Sequence[str], types: Sequence[Any]) -> str | None:
    """Write the SELECT list that makes columns of ``types`` ones that Parquet has; None where they are all.

    Sums become DECIMAL(38, 0), and lengths of time a BIGINT of microseconds, a month counted as 30 days; a length
    within a list, a map or a structure becomes text. ``names`` may repeat: columns go by their place.
    """
    kept = [_kept(kind) for kind in types]
    if kept == [str(kind) for kind in types]:
        return None
    columns = []
    for place, (name, kind, wanted) in enumerate(zip(names, types, kept, strict=True), start=1):
        value = f"epoch_us(#{place})" if kind.id == _LENGTH else f"CAST(#{place} AS {wanted})"
        columns.append(f"#{place}" if wanted == str(kind) else f"{value} AS {_quoted(name)}")
    return ", ".join(columns)


def _kept(kind: Any) -> str:
    """Name the type of Parquet's that holds all of a type of DuckDB's."""
    if kind.id in _KEPT_AS:
        return _KEPT_AS[kind.id]
    if kind.id not in ("list", "array", "map", "struct"):
        return str(kind)
    children = dict(kind.children)
    if kind.id == "list":
        return f"{_kept(children['child'])}[]"
    if kind.id == "array":
        return f"{_kept(children['child'])}[{children['size']}]"
    if kind.id == "map":
        return f"MAP({_kept(children['key'])}, {_kept(children['value'])})"
    return f"STRUCT({', '.join(f'{_quoted(name)} {_kept(child)}' for name, child in children.items())})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
