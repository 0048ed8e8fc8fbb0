"""A publish without responders has several causes; JetStream's API tells them apart, and so do the texts."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shared.embedded.server import EmbeddedNats, ServerSettings
from shared.nats.client import EdgeClient
from shared.nats.connection import AuthSettings, ConnectionSettings, LinkEvent, LinkState, connect
from shared.nats.jetstream_api import NO_STREAM_ANSWERS, ApiError, request_json
from shared.nats.stream_causes import QuietAsk, explain_unanswered
from shared.settings import FilePath
from tests.support.nats.embedded_cluster import EmbeddedCluster, Member
from tests.support.waiting import until

SUBJECT = "fleet.eu-west.dub1.nodes.watermark"
ELECTION = 120.0
NO_AUTH = AuthSettings()
USERS = """
accounts {
  A { jetstream: enabled, users: [ {user: a, password: p}, {user: mute, password: p, permissions: {
        publish: {deny: ["$JS.API.STREAM.NAMES"]}}}, {user: site, password: p, permissions: {
        publish: {deny: ["$JS.API.STREAM.INFO.>"]}}} ] }
  B { jetstream: enabled, users: [ {user: b, password: p} ] }
  C { users: [ {user: c, password: p} ] }
}
"""


async def make_stream(client: EdgeClient, replicas: int = 1) -> None:
    config = {"name": "FLEET", "subjects": ["fleet.>"], "num_replicas": replicas}
    await request_json(client, "$JS.API.STREAM.CREATE.FLEET", config, dict[str, object], deadline=60)


@asynccontextmanager
async def visited(
    servers: tuple[str, ...], auth: AuthSettings = NO_AUTH, note: Callable[[LinkState], None] = lambda _: None
) -> AsyncIterator[EdgeClient]:
    settings = ConnectionSettings(servers=servers, auth=auth)
    client = await connect(settings, name="test", deadline=60, on_state=note)
    try:
        yield client
    finally:
        await client.close()


async def explained(client: EdgeClient, subject: str = SUBJECT, domain: str = "") -> str:
    return (await explain_unanswered(QuietAsk(client), subject, domain, "user a")).text


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster("region", tmp_path, [Member(f"n{number}") for number in range(1, 6)]) as cluster:
        yield cluster


async def test_stream_and_cluster_without_quorum_are_told_from_no_stream(cluster: EmbeddedCluster) -> None:
    async with visited(cluster.urls) as client:
        await make_stream(client, replicas=3)
        info = await request_json(client, "$JS.API.STREAM.INFO.FLEET", None, dict[str, Any], deadline=60)
    members = [info["cluster"]["leader"], *(each["name"] for each in info["cluster"]["replicas"])]
    outside = next(name for name in cluster.servers if name not in members)
    async with visited((cluster.servers[outside].url,)) as client:
        for name in members[:2]:
            await cluster.servers[name].kill()

        async def says(text: str) -> bool:
            return text in await explained(client)

        no_leader = "stream FLEET has no leader: most of its servers are down, or cut off"
        await until(lambda: says(no_leader), "the stream lacks a leader", ELECTION)
        assert "no stream of this account has that subject" in await explained(client, "elsewhere")
        await cluster.servers[members[2]].kill()
        await until(lambda: says("no quorum: most JetStream servers there"), "the cluster lacks a leader", ELECTION)
        with pytest.raises(ApiError, match="no quorum") as refused:
            await request_json(client, "$JS.API.STREAM.INFO.FLEET", None, dict[str, object], deadline=60)
        assert "start those servers" in refused.value.remedy


@asynccontextmanager
async def region(tmp_path: Path) -> AsyncIterator[EmbeddedNats]:
    settings = ServerSettings(name="region", store_dir=tmp_path / "region", domain="eu-west", extra_config=USERS)
    async with EmbeddedNats(settings) as server:
        yield server


@pytest.mark.parametrize(
    ("user", "subject", "domain", "cause"),
    [
        ("a", "elsewhere", "", "no stream of this account in domain eu-west has that subject"),
        ("b", "elsewhere", "", "this account holds no stream in domain eu-west"),
        ("c", "elsewhere", "", "no stream answers there: JetStream is not enabled for this account (10039)"),
        (
            "a",
            "elsewhere",
            "us-east",
            "no stream answers there, nor does JetStream's API of domain us-east ($JS.us-east.API)",
        ),
        ("mute", "elsewhere", "", NO_STREAM_ANSWERS),
        ("a", SUBJECT, "", "stream FLEET has that subject, but publishes do not reach it from here"),
        (
            "site",
            SUBJECT,
            "",
            "stream FLEET has that subject and does not answer: it has no leader, or publishes do not reach it",
        ),
    ],
)
async def test_account_domain_and_permission_are_told_apart(
    tmp_path: Path, user: str, subject: str, domain: str, cause: str
) -> None:
    """The account A holds a stream, with another subject."""
    events: list[LinkEvent] = []

    def note(state: LinkState) -> None:
        events.append(state.event)

    password = tmp_path / "password"
    password.write_text("p")
    async with region(tmp_path) as server:

        def auth(user: str) -> AuthSettings:
            return AuthSettings(user=user, password_file=FilePath(str(password)))

        async with visited((server.url,), auth("a")) as client:
            await make_stream(client)
        async with visited((server.url,), auth(user), note) as client:
            assert await explained(client, subject, domain) == cause
            await client.flush()
    assert LinkEvent.DENIED not in events, "the denial of a question is no fault of the link"
