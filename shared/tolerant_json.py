"""Reader of JSON that a strict decoder refuses: a sender that can be identified is heard.

The rules follow gjson, a scanner for a path that never validates, by which the peer identifies nodes:

1. The first object is read, else the first array; text before and behind it is left out.
2. A text ends at its next quote that is not escaped. An escape without a meaning, such as half of a surrogate pair,
   stays as it is written: a replacement would make two names one. Control characters are taken as they are.
3. Bytes that are not UTF-8 are read as Latin-1, one by one: each becomes one letter, so names that differ stay
   different, and can be written in UTF-8. UTF-16 and UTF-32 are recognized by the zeros next to the bracket that opens
   an object or an array (RFC 4627).
4. Separators may be missing, doubled or others. Keys and values may lack quotes, or have single ones: a word that is
   neither a number nor a literal is a text as it is written (``007``, ``+1``, ``web1``). NaN and Infinity are floats.
5. A closing bracket closes the innermost level, of whatever kind; at the outermost only its own kind does. A value that
   the end of the body cuts is no value: a name that was cut would be another.
6. Levels below NESTED_LIMIT are left out. A repeated key has its last value, as for the strict decoder.
7. Of a body that the standard library's decoder refuses too, only the first characters are read, at most as many as the
   caller allows: there are megabytes that take a second each. The rest counts as cut.
8. There, the text that the scanner finds at the requested path replaces the result of the rules above: where nothing
   fits, a sender has the same name here and for the peer.

Valid JSON has the value that msgspec gives it. Nothing recurses, and the time taken is linear in the size.
"""

import contextlib
import json
import re
from enum import StrEnum
from typing import Any

import msgspec

from shared.decoding import NESTED_LIMIT, decode_deep

MENDED_LIMIT = 100_000
"""Escapes that are mended for the standard library's decoder: each takes a call."""


class Deviation(StrEnum):
    """A way in which a body is not JSON."""

    ENCODING = "encoding"
    SURPLUS = "surplus"
    ESCAPE = "escape"
    CONTROL_CHARACTER = "control_character"
    VALUE = "value"
    STRUCTURE = "structure"
    TRUNCATED = "truncated"
    TOO_DEEP = "too_deep"


class TolerantResult(msgspec.Struct, frozen=True):
    """The value, and the first deviation from JSON (``encoding`` before all others); None if there is none."""

    value: Any
    deviation: Deviation | None


