"""Decisions become records: golden bytes, exact headers, ids that are derived, and payloads left as they are."""

import hashlib
import json

import msgspec
import pytest

from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import Advise, CloseCoverage, Decision, Forward
from edge_agent.core.observation import SourceMessage
from edge_agent.core.policy import Policy
from edge_agent.core.records import RECORD_OVERHEAD, Emitter, Lane, OutboxRow, WatermarkContext, size_of
from shared.identifiers import AdvisoryKind, BlockId, Incarnation, SourcePosition
from shared.instants import DAY, HOUR, MINUTE
from shared.wire import ForwardReason

KEY = b"sixteen byte key"
EMITTER = Emitter(BlockId("eu-west", "dub1", "nodes"), "dub1-a", "6f1c0f0e", "0.1.0", "sender", KEY)
PAST = Incarnation(created_at=1_769_817_600_000_000, epoch_ms=1_769_817_700_123)
SEEN_AT = 1_769_817_725_999_999
AT = 1_769_818_445_999_999
STATE = BlockState(
    position=SourcePosition("REGISTRATION", PAST, 4711, SEEN_AT),
    policy=Policy(sample_interval=HOUR, stale_after=12 * MINUTE, retire_after=DAY, blind_after=3 * MINUTE),
    observed_since=1_769_817_700_000_000,
    observed_through=AT,
    advisory_ordinal=4,
    rebuilt_at=1_769_817_700_000_001,
    counters={"valid": {"registrations": 4000}, "rejected": {"no_sender": 3}},
)
CONTEXT = WatermarkContext(
    senders={"heard": 598, "stale": 2},
    outbox={"advisories": 1, "registrations": 20},
    outbox_counters={"compacted": {"newer_sample": 12}},
)
STALE = Advise(
    kind=AdvisoryKind.STALE,
    sender_id="n1.example.net",
    at=AT,
    last_seen_at=SEEN_AT,
    incarnation=PAST,
    sequence=4711,
    opening_incarnation=PAST,
    opening_sequence=17,
    ordinal=1,
)
GOLDEN_STALE = (
    b'{"protocol":"io.choria.sr.v2.age_advisory","event_id":"552454398591bba617b67b0a3d77e425",'
    b'"inspect_field":"sender","value":"n1.example.net","age":720,"seen":1769817725,"replicator":"dub1",'
    b'"timestamp":1769818445,"event":"timeout","kind":"stale","region":"eu-west","site":"dub1",'
    b'"block":"nodes","at_us":1769818445999999,"last_seen_us":1769817725999999,"stream":"REGISTRATION",'
    b'"incarnation":"1769817600000000-1769817700123","sequence":4711,"opening_sequence":17,"ordinal":1,'
    b'"rebuilt":false}'
)
GOLDEN_NEW = (
    b'{"protocol":"io.choria.sr.v2.age_advisory","event_id":"3ed4ddcb6ddaf0e141455cfd0cbba20c",'
    b'"inspect_field":"sender","value":"n1.example.net","age":-1,"seen":1769818445,"replicator":"dub1",'
    b'"timestamp":1769818445,"event":"new","kind":"new","region":"eu-west","site":"dub1","block":"nodes",'
    b'"at_us":1769818445999999,"last_seen_us":1769818445999999,"stream":"REGISTRATION",'
    b'"incarnation":"1769817600000000-1769817700123","sequence":17,"opening_sequence":17,"ordinal":4,'
    b'"rebuilt":true}'
)
GOLDEN_WATERMARK = (
    b'{"protocol":"muster:watermark:1","region":"eu-west","site":"dub1","block":"nodes","agent":"dub1-a",'
    b'"observed_since_us":1769817700000000,"observed_through_us":1769818445999999,"stream":"REGISTRATION",'
    b'"incarnation":"1769817600000000-1769817700123","sequence":4711,"advisory_ordinal":4,'
    b'"senders":{"heard":598,"stale":2},"outbox":{"advisories":1,"registrations":20},'
    b'"counters":{"valid":{"registrations":4000},"rejected":{"no_sender":3},"compacted":{"newer_sample":12}},'
    b'"stale_after":720000000,"retire_after":86400000000,"blind_after":180000000,"policy_revision":0,'
    b'"version":"0.1.0","boot_id":"6f1c0f0e","rebuilt_at_us":1769817700000001}'
)


