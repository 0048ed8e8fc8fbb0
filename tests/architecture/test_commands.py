"""Both programs keep the rules that all their commands share, and start without what only some of their work needs."""

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner

from shared.instants import InvalidInstant, parse_duration
from shared.sizes import InvalidSize, parse_size

ROOT = Path(__file__).parents[2]
COMMANDS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
HEAVY = ("duckdb", "numpy", "pandas", "py4j", "pyarrow", "pyiceberg", "pyspark", "rich", "sqlalchemy")
PRINT_NO_TABLE = {
    "muster-agent check-config",
    "muster-agent migrate-config",
    "muster-agent completion",
    "muster-agent outbox drop",
    "muster-agent run",
    "muster-agent simulate",
    "muster-agent simulate history",
    "muster-aggregator check-config",
    "muster-aggregator completion",
    "muster-aggregator demo",
    "muster-aggregator import intervals",
    "muster-aggregator import remove",
    "muster-aggregator maintain",
    "muster-aggregator rebuild-catalog",
    "muster-aggregator render",
    "muster-aggregator report html",
    "muster-aggregator rollup",
    "muster-aggregator serve",
    "muster-aggregator serve-sql",
    "muster-aggregator spark-sql",
}
"""What these print is told line by line, or is a file."""
DURATIONS = re.compile(r"--(.*-)?(after|interval|every|last|jitter|.*-up|.*-down)|--duration")
COLUMN_OF_A_FILE = "muster-aggregator import intervals --duration"


class Known(NamedTuple):
    """A command by its whole name."""

    path: str
    command: click.Command
    context: click.Context


