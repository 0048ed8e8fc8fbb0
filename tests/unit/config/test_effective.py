"""What check-config prints is what will be in effect: it can be read back, and means the same."""

from pathlib import Path

import pytest

from edge_agent.config.agent import AgentSettings
from edge_agent.config.effective import render_settings, toml_value
from shared.instants import DAY, HOUR, SECOND
from shared.nats.settings import TlsSettings
from shared.settings import Duration, parse_settings
from tests.support.agent.agent_file import COMPLETE, parsed

SMALLEST = """
site = "dub1"
region = "eu-west"
[upstream]
servers = ["nats://region.example:4222"]
[[stream]]
name = "nodes"
[stream.source]
servers = ["nats://site.example:4222"]
stream = "REGISTRATION"
[stream.sender]
json_path = "sender"
[[stream]]
name = "events"
mode = "copy"
[stream.source]
servers = ["nats://site.example:4222"]
stream = "EVENTS"
"""


@pytest.mark.parametrize("text", [COMPLETE, SMALLEST], ids=["complete", "smallest"])
def test_what_is_printed_reads_back_as_the_same_settings(text: str) -> None:
    printed = render_settings(parsed(text))
    again = parse_settings(printed, AgentSettings, Path("/elsewhere/agent.toml"))
    assert [line.partition(" #")[0].rstrip() for line in render_settings(again).splitlines()] == [
        line.partition(" #")[0].rstrip() for line in printed.splitlines()
    ]


def test_default_is_marked_and_what_is_derived_stands_with_its_value() -> None:
    lines = [" ".join(line.split()) for line in render_settings(parsed(SMALLEST)).splitlines()]
    assert {
        'site = "dub1"',
        'mode = "sample" # default',
        'consumer = "muster-dub1-nodes" # default',
        'consumer = "muster-dub1-events" # default',
        'blind_after = "3m" # default',
        'id_key_file = "/var/lib/muster-agent/agent.db.id-key" # default',
        "max_outbox = 2147483648 # default",
    } <= set(lines)
    assert 'mode = "copy"' in lines
    assert sum(line.startswith("max_age") for line in lines) == 2
    assert sum(line.startswith("size_trigger") for line in lines) == 1, "a copy does not go by it"
    assert "[upstream.auth]" not in lines


def test_table_whose_presence_says_something_is_written_though_nothing_stands_in_it() -> None:
    encrypted = SMALLEST.replace("[[stream]]", "[upstream.tls]\n[monitor]\nlisten = ''\n[[stream]]", 1).replace(
        "[stream.sender]", "[stream.source.tls]\n[stream.sender]", 1
    )
    settings = parsed(encrypted)
    again = parse_settings(render_settings(settings), AgentSettings, Path("/elsewhere/agent.toml"))
    assert (again.upstream.tls, again.monitor) == (TlsSettings(), settings.monitor)
    assert [block.source.tls for block in again.stream] == [TlsSettings(), None]


@pytest.mark.parametrize(
    ("duration", "text"),
    [(0, '"0s"'), (1, '"1us"'), (90 * SECOND, '"1m30s"'), (DAY + HOUR + 500_000, '"1d1h500ms"')],
)
def test_duration_is_written_exactly(duration: int, text: str) -> None:
    assert toml_value(Duration(duration)) == text
    assert Duration.of(text.strip('"')) == duration
