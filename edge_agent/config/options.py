"""The option that every command of the agent has."""

from pathlib import Path

import click

from edge_agent.config import agent

config_option = click.option(
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=agent.DEFAULT_PATH,
    show_default=True,
    help="The agent's settings file.",
)
