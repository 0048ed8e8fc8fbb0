"""The manual's table of what each key may do is what rendered servers let it do: every deed is tried with every key."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import nats.errors
import pytest

from shared.nats.connection import ConnectFailed, connect
from tests.support.topology.leaf_intruder import LeafIntruder, intruding
from tests.support.topology.rendered import DENIAL_DEADLINE, REQUEST_DEADLINE, Rendered, Visitor, rendered_servers
from tests.support.waiting import until

MANUAL = Path(__file__).parents[3] / "docs" / "reference" / "keys.md"
FURTHER = """
[[region]]
name = "us-east"
servers = ["nats://127.0.0.1:1"]

[[relay]]
name = "eu-relay"
region = "eu-west"

[[stream]]
name = "RELAYED"
subjects = ["fleet.*.*.*.registration", "yours"]
"""
KEYS = {
    "aggregator": "aggregator",
    "reader": "reader",
    "eu-west-leaf": "<region>-leaf",
    "dub1-agent": "<site>-agent",
    "eu-relay-relay": "<relay>-relay",
    "dub1-nodes": "<site>-nodes",
}
INBOXES = {"dub1-agent": "_INBOX_dub1", "eu-relay-relay": "_INBOX_eu-relay", "dub1-nodes": "_INBOX_nodes"}
SERVERS = {"hub": "hub", "eu-west": "its region", "dub1": "its site"}
NO_LOGIN, NOBODY = "-", "503"


class Deed(NamedTuple):
    """What somebody may do: any of ``subjects`` published, or one subscribed to. ``body`` lets orders do no harm."""

    what: str
    subjects: tuple[str, ...]
    body: bytes = b"{}"
    hears: bool = False


def api(*actions: str) -> tuple[str, ...]:
    return tuple(f"$JS.API.{action}" for action in actions)


NOT_EMPTY, KEEPS_ALL = b'{"a": 1}', b'{"keep": 1000000}'
"""A deletion refuses the first, and a purge that keeps so much does nothing: who gets an answer could do either."""
HUB = (
    Deed("read ARCHIVE and REPORT", api("DIRECT.GET.ARCHIVE", "STREAM.MSG.GET.REPORT"), b'{"seq": 1}'),
    Deed("read MUSTER_POLICY, all of it", api("STREAM.MSG.GET.MUSTER_POLICY"), b'{"seq": 1}'),
    Deed("say policy", ("muster.policy.us-east.region",)),
    Deed("publish its region's samples into a stream of yours", ("fleet.eu-west.dub1.nodes.registration",)),
    Deed("publish another region's", ("fleet.us-east.nyc1.nodes.registration",)),
    Deed("publish advisories, watermarks, anything else", ("fleet.eu-west.dub1.nodes.watermark", "yours")),
    Deed("deliver to ARCHIVE what is stored below its region", ("muster.source.eu-west.FLEET",)),
    Deed("deliver to ARCHIVE for another region", ("muster.source.us-east.FLEET",)),
    Deed("make consumers", api("CONSUMER.CREATE.ARCHIVE.mine", "CONSUMER.CREATE.REPORT")),
    Deed("make and change streams", api("STREAM.CREATE.MINE", "STREAM.UPDATE.ARCHIVE")),
    Deed("purge streams", api("STREAM.PURGE.ARCHIVE"), KEEPS_ALL),
    Deed("delete streams and messages", api("STREAM.DELETE.ARCHIVE", "STREAM.MSG.DELETE.ARCHIVE"), NOT_EMPTY),
    Deed("ask a region's API", ("$JS.eu-west.API.STREAM.INFO.FLEET",), b""),
    Deed("purge a region's FLEET", ("$JS.eu-west.API.STREAM.PURGE.FLEET",), KEEPS_ALL),
    Deed("acknowledge for others", ("$JS.ACK.MUSTER_POLICY.other.1.1.1.1.1",)),
    Deed("hear what is for others", (">", "_INBOX_other.>", "$JS.>"), hears=True),
    Deed("ask the system account", ("$SYS.REQ.SERVER.PING",)),
)
REGION = (
    Deed("publish below its own site", ("fleet.eu-west.dub1.nodes.watermark",)),
    Deed("publish below another site", ("fleet.eu-west.lon1.nodes.watermark",)),
    Deed("read FLEET through its own consumer", api("CONSUMER.INFO.FLEET.muster-eu-relay-up"), b""),
    Deed("read FLEET message by message", api("STREAM.MSG.GET.FLEET"), b'{"seq": 1}'),
    Deed("look at its own policy", api("CONSUMER.INFO.MUSTER_POLICY.muster-dub1"), b""),
    Deed("look at another site's", api("CONSUMER.INFO.MUSTER_POLICY.muster-lon1"), b""),
    Deed("say policy", ("muster.policy.eu-west.region",)),
    Deed("make consumers", api("CONSUMER.CREATE.FLEET.mine", "CONSUMER.CREATE.MUSTER_POLICY")),
    Deed("make, change, purge, delete streams", api("STREAM.CREATE.MINE", "STREAM.PURGE.FLEET", "STREAM.DELETE.FLEET")),
    Deed("acknowledge for the hub", ("$JS.ACK.FLEET.muster-archive.1.1.1.1.1", "$JS.FC.FLEET.muster-archive.x")),
    Deed("hear what is for others", (">", "_INBOX.>", "_INBOX_lon1.>", "fleet.>"), hears=True),
    Deed("ask the system account", ("$SYS.REQ.SERVER.PING",)),
)
SITE = (
    Deed("register as any node", ("registration.web1",)),
    Deed("read the site's stream", api("STREAM.MSG.GET.REGISTRATION"), b'{"seq": 1}'),
    Deed("make the agents' own consumers", api("CONSUMER.CREATE.REGISTRATION.muster-dub1-nodes-dub1-a")),
    Deed("make any consumer", api("CONSUMER.CREATE.REGISTRATION.mine")),
    Deed("make the log of a pair", api("STREAM.CREATE.MUSTER_PAIR_dub1")),
    Deed("make and change other streams", api("STREAM.CREATE.MINE", "STREAM.UPDATE.REGISTRATION")),
    Deed("purge streams", api("STREAM.PURGE.REGISTRATION"), KEEPS_ALL),
    Deed("delete streams and messages", api("STREAM.DELETE.REGISTRATION", "STREAM.MSG.DELETE.REGISTRATION"), NOT_EMPTY),
    Deed("hear what is for others", (">", "registration.>", "$JS.>"), hears=True),
    Deed("ask the system account", ("$SYS.REQ.SERVER.PING",)),
)


class Trick(NamedTuple):
    """Where each key asks for what it may ask, for an answer that ``stream`` of the same server would store."""

    subject: str
    stream: str
    asked: dict[str, tuple[str, bytes]]


WHAT_IS_STORED = "have an answer stored as somebody else's record"
TRICKS = {
    "hub": Trick(
        "yours",
        "RELAYED",
        {
            "aggregator": ("$JS.API.INFO", b""),
            "reader": ("$JS.API.STREAM.INFO.ARCHIVE", b""),
            "eu-relay-relay": ("fleet.eu-west.dub1.nodes.registration", b"{}"),
        },
    ),
    "eu-west": Trick(
        "fleet.eu-west.lon1.nodes.watermark",
        "FLEET",
        {
            "dub1-agent": ("fleet.eu-west.dub1.nodes.watermark", b"{}"),
            "eu-relay-relay": ("$JS.API.STREAM.INFO.FLEET", b""),
        },
    ),
    "dub1": Trick(
        "registration.web1",
        "REGISTRATION",
        {
            "aggregator": ("$JS.API.INFO", b""),
            "dub1-agent": ("$JS.API.STREAM.INFO.REGISTRATION", b""),
            "dub1-nodes": ("registration.web2", b"{}"),
        },
    ),
}
DEEDS = {"hub": HUB, "eu-west": REGION, "dub1": SITE}
WHAT_IS_CONFIRMED = "have the server send an empty message to any stream, or to its API"


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rendered]:
    with rendered_servers(tmp_path_factory.mktemp("rendered"), FURTHER, away=("us-east",)) as servers:
        yield servers


async def test_the_manual_says_of_each_key_what_servers_let_it_do(rendered: Rendered) -> None:
    async with rendered.visited("eu-west", "dub1-agent", "_INBOX_dub1") as agent:
        await agent.store("fleet.eu-west.dub1.nodes.watermark", b"{}")
    lines = [f"| at | may | {' | '.join(f'`{name}`' for name in KEYS.values())} |", "| --- " * (len(KEYS) + 2) + "|"]
    for server, shown in SERVERS.items():
        tried = {key: await tried_by(rendered, server, key) for key in KEYS}
        whats = [*(each.what for each in DEEDS[server]), WHAT_IS_STORED]
        whats += [WHAT_IS_CONFIRMED] if server == "hub" else []
        for what in whats:
            cells = [seen[what] if seen is not None else NO_LOGIN for seen in tried.values()]
            lines.append(f"| {shown} | {what} | {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |"))
    table = "\n".join(lines)
    written = re.search(r"^\| at \| may \| `aggregator`.*?(?=\n\n)", MANUAL.read_text(), re.DOTALL | re.MULTILINE)
    assert written is not None, table
    assert written[0].splitlines() == table.splitlines(), f"the manual's table must be:\n{table}"


async def tried_by(rendered: Rendered, server: str, key: str) -> dict[str, str] | None:
    """Try all that is tried at a server; None where the key does not open it."""
    if key.endswith("-leaf"):
        return await tried_over_a_link(rendered) if server == "hub" else None
    try:
        await (await connect(rendered.settings(server, key), name="test", deadline=REQUEST_DEADLINE)).close()
    except ConnectFailed as error:
        is_no_login(str(error))
        return None
    seen = {}
    for deed in DEEDS[server]:
        seen[deed.what] = cell([await is_let(rendered, server, key, deed, subject) for subject in deed.subjects])
    trick = TRICKS[server]
    subject, body = trick.asked[key]

    async def ask() -> None:
        async with rendered.visited(server, key, INBOXES.get(key, "_INBOX")) as visitor:
            await visitor.client.publish(subject, body, reply=trick.subject)
            await visitor.client.request(subject, body, timeout=REQUEST_DEADLINE)

    own = 2 if subject.startswith(("fleet.", "registration.")) else 0
    seen[WHAT_IS_STORED] = cell([await stored_by(rendered, server, trick.stream, ask) > own])
    seen[WHAT_IS_CONFIRMED] = cell([await is_let(rendered, server, key, DELIVERS, DELIVERS.subjects[0])])
    return seen


def is_no_login(reason: str) -> None:
    assert re.search("credentials|refused|Authorization", reason), reason


DELIVERS = HUB[6]


def cell(let: list[bool]) -> str:
    assert len(set(let)) == 1, f"of one deed some is let be done, and some is not: {let}"
    return "yes" if let[0] else ""


async def is_let(rendered: Rendered, server: str, key: str, deed: Deed, subject: str) -> bool:
    """Tell whether a server lets a key do it: it denies it, or it answers."""
    async with rendered.visited(server, key, INBOXES.get(key, "_INBOX")) as visitor:
        if deed.hears:
            await visitor.client.subscribe(subject)
            return not await is_denied(visitor, subject)
        inbox = visitor.client.new_inbox()
        answers = await visitor.client.subscribe(inbox)
        await visitor.client.publish(subject, deed.body, reply=inbox)
        if await is_denied(visitor, subject):
            return False
        try:
            answer = await answers.next_msg(timeout=DENIAL_DEADLINE)
        except nats.errors.TimeoutError:
            raise AssertionError(
                f"{key} at {server}: {subject} is neither denied nor answered: {visitor.denials}"
            ) from None
        assert (answer.headers or {}).get("Status") != NOBODY, f"{key} at {server}: nobody answers {subject}"
        return True


async def is_denied(visitor: Visitor, subject: str) -> bool:
    """Tell whether the server said no: it does before it answers a ping, of which the first may go ahead."""
    for _ in range(2):
        await visitor.client.flush()
    mapped = subject.replace("$JS.hub.API", "$JS.API").replace("$JS.API", "")
    return any(mapped.lower() in denial.lower() for denial in visitor.denials)


async def stored_by(rendered: Rendered, server: str, stream: str, action: Callable[[], Awaitable[None]]) -> int:
    """Count what a stream has more of after something was done."""
    visited = "hub" if server == "eu-west" else server
    async with rendered.visited(visited, "aggregator") as visitor:

        async def held() -> int:
            asked = f"STREAM.INFO.{stream}"
            info = await (visitor.of_domain("eu-west", asked) if server == "eu-west" else visitor.api(asked))
            return int(info["state"]["messages"])

        before = await held()
        await action()
        return await held() - before


async def tried_over_a_link(rendered: Rendered) -> dict[str, str]:
    """Try the same as a region's servers, whose requests name the hub's domain."""
    seen = {}
    for deed in HUB:
        if deed.hears:
            seen[deed.what] = cell([await hears_others(rendered)])
            continue
        let = []
        for subject in deed.subjects:
            asked = subject.replace("$JS.API", "$JS.hub.API").replace("$JS.eu-west.API", "$JS.us-east.API")
            # What passes every link has no account that would take it.
            let.append(not asked.startswith("$JS.ACK") and await passes(rendered, asked, deed.body))
        seen[deed.what] = cell(let)

    async def ask() -> None:
        async with linked(rendered) as intruder:
            await intruder.publish(own_request(rendered), b"{}", "yours")
            await answered(rendered, intruder)

    seen[WHAT_IS_STORED] = cell([await stored_by(rendered, "hub", "RELAYED", ask) > 0])

    async def confirm() -> None:
        async with linked(rendered) as intruder:
            await intruder.control("muster.source.eu-west.FLEET", "100 FlowControl Request", "yours")
            await answered(rendered, intruder)

    seen[WHAT_IS_CONFIRMED] = cell([await stored_by(rendered, "hub", "RELAYED", confirm) > 0])
    return seen


@asynccontextmanager
async def linked(rendered: Rendered) -> AsyncIterator[LeafIntruder]:
    keys = rendered.directory / "nats" / "keys"
    async with intruding(rendered.ports["leaf"], keys, "eu-west-leaf") as intruder:
        yield intruder


async def passes(rendered: Rendered, subject: str, body: bytes) -> bool:
    async with linked(rendered) as intruder:
        return await intruder.is_let(subject, body)


async def hears_others(rendered: Rendered) -> bool:
    async with linked(rendered) as intruder, rendered.visited("hub", "aggregator") as hub:
        for subject in (">", "muster.>", "_INBOX.>", "$JS.>"):
            await intruder.subscribe(subject)
        await answered(rendered, intruder)
        await hub.store("muster.policy.us-east.region", b"{}")
        await hub.api("STREAM.INFO.ARCHIVE")
        await answered(rendered, intruder)
        return any("us-east" in subject or subject.startswith("_INBOX") for subject in intruder.heard)


async def answered(rendered: Rendered, intruder: LeafIntruder) -> None:
    """Wait until the hub has done what was asked of it before."""
    intruder.heard.clear()
    await intruder.subscribe("$JSC.R.probe")
    await intruder.publish(own_request(rendered), b"{}", "$JSC.R.probe")
    await until(lambda: "$JSC.R.probe" in intruder.heard, "the hub has answered")


def own_request(rendered: Rendered) -> str:
    """Name the one request that the region's key may ask of the hub."""
    found = re.search(r'"(\$JS\.hub\.API\.CONSUMER\.RESET\.[^"]*@eu-west)"', rendered.config("hub").read_text())
    assert found is not None
    return found[1]
