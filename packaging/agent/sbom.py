"""Print the CycloneDX 1.6 bill of materials of a tree of installed distributions: ``sbom.py SITE [MAIN]``."""

import hashlib
import json
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from zipfile import ZipFile

EXPRESSIONS = {
    "Apache 2 License": "Apache-2.0",
    "MIT License": "MIT OR Apache-2.0",
    None: "MIT",
    "http://www.apache.org/licenses/LICENSE-2.0": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
}
"""What distributions say that do not give an SPDX expression: nkeys, uvloop, aiosqlite, pyspark, py4j."""

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


def jar(path: Path) -> dict[str, object]:
    """Describe one jar by its Maven coordinates, where it names one project; its licence is in Spark's list."""
    with ZipFile(path) as archive:
        named = [each.split("/") for each in archive.namelist() if each.endswith("/pom.properties")]
    name, _, version = path.stem.rpartition("-")
    groups = [parts[2] for parts in named if parts[3] == name]
    purl = f"pkg:maven/{groups[0]}/{name}@{version}" if groups else f"pkg:generic/{path.name}"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"type": "library", "bom-ref": purl, "name": name or path.stem, "version": version, "purl": purl,
            "hashes": [{"alg": "SHA-256", "content": digest}]}  # fmt: skip


def bill(site: str, main: str = "muster") -> dict[str, object]:
    """List ``main`` as the main component, and every other distribution below ``site``, and each jar, as its parts."""
    found = sorted(distributions(path=[site]), key=lambda each: each.name)
    components = {each.name: component(each) for each in found}
    whole = {**components.pop(main), "type": "application"}
    components |= {path.name: jar(path) for path in sorted(Path(site).rglob("*.jar"))}
    depends = [each["bom-ref"] for each in components.values()]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": whole},
        "components": list(components.values()),
        "dependencies": [{"ref": whole["bom-ref"], "dependsOn": depends}],
    }


sys.stdout.write(json.dumps(bill(*sys.argv[1:]), indent=2) + "\n")
