"""The option that every command of the agent has, and how its help gives examples."""

from pathlib import Path

import click

from edge_agent.config import agent

# click fills the lines of a paragraph, unless \b stands alone before them.
EXAMPLES = "\b\nExamples:\n  "


config_option = click.option(
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=agent.DEFAULT_PATH,
    show_default=True,
    help="The agent's settings file.",
)
