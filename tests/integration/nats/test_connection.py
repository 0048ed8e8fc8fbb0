"""A connection opens, or says within its deadline in one line why not; once open it comes back from everything."""

import asyncio
import os
import time
from pathlib import Path

import nkeys  # type: ignore[import-untyped]
import pytest
from nats.aio.msg import Msg

from shared.embedded.link import EmbeddedLink
from shared.embedded.server import EmbeddedNats, ServerSettings
from shared.nats.connection import (
    ApiError,
    AuthSettings,
    ConnectFailed,
    ConnectionSettings,
    LinkEvent,
    LinkState,
    RequestFailed,
    TlsSettings,
    api_prefix,
    connect,
    request_json,
)
from shared.nats.jetstream_api import create_stream
from shared.settings import FilePath
from tests.support.nats.certificates import Authority
from tests.support.nats.one_server import server_in, settings_for, written
from tests.support.nats.operator_mode import OperatorMode
from tests.support.waiting import until


async def failure(settings: ConnectionSettings, deadline: float = 10.0) -> str:
    started_at = time.monotonic()
    with pytest.raises(ConnectFailed) as caught:
        await connect(settings, name="test", deadline=deadline)
    assert time.monotonic() - started_at < deadline + 20
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Logging in


async def test_a_password_from_a_file_opens_the_door_and_a_wrong_one_ends_at_once(tmp_path: Path) -> None:
    async with server_in(tmp_path, "authorization { user: agent, password: right }") as server:
        right = AuthSettings(user="agent", password_file=written(tmp_path / "right", "right\n"))
        async with await connect(settings_for(server, right), name="test", deadline=60) as client:
            await client.flush()
        started_at = time.monotonic()
        wrong = AuthSettings(user="agent", password_file=written(tmp_path / "wrong", "wrong\n"))
        line = await failure(settings_for(server, wrong), deadline=30)
        assert line == (
            f"cannot connect to 127.0.0.1:{server.port}: it refuses our credentials (auth): Authorization Violation, "
            "as user agent"
        )
        # Not only when the deadline is over.
        assert time.monotonic() - started_at < 25


async def test_a_token_from_a_file_opens_the_door(tmp_path: Path) -> None:
    async with server_in(tmp_path, "authorization { token: right }") as server:
        auth = AuthSettings(token_file=written(tmp_path / "token", "right"))
        async with await connect(settings_for(server, auth), name="test", deadline=60) as client:
            await client.flush()


async def test_an_nkey_seed_from_a_file_opens_the_door(tmp_path: Path) -> None:
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    public_key = nkeys.from_seed(bytearray(seed)).public_key.decode()
    async with server_in(tmp_path, f"authorization {{ users: [ {{ nkey: {public_key} }} ] }}") as server:
        auth = AuthSettings(nkey_seed_file=written(tmp_path / "seed", seed.decode() + "\n"))
        async with await connect(settings_for(server, auth), name="test", deadline=60) as client:
            await client.flush()


async def test_the_limit_of_our_user_is_known_though_the_server_takes_larger_messages(tmp_path: Path) -> None:
    """Who sends more is disconnected, every time anew."""
    operator = OperatorMode()
    async with server_in(tmp_path, operator.config) as server:
        auth = AuthSettings(credentials_file=operator.credentials(tmp_path / "user.creds", payload=2_000))
        async with await connect(settings_for(server, auth), name="test", deadline=60) as client:
            await client.flush()
            assert client.max_payload == 2_000


async def test_a_jwt_that_has_expired_is_named_with_its_file(tmp_path: Path) -> None:
    operator = OperatorMode()
    path = operator.credentials(tmp_path / "user.creds", expires_at=int(time.time()) - 2 * 3600 - 60)
    async with server_in(tmp_path, operator.config) as server:
        with pytest.raises(ConnectFailed) as caught:
            await connect(settings_for(server, AuthSettings(credentials_file=path)), name="test", deadline=30)
    refused = "it refuses our credentials (auth): the user's JWT in credentials_file"
    assert str(caught.value) == f"cannot connect to 127.0.0.1:{server.port}: {refused} {path} has expired, 2h 1m ago"
    assert caught.value.remedy.startswith("put a new one into that file")


async def test_a_jwt_that_expires_while_it_is_used_is_named_and_a_new_one_is_taken(tmp_path: Path) -> None:
    operator, events = OperatorMode(), list[LinkState]()
    path = operator.credentials(tmp_path / "user.creds", expires_at=int(time.time()) + 5)
    async with server_in(tmp_path, operator.config) as server:
        settings = settings_for(server, AuthSettings(credentials_file=path))
        async with await connect(settings, name="test", deadline=60, on_state=events.append):

            def has(event: LinkEvent, reason: str) -> bool:
                return any(each.event is event and reason in each.reason for each in events)

            await until(lambda: has(LinkEvent.DISCONNECTED, "the user's JWT has expired"), "the server ends it")
            await until(lambda: has(LinkEvent.RETRY_FAILED, f"{path} has expired, "), "it is refused")
            operator.credentials(tmp_path / "user.creds")
            await until(lambda: has(LinkEvent.RECONNECTED, ""), "the new one is read")


