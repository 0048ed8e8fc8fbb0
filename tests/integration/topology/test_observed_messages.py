"""Answers that are no delivery of a stream."""

from pathlib import Path

import msgspec
import pytest
from nats.aio.msg import Msg

from aggregator.topology.desired.model import Place
from aggregator.topology.observed.messages import read_messages, see_message
from shared.nats.connection import connect
from shared.nats.jetstream_api import RequestFailed
from tests.support.nats.one_server import server_in, settings_for

STREAM = Place("hub", "elsewhere"), "S"


@pytest.mark.parametrize(
    "reply", ["", "a.b", "a.b.S.c.1.x.1.1.0", "a.b.S.c.1.1.1.-1000000.0", f"a.b.S.c.1.1.1.{10**30}.0"]
)
async def test_a_message_that_is_no_delivery_is_one_clear_failure(tmp_path: Path, reply: str) -> None:
    """No server has JetStream in that domain, so that only the test answers."""
    async with server_in(tmp_path) as server:
        client = await connect(settings_for(server), name="reader", deadline=60)
        other = await connect(settings_for(server), name="somebody else", deadline=60)

        async def answer(request: Msg) -> None:
            if "MSG.NEXT" in request.subject:
                await other.publish(request.reply, b"{}", reply=reply)
            else:
                await other.publish(request.reply, msgspec.json.encode({"name": "c", "num_pending": 1}))

        await other.subscribe(f"{STREAM[0].api}.>", cb=answer)
        await other.flush()
        with pytest.raises(RequestFailed, match="^S: not a delivery: "):
            _ = [each async for each in read_messages(client, STREAM, "a.>")]
        with pytest.raises(RequestFailed, match="^S: not a delivery: "):
            await see_message(client, STREAM, {}, "a.>")
        await client.close()
        await other.close()
