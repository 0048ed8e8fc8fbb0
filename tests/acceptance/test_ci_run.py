"""The runner of CI: a test that fails once and passes alone is flaky, anything else fails, and the last line counts."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The runner may install what is missing where it finds a package manager: here it finds none.
TOOLS = ("bash", "cat", "date", "dirname", "grep", "id", "make", "mktemp", "rm", "sh", "tail", "tee")
MAKEFILE = """
test:
\t@test ! -e broken-check
\t@.venv/bin/python -m pytest $(PYTEST_ARGS)
"""
# Each test leaves a file, so that its second run differs from its first.
BEGINNING = """
import os, signal
from pathlib import Path
import pytest

def is_first(name):
    mark = Path(__file__).with_name(name)
    found = mark.exists()
    mark.touch()
    return not found

def test_sound():
    pass
"""
FLAKY = """
@pytest.mark.parametrize("value", {values})
def test_flaky(value):
    assert not is_first(f"flaky {{value}}")
"""
BROKEN = """
def test_broken():
    assert False
"""
SKIPPED_LATER = """
def test_skipped_later():
    if not is_first("skipped"):
        pytest.skip("not this time")
    assert False
"""
FLAKY_FIXTURE = """
@pytest.fixture
def place():
    assert not is_first("setup")
    yield
    assert not is_first("teardown")

def test_setup(place):
    pass

@pytest.fixture
def end():
    yield
    assert not is_first("end")

def test_teardown(end):
    pass
"""
CRASH = """
def test_crash():
    if is_first("crash"):
        os.kill(os.getpid(), signal.SIGKILL)
"""
UNCOLLECTED = """
assert not is_first("import")
"""
BROKEN_IMPORT = """
import no_such_module
"""
SKIPPED = """
@pytest.mark.skip(reason="as ever")
def test_skipped():
    pass

@pytest.mark.xfail(reason="as ever", strict=False)
def test_xfailed():
    assert False
"""
INTERRUPT = """
def test_interrupt():
    if is_first("interrupt"):
        raise KeyboardInterrupt
