"""Messages of every kind with the verdict that each deserves: the table of its rows, or the reason to quarantine it."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from aggregator.records.judge import QuarantineReason as Reason
from shared.instants import DAY, HOUR, LATEST, parse_instant
from shared.policy import CancelMaintenance, DeclareMaintenance, RetireSender, Scope, SetThresholds
from shared.thresholds import Thresholds
from tests.support.lakehouse.hub import Block, Message, said

AT = parse_instant("2026-02-03T04:05:06.000007Z")
DUB1 = Block("eu-west", "dub1")
ARCHIVED_AT = parse_instant("2026-02-03T05:00:00Z")
CHORIA = {
    "protocol": "io.choria.sr.v2.age_advisory",
    "event_id": "f3c9a2",
    "inspect_field": "sender",
    "value": "n1",
    "age": 754.25,
    "seen": AT // 10**6 - 754,
    "replicator": "dub1",
    "timestamp": AT // 10**6,
    "event": "timeout",
}


class Case(NamedTuple):
    """A message and its verdict: the name of a table, or the reason to quarantine it."""

    name: str
    message: Message
    becomes: str


def changed(message: Message, **fields: Any) -> Message:
    """Return a message with changed fields of its body; None removes a field."""
    body = {**json.loads(message.body), **fields}
    return message._replace(
        body=json.dumps({name: value for name, value in body.items() if value is not None}).encode()
    )


def cases() -> Iterator[Case]:
    stale = DUB1.stale("n1", AT)
    yield Case("advisory", stale, "advisories")
    yield Case("advisory with fields to come", changed(stale, colour="blue"), "advisories")
    yield Case("advisory without what has a default", changed(stale, rebuilt=None), "advisories")
    yield Case("advisory of another site", changed(stale, site="ams1"), Reason.CONTRADICTS_SUBJECT)
    yield Case("advisory of another kind", changed(stale, kind="new", event="new"), Reason.CONTRADICTS_SUBJECT)
    yield Case("advisory with two minds", changed(stale, event="recover"), Reason.CONTRADICTS_SUBJECT)
    yield Case("advisory without ordinal", changed(stale, ordinal=None), Reason.NOT_DECODABLE)
    yield Case("advisory of no incarnation", changed(stale, incarnation="1-" + "1" * 63), Reason.NOT_DECODABLE)
    yield Case("advisory about nobody", changed(stale, value=""), Reason.NOT_DECODABLE)
    yield Case("advisory of a text for a time", changed(stale, at_us="soon"), Reason.NOT_DECODABLE)
    yield Case(
        "advisory of six years ago",
        changed(stale, at_us=AT - 6 * 365 * DAY, last_seen_us=1),
        Reason.IMPLAUSIBLE_INSTANT,
    )
    yield Case("advisory that looks back for ever", changed(stale, last_seen_us=1), "advisories")
    unheard = DUB1.retired_unheard("n1", AT, AT + DAY)
    yield Case("retirement of an unheard sender", unheard, "advisories")
    yield Case("unheard beyond all time", changed(unheard, unheard_until_us=2**62), Reason.IMPLAUSIBLE_INSTANT)
    yield Case("unheard before all time", changed(unheard, unheard_until_us=-(2**63)), Reason.IMPLAUSIBLE_INSTANT)
    yield Case("advisory seen after it was stale", changed(stale, last_seen_us=AT + DAY), Reason.IMPLAUSIBLE_INSTANT)
    yield Case("advisory of 1970", changed(stale, at_us=DAY, last_seen_us=0), Reason.IMPLAUSIBLE_INSTANT)
    yield Case("advisory beyond all time", changed(stale, at_us=2**62), Reason.IMPLAUSIBLE_INSTANT)
    yield Case("advisory of the last instant", changed(stale, at_us=LATEST), "advisories")
    yield Case("advisory of the instant after", changed(stale, at_us=LATEST + 1), Reason.IMPLAUSIBLE_INSTANT)
    retiring = stale._replace(subject=DUB1.retired("n1", AT, AT).subject)
    yield Case("advisory on the subject of another kind", retiring, Reason.CONTRADICTS_SUBJECT)
    yield Case("no JSON", stale._replace(body=b"\x00stale"), Reason.NOT_DECODABLE)
    yield Case("no text", stale._replace(body=b"\xff\xfe{}"), Reason.NOT_TEXT)
    yield Case("nothing", stale._replace(body=b""), Reason.NOT_DECODABLE)
    yield Case("a list", stale._replace(body=b"[1, 2]"), Reason.NOT_DECODABLE)

    plain = Message(stale.subject, json.dumps(CHORIA).encode())
    yield Case("plain advisory on a site's subject", plain, "advisories")
    yield Case("plain advisory of another site", changed(plain, replicator="ams1"), Reason.CONTRADICTS_SUBJECT)
    yield Case("plain advisory of another event", changed(plain, event="new"), Reason.CONTRADICTS_SUBJECT)
    yield Case("plain advisory with half of ours", changed(plain, at_us=AT), Reason.NOT_DECODABLE)
    yield Case("plain advisory beyond all time", changed(plain, timestamp=2**60), Reason.IMPLAUSIBLE_INSTANT)
    yield Case("plain advisory on Choria's subject", plain._replace(subject="choria.advisories"), "advisories")
    strange = changed(plain, replicator="a.b")._replace(subject="choria.advisories")
    yield Case("plain advisory of no site's name", strange, Reason.NOT_DECODABLE)
    for number in (0, -1, 2**53, 2**63 - 1):
        yield Case(f"advisory of ordinal {number}", changed(stale, ordinal=number), Reason.NOT_DECODABLE)
    yield Case("advisory of the last ordinal", changed(stale, ordinal=2**53 - 1), "advisories")
    yield Case("advisory of an age", changed(stale, age=-2), Reason.NOT_DECODABLE)
    yield Case("advisory about a long name", changed(stale, value="n" * 1_024), "advisories")
    yield Case("advisory about a longer name", changed(stale, value="n" * 1_025), Reason.NOT_DECODABLE)
    yield Case("advisory of a long event", changed(stale, event_id="e" * 1_025), Reason.NOT_DECODABLE)
    for token in ("b" * 65, "b c", "b\u00fc"):
        unfit = stale._replace(subject=f"fleet.eu-west.dub1.{token}.advisory.stale")
        yield Case(f"advisory of block {token}", changed(unfit, block=token), Reason.UNKNOWN_SUBJECT)
    yield from cases_of_watermarks_and_registrations()
    yield from cases_of_policy()
    for subject in ("fleet", "fleet.a.b.c", "fleet.a.b.c.d", "fleet.a.b.c.advisory", "fleet.a.b.c.advisory.old",
                    "fleet.a.b.c.advisory.new.er", "fleet.a.b.c.copy", "fleet.a..c.watermark"):  # fmt: skip
        yield Case(f"subject {subject}", Message(subject, b"{}"), Reason.UNKNOWN_SUBJECT)


def cases_of_watermarks_and_registrations() -> Iterator[Case]:
    mark = DUB1.watermark(AT - HOUR, AT)
    yield Case("watermark", mark, "watermarks")
    yield Case("watermark of an older agent", changed(mark, rebuilt_at_us=None), "watermarks")
    yield Case("watermark of another block", changed(mark, block="others"), Reason.CONTRADICTS_SUBJECT)
    yield Case(
        "watermark that ends before it begins", changed(mark, observed_since_us=AT + 1), Reason.IMPLAUSIBLE_INSTANT
    )
    yield Case("watermark of a later protocol", changed(mark, protocol="muster:watermark:2"), Reason.NOT_DECODABLE)
    yield Case("watermark without counters", changed(mark, counters=None), Reason.NOT_DECODABLE)
    yield Case("watermark of too many senders", changed(mark, senders={"up": 2**63}), Reason.NOT_DECODABLE)
    yield Case("watermark of no incarnation", changed(mark, incarnation="1-" + "1" * 63), Reason.NOT_DECODABLE)
    yield Case("watermark of a store beyond all time", changed(mark, rebuilt_at_us=2**62), Reason.IMPLAUSIBLE_INSTANT)

    for name in ("sequence", "advisory_ordinal", "stale_after", "retire_after", "blind_after", "policy_revision"):
        for number in (-1, 2**53, 2**63 - 1):
            yield Case(f"watermark of {name} {number}", changed(mark, **{name: number}), Reason.NOT_DECODABLE)
        yield Case(f"watermark of the last {name}", changed(mark, **{name: 2**53 - 1}), "watermarks")
    yield Case("watermark of counts below 0", changed(mark, counters={"a": {"b": -1}}), Reason.NOT_DECODABLE)
    yield Case(
        "watermark of counts without end", changed(mark, outbox={str(each): 1 for each in range(1_001)}),
        Reason.NOT_DECODABLE,
    )  # fmt: skip
    yield Case("watermark rebuilt before all time", changed(mark, rebuilt_at_us=-1), Reason.IMPLAUSIBLE_INSTANT)

    sighting = DUB1.registration(b'{"sender": "n1"}', 7, AT)
    yield Case("registration", sighting, "registrations")
    yield Case("registration that is not JSON", sighting._replace(body=b"<n1/>"), "registrations")
    yield Case("copy", sighting._replace(subject="fleet.eu-west.dub1.nodes.copy.a.b"), "registrations")
    yield Case("registration without origin", sighting._replace(headers=None), Reason.NO_ORIGIN)
    other = Block("eu-west", "ams1").registration(b"{}", 7, AT)
    yield Case("registration of another site", sighting._replace(headers=other.headers), Reason.CONTRADICTS_SUBJECT)
    strange = DUB1.registration(b"{}", 7, AT)
    strange.headers["Muster-Origin"] = "eu-west.dub1.nodes.1-1.many"  # type: ignore[index]
    yield Case("registration of no number", strange, Reason.NO_ORIGIN)
    yield Case("registration of the last number", DUB1.registration(b"{}", 2**53 - 1, AT), "registrations")
    yield Case("registration of a larger number", DUB1.registration(b"{}", 2**53, AT), Reason.NO_ORIGIN)
    for length, becomes in ((1_024, "registrations"), (1_025, Reason.NOT_DECODABLE)):
        named = DUB1.registration(b"{}", 7, AT)
        named.headers["Muster-Sender"] = "n" * length  # type: ignore[index]
        yield Case(f"registration of a name of {length}", named, becomes)


def cases_of_policy() -> Iterator[Case]:
    site = Scope("eu-west", "dub1")
    window = said(site, 1, AT, DeclareMaintenance(AT, AT + HOUR, "new switch", ("n1",)))
    yield Case("maintenance of a sender", window, "policy")
    yield Case("thresholds of a region", said(Scope("eu-west"), 2, AT, SetThresholds(Thresholds())), "policy")
    yield Case("retirement", said(Scope("eu-west", "dub1", "nodes"), 3, AT, RetireSender("n1")), "policy")
    yield Case("cancellation", said(site, 4, AT, CancelMaintenance(1)), "policy")
    yield Case("maintenance backwards", said(site, 5, AT, DeclareMaintenance(AT, AT, "why")), Reason.NOT_DECODABLE)
    yield Case(
        "maintenance for ever", said(site, 6, AT, DeclareMaintenance(AT, 2**62, "why")), Reason.IMPLAUSIBLE_INSTANT
    )
    yield Case("policy of a later protocol", changed(window, protocol="muster:policy:2"), Reason.NOT_DECODABLE)
    yield Case("policy of another shape", changed(window, order={"kind": "sing"}), Reason.NOT_DECODABLE)
    for number in (0, -1, 2**53):
        unfit = said(site, 7, AT, CancelMaintenance(1))
        yield Case(f"cancellation of {number}", changed(unfit, order={"kind": "cancel", "revision": number}),
                   Reason.NOT_DECODABLE)  # fmt: skip
        unfit = said(site, 8, AT, SetThresholds(Thresholds()))
        order = {"kind": "thresholds", "thresholds": {"stale_after": number}}
        yield Case(f"thresholds of {number}", changed(unfit, order=order), Reason.NOT_DECODABLE)
    yield Case("retirement of a longer name", said(site, 9, AT, RetireSender("n" * 1_025)), Reason.NOT_DECODABLE)
    yield Case("policy for nobody", window._replace(subject="muster.policy.eu-west"), Reason.NOT_DECODABLE)


CASES = tuple(cases())
