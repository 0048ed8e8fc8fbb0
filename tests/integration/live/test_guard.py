"""Who may ask: names, tokens, origins, and what is asked for badly. Each against the running service."""

import hashlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.datastructures import Headers

from aggregator.config import LiveSettings
from aggregator.live.service.guard import HEADERS, Guard
from aggregator.live.service.server import MOST_READERS
from shared.instants import MINUTE
from shared.settings import FilePath
from tests.integration.live.test_serve import now
from tests.support.lakehouse.hub import Block, Hub
from tests.support.live.live_service import DEADLINE, LiveService, serving
from tests.support.topology.aggregator_command import muster

READ, OPERATE = "a token that reads", "a token that operates"
JSON = {"Content-Type": "application/json"}
ORDER = {"kind": "retire", "author": "ann", "region": "eu-west", "site": "dub1", "block": "nodes", "senders": ["web1"]}


def wait_for(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < ends_at
        time.sleep(0.05)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with Hub(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture(scope="module")
def guarded(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    """Run a service that asks for tokens."""
    directory = tmp_path_factory.mktemp("guarded")
    for name, token in (("read", READ), ("operate", OPERATE)):
        (directory / name).write_text(f"# whose it is\n{hashlib.sha256(token.encode()).hexdigest()}  {name}\n")
    tokens = 'read_token_file = "read"\noperate_token_file = "operate"\n'
    others = 'hosts = ["Muster.example.net"]\nunknown_after = "1h"\n'
    with serving(directory, hub.connection, tokens + others) as service:
        wait_for(lambda: service.request("/readyz", headers=bearer(READ)).status == 200)
        yield service


def status(service: LiveService, path: str, headers: Mapping[str, str], body: object = None) -> int:
    encoded = None if body is None else json.dumps(body).encode()
    answer = service.request(path, method="GET" if body is None else "POST", headers=headers, body=encoded)
    assert {name: answer.headers[name.lower()] for name in HEADERS} == HEADERS
    return answer.status


def test_reading_needs_a_token_and_operating_one_with_that_right(guarded: LiveService) -> None:
    fleet, operations = "/api/v1/fleet", "/api/v1/operations"
    assert status(guarded, fleet, {}) == 401
    assert status(guarded, fleet, bearer("a wrong one")) == 401
    assert status(guarded, fleet, bearer(hashlib.sha256(READ.encode()).hexdigest())) == 401
    assert status(guarded, fleet, bearer(READ)) == status(guarded, fleet, bearer(OPERATE)) == 200
    assert status(guarded, "/metrics", {}) == 401
    assert status(guarded, "/healthz", {}) == 200
    assert status(guarded, operations, JSON | bearer(READ), ORDER) == 403
    # The right is there; this hub has no policy to say it through.
    assert status(guarded, operations, JSON | bearer(OPERATE), ORDER) == 409


def test_a_browser_keeps_its_token_in_a_cookie_that_no_script_reads(guarded: LiveService) -> None:
    session = "/api/v1/session"
    assert status(guarded, session, JSON, {"token": "a wrong one"}) == 401
    answer = guarded.request(session, method="POST", headers=JSON, body=json.dumps({"token": READ}).encode())
    cookie = answer.headers["set-cookie"]
    assert answer.json == {"right": "read"}
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert status(guarded, "/api/v1/fleet", {"Cookie": cookie.partition(";")[0]}) == 200
    assert guarded.request("/", headers={"Accept": "text/html"}).headers["location"] == "/login"
    asked = guarded.request("/sites/%C3%A9/b%20c?region=eu%26x&search=y", headers={"Accept": "text/html"})
    assert unquote(asked.headers["location"]) == "/login?next=/sites/%C3%A9/b%20c?region=eu%26x&search=y"


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "a@127.0.0.1", "[::1", "evil.example:80"]
)
def test_a_name_that_is_not_the_services_is_refused(guarded: LiveService, host: str) -> None:
    assert status(guarded, "/api/v1/fleet", {"Host": host} | bearer(READ)) == 421


@pytest.mark.parametrize("host", ["localhost", "[::1]:8480", "muster.example.net", "MUSTER.example.net:443"])
def test_the_services_own_names_are_taken(guarded: LiveService, host: str) -> None:
    assert status(guarded, "/api/v1/fleet", {"Host": host} | bearer(READ)) == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_what_another_site_has_a_browser_send_is_refused(guarded: LiveService, headers: dict[str, str]) -> None:
    own = {"Origin": f"http://127.0.0.1:{guarded.port}", "Sec-Fetch-Site": "same-origin"}
    asked = JSON | bearer(OPERATE)
    assert status(guarded, "/api/v1/operations", asked | own, ORDER) == 409
    assert status(guarded, "/api/v1/operations", asked | own | headers, ORDER) == 403


def test_what_is_asked_for_badly_is_refused_in_one_line(guarded: LiveService) -> None:
    read, operate = bearer(READ), bearer(OPERATE)
    for path in ("advisories", "incidents"):
        assert status(guarded, f"/api/v1/{path}?before={1 << 63}", read) == 400
    others = ("limit=0", "limit=x", "limit=100000", "state=dead", "nothing=1", "after=%00", "after=WyJhIl0")
    too_much = f"offset={1 << 63}", f"search={'x' * 60_000}", "search=%00web"
    for query in (*others, *too_much):
        answer = guarded.request(f"/api/v1/senders?{query}", headers=read)
        assert (answer.status, list(answer.json)) == (400, ["error"]), query
        assert "Traceback" not in answer.json["error"]
    assert status(guarded, "/api/v1/senders/eu-west/nowhere/nodes/x", read) == 404
    assert status(guarded, "/api/v1/sites/eu-west/nowhere", read) == 404
    assert status(guarded, "/api/v1/sites?after=%00", read) == status(guarded, "/api/v1/sites?sort=x", read) == 400
    answer = guarded.request("/api/v1/sites", method="PUT", headers=read)
    assert (answer.status, sorted(answer.headers["allow"].split(", "))) == (405, ["GET", "HEAD"])
    operations = "/api/v1/operations"
    assert status(guarded, operations, {"Content-Type": "text/plain"} | operate, ORDER) == 415
    assert status(guarded, operations, JSON | operate, ORDER | {"unknown": 1}) == 400
    assert status(guarded, operations, JSON | operate, ORDER | {"senders": []}) == 409
    assert status(guarded, operations, JSON | operate, ORDER | {"site": "a.b"}) == 409
    for instant in (1 << 62, 10**34):
        assert status(guarded, operations, JSON | operate, ORDER | {"started_at_us": instant}) == 400
    assert status(guarded, operations, JSON | operate, ORDER | {"why": "x" * (2 << 20)}) == 413


def test_hostile_names_come_back_as_they_are_and_are_found(hub: Hub, guarded: LiveService) -> None:
    names = ["<script>alert(1)</script>", "a/b?c#d%00", "\x1b[31mred\u202e", "x" * 1_024, "%_\\", "ü\n\t\"'"]
    block = Block("eu-west", "hostile")
    hub.publish([*(block.new(name, now() - MINUTE) for name in names), block.watermark(now() - 2 * MINUTE, now())])
    asked = "/api/v1/senders?site=hostile"
    wait_for(lambda: len(guarded.request(asked, headers=bearer(READ)).json["senders"]) == len(names))
    found = guarded.request(asked, headers=bearer(READ)).json["senders"]
    assert sorted(each["sender"] for each in found) == sorted(names)
    for name in names:
        asked = f"/api/v1/senders/eu-west/hostile/nodes/{quote(name, safe='')}"
        assert guarded.request(asked, headers=bearer(READ)).json["sender"]["sender"] == name
        found = guarded.request(f"/api/v1/senders?search={quote(name[:1_000], safe='')}", headers=bearer(READ)).json
        assert name in [each["sender"] for each in found["senders"]]


def test_the_description_names_every_path_and_type_there_is(guarded: LiveService) -> None:
    described = guarded.request("/api/v1/openapi.json", headers=bearer(READ)).json
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(described)))
    assert references <= set(described["components"]["schemas"])
    for path, methods in described["paths"].items():
        asked = methods.get("get", {"parameters": [{"required": True}]})["parameters"]
        if not any(each.get("required") for each in asked):
            assert status(guarded, path, bearer(READ)) == 200
    assert "/api/v1/senders/{region}/{site}/{block}/{sender}" in described["paths"]


