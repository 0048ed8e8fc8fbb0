"""Content of registrations that the doctor compares: whether ``digest_paths`` names what seldom changes."""

import base64
import gzip
import json
from pathlib import Path

import pytest

from tests.support.agent.agent_stage import agent_stage
from tests.support.agent.operated_agent import OperatedAgent


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("data.zcontent.facts", []),
        ("data.zcontent", ["digest_paths names changed in 12 of 12 registrations: nearly all of them are forwarded"]),
        ("data.facts", ["digest_paths names nothing in 12 registrations: no change in them is forwarded at once"]),
    ],
)
async def test_content_that_always_changes_or_is_never_there_is_named(
    tmp_path: Path, path: str, expected: list[str]
) -> None:
    """Choria's inventory has facts, and statistics that are new each time; its file_content has facts alone."""
    async with agent_stage(tmp_path) as stage:
        written = stage.config_path.read_text()
        stage.config_path.write_text(written.replace("[stream.policy]", f'[stream.policy]\ndigest_paths = ["{path}"]'))
        for number in range(7):
            inventory = gzip.compress(b'{"facts": {"os": "el9"}, "status": {"uptime": %d}}' % number)
            data = json.dumps({"zcontent": base64.b64encode(inventory).decode()})
            bodies = (json.dumps({"sender": sender, "data": data}).encode() for sender in ("a", "b"))
            await stage.site.publish(*bodies)
        _, output, _ = await OperatedAgent(stage.config_path).command("doctor", "--json")
    texts = [each["text"] for each in json.loads(output)["findings"] if "digest_paths" in each["text"]]
    assert [text.removeprefix("the content that ") for text in texts] == expected
