"""Whatever is wrong in an agent's settings file is told in one line: file, key, what is wrong, what the key means."""

import re

import pytest

from tests.support.agent.agent_file import COMPLETE, complaint, parsed, with_line

DIGITS = "9" * 5_000
TOKEN = "use 1 to 64 of A-Z a-z 0-9 _ -"
SOURCE = "(the stream to read)"
STARTS = f"write all, new, sequence:100, time:2026-01-31T00:00:00Z or delta:1h {SOURCE}"
SENDERS = "exactly one of json_path, header, subject_token, subject is needed, found"
TOO_LATE = "by a second or more, or every pause counts as blind"
POLICY = "(when to forward, when a sender is stale)"
CONSUMER = "name of the durable consumer; default: muster-<site>-<block>"
SERVERS = 'servers of one cluster, such as ["nats://nats.example:4222"]'


def place(table: str, key: str) -> str:
    """Name a key as errors do: a block by its number."""
    return f"{re.sub('^stream', 'stream[0]', table)}.{key}".lstrip(".")


@pytest.mark.parametrize(
    ("table", "key", "line", "meaning"),
    [
        ("", "site", 'sight = "dub1"', "the site's name, a subject token"),
        ("upstream", "max_bandwidth", 'max_bandwith = "1MB"', "bytes per second, 0: no limit"),
        ("store", "path", 'pth = "a.db"', "the agent's SQLite file"),
        ("watermark", "interval", 'intervall = "1s"', "how often a watermark is made"),
        ("monitor", "listen", 'listn = ""', 'host:port of /metrics and /healthz; "": off'),
        ("stream", "mode", 'mod = "sample"', "sample, copy or relay"),
        ("stream.source", "consumer", 'consumr = "a"', CONSUMER),
        ("stream.sender", "json_path", 'jsonpath = "sender"', "keys joined by dots, to a text in the registration"),
        ("stream.policy", "stale_after", 'stale_afer = "12m"', "silence after which a sender is stale"),
        ("stream.target", "prefix", 'prefx = ""', "publish below this prefix; empty: the site's own subjects"),
        ("stream.heartbeat", "subject", 'subjekt = ""', "on which subject"),
    ],
)
def test_unknown_key_is_named_with_the_nearest_and_its_meaning(table: str, key: str, line: str, meaning: str) -> None:
    said = f"there is no such key, did you mean {key}? ({meaning})"
    assert complaint(with_line(table, key, line)) == f"{place(table, line.split(maxsplit=1)[0])}: {said}"


@pytest.mark.parametrize(
    ("table", "key", "line", "said"),
    [
        ("watermark", "interval", 'every = "1s"', "watermark.every: there is no such key; known here: interval"),
        ("monitor", "listen", 'port = "8787"', "monitor.port: there is no such key; known here: hosts, listen"),
        (
            "stream",
            "mode",
            'stale_after = "12m"',
            "stream[0].stale_after: there is no such key here, it belongs to [stream.policy]",
        ),
        (
            "store",
            "path",
            'listen = "127.0.0.1:8787"',
            "store.listen: there is no such key here, it belongs to [monitor]",
        ),
    ],
)
def test_unknown_key_like_no_other_is_told_its_place_or_what_there_is(
    table: str, key: str, line: str, said: str
) -> None:
    assert complaint(with_line(table, key, line)) == said


@pytest.mark.parametrize(
    ("table", "key", "said"),
    [
        ("", "site", "site: is required, but missing (the site's name, a subject token)"),
        ("", "region", "region: is required, but missing (the region's name, a subject token)"),
        ("upstream", "servers", f"upstream.servers: is required, but missing ({SERVERS})"),
        ("stream", "name", "stream[0].name: is required, but missing (the block's name, a subject token)"),
        ("stream.source", "servers", f"stream[0].source.servers: is required, but missing ({SERVERS})"),
        ("stream.source", "stream", "stream[0].source.stream: is required, but missing (name of the stream to read)"),
    ],
)
def test_missing_key_is_named_with_its_meaning(table: str, key: str, said: str) -> None:
    assert complaint(with_line(table, key, "")) == said


