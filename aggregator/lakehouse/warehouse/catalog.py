"""Access to the catalog without Java, with one line for each way in which that fails."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pyarrow.fs import FileSelector, FileType
from pydantic import ValidationError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NotInstalledError, RESTError
from pyiceberg.io.pyarrow import PyArrowFileIO
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DatabaseError, ProgrammingError, SQLAlchemyError

from aggregator.catalog_settings import ON_S3, CatalogSettings
from aggregator.lakehouse.tables.definition import NAMESPACE
from aggregator.lakehouse.warehouse.catalog_file import REMEDY, named_tables
from aggregator.lakehouse.warehouse.catalog_settings import CATALOG, SecretUnreadable, catalog_file, python_catalog
from aggregator.lakehouse.warehouse.errors import TablesUnreadable
from aggregator.lakehouse.warehouse.place import TablesPlace, name_of_catalog, tables_place

_NO_SUCH_TABLE = "42P01"
"""PostgreSQL's code for a database in which no catalog was ever made."""

_MAY_NOT_LIST = "ACCESS_DENIED"
"""What pyarrow calls a store's refusal."""


_NAMED = text(
    "SELECT table_name, metadata_location FROM iceberg_tables"
    " WHERE catalog_name = :catalog AND table_namespace = :namespace"
)


def check_reachable(warehouse: Path, settings: CatalogSettings, *, read_only: bool = False) -> None:
    """Raise TablesUnreadable if the catalog or the store cannot be used: one line, before Spark's pages.

    ``read_only``: a store may refuse to list its files. A writer must list them, to remove some, and must pass
    ``check_ours``.
    """
    if settings.type == "rest":
        with _errors_in_words(f"the catalog at {settings.uri}"):
            load_catalog(CATALOG, **python_catalog(warehouse, settings)).close()
        # It may have the credentials for its store, and give them out with each table.
        return
    if settings.warehouse.startswith(ON_S3):
        with _errors_in_words(f"the warehouse {settings.warehouse}"):
            try:
                _find_bucket(settings.warehouse, python_catalog(warehouse, settings))
            except OSError as error:
                if not (read_only and _MAY_NOT_LIST in str(error)):
                    raise
    if read_only:
        _named(warehouse, settings)
    else:
        check_ours(warehouse, settings)


def check_ours(warehouse: Path, settings: CatalogSettings) -> None:
    """Raise TablesUnreadable unless a job of these settings may write the tables and sweep orphaned files.

    Refused are a catalog that was lost, tables that lie elsewhere than the settings say, as those that a copy names,
    and tables that another catalog owns.
    """
    named = _named(warehouse, settings)
    with _places(warehouse, settings) as place:
        if place is not None:
            _check_lost(warehouse, settings, place, named)
            place.check(name_of_catalog(warehouse, settings), named)


def claim(warehouse: Path, settings: CatalogSettings) -> None:
    """Record next to the tables that this catalog owns them; raise TablesUnreadable."""
    if _named(warehouse, settings):
        with _places(warehouse, settings) as place:
            if place is not None:
                place.claim(name_of_catalog(warehouse, settings))


def open_catalog(warehouse: Path, settings: CatalogSettings) -> tuple[Catalog, list[str]]:
    """Open the catalog, and name the tables in it; raise TablesUnreadable where there are none yet."""
    file = catalog_file(warehouse)
    if settings.type == "sqlite":
        place, what = str(warehouse), str(file)
        _check_copy(warehouse, settings)
    else:
        place = what = f"the catalog at {settings.uri}"
    none_yet = TablesUnreadable(f"there are no tables in {place} yet: run muster-aggregator rollup first")
    if settings.type == "sqlite" and (not file.exists() or not file.stat().st_size):
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


def _named(warehouse: Path, settings: CatalogSettings) -> Mapping[str, str]:
    """Return the URLs of metadata files by the names of tables and views; raise TablesUnreadable."""
    if settings.type == "sqlite":
        return named_tables(catalog_file(warehouse))
    with _errors_in_words(f"the catalog at {settings.uri}"):
        engine = create_engine(python_catalog(warehouse, settings)["uri"])
        try:
            with engine.connect() as connection:
                found = connection.execute(_NAMED, {"catalog": CATALOG, "namespace": NAMESPACE})
                return {row.table_name: row.metadata_location for row in found}
        except ProgrammingError as error:
            if getattr(error.orig, "pgcode", None) != _NO_SUCH_TABLE:
                raise
            return {}
        finally:
            engine.dispose()


@contextmanager
def _places(warehouse: Path, settings: CatalogSettings) -> Iterator[TablesPlace | None]:
    """Yield the place of the tables; raise TablesUnreadable in one line if it cannot be used meanwhile."""
    with _errors_in_words("the place of the tables ([lakehouse] path, or warehouse of [lakehouse.catalog])"):
        yield tables_place(warehouse, settings)


def _check_lost(warehouse: Path, settings: CatalogSettings, place: TablesPlace, named: Mapping[str, str]) -> None:
    """Raise TablesUnreadable if a catalog names no table though there are tables with rows: it is no first run."""
    if named or not place.has_rows():
        return
    # The catalog of another directory is not lost: a rebuild would be refused too.
    place.check_owner(name_of_catalog(warehouse, settings))
    if settings.type == "sqlite":
        what, remedy = str(catalog_file(warehouse)), REMEDY
    else:
        what, remedy = f"the catalog at {settings.uri}", "restore it from its own backup, or name another warehouse"
    raise TablesUnreadable(f"{what} names no table, but {place.url} holds tables with rows: {remedy}")


def _check_copy(warehouse: Path, settings: CatalogSettings) -> None:
    """Raise TablesUnreadable if the file was lost, or if it would have a reader of a copy read the original."""
    named = _named(warehouse, settings)
    with _places(warehouse, settings) as place:
        if place is None:
            return
        _check_lost(warehouse, settings, place, named)
        table, metadata = next(iter(named.items()), (None, ""))
        if table is not None and place.within(metadata) is None and place.has_rows():
            place.check(name_of_catalog(warehouse, settings), {table: metadata})


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
