"""Two agents are a pair where their files say so and fit together; where they do not, one line says why."""

from pathlib import Path

import msgspec
import pytest

from edge_agent.config.agent import AgentSettings
from edge_agent.pair.peer import PairRefused, check_key_file, difference, writer_of
from tests.support.agent.agent_file import COMPLETE, SMALLEST, complaint, parsed

KEY, OTHER_KEY = bytes(32), bytes(31) + b"x"
PATH = Path("/var/lib/muster-agent/agent.db.id-key")
MEMBERS = 'members = ["dub1-a", "dub1-b"]'


def paired(text: str = COMPLETE, pair: str = MEMBERS) -> str:
    return f"{text}\n[pair]\n{pair}\n"


def member(name: str, text: str = SMALLEST) -> AgentSettings:
    return parsed(paired(f'name = "{name}"\n{text}'))


def test_each_member_reads_through_a_consumer_of_its_own() -> None:
    assert [each.consumer_of(each.stream[0]) for each in (member("dub1-a"), member("dub1-b"))] == [
        "muster-dub1-nodes-dub1-a",
        "muster-dub1-nodes-dub1-b",
    ]
    assert parsed(paired()).consumer_of(parsed(COMPLETE).stream[0]) == "muster-dub1-dub1-a"


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ('members = ["dub1-a"]', "members must be two names, each agent's own"),
        ('members = ["dub1-a", "dub1-a"]', "members must be two names, each agent's own"),
        ('members = ["dub1-a", "dub1.b"]', "the member 'dub1.b' is not usable in a subject"),
        ('members = ["dub1-b", "dub1-c"]', "this agent is 'dub1-a', pair.members are dub1-b and dub1-c"),
        (f'{MEMBERS}\ntakeover_after = "999ms"', "takeover_after must be 1s or longer"),
        ('takeover_after = "5s"', "without members there is no pair, and nothing else here has an effect"),
        (f'{MEMBERS}\nhand_over_after = "0s"', "hand_over_after must be 1s or longer"),
    ],
)
def test_a_pair_that_cannot_be_is_refused(pair: str, said: str) -> None:
    assert said in complaint(paired(pair=pair))


def test_only_samples_are_a_pairs() -> None:
    relaying = paired(COMPLETE.replace('mode = "sample"', 'mode = "relay"', 1))
    assert "the block 'nodes' has mode 'relay', and a pair only samples" in complaint(relaying)


def test_the_second_member_does_not_draw_a_secret_of_its_own(tmp_path: Path) -> None:
    here = SMALLEST.replace("[[stream]]", f'id_key_file = "{tmp_path}/key"\n[[stream]]', 1)
    check_key_file(member("dub1-a", here))
    with pytest.raises(PairRefused, match="there is none; both members need the same: copy the id key file of dub1-a"):
        check_key_file(member("dub1-b", here))
    (tmp_path / "key").write_text("00ff")
    with pytest.raises(PairRefused, match="2 bytes; both members need the same: copy the id key file of dub1-a"):
        check_key_file(member("dub1-b", here))


def test_members_that_fit_differ_in_nothing() -> None:
    a, b = (writer_of(member(name), KEY, f"boot of {name}") for name in ("dub1-a", "dub1-b"))
    assert difference(a, b, PATH) == ""
    assert KEY.hex() not in msgspec.json.encode(a).decode()


def test_another_secret_or_another_sender_is_told_with_the_remedy() -> None:
    ours, theirs = writer_of(member("dub1-b"), OTHER_KEY, ""), writer_of(member("dub1-a"), KEY, "")
    remedy = (
        f"copy the id key file of dub1-a, beside its store or where upstream.id_key_file says, to {PATH} (mode 600)"
    )
    assert difference(ours, theirs, PATH) == f"id key file {PATH} is not that of dub1-a: {remedy}"
    other = SMALLEST.replace('json_path = "sender"', 'header = "Sender"')
    ours = writer_of(member("dub1-b", other), KEY, "")
    assert difference(ours, theirs, PATH).startswith("stream block nodes is set otherwise than at dub1-a: ")
    elsewhere = SMALLEST.replace('stream = "REGISTRATION"', 'stream = "REGISTRATION"\ndomain = "site"')
    ours = writer_of(member("dub1-b", elsewhere), KEY, "")
    assert "dub1-a: stream, domain, filter, " in difference(ours, theirs, PATH)
    # Thresholds are taken from who leads, and links are each host's own.
    same = SMALLEST.replace("4222", "4223") + '[stream.policy]\nstale_after = "13m"\n'
    assert difference(writer_of(member("dub1-b", same), KEY, ""), theirs, PATH) == ""
