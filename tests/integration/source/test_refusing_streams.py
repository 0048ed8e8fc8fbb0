"""A stream that does not take what is sent to it accuses nobody, under default settings, and the agent says why."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest

from shared.identifiers import AdvisoryKind
from shared.instants import SECOND
from tests.support.agent.agent_process import BLIND_AFTER, SETTINGS, STALE_AFTER, Deployment, deployed
from tests.support.nats.source_site import CONSUMER, STREAM, SUBJECT, Site, exhaust
from tests.support.waiting import until

NAMES = ["a.example.net", "b.example.net"]


async def have_said(deployment: Deployment, count: int) -> bool:
    return len(await deployment.advisories()) >= count


class Cause(ABC):
    """What keeps the stream from storing, and what lets it store again."""

    site_config = ""
    site_max_file = ""
    loses_messages = True

    def __init__(self, deployment: Deployment) -> None:
        self.site = deployment.site

    @abstractmethod
    async def begins(self) -> None: ...

    @abstractmethod
    async def ends(self) -> None: ...


class ServerStorage(Cause):
    site_max_file = "1MB"

    async def begins(self) -> None:
        await exhaust(self.site)

    async def ends(self) -> None:
        await self.site.api("STREAM.DELETE.OTHER")


class AccountStorage(ServerStorage):
    site_max_file = ""
    site_config = "accounts: { A: { users: [{user: a, password: a}], jetstream: {max_file: 1MB} } }, no_auth_user: a"


class Subjects(Cause):
    async def begins(self) -> None:
        await self.site.update_stream(subjects=["elsewhere.>"])

    async def ends(self) -> None:
        await self.site.update_stream(subjects=["registration.>"])


class Sizes(Cause):
    async def begins(self) -> None:
        await self.site.update_stream(max_msg_size=10)

    async def ends(self) -> None:
        await self.site.update_stream(max_msg_size=-1)


class Payload(Cause):
    """The server takes no message as large as a registration any more; small ones it would take."""

    site_config = "max_payload: 1MB"

    async def begins(self) -> None:
        self.site.server.reload("max_payload: 2000")

    async def ends(self) -> None:
        self.site.server.reload("max_payload: 1MB")
        # Open connections are not told: the senders would go on sending nothing.
        await self.site.restart()


class PayloadOfSome(Payload):
    """Most messages are small, and would be taken."""

    async def begins(self) -> None:
        await self.site.publish(*[msgspec.json.encode({"sender": NAMES[0]})] * 1_000)
        await super().begins()


class Sealed(Cause):
    """There is no way back: a sealed stream stays sealed."""

    async def begins(self) -> None:
        await self.site.update_stream(sealed=True)

    async def ends(self) -> None:
        raise AssertionError("a sealed stream stays sealed")


class Consumer(Cause):
    """Somebody lets the agent's consumer deliver other subjects; what it did not deliver is read later."""

    loses_messages = False

    change: Mapping[str, object] = MappingProxyType({"filter_subject": "registration.nobody"})

    async def begins(self) -> None:
        await self._changed(self.change)

    async def ends(self) -> None:
        await self._changed(dict.fromkeys(self.change))

    async def _changed(self, change: Mapping[str, object]) -> None:
        config = (await self.site.api(f"CONSUMER.INFO.{STREAM}.{CONSUMER}"))["config"] | dict(change)
        await self.site.api(
            f"CONSUMER.CREATE.{STREAM}.{CONSUMER}", {"stream_name": STREAM, "config": config, "action": "update"}
        )


class ConsumerOfSeveral(Consumer):
    """The probe and some senders' messages are delivered."""

    change = MappingProxyType({"filter_subjects": ["registration.muster-probe", "registration.some"]})


class ConsumerOfHeaders(Consumer):
    change = MappingProxyType({"headers_only": True})


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (ServerStorage, "the stream refuses what is sent to it: insufficient resources"),
        (AccountStorage, "the stream refuses what is sent to it: resource limits exceeded for account"),
        (Subjects, "the stream no longer listens on registration.>"),
        (Sizes, "the stream "),
        (Payload, "the stream refuses what is sent to it: nats: maximum payload exceeded"),
        (PayloadOfSome, "the stream refuses what is sent to it: nats: maximum payload exceeded"),
        (Sealed, "the stream is sealed"),
        (Consumer, "filters 'registration.nobody'"),
        (ConsumerOfSeveral, "filters 'registration.muster-probe', 'registration.some', the settings say ''"),
        (ConsumerOfHeaders, "delivers headers only: delete it"),
    ],
)
async def test_a_stream_that_cannot_store_accuses_nobody_and_says_why(
    tmp_path: Path, cause: type[Cause], said: str
) -> None:
    async with (
        deployed(tmp_path, SETTINGS, site_config=cause.site_config, site_max_file=cause.site_max_file) as deployment,
        deployment.senders(NAMES, size=3_000),
    ):
        deployment.agent.start()
        await until(partial(have_said, deployment, len(NAMES)), "all are new")
        trouble = cause(deployment)
        await trouble.begins()
        began_at = await deployment.site_time()

        async def is_told() -> bool:
            found = (await deployment.agent.status_json()).get("conditions", [])
            name = "stream_not_read" if issubclass(cause, Consumer) else "stream_not_storing"
            return any(each["name"] == name and said in each["what"] for each in found)

        await until(is_told, "status says why")
        # Another run knows no more of it than the store.
        deployment.agent.kill()
        deployment.agent.start()
        refused_through = began_at + 2 * STALE_AFTER

        async def has_passed() -> bool:
            return await deployment.site_time() > refused_through

        await until(has_passed, "the senders were not stored for a long time")
        if cause is not Sealed:
            await trouble.ends()
            mark = await deployment.until_observed(await deployment.site_time() + SECOND)
            is_unknown = mark.observed_since_us > refused_through - BLIND_AFTER
            assert is_unknown is cause.loses_messages, "what is lost is unknown"

            async def is_well() -> bool:
                return not (await deployment.agent.status_json())["conditions"]

            await until(is_well, "status says no more of it")
        assert {advisory.kind for advisory in await deployment.advisories()} == {AdvisoryKind.NEW}