async def test_a_certificate_that_is_no_user_of_the_server_is_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    ours = authority.issue("ours")
    config = f"""
{tls_block(authority, "verify_and_map: true")}
authorization {{ users: [ {{ user: "CN=other" }} ] }}
"""
    tls = TlsSettings(ca=FilePath(authority.ca), cert=FilePath(ours.cert), key=FilePath(ours.key))
    async with server_in(tmp_path, config) as server:
        with pytest.raises(ConnectFailed) as caught:
            await connect(settings_for(server, tls=tls), name="test", deadline=30)
    assert str(caught.value).endswith(f"Authorization Violation, as the owner of certificate {ours.cert}")
    assert "verify_and_map" in caught.value.remedy


@pytest.mark.parametrize(
    ("auth", "cause"),
    [
        (AuthSettings(nkey_seed_file=FilePath("/no/such/seed")), "nkey_seed_file /no/such/seed: there is no such file"),
        (AuthSettings(token_file=FilePath("/")), "token_file /: cannot be read: Is a directory"),
        (AuthSettings(token_file=FilePath("/dev/null")), "token_file /dev/null: is empty"),
        (
            AuthSettings(credentials_file=FilePath("/dev/null")),
            "credentials_file /dev/null: has no section 'BEGIN NATS USER JWT'",
        ),
    ],
)
async def test_files_are_checked_before_anything_is_dialled(auth: AuthSettings, cause: str) -> None:
    settings = ConnectionSettings(servers=("nats://127.0.0.1:1",), auth=auth)
    assert await failure(settings) == f"cannot connect to nats://127.0.0.1:1: {cause}"


@pytest.mark.parametrize("seed", ["SU-damaged", "", nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_ACCOUNT).decode()])
async def test_a_seed_that_is_none_is_refused(tmp_path: Path, seed: str) -> None:
    auth = AuthSettings(nkey_seed_file=written(tmp_path / "seed", seed))
    line = await failure(ConnectionSettings(servers=("nats://127.0.0.1:1",), auth=auth))
    assert "seed" in line
    assert "start with SU" in line or "starts with SU" in line or "is empty" in line


# TLS


