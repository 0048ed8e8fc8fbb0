"""The last sample of a sender is found in the archive, whole within bounds, and only when somebody asks for it."""

from pathlib import Path
from urllib.parse import urlencode

import pytest

from aggregator.live.service.facts import MOST_TEXT
from shared.instants import HOUR, MINUTE
from shared.wire import SENDER_HEADER, sender_header
from tests.integration.live.test_serve import now
from tests.support.lakehouse.hub import Block, Hub, Message
from tests.support.live.live_service import Answer, LiveService, serving


def sample(block: Block, sender_id: str, sequence: int, body: bytes) -> Message:
    message = block.registration(body, sequence, now())
    return message._replace(headers={**(message.headers or {}), SENDER_HEADER: sender_header(sender_id)})


def asked(service: LiveService, sender_id: str) -> Answer:
    place = {"region": "eu-west", "site": "dub1", "block": "nodes", "sender": sender_id}
    return service.request(f"/api/v1/facts?{urlencode(place)}")


@pytest.mark.parametrize("reading", ["consumer", "direct"])
def test_the_last_sample_of_a_sender_is_found_whatever_else_its_block_sends(reading: str, tmp_path: Path) -> None:
    at, dub1, ber1 = now() - 20 * MINUTE, Block("eu-west", "dub1"), Block("eu-west", "ber1")
    names = ["web1", "b\u00fcro 7%", "web1.example.net", "quiet", "long ago"]
    body = b'{"kernel": "6.1\xff", "said": "\xe2\x80\xae"}' + b" " * MOST_TEXT
    with Hub(tmp_path / "hub") as hub:
        hub.publish([dub1.new("long ago", at - 30 * HOUR), *(dub1.new(name, at) for name in names[:-1])])
        samples = [sample(dub1, name, number, b"{}") for number, name in enumerate(names[:3])]
        samples += [sample(dub1, "b\u00fcro 7%", 7, body), sample(dub1, "web1", 8, b"[1]")]
        samples.append(sample(ber1, "web1", 9, b"no"))
        last = hub.publish([*samples, dub1.watermark(at, now())])
        with serving(tmp_path, hub.connection, 'unknown_after = "1h"\n', reading=reading) as service:
            service.wait_through(last)
            found = asked(service, "web1").json
            told = {name: found[name] for name in ("text", "size", "reason", "sequence")}
            assert told == {"text": "[1]", "size": 3, "reason": "interval", "sequence": last - 2}
            assert at < found["archived_at_us"] <= now()
            found = asked(service, "b\u00fcro 7%").json
            assert (found["size"], len(found["text"].encode())) == (len(body), MOST_TEXT + 2)
            assert found["text"].startswith('{"kernel": "6.1\ufffd", "said": "\u202e"}')
            for nothing in ("quiet", "long ago", "never heard of"):
                assert asked(service, nothing).status == 404
