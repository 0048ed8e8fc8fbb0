"""What people who work on the repository are given agrees with what the Makefile does."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()


def recipe(target: str) -> list[str]:
    """Give the commands of a target, the environment's directory written out."""
    (lines,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    return [line.strip().removeprefix("@").replace("$(BIN)", ".venv/bin") for line in lines.splitlines()]


def test_hooks_before_a_commit_run_the_tools_of_make_check() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"^ *entry: (.*)$", hooks, re.MULTILINE) == recipe("check")


def test_hooks_before_a_commit_fetch_nothing() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"^ *- repo: (.*)$", hooks, re.MULTILINE) == ["local"]
    assert set(re.findall(r"^ *language: (.*)$", hooks, re.MULTILINE)) == {"system"}


def test_the_release_is_checked_with_what_operators_install() -> None:
    check = (ROOT / "packaging" / "release-check.sh").read_text()
    assert "--require-hashes --use-pep517 --no-build-isolation --only-binary :all: --no-binary nkeys" in check
    assert {"requirements-build.txt", "requirements-agent.txt"} <= set(re.findall(r"requirements-\w+\.txt", check))


def test_decisions_are_few_dated_and_of_one_form() -> None:
    records = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert 0 < len(records) <= 25
    for number, path in enumerate(records, 1):
        assert re.match(
            rf"# {number}\. .+\n\n\d{{4}}-\d\d-\d\d\n\n## Context\n.+\n## Decision\n.+\n## Consequences\n",
            path.read_text(),
            re.DOTALL,
        ), path.name
