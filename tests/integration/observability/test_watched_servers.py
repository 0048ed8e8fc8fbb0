"""What shows in the servers themselves: a certificate that expires, a version that is too old for a setting."""

import json
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from edge_agent.doctor import visit
from edge_agent.doctor.command import examination
from edge_agent.observability import server_watch
from shared.embedded import server as embedded_nats
from shared.identifiers import AdvisoryKind
from shared.nats.connection import AuthSettings, TlsSettings, connect
from shared.nats.jetstream_api import request_json
from shared.nats.server_version import Release
from shared.settings import FilePath
from tests.support.agent.agent_process import SETTINGS, AgentProcess, deployed
from tests.support.agent.agent_within import agent_within
from tests.support.agent.mode_settings import SAMPLING, block
from tests.support.nats.certificates import Authority
from tests.support.nats.older_server import OLDER, only_with_an_older_server
from tests.support.nats.one_server import server_in, settings_for
from tests.support.nats.operator_mode import OperatorMode
from tests.support.topology.aggregator_command import muster
from tests.support.waiting import until


def shows(agent: AgentProcess, *conditions: str) -> Callable[[], Awaitable[bool]]:
    async def are_shown() -> bool:
        found = [each["name"] for each in (await agent.status_json()).get("conditions", [])]
        return set(conditions) <= set(found)

    return are_shown


async def findings(agent: AgentProcess, condition: str) -> list[dict[str, Any]]:
    """Give what the doctor itself has found, beside what the agent says."""
    _, output, _ = await agent.run_command("doctor", "--json", "--config", str(agent.config))
    found = [each for each in json.loads(output)["findings"] if each["condition"] == condition]
    return [each for each in found if each["subject"] != "agent"]


@pytest.mark.provokes("certificate_expires")
async def test_a_certificate_about_to_expire_is_told_before_a_connection_fails(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    ours, theirs = authority.issue("ours", lasts=6), authority.issue("server", lasts=4)
    tls = TlsSettings(ca=FilePath(authority.ca), cert=FilePath(ours.cert), key=FilePath(ours.key))
    block = f'tls {{ cert_file: "{theirs.cert}", key_file: "{theirs.key}", ca_file: "{authority.ca}", verify: true }}'
    written = f'ca = "{authority.ca}"\ncert = "{ours.cert}"\nkey = "{ours.key}"\n\n'
    settings = SETTINGS.replace("[stream.sender]", f"[stream.source.tls]\n{written}[stream.sender]").replace(
        "[store]", f"[upstream.tls]\n{written}[store]"
    )
    async with server_in(tmp_path, block) as server:
        client = await connect(settings_for(server, tls=tls), name="test", deadline=60)
        for name, subject in (("REGISTRATION", "registration.>"), ("FLEET", "fleet.>")):
            body = {"name": name, "subjects": [subject]}
            await request_json(client, f"$JS.API.STREAM.CREATE.{name}", body, dict, deadline=60)
        config = tmp_path / "agent.toml"
        config.write_text(settings.format(upstream=server.url, source=server.url, listen=""))
        agent = AgentProcess(config)

        async def is_one_condition() -> bool:
            status = await agent.status_json()
            told = [each for each in status.get("conditions", []) if each["name"] == "certificate_expires"]
            are_open = [part["phase"] for part in status.get("parts", {}).values()].count("connected") == 2
            return are_open and len(told) == 1 and told[0]["what"].count("expires in") == 3

        try:
            agent.start()
            await until(is_one_condition, "the agent says it once of both links to the server")
            found = {each["text"] for each in await findings(agent, "certificate_expires")}
            assert any("the server's certificate expires in 3d 23h" in text for text in found), found
            assert any(f"the authority in tls.ca {authority.ca} expires in 23h" in text for text in found), found
            assert any(f"our certificate tls.cert {ours.cert} expires in 5d 23h" in text for text in found), found
        finally:
            agent.end()
        await client.close()


async def test_a_jwt_about_to_expire_is_told_by_agent_doctor_and_check(tmp_path: Path) -> None:
    operator = OperatorMode()
    path = operator.credentials(tmp_path / "user.creds", expires_at=int(time.time()) + 6 * 24 * 3600)
    auth = f'auth.credentials_file = "{path}"\n'
    settings = SETTINGS.replace("[stream.sender]", f"{auth}[stream.sender]").replace("[store]", f"{auth}[store]")
    text = f"the user's JWT in credentials_file {path} expires in 5d 23h"
    async with server_in(tmp_path, operator.config) as server:
        connection = settings_for(server, AuthSettings(credentials_file=path))
        async with await connect(connection, name="test", deadline=60) as client:
            for name, subject in (("REGISTRATION", "registration.>"), ("FLEET", "fleet.>")):
                body = {"name": name, "subjects": [subject]}
                await request_json(client, f"$JS.API.STREAM.CREATE.{name}", body, dict, deadline=60)
        config = tmp_path / "agent.toml"
        config.write_text(settings.format(upstream=server.url, source=server.url, listen=""))
        agent = AgentProcess(config)
        try:
            agent.start()
            await until(shows(agent, "certificate_expires"), "the agent says it")
            assert [each["text"] for each in await findings(agent, "certificate_expires")] == [
                f"upstream and stream nodes: source: {text}"
            ]
        finally:
            agent.end()
        (tmp_path / "topology.toml").write_text(f'[hub]\nservers = ["{server.url}"]\n{auth}')
        checked = await muster("check", "--json", "--config", tmp_path / "topology.toml")
        assert [(each["name"], each["severity"], each["text"]) for each in json.loads(checked.stdout)] == [
            ("expires", "WARNING", text)
        ]


@pytest.mark.provokes("server_too_old")
async def test_a_server_too_old_for_a_setting_is_told_with_the_settings_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def old(_client: object) -> Release:
        return 2, 12, 8

    monkeypatch.setattr(server_watch, "release_of", old)
    settings = SETTINGS.replace("[stream.source]", "[stream.source]\ncreate_consumer = false")
    async with deployed(tmp_path, settings) as deployment, agent_within(deployment.agent.config):
        await until(shows(deployment.agent, "server_too_old"), "the agent says it")
        found = (await deployment.agent.status_json())["conditions"]
        (said,) = [each["what"] for each in found if each["name"] == "server_too_old"]
        needed = "nats-server 2.12 is older than 2.14, which source.create_consumer = false needs: "
        assert said.startswith(needed)


@pytest.mark.parametrize(
    ("release", "subjects"),
    [
        pytest.param((2, 12, 5), ["source of nodes", "region"], id="has known holes"),
        pytest.param((2, 9, 10), ["source of nodes", "source of others", "region"], id="cannot be used"),
    ],
)
async def test_an_old_server_is_one_warning_or_one_failure_for_each_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: Release, subjects: list[str]
) -> None:
    monkeypatch.setattr(server_watch, "release_of", lambda _client: release)
    monkeypatch.setattr(visit, "release_of", lambda _client: release)
    settings = SETTINGS + block("others", "sample", SAMPLING)
    async with deployed(tmp_path, settings) as deployment, agent_within(deployment.agent.config):
        async with aclosing(examination(deployment.agent.config)) as found:
            said = [each.subject async for each in found if each.condition == "server_too_old"]
        assert [each for each in said if each != "agent"] == subjects

        async def both_servers_are_named() -> bool:
            status = await deployment.agent.status_json()
            named = [each["subject"] for each in status["conditions"] if each["name"] == "server_too_old"]
            are_open = [part["phase"] for part in status["parts"].values()].count("connected") == 3
            return are_open and "upstream" in named and len(named) == 2

        await until(both_servers_are_named, "the site's server is named once")