"""


class FakeTree:
    """A tree with the real runner, and with tests of our own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for copied in (".ci/run", "tests/support/reruns.py"):
            (root / copied).parent.mkdir(parents=True)
            shutil.copy(ROOT / copied, root / copied)
        (root / "tests" / "conftest.py").write_text('pytest_plugins = ["tests.support.reruns"]\n')
        (root / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib -p xdist\ntestpaths = tests\n")
        (root / "Makefile").write_text(MAKEFILE)
        for name, tool in {name: shutil.which(name) for name in TOOLS}.items():
            assert tool is not None, name
            (root / "bin").mkdir(exist_ok=True)
            (root / "bin" / name).symlink_to(tool)
        (root / ".venv" / "bin").mkdir(parents=True)
        interpreter = root / ".venv" / "bin" / "python"
        interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        interpreter.chmod(0o755)

    def run(self, tests: str, arguments: str = "-n 1") -> "subprocess.CompletedProcess[str]":
        """Run the runner on these tests."""
        (self.root / "tests" / "test_fake.py").write_text(BEGINNING + tests)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MAKE"))}
        environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ARGS": arguments}
        return subprocess.run(
            [self.root / ".ci" / "run"],
            capture_output=True,
            text=True,
            timeout=300,
            env={**environment, "PATH": str(self.root / "bin")},
            check=False,
        )


@pytest.fixture
def tree(tmp_path: Path) -> FakeTree:
    return FakeTree(tmp_path)


def flaky_tests(output: str) -> list[str]:
    return re.findall(r"^flaky: tests/test_fake\.py(.*)$", output, re.MULTILINE)


def counts(output: str) -> dict[str, int]:
    """Return the counts of the last line, which has the form of pytest's closing line."""
    line = output.splitlines()[-1].strip("= ")
    assert re.fullmatch(r"(\d+ [a-z]+(, )?)+ in \d+\.\d\ds( \(.*\))?", line), line
    return {word: int(count) for count, word in re.findall(r"(\d+) ([a-z]+)", line.partition(" in ")[0])}


@pytest.mark.parametrize(
    ("tests", "flaky", "counted"),
    [
        ("", [], {"passed": 1}),
        (FLAKY.format(values=["a - b", "c::d[e]"]), ["::test_flaky[a - b]", "::test_flaky[c::d[e]]"], {"passed": 3}),
        (FLAKY.format(values=list(range(5))), [f"::test_flaky[{n}]" for n in range(5)], {"passed": 6}),
        (FLAKY.format(values=[1]) + SKIPPED, ["::test_flaky[1]"], {"passed": 2, "skipped": 1, "xfailed": 1}),
        (CRASH, ["::test_crash"], {"passed": 2}),
    ],
)
def test_tests_that_pass_when_they_run_again_are_named_and_pass(
    tree: FakeTree, tests: str, flaky: list[str], counted: dict[str, int]
) -> None:
    run = tree.run(tests)
    assert run.returncode == 0, run.stdout + run.stderr
    assert sorted(flaky_tests(run.stdout)) == flaky
    assert counts(run.stdout) == counted | ({"rerun": len(flaky)} if flaky else {})


@pytest.mark.parametrize(
    ("tests", "failed"),
    [
        (BROKEN, {"failed": 1, "passed": 1}),
        (FLAKY.format(values=[1]) + BROKEN, {"failed": 2, "passed": 1}),
        (FLAKY.format(values=list(range(6))), {"failed": 6, "passed": 1}),
        (SKIPPED_LATER, {"failed": 1, "passed": 1}),
        # The first run of the fixture's setup fails, the second run fails in its teardown.
        (FLAKY_FIXTURE, {"passed": 2, "errors": 2}),
        (BROKEN_IMPORT, {"error": 1}),
    ],
)
def test_a_run_with_a_test_that_fails_again_or_with_more_than_five_fails(
    tree: FakeTree, tests: str, failed: dict[str, int]
) -> None:
    run = tree.run(tests)
    assert run.returncode != 0
    assert flaky_tests(run.stdout) == []
    assert counts(run.stdout) == failed


def test_a_teardown_that_fails_once_and_a_file_that_could_not_be_imported_once_are_flaky(tree: FakeTree) -> None:
    run = tree.run(FLAKY_FIXTURE.replace('is_first("setup")', "False").replace('is_first("teardown")', "False"))
    assert (run.returncode, flaky_tests(run.stdout)) == (0, ["::test_teardown"])
    assert counts(run.stdout) == {"passed": 3, "rerun": 1}


def test_a_file_that_cannot_be_imported_by_one_worker_is_run_again_whole(tree: FakeTree) -> None:
    run = tree.run('import os\nif os.environ.get("PYTEST_XDIST_WORKER"):\n    raise RuntimeError("busy")\n')
    assert (run.returncode, flaky_tests(run.stdout)) == (0, [""]), run.stdout


@pytest.mark.parametrize(
    ("tests", "arguments"),
    [
        pytest.param(INTERRUPT, "-n 0", id="interrupted"),
        pytest.param(FLAKY.format(values=[1, 2]), "-n 0 -x", id="stopped at the first failure"),
        pytest.param(FLAKY.format(values=[1]), "--no-such-option", id="wrong usage"),
        pytest.param("", "-k no_such_test", id="no tests"),
        pytest.param(CRASH + "def test_later(): pass\n", "-n 1 --max-worker-restart=0", id="no worker left"),
    ],
)
def test_a_run_that_did_not_run_all_tests_fails_without_a_second_run(
    tree: FakeTree, tests: str, arguments: str
) -> None:
    run = tree.run(tests, arguments)
    assert run.returncode != 0
    assert "run again" not in run.stdout


def test_a_run_whose_checks_fail_fails(tree: FakeTree) -> None:
    (tree.root / "broken-check").touch()
    run = tree.run("")
    assert (run.returncode, flaky_tests(run.stdout)) == (2, [])
