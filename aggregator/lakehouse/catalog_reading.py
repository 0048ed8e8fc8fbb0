"""Open the catalog without Java, and say in one line what is wrong where that fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NotInstalledError, RESTError
from sqlalchemy import create_engine
from sqlalchemy.exc import DatabaseError, ProgrammingError, SQLAlchemyError

from aggregator.catalog_settings import CatalogSettings
from aggregator.lakehouse.catalog_access import CATALOG, SecretUnreadable, catalog_file, python_catalog
from aggregator.lakehouse.query_errors import TablesUnreadable
from aggregator.lakehouse.table import NAMESPACE

_NO_SUCH_TABLE = "42P01"
"""PostgreSQL's code for a database in which no catalog was ever made."""


def check_reachable(warehouse: Path, settings: CatalogSettings) -> None:
    """Raise TablesUnreadable where a catalog on a server cannot be had: in one line, before Spark says it in pages."""
    if settings.type != "sqlite":
        with _errors_in_words(f"the catalog at {settings.uri}"):
            properties = python_catalog(warehouse, settings)
            if settings.type == "postgresql":
                create_engine(properties["uri"]).connect().close()
            else:
                load_catalog(CATALOG, **properties).close()


def open_catalog(warehouse: Path, settings: CatalogSettings) -> tuple[Catalog, list[str]]:
    """Open the catalog, and name the tables in it; raise TablesUnreadable where there are none yet."""
    file = catalog_file(warehouse)
    if settings.type == "sqlite":
        place, what = str(warehouse), str(file)
    else:
        place = what = f"the catalog at {settings.uri}"
    none_yet = TablesUnreadable(f"there are no tables in {place} yet: run muster-aggregator rollup first")
    if settings.type == "sqlite" and not file.exists():
        raise none_yet
    with _errors_in_words(what):
        catalog = load_catalog(CATALOG, **python_catalog(warehouse, settings))
        try:
            names = [identifier[-1] for identifier in catalog.list_tables(NAMESPACE)]
        except NoSuchNamespaceError:
            names = []
        except ProgrammingError as error:
            if getattr(error.orig, "pgcode", None) != _NO_SUCH_TABLE:
                raise
            names = []
    if not names:
        raise none_yet
    return catalog, names


def reason_of(error: Exception) -> str:
    """Give the first line of what a driver says."""
    said = str(error.orig if isinstance(error, DatabaseError) else error).strip()
    return said.splitlines()[0] if said else type(error).__name__


@contextmanager
def _errors_in_words(what: str) -> Iterator[None]:
    try:
        yield
    except SecretUnreadable as error:
        raise TablesUnreadable(str(error)) from error
    except (ModuleNotFoundError, NotInstalledError) as error:
        raise TablesUnreadable(f"{what} needs the package psycopg2: install muster[postgresql]") from error
    except (SQLAlchemyError, RESTError, OSError) as error:
        raise TablesUnreadable(f"{what} cannot be read: {reason_of(error)}") from error
