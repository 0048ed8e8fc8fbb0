"""A site switches from stream-replicator to the agent: nobody is announced anew, nothing is lost or read twice.

With the peer itself where MUSTER_PEER names a built ``stream-replicator``; without, with what it leaves behind.
"""

import asyncio
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from edge_agent.migration import state as migration
from edge_agent.migration.peer import MigrationRefused
from edge_agent.migration.settings import migrate
from shared.embedded.server import dies_with
from shared.instants import MINUTE, format_instant
from tests.support.agent.agent_process import AgentProcess, Deployment
from tests.support.delivery.fleet_region import running_region
from tests.support.nats.source_site import STREAM, running_site
from tests.support.waiting import until

PEER = os.environ.get("MUSTER_PEER", "")
CONFIG = """
name: DUB1
state_store: {state}
streams:
  - stream: REGISTRATION
    source_url: {source}
    target_url: {target}
    inspect_field: sender
    inspect_duration: 1h
    warn_duration: {warn}
    advisory:
      subject: peer.advisories
      reliable: true
"""
LIVING = ["a.example.net", "b.example.net", "c.example.net"]
SILENT, LATE, GONE = "d.example.net", "e.example.net", "f.example.net"


class Switch:
    """A site and a region, the peer's configuration, and the agent that takes its place."""

    def __init__(self, deployment: Deployment, directory: Path, warn: str) -> None:
        self.deployment = deployment
        self.config, self.state = directory / "sr.yaml", directory / "state"
        self.state.mkdir()
        site, region = deployment.site, deployment.region
        self.config.write_text(
            CONFIG.format(state=self.state, source=site.server.url, target=region.server.url, warn=warn)
        )

    async def register(self, *names: str) -> int:
        """Let senders register once each; give the stream's last sequence."""
        return await self.deployment.site.publish(*(msgspec.json.encode({"sender": name}) for name in names))

    async def migrate(self) -> str:
        """Run the command; give what it says."""
        agent = self.deployment.agent
        code, output, errors = await agent.run_command(
            "migrate-config",
            str(self.config),
            *("--region", "eu-west", "--output", str(agent.config)),
            *("--state", str(self.state), "--store", str(agent.store)),
        )
        assert (code, output) == (0, ""), errors
        # So that tests need not wait for the watermarks of a site with ten thousand nodes.
        agent.config.write_text(
            agent.config.read_text() + "\n[watermark]\ninterval = '300ms'\n\n[monitor]\nlisten=''\n"
        )
        return errors

    async def leave_behind(self, senders: Mapping[str, object], through: int) -> None:
        """Leave what the peer leaves: its state file, and a consumer that has acknowledged through a sequence."""
        (self.state / f"{STREAM}_DUB1.json").write_text(json.dumps({"Items": senders}))
        site = self.deployment.site
        config = {"durable_name": "SR_DUB1", "ack_policy": "explicit", "max_ack_pending": 1, "deliver_policy": "all"}
        await site.api(f"CONSUMER.CREATE.{STREAM}.SR_DUB1", {"stream_name": STREAM, "config": config})
        subscription = await site.client.jetstream().pull_subscribe_bind("SR_DUB1", STREAM)
        for _ in range(through):
            (message,) = await subscription.fetch(1, timeout=60)
            await message.ack_sync()
        await subscription.unsubscribe()

    async def told(self) -> list[tuple[str, str]]:
        """Give kind and sender of every advisory that the region has."""
        return [(str(each.kind), each.value) for each in await self.deployment.advisories()]

    async def forwarded(self) -> list[str]:
        """Give the senders whose registrations the agent has forwarded."""
        records = await self.deployment.region.stored()
        return [
            json.loads(each.payload)["sender"]
            for each in records
            if each.subject == "fleet.eu-west.DUB1.REGISTRATION.registration"
        ]

    async def has_forwarded_all(self) -> bool:
        """Tell whether no registration waits."""
        return bool((await self.deployment.agent.status_json())["outbox"]["registrations"]["rows"] == 0)


@asynccontextmanager
async def switching(directory: Path, warn: str) -> AsyncIterator[Switch]:
    async with running_site(directory) as site, running_region(directory) as region:
        await site.make_stream()
        await region.make_stream()
        agent = AgentProcess(directory / "agent.toml")
        try:
            yield Switch(Deployment(site, region, agent), directory, warn)
        finally:
            agent.end()


