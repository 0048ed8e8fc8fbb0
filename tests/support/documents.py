"""Find the examples in the documents, to run them."""

import re
from pathlib import Path
from typing import NamedTuple

ANALYSTS = Path(__file__).parents[2] / "docs" / "analysts.md"

_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_QUESTION = re.compile(r'^\$ muster-aggregator sql "\n(.*?)"\n(.*?)$', re.MULTILINE | re.DOTALL)


class Question(NamedTuple):
    """A query as the document asks it, and the columns of the answer that stands below it."""

    sql: str
    columns: tuple[str, ...]


def python_examples(document: Path) -> list[str]:
    return _PYTHON.findall(document.read_text())


def questions(document: Path) -> list[Question]:
    """Give the queries without what the shell asks for: a backslash before a dollar sign."""
    return [
        Question(sql.replace("\\$", "$"), tuple(heading.split()))
        for sql, heading in _QUESTION.findall(document.read_text())
    ]