def rows_of(*decisions: Decision, emitter: Emitter = EMITTER, state: BlockState = STATE) -> list[OutboxRow]:
    return emitter.rows(list(decisions), state, CONTEXT)


def derived(*identity: str | int, key: bytes = KEY) -> str:
    """Derive a message id as the contract says it, by other means than the agent's."""
    body = json.dumps(["eu-west", "dub1", "nodes", *identity], separators=(",", ":")).encode()
    return hashlib.blake2b(body, digest_size=16, key=key).hexdigest()


def forward(
    payload: bytes = b"{}",
    *,
    headers: dict[str, str] | None = None,
    sender_id: str = "n1.example.net",
    reason: ForwardReason = ForwardReason.INTERVAL,
) -> Forward:
    return Forward(sender_id, SourceMessage("registration.dub1", payload, headers, 4711, SEEN_AT), reason)


# Advisories


def test_advisory_is_a_row_of_golden_bytes() -> None:
    assert rows_of(STALE) == [
        OutboxRow(
            lane=Lane.ADVISORIES,
            block="nodes",
            subject="fleet.eu-west.dub1.nodes.advisory.stale",
            headers={"Nats-Msg-Id": derived("advisory", "552454398591bba617b67b0a3d77e425", str(PAST), 1)},
            payload=GOLDEN_STALE,
        )
    ]


def test_rebuilt_advisory_of_a_new_sender_is_golden() -> None:
    new = msgspec.structs.replace(STALE, kind=AdvisoryKind.NEW, last_seen_at=AT, sequence=17, ordinal=4, rebuilt=True)
    assert [(row.subject, row.payload) for row in rows_of(new)] == [
        ("fleet.eu-west.dub1.nodes.advisory.new", GOLDEN_NEW)
    ]


def test_advisory_belongs_to_the_incarnation_that_it_was_decided_in() -> None:
    """The state may have gone on to another past by the time that the row is written."""
    later = msgspec.structs.replace(STATE, position=SourcePosition("REGISTRATION", Incarnation(5, 6), 1))
    assert rows_of(STALE, state=later) == rows_of(STALE)


def test_advisory_id_is_the_same_for_every_agent_boot_and_version_of_the_site() -> None:
    other = msgspec.structs.replace(EMITTER, agent="dub1-b", boot_id="other", version="9.9")
    assert rows_of(STALE, emitter=other) == rows_of(STALE)


# Registrations


def test_registration_is_a_row_of_the_senders_bytes_and_exact_headers() -> None:
    payload = b' { "sender":\t"n1.example.net", "x": 1.0e0 }\x00\xff\r\n'
    headers = {"Content-Type": "application/json", "x-trace": "a: b"}
    assert rows_of(forward(payload, headers=headers)) == [
        OutboxRow(
            lane=Lane.REGISTRATIONS,
            block="nodes",
            subject="fleet.eu-west.dub1.nodes.registration",
            headers={
                "Content-Type": "application/json",
                "x-trace": "a: b",
                "Muster-Sender": "n1.example.net",
                "Muster-Origin": "eu-west.dub1.nodes.1769817600000000-1769817700123.4711",
                "Choria-SR-Source": "REGISTRATION 4711 dub1 nodes 1769817725999",
                "Muster-Reason": "interval",
                "Nats-Msg-Id": derived("registration", "1769817600000000-1769817700123", 4711),
            },
            payload=payload,
            sender_id="n1.example.net",
            headers_size=len("Content-Type: application/json\r\nx-trace: a: b\r\nMuster-Sender: n1.example.net\r\n"),
        )
    ]


@pytest.mark.parametrize("reason", ForwardReason)
def test_reason_is_told_in_a_header(reason: ForwardReason) -> None:
    assert rows_of(forward(reason=reason))[0].headers["Muster-Reason"] == reason.value