async def test_tls_with_our_own_certificate_opens_the_door(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    ours = authority.issue("agent")
    async with server_in(tmp_path, tls_block(authority, "verify: true")) as server:
        tls = TlsSettings(ca=FilePath(authority.ca), cert=FilePath(ours.cert), key=FilePath(ours.key))
        async with await connect(settings_for(server, tls=tls), name="test", deadline=60) as client:
            await client.flush()


async def test_tls_before_the_greeting_opens_the_door(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    async with server_in(tmp_path, tls_block(authority, "handshake_first: true")) as server:
        tls = TlsSettings(ca=FilePath(authority.ca), handshake_first=True)
        async with await connect(settings_for(server, tls=tls), name="test", deadline=60) as client:
            await client.flush()


async def test_a_certificate_of_a_stranger_is_refused(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path, "authority"), Authority(tmp_path, "stranger")
    async with server_in(tmp_path, tls_block(authority)) as server:
        line = await failure(settings_for(server, tls=TlsSettings(ca=FilePath(stranger.ca))))
        assert "its certificate is not trusted: " in line
        assert line.endswith("check tls.ca and the server's name")


@pytest.mark.parametrize(
    ("days", "said", "remedy"),
    [
        (-2, "the server's certificate has expired", "renew it, or its authority's, at the server"),
        (2, "the server's certificate is not valid yet", "set the clocks of both hosts right"),
    ],
)
async def test_a_certificate_of_the_server_that_is_out_of_its_time_is_the_servers_to_mend(
    tmp_path: Path, days: int, said: str, remedy: str
) -> None:
    authority = Authority(tmp_path, "authority")
    async with server_in(tmp_path, tls_block(authority, days=days)) as server:
        with pytest.raises(ConnectFailed) as caught:
            await connect(settings_for(server, tls=TlsSettings(ca=FilePath(authority.ca))), name="test", deadline=10)
    assert str(caught.value).endswith(f": {said}")
    assert caught.value.remedy.startswith(remedy)


async def test_a_key_that_is_refused_is_named_by_its_public_part_and_never_by_its_seed(tmp_path: Path) -> None:
    known, ours = (
        nkeys.from_seed(bytearray(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER))) for _ in range(2)
    )
    public_key, seed = ours.public_key.decode(), ours.seed.decode()
    async with server_in(tmp_path, f"authorization {{ users: [ {{ nkey: {known.public_key.decode()} }} ] }}") as server:
        auth = AuthSettings(nkey_seed_file=written(tmp_path / "seed", seed))
        with pytest.raises(ConnectFailed) as caught:
            await connect(settings_for(server, auth), name="test", deadline=10)
    assert str(caught.value).endswith(f"Authorization Violation, as nkey {public_key}")
    assert caught.value.remedy == (
        f"let the server know nkey {public_key}, or correct auth in the settings; "
        "a Choria broker knows no nkeys: tls.cert and tls.key of its CA in place of auth"
    )
    assert seed not in f"{caught.value} {caught.value.remedy}"


async def test_a_server_without_tls_gets_no_clear_text(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    async with server_in(tmp_path) as server:
        line = await failure(settings_for(server, tls=TlsSettings(ca=FilePath(authority.ca))))
        assert line.endswith("it offers no TLS, and clear text is not wanted (tls)")


@pytest.mark.parametrize("first_here", [True, False])
async def test_a_handshake_at_the_wrong_time_is_explained(tmp_path: Path, first_here: bool) -> None:
    authority = Authority(tmp_path, "authority")
    there = "handshake_first: false" if first_here else "handshake_first: true"
    async with server_in(tmp_path, tls_block(authority, there)) as server:
        tls = TlsSettings(ca=FilePath(authority.ca), handshake_first=first_here)
        line = await failure(settings_for(server, tls=tls), deadline=3)
        assert line.endswith("tls.handshake_first must be as the server has it")


async def test_a_full_server_that_begins_with_encryption_is_said_to_be_full(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    config = f"max_connections: 1\n{tls_block(authority, 'handshake_first: true')}"
    async with server_in(tmp_path, config) as server:
        settings = settings_for(server, tls=TlsSettings(ca=FilePath(authority.ca), handshake_first=True))
        async with await connect(settings, name="test", deadline=60):
            line = await failure(settings, deadline=1)
        assert "the server is full (max_connections), or tls.handshake_first" in line


async def test_an_account_that_takes_no_more_connections_is_said_to_be_full(tmp_path: Path) -> None:
    config = "accounts { A { limits { max_connections: 1 }, users: [ { user: agent, password: right } ] } }"
    async with server_in(tmp_path, config) as server:
        auth = AuthSettings(user="agent", password_file=written(tmp_path / "password", "right"))
        async with await connect(settings_for(server, auth), name="test", deadline=60):
            line = await failure(settings_for(server, auth), deadline=1)
        assert line.endswith(
            "it takes no more connections, of all or of ours (max_connections): "
            "maximum account active connections exceeded"
        )


async def test_damaged_certificates_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    ours, other = authority.issue("ours"), authority.issue("other")
    server = ("nats://127.0.0.1:1",)
    nonsense = written(tmp_path / "nonsense.pem", "nonsense")
    line = await failure(ConnectionSettings(servers=server, tls=TlsSettings(ca=nonsense)))
    assert line.endswith(f"tls.ca {nonsense}: holds no certificate in PEM")
    line = await failure(
        ConnectionSettings(servers=server, tls=TlsSettings(cert=FilePath(ours.cert), key=FilePath(other.key)))
    )
    assert line.endswith(f"tls.key {other.key}: does not fit the certificate {ours.cert}")


def tls_block(authority: Authority, options: str = "", days: int = 0) -> str:
    server = authority.issue("server", days)
    return f'tls {{ cert_file: "{server.cert}", key_file: "{server.key}", ca_file: "{authority.ca}", {options} }}'


# Servers that are not there


async def test_nobody_there_is_said_for_every_server_within_the_deadline() -> None:
    servers = ("nats://127.0.0.1:1", "nats://no-such-host.invalid:4222")
    line = await failure(ConnectionSettings(servers=servers), deadline=5)
    assert line.startswith("cannot connect within 5 s to ")
    assert "127.0.0.1:1: connection refused, nothing listens there" in line
    assert "no-such-host.invalid:4222: the name does not resolve (" in line


async def test_a_server_that_is_silent_is_said_to_be(tmp_path: Path) -> None:
    async with server_in(tmp_path) as server, EmbeddedLink(server.port) as link:
        link.stall()
        line = await failure(ConnectionSettings(servers=(link.url,)), deadline=1)
        assert "it accepts the connection, then nothing comes" in line


async def test_who_greets_as_no_server_does_is_said_to() -> None:
    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO []\r\n")
        writer.close()

    stranger = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with stranger:
        address = f"127.0.0.1:{stranger.sockets[0].getsockname()[1]}"
        line = await failure(ConnectionSettings(servers=(address,)), deadline=1)
    assert line.startswith(f"cannot connect within 1 s to {address}: ")


async def test_a_server_that_comes_up_within_the_deadline_is_waited_for(tmp_path: Path) -> None:
    server = server_in(tmp_path)
    await server.start()
    await server.kill()
    opening = asyncio.ensure_future(connect(settings_for(server), name="test", deadline=20))
    await asyncio.wait({opening}, timeout=0.5)
    assert not opening.done()
    async with server, await opening as client:
        await client.flush()


# Requests


async def test_a_request_answers_refuses_or_fails_in_one_line(tmp_path: Path) -> None:
    async with server_in(tmp_path) as server, await connect(settings_for(server), name="test", deadline=60) as client:
        created = await request_json(client, "$JS.API.STREAM.CREATE.S", {"name": "S"}, dict[str, object], deadline=60)
        assert created["did_create"] is True
        with pytest.raises(ApiError) as refused:
            await request_json(client, "$JS.API.STREAM.INFO.T", None, dict[str, object], deadline=60)
        assert (refused.value.code, refused.value.err_code) == (404, 10059)
        assert str(refused.value) == "stream not found (10059)"
        with pytest.raises(RequestFailed, match=r"\$JS.no.API.INFO: nobody answers there"):
            await request_json(client, "$JS.no.API.INFO", None, dict[str, object], deadline=60)
        with pytest.raises(RequestFailed, match="the answer is not what was expected"):
            await request_json(client, "$JS.API.STREAM.INFO.S", None, list[int], deadline=60)
        server.suspend()
        with pytest.raises(RequestFailed, match=r"no answer within 0.2 s"):
            await request_json(client, "$JS.API.INFO", None, dict[str, object], deadline=0.2)
        server.resume()
        jwt_like = b"e30="
        with pytest.raises(ApiError, match="10025"):
            await request_json(client, "$JS.API.STREAM.CREATE.U", jwt_like, dict[str, object], deadline=60)


@pytest.mark.parametrize("domain", ["", "hub"])
async def test_what_is_asked_without_a_link_is_not_sent_late_and_leaves_no_inbox(tmp_path: Path, domain: str) -> None:
    """A client that asks through a day without a link would otherwise send all of it at the reconnect."""
    settings = ServerSettings(name="server", store_dir=tmp_path / "nats", domain="hub")
    subject = f"{api_prefix(domain)}.INFO"
    heard: list[Msg] = []

    async def hear(message: Msg) -> None:
        heard.append(message)

    async def ask(deadline: float) -> None:
        await request_json(client, subject, None, dict[str, object], deadline=deadline)

    async with (
        EmbeddedNats(settings) as server,
        EmbeddedLink(server.port) as link,
        await connect(ConnectionSettings(servers=(link.url,)), name="test", deadline=60) as client,
        await connect(settings_for(server), name="spy", deadline=60) as spy,
    ):
        await ask(60)
        # The server writes its own domain's subjects so before anybody hears them.
        await spy.subscribe("$JS.API.INFO", cb=hear)
        await spy.flush()
        inbox_count = len(client._subs)
        await link.cut()
        await until(lambda: not client.is_connected, "the client notices the cut")
        for _ in range(5):
            with pytest.raises(RequestFailed, match=r"INFO: no answer within 0.05 s, the connection is down$"):
                await ask(0.05)
        assert client.pending_data_size == 0
        assert len(client._subs) == inbox_count
        asking = asyncio.create_task(ask(180))
        await link.restore()
        await asking
        await until(lambda: heard, "the request that waited for the link is heard")
        assert len(heard) == 1
        link.stall()
        asking = asyncio.create_task(ask(1))
        await until(lambda: client.stats["out_msgs"] == 3, "another request is under way")
        await link.cut()
        with pytest.raises(RequestFailed):
            await asking
        assert len(client._subs) == inbox_count


async def test_a_stream_is_made_though_its_store_cannot_be_at_first(tmp_path: Path) -> None:
    """As behind the end of an account's last stream, whose directories go a moment later."""
    async with server_in(tmp_path) as server, await connect(settings_for(server), name="test", deadline=60) as client:
        in_the_way = server.settings.store_dir / "jetstream" / "jetstream" / "$G"
        in_the_way.parent.mkdir(exist_ok=True, parents=True)
        # The server removes it, as it would an empty directory, when it has failed.
        in_the_way.write_text("")
        made = await create_stream(client, "$JS.API.STREAM.CREATE.S", {"name": "S"}, dict[str, object], deadline=60)
        assert made["did_create"] is True
        assert "Stream create failed" in server.log_path.read_text()
