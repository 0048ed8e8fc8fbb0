"""What the doctor says of files is what the agent may do with them, or it says that it cannot tell."""

import os
import pwd
from pathlib import Path

import pytest

from edge_agent import config
from edge_agent.doctor.files import check_files
from edge_agent.doctor.finding import Finding, Level
from tests.support.agent_process import SETTINGS

NOBODYS = 54_321
NAMED = pwd.getpwnam("nobody").pw_uid

by_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")


def said_of_the_user(config_path: Path) -> list[Finding]:
    return [each for each in check_files(config_path, config.load(config_path)) if each.subject == "user"]


@pytest.fixture
def config_path(tmp_path: Path) -> Path:
    path = tmp_path / "agent.toml"
    path.write_text(SETTINGS.format(source="nats://127.0.0.1:1", upstream="nats://127.0.0.1:1", listen=""))
    return path


@by_root
@pytest.mark.parametrize(("owner", "name"), [(NAMED, "nobody"), (NOBODYS, f"'#{NOBODYS}'")])
def test_root_hears_that_another_user_may_be_refused_what_it_may_read(config_path: Path, owner: int, name: str) -> None:
    os.chown(config_path.parent, owner, -1)
    (finding,) = said_of_the_user(config_path)
    assert finding.level is Level.WARN
    assert f": sudo -u {name} " in finding.remedy
    assert finding.remedy.endswith(f" doctor --config {config_path}")


def test_the_agents_user_hears_nothing_of_it(config_path: Path) -> None:
    assert said_of_the_user(config_path) == []