@pytest.mark.parametrize(
    ("table", "key", "value", "what", "meaning"),
    [
        ("", "site", "5", "expected text in quotes, found a whole number", "the site's name, a subject token"),
        ("upstream", "servers", '"nats://a"', "expected a list in [ ], found text in quotes", SERVERS),
        ("upstream", "servers", "[]", "expected a list in [ ] of length >= 1", SERVERS),
        (
            "upstream",
            "max_bandwidth",
            '"fast"',
            "not a size: 'fast', write for example 1024, 500MB or 2GiB",
            "bytes per second, 0: no limit",
        ),
        (
            "watermark",
            "interval",
            "10",
            'expected a duration in quotes such as "12m", found 10',
            "how often a watermark is made",
        ),
        (
            "monitor",
            "listen",
            "8787",
            "expected text in quotes, found a whole number",
            'host:port of /metrics and /healthz; "": off',
        ),
        ("stream", "mode", '"sampel"', "invalid enum value 'sampel'", "sample, copy or relay"),
        (
            "stream.source",
            "create_consumer",
            '"no"',
            "expected true or false, found text in quotes",
            "create the consumer where it is missing",
        ),
        (
            "stream.policy",
            "stale_after",
            '"12 minutes"',
            "not a duration: '12 minutes', write for example 90s, 12m, 1h30m or 7d",
            "silence after which a sender is stale",
        ),
        (
            "stream.policy",
            "size_trigger",
            "-1",
            "expected a whole number >= 0",
            "forward when the size moved by this many bytes; 0: off",
        ),
        (
            "stream.policy",
            "digest_paths",
            '"*"',
            "expected a list in [ ], found text in quotes",
            'forward when these change; ["*"]: all',
        ),
    ],
)
def test_value_of_a_wrong_type_is_told_from_the_right_one(
    table: str, key: str, value: str, what: str, meaning: str
) -> None:
    assert complaint(with_line(table, key, f"{key} = {value}")) == f"{place(table, key)}: {what} ({meaning})"


@pytest.mark.parametrize(
    ("table", "key", "value", "said"),
    [
        ("", "site", "dub.1", f"the site 'dub.1' is not usable in a subject: {TOKEN}"),
        ("", "region", "eu west", f"the region 'eu west' is not usable in a subject: {TOKEN}"),
        ("", "site", "", f"the site '' is not usable in a subject: {TOKEN}"),
        (
            "stream",
            "name",
            "a.b",
            f"stream[0]: the block's name 'a.b' is not usable in a subject: {TOKEN} (what to read)",
        ),
        (
            "stream.source",
            "stream",
            "REG.*",
            f"stream[0].source: the stream 'REG.*' is not usable in a subject: {TOKEN} {SOURCE}",
        ),
        (
            "stream.source",
            "consumer",
            "a b",
            f"stream[0].source: the consumer 'a b' is not usable in a subject: {TOKEN} {SOURCE}",
        ),
    ],
)
def test_name_that_cannot_stand_in_a_subject_is_refused(table: str, key: str, value: str, said: str) -> None:
    assert complaint(with_line(table, key, f'{key} = "{value}"')) == said


@pytest.mark.parametrize(
    ("stale_after", "blind_after", "said"),
    [
        ("0s", "3m", f"stream[0].policy: sample_interval and stale_after must be longer than 0s {POLICY}"),
        ("24h", "3m", f"stream[0].policy: stale_after (1d) must be shorter than retire_after (1d) {POLICY}"),
        (
            "12m",
            "0s",
            (
                "stream[0].policy: blind_after must be longer than 0s: without it, it is a quarter of stale_after "
                f"{POLICY}"
            ),
        ),
        ("12m", "6m", f"stream[0].policy: blind_after (6m) must be shorter than half of stale_after (12m) {POLICY}"),
        (
            "12m",
            "5s",
            f"stream[0]: source.settle (5s) must be shorter than policy.blind_after (5s) {TOO_LATE} (what to read)",
        ),
    ],
)
def test_thresholds_that_contradict_each_other_are_refused(stale_after: str, blind_after: str, said: str) -> None:
    text = COMPLETE.replace('stale_after = "12m"', f'stale_after = "{stale_after}"')
    assert complaint(text.replace('blind_after = "3m"', f'blind_after = "{blind_after}"')) == said


@pytest.mark.parametrize(("stale_after", "blind_after"), [("23h59m", "3m"), ("12m", "359s"), ("12m", "6s")])
def test_thresholds_that_barely_agree_are_taken(stale_after: str, blind_after: str) -> None:
    text = COMPLETE.replace('stale_after = "12m"', f'stale_after = "{stale_after}"')
    parsed(text.replace('blind_after = "3m"', f'blind_after = "{blind_after}"'))


@pytest.mark.parametrize(
    ("table", "key", "value", "said"),
    [
        ("store", "max_outbox", "1023KiB", "store: max_outbox must be at least 1MiB (the agent's file)"),
        ("watermark", "interval", "0s", "watermark: interval must be longer than 0s (how often the agent vouches)"),
        (
            "stream.policy",
            "sample_interval",
            "0s",
            f"stream[0].policy: sample_interval and stale_after must be longer than 0s {POLICY}",
        ),
    ],
)
def test_value_that_is_too_small_is_refused(table: str, key: str, value: str, said: str) -> None:
    assert complaint(with_line(table, key, f'{key} = "{value}"')) == said


