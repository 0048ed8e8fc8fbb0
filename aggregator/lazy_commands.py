"""Load a command when it is asked for: ``--help`` and ``plan`` must not wait for Spark."""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from shared.command_line.command_group import ANY_LENGTH, CommandGroup


class LazyCommand(NamedTuple):
    """Where a command is, the line of help that is shown without loading it, and what others add ``below`` it."""

    module: str
    attribute: str
    help: str
    below: Mapping[str, "LazyCommand"] = {}

    @property
    def is_there(self) -> bool:
        """Tell whether its module is installed; its package may be left out."""
        try:
            return find_spec(self.module) is not None
        except ModuleNotFoundError:
            return False

    def load(self) -> click.Command:
        """Import it, and give it the sub-commands that stand elsewhere."""
        command: click.Command = getattr(import_module(self.module), self.attribute)
        if not self.below:
            return command
        return LazyGroup(
            name=command.name,
            lazy=self.below,
            callback=command.callback,
            params=command.params,
            help=command.help,
            epilog=command.epilog,
            invoke_without_command=True,
        )


class LazyGroup(CommandGroup):
    """A group whose commands are loaded one by one; one whose module is not installed is not shown."""

    def __init__(self, *args: Any, lazy: Mapping[str, LazyCommand], **options: Any) -> None:
        super().__init__(*args, **options)
        self._lazy = {name: command for name, command in lazy.items() if command.is_there}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self._lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = self._lazy.get(cmd_name)
        return lazy.load() if lazy is not None else super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        self.write_commands(formatter, self._sentences())

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the commands' names without loading any."""
        named = [CompletionItem(name, help=text) for name, text in self._sentences().items()]
        return [item for item in named if item.value.startswith(incomplete)] + click.Command.shell_complete(
            self, ctx, incomplete
        )

    def _sentences(self) -> dict[str, str]:
        loaded = {name: command.get_short_help_str(ANY_LENGTH) for name, command in self.commands.items()}
        return loaded | {name: command.help for name, command in self._lazy.items()}
