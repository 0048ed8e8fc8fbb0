"""Find the examples in the documents, to run them."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ANALYSTS = Path(__file__).parents[2] / "docs" / "analysts.md"

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_QUESTION = re.compile(r'^\$ muster-aggregator sql "\n(.*?)"\n(.*?)$', re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^muster-aggregator ((?:sql|tables|spark-sql)\b.*)$", re.MULTILINE)


class Question(NamedTuple):
    """A query as the document asks it, and the columns of the answer that stands below it."""

    sql: str
    columns: tuple[str, ...]


def examples(document: Path, language: str) -> list[str]:
    """Give the blocks of a language; those of the shell have none."""
    return [block for name, block in _FENCED.findall(document.read_text()) if name == language]


def questions(document: Path) -> list[Question]:
    """Give the queries without what the shell asks for: a backslash before a dollar sign."""
    return [
        Question(sql.replace("\\$", "$"), tuple(heading.split()))
        for sql, heading in _QUESTION.findall(document.read_text())
    ]


def commands(document: Path) -> list[list[str]]:
    """Give the arguments of each command that asks the tables, without where its output goes."""
    lines = [line for block in examples(document, "") for line in _COMMAND.findall(block)]
    words = (shlex.split(line, comments=True) for line in lines)
    return [each[: each.index(">")] if ">" in each else each for each in words]


def answer_to(document: Path, command: str) -> list[str]:
    """Give the lines that stand below the one time that a command is shown with its answer."""
    (block,) = [block for block in examples(document, "") if block.startswith(f"$ {command}\n")]
    return block.splitlines()[1:]


def quoted(document: Path, beginning: str) -> str:
    """Give the one piece of code within a line that begins so."""
    (code,) = set(re.findall(rf"`({re.escape(beginning)}[^`]*)`", document.read_text()))
    return str(code)