_BLANKS = " \t\n\r"
_OPENING = re.compile(r"[\[{]")
# Between two tokens: also separators that are none in JSON, such as the => of a hash.
_GAP = r"([\s,:;=>|]*+)"
_DOUBLE = r'"((?:[^"\\]|\\.)*+)(?:(")(?=\s*+(:)?)|\Z|\\\Z)'
_SINGLE = r"'((?:[^'\\]|\\.)*+)'(?=\s*+[:,=\]}])"
# A word that is a key, or else nothing.
_KEY_WORD = r"([^\s,:;=>|\"\[\]{}]++)(?=\s*+[:=])|[^\s,:;=>|\"\[\]{}]++"
# Up to a comma, as a number ends for the peer; letters also where a quote follows.
_VALUE_WORD = r"([a-z]++(?=\")|[^\s,\[\]{}\"][^\s,\[\]{}]*+)"
_AT_KEY = re.compile(rf"{_GAP}(?:{_DOUBLE}|([\[{{\]}}])|{_SINGLE}|{_KEY_WORD})", re.DOTALL)
_AT_VALUE = re.compile(rf"{_GAP}(?:{_DOUBLE}|([\[{{\]}}])|{_SINGLE}|{_VALUE_WORD})", re.DOTALL)
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
# For the scanner of rule 8: a key or the end of an object; then a text, a container, or another value.
_SCANNED_KEY = re.compile(r'[^"}]*+(?:"((?:[^"\\]|\\.)*+)"|})', re.DOTALL)
_SCANNED_VALUE = re.compile(
    r"[^\"{\[tfn+\-0-9iIN]*+(?:\"((?:[^\"\\]|\\.)*+)\"|([\[{])|(?:[tf]|n(?=u|\Z))[a-z]*+|[n+\-0-9iIN][^\0- ,\]}]*+)",
    re.DOTALL,
)
_SCANNED_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z|\\\Z)|([\[{(])|[\]})]', re.DOTALL)
_COLON = re.compile(r"\s*+:")
_ESCAPE = re.compile(
    r'\\(?:(["\\/bfnrt]|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})|.)',
    re.DOTALL,
)
# Whether each escape must be examined: also where a backslash that is escaped itself makes it seem so.
_AMBIGUOUS_ESCAPE = re.compile(r'\\(?:u[dD][89a-fA-F]|u(?![0-9a-fA-F]{4})|[^"\\/bfnrtu])')
_decode_text = msgspec.json.Decoder(str).decode
_CONTROL = re.compile(r"[\0-\x1f]")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("True", "TRUE"), True),
    **dict.fromkeys(("False", "FALSE"), False),
    **dict.fromkeys(("None", "nil", "Null", "NULL", "undefined")),
    **dict.fromkeys(("NaN", "nan", "-NaN", "-nan"), float("nan")),
    **dict.fromkeys(("Infinity", "+Infinity", "inf", "+inf", "Inf", "+Inf"), float("inf")),
    **dict.fromkeys(("-Infinity", "-inf", "-Inf"), float("-inf")),
}
_WIDE = (
    ("utf-32-le", 4, re.compile(rb"(?:\xff\xfe\0\0)?[\[{]\0\0\0")),
    ("utf-32-be", 4, re.compile(rb"(?:\0\0\xfe\xff)?\0\0\0[\[{]")),
    ("utf-16-le", 2, re.compile(rb"(?:\xff\xfe)?[\[{]\0.\0", re.DOTALL)),
    ("utf-16-be", 2, re.compile(rb"(?:\xfe\xff)?\0[\[{]\0.", re.DOTALL)),
)
"""Encodings wider than UTF-8, the bytes of a unit, and the beginning of an object or array in each."""

_Container = dict[str, Any] | list[Any]


def decode(body: bytes | str, limit: int | None = None, path: tuple[str, ...] = ()) -> TolerantResult:
    r"""Return the value of a body; raise msgspec.DecodeError where there is neither an object nor an array.

    ``limit`` is that of rule 7, in characters, None for no limit; ``path`` is that of rule 8, as keys.

    >>> decode(b'\xef\xbb\xbf{"load": NaN, "sender": "n1",} trailing').value
    {'load': nan, 'sender': 'n1'}
    """
    text, deviation = text_and_deviation(body) if isinstance(body, bytes) else (body, None)
    reader = _TolerantReader(limit, path, deviation)
    return TolerantResult(reader.document(text), reader.deviation)


