"""Make a copy of a table independent of its original.

Iceberg's metadata form a tree: a metadata file lists snapshots, a snapshot a list of manifests, a manifest data files,
each by its whole path. A relocation writes this tree again next to the old one, with the paths of the copy: the
metadata file last, which nothing names before the catalog does. The old tree is left for the next sweep. Ids, positions
and data files stay as they are, so a rollup continues from a copy as it would have from the original.
"""

import io
import json
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import uuid4

import fastavro

from aggregator.lakehouse.warehouse.errors import TablesUnreadable
from aggregator.lakehouse.warehouse.local_paths import local_path
from aggregator.lakehouse.warehouse.place import TablesPlace, location_of, parsed

_DELETED = 2
"""Status of a data file in a manifest that names it only to say that it is gone."""


class Metadata(NamedTuple):
    """One metadata file of a table: its version, its URL in the place of the tables, and its content."""

    version: int
    url: str
    content: dict[str, Any]

    @property
    def location(self) -> str:
        """The URL of the table's directory when the file was written."""
        return location_of(self.content)

    @property
    def written_at(self) -> int:
        """The instant of its commit, in milliseconds."""
        return int(self.content["last-updated-ms"])


def read_metadata(place: TablesPlace, table: str, version: int, path: str) -> Metadata:
    """Return a metadata file of a table; raise OSError, EOFError or ValueError if it is no metadata."""
    content = parsed(place.read(path))
    if not {"last-updated-ms", "table-uuid"} <= content.keys():
        raise ValueError(f"{path} is no metadata of a table")
    return Metadata(version, f"{place.url}/{table}/metadata/{path.rpartition('/')[2]}", content)


def relocate(place: TablesPlace, table: str, original: Metadata) -> str:
    """Write the metadata of a copied table again with the paths of the copy; return the URL of the metadata file.

    Raise TablesUnreadable if the copy lacks files of its table; OSError.
    """
    return _Relocation(place, table, original).run()


class _Relocation:
    """The relocation of one table. Manifests that snapshots share are written once."""

    def __init__(self, place: TablesPlace, table: str, original: Metadata) -> None:
        self._place, self._table, self._original = place, table, original
        self._old = _plain(original.location)
        self._present = {each.path for each in place.listed(table)}
        self._manifests: dict[str, tuple[str, int]] = {}

    def run(self) -> str:
        content = self._moved(self._original.content)
        for snapshot, moved in zip(self._original.content["snapshots"], content["snapshots"], strict=True):
            moved["manifest-list"], _ = self._rewrite(snapshot["manifest-list"], "snap", self._move_manifest)
        content["location"] = f"{self._place.url}/{self._table}"
        # The files that it names are of the original.
        content["metadata-log"] = []
        name = f"{self._original.version + 1:05d}-{uuid4()}.metadata.json"
        return self._write(name, json.dumps(content).encode())

    def _move_manifest(self, entry: dict[str, Any]) -> None:
        path = entry["manifest_path"]
        if path not in self._manifests:
            self._manifests[path] = self._rewrite(path, "manifest", self._move_data_file)
        entry["manifest_path"], entry["manifest_length"] = self._manifests[path]

    def _move_data_file(self, entry: dict[str, Any]) -> None:
        # Tables are copy-on-write: there are no delete files, whose rows would name data files too.
        file = entry["data_file"]
        if entry["status"] != _DELETED:
            self._path(file["file_path"])
        file["file_path"] = self._url(file["file_path"])

    def _rewrite(self, url: str, kind: str, move: Callable[[dict[str, Any]], None]) -> tuple[str, int]:
        """Write an Avro file again, each of its records changed by ``move``; return its new URL and its length."""
        path = self._path(url)
        records: list[dict[str, Any]] = []
        try:
            reader = fastavro.reader(io.BytesIO(self._place.read(path)))
            for record in reader:
                assert isinstance(record, dict)
                move(record)
                records.append(record)
            metadata = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
            written = io.BytesIO()
            assert reader.writer_schema is not None
            fastavro.writer(written, reader.writer_schema, records, reader.codec, metadata=metadata)
        except (ValueError, KeyError, EOFError) as error:
            raise TablesUnreadable(f"{path} cannot be read ({error}): copy the tables again") from error
        return self._write(f"{kind}-{uuid4()}.avro", written.getvalue()), len(written.getvalue())

    def _write(self, name: str, data: bytes) -> str:
        self._place.write(f"{self._place.path}/{self._table}/metadata/{name}", data)
        return f"{self._place.url}/{self._table}/metadata/{name}"

    def _moved(self, value: Any) -> Any:
        """Return a part of the metadata with the paths of the copy in all texts."""
        if isinstance(value, dict):
            return {key: self._moved(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._moved(each) for each in value]
        is_ours = isinstance(value, str) and _plain(value).startswith(f"{self._old}/")
        return self._url(value) if is_ours else value

    def _path(self, url: str) -> str:
        """Return the path of the copy of a file; raise TablesUnreadable if the copy lacks the file."""
        path = f"{self._place.path}/{self._table}{self._below(url)}"
        if path not in self._present:
            raise TablesUnreadable(
                f"{path} is missing: the copy of {self._original.location} in {self._place.url} is not whole. Copy the"
                " tables again, while no rollup runs"
            )
        return path

    def _url(self, url: str) -> str:
        return f"{self._place.url}/{self._table}{self._below(url)}"

    def _below(self, url: str) -> str:
        plain = _plain(url)
        if not plain.startswith(f"{self._old}/"):
            raise TablesUnreadable(
                f"{url} is no file of the table at {self._original.location}: it cannot be relocated"
            )
        return plain.removeprefix(self._old)


def _plain(url: str) -> str:
    """Return the path of a local file, however its URL is written; of other stores the URL."""
    return local_path(url) or url
