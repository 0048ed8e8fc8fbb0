"""Describe a program command by command, out of what its help says. Its man page is made of the same text."""

import re
from collections.abc import Iterator

import click

_INTRODUCTION = """\
# The commands of `{program}`

{help}
Written from the program's own help by `make docs`.

Exit codes: 0 done, or told to stop; 1 something that one line on standard error explains; 2 a wrong command line. What
has codes of its own says so below. `--debug`, anywhere on the line, shows tracebacks and debug messages.
"""


def command_reference(group: click.Group, program: str) -> str:
    """Give the page of a program."""
    return "\n".join(_page(group, program))


def _page(group: click.Group, program: str) -> Iterator[str]:
    yield _INTRODUCTION.format(program=program, help=" ".join((group.help or "").split()))
    context = click.Context(group, info_name=program, **group.context_settings)
    for name in group.list_commands(context):
        yield from _command(group, name, context)


def _command(group: click.Group, name: str, above: click.Context) -> Iterator[str]:
    command = group.get_command(above, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=above)
    yield f"## {context.command_path}\n"
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f"```\n{usage}\n```\n"
    yield from _paragraphs(command.help or "")
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and "--help" not in record[0]:
            names, meaning = record
            yield f"- `{names}`: {_escaped(' '.join(meaning.split()))}" if meaning else f"- `{names}`"
    yield ""
    yield from _paragraphs(command.epilog or "")
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            yield from _command(command, below, context)


def _paragraphs(text: str) -> Iterator[str]:
    """Turn what click prints into Markdown; what it leaves as it is, and what is set off, is code."""
    code: list[str] = []
    for paragraph in re.split(r"\n[ ]*\n", _undented(text)):
        is_verbatim = paragraph.startswith("\b")
        lines = paragraph.removeprefix("\b\n").splitlines()
        if is_verbatim and lines and not lines[0].startswith(" ") and lines[0].endswith(":"):
            yield from _fenced(code)
            code = []
            yield f"{_escaped(lines.pop(0))}\n"
        if is_verbatim and lines:
            code += ["", *lines] if code else lines
        elif lines:
            yield from _fenced(code)
            code = []
            yield f"{_escaped(' '.join(' '.join(lines).split()))}\n"
    yield from _fenced(code)


def _fenced(lines: list[str]) -> Iterator[str]:
    if lines:
        depth = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        yield "\n".join(["```", *(line[depth:].rstrip() for line in lines), "```\n"])


def _undented(text: str) -> str:
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE).strip("\n")


def _escaped(text: str) -> str:
    """Keep what Markdown would take for a tag or for emphasis."""
    return re.sub(r"([*_<>\[\]`])", r"\\\1", text)
