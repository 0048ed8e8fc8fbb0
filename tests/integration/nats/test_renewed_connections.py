"""What only a new connection mends, the agent mends by itself: it makes one, and says so."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from nats.errors import MaxPayloadError

from shared.identifiers import AdvisoryKind
from shared.nats.connection import ConnectionSettings, LinkEvent, LinkState, connect
from tests.support.agent.agent_process import SETTINGS, AgentProcess, Deployment, deployed
from tests.support.nats.one_server import server_in, settings_for, written
from tests.support.waiting import until

USERS = """
authorization {{ users: [
  {{ user: admin, password: secret }}
  {{ user: agent, password: secret, permissions: {{ {permissions} }} }}
] }}
no_auth_user: admin
"""
TAKEN = USERS.format(permissions='subscribe: { deny: ["_INBOX_dub1.>"] }')
GIVEN = USERS.format(permissions='subscribe: { allow: [">"] }')
AUTH = 'user = "agent"\npassword_file = "password"\n\n'


def settings_of(link: str) -> str:
    if link == "source":
        return SETTINGS.replace("[stream.sender]", f"[stream.source.auth]\n{AUTH}[stream.sender]")
    return SETTINGS.replace("[store]", f"[upstream.auth]\n{AUTH}[store]")


def is_told_of(deployment: Deployment, *names: str) -> Callable[[], Awaitable[bool]]:
    async def is_told() -> bool:
        by_server = [each.value for each in await deployment.advisories() if each.kind is AdvisoryKind.NEW]
        return set(names) <= set(by_server)

    return is_told


@pytest.mark.parametrize("link", ["source", "region"])
async def test_an_inbox_permission_that_was_taken_and_given_back_needs_no_new_start(tmp_path: Path, link: str) -> None:
    written(tmp_path / "password", "secret")
    config = {"site_config": GIVEN} if link == "source" else {"region_config": GIVEN}
    async with deployed(tmp_path, settings_of(link), **config) as deployment:
        server = deployment.site.server if link == "source" else deployment.region.server
        agent = deployment.agent
        agent.start()
        async with deployment.senders(["a"]):
            await until(is_told_of(deployment, "a"), "the agent works")
            server.reload(TAKEN)
            # Not of the command, which may take longer than until the connection is made anew.
            useless = "source unavailable" if link == "source" else "denied"
            await until(lambda: useless in agent.log, "nothing is heard any more")
            async with deployment.senders(["b"]):
                server.reload(GIVEN)
                await until(lambda: renewals(agent), "the connection is made anew")
                await until(is_told_of(deployment, "a", "b"), "it works again, by itself")
                reached = await deployment.until_observed(await deployment.site_time())
        assert reached.boot_id == (await deployment.watermarks())[0].boot_id
    part = "source of nodes" if link == "source" else "upstream"
    # More than one, where a busy machine takes long to give it back.
    assert all(f"{part}: a subscription was denied: the connection is made anew" in each for each in renewals(agent))


def renewals(agent: AgentProcess) -> list[str]:
    """Give the lines in which an agent says that it makes a connection anew."""
    return [line for line in agent.log.splitlines() if "the connection is made anew" in line]


async def test_a_connection_over_which_nothing_is_answered_is_made_anew(tmp_path: Path) -> None:
    by_server: list[LinkState] = []
    async with server_in(tmp_path) as server:
        client = await connect(settings_for(server), name="test", deadline=60, on_state=by_server.append)
        client.reconnects = True
        silent = await client.subscribe("silent")
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await client.request("silent", b"", timeout=0.05)
        assert silent.pending_msgs == 3, "somebody listens, who does not answer"
        await until(lambda: by_server[-1].event is LinkEvent.RECONNECTED, "it is made anew")
        assert [state.event for state in by_server[1:]] == [LinkEvent.RENEWED, LinkEvent.RECONNECTED]
        assert by_server[1].reason == "3 requests in a row had no answer"
        await client.close()


async def test_one_answer_in_between_is_enough(tmp_path: Path) -> None:
    by_server: list[LinkState] = []
    async with server_in(tmp_path) as server:
        client = await connect(
            ConnectionSettings(servers=(server.url,)), name="test", deadline=60, on_state=by_server.append
        )
        client.reconnects = True
        await client.subscribe("silent")
        for _ in range(3):
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    await client.request("silent", b"", timeout=0.05)
            await client.request("$JS.API.INFO", b"")
        assert client._reconnect_policy._timer is None
        await client.close()
    assert LinkEvent.RENEWED not in [state.event for state in by_server]


async def test_a_limit_that_was_raised_is_learned_by_a_connection_over_which_too_much_was_sent(tmp_path: Path) -> None:
    by_server: list[LinkState] = []
    async with server_in(tmp_path, "max_payload: 2000") as server:
        client = await connect(settings_for(server), name="test", deadline=60, on_state=by_server.append)
        client.reconnects = True
        server.reload("max_payload: 1MB")
        with pytest.raises(MaxPayloadError):
            await client.publish("large", bytes(5_000))
        await until(lambda: client.max_payload > 5_000, "the limit is learned")
        assert [state.event for state in by_server[1:]][:1] == [LinkEvent.RENEWED]
        await client.publish("large", bytes(5_000))
        await client.close()
