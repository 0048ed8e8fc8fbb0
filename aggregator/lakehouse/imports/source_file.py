"""Open another system's file, compressed or not, and give its rows with the lines they stand on.

The first line names the columns, unless the mapping does; a ``#`` before it is left out. Empty lines are no rows, and
in files whose columns are parted by white space neither are lines that begin with ``#``.
"""

import bz2
import csv
import gzip
import hashlib
import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from aggregator.lakehouse.imports.mapping import ImportRefused, Mapping

_OPENERS: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}
_SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "space": None}
_BROKEN = (OSError, EOFError, lzma.LZMAError)


class Row(NamedTuple):
    """One row: the ``line`` on which it ends, from 1; its fields, None where CSV cannot be read; its bytes."""

    line: int
    fields: Sequence[str] | None
    text: bytes


class SourceFile:
    """One file, read once from its start to its end. Its errors are ImportRefused."""

    def __init__(self, path: Path, mapping: Mapping) -> None:
        self.path = path
        self._digest = hashlib.blake2b(repr(mapping).encode(), digest_size=8)
        self._line = 0
        self._taken: list[bytes] = []
        try:
            self.size = path.stat().st_size
            self._raw = path.open("rb")
        except OSError as error:
            raise ImportRefused(f"{path}: {error.strerror}") from error
        opener = _OPENERS.get(path.suffix.lower())
        self._file: IO[bytes] = opener(self._raw) if opener else self._raw
        self.columns: Sequence[str] = mapping.columns
        self._first: str | None = None
        try:
            self._begin(mapping)
        except ImportRefused:
            self.close()
            raise

    @property
    def bytes_read(self) -> int:
        """Tell how much of the file, as it lies on the disk, has been read."""
        return self._raw.tell()

    @property
    def import_id(self) -> str:
        """Identify what was read so far, and how it was understood: of a file read whole, the import."""
        return self._digest.hexdigest()

    def rows(self) -> Iterator[Row]:
        """Give every row, once."""
        if self._separator is None:
            yield from self._plain_rows()
        else:
            yield from self._csv_rows(self._separator)

    def close(self) -> None:
        """Let the file go."""
        self._file.close()
        self._raw.close()

    def _begin(self, mapping: Mapping) -> None:
        first = next(self._texts(), None)
        if first is None:
            raise ImportRefused(f"{self.path} is empty")
        self._separator = _separator(mapping.separator, first)
        header = first.removeprefix("\ufeff").lstrip().removeprefix("#")
        if not mapping.columns:
            self.columns = [name.strip() for name in self._split(header)]
            self._taken.clear()
        elif first.lstrip().startswith("#"):
            self._taken.clear()
        else:
            self._first = first.removeprefix("\ufeff")

    def _plain_rows(self) -> Iterator[Row]:
        for text in self._rest():
            fields = text.split()
            if fields and not fields[0].startswith("#"):
                yield Row(self._line, fields, self._taken[0])
            self._taken.clear()

    def _csv_rows(self, separator: str) -> Iterator[Row]:
        reader = csv.reader(self._rest(), delimiter=separator, skipinitialspace=True)
        while True:
            fields: list[str] | None
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error:
                fields = None
            if fields is None or any(fields):
                yield Row(self._line, fields, b"".join(self._taken))
            self._taken.clear()

    def _rest(self) -> Iterator[str]:
        if self._first is not None:
            yield self._first
        yield from self._texts()

    def _texts(self) -> Iterator[str]:
        """Give line after line; bytes that are not UTF-8 stay recognizable as such."""
        while True:
            try:
                line = self._file.readline()
            except _BROKEN as error:
                raise ImportRefused(f"{self.path}: cannot be read after line {self._line}: {error}") from error
            if not line:
                return
            self._digest.update(line)
            self._line += 1
            self._taken.append(line)
            yield line.decode("utf-8", "surrogateescape")

    def _split(self, line: str) -> Sequence[str]:
        if self._separator is None:
            return line.split()
        return next(csv.reader([line], delimiter=self._separator, skipinitialspace=True), [])


def _separator(name: str, first_line: str) -> str | None:
    if name != "auto":
        return _SEPARATORS[name]
    for candidate in ("\t", ";", ","):
        if candidate in first_line:
            return candidate
    return None
