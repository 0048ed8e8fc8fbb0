"""Say in Iceberg's words, and in pyiceberg's, where the catalog and the tables' files are: both mean the same tables.

Nothing here needs Spark. Properties that the settings give by Iceberg's names go to both as they are.
"""

from pathlib import Path
from typing import Final
from urllib.parse import quote

from aggregator.catalog_settings import CatalogSettings
from aggregator.lakehouse.tables.definition import NAMESPACE
from shared.settings import FilePath

CATALOG: Final = "lake"
"""The catalog's name, which is a part of every table's name in it: the same for all who read and write."""

LOCK_FILE: Final = "rollup.lock"
"""Beside the tables: whoever writes them locks it."""

_BUSY_SECONDS = 60
_BY_SCHEME = "org.apache.iceberg.io.ResolvingFileIO"
"""Iceberg's own readers and writers of object stores. A JDBC catalog would take Hadoop's, which knows none of them."""
_READ_ONLY = {"sqlite": "open_mode=1", "postgresql": "readOnly=true&readOnlyMode=always"}
"""What keeps Java's driver from writing. Rights of its own for whoever only reads are better still."""


class SecretUnreadable(RuntimeError):
    """A file of the settings' secrets cannot be used. Its text is one line."""


def catalog_file(warehouse: Path) -> Path:
    """Give the SQLite file that names the tables by default."""
    return warehouse / "catalog.db"


def spark_catalog(warehouse: Path, catalog: CatalogSettings, *, read_only: bool = False) -> dict[str, str]:
    """Give Spark's properties of the catalog but for the secrets; ``read_only``: let its driver refuse to commit."""
    properties = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        "type": "rest" if catalog.type == "rest" else "jdbc",
        "uri": catalog.uri,
        # Another process may commit at any time; a cached table would hide it.
        "cache-enabled": "false",
        "default-namespace": NAMESPACE,
        **catalog.properties,
        **_place(warehouse, catalog),
    }
    if catalog.type != "rest":
        if not properties["warehouse"].startswith("file:"):
            properties.setdefault("io-impl", _BY_SCHEME)
        url = _jdbc_url(warehouse, catalog)
        properties["uri"] = f"{url}{'&' if '?' in url else '?'}{_READ_ONLY[catalog.type]}" if read_only else url
        properties["jdbc.schema-version"] = "V1"
    if catalog.user:
        properties["jdbc.user"] = catalog.user
    return _named(properties)


def spark_secrets(catalog: CatalogSettings) -> dict[str, str]:
    """Read what Spark's properties of the catalog lack; raise SecretUnreadable."""
    return _named(_secrets(catalog))


def jdbc_access(catalog: CatalogSettings) -> tuple[str, dict[str, str]]:
    """Give the URL of PostgreSQL's driver, and its properties, secrets and all; raise SecretUnreadable."""
    given = {"jdbc.user": catalog.user} if catalog.user else {}
    given |= catalog.properties | _secrets(catalog)
    return f"jdbc:{catalog.uri}", {
        name.removeprefix("jdbc."): value for name, value in given.items() if name.startswith("jdbc.")
    }


def python_catalog(warehouse: Path, catalog: CatalogSettings) -> dict[str, str]:
    """Give pyiceberg's properties, secrets and all; raise SecretUnreadable. SQLite's catalog is opened to be read."""
    secrets = {name: _secret(f"secrets.{name}", file) for name, file in catalog.secrets.items()}
    properties = {**catalog.properties, **_place(warehouse, catalog), **secrets}
    if catalog.type == "rest":
        return {"type": "rest", "uri": catalog.uri, **properties}
    # Without init_catalog_tables a catalog is only read.
    properties |= {"type": "sql", "init_catalog_tables": "false"}
    if catalog.type == "postgresql":
        return {"uri": _sqlalchemy_url(catalog), **properties}
    file = quote(str(catalog_file(warehouse)))
    return {"uri": f"sqlite:///file:{file}?mode=ro&timeout={_BUSY_SECONDS}&uri=true", **properties}


def warehouse_url(warehouse: Path, catalog: CatalogSettings) -> str:
    """Return the URL below which a catalog puts tables; "" for a REST catalog that goes by its own settings."""
    place = catalog.warehouse or ("" if catalog.type == "rest" else str(warehouse.absolute()))
    place = catalog.properties.get("warehouse", place)
    return f"file://{place}" if place.startswith("/") else place


def _place(warehouse: Path, catalog: CatalogSettings) -> dict[str, str]:
    url = warehouse_url(warehouse, catalog)
    return {"warehouse": url} if url else {}


def _jdbc_url(warehouse: Path, catalog: CatalogSettings) -> str:
    if catalog.type == "sqlite":
        return f"jdbc:sqlite:{catalog_file(warehouse)}?busy_timeout={1000 * _BUSY_SECONDS}"
    return f"jdbc:{catalog.uri}"


def _sqlalchemy_url(catalog: CatalogSettings) -> str:
    _, _, place = catalog.uri.partition("://")
    who = quote(catalog.user, safe="")
    if catalog.password_file:
        who += ":" + quote(_secret("password_file", catalog.password_file), safe="")
    return f"postgresql+psycopg2://{who + '@' if who else ''}{place}"


def _secrets(catalog: CatalogSettings) -> dict[str, str]:
    secrets = {name: _secret(f"secrets.{name}", file) for name, file in catalog.secrets.items()}
    if catalog.password_file:
        secrets["jdbc.password"] = _secret("password_file", catalog.password_file)
    return secrets


def _secret(key: str, file: FilePath) -> str:
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SecretUnreadable(f"lakehouse.catalog.{key}: {file} cannot be read: {reason}") from error
    if not lines or not lines[0].strip():
        raise SecretUnreadable(f"lakehouse.catalog.{key}: {file} is empty")
    return lines[0].strip()


def _named(properties: dict[str, str]) -> dict[str, str]:
    prefix = f"spark.sql.catalog.{CATALOG}"
    return {f"{prefix}.{name}" if name else prefix: value for name, value in properties.items()}