@pytest.mark.parametrize(
    "name",
    [
        "Nats-Msg-Id",
        "Nats-Expected-Stream",
        "Nats-Expected-Last-Sequence",
        "Nats-Rollup",
        "Nats-TTL",
        "nats-ttl",
        "NATS-SCHEDULE",
    ],
)
def test_header_that_would_command_the_regions_server_is_dropped(name: str) -> None:
    kept = rows_of(forward(headers={"X-Kept": "1"}))[0].headers
    assert rows_of(forward(headers={name: "1", "X-Kept": "1"}))[0].headers == kept


@pytest.mark.parametrize("name", ["", "two words", "umläut", "colon:", "new\nline"])
def test_header_that_no_client_may_send_is_dropped(name: str) -> None:
    assert rows_of(forward(headers={name: "1"})) == rows_of(forward())


@pytest.mark.parametrize(
    "name", ["Muster-Sender", "muster-sender", "MUSTER-ORIGIN", "Muster-Reason", "Muster-Later", "choria-sr-source"]
)
@pytest.mark.parametrize("sender_id", ["n1.example.net", ""])
def test_sender_cannot_forge_the_headers_of_the_agent(name: str, sender_id: str) -> None:
    forged = rows_of(forward(headers={name: "forged"}, sender_id=sender_id))
    assert forged == rows_of(forward(sender_id=sender_id))


def test_registration_names_its_sender_unless_nobody_was_identified() -> None:
    (row,), (nobodys,) = rows_of(forward(sender_id="büro 7\n")), rows_of(forward(sender_id=""))
    assert row.headers["Muster-Sender"] == "b%C3%BCro 7%0A"
    assert "Muster-Sender" not in nobodys.headers
    # A name may be longer than all else that is counted once for every record.
    assert row.size - nobodys.size == len("Muster-Sender: b%C3%BCro 7%0A\r\n")


def test_headers_that_merely_look_like_commands_are_kept() -> None:
    row = rows_of(forward(headers={"X-Nats-TTL": "1", "Natsy": "2"}))[0]
    assert (row.headers["X-Nats-TTL"], row.headers["Natsy"]) == ("1", "2")


def test_message_without_a_sender_is_never_replaced_by_another() -> None:
    assert rows_of(forward(sender_id=""))[0].sender_id == ""


# Watermarks


def test_watermark_is_a_row_of_golden_bytes() -> None:
    assert EMITTER.watermark(STATE, CONTEXT) == OutboxRow(
        lane=Lane.ADVISORIES,
        block="nodes",
        subject="fleet.eu-west.dub1.nodes.watermark",
        headers={"Nats-Msg-Id": derived("watermark", "dub1-a", "6f1c0f0e", AT)},
        payload=GOLDEN_WATERMARK,
        watermark_since=1_769_817_700_000_000,
    )


def test_watermark_names_the_store_by_the_instant_at_which_it_began() -> None:
    named = msgspec.structs.replace(STATE, store_began_at=1_769_817_700_000_002)
    row = EMITTER.watermark(named, CONTEXT)
    assert row.payload == GOLDEN_WATERMARK[:-1] + b',"store_began_us":1769817700000002}'


def test_watermark_of_an_instant_that_was_claimed_before_claims_the_same() -> None:
    later = msgspec.structs.replace(
        STATE, position=SourcePosition("REGISTRATION", PAST, 4712, AT), observed_since=AT, advisory_ordinal=5
    )
    assert EMITTER.watermark(later, msgspec.structs.replace(CONTEXT, claim=STATE)).payload == GOLDEN_WATERMARK
    claim = msgspec.structs.replace(STATE, observed_through=AT - 1)
    assert EMITTER.watermark(later, msgspec.structs.replace(CONTEXT, claim=claim)).payload != GOLDEN_WATERMARK