def text_and_deviation(body: bytes) -> tuple[str, Deviation | None]:
    r"""Return the text of a body by rule 3, and ENCODING if its bytes are not UTF-8.

    >>> text_and_deviation(b'{"sender":"caf\xe9"}')
    ('{"sender":"café"}', <Deviation.ENCODING: 'encoding'>)
    """
    is_wide = False
    for encoding, width, beginning in _WIDE:
        if beginning.match(body):
            is_wide = True
            with contextlib.suppress(UnicodeDecodeError):
                return body[: len(body) // width * width].decode(encoding, "surrogatepass"), Deviation.ENCODING
    try:
        return body.decode(), Deviation.ENCODING if is_wide else None
    except UnicodeDecodeError:
        return text_of(body), Deviation.ENCODING


def text_of(written: bytes) -> str:
    r"""Return the text of bytes: UTF-8, and byte by byte Latin-1 where they are not UTF-8.

    >>> text_of(b"caf\xc3\xa9"), text_of(b"caf\xe9")
    ('café', 'café')
    """
    text = written.decode("utf-8", "surrogateescape")
    # Not letter by letter, nor by a handler of ours: a megabyte of wrong bytes is a million calls.
    for wrong in range(0x80, 0x100):
        text = text.replace(chr(0xDC00 + wrong), chr(wrong))
    return text


class _TolerantReader:
    """Reads one body: the containers that are open, and the key that waits for its value in the innermost."""

    def __init__(self, limit: int | None, path: tuple[str, ...], deviation: Deviation | None) -> None:
        self._limit = limit
        self._path = path
        self.deviation = deviation
        self._levels: list[_Container] = []
        self._key: str | None = None
        self._too_deep: dict[str, Any] = {}

    def note(self, deviation: Deviation) -> None:
        self.deviation = self.deviation or deviation

    def document(self, body: str) -> _Container:
        """Return the first object, else the first array."""
        opening = _OPENING.search(body)
        if opening is None:
            raise msgspec.DecodeError("neither an object nor an array")
        if body[: opening.start()].strip(_BLANKS):
            self.note(Deviation.SURPLUS)
        body = body[opening.start() :]
        return self._read_with_library(body) or self._read_broken(body)

    def _read_with_library(self, body: str) -> dict[str, Any] | None:
        """Return an object of whole structure, read by the standard library, which is 20 times as fast; else None."""
        if _AMBIGUOUS_ESCAPE.search(body):
            mended, count = _ESCAPE.subn(
                lambda escape: escape[0] if escape[1] else "\\" + escape[0], body, MENDED_LIMIT
            )
            if count == MENDED_LIMIT:
                return None
            if mended != body:
                self.note(Deviation.ESCAPE)
            body = mended
        for is_strict in (True, False):
            decoder = json.JSONDecoder(strict=is_strict, parse_constant=self._constant)
            try:
                value, end = decode_deep(decoder.raw_decode, body)
            except msgspec.DecodeError:
                return None
            except (ValueError, RecursionError):
                # ValueError: also a number of more digits than Python reads.
                continue
            if not isinstance(value, dict):
                return None
            if not is_strict:
                self.note(Deviation.CONTROL_CHARACTER)
            if body[end:].strip(_BLANKS):
                self.note(Deviation.SURPLUS)
            return value
        return None

    def _constant(self, word: str) -> Any:
        self.note(Deviation.VALUE)
        return _WORDS[word]

    def _read_broken(self, whole: str) -> _Container:
        body = whole[: self._limit]
        is_cut = len(body) < len(whole)
        found: _Container = []
        at, opening = 0, _OPENING.match(body)
        while opening:
            value: _Container = {} if opening[0] == "{" else []
            is_first = not at
            at = self._fill(value, body, opening.end())
            if is_first or isinstance(value, dict):
                found = value
            opening = None if isinstance(found, dict) else _OPENING.search(body, at)
        if is_cut and not isinstance(found, dict):
            self.note(Deviation.TRUNCATED)
        if is_cut or body[at:].strip(_BLANKS):
            self.note(Deviation.SURPLUS)
        if not self._path or not isinstance(found, dict) or (text := self._scan(body)) is None:
            return found
        self.note(Deviation.STRUCTURE)
        inside = found
        for key in self._path[:-1]:
            if not isinstance(inside.get(key), dict):
                inside[key] = {}
            inside = inside[key]
        inside[self._path[-1]] = text
        return found

    def _scan(self, body: str) -> str | None:
        """Return the text at the path that a scanner finds which skips all that is no key and begins no value.

        None where there is none, or a colon behind it makes it a key.
        """
        depth, at = 0, body.find("{") + 1
        while key := _SCANNED_KEY.match(body, at):
            at = key.end()
            if key[1] is None:
                depth -= 1
                if depth < 0:
                    return None
                continue
            is_on_path = self._text(key[1]) == self._path[depth]
            value = _SCANNED_VALUE.match(body, at)
            if value is None:
                return None
            at, (text, opening) = value.end(), value.groups()
            is_last = depth == len(self._path) - 1
            if is_on_path and is_last:
                return None if text is None or _COLON.match(body, at) else self._text(text)
            if opening == "{" and is_on_path:
                depth += 1
            elif opening:
                # A bracket of any kind closes a container.
                level = 1
                for found in _SCANNED_BRACKET.finditer(body, at):
                    level += 0 if found[0][0] == '"' else 1 if found[1] else -1
                    at = found.end()
                    if not level:
                        break
                else:
                    return None
        return None

    def _fill(self, outermost: _Container, body: str, at: int) -> int:
        """Read up to the end of a container; return its end."""
        self._levels = levels = [outermost]
        while levels and at < len(body):
            inside = levels[-1]
            if self._key is None and isinstance(inside, dict):
                found = _AT_KEY.match(body, at)
                at = self._read_at_key(inside, found) if found else len(body)
            else:
                found = _AT_VALUE.match(body, at)
                at = self._read_at_value(inside, found) if found else len(body)
        if levels:
            self.note(Deviation.TRUNCATED)
        return at

    def _read_at_key(self, inside: dict[str, Any], found: "re.Match[str]") -> int:
        """Read the token where a key is expected; return its end."""
        gap, text, _, _, bracket, single, word = found.groups()
        if bracket is None:
            self._check(gap, "," if inside else "")
            if text is None:
                self.note(Deviation.STRUCTURE)
            written = single if text is None else text
            self._key = word if written is None else self._text(written)
        elif bracket in "]}":
            self._close(inside, bracket, gap)
        else:
            # It belongs to no key: what it holds belongs to the object.
            self.note(Deviation.STRUCTURE)
            self._levels.append(inside)
        return found.end()

    def _read_at_value(self, inside: _Container, found: "re.Match[str]") -> int:
        """Read the token where a value is expected; return its end."""
        gap, text, closing_quote, colon, bracket, single, word = found.groups()
        if self._key is not None and ":" in gap and "," in gap:
            self.note(Deviation.STRUCTURE)
            self._put(inside, None)
            return found.end(1)
        if self._key is not None and ":" not in gap and colon:
            # The end of a text with quotes in it was taken for a key.
            self.note(Deviation.STRUCTURE)
            self._key = None
            return found.end(1)
        if bracket is not None and bracket in "]}":
            self._close(inside, bracket, gap)
            return found.end()
        self._check(gap, ":" if self._key is not None else "," if inside else "")
        if bracket is not None:
            opened: _Container = {} if bracket == "{" else []
            if len(self._levels) >= NESTED_LIMIT:
                self.note(Deviation.TOO_DEEP)
                opened = self._too_deep
            self._put(inside, None if opened is self._too_deep else opened)
            self._levels.append(opened)
        elif word is not None:
            self._put_bare(inside, word, found.string[found.end() : found.end() + 1])
        elif single is not None:
            self.note(Deviation.STRUCTURE)
            self._put(inside, self._text(single))
        elif closing_quote:
            self._put(inside, self._text(text))
        return found.end()

    def _close(self, inside: _Container, bracket: str, gap: str) -> None:
        self._check(gap, "")
        is_its_own = isinstance(inside, dict) is (bracket == "}")
        if self._key is not None or not is_its_own:
            self.note(Deviation.STRUCTURE)
        if self._key is not None:
            self._put(inside, None)
        if is_its_own or len(self._levels) > 1:
            self._levels.pop()

    def _put(self, inside: _Container, value: Any) -> None:
        if isinstance(inside, list):
            inside.append(value)
        elif self._key is not None:
            inside[self._key] = value
            self._key = None

    def _put_bare(self, inside: _Container, word: str, following: str) -> None:
        if not following:
            # The next character is missing, and may have belonged to the word.
            return
        if following in "[{":
            self.note(Deviation.STRUCTURE)
            return
        value: Any
        if _SCALAR.fullmatch(word):
            try:
                value = msgspec.json.decode(word)
            except msgspec.MsgspecError:
                # Larger than msgspec reads.
                self.note(Deviation.VALUE)
                value = float(word)
        else:
            self.note(Deviation.VALUE)
            value = _WORDS.get(word, word)
        self._put(inside, value)

    def _text(self, written: str) -> str:
        if not written.isprintable() and _CONTROL.search(written):
            self.note(Deviation.CONTROL_CHARACTER)
        return _ESCAPE.sub(self._character, written) if "\\" in written else written

    def _character(self, escape: "re.Match[str]") -> str:
        if escape[1]:
            return _decode_text(f'"{escape[0]}"')
        self.note(Deviation.ESCAPE)
        return escape[0]

    def _check(self, gap: str, expected: str) -> None:
        if gap != expected and gap.strip(_BLANKS) != expected:
            self.note(Deviation.STRUCTURE)
