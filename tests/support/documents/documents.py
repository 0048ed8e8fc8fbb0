"""Find the examples in the documents, to run them."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[3] / "docs"
EXACTNESS = DOCS / "explanation" / "exactness.md"
RECIPES = DOCS / "howto" / "analyst" / "recipes.md"
ANALYSTS = (
    *(DOCS / "howto" / "analyst" / f"{name}.md" for name in ("first-questions", "recipes", "other-tools", "import")),
    EXACTNESS,
)
"""What analysts read, in this order."""

Documents = Path | tuple[Path, ...]

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_QUESTION = re.compile(r'^\$ muster-aggregator sql "\n(.*?)"\n(.*?)$', re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^muster-aggregator ((?:sql|tables|spark-sql)\b.*)$", re.MULTILINE)


class Question(NamedTuple):
    """A query as the document asks it, and the columns of the answer that stands below it."""

    sql: str
    columns: tuple[str, ...]


def _text(documents: Documents) -> str:
    return "\n".join(path.read_text() for path in ([documents] if isinstance(documents, Path) else documents))


def examples(documents: Documents, language: str) -> list[str]:
    """Give the blocks of a language; those of the shell have none."""
    return [block for name, block in _FENCED.findall(_text(documents)) if name == language]


def questions(documents: Documents) -> list[Question]:
    """Give the queries without what the shell asks for: a backslash before a dollar sign."""
    return [
        Question(sql.replace("\\$", "$"), tuple(heading.split()))
        for sql, heading in _QUESTION.findall(_text(documents))
    ]


def recipes() -> dict[str, list[str]]:
    """Give the queries of each recipe by its title."""
    sections = re.split(r"^## (.*)$", RECIPES.read_text(), flags=re.MULTILINE)[1:]
    titles, texts = sections[::2], sections[1::2]
    return {
        title: [block for name, block in _FENCED.findall(text) if name == "sql"]
        for title, text in zip(titles, texts, strict=True)
    }


def commands(documents: Documents) -> list[list[str]]:
    """Give the arguments of each command that asks the tables, without where its output goes."""
    lines = [line for block in examples(documents, "") for line in _COMMAND.findall(block)]
    words = (shlex.split(line, comments=True) for line in lines)
    return [each[: each.index(">")] if ">" in each else each for each in words]


def answer_to(documents: Documents, command: str) -> list[str]:
    """Give the lines that stand below the one time that a command is shown with its answer."""
    (block,) = [block for block in examples(documents, "") if block.startswith(f"$ {command}\n")]
    return block.splitlines()[1:]


def quoted(documents: Documents, beginning: str) -> str:
    """Give the one piece of code within a line that begins so."""
    (code,) = set(re.findall(rf"`({re.escape(beginning)}[^`]*)`", _text(documents)))
    return str(code)