@pytest.mark.parametrize(("refuses_for", "cycle"), [(2.6, 3.2), (2.0, 2.4)])
async def test_a_stream_that_refuses_most_of_the_time_accuses_nobody(
    tmp_path: Path, refuses_for: float, cycle: float
) -> None:
    """No probe shows it, and it never refuses for blind_after (3 s) at once."""
    text = SETTINGS.replace("[stream.source]", "[stream.source]\nprobe = false")
    text = text.replace('stale_after = "4s"', 'stale_after = "12s"').replace(
        'blind_after = "1500ms"', 'blind_after = "3s"'
    )
    names = [f"node{number}" for number in range(8)]
    async with (
        deployed(tmp_path, text, site_max_file=ServerStorage.site_max_file) as deployment,
        AsyncExitStack() as nodes,
    ):
        deployment.agent.start()
        for name in names:
            # In step with the stream: some come whenever it refuses, and only then.
            await nodes.enter_async_context(deployment.senders([name], interval=cycle))
            await asyncio.sleep(cycle / len(names))
        await until(partial(have_said, deployment, len(names)), "all are new")
        trouble, loop = ServerStorage(deployment), asyncio.get_running_loop()
        began_at, ends_at = await deployment.site_time(), loop.time() + 36
        while loop.time() < ends_at:
            turn_at = loop.time()
            await trouble.begins()
            await asyncio.sleep(turn_at + refuses_for - loop.time())
            await trouble.ends()
            await asyncio.sleep(turn_at + cycle - loop.time())
        blind_from = began_at + 12 * SECOND
        state = (await deployment.agent.status_json())["blocks"][0]["state"]
        assert state["observed_since"] > blind_from, "what is unproven for the most part is unknown"
        await deployment.until_observed(await deployment.site_time() + SECOND)
        assert {advisory.kind for advisory in await deployment.advisories()} == {AdvisoryKind.NEW}


class Narrowing(ABC):
    """What a stream, or its server, takes no more that it took, and who publishes such."""

    said = ""
    subject = SUBJECT
    size = 0
    headers: Mapping[str, str] | None = None
    site_config = ""

    @abstractmethod
    async def begins(self, site: Site) -> None: ...


class OfSubjects(Narrowing):
    said = "the stream no longer listens on rack.*: who is"
    subject = "rack.a"

    async def begins(self, site: Site) -> None:
        await site.update_stream(subjects=["registration.>"])


class OfPayload(Narrowing):
    """No probe is as large as the messages of this sender."""

    said = "the stream no longer takes messages of more than 100000 bytes: who is"
    size = 200_000
    site_config = "max_payload: 1MB"

    async def begins(self, site: Site) -> None:
        site.server.reload("max_payload: 100000")


class OfPermits(Narrowing):
    """This sender lets each registration take the place of the one before."""

    said = "the stream no longer has allow_rollup_hdrs, and refuses messages that need it: who is"
    headers = MappingProxyType({"Nats-Rollup": "sub"})
    subject = "rack.a"

    async def begins(self, site: Site) -> None:
        await site.update_stream(subjects=["registration.>", "rack.*"], allow_rollup_hdrs=False)


@pytest.mark.provokes("narrowed")
@pytest.mark.parametrize(
    "narrowing", [OfSubjects(), OfPayload(), OfPermits()], ids=["subjects", "max_payload", "permits"]
)
async def test_whom_a_narrowed_stream_does_not_take_is_unknown_and_who_dies_beside_is_stale(
    tmp_path: Path, narrowing: Narrowing
) -> None:
    async with deployed(tmp_path, site_config=narrowing.site_config) as deployment:
        await deployment.site.update_stream(
            subjects=["registration.>", "rack.*"], allow_rollup_hdrs=narrowing.headers is not None
        )
        deployment.agent.start()
        moved = deployment.senders(["moved"], subject=narrowing.subject, size=narrowing.size, headers=narrowing.headers)
        async with deployment.senders(["lives"]):
            async with deployment.senders(["dies"]), moved:
                await until(partial(have_said, deployment, 3), "all are new")
                await narrowing.begins(deployment.site)
                narrowed_at = await deployment.site_time()

                async def is_told() -> bool:
                    found = (await deployment.agent.status_json())["conditions"]
                    said = {each["name"]: each["what"] for each in found}.get("narrowed", "")
                    return narrowing.said in said

                await until(is_told, "status says it")
                await deployment.until_observed(narrowed_at + SECOND)
            await until(partial(have_said, deployment, 5), "one is stale, one unheard")
            told = {advisory.value: advisory for advisory in (await deployment.advisories())[3:]}
            assert {sender: advisory.kind for sender, advisory in told.items()} == {
                "dies": AdvisoryKind.STALE,
                "moved": AdvisoryKind.RETIRED,
            }
            assert told["dies"].unheard_until_us is msgspec.UNSET
            unheard = told["moved"]
            assert unheard.unheard_until_us == unheard.last_seen_us + 3_600 * SECOND
            code, page, _ = await deployment.agent.run_command(
                "explain", "moved", "--config", str(deployment.agent.config)
            )
            assert code == 0
            assert "the stream may not take what it sends; whether it lives is not known" in " ".join(page.split())
            mark = await deployment.until_observed(unheard.at_us)
            assert mark.observed_since_us < narrowed_at + STALE_AFTER, "of the others the time is known"