def walk(command: click.Command, context: click.Context) -> Iterator[Known]:
    """Give a command and all below it."""
    yield Known(context.command_path, command, context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from walk(found, click.Context(found, info_name=name, parent=context, **found.context_settings))


def program(name: str) -> click.Group:
    group = import_module(COMMANDS[name].split(":")[0]).cli
    assert isinstance(group, click.Group)
    return group


def root(name: str) -> click.Context:
    """Give the context in which a program itself begins; a command keeps the help option of the first that asks."""
    return click.Context(program(name), info_name=name, terminal_width=80, **program(name).context_settings)


ALL = [known for name in COMMANDS for known in walk(program(name), root(name))]
every_command = pytest.mark.parametrize("known", ALL, ids=[known.path for known in ALL])
every_group = pytest.mark.parametrize(
    "known",
    [known for known in ALL if isinstance(known.command, click.Group)],
    ids=[known.path for known in ALL if isinstance(known.command, click.Group)],
)


@pytest.mark.parametrize("entry_point", COMMANDS.values(), ids=COMMANDS.keys())
def test_command_starts_without_the_lakehouse_in_memory(entry_point: str) -> None:
    module, function = entry_point.split(":")
    text = f"import sys, {module}; assert callable({module}.{function}); print(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0, answer.stderr
    assert set(HEAVY) & set(answer.stdout.split()) == set()


def test_commands_have_the_names_that_the_documentation_uses() -> None:
    assert set(COMMANDS) == {"muster-agent", "muster-aggregator"}


@every_group
def test_help_lists_every_command_by_a_whole_sentence(known: Known) -> None:
    assert isinstance(known.command, click.Group)
    formatter = click.HelpFormatter(width=80)
    known.command.format_commands(known.context, formatter)
    assert not re.search(r"\w\.\.\.$", formatter.getvalue(), re.MULTILINE)


@every_group
def test_a_mistyped_command_is_suggested(known: Known) -> None:
    assert isinstance(known.command, click.Group)
    for name in known.command.list_commands(known.context):
        mistyped = name[:-1] + "q"
        with pytest.raises(click.UsageError) as raised:
            known.command.resolve_command(known.context, [mistyped])
        assert re.search(f"Did you mean .*'{name}'", raised.value.format_message().replace("\n", " "))


@every_command
def test_help_fits_into_80_columns(known: Known) -> None:
    assert [line for line in known.command.get_help(known.context).splitlines() if len(line) > 80] == []


@every_command
def test_help_has_examples_and_their_options_exist(known: Known) -> None:
    lines = (known.command.epilog or "").replace("\\\n", " ").partition("Examples:\n")[2].partition("\n\n")[0]
    name = known.path.split()[0]
    found = [line for line in lines.splitlines() if known.path in line]
    assert found, "examples() in the epilog shows the command itself"
    for line in found:
        words = shlex.split(line.split("|")[0].split(">")[0])
        arguments = words[len(words) - words[::-1].index(name) :]
        parse(program(name), arguments, root(name))


def parse(command: click.Command, arguments: list[str], context: click.Context) -> None:
    """Read an example's words, and refuse options that do not exist; values are looked at when it is run."""
    left = command.make_parser(context).parse_args(list(arguments))[1]
    if isinstance(command, click.Group) and left:
        _, below, rest = command.resolve_command(context, left)
        assert below is not None
        parse(below, rest, click.Context(below, info_name=below.name, parent=context, **below.context_settings))


@every_command
def test_values_of_one_kind_have_one_name(known: Known) -> None:
    for option in known.command.params:
        if not isinstance(option, click.Option) or option.is_flag or option.count:
            continue
        shown, name = option.make_metavar(known.context), option.opts[-1]
        assert shown not in ("TEXT", "INTEGER", "INTEGER RANGE", "FLOAT RANGE"), name
        if f"{known.path} {name}" == COLUMN_OF_A_FILE:
            continue
        is_duration = DURATIONS.fullmatch(name) or reads(parse_duration, option.default)
        assert not is_duration or shown == "DURATION", name
        assert not reads(parse_size, option.default) or "SIZE" in shown, name


def reads(parse: Callable[[str], int], value: object) -> bool:
    """Tell whether a default is text of that kind."""
    try:
        return isinstance(value, str) and not value.isdigit() and bool(parse(value))
    except (InvalidInstant, InvalidSize):
        return False


@every_command
def test_whatever_prints_a_table_prints_json(known: Known) -> None:
    is_group = isinstance(known.command, click.Group) and not known.command.invoke_without_command
    has_json = any("--json" in option.opts for option in known.command.params)
    assert is_group or has_json is (known.path not in PRINT_NO_TABLE)


def without_both_helps() -> list[str]:
    """Name the commands for which -h and --help do not say the same."""
    found = []
    for known in ALL:
        words = known.path.split()
        answers = [CliRunner().invoke(program(words[0]), [*words[1:], each]) for each in ("-h", "--help")]
        if {answer.exit_code for answer in answers} != {0} or answers[0].output != answers[1].output:
            found.append(known.path)
    return found


def test_help_comes_for_both_of_its_options() -> None:
    # Elsewhere a command may have been called by itself: click keeps the options for help that it had then.
    code = f"from {__name__} import without_both_helps; print(without_both_helps())"
    root_directory = Path(__file__).parents[2]
    ran = subprocess.run([sys.executable, "-c", code], cwd=root_directory, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("[]\n", 0), ran.stderr


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    ("shell", "file"),
    [
        ("bash", ".local/share/bash-completion/completions/{}"),
        ("fish", ".config/fish/completions/{}.fish"),
        ("zsh", ".zfunc/_{}"),
    ],
)
def test_completion_is_installed_where_the_shell_looks_for_it(name: str, shell: str, file: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        program(name), ["completion", "--install"], env={"HOME": str(tmp_path), "SHELL": f"/bin/{shell}"}
    )
    assert done.exit_code == 0, done.output
    written = (tmp_path / file.format(name)).read_text()
    variable = f"_{name.replace('-', '_').upper()}_COMPLETE={shell}_complete"
    assert variable in written
    assert CliRunner().invoke(program(name), ["completion", shell]).output == written + "\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_bash_completes_commands_and_options(name: str) -> None:
    beside = Path(sys.executable).parent
    script = f"""
        PATH={beside}:$PATH; eval "$({name} completion bash)"
        complete -p {name} | grep -o '_[a-z_]*_completion' | head -1
        for words in "{name} chec" "{name} check-config --conf"; do
            COMP_WORDS=($words) COMP_CWORD=$(($(wc -w <<< "$words") - 1)) COMPREPLY=()
            _{name.replace("-", "_")}_completion {name}; echo "${{COMPREPLY[@]}}"
        done
    """
    answer = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=False)
    function, commands, options = answer.stdout.splitlines()
    assert function == f"_{name.replace('-', '_')}_completion"
    assert "check-config" in commands.split()
    assert options.split() == ["--config"]
