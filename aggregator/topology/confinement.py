"""Confine what a region's servers deliver to the region's own subjects. Pure.

What is delivered to a copy names its subject itself, where no permission looks, so that whoever has a region's key
could write as any other region, or as the policy (tried on 2.15.1). Transforms are applied behind that: whatever the
name was, what is stored stands below ``fleet.<region>``. What the region's FLEET really holds keeps its subject.
"""

from aggregator.topology.words import Config
from shared.subjects import ROOT

_EVERY_LENGTH = ("*.*.>", "*.*", "*")


def confined_to(region: str) -> list[Config]:
    """Give the transforms of a source that brings a region's FLEET; they leave nothing as it is named."""
    own = f"{ROOT}.{region}"
    # Two tokens or one are no record's: below the region they are quarantined.
    return [{"src": src, "dest": f"{own}.>" if src.endswith(">") else own} for src in _EVERY_LENGTH]


def confined_anew(source: Config) -> list[Config]:
    """Give other transforms of the same effect: to the server another source, which counts nothing as taken.

    They are numbered: of one that it has known before it would find in the copy what that took.
    """
    *rest, last = source["subject_transforms"]
    own = confinement_of(source)
    number = int(str(last["dest"]).removeprefix(own).removeprefix(".") or 1)
    return [*rest, {**last, "dest": f"{own}.{number + 1}"}]


def is_confined(source: Config) -> bool:
    """Tell whether a source's transforms take everything, and store all of it below one region."""
    return tuple(each["src"] for each in source.get("subject_transforms") or ()) == _EVERY_LENGTH


def confinement_of(source: Config) -> str:
    """Name the subject below which a source is confined, "" where it is not."""
    return str(source["subject_transforms"][0]["dest"]).removesuffix(".>") if is_confined(source) else ""
