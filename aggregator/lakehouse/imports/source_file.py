"""Reader of another system's file, compressed or not, as rows with their line numbers.

Unless the mapping names the columns, the header is the first line with all columns of the mapping; lines before it are
skipped, and a ``#`` in front of it too. Empty lines are no rows. Lines that begin with ``#`` are none in files whose
columns are separated by white space; in others only before the first row, and with another number of columns. The first
bytes of a file decide how it is unpacked, not its name.

Not DuckDB's read_csv (tried, 2.0.1): it opens no xz or bzip2, numbers no accepted row, keeps no bytes of a row that is
not UTF-8, has no separator "any white space", and of 36 ways to write a time it reads 11 otherwise than ``times``.
"""

import bz2
import codecs
import csv
import gzip
import lzma
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from aggregator.lakehouse.imports.mapping import ImportRefused, Mapping
from shared.blake2 import blake2b

_OPENERS: dict[bytes, Any] = {b"\xfd7zXZ\0": lzma.open, b"\x1f\x8b": gzip.open, b"BZh": bz2.open}
_FOREIGN = {
    b"PK\x03\x04": "is a ZIP archive or a spreadsheet: unpack it, or save it as CSV",
    b"\x28\xb5\x2f\xfd": "is packed with zstd: unpack it (unzstd)",
    b"PAR1": "is Parquet: write it as CSV, for example with DuckDB's COPY",
    b"\xff\xfe": "is UTF-16: make it UTF-8, for example with iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "is UTF-16: make it UTF-8, for example with iconv -f UTF-16 -t UTF-8",
}
_HEAD = 50
"""The header is one of so many first lines."""
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|", "space": None}
_BROKEN = (OSError, EOFError, lzma.LZMAError, zlib.error)


class Row(NamedTuple):
    """One row: the ``line`` on which it ends, from 1; its fields, None where CSV cannot be read; its bytes."""

    line: int
    fields: Sequence[str] | None
    text: bytes


class SourceFile:
    """One file, read once from its start to its end. Its errors are ImportRefused."""

    def __init__(self, path: Path, mapping: Mapping) -> None:
        self.path = path
        self._digest = blake2b(repr(mapping).encode(), digest_size=8)
        self._line = 0
        self._taken: list[bytes] = []
        self._ahead: deque[bytes] = deque()
        try:
            self.size = path.stat().st_size
            self._raw = path.open("rb")
        except OSError as error:
            raise ImportRefused(f"{path}: {error.strerror}") from error
        self._file: IO[bytes] = self._raw
        self.columns: Sequence[str] = mapping.columns
        try:
            self._unpack()
            self._begin(mapping)
        except ImportRefused:
            self.close()
            raise

    @property
    def bytes_read(self) -> int:
        """The number of bytes read of the file on the disk, compressed or not."""
        return self._raw.tell()

    @property
    def import_id(self) -> str:
        """A digest of the mapping and of all lines read: after the last one, the identifier of the import."""
        return self._digest.hexdigest()

    def rows(self) -> Iterator[Row]:
        """Yield every row."""
        if self._separator is None:
            yield from self._plain_rows()
        else:
            yield from self._csv_rows(self._separator)

    def close(self) -> None:
        self._file.close()
        self._raw.close()

    def _unpack(self) -> None:
        first = self._raw.read(8)
        self._raw.seek(0)
        for magic, what in _FOREIGN.items():
            if first.startswith(magic):
                raise ImportRefused(f"{self.path} {what}")
        for magic, opener in _OPENERS.items():
            if first.startswith(magic):
                self._file = opener(self._raw)

    def _begin(self, mapping: Mapping) -> None:
        """Find the names of the columns and skip to the first row."""
        while len(self._ahead) < _HEAD and (line := self._line_of_file()):
            self._ahead.append(line)
        if not self._ahead:
            raise ImportRefused(f"{self.path} is empty")
        self._ahead[0] = self._ahead[0].removeprefix(codecs.BOM_UTF8)
        texts = [line.decode("utf-8", "surrogateescape") for line in self._ahead]
        if mapping.columns:
            first_row = _first_row(texts, mapping)
            self._separator = _separator(mapping.separator, texts[first_row])
        else:
            header = _header(texts, mapping)
            first_row = header + 1
            self._separator = _separator(mapping.separator, texts[header])
            self.columns = _names(texts[header], self._separator)
        for _ in range(first_row):
            next(self._texts())
        self._taken.clear()

    def _plain_rows(self) -> Iterator[Row]:
        for text in self._texts():
            fields = text.split()
            if fields and not fields[0].startswith("#"):
                yield Row(self._line, fields, self._taken[0])
            self._taken.clear()

    def _csv_rows(self, separator: str) -> Iterator[Row]:
        reader = csv.reader(self._texts(), delimiter=separator, skipinitialspace=True)
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

    def _texts(self) -> Iterator[str]:
        """Yield the lines; bytes that are not UTF-8 become surrogates."""
        while line := self._ahead.popleft() if self._ahead else self._line_of_file():
            self._digest.update(line)
            self._line += 1
            self._taken.append(line)
            yield line.decode("utf-8", "surrogateescape")

    def _line_of_file(self) -> bytes:
        try:
            return self._file.readline()
        except _BROKEN as error:
            line = self._line + len(self._ahead)
            raise ImportRefused(f"{self.path}: cannot be read after line {line}: {error}") from error


def _header(texts: Sequence[str], mapping: Mapping) -> int:
    """Return the index of the header: the first line if none has all columns, or if they go by number."""
    wanted = {name.lower() for name in mapping.named_columns if not name.isdigit()}
    for at, text in enumerate(texts if wanted else ()):
        if wanted <= {name.lower() for name in _names(text, _separator(mapping.separator, text))}:
            return at
    return 0


def _first_row(texts: Sequence[str], mapping: Mapping) -> int:
    """Return the index of the first row if the mapping names the columns: no empty line, and no remark."""
    for at, text in enumerate(texts):
        if text.strip() and not (text.startswith("#") and _is_remark(text, mapping)):
            return at
    return len(texts) - 1


def _is_remark(text: str, mapping: Mapping) -> bool:
    """Return True if a line that begins with ``#`` is no row: tickets are numbered #4711, too."""
    separator = _separator(mapping.separator, text)
    return separator is None or len(_names(text, separator)) != len(mapping.columns)


def _names(line: str, separator: str | None) -> Sequence[str]:
    """Return the names in a header; none if it is no valid CSV."""
    # A tab before the first name is a column without one: the index of a data frame.
    line = line.lstrip(" ").removeprefix("#")
    if separator is None:
        return line.split()
    try:
        return [name.strip() for name in next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])]
    except csv.Error:
        return []


def _separator(name: str, first_line: str) -> str | None:
    if name != "auto":
        return SEPARATORS.get(name, name)
    for candidate in ("\t", ";", ",", "|"):
        if candidate in first_line:
            return candidate
    return None