@only_with_an_older_server
@pytest.mark.parametrize("creates", [True, False], ids=["may make its consumer", "may not"])
async def test_the_doctor_names_what_an_older_server_is_too_old_for_and_the_agent_does_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, creates: bool
) -> None:
    monkeypatch.setattr(embedded_nats, "find_command", lambda: OLDER)
    settings = SETTINGS.replace("[stream.source]", f"[stream.source]\ncreate_consumer = {str(creates).lower()}")
    async with deployed(tmp_path, settings) as deployment:
        agent = deployment.agent
        agent.start()
        await deployment.site.publish(b'{"sender": "a"}')
        if creates:

            async def is_new() -> bool:
                return AdvisoryKind.NEW in [each.kind for each in await deployment.advisories()]

            await until(is_new, "it makes its consumer anew where it cannot reset it")
            assert not await findings(agent, "server_too_old")
        else:
            await until(shows(agent, "server_too_old"), "the agent says it")
            (said,) = await findings(agent, "server_too_old")
            assert said["level"] == "FAIL"
            assert "which source.create_consumer = false needs" in said["text"]


@only_with_an_older_server
async def test_a_stream_of_an_older_server_is_read_from_a_time_on_and_after_a_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_nats, "find_command", lambda: OLDER)
    async with deployed(tmp_path) as deployment:
        await deployment.site.publish(b'{"sender": "before"}')
        at = (await deployment.site.api("STREAM.INFO.REGISTRATION"))["ts"]
        await deployment.site.publish(b'{"sender": "after"}')
        config = deployment.agent.config
        config.write_text(config.read_text().replace("[stream.source]", f'[stream.source]\nstart = "time:{at}"'))
        deployment.agent.start()

        async def told() -> list[str]:
            return [each.value for each in await deployment.advisories()]

        await until(told, "somebody is new")
        assert await told() == ["after"]