ASKED_BY_DESCRIPTION = """
[parameters]
# Not every text is a place that an earlier answer ended at.
"query.after" = ""

[[operations]]
include-name = "POST /api/v1/operations"
# By JSON Schema 5.0 is an integer.
checks.positive_data_acceptance.enabled = false
"""


def test_what_the_description_allows_is_answered_so_and_what_it_does_not_is_refused(
    guarded: LiveService, tmp_path: Path
) -> None:
    config = tmp_path / "schemathesis.toml"
    config.write_text(ASKED_BY_DESCRIPTION)
    asked = [
        "run",
        f"http://127.0.0.1:{guarded.port}/api/v1/openapi.json",
        "--header",
        f"Authorization: Bearer {OPERATE}",
    ]
    cases = ["--phases", "coverage,fuzzing", "--max-examples", "8", "--continue-on-failure", "--no-color"]
    program = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config)]
    # Its last lines say the seed: --seed plays it again.
    found = subprocess.run([*program, *asked, *cases], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_metrics_are_read_by_prometheus_own_parser(hub: Hub, guarded: LiveService) -> None:
    text = guarded.request("/metrics", headers=bearer(READ)).body.decode()
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert found["muster_live_ready"].samples[0].value == 1
    assert {"muster_live_senders", "muster_live_sites", "muster_live_messages"} <= set(found)


def test_many_who_ask_at_once_open_few_files(guarded: LiveService) -> None:
    with ThreadPoolExecutor(50) as askers:
        answers = list(askers.map(lambda _: status(guarded, "/api/v1/senders?search=x", bearer(READ)), range(200)))
    assert answers == [200] * 200
    files = Path(f"/proc/{guarded.process.pid}/fd").iterdir()
    assert sum(file.readlink().name == "live.db" for file in files) <= 1 + MOST_READERS


def live_settings(given: Mapping[str, object]) -> LiveSettings:
    return msgspec.convert(given, LiveSettings, dec_hook=lambda wanted, found: wanted(found))


@pytest.mark.parametrize("name", ["Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Proto", "X-Real-IP"])
def test_no_proxy_opens_a_service_that_asks_for_no_token(tmp_path: Path, name: str) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{hashlib.sha256(READ.encode()).hexdigest()}\n")
    scope = {"method": "GET", "path": "/api/v1/fleet", "client": ("127.0.0.1", 4711)}
    here = {"host": "127.0.0.1:8480"}
    opened = Guard(LiveSettings())
    assert opened.refusal(scope, Headers(here)) is None
    refusal = opened.refusal(scope, Headers(here | {name: "10.0.0.9"}))
    assert refusal is not None
    assert refusal[0] == 403
    assert "read_token_file" in refusal[1]
    guarded = Guard(LiveSettings(read_token_file=FilePath(tokens)))
    assert guarded.refusal(scope, Headers(here | {name: "10.0.0.9"} | bearer(READ))) is None


@pytest.mark.parametrize(
    ("forwarded", "address"),
    [
        (["192.0.2.7"], "192.0.2.7"),
        (["192.0.2.7:5678"], "192.0.2.7"),
        (["::ffff:192.0.2.7"], "192.0.2.7"),
        (["2001:db8:1:2::7"], "2001:db8:1:2"),
        (["[2001:db8:1:2::7]"], "2001:db8:1:2"),
        (["[2001:db8:1:2::7]:443"], "2001:db8:1:2"),
        (['"[2001:db8:1:2::7]:443"'], "2001:db8:1:2"),
        (["[2001:db8:1:2::7%eth0]:443"], "2001:db8:1:2"),
        (["198.51.100.1, 192.0.2.7:5678"], "192.0.2.7"),
        (["198.51.100.1", "192.0.2.7:5678"], "192.0.2.7"),
        ([], "127.0.0.1"),
        ([""], "127.0.0.1"),
        (["unknown"], "127.0.0.1"),
        (["_hidden:17"], "127.0.0.1"),
        (["[2001:db8::7"], "127.0.0.1"),
    ],
)
def test_streams_behind_a_proxy_count_for_the_address_that_it_names_or_for_itself(
    tmp_path: Path, forwarded: list[str], address: str
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{hashlib.sha256(READ.encode()).hexdigest()}\n")
    guard = Guard(LiveSettings(proxy="127.0.0.1", read_token_file=FilePath(tokens)))
    raw = [(b"x-forwarded-for", each.encode()) for each in forwarded]
    reader = guard.reader_of({"client": ("127.0.0.1", 4711)}, Headers(raw=raw))
    assert reader == ("", address)


async def test_an_address_that_is_open_to_others_needs_tls_or_a_proxy_and_tokens(tmp_path: Path) -> None:
    for given, lacking in (
        ({"listen": "0.0.0.0:8480"}, "tls_cert"),
        ({"listen": "[::]:8480", "proxy": "10.0.0.1"}, "read_token_file"),
        ({"proxy": "127.0.0.1"}, "proxy = '127.0.0.1' is open to others: name a read_token_file"),
        ({"listen": "[::1]:8480", "proxy": "10.0.0.1", "tls_cert": "a", "tls_key": "b"}, "read_token_file"),
        ({"hosts": ["muster.example.net"]}, r"hosts = \['muster.example.net'\] is open to others: name a read_token"),
        ({"listen": "localhost:8480", "hosts": ["127.0.0.2", "10.0.0.1"]}, r"hosts = \['10.0.0.1'\] is open"),
        ({"listen": "127.0.0.1"}, "address and a port"),
        ({"tls_cert": "a"}, "tls_key"),
    ):
        with pytest.raises(msgspec.ValidationError, match=lacking):
            live_settings(given)
    for given in ({}, {"hosts": ["localhost", "127.0.0.2", "[::1]"]}, {"proxy": "10.0.0.1", "read_token_file": "t"}):
        live_settings(given)
    config = tmp_path / "aggregator.toml"
    config.write_text(
        '[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = "x"\n[live]\nread_token_file = "t"\n'
    )
    (tmp_path / "t").write_text("a token, not its hash\n")
    answer = await muster("serve", "--config", config)
    assert answer.returncode == 1
    assert "write one SHA-256 in hex" in answer.stderr
    assert "a token" not in answer.stderr
    (tmp_path / "t").unlink()
    answer = await muster("serve", "--config", config)
    assert answer.stderr == f"muster-aggregator: {tmp_path / 't'}: cannot be read: no such file or directory\n"