def test_digest_ignore_alone_is_refused() -> None:
    assert complaint(with_line("stream.policy", "digest_ignore", 'digest_ignore = ["time"]')) == (
        "stream[0].policy: digest_ignore without digest_paths has no effect: set digest_paths,"
        f' for example to ["*"] {POLICY}'
    )


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("", "none"),
        ("subject_token = 0", "none"),
        ('json_path = "a"\nheader = "b"', "json_path and header"),
        ("subject_token = 4\nsubject = true", "subject_token and subject"),
    ],
)
def test_sender_needs_exactly_one_rule(lines: str, found: str) -> None:
    said = f"stream[0].sender: {SENDERS} {found} (what identifies a sender)"
    assert complaint(with_line("stream.sender", "json_path", lines)) == said


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("yesterday", f"start 'yesterday' is not known: {STARTS}"),
        ("", f"start '' is not known: {STARTS}"),
        ("all:5", f"start 'all:5' is not known: {STARTS}"),
        ("new:", f"start 'new:' is not known: {STARTS}"),
        ("sequence:0", f"start 'sequence:0' is not known: {STARTS}"),
        (f"sequence:{DIGITS}", f"start 'sequence:{DIGITS}' is not known: {STARTS}"),
        ("sequence:first", f"start 'sequence:first' is not known: {STARTS}"),
        ("time:today", f"start: not an instant: 'today', write RFC 3339, for example 2026-01-31T00:00:00Z {SOURCE}"),
        ("delta:1", f"start: not a duration: '1', write for example 90s, 12m, 1h30m or 7d {SOURCE}"),
    ],
)
def test_start_that_is_no_start_is_refused(start: str, said: str) -> None:
    text = with_line("stream.source", "start", f'start = "{start}"')
    assert complaint(text) == f"stream[0].source: {said}"


@pytest.mark.parametrize(
    ("table", "place"),
    [("upstream", "upstream: {} (the region's servers)"), ("stream.source", f"stream[0].source: {{}} {SOURCE}")],
)
@pytest.mark.parametrize("secret", ["me:hidden", "hidden"])
def test_secret_in_an_address_is_refused_and_not_repeated(table: str, place: str, secret: str) -> None:
    text = with_line(table, "servers", f'servers = ["nats://{secret}@nats.example"]')
    refused = "the server 'nats.example' carries a secret, secrets are files: use the auth table"
    assert complaint(text) == place.format(refused)


@pytest.mark.parametrize(
    "listen",
    ["8787", ":8787", "127.0.0.1", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:65536", f"a:{DIGITS}", "a..b:8787"],
)
def test_address_to_listen_at_needs_host_and_port(listen: str) -> None:
    said = f"monitor: listen '{listen}' is not host:port (metrics and health over HTTP)"
    assert complaint(with_line("monitor", "listen", f'listen = "{listen}"')) == said


@pytest.mark.parametrize("name", ["", "dub1-a:8787", "http://dub1-a", "*.example", "a..b"])
def test_a_name_that_the_host_is_asked_by_has_neither_port_nor_gaps(name: str) -> None:
    said = f"hosts: '{name}' is not a host's name: write it whole, without a port"
    assert complaint(with_line("monitor", "hosts", f'hosts = ["{name}"]')) == (
        f"monitor: {said} (metrics and health over HTTP)"
    )


@pytest.mark.parametrize(
    ("line", "what"), [("", "is required, but missing"), ("stream = []", "expected a list in [ ] of length >= 1")]
)
def test_no_block_at_all_is_refused(line: str, what: str) -> None:
    assert complaint(f"{line}\n{COMPLETE[: COMPLETE.index('[[stream]]')]}") == f"stream: {what} (what to read)"


@pytest.mark.parametrize(
    ("table", "key", "value", "path"),
    [
        ("stream.sender", "json_path", '"a..b"', "a..b"),
        ("stream.policy", "force_path", '"."', "."),
        ("stream.policy", "digest_paths", '["data."]', "data."),
    ],
)
def test_path_with_an_empty_key_is_refused(table: str, key: str, value: str, path: str) -> None:
    assert f"{key} {path!r} has an empty key in it: write keys joined by single dots" in complaint(
        with_line(table, key, f"{key} = {value}")
    )


@pytest.mark.parametrize("subject", ["registration.>", "registration.*", "a b", "a..b", "$SYS.probe"])
def test_probe_subject_that_cannot_be_published_on_is_refused(subject: str) -> None:
    said = complaint(with_line("stream.source", "probe_subject", f'probe_subject = "{subject}"'))
    assert f"probe_subject {subject!r} cannot be published on: write tokens and single dots" in said


@pytest.mark.parametrize("subject", ["a b", "a..b", "registration.>.a"])
def test_filter_that_cannot_be_read_on_is_refused(subject: str) -> None:
    said = complaint(with_line("stream.source", "filter_subject", f'filter_subject = "{subject}"'))
    assert f"filter_subject {subject!r} cannot be read on: write tokens joined by single dots" in said


def test_probe_that_the_filter_would_not_let_through_is_refused() -> None:
    text = with_line("stream.source", "probe_subject", 'probe_subject = "registration.probe"')
    text = text.replace('filter_subject = ""', 'filter_subject = "registration.nodes.>"')
    assert (
        "source.probe_subject 'registration.probe' does not pass source.filter_subject 'registration.nodes.>'"
        in complaint(text)
    )