def seen(minutes_ago: int, *, advised: bool = False) -> dict[str, object]:
    """Write what the peer's state file says of a sender that was seen, and copied, so long ago."""
    at = format_instant(time.time_ns() // 1000 - minutes_ago * MINUTE)
    return {"seen": at, "copied": at, "size": 26, **({"advised": True} if advised else {})}


async def test_who_was_known_is_not_announced_again_and_who_came_meanwhile_is(tmp_path: Path) -> None:
    async with switching(tmp_path, "11m") as switch:
        through = await switch.register(*LIVING, SILENT)
        senders = {name: seen(0) for name in LIVING} | {SILENT: seen(20, advised=True), GONE: seen(300, advised=True)}
        await switch.leave_behind(senders, through)
        await switch.register(LATE)
        said = await switch.migrate()
        assert f"taken over: REGISTRATION: 5 senders (2 of them stale), read on behind message {through} of" in said
        switch.deployment.agent.start()
        last = await switch.register(*LIVING, SILENT, LATE)

        async def is_read() -> bool:
            watermark = await switch.deployment.last_watermark()
            return watermark is not None and watermark.sequence >= last

        await until(is_read, "everything is read")
        assert sorted(await switch.told()) == [("new", LATE), ("recovered", SILENT), ("retired", GONE)]
        await until(switch.has_forwarded_all, "registrations, which no watermark waits for, have arrived")
        assert sorted(await switch.forwarded()) == [SILENT, LATE], "the others were copied within the hour"
        first = (await switch.deployment.watermarks())[0]
        assert first.observed_since_us == (await switch.deployment.watermarks())[-1].observed_since_us
        refused = await switch.deployment.agent.run_command(
            "migrate-config", str(switch.config), "--region=a", f"--state={switch.state}",
            f"--store={switch.deployment.agent.store}",
        )  # fmt: skip
        assert "there is one already; take over into a new one" in refused[2]


async def test_a_peer_that_still_reads_is_told_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "LAST_REQUEST", 0.1)
    async with switching(tmp_path, "11m") as switch:
        await switch.leave_behind({}, await switch.register(*LIVING))
        site = switch.deployment.site
        asking = msgspec.json.encode({"batch": 1, "expires": 600_000_000_000})
        inbox = site.client.new_inbox()
        await site.client.subscribe(inbox)
        await site.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.SR_DUB1", asking, reply=inbox)

        async def waits() -> bool:
            return bool((await site.api(f"CONSUMER.INFO.{STREAM}.SR_DUB1"))["num_waiting"])

        await until(waits, "a pull request waits")
        store = tmp_path / "agent.db"
        found = migrate(switch.config.read_bytes(), "eu-west", tmp_path / "agent.toml", store)
        with pytest.raises(MigrationRefused, match="still reads stream REGISTRATION through consumer SR_DUB1: stop it"):
            await migration.take_over(found.settings, found.blocks, switch.state)
        assert not store.exists()


@pytest.mark.skipif(not PEER, reason="MUSTER_PEER names no built stream-replicator")
async def test_a_site_that_switches_from_the_peer_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    async with switching(tmp_path, "10s") as switch:
        site = switch.deployment.site
        await site.create_stream({"name": "PEER_ADVISORIES", "subjects": ["peer.advisories"]})

        async def peer_told() -> list[tuple[str, str]]:
            told = []
            for sequence in range(1, (await site.api("STREAM.INFO.PEER_ADVISORIES"))["state"]["last_seq"] + 1):
                message = await site.client.jetstream().get_msg("PEER_ADVISORIES", seq=sequence)
                body = json.loads(message.data or b"")
                told.append((str(body["event"]), str(body["value"])))
            return told

        async with switch.deployment.senders(LIVING):
            peer = await asyncio.create_subprocess_exec(
                PEER,
                "replicate",
                "--config",
                switch.config,
                stderr=subprocess.DEVNULL,
                preexec_fn=dies_with(os.getpid()),
            )
            await switch.register(SILENT)

            async def has_missed_one() -> bool:
                return ("timeout", SILENT) in await peer_told()

            await until(has_missed_one, "the peer has missed one")
            assert sorted(await peer_told()) == sorted(
                [("new", name) for name in (*LIVING, SILENT)] + [("timeout", SILENT)]
            )
            peer.terminate()
            assert await peer.wait() == 0
            await switch.register(LATE)
            said = await switch.migrate()
            assert "taken over: REGISTRATION: 4 senders (1 of them stale)" in said
            switch.deployment.agent.start()

            async def late_is_told() -> bool:
                return ("new", LATE) in await switch.told()

            await until(late_is_told, "the one that came meanwhile is known")
            await switch.register(SILENT, LATE)
            floor = (await site.api(f"CONSUMER.INFO.{STREAM}.SR_DUB1"))["ack_floor"]["stream_seq"]
            last = await switch.register(SILENT, LATE)

            async def is_read() -> bool:
                watermark = await switch.deployment.last_watermark()
                return watermark is not None and watermark.sequence >= last

            await until(is_read, "everything is read")
            assert await switch.told() == [("new", LATE), ("recovered", SILENT)]
            await until(switch.has_forwarded_all, "registrations, which no watermark waits for, have arrived")
            assert sorted(await switch.forwarded()) == [SILENT, LATE], "the others were copied within the hour"
        await switch.deployment.agent.stopped()
        watermark = (await switch.deployment.watermarks())[-1]
        read = sum(sum(watermark.counters.get(what, {}).values()) for what in ("valid", "rejected", "probes"))
        assert read == watermark.sequence - floor, "each message once, from the first that the peer had not read"
        assert [name for kind, name in await switch.told() if kind == "new"] == [LATE]
