"""What stream-replicator's documents show becomes settings that mean the same, and nothing is left out unsaid."""

import json
import re
from pathlib import Path

import msgspec
import pytest

from edge_agent.config.agent import AgentSettings
from edge_agent.migration.peer import MigrationRefused, PeerHeartbeats, PeerSettings, PeerStream, duration
from edge_agent.migration.settings import Migrated, migrate
from shared.instants import DAY, HOUR, MINUTE, SECOND

PATH = Path("/etc/muster-agent/agent.toml")
REGISTRATION = """
name: US-EAST
monitor_port: 9100
loglevel: info
state_store: /var/lib/stream-replicator
logfile: /var/log/stream-replicator.log
streams:
  - stream: CHORIA_REGISTRATION
    source_url: nats://choria.us-east.example.net:4222
    target_url: nats://nats.central.example.net:4222
    inspect_field: sender
    inspect_duration: 1h
    warn_duration: 11m
    size_trigger: 1024
    tls:
       ca: /path/to/ca.pem
       key: /path/to/key.pem
       cert: /path/to/cert.pem
    advisory:
       subject: choria.stream.input.registration_advisories
       reliable: true

  - stream: CHORIA_REGISTRATION_ADVISORIES
    source_url: nats://choria.us-east.example.net:4222
    target_url: nats://nats.central.example.net:4222
    tls:
       ca: /path/to/ca.pem
       key: /path/to/key.pem
       cert: /path/to/cert.pem
"""


def migrated(text: str, region: str = "eu-west") -> Migrated:
    return migrate(text.encode(), region, PATH)


def of_stream(**keys: object) -> Migrated:
    """Migrate a file with one stream that has these keys beside what every one needs."""
    stream = {"stream": "NODES", "source_url": "nats://site", "target_url": "nats://region", **keys}
    return migrated(json.dumps({"name": "dub1", "streams": [stream]}))


def settings_of(**keys: object) -> AgentSettings:
    return of_stream(**keys).settings


SAMPLED = {"inspect_field": "sender", "inspect_duration": "1h"}


def test_the_documented_example_of_choria_registration_means_the_same() -> None:
    found = migrated(REGISTRATION)
    settings = found.settings
    assert (settings.site, settings.region) == ("US-EAST", "eu-west")
    assert settings.upstream.servers == ("nats://nats.central.example.net:4222",)
    assert settings.upstream.tls is not None
    assert settings.upstream.tls.ca == "/path/to/ca.pem"
    assert settings.monitor.listen == "0.0.0.0:9100"
    nodes, advisories = settings.stream
    assert (nodes.mode, nodes.source.stream) == ("sample", "CHORIA_REGISTRATION")
    assert nodes.sender is not None
    assert nodes.sender.json_path == "sender"
    policy = nodes.policy
    assert (policy.sample_interval, policy.stale_after, policy.retire_after) == (HOUR, 11 * MINUTE, HOUR)
    assert policy.size_trigger == 1024
    assert (advisories.mode, advisories.source.stream) == ("copy", "CHORIA_REGISTRATION_ADVISORIES")
    assert [remark.partition(":")[0] for remark in found.remarks] == [
        "streams[0].advisory",
        "streams[1]",
        "state_store",
        "monitor_port",
        "logfile",
    ]
    assert found.blocks[0].consumer == "SR_US-EAST"
    assert found.blocks[0].state_file == "CHORIA_REGISTRATION_US-EAST.json"


def test_json_is_read_as_yaml_is() -> None:
    assert migrated(msgspec.json.encode(msgspec.yaml.decode(REGISTRATION)).decode()) == migrated(REGISTRATION)


