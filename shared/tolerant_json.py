"""Read JSON that a strict decoder refuses, as far as it says something: whoever can be identified is heard.

The rules follow what a scanner for a path finds that never validates (``gjson``, by which the peer identifies nodes):

1. The first object is read, else the first array; what stands before and behind it is left out.
2. A text ends at its next quote that is not escaped. An escape that means nothing, such as half of a surrogate pair,
   stays as it is written: a replacement would make two names one. Control characters are taken as they are.
3. Bytes that are not UTF-8 are Latin-1, one by one: each stands for one letter, so names that differ stay different,
   and can be written in UTF-8. UTF-16 and UTF-32 are known by the zeros beside what opens an object (RFC 4627).
4. Separators may be missing, doubled or others. Keys and values may lack their quotes, or have single ones: what is
   neither a number nor a literal is a text as it is written (``007``, ``+1``, ``web1``). NaN and Infinity are floats.
5. A closing bracket closes the innermost level, of whatever kind; at the outermost only its own kind does. What the end
   of the body cuts has no value: a name that was cut would be another.
6. Levels below NESTED_LIMIT are left out. A repeated key has its last value, as for the strict decoder.
7. Of what the standard library's decoder refuses too, only the first characters are read, at most as many as the caller
   allows: there are megabytes that take a second each. What follows is as if the body had been cut.
8. There, a text that the scanner itself finds at the path that it is asked for stands in place of what the rules above
   make of it: where nothing fits, whoever both of them hear has one name.

What JSON allows has the value that msgspec gives it. Nothing recurses, and the time taken is linear in the size.
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
    """In what a body is not JSON."""

    ENCODING = "encoding"
    SURPLUS = "surplus"
    ESCAPE = "escape"
    CONTROL_CHARACTER = "control_character"
    VALUE = "value"
    STRUCTURE = "structure"
    TRUNCATED = "truncated"
    TOO_DEEP = "too_deep"


class TolerantResult(msgspec.Struct, frozen=True):
    """What could be read, and the first deviation that was met (``encoding`` before all others); None: it is JSON."""

    value: Any
    deviation: Deviation | None


_BLANKS = " \t\n\r"
_OPENING = re.compile(r"[\[{]")
# Between two tokens: also what is no separator of JSON, such as the => of a hash.
_GAP = r"([\s,:;=>|]*+)"
_DOUBLE = r'"((?:[^"\\]|\\.)*+)(?:(")(?=\s*+(:)?)|\Z|\\\Z)'
_SINGLE = r"'((?:[^'\\]|\\.)*+)'(?=\s*+[:,=\]}])"
# A word that is a key, or else nothing.
_KEY_WORD = r"([^\s,:;=>|\"\[\]{}]++)(?=\s*+[:=])|[^\s,:;=>|\"\[\]{}]++"
# Up to a comma, whatever stands in it, as a number ends for the peer; letters also where a quote follows.
_VALUE_WORD = r"([a-z]++(?=\")|[^\s,\[\]{}\"][^\s,\[\]{}]*+)"
_AT_KEY = re.compile(rf"{_GAP}(?:{_DOUBLE}|([\[{{\]}}])|{_SINGLE}|{_KEY_WORD})", re.DOTALL)
_AT_VALUE = re.compile(rf"{_GAP}(?:{_DOUBLE}|([\[{{\]}}])|{_SINGLE}|{_VALUE_WORD})", re.DOTALL)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
# What the scanner of rule 8 takes for a key, or for the end of an object; and then for a text, a container, or another.
_SCANNED_KEY = re.compile(r'[^"}]*+(?:"((?:[^"\\]|\\.)*+)"|})', re.DOTALL)
_SCANNED_VALUE = re.compile(
    r"[^\"{\[tfn+\-0-9iIN]*+(?:\"((?:[^\"\\]|\\.)*+)\"|([\[{])|(?:[tf]|n(?=u|\Z))[a-z]*+|[n+\-0-9iIN][^\0- ,\]}]*+)",
    re.DOTALL,
)
_SCANNED_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z|\\\Z)|([\[{(])|[\]})]', re.DOTALL)
_COLON = re.compile(r"\s*+:")
_ESCAPE = re.compile(
    r'\\(?:(["\\/bfnrt])|u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})'
    r"|u(?![dD][89a-fA-F])([0-9a-fA-F]{4})|.)",
    re.DOTALL,
)
# Whether each escape must be looked at: also where a backslash that is escaped itself makes it seem so.
_AMBIGUOUS_ESCAPE = re.compile(r'\\(?:u[dD][89a-fA-F]|u(?![0-9a-fA-F]{4})|[^"\\/bfnrtu])')
_MEANT = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_CONTROL = re.compile(r"[\0-\x1f]")
_LITERALS = {"true": True, "false": False, "null": None}
_NEARLY: dict[str, Any] = {
    **dict.fromkeys(("True", "TRUE"), True),
    **dict.fromkeys(("False", "FALSE"), False),
    **dict.fromkeys(("None", "nil", "Null", "NULL", "undefined")),
    **dict.fromkeys(("NaN", "nan", "-NaN", "-nan"), float("nan")),
    **dict.fromkeys(("Infinity", "+Infinity", "inf", "+inf", "Inf", "+Inf"), float("inf")),
    **dict.fromkeys(("-Infinity", "-inf", "-Inf"), float("-inf")),
}
_WIDE = {
    encoding: (re.compile(beginning, re.DOTALL), width)
    for encoding, beginning, width in (
        ("utf-32-le", rb"(?:\xff\xfe\0\0)?[\[{]\0\0\0", 4),
        ("utf-32-be", rb"(?:\0\0\xfe\xff)?\0\0\0[\[{]", 4),
        ("utf-16-le", rb"(?:\xff\xfe)?[\[{]\0.\0", 2),
        ("utf-16-be", rb"(?:\xfe\xff)?\0[\[{]\0.", 2),
    )
}
"""How objects and arrays begin in what is wider than UTF-8, and how many bytes a unit has."""

_Container = dict[str, Any] | list[Any]


def decode(body: bytes | str, limit: int | None = None, path: tuple[str, ...] = ()) -> TolerantResult:
    r"""Read what can be read; raise msgspec.DecodeError where there is neither an object nor an array.

    ``limit`` is that of rule 7, in characters; None: there is none. ``path``: keys, as rule 8 has it.

    >>> decode(b'\xef\xbb\xbf{"load": NaN, "sender": "n1",} trailing').value
    {'load': nan, 'sender': 'n1'}
    """
    reader = _Reader(limit, path)
    value = reader.document(reader.decode(body) if isinstance(body, bytes) else body)
    return TolerantResult(value, reader.deviation)


def text_and_deviation(body: bytes) -> tuple[str, Deviation | None]:
    r"""Return the text of a body by rule 3, and ENCODING if its bytes are not UTF-8.

    >>> text_and_deviation(b'{"sender":"caf\xe9"}')
    ('{"sender":"café"}', <Deviation.ENCODING: 'encoding'>)
    """
    reader = _Reader(None)
    return reader.decode(body), reader.deviation


def _end_of_container(body: str, at: int) -> int:
    """Give where a container ends that is open at ``at``: brackets of any kind are as good as its own."""
    depth = 1
    for found in _SCANNED_BRACKET.finditer(body, at):
        if found[0][0] != '"':
            depth += 1 if found[1] else -1
            if not depth:
                return found.end()
    return len(body)


def _keep(escape: "re.Match[str]") -> str:
    """Write an escape so that it stands for itself where it stands for nothing else."""
    return escape[0] if any(escape.groups()) else "\\" + escape[0]


def text_of(written: bytes) -> str:
    r"""Give the text that bytes are: of UTF-8, and where they are not, of Latin-1.

    >>> text_of(b"caf\xc3\xa9"), text_of(b"caf\xe9")
    ('café', 'café')
    """
    text = written.decode("utf-8", "surrogateescape")
    # Not letter by letter, nor by a handler of ours: a megabyte of wrong bytes is a million calls.
    for wrong in range(0x80, 0x100):
        text = text.replace(chr(0xDC00 + wrong), chr(wrong))
    return text


class _Reader:
    """Reads one body: the containers that are open, and the key that waits for its value in the innermost."""

    def __init__(self, limit: int | None, path: tuple[str, ...] = ()) -> None:
        self._limit = limit
        self._path = path
        self.deviation: Deviation | None = None
        self._levels: list[_Container] = []
        self._key: str | None = None
        self._too_deep: dict[str, Any] = {}

    def note(self, deviation: Deviation) -> None:
        self.deviation = self.deviation or deviation

    def decode(self, body: bytes) -> str:
        """Give the text that bytes are."""
        for encoding, (beginning, width) in _WIDE.items():
            if beginning.match(body):
                self.note(Deviation.ENCODING)
                with contextlib.suppress(UnicodeDecodeError):
                    return body[: len(body) // width * width].decode(encoding, "surrogatepass")
        try:
            return body.decode()
        except UnicodeDecodeError:
            self.note(Deviation.ENCODING)
            return text_of(body)

    def document(self, body: str) -> _Container:
        """Give the first object, else the first array."""
        opening = _OPENING.search(body)
        if opening is None:
            raise msgspec.DecodeError("neither an object nor an array")
        if body[: opening.start()].strip(_BLANKS):
            self.note(Deviation.SURPLUS)
        return self._quickly(body[opening.start() :]) or self._thoroughly(body, opening)

    def _quickly(self, body: str) -> dict[str, Any] | None:
        """Let the standard library, which is twenty times as fast, read an object whose structure is whole."""
        if _AMBIGUOUS_ESCAPE.search(body):
            mended, count = _ESCAPE.subn(_keep, body, MENDED_LIMIT)
            if count == MENDED_LIMIT:
                return None
            if mended != body:
                self.note(Deviation.ESCAPE)
            body = mended
        with contextlib.suppress(msgspec.DecodeError):
            for is_strict in (True, False):
                decoder = json.JSONDecoder(strict=is_strict, parse_constant=self._constant)
                # ValueError: also a number of more digits than Python reads.
                with contextlib.suppress(ValueError, RecursionError):
                    value, end = decode_deep(decoder.raw_decode, body)
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
        return _NEARLY[word]

    def _thoroughly(self, body: str, opening: "re.Match[str]") -> _Container:
        whole = body[opening.start() :]
        body = whole[: self._limit]
        is_cut = len(body) < len(whole)
        found, at = self._first_found(body)
        if is_cut and not isinstance(found, dict):
            self.note(Deviation.TRUNCATED)
        if is_cut or body[at:].strip(_BLANKS):
            self.note(Deviation.SURPLUS)
        return self._with_scanned(found, body) if self._path and isinstance(found, dict) else found

    def _with_scanned(self, found: dict[str, Any], body: str) -> dict[str, Any]:
        """Put what the scanner finds at the path in its place."""
        text = self._scan(body)
        if text is None:
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
        """Find the text at the path as a scanner does that skips whatever is no key and begins no value.

        None where there is none, or it is followed by what makes it a key.
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
                at = _end_of_container(body, at)
        return None

    def _first_found(self, body: str) -> tuple[_Container, int]:
        found: _Container | None = None
        at, opening = 0, _OPENING.search(body)
        while opening:
            value: _Container = {} if opening[0] == "{" else []
            at = self._fill(value, body, opening.end())
            if found is None or isinstance(value, dict):
                found = value
            opening = None if isinstance(found, dict) else _OPENING.search(body, at)
        assert found is not None, "there was something to open"
        return found, at

    def _fill(self, outermost: _Container, body: str, at: int) -> int:
        """Read up to the end of a container; give where that is."""
        self._levels = levels = [outermost]
        while levels and at < len(body):
            inside = levels[-1]
            if self._key is None and isinstance(inside, dict):
                found = _AT_KEY.match(body, at)
                at = self._take_at_key(inside, found) if found else len(body)
            else:
                found = _AT_VALUE.match(body, at)
                at = self._take_at_value(inside, found) if found else len(body)
        if levels:
            self.note(Deviation.TRUNCATED)
        return at

    def _take_at_key(self, inside: dict[str, Any], found: "re.Match[str]") -> int:
        """Take what stands where a key should; give where it ends."""
        gap, text, _, _, bracket, single, word = found.groups()
        if bracket is not None:
            if bracket in "]}":
                self._close(inside, bracket, gap)
            else:
                # It belongs to no key: what it holds belongs to the object.
                self.note(Deviation.STRUCTURE)
                self._levels.append(inside)
            return found.end()
        self._check(gap, "," if inside else "")
        if text is not None:
            self._key = self._text(text)
        else:
            self.note(Deviation.STRUCTURE)
            self._key = self._text(single) if single is not None else word
        return found.end()

    def _take_at_value(self, inside: _Container, found: "re.Match[str]") -> int:
        """Take what stands where a value should; give where it ends."""
        gap, text, closing_quote, colon, bracket, single, word = found.groups()
        if self._key is None:
            expected = "," if inside else ""
        elif ":" in gap and "," in gap:
            self.note(Deviation.STRUCTURE)
            self._put(inside, None)
            return found.end(1)
        elif colon and ":" not in gap:
            # What was taken for a key is the end of a text with quotes in it.
            self.note(Deviation.STRUCTURE)
            self._key = None
            return found.end(1)
        else:
            expected = ":"
        if bracket is not None and bracket in "]}":
            self._close(inside, bracket, gap)
            return found.end()
        self._check(gap, expected)
        if bracket is not None:
            self._open(inside, bracket)
        elif word is not None:
            self._take_word(inside, word, found.string[found.end() : found.end() + 1])
        elif single is not None:
            self.note(Deviation.STRUCTURE)
            self._put(inside, self._text(single))
        elif closing_quote:
            self._put(inside, self._text(text))
        return found.end()

    def _open(self, inside: _Container, bracket: str) -> None:
        opened: _Container | None = {} if bracket == "{" else []
        if len(self._levels) >= NESTED_LIMIT:
            self.note(Deviation.TOO_DEEP)
            opened = None
        self._put(inside, opened)
        self._levels.append(self._too_deep if opened is None else opened)

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

    def _take_word(self, inside: _Container, word: str, following: str) -> None:
        if not following:
            # What comes next is missing, and may have belonged to it.
            return
        if following in "[{":
            self.note(Deviation.STRUCTURE)
        elif word in _LITERALS:
            self._put(inside, _LITERALS[word])
        else:
            self._put(inside, self._number_or_text(word))

    def _number_or_text(self, word: str) -> Any:
        if _NUMBER.fullmatch(word):
            try:
                return msgspec.json.decode(word)
            except msgspec.MsgspecError:
                # Larger than what msgspec reads.
                self.note(Deviation.VALUE)
                return float(word)
        self.note(Deviation.VALUE)
        return _NEARLY.get(word, word)

    def _text(self, written: str) -> str:
        if not written.isprintable() and _CONTROL.search(written):
            self.note(Deviation.CONTROL_CHARACTER)
        return _ESCAPE.sub(self._meant, written) if "\\" in written else written

    def _meant(self, escape: "re.Match[str]") -> str:
        letter, high, low, code = escape.groups()
        if letter:
            return _MEANT[letter]
        if high:
            return chr(0x10000 + ((int(high, 16) & 0x3FF) << 10) + (int(low, 16) & 0x3FF))
        if code:
            return chr(int(code, 16))
        self.note(Deviation.ESCAPE)
        return escape[0]

    def _check(self, gap: str, expected: str) -> None:
        if gap != expected and gap.strip(_BLANKS) != expected:
            self.note(Deviation.STRUCTURE)
