"""Print the CycloneDX 1.6 bill of materials of a tree of installed distributions: ``sbom.py SITE``."""

import json
import sys
from importlib.metadata import Distribution, distributions

EXPRESSIONS = {"Apache 2 License": "Apache-2.0", "MIT License": "MIT OR Apache-2.0", None: "MIT"}
"""What distributions say that do not give an SPDX expression: nkeys, uvloop, aiosqlite."""

TEXTS = {"MIT License": "MIT", "BSD 3-Clause License": "BSD-3-Clause"}
"""What those begin with that give a whole licence: mmh3, pandas."""


def component(distribution: Distribution) -> dict[str, object]:
    """Describe one distribution; PyNaCl's module contains libsodium, which is listed by its licence."""
    said = distribution.metadata["License-Expression"] or distribution.metadata["License"]
    name = distribution.name
    first, _, more = (said or "").partition("\n")
    expression = (TEXTS[first] if more else EXPRESSIONS.get(said, said)) + (
        " AND ISC" if name.lower() == "pynacl" else ""
    )
    purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{distribution.version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": distribution.version,
        "purl": purl,
        "licenses": [{"expression": expression}],
    }


def bill(site: str) -> dict[str, object]:
    """List muster as the main component and every other distribution below ``site`` as a part of it."""
    found = sorted(distributions(path=[site]), key=lambda each: each.name)
    components = {each.name: component(each) for each in found}
    muster = {**components.pop("muster"), "type": "application"}
    depends = [each["bom-ref"] for each in components.values()]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": muster},
        "components": list(components.values()),
        "dependencies": [{"ref": muster["bom-ref"], "dependsOn": depends}],
    }


sys.stdout.write(json.dumps(bill(sys.argv[1]), indent=2) + "\n")
