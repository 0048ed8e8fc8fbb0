"""List a program's commands by whole sentences: click cuts off what does not fit into one line."""

import click

ANY_LENGTH = 1_000
HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


class CommandGroup(click.Group):
    """A group whose help gives of each command all of its first sentence."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in their order."""
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        self.write_commands(
            formatter,
            {name: command.get_short_help_str(ANY_LENGTH) for name, command in found.items() if command is not None},
        )

    def write_commands(self, formatter: click.HelpFormatter, sentences: dict[str, str]) -> None:
        """Write commands, each with its sentence."""
        if sentences:
            with formatter.section("Commands"):
                formatter.write_dl(list(sentences.items()))
