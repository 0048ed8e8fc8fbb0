"""Let nobody believe that tables are served read only where nothing keeps clients from changing them.

The drivers of SQLite and PostgreSQL can be told to refuse every commit. A REST catalog decides by the rights of whoever
asks, which cannot be seen from here.
"""

import click

from aggregator.catalog_settings import CatalogSettings

_TRUSTED = __name__

trust_option = click.option(
    "--trust-catalog",
    is_flag=True,
    expose_value=False,
    callback=lambda context, _, trusted: context.meta.update({_TRUSTED: trusted}),
    help="Of a catalog on a server: the rights of the credentials in the settings keep clients from writing.",
)


def trusts_catalog() -> bool:
    """Tell whether the operator answers for what the catalog lets clients do, in a command with ``trust_option``."""
    return bool(click.get_current_context().meta[_TRUSTED])


def check_read_only(catalog: CatalogSettings) -> None:
    """Raise click.ClickException for a catalog that cannot be opened read only, unless the operator answers for it.

    Call it in a command with ``trust_option``.
    """
    if catalog.type == "rest" and not trusts_catalog():
        raise click.ClickException(
            "lakehouse.catalog: a REST catalog cannot be opened read only from here, and clients could change the"
            " tables: use settings whose credentials may only read, then say --trust-catalog"
        )
