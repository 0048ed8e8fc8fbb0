"""What ``migrate-config`` writes, and takes over, as root does it on a host where the agent has a user of its own."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from edge_agent.migration.command import migrate_config

GROUP = 65533


def peers_file(directory: Path, **stream: object) -> Path:
    path = directory / "sr.json"
    of_stream = {"stream": "NODES", "source_url": "nats://127.0.0.1:1", "target_url": "nats://region", **stream}
    path.write_text(json.dumps({"name": "dub1", "streams": [of_stream]}))
    return path


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may give files to other groups")
def test_settings_that_root_writes_can_be_read_by_the_group_of_their_directory(tmp_path: Path) -> None:
    folder = tmp_path / "muster-agent"
    folder.mkdir()
    os.chown(folder, 0, GROUP)
    output = folder / "agent.toml"
    arguments = [str(peers_file(tmp_path)), "--region", "eu-west", "--output", str(output)]
    assert CliRunner().invoke(migrate_config, arguments).exit_code == 0
    written = output.stat()
    assert (written.st_gid, written.st_mode & 0o777) == (GROUP, 0o640)

    os.chown(output, 0, 0)
    assert CliRunner().invoke(migrate_config, arguments).exit_code == 0
    assert output.stat().st_gid == 0, "the rights of a file that was there are its owner's business"


def test_a_name_that_no_consumer_can_have_means_that_there_is_none(tmp_path: Path) -> None:
    """A server does not answer where it is asked for one, nor is it asked: here is none."""
    (tmp_path / "state").mkdir()
    config = peers_file(tmp_path, name="us.east")
    taken = ["--state", str(tmp_path / "state"), "--store", str(tmp_path / "agent.db")]
    result = CliRunner().invoke(migrate_config, [str(config), "--region", "eu-west", *taken])
    assert result.exit_code == 0, result.output
    assert "us_east: stream NODES has no consumer SR_us.east, so nothing is taken over" in result.output