@pytest.mark.parametrize(
    ("keys", "place", "value"),
    [
        ({"filter_subject": "a.>"}, "stream.source.filter_subject", "a.>"),
        ({"start_at_end": True, "start_sequence": 4}, "stream.source.start", "new"),
        ({"start_sequence": 1024}, "stream.source.start", "sequence:1024"),
        ({"start_delta": "1w"}, "stream.source.start", "delta:7d"),
        ({"start_time": "2026-01-02T15:04:05+01:00"}, "stream.source.start", "time:2026-01-02T15:04:05+01:00"),
        ({"max_age": "1h"}, "stream.policy.max_age", HOUR),
        ({"target_subject_prefix": "FLEET"}, "stream.target.prefix", "FLEET"),
        ({"target_subject_remove": "NODE"}, "stream.target.remove", "NODE"),
        ({**SAMPLED, "inspect_force_field": "data.force"}, "stream.policy.force_path", "data.force"),
        (SAMPLED, "stream.policy.stale_after", 30 * MINUTE),
        (SAMPLED, "stream.policy.size_trigger", 0),
        ({**SAMPLED, "warn_duration": "2h"}, "stream.policy.retire_after", 4 * HOUR),
        ({"inspect_header": "Node", "inspect_duration": "1h"}, "stream.sender.header", "Node"),
        ({"inspect_subject_token": 2, "inspect_duration": "1h"}, "stream.sender.subject_token", 2),
        ({"inspect_subject_token": -1, "inspect_duration": "1h"}, "stream.sender.subject", True),
        ({"source_url": "nats://a:1, nats://b:2"}, "stream.source.servers", ("nats://a:1", "nats://b:2")),
        ({"source_url": "tls://a?credentials=/c"}, "stream.source.auth.credentials_file", "/c"),
        ({"source_url": "nats://a?tls_handshake_first=true"}, "stream.source.tls.handshake_first", True),
        ({"source_url": "nats://u:p@a"}, "stream.source.auth.password_file", "/etc/muster-agent/source.password"),
        ({"target_url": "nats://t@a"}, "upstream.auth.token_file", "/etc/muster-agent/target.token"),
        ({"source_tls": {"ca": "/a"}, "tls": {"ca": "/b"}}, "stream.source.tls.ca", "/a"),
        ({"source_tls": {"ca": "/a"}, "tls": {"ca": "/b"}}, "upstream.tls.ca", "/b"),
        ({"name": "us.east"}, "stream.name", "us_east"),
    ],
)
def test_a_key_means_the_same(keys: dict[str, object], place: str, value: object) -> None:
    found: object = settings_of(**keys)
    for name in place.split("."):
        found = getattr(found, name)
        found = found[0] if name == "stream" and isinstance(found, tuple) else found
    assert found == value


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"target_stream": "ALL"}, "streams[0].target_stream: no counterpart"),
        ({"target_stream": "ALL", "target_subject_prefix": "A"}, "go to the region's stream that has the subject A.>"),
        ({"advisory": {"subject": "adv"}, **SAMPLED}, "nothing is published on adv any more"),
        ({"no_target_create": True}, "streams[0].no_target_create: no counterpart"),
        ({"ephemeral": True}, "streams[0].ephemeral: no counterpart"),
        ({"target_initiated": True}, "streams[0].target_initiated: no counterpart"),
        ({"leader_election_name": "A"}, "write [pair]"),
        ({"advisory": {"subject": "a"}, **SAMPLED}, "streams[0].advisory: no counterpart"),
        ({"target_subject_prefix": "A", **SAMPLED}, "streams[0].target_subject_prefix: no counterpart"),
        ({"inspect_duration": "1h"}, "streams[0].inspect_duration: without effect there too"),
        (
            {"source_choria": {"seed_file": "s", "jwt_file": "j"}},
            "lets in certificates of its CA, [stream.source] tls =",
        ),
        ({"target_choria": {"seed_file": "s"}}, "lets in certificates of its CA, [upstream] tls ="),
        ({"source_url": "nats://a?insecure=true"}, "insecure has no counterpart"),
        ({"source_url": "nats://a?connect_timeout=2s"}, "connect_timeout has no counterpart"),
        ({"source_url": "nats://a?jwt=j&nkey=n"}, "jwt and nkey: write both into one file"),
        ({"source_url": "nats://u:s3cret@a"}, "put it into /etc/muster-agent/source.password"),
        ({**SAMPLED, "inspect_field": "a.#.b"}, "correct sender.json_path"),
        ({"inspect_header": "Node", "inspect_duration": "1h"}, "copied everything; the agent samples"),
        ({"inspectfield": "x"}, "streams[0].inspectfield: unknown to stream-replicator too"),
    ],
)
def test_what_has_no_counterpart_is_said_in_one_line(keys: dict[str, object], said: str) -> None:
    found = of_stream(**keys)
    assert any(said in remark for remark in found.remarks), found.remarks
    assert not any("\n" in remark for remark in found.remarks)
    assert "s3cret" not in found.text + "".join(found.remarks)


def test_every_key_of_the_peers_is_set_or_spoken_of() -> None:
    """Whoever adds a key to what is read must say what becomes of it."""
    source = "".join(path.read_text() for path in Path("edge_agent/migration").glob("[cs]*.py"))
    keys = {name for model in (PeerStream, PeerHeartbeats, PeerSettings) for name in model.__struct_fields__}
    sides = {f"{side}_{what}" for side in ("source", "target") for what in ("tls", "choria")}
    assert [key for key in sorted(keys - sides) if not re.search(rf"\b{key}\b", source)] == []


def test_a_stream_for_another_target_is_left_to_another_agent() -> None:
    stream = {"stream": "A", "source_url": "nats://site", "target_url": "nats://region"}
    other = {"stream": "B", "source_url": "nats://site", "target_url": "nats://elsewhere"}
    found = migrated(json.dumps({"name": "dub1", "streams": [stream, other]}))
    assert [block.source.stream for block in found.settings.stream] == ["A"]
    assert "streams[1].target_url: not the first stream's" in "\n".join(found.remarks)


def test_a_heartbeat_goes_into_the_block_of_its_server() -> None:
    stream = {"stream": "A", "source_url": "nats://site", "target_url": "nats://region"}
    beats = {"url": "nats://site", "interval": "10s", "subjects": [{"subject": "beat.a"}, {"subject": "beat.b"}]}
    found = migrated(json.dumps({"name": "dub1", "streams": [stream], "heartbeats": beats}))
    heartbeat = found.settings.stream[0].heartbeat
    assert (heartbeat.interval, heartbeat.subject) == (10 * SECOND, "beat.a")
    assert "heartbeats.subjects[1]: no counterpart" in "\n".join(found.remarks)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: [", "it is no configuration of stream-replicator"),
        ("just words", "it is no configuration of stream-replicator"),
        ("name: 1", "Expected `str"),
        ("streams: []", "name: is missing"),
        ("name: a", "streams: there are none"),
        ("{name: a, streams: [{source_url: nats://a, target_url: nats://b}]}", "streams[0].stream: is missing"),
        ("{name: a, streams: [{stream: S, target_url: nats://b}]}", "streams[0].source_url: is missing"),
        ("{name: a, streams: [{stream: S, source_url: 'ws://a', target_url: nats://b}]}", "not a server: 'ws://a'"),
    ],
)
def test_what_cannot_be_migrated_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(MigrationRefused) as refused:
        migrated(text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("1w", 7 * DAY),
        ("0.1d", 2 * HOUR),
        ("1M", 30 * DAY),
        ("2Y", 730 * DAY),
        ("1h30m", 90 * MINUTE),
        ("1.5s", 1500000),
    ],
)
def test_durations_are_read_as_the_peer_reads_them(text: str, micros: int) -> None:
    assert duration(text, "max_age") == micros
