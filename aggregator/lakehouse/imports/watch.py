"""Read from when to when a source watched, as a person says it. Pure.

What is said here is held of every sender, before and after its rows, and no row contradicts it: what is likely a
mistake is refused, for it would be years of time up.
"""

from aggregator.lakehouse.imports.mapping import ImportRefused, Mapping
from aggregator.lakehouse.imports.times import EARLIEST, latest, time_reader
from shared.instants import format_instant


def told_instant(name: str, text: str | None, zone: str) -> int | None:
    """Read what the option ``name`` says, in microseconds; raise ImportRefused."""
    if text is None:
        return None
    try:
        return time_reader("auto", zone)(text)
    except ValueError as error:
        raise ImportRefused(f"--{name} {text}: {error}; write for example 2005-12-31T23:59:59Z") from error


def told_epoch(text: str | None, zone: str) -> int | None:
    """Read from when numbers count, in microseconds, None where nothing is said; raise ImportRefused. 0 is 1970."""
    return 0 if text is not None and text.strip() == "0" else told_instant("epoch", text, zone)


def watch(since: str | None, until: str | None, zone: str, now: int) -> tuple[int | None, int | None]:
    """Give both in microseconds; raise ImportRefused for what is likely a mistake. ``now`` is in microseconds."""
    begins, ends = (_plausible(name, text, zone, now) for name, text in (("since", since), ("until", until)))
    if begins is not None and ends is not None and begins >= ends:
        raise ImportRefused(
            f"--since {since} is {format_instant(begins)}, and not before --until {until}, {format_instant(ends)}"
        )
    return begins, ends


def said_of_watch(mapping: Mapping) -> str:
    """Say in a line what is held of senders between and around their rows."""
    holds = (
        "a row holds until its sender's next" if mapping.tells_changes else f"between rows senders are {mapping.gaps}"
    )
    begins = "each sender's first row" if mapping.since is None else format_instant(mapping.since)
    if mapping.until is not None:
        return f"{holds}; watched from {begins} to {format_instant(mapping.until)}"
    lacking = ", whose state then has no length: --until says when the source ceased to watch"
    return f"{holds}; watched from {begins} to its last{lacking if mapping.tells_changes else ''}"


def _plausible(name: str, text: str | None, zone: str, now: int) -> int | None:
    at = told_instant(name, text, zone)
    if text is None or at is None:
        return None
    if not EARLIEST <= at <= latest(now):
        when = "lies before 1970-01-02" if at < EARLIEST else "is still to come"
        raise ImportRefused(f"--{name} {text} {when}: numbers are Unix seconds, whatever --time says; else ISO 8601")
    return at
