"""The agent's complete settings file means what it says, and the smallest one means the same."""

import socket
from pathlib import Path

import pytest

from edge_agent.config.agent import AgentSettings, MonitorSettings, StoreSettings, UpstreamSettings, WatermarkSettings
from edge_agent.config.stream import (
    HeartbeatSettings,
    PolicySettings,
    SenderSettings,
    SourceSettings,
    StreamSettings,
    TargetSettings,
)
from edge_agent.core.intake import NameForm, SenderByHeader, SenderByPath, SenderBySubject, SenderBySubjectToken
from edge_agent.core.payload import DigestRule
from edge_agent.core.policy import Policy
from edge_agent.source.consumer import StartRule
from shared.identifiers import BlockId
from shared.instants import DAY, HOUR, MINUTE, SECOND
from shared.nats.settings import AuthSettings, TlsSettings
from shared.settings import Duration, FilePath, Size
from tests.support.agent.agent_file import COMPLETE, PATH, SMALLEST, parsed, with_line


def test_complete_file_is_read_word_for_word() -> None:
    assert parsed(COMPLETE) == AgentSettings(
        site="dub1",
        region="eu-west",
        name="dub1-a",
        upstream=UpstreamSettings(
            servers=("nats://127.0.0.1:5222",), domain="", max_bandwidth=Size(0), id_key_file=FilePath()
        ),
        store=StoreSettings(path=FilePath("/var/lib/muster-agent/agent.db"), max_outbox=Size(2 << 30)),
        watermark=WatermarkSettings(interval=Duration(10 * SECOND)),
        monitor=MonitorSettings(listen="127.0.0.1:8787", hosts=()),
        stream=(
            StreamSettings(
                name="nodes",
                mode="sample",
                source=SourceSettings(
                    servers=("nats://127.0.0.1:4222",),
                    domain="",
                    stream="REGISTRATION",
                    consumer="muster-dub1",
                    create_consumer=True,
                    filter_subject="",
                    start="all",
                    probe_subject="",
                    settle=Duration(5 * SECOND),
                ),
                sender=SenderSettings(json_path="sender"),
                policy=PolicySettings(
                    sample_interval=Duration(HOUR),
                    stale_after=Duration(12 * MINUTE),
                    retire_after=Duration(DAY),
                    blind_after=Duration(3 * MINUTE),
                    size_trigger=1024,
                    force_path="",
                    digest_paths=(),
                    digest_ignore=(),
                    max_age=Duration(0),
                ),
                target=TargetSettings(prefix="", remove=""),
                heartbeat=HeartbeatSettings(interval=Duration(0), subject=""),
            ),
        ),
    )


def test_complete_file_decides_by_these_thresholds() -> None:
    policy = parsed(COMPLETE).stream[0].policy
    assert policy.policy() == Policy(
        sample_interval=HOUR,
        stale_after=12 * MINUTE,
        retire_after=DAY,
        blind_after=3 * MINUTE,
        size_trigger=1024,
        max_age=0,
        revision=0,
    )
    assert policy.digest_rule() == DigestRule()


def test_complete_file_names_the_block_and_its_consumer() -> None:
    settings = parsed(COMPLETE)
    assert settings.agent_name == "dub1-a"
    assert settings.block_id(settings.stream[0]) == BlockId("eu-west", "dub1", "nodes")
    assert settings.consumer_of(settings.stream[0]) == "muster-dub1"
    assert settings.id_key_path == Path("/var/lib/muster-agent/agent.db.id-key")


def test_smallest_file_means_what_the_complete_one_writes_out_but_for_its_names() -> None:
    written_out = COMPLETE.replace('name = "dub1-a"', "").replace('consumer = "muster-dub1"', "")
    written_out = written_out.replace('blind_after = "3m"', "")
    assert parsed(SMALLEST) == parsed(written_out)


def test_agent_is_named_after_its_host() -> None:
    assert parsed(SMALLEST).agent_name == socket.gethostname().split(".")[0]


def test_consumer_is_named_after_site_and_block() -> None:
    settings = parsed(SMALLEST)
    assert settings.consumer_of(settings.stream[0]) == "muster-dub1-nodes"


def test_blind_after_is_a_quarter_of_stale_after() -> None:
    settings = parsed(SMALLEST + '[stream.policy]\nstale_after = "1m"')
    assert settings.stream[0].policy.policy().blind_after == 15 * SECOND


def test_secret_of_message_ids_may_be_a_file_elsewhere() -> None:
    assert (
        parsed(with_line("upstream", "id_key_file", 'id_key_file = "pair.key"')).id_key_path == PATH.parent / "pair.key"
    )


def test_bandwidth_is_a_size() -> None:
    assert parsed(with_line("upstream", "max_bandwidth", 'max_bandwidth = "250kB"')).upstream.max_bandwidth == 250_000


@pytest.mark.parametrize("listen", ["", "0.0.0.0:9000", "[::1]:8787", "localhost:1"])
def test_monitor_listens_anywhere_or_nowhere(listen: str) -> None:
    assert parsed(with_line("monitor", "listen", f'listen = "{listen}"')).monitor.listen == listen


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ('json_path = "facts.host.name"', SenderByPath("facts.host.name")),
        ('header = "X-Sender"', SenderByHeader("X-Sender")),
        ("subject_token = 4", SenderBySubjectToken(4)),
        ("subject = true", SenderBySubject()),
    ],
)
def test_sender_is_identified_in_one_of_four_ways(line: str, rule: object) -> None:
    assert parsed(with_line("stream.sender", "json_path", line)).stream[0].sender_rule() == rule


def test_names_may_be_normalized_in_each_way() -> None:
    assert parsed(with_line("stream.sender", "normalize", 'normalize = "hostname"')).stream[0].sender_rule() == (
        SenderByPath("sender", normalize=NameForm.HOSTNAME)
    )


@pytest.mark.parametrize(
    ("start", "rule"),
    [
        ("all", StartRule("all")),
        ("new", StartRule("new")),
        ("sequence:100", StartRule("sequence", 100)),
        ("time:2026-01-31T00:00:00Z", StartRule("time", 1_769_817_600 * SECOND)),
        ("delta:1h", StartRule("delta", HOUR)),
    ],
)
def test_first_read_begins_in_one_of_five_ways(start: str, rule: StartRule) -> None:
    assert parsed(with_line("stream.source", "start", f'start = "{start}"')).stream[0].source.start_rule() == rule


def test_digest_covers_what_is_chosen() -> None:
    text = with_line("stream.policy", "digest_paths", 'digest_paths = ["*"]').replace(
        "digest_ignore = []", 'digest_ignore = ["time"]'
    )
    assert parsed(text).stream[0].policy.digest_rule() == DigestRule(("*",), ("time",))


@pytest.mark.parametrize("table", ["upstream", "stream.source"])
def test_both_connections_take_secrets_as_files(table: str) -> None:
    auth, tls = f'[{table}.auth]\nnkey_seed_file = "site.nk"', f'[{table}.tls]\nca = "ca.pem"\nhandshake_first = true'
    settings = parsed(f"{COMPLETE}\n{auth}\n{tls}")
    connection = settings.upstream if table == "upstream" else settings.stream[0].source
    assert connection.auth == AuthSettings(nkey_seed_file=FilePath(PATH.parent / "site.nk"))
    assert connection.tls == TlsSettings(ca=FilePath(PATH.parent / "ca.pem"), handshake_first=True)
