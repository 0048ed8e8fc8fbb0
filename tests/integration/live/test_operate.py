"""What is ordered over HTTP goes through the hub's policy into the archive, and is shown with who and why."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from aggregator.fleet.commands.sender import lines as lines_of
from aggregator.live.api import SenderStory
from shared.instants import MINUTE
from shared.policy import STREAM
from tests.integration.live.test_serve import now
from tests.support.lakehouse.hub import ARCHIVE, Block, Hub
from tests.support.live.live_service import Answer, LiveService, serving
from tests.support.topology.rendered import muster

TOKEN = "a token that operates"


def with_policy(hub: Hub) -> None:
    """Have the archive take the policy from a stream of its own, as the topology does."""
    archive = {"name": ARCHIVE, "subjects": ["fleet.>"], "allow_direct": True}
    hub.request("STREAM.UPDATE.ARCHIVE", archive)
    hub.request(f"STREAM.CREATE.{STREAM}", {"name": STREAM, "subjects": ["muster.policy.>"], "allow_direct": True})
    hub.request("STREAM.UPDATE.ARCHIVE", archive | {"sources": [{"name": STREAM}]})


def ordering(service: LiveService) -> Callable[..., Answer]:
    """Give a function that orders something at dub1."""

    def ordered(**order: Any) -> Answer:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
        body = json.dumps({"author": "ann", "region": "eu-west", "site": "dub1", **order}).encode()
        return service.request("/api/v1/operations", method="POST", headers=headers, body=body)

    return ordered


def test_maintenance_that_is_ordered_is_shown_with_who_and_why_until_it_is_taken_back(tmp_path: Path) -> None:
    (tmp_path / "operators").write_text(hashlib.sha256(TOKEN.encode()).hexdigest())
    lines = 'operate_token_file = "operators"\nunknown_after = "1h"\n'
    with Hub(tmp_path / "hub") as hub, serving(tmp_path, hub.connection, lines) as service:
        with_policy(hub)
        at = now() - 20 * MINUTE
        block = Block("eu-west", "dub1")
        sequence = hub.publish([block.new("web1", at), block.new("web2", at), block.watermark(at, now())])
        service.wait_through(sequence)
        ordered = ordering(service)
        span = {"started_at_us": at, "ended_at_us": now() + 60 * MINUTE}
        named = ordered(kind="maintenance", why="new disk", block="nodes", senders=["web1"], **span)
        assert (named.status, named.json["revisions"]) == (200, [1])
        service.wait_through(sequence + 1)
        story = service.get("senders/eu-west/dub1/nodes/web1")
        assert story["sender"]["state"] == "maintenance"
        assert [(each["reason"], each["author"]) for each in story["maintenance"]] == [("new disk", "ann")]
        assert service.get("senders/eu-west/dub1/nodes/web2")["sender"]["state"] == "up"

        assert ordered(kind="forward", block="nodes", senders=["web2"]).json["revisions"] == [2]
        cancelled_after = now()
        assert ordered(kind="cancel", revision=1, author="ben").json["revisions"] == [3]
        service.wait_through(sequence + 3)
        story = service.get("senders/eu-west/dub1/nodes/web1")
        (declared,) = story["maintenance"]
        assert (story["sender"]["state"], declared["author"], declared["cancelled_by"]) == ("up", "ann", "ben")
        assert cancelled_after <= declared["cancelled_at_us"] < declared["ended_at_us"]
        printed = "\n".join(lines_of(msgspec.convert(story, SenderStory)))
        assert "by ann: new disk (revision 1), cancelled " in printed
        assert service.get("fleet")["counts"]["up"] == 2
        story = service.get("senders/eu-west/dub1/nodes/web2")
        assert [(each["kind"], each["author"]) for each in story["orders"]] == [("forward", "ann")]

        for wrong, why in (
            (ordered(kind="cancel", revision=9), "revision 9 declares no maintenance"),
            (ordered(kind="maintenance", why=" ", **span), "maintenance needs a reason"),
            (ordered(kind="retire", block="nodes"), "name region, site, block and senders"),
        ):
            assert wrong.status == 409
            assert why in wrong.json["error"]


def test_whoever_orders_something_of_a_sender_that_nobody_knows_is_told_who_may_be_meant(tmp_path: Path) -> None:
    (tmp_path / "operators").write_text(hashlib.sha256(TOKEN.encode()).hexdigest())
    lines = 'operate_token_file = "operators"\n'
    with Hub(tmp_path / "hub", domain="hub") as hub, serving(tmp_path, hub.connection, lines) as service:
        with_policy(hub)
        at = now() - 20 * MINUTE
        dub1, lon1 = Block("eu-west", "dub1"), Block("eu-west", "lon1")
        service.wait_through(hub.publish([dub1.new("web1.example.net", at), lon1.new("db1", at)]))
        span = {"started_at_us": at, "ended_at_us": now() + 60 * MINUTE}
        typo, unheard = "wbe1.example.net", "nobody at eu-west.dub1 has heard of 'wbe1.example.net'"
        unheard_in_block = "nobody at eu-west.dub1.nodes has heard of "

        ordered = ordering(service)
        for kind in ("retire", "forward"):
            refused = ordered(kind=kind, block="nodes", senders=["web1.example.net", typo, "db1"])
            assert refused.status == 409
            said = f"{unheard_in_block}'{typo}' (did you mean web1.example.net?), 'db1' (known at eu-west.lon1.nodes)"
            assert refused.json["error"].startswith(f"{said} as of 2")
        assert ordered(kind="retire", block="nodes", senders=[typo], force=True).json["revisions"] == [1]
        assert ordered(kind="retire", block="nodes", senders=["web1.example.net"]).json["warning"] == ""
        many = [f"to-come-{number}" for number in range(5)]
        planned = ordered(kind="maintenance", why="new rack", senders=many, **span)
        assert planned.json["revisions"] == [3]
        assert ", 2 more as of 2" in planned.json["warning"]

        region = f'[[region]]\nname = "eu-west"\nservers = ["{hub.server.url}"]\n'
        topology = f'[hub]\nservers = ["{hub.server.url}"]\ndomain = "hub"\n[policy]\n{region}'
        (tmp_path / "topology.toml").write_text(topology)
        at_dub1 = ("--region", "eu-west", "--site", "dub1")
        for order in ("retire", "forward"):
            asked = "policy", order, *at_dub1, "--sender", typo
            done = muster(tmp_path, *asked)
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr.startswith(f"muster-aggregator: {unheard} (did you mean web1.example.net?) as of 2")
            assert "asks for --force" in done.stderr
            assert muster(tmp_path, *asked, "--force").returncode == 0
        hours = ("--from", "2026-01-01T00:00:00Z", "--to", "2026-01-01T01:00:00Z", "--reason", "new rack")
        done = muster(tmp_path, "policy", "maintenance", *at_dub1, *hours, "--sender", typo)
        assert (done.returncode, done.stdout[:10]) == (0, "revision 6")
        assert done.stderr.startswith(f"muster-aggregator: {unheard} (did you mean web1.example.net?) as of 2")
        done = muster(tmp_path, "sender", "--url", f"http://127.0.0.1:{service.port}", "web1")
        assert (done.returncode, "did you mean web1.example.net?" in done.stderr) == (1, True)
