"""The place of the tables, and the one catalog that owns them.

Iceberg names every file by its whole path. In a copy of the tables, or next to a copy of the catalog, these paths still
lead to the original: a job there would write into it, and each of the two catalogs would sweep the other's files as
orphans. So there is one answer to where the tables are (``tables_place``), every writer compares it with the metadata
of the tables, and a file next to the tables names the catalog that owns them. A REST catalog alone decides its place.
"""

import gzip
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO

from aggregator.catalog_settings import CatalogSettings
from aggregator.lakehouse.tables.definition import NAMESPACE
from aggregator.lakehouse.tables.schemas import TABLES
from aggregator.lakehouse.warehouse.catalog_settings import catalog_file, python_catalog, warehouse_url
from aggregator.lakehouse.warehouse.errors import TablesUnreadable
from aggregator.lakehouse.warehouse.local_paths import local_path

REBUILD = "muster-aggregator rebuild-catalog"

_OWNER = "owner"
_VERSION = re.compile(r"(\d+)-.*\.metadata\.json")
_GZIP = b"\x1f\x8b"
_S3 = re.compile("^s3[an]?:")


class TablesPlace(NamedTuple):
    """The directory of all tables: its URL without a slash at the end, its file system, and its path in that."""

    url: str
    files: FileSystem
    path: str

    def has_rows(self) -> bool:
        """Return True if any table has a data file."""
        return any(each.extension == "parquet" for table in TABLES for each in self.listed(f"{table.name}/data"))

    def metadata(self, table: str) -> Iterator[tuple[int, str]]:
        """Yield the version and the path of each metadata file of a table."""
        for each in self.listed(f"{table}/metadata"):
            version = _VERSION.fullmatch(each.base_name)
            if version is not None:
                yield int(version[1]), each.path

    def listed(self, below: str) -> list[FileInfo]:
        """Return all files below a part of the place."""
        part = FileSelector(f"{self.path}/{below}", allow_not_found=True, recursive=True)
        return [each for each in self.files.get_file_info(part) if each.type is FileType.File]

    def read(self, path: str) -> bytes:
        """Return the bytes of a file; raise OSError."""
        with self.files.open_input_stream(path, compression=None) as file:
            data: bytes = file.read()
        return data

    def write(self, path: str, data: bytes) -> None:
        """Write a file; raise OSError."""
        with self.files.open_output_stream(path, compression=None) as file:
            file.write(data)

    def within(self, url: str) -> str | None:
        """Return the path of a file's URL in the file system; None if the file is not below the place."""
        local = local_path(url)
        if local is not None and local_path(self.url) is not None:
            real = os.path.realpath(local)
            return real if real.startswith(f"{os.path.realpath(self.path)}/") else None
        below = _S3.sub("s3:", url).removeprefix(f"{_S3.sub('s3:', self.url)}/")
        return None if below == _S3.sub("s3:", url) else f"{self.path}/{below}"

    def is_of(self, table: str, url: str) -> bool:
        """Return True if ``url`` is the directory that the place has for a table."""
        local = local_path(self.url)
        expected = f"{self.path}/{table}" if local is None else os.path.realpath(f"{self.path}/{table}")
        return self.within(url.rstrip("/")) == expected

    def check(self, catalog: str, named: Mapping[str, str]) -> None:
        """Raise TablesUnreadable unless all tables that a catalog names are here, and are owned by no other catalog.

        ``named`` has the URL of each table's metadata file. Raise OSError if the owner cannot be read.
        """
        for table, metadata in named.items():
            location = metadata.rpartition("/metadata/")[0]
            path = self.within(metadata)
            if path is not None:
                try:
                    location = location_of(parsed(self.read(path)))
                except (OSError, EOFError, ValueError):
                    # Loading the table reports the damaged file.
                    continue
            if not self.is_of(table, location):
                raise TablesUnreadable(
                    f"{catalog} names {table} at {location}, but the settings have the tables in {self.url}: to use a"
                    f" copy there, run {REBUILD}, which makes it independent of the original; else mend path or"
                    " warehouse in [lakehouse]"
                )
        self.check_owner(catalog)

    def check_owner(self, catalog: str) -> None:
        """Raise TablesUnreadable if the tables are owned by another catalog."""
        owner = self._owner()
        if owner not in (None, catalog) and not _is_same_file(owner, catalog):
            place = self.url if local_path(self.url) is None else self.path
            raise TablesUnreadable(
                f"the tables in {self.url} belong to the catalog {owner}, not to {catalog}: two catalogs would delete"
                " each other's files. Use that catalog, give this one a copy of the tables, or, if that catalog is gone"
                f" for good, remove {place}/{_OWNER}"
            )

    def claim(self, catalog: str) -> None:
        """Record the catalog that owns the tables, unless it is recorded; raise OSError."""
        if self._owner() != catalog:
            self.write(f"{self.path}/{_OWNER}", f"{catalog}\n".encode())

    def _owner(self) -> str | None:
        try:
            return self.read(f"{self.path}/{_OWNER}").decode().strip()
        except FileNotFoundError:
            return None


def tables_place(warehouse: Path, settings: CatalogSettings) -> TablesPlace | None:
    """Return the place of the tables; None if a REST catalog decides, or only Java can read a store of that kind.

    Raise SecretUnreadable.
    """
    if settings.type == "rest":
        return None
    url = f"{warehouse_url(warehouse, settings).rstrip('/')}/{NAMESPACE}"
    local = local_path(url)
    if local is not None:
        return TablesPlace(url, LocalFileSystem(), local)
    scheme, bucket, path = PyArrowFileIO.parse_location(url)
    # pyarrow does not know the scheme, or lacks a library for it.
    with suppress(ValueError, OSError, ImportError):
        return TablesPlace(url, PyArrowFileIO(python_catalog(warehouse, settings)).fs_by_scheme(scheme, bucket), path)
    return None


def name_of_catalog(warehouse: Path, settings: CatalogSettings) -> str:
    """Return the name of a catalog as owner of tables: the path of its file, or its URI without options."""
    if settings.type == "sqlite":
        return os.path.realpath(catalog_file(warehouse))
    return urlsplit(settings.uri)._replace(query="").geturl()


def parsed(metadata: bytes) -> dict[str, Any]:
    """Return the content of a metadata file of a table; raise ValueError, EOFError or OSError if it is none."""
    content = json.loads(gzip.decompress(metadata) if metadata[:2] == _GZIP else metadata)
    if not (isinstance(content, dict) and isinstance(content.get("location"), str)):
        raise ValueError("no metadata of a table")  # noqa: TRY004 - the file is wrong, not its reader's call
    return content


def location_of(content: Mapping[str, Any]) -> str:
    """Return the URL that the content of a metadata file gives its table."""
    return str(content["location"]).rstrip("/")


def _is_same_file(path: str, other: str) -> bool:
    with suppress(OSError):
        return Path(path).samefile(other)
    return False