def test_closing_watermark_vouches_for_the_coverage_that_ended() -> None:
    """The state is the one after the blind span; thresholds, counters and the rest are those of the commit."""
    ended = CloseCoverage(1_769_817_700_000_000, AT, 4, STATE.position)
    after = msgspec.structs.replace(
        STATE,
        position=SourcePosition("REGISTRATION", Incarnation(5, 6), 1),
        observed_since=AT + HOUR,
        observed_through=AT + HOUR,
        advisory_ordinal=0,
    )
    assert rows_of(ended, state=after) == [EMITTER.watermark(STATE, CONTEXT)]


def test_only_watermarks_are_barriers() -> None:
    ended = CloseCoverage(1_769_817_700_000_000, AT, 4, STATE.position)
    assert [row.is_watermark for row in rows_of(STALE, forward(), ended)] == [False, False, True]


# Ids


@pytest.mark.parametrize(
    "decision",
    [STALE, forward(), CloseCoverage(1, AT, 4, STATE.position)],
    ids=["advisory", "registration", "watermark"],
)
def test_message_id_cannot_be_guessed_without_the_sites_key(decision: Decision) -> None:
    other = msgspec.structs.replace(EMITTER, key=b"another site's k")
    [row], [row_of_other] = rows_of(decision), rows_of(decision, emitter=other)
    assert row.headers["Nats-Msg-Id"] != row_of_other.headers["Nats-Msg-Id"]
    assert (row.payload, row.subject) == (row_of_other.payload, row_of_other.subject)


def test_message_id_is_the_same_however_often_it_is_derived() -> None:
    assert rows_of(STALE, forward()) == rows_of(STALE, forward())


def test_registration_id_does_not_depend_on_the_reason() -> None:
    """Sent again after a crash, the same message may be due for another reason."""
    forced = rows_of(forward(reason=ForwardReason.FORCED))[0]
    assert forced.headers["Nats-Msg-Id"] == rows_of(forward())[0].headers["Nats-Msg-Id"]


@pytest.mark.parametrize("changed", [{"agent": "dub1-b"}, {"boot_id": "other"}])
def test_watermarks_of_two_agents_or_boots_are_two_records(changed: dict[str, str]) -> None:
    other = msgspec.structs.replace(EMITTER, **changed).watermark(STATE, CONTEXT)
    assert other.headers["Nats-Msg-Id"] != EMITTER.watermark(STATE, CONTEXT).headers["Nats-Msg-Id"]


def test_decisions_become_rows_in_their_order() -> None:
    ended = CloseCoverage(1, AT, 4, STATE.position)
    rows = rows_of(STALE, ended, forward(), msgspec.structs.replace(STALE, kind=AdvisoryKind.RETIRED))
    assert [row.subject.removeprefix("fleet.eu-west.dub1.nodes.") for row in rows] == [
        "advisory.stale",
        "watermark",
        "registration",
        "advisory.retired",
    ]


def test_size_counts_the_payload_and_what_every_record_takes() -> None:
    assert rows_of(forward(b"x" * 1000, sender_id=""))[0].size == 1000 + RECORD_OVERHEAD
    assert rows_of(STALE)[0].headers_size == 0


def test_size_counts_the_headers_that_go_on_with_a_message() -> None:
    rows = rows_of(forward(b"x" * 1000, headers={"X-Own": "y" * 4000, "Nats-Msg-Id": "z" * 500}, sender_id="a"))
    assert rows[0].size == 1000 + RECORD_OVERHEAD + len("X-Own: \r\nMuster-Sender: a\r\n") + 4000
    assert size_of(rows * 3) == 3 * rows[0].size


def test_prefix_changes_the_subjects_and_nothing_else() -> None:
    elsewhere = msgspec.structs.replace(EMITTER, prefix="choria.fleet")
    closing = CloseCoverage(STATE.observed_since, AT, 4, STATE.position)
    ours, theirs = rows_of(STALE, closing), rows_of(STALE, closing, emitter=elsewhere)
    assert [row.subject for row in theirs] == ["choria.fleet.advisory.stale", "choria.fleet.watermark"]
    assert [msgspec.structs.replace(row, subject="") for row in theirs] == [
        msgspec.structs.replace(row, subject="") for row in ours
    ]
