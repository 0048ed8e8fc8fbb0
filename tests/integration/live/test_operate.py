"""What is ordered over HTTP goes through the hub's policy into the archive, and is shown with who and why."""

import hashlib
import json
from pathlib import Path
from typing import Any

from shared.instants import MINUTE
from shared.policy import STREAM
from tests.integration.live.test_serve import now
from tests.support.lakehouse.hub import ARCHIVE, Block, Hub
from tests.support.live.live_service import Answer, serving

TOKEN = "a token that operates"


def with_policy(hub: Hub) -> None:
    """Have the archive take the policy from a stream of its own, as the topology does."""
    archive = {"name": ARCHIVE, "subjects": ["fleet.>"], "allow_direct": True}
    hub.request("STREAM.UPDATE.ARCHIVE", archive)
    hub.request(f"STREAM.CREATE.{STREAM}", {"name": STREAM, "subjects": ["muster.policy.>"], "allow_direct": True})
    hub.request("STREAM.UPDATE.ARCHIVE", archive | {"sources": [{"name": STREAM}]})


def test_maintenance_that_is_ordered_is_shown_with_who_and_why_until_it_is_taken_back(tmp_path: Path) -> None:
    (tmp_path / "operators").write_text(hashlib.sha256(TOKEN.encode()).hexdigest())
    lines = 'operate_token_file = "operators"\nunknown_after = "1h"\n'
    with Hub(tmp_path / "hub") as hub, serving(tmp_path, hub.connection, lines) as service:
        with_policy(hub)
        at = now() - 20 * MINUTE
        block = Block("eu-west", "dub1")
        sequence = hub.publish([block.new("web1", at), block.new("web2", at), block.watermark(at, now())])
        service.wait_through(sequence)

        def ordered(**order: Any) -> Answer:
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
            body = json.dumps({"author": "ann", "region": "eu-west", "site": "dub1", **order}).encode()
            return service.request("/api/v1/operations", method="POST", headers=headers, body=body)

        span = {"started_at_us": at, "ended_at_us": now() + 60 * MINUTE}
        named = ordered(kind="maintenance", why="new disk", block="nodes", senders=["web1"], **span)
        assert (named.status, named.json["revisions"]) == (200, [1])
        service.wait_through(sequence + 1)
        story = service.get("senders/eu-west/dub1/nodes/web1")
        assert story["sender"]["state"] == "maintenance"
        assert [(each["reason"], each["author"]) for each in story["maintenance"]] == [("new disk", "ann")]
        assert service.get("senders/eu-west/dub1/nodes/web2")["sender"]["state"] == "up"

        assert ordered(kind="forward", block="nodes", senders=["web2"]).json["revisions"] == [2]
        assert ordered(kind="cancel", revision=1).json["revisions"] == [3]
        service.wait_through(sequence + 3)
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
