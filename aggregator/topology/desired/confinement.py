"""Say what sources take, and confine what a region's servers deliver to the region's own subjects. Pure.

What is delivered to a copy names its subject itself, where no permission looks, so that whoever has a region's key
could write as any other region, or as the policy (tried on 2.15.1). Transforms are applied behind that: whatever the
name was, what is stored stands below ``fleet.<region>``. What the region's FLEET really holds keeps its subject.
"""

import re

from aggregator.topology.desired.model import Config
from shared.subjects import ROOT

_EVERY_LENGTH = ("*.*.>", "*.*", "*")
_NUMBER = re.compile(r"(\.[1-9][0-9]*)?")


def confined_to(region: str) -> list[Config]:
    """Give the transforms of a source that brings a region's FLEET; they leave nothing as it is named."""
    own = f"{ROOT}.{region}"
    # Two tokens or one are no record's: below the region they are quarantined.
    return [{"src": src, "dest": f"{own}.>" if src.endswith(">") else own} for src in _EVERY_LENGTH]


def numbered(source: Config, number: int) -> list[Config]:
    """Give a confined source's transforms with a number: to the server another source, which counts nothing as taken.

    They take the same and store it the same. Of a number that the server has known before it would find in the copy
    what that took. The first has none.
    """
    *rest, last = source["subject_transforms"]
    own = confinement_of(source)
    return [*rest, {**last, "dest": f"{own}.{number}" if number > 1 else own}]


def number_of(source: Config) -> int:
    last = str(source["subject_transforms"][-1]["dest"])
    return int(last.removeprefix(confinement_of(source)).removeprefix(".") or 1)


def is_confined(source: Config) -> bool:
    """Tell whether a source's transforms take everything, and store all of it below one region."""
    transforms = source.get("subject_transforms") or ()
    if tuple(each["src"] for each in transforms) != _EVERY_LENGTH:
        return False
    whole, own, last = (each.get("dest") or "" for each in transforms)
    return whole == f"{own}.>" and last.startswith(own) and _NUMBER.fullmatch(last, len(own)) is not None


def confinement_of(source: Config) -> str:
    """Name the subject below which a source is confined, "" where it is not."""
    return str(source["subject_transforms"][1]["dest"]) if is_confined(source) else ""


def taken_subjects(source: Config) -> list[tuple[str, str]]:
    """List what any source takes of its origin's subjects, and as what ("": as it is); none: everything."""
    if is_confined(source):
        return []
    if source.get("filter_subject"):
        return [(source["filter_subject"], "")]
    return [(each["src"], each.get("dest") or "") for each in source.get("subject_transforms") or []]


def filters_of(source: Config) -> list[str]:
    """List the same without what it becomes."""
    return [subject for subject, _ in taken_subjects(source)]
