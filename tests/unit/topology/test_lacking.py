"""What is lacking is told as what helps: consumers that went, origins that were made anew, what gives no answer."""

import msgspec

from aggregator.topology.desired.streams import desired
from aggregator.topology.observed.state import External, Replication, StreamState
from aggregator.topology.report.checks import Limits, check
from aggregator.topology.report.evidence import HubFacts
from aggregator.topology.report.findings import CheckStatus
from aggregator.topology.report.tables import report
from aggregator.topology.report.text import format_report
from shared.instants import SECOND
from tests.support.topology.topologies import EU, HUB_PLACE, applied, as_applied, topology, with_state

NOW = 1_800_000_000 * SECOND


def test_a_stream_that_is_only_copied_and_gives_no_answer_is_told_too() -> None:
    text = '[[stream]]\nname = "ALL"\n[[stream.source]]\nname = "ORDERS"\nfilter_subject = "ORDERS.new"\n'
    found = applied(text)
    found.silent[HUB_PLACE, "ORDERS", ""] = "no answer within 5 s"
    findings = check(topology(text), desired(topology(text)), found, HubFacts(now=NOW), Limits())
    said = "ORDERS is not available: no answer within 5 s"
    assert (CheckStatus.CRITICAL, said) in [(each.severity, each.text) for each in findings]
    shown = report(desired(topology(text)), found)
    assert not shown.complete
    assert f"hub: {said}" in format_report(shown).splitlines()


def test_of_an_origin_made_anew_whose_consumer_went_with_it_only_that_is_said() -> None:
    """To take it anew by another filter is not needed then."""
    text = '[[stream]]\nname = "O"\nsubjects = ["o"]\n[[stream]]\nname = "ALL"\n[[stream.source]]\nname = "O"\n'
    found = applied(text)
    with_state(found, HUB_PLACE, "O", StreamState(messages=3, last_seq=3))
    taken = Replication("O", active=10**9, seq=50)
    with_state(found, HUB_PLACE, "ALL", StreamState(messages=50, last_seq=50), taken)

    def said() -> list[str]:
        findings = check(topology(text), desired(topology(text)), found, HubFacts(now=NOW), Limits())
        return [each.text for each in findings if "ALL" in each.text]

    (beyond,) = said()
    assert beyond.endswith("is left out: with another filter apply --force takes it anew")
    del found.consumers[HUB_PLACE, "O", "muster-ALL@hub"]
    assert said() == ["O lacks the consumer muster-ALL@hub, ALL of hub takes nothing from it: apply makes it again"]


def test_a_durable_mirror_that_holds_what_its_origin_was_is_told_of_beside_its_lacking_consumer() -> None:
    """The consumer alone does not help it: it is made again, which asks for --force."""
    text = "[policy]\n"
    found = applied(text)
    key = EU, "MUSTER_POLICY"
    with_state(found, HUB_PLACE, "MUSTER_POLICY", StreamState(messages=3, last_seq=3))
    found.streams[key] = msgspec.structs.replace(
        found.streams[key],
        state=StreamState(messages=50, last_seq=50),
        mirror=Replication("MUSTER_POLICY", External(HUB_PLACE.api), active=10**9),
    )
    (name,) = [each[2] for each in found.consumers if each[1] == "MUSTER_POLICY" and each[2].endswith("@eu-west")]
    del found.consumers[HUB_PLACE, "MUSTER_POLICY", name]
    findings = check(topology(text), desired(topology(text)), found, HubFacts(now=NOW), Limits())
    said = [each.text for each in findings if each.place == "eu-west"]
    assert [each.rpartition(": ")[2] for each in said] == ["apply makes it again"]
    assert "MUSTER_POLICY holds what MUSTER_POLICY of hub was before" in said[0]


def test_one_lacking_consumer_hides_no_other_source_of_the_same_origin() -> None:
    text = '[[stream]]\nname = "O"\nsubjects = ["o.*"]\n[[stream]]\nname = "ALL"\n'
    text += "".join(f'[[stream.source]]\nname = "O"\nfilter_subject = "o.{each}"\n' for each in "ab")
    found = applied(text)
    with_state(found, HUB_PLACE, "O", StreamState(messages=3, last_seq=3))
    taken = [
        Replication("O", subject_transforms=[{"src": f"o.{each}", "dest": ""}], active=10**9, seq=seq)
        for each, seq in (("a", 50), ("b", 60))
    ]
    with_state(found, HUB_PLACE, "ALL", StreamState(messages=50, last_seq=50), *taken)
    names = [key[2] for key, each in found.consumers.items() if each.config.get("filter_subjects") == ["o.a"]]
    for name in names:
        del found.consumers[HUB_PLACE, "O", name]
    findings = check(topology(text), desired(topology(text)), found, HubFacts(now=NOW), Limits())
    (lacking, left_out) = sorted(each.text for each in findings if " O" in each.text or "O " in each.text)[::-1]
    assert f"O lacks the consumer {names[0]}" in lacking
    assert "ALL has taken O of hub up to 60" in left_out


def test_a_missing_consumer_is_told_by_who_read_through_it() -> None:
    text = '[policy]\n[[site]]\nname = "dub1"\nregion = "eu-west"\n[[relay]]\nname = "up"\nregion = "eu-west"\n'
    wanted = desired(topology(text))
    found = as_applied(wanted)
    found.consumers.clear()
    said = [each.text for each in check(topology(text), wanted, found, HubFacts(now=NOW), Limits())]
    copying = "muster-MUSTER_POLICY-8a300f51@eu-west"
    assert sorted(
        each.removesuffix(": apply makes it again") for each in said if "lacks" in each and "us-" not in each
    ) == [
        "FLEET lacks the consumer muster-archive, ARCHIVE of hub takes nothing from it",
        "FLEET lacks the consumer muster-archive, ARCHIVE of hub takes nothing from it",
        "FLEET lacks the consumer muster-up-up, its relay passes nothing on",
        f"MUSTER_POLICY lacks the consumer {copying}, MUSTER_POLICY of eu-west takes nothing from it",
        "MUSTER_POLICY lacks the consumer muster-dub1, its site hears nothing of it",
    ]
