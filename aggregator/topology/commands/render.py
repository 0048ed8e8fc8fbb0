"""The command ``muster-aggregator render``."""

from pathlib import Path

import click

from aggregator.topology.commands.streams import config_option, load
from aggregator.topology.render.files import KEYS, RenderDirectory, SecretsMissing
from aggregator.topology.render.server_config import AUTHORITY, CONFIG
from aggregator.topology.render.servers import NotRenderable, servers
from shared.command_line.command_group import examples
from shared.command_line.terminal import echo


@click.command(
    epilog=examples(
        "muster-aggregator render --make-keys --make-certificates",
        "muster-aggregator render --config topology.toml --to nats",
    )
)
@config_option
@click.option(
    "--to",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("nats"),
    show_default=True,
    help="Where a directory for each server goes.",
)
@click.option("--make-keys", is_flag=True, help="Make the keys that are missing.")
@click.option("--make-certificates", is_flag=True, help="Make the certificates that are missing, and an authority.")
def render(config_path: Path, directory: Path, make_keys: bool, make_certificates: bool) -> None:
    """Write nats-server configurations for hub, regions and sites: who may do what is as little as will do."""
    topology = load(config_path)
    place = RenderDirectory(directory)
    try:
        wanted = servers(topology)
        if make_keys:
            place.make_keys(wanted)
        if make_certificates and topology.render.encrypt:
            place.make_certificates(wanted)
        reload_steps = place.write(wanted, topology.render)
    except (NotRenderable, SecretsMissing) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{error.filename}: cannot be read or written: {error.strerror}") from error
    written = [path.relative_to(place.root) for path in place.written]
    for line in (*written, *reload_steps):
        echo(line, prose=True)
    if any(path.parts[0] == KEYS for path in written):
        echo(
            f"{directory / KEYS} holds secrets: give each to whom it belongs, and keep the rest away from servers",
            prose=True,
        )
        authority = f" and {directory / KEYS / AUTHORITY}" if topology.render.encrypt else ""
        made = {str(path) for path in written}
        for site in topology.sites:
            parts = {f"{site.name}/{CONFIG}": f"{directory / site.name}/* to its server"}
            for user in ("agent", "nodes"):
                key = f"{KEYS}/{site.name}-{user}.nk"
                parts[key] = f"{directory / key}{authority} to its {user}"
            given = [to for file, to in parts.items() if file in made]
            if given:
                echo(f"for {site.name}: {'; '.join(given)}", prose=True)
