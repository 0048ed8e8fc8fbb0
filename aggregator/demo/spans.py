"""Cut and add up spans of time. A span is ``(started_at, ended_at)``; lists of spans are in order, without overlap."""

from collections.abc import Iterable, Sequence

Span = tuple[int, int]


def total(spans: Iterable[Span]) -> int:
    """Add up their lengths.

    >>> total([(0, 3), (5, 6)])
    4
    """
    return sum(ended_at - started_at for started_at, ended_at in spans)


def longest(spans: Iterable[Span]) -> int:
    """Give the length of the longest, 0 where there is none.

    >>> longest([(0, 3), (5, 6)])
    3
    """
    return max((ended_at - started_at for started_at, ended_at in spans), default=0)


def merged(spans: Iterable[Span]) -> list[Span]:
    """Put spans in order, and those together that touch; empty ones are left out.

    >>> merged([(5, 6), (0, 3), (3, 4), (8, 8)])
    [(0, 4), (5, 6)]
    """
    found: list[Span] = []
    for started_at, ended_at in sorted(spans):
        if started_at >= ended_at:
            continue
        if found and started_at <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], ended_at))
        else:
            found.append((started_at, ended_at))
    return found


def common(one: Sequence[Span], other: Sequence[Span]) -> list[Span]:
    """Give what lies in both.

    >>> common([(0, 10)], [(2, 3), (8, 12)])
    [(2, 3), (8, 10)]
    """
    pieces = ((max(a[0], b[0]), min(a[1], b[1])) for a in one for b in other)
    return [piece for piece in pieces if piece[0] < piece[1]]


def without(spans: Sequence[Span], taken: Sequence[Span]) -> list[Span]:
    """Give what lies in ``spans`` and not in ``taken``.

    >>> without([(0, 10)], [(2, 3), (8, 12)])
    [(0, 2), (3, 8)]
    """
    left = list(spans)
    for started_at, ended_at in taken:
        left = [
            piece
            for span in left
            for piece in ((span[0], min(span[1], started_at)), (max(span[0], ended_at), span[1]))
            if piece[0] < piece[1]
        ]
    return left
