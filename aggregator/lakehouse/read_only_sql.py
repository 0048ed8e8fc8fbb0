"""Tell whether SQL only reads: the types that DuckDB gives statements do not say it.

EXPLAIN ANALYZE runs what it explains, a COPY may be the body of a WITH, and what has a PIVOT in it is of one type
whatever it does. This keeps people from mistakes; it is no wall around one who looks for a way to write files.
"""

import re

import duckdb

from aggregator.lakehouse.warehouse.errors import TablesUnreadable

# A PIVOT is several statements in one.
_READING = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN, duckdb.StatementType.MULTI)
_BEGINNING = re.compile("select|with|from|values|table|pivot(_wider|_longer)?|unpivot|desc(ribe)?|show|summarize")
_ANALYZE = ("analyze", "analyse")
_SERIALIZED = "json_execute_serialized_sql"
"""The function that runs a statement which is written as JSON, whatever it does."""


def check_only_reads(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raise TablesUnreadable where ``sql`` is not one statement that only reads, duckdb.Error where it is no SQL."""
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise TablesUnreadable(f"one statement at a time, please: there are {len(statements)}")
    words = _words(sql)
    explained = _explained(words) if words[:1] == ["explain"] else words
    beginning = next((word for word in explained if word != "("), "")
    if statements[0].type not in _READING or not _BEGINNING.fullmatch(beginning) or _SERIALIZED in sql.lower():
        raise TablesUnreadable("the tables are written by rollup alone: begin with SELECT, WITH, DESCRIBE or SHOW")
    if "copy" in words:
        raise TablesUnreadable(
            "COPY writes files, which sql does not: --parquet does, and --format csv (a column of that name must be"
            " quoted)"
        )


def _words(sql: str) -> list[str]:
    """Give the words and the parentheses of ``sql``, but for those in comments, texts and quoted names.

    DuckDB counts in bytes, and takes characters for space that Python and its own ``tokenize`` count among a word's.
    """
    encoded, tokens = sql.encode(), duckdb.tokenize(sql)
    ends = [*(offset for offset, _ in tokens[1:]), len(encoded)]
    words = []
    for (offset, kind), end in zip(tokens, ends, strict=True):
        text = encoded[offset:end].decode()
        if kind not in (duckdb.token_type.comment, duckdb.token_type.string_const) and not text.startswith('"'):
            words += re.findall(r"\w+|[()]", text.lower())
    return words


def _explained(words: list[str]) -> list[str]:
    """Leave out EXPLAIN with its options: what stands in the first parentheses, unless that is a query."""
    rest = words[2:] if words[1:2] and words[1] in _ANALYZE else words[1:]
    if rest[:1] == ["("] and not any(word == "(" or _BEGINNING.fullmatch(word) for word in rest[1:2]):
        rest = rest[rest.index(")") + 1 :]
    return rest
