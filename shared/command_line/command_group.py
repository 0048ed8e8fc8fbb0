"""What both programs' commands share: whole sentences in lists, examples, types of values, completion of shells."""

import os
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from shared.command_line.terminal import echo
from shared.instants import parse_duration, parse_instant

ANY_LENGTH = 1_000
BUILT_FROM = Path(__file__).parents[1] / "built_from"
"""What packaging/wheel_hook.py writes: the commit."""
HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


class CommandGroup(click.Group):
    """A group whose help gives of each command all of its first sentence: click cuts off what is longer than a line."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command, and suggest those of a like name where there is none: click knows of those loaded only.

        Whatever text it takes is UTF-8, or refused.
        """
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            known = self.list_commands(ctx)
            raise click.exceptions.NoSuchCommand(error.command_name, possibilities=known, ctx=ctx) from error
        for param in command.params if command is not None else ():
            if param.type is click.STRING:
                param.type = _TEXT
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        self.write_commands(
            formatter,
            {name: command.get_short_help_str(ANY_LENGTH) for name, command in found.items() if command is not None},
        )

    def write_commands(self, formatter: click.HelpFormatter, sentences: Mapping[str, str]) -> None:
        if sentences:
            with formatter.section("Commands"):
                formatter.write_dl(list(sentences.items()))


def examples(*lines: str, after: str = "") -> str:
    r"""Give the epilog of a command's help: lines as one would type them, and a paragraph or more behind them.

    >>> examples("muster-agent status")
    '\x08\nExamples:\n  muster-agent status'
    """
    # click fills the lines of a paragraph, unless \b stands alone before them.
    return "\b\nExamples:\n  " + "\n  ".join(lines) + (f"\n\n{after}" if after else "")


def version_option(program: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add ``--version``: the release, and the commit that it was built from, where that is known."""
    commit = f" (commit {BUILT_FROM.read_text(encoding='ascii').strip()})" if BUILT_FROM.exists() else ""
    return click.version_option(version("muster"), prog_name=program, message=f"%(prog)s, version %(version)s{commit}")


class Parsed(click.ParamType[Any]):
    """A value that ``parse`` reads from text, raising ValueError; help shows its ``name`` in capitals."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read it, unless it is read already."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{os.fsencode(text)!r} is not UTF-8, as names and queries are") from None
    return text


_TEXT = Parsed("text", _utf8)
"""Text that can be a name: a terminal of another encoding gives bytes that are none."""
DURATION = Parsed("duration", lambda text: 0 if text.strip() == "0" else parse_duration(text))
"""``90s`` or ``1h30m`` in microseconds; ``0`` is a duration too."""
INSTANT = Parsed("instant", parse_instant)
"""RFC 3339 in microseconds since the Unix epoch."""

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON; instants and durations are in microseconds."
)


def completion_command(program: str, root: Callable[[], click.Command]) -> click.Command:
    """Make the command that completes a program's commands and options in a shell."""
    shells: dict[str, str] = {
        "bash": f".local/share/bash-completion/completions/{program}",
        "fish": f".config/fish/completions/{program}.fish",
        "zsh": f".zfunc/_{program}",
    }

    @click.command(
        "completion",
        epilog=examples(f"{program} completion --install", f"{program} completion zsh"),
    )
    @click.argument("shell", required=False, type=click.Choice(list(shells)))
    @click.option(
        "--install", is_flag=True, help="Write it to where the shell looks for it, below your home directory."
    )
    def completion(shell: str | None, install: bool) -> None:
        """Complete commands and options with the Tab key: print what SHELL needs for that, or install it.

        SHELL is the one that you use, unless you name another.
        """
        shell = shell or Path(os.environ.get("SHELL", "")).name
        completing = get_completion_class(shell) if shell in shells else None
        if completing is None:
            raise click.UsageError(f"name the shell: {', '.join(shells)}")
        text = completing(root(), {}, program, f"_{program}_COMPLETE".replace("-", "_").upper()).source()
        if not install:
            echo(text)
            return
        path = Path.home() / shells[shell]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"{path}: cannot be written: {error.strerror}") from error
        echo(f"{path}: written; a new {shell} completes {program}", prose=True)
        if shell == "zsh":
            echo("where ~/.zshrc does not say so yet, add before compinit: fpath=(~/.zfunc $fpath)", prose=True)

    return completion
