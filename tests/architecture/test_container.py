"""The trial in containers: its files name what there is. No engine is needed to see that."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "packaging" / "container"
NAME_WITHOUT_HOST = re.compile(r"[a-z0-9-]+(:[A-Za-z0-9.-]+)?")


def instructions() -> list[tuple[str, str]]:
    """Read the instructions of the image, and what each is given."""
    lines = re.sub(r"\\\n\s*", "", (PLACE / "Containerfile").read_text()).splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines if line and not line.startswith("#")]


def services() -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load((PLACE / "compose.yaml").read_text())["services"])


def test_the_image_is_made_of_files_that_are_there_as_no_root_and_from_no_named_registry() -> None:
    given = instructions()
    copied = [
        source for name, rest in given if name == "COPY" and "--from=" not in rest
        for source in re.sub(r"--\S+ ", "", rest).split()[:-1]
    ]  # fmt: skip
    assert copied
    assert [source for source in copied if not (ROOT / source).exists()] == []
    for locks in re.findall(r"-r (\S+)", " ".join(rest for _, rest in given)):
        assert locks in copied
    packages = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    )
    assert packages <= set(copied)
    (base,) = [rest.partition("=")[2] for name, rest in given if name == "ARG"]
    assert NAME_WITHOUT_HOST.fullmatch(base)
    assert [rest for name, rest in given if name == "USER"] == ["muster"]


def test_each_container_of_the_trial_runs_a_command_that_is_there_on_files_that_are_there() -> None:
    found = services()
    assert {"nats", "agent", "fleet", "live", "rollup", "streams"} == set(found)
    for name, service in found.items():
        assert NAME_WITHOUT_HOST.fullmatch(service["image"]), name
        for mounted in service["volumes"]:
            source = mounted.split(":")[0]
            assert not source.startswith(".") or (PLACE / source).resolve().exists(), mounted
        for other in service.get("depends_on", ()):
            assert other in found
        command = service["command"]
        if command[0].startswith("muster-"):
            asked = subprocess.run(
                [Path(sys.executable).parent / command[0], *command[1:], "--help"],
                capture_output=True,
                text=True,
                check=False,
            )
            assert asked.returncode == 0, (name, asked.stderr)
    build = found["streams"]["build"]
    assert (PLACE / build["context"] / build["dockerfile"]).resolve() == PLACE / "Containerfile"
