"""The line for a command whose packages are not installed."""

import re
from importlib.metadata import PackageNotFoundError, requires

_OURS = frozenset({"aggregator", "edge_agent", "shared"})
_IN_AN_EXTRA = re.compile(r"([\w.-]+).*; extra == '(.+)'")
_EXTRAS = ("aggregator", "live", "lakehouse", "demo")
"""Those that bring commands; later ones bring what the first does, and more."""
_DISTRIBUTION_PACKAGES = {"lakehouse": " or the package muster-aggregator-spark"}
"""What brings an extra where Muster was installed as a package of the distribution (rpm/muster-aggregator.spec)."""


def explain_missing(error: ModuleNotFoundError) -> str | None:
    """Return which package is missing and what installs it; None for a module of Muster's own, which is a defect."""
    package = (error.name or "").partition(".")[0]
    if not package or package in _OURS:
        return None
    return f"this command needs {package}, which is not installed: {_remedy(package)}"


def _remedy(package: str) -> str:
    extra = _extra_of(package)
    if extra is None:
        return "install Muster again"
    return f"pip install 'muster[{extra}]'{_DISTRIBUTION_PACKAGES.get(extra, '')}"


def _extra_of(package: str) -> str | None:
    """Return the first extra that requires the distribution of this name, as the metadata of Muster says."""
    try:
        found = [match.groups() for match in map(_IN_AN_EXTRA.match, requires("muster") or ()) if match]
    except PackageNotFoundError:
        return None
    name = package.replace("_", "-").lower()
    return next((extra for extra in _EXTRAS if (name, extra) in found), None)
