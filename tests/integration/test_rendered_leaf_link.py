"""The rendered hub, attacked by whoever has taken a region's servers: what is not that region's stays out of reach."""

from collections.abc import Iterator

import pytest

from tests.support.leaf_intruder import intruding
from tests.support.rendered import Rendered, muster, rendered_servers
from tests.support.waiting import until

POLICY = "$JS.hub.API.CONSUMER"
ANOTHER_REGION = """
[[region]]
name = "us-east"
servers = ["nats://127.0.0.1:1"]
"""


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rendered]:
    with rendered_servers(tmp_path_factory.mktemp("rendered"), ANOTHER_REGION, away=("us-east",)) as servers:
        yield servers


@pytest.mark.parametrize(
    "subject",
    [
        "_INBOX.answer",
        "_INBOX.us-east.answer",
        "$JSC.R.answer",
        "$JSC.R.us-east.hash.FLEET.muster-archive.answer",
        "$JS.S.delivered",
        "$JS.M.delivered",
        "muster.source.us-east.FLEET",
        "muster.source.hub.MUSTER_POLICY.us-east.MUSTER_POLICY",
        "fleet.us-east.nyc1.nodes.watermark",
        "fleet.eu-west.dub1.nodes.watermark",
        "muster.policy.eu-west.region",
        f"{POLICY}.CREATE.MUSTER_POLICY",
        f"{POLICY}.CREATE.MUSTER_POLICY.mine.muster.policy.eu-west.>",
        f"{POLICY}.CREATE.MUSTER_POLICY.JS_MIRROR_x.muster.policy.us-east.>",
        f"{POLICY}.CREATE.ARCHIVE.mine",
        f"{POLICY}.DELETE.MUSTER_POLICY.mine",
        f"{POLICY}.RESET.MUSTER_POLICY.muster-MUSTER_POLICY@us-east",
        f"{POLICY}.MSG.NEXT.ARCHIVE.mine",
        "$JS.hub.API.STREAM.INFO.ARCHIVE",
        "$JS.hub.API.STREAM.PURGE.ARCHIVE",
        "$JS.hub.API.STREAM.MSG.GET.MUSTER_POLICY",
        "$JS.API.STREAM.DELETE.ARCHIVE",
        "$JS.us-east.API.STREAM.DELETE.FLEET",
        "$JS.FC.ARCHIVE.mine.x",
        "$JS.FC.MUSTER_POLICY.mine.x",
        "$SYS.REQ.SERVER.PING",
    ],
)
async def test_a_regions_key_sends_the_hub_nothing_but_what_is_its_own(rendered: Rendered, subject: str) -> None:
    async with intruding(rendered.ports["leaf"], rendered.directory / "nats" / "keys", "eu-west-leaf") as intruder:
        await intruder.is_denied(subject)


async def test_a_regions_key_hears_its_own_policy_and_nothing_that_is_for_others(rendered: Rendered) -> None:
    async with intruding(rendered.ports["leaf"], rendered.directory / "nats" / "keys", "eu-west-leaf") as intruder:
        for subject in (">", "muster.>", "fleet.>", "$JSC.>", "$JS.M.>", "_INBOX.>"):
            await intruder.subscribe(subject)
        for region in ("us-east", "eu-west"):
            done = muster(rendered.directory, "policy", "set", "--region", region, "--sample-interval", "30m")
            assert done.returncode == 0, done.stderr
        await until(lambda: any("MUSTER_POLICY" in subject for subject in intruder.heard), "its own policy is heard")
        others = [
            subject
            for subject in intruder.heard
            if not subject.startswith(("muster.source.hub.MUSTER_POLICY.eu-west.", "$JS.FC.FLEET.", "$JS.eu-west.API."))
        ]
        assert [subject for subject in others if not subject.startswith(("$JS.ACK.FLEET", "$LDS"))] == []
