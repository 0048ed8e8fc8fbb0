"""Open the catalog without Java, and say in one line what is wrong where that fails."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pyarrow.fs import FileSelector, FileType
from pydantic import ValidationError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NotInstalledError, RESTError
from pyiceberg.io.pyarrow import PyArrowFileIO
from sqlalchemy import create_engine
from sqlalchemy.exc import DatabaseError, ProgrammingError, SQLAlchemyError

from aggregator.catalog_settings import ON_S3, CatalogSettings
from aggregator.lakehouse.tables.definition import NAMESPACE
from aggregator.lakehouse.warehouse.catalog_file import check_catalog_file
from aggregator.lakehouse.warehouse.catalog_settings import CATALOG, SecretUnreadable, catalog_file, python_catalog
from aggregator.lakehouse.warehouse.errors import TablesUnreadable

_NO_SUCH_TABLE = "42P01"
"""PostgreSQL's code for a database in which no catalog was ever made."""

_MAY_NOT_LIST = "ACCESS_DENIED"
"""What pyarrow calls a store's refusal."""


def check_reachable(warehouse: Path, settings: CatalogSettings, *, read_only: bool = False) -> None:
    """Raise TablesUnreadable where a catalog or a store cannot be had, or a catalog's file is damaged: one line, before
    Spark's pages.

    ``read_only``: a store may refuse to list what it has. Who writes the tables needs that, to remove files.
    """
    if settings.type == "sqlite":
        check_catalog_file(warehouse)
    else:
        with _errors_in_words(f"the catalog at {settings.uri}"):
            properties = python_catalog(warehouse, settings)
            if settings.type == "postgresql":
                create_engine(properties["uri"]).connect().close()
            else:
                load_catalog(CATALOG, **properties).close()
    # A REST catalog may have the credentials for its store, and give them out with each table.
    if settings.type != "rest" and settings.warehouse.startswith(ON_S3):
        with _errors_in_words(f"the warehouse {settings.warehouse}"):
            try:
                _find_bucket(settings.warehouse, python_catalog(warehouse, settings))
            except OSError as error:
                if not (read_only and _MAY_NOT_LIST in str(error)):
                    raise


def open_catalog(warehouse: Path, settings: CatalogSettings) -> tuple[Catalog, list[str]]:
    """Open the catalog, and name the tables in it; raise TablesUnreadable where there are none yet."""
    file = catalog_file(warehouse)
    if settings.type == "sqlite":
        place, what = str(warehouse), str(file)
    else:
        place = what = f"the catalog at {settings.uri}"
    none_yet = TablesUnreadable(f"there are no tables in {place} yet: run muster-aggregator rollup first")
    if settings.type == "sqlite":
        check_catalog_file(warehouse)
        if not file.exists() or not file.stat().st_size:
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


def _find_bucket(url: str, properties: Mapping[str, str]) -> None:
    """Ask a store what is below ``url``; raise OSError, and TablesUnreadable where it has no such bucket."""
    scheme, bucket, place = PyArrowFileIO.parse_location(url)
    store = PyArrowFileIO(dict(properties)).fs_by_scheme(scheme, bucket)
    if store.get_file_info(FileSelector(place, allow_not_found=True)):
        return
    # Whoever may use a part of a bucket need not be allowed to ask for the whole of it.
    with suppress(OSError):
        if store.get_file_info(bucket).type is FileType.NotFound:
            raise TablesUnreadable(f"there is no bucket {bucket}: make it first, or mend [lakehouse.catalog]")


@contextmanager
def _errors_in_words(what: str) -> Iterator[None]:
    try:
        yield
    except SecretUnreadable as error:
        raise TablesUnreadable(str(error)) from error
    except (ModuleNotFoundError, NotInstalledError) as error:
        raise TablesUnreadable(f"{what} needs the package psycopg2: install muster[postgresql]") from error
    except ValidationError as error:
        # What answers may be a proxy that asks people to log in.
        raise TablesUnreadable(f"{what} does not answer as Iceberg's REST catalogs do: is that its address?") from error
    except (SQLAlchemyError, RESTError, OSError) as error:
        raise TablesUnreadable(f"{what} cannot be read: {reason_of(error)}") from error
