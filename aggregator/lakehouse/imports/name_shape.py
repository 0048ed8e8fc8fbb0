"""Find groups in the parts of a name: ``{region}/{site}/{cluster}/{}`` says where they stand. Pure.

A pair of braces takes as little as it can, up to the text that follows it in the shape; without a word inside, what it
takes is passed over. ``region``, ``site`` and ``sender`` are what they say, every other word is a group of that name.
"""

import re
from collections.abc import Mapping

_PLACE = re.compile(r"\{([^{}]*)\}")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class InvalidShape(ValueError):
    """A shape does not say where the parts of a name stand. The text says why."""


class NameShape:
    """A shape, ready to be laid on names."""

    def __init__(self, shape: str) -> None:
        """Read the shape; raise InvalidShape.

        >>> NameShape("{site}-r{rack}-{}").parts("dub1-r7-n12")
        {'site': 'dub1', 'rack': '7'}
        """
        pattern, words, ended_at = "", [], 0
        for place in _PLACE.finditer(shape):
            literal, word = shape[ended_at : place.start()], place[1]
            if ended_at and not literal:
                raise InvalidShape(f"{shape!r}: two pairs of braces need some text between them")
            if word and not _WORD.fullmatch(word):
                raise InvalidShape(f"{shape!r}: {word!r} is not a name of a group, write letters, digits and _")
            if word in words:
                raise InvalidShape(f"{shape!r}: {word!r} stands there twice")
            pattern += re.escape(literal) + (f"(?P<{word}>.+?)" if word else ".+?")
            words.append(word)
            words = [each for each in words if each]
            ended_at = place.end()
        if not words:
            raise InvalidShape(f"{shape!r}: name at least one part, for example {{site}}/{{rack}}/{{}}")
        if "{" in (rest := shape[ended_at:]) or "}" in rest:
            raise InvalidShape(f"{shape!r}: a brace is without its other one")
        self.words = tuple(words)
        self._pattern = re.compile(pattern + re.escape(rest))

    @property
    def pattern(self) -> str:
        """The regular expression that a whole name must match; its groups are the words, in their order."""
        return self._pattern.pattern

    def parts(self, name: str) -> Mapping[str, str] | None:
        """Return the named parts of a name; None if it is not of this shape."""
        match = self._pattern.fullmatch(name)
        return match.groupdict() if match else None
