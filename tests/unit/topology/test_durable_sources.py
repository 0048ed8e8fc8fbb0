"""Durable copies: starts and filters belong to consumers at the origin, which come, go and are mended with them."""

from pathlib import Path

import msgspec
import pytest

from aggregator.topology.desired.model import HUB, DesiredConsumer, Place
from aggregator.topology.desired.settings import TopologySettings
from aggregator.topology.desired.streams import desired
from aggregator.topology.observed.state import External, FoundConsumer, Replication, StreamState
from aggregator.topology.plan.changes import Action, plan
from aggregator.topology.plan.text import format_plan
from shared.settings import parse_settings
from tests.support.topology.topologies import EU, HUB_PLACE, TWO_REGIONS, US, applied, changes, topology, with_state

ORDERS = '[[stream]]\nname = "ORDERS"\nsubjects = ["ORDERS.*"]\n'
GATHER = '[[stream]]\nname = "ALL"\n[[stream.source]]\nname = "ORDERS"\n'
COPY = '[[stream]]\nname = "COPY"\n[stream.mirror]\nname = "ORDERS"\n'
ORDERS_KEY = HUB_PLACE, "ORDERS"
FILTERED = 'start_sequence = 3\nfilter_subject = "ORDERS.new"\n'


def durable_name(text: str) -> str:
    """Name the consumer of the one copy that a text speaks of."""
    (name,) = (each.name for each in desired(topology(text)) if isinstance(each, DesiredConsumer) and "@" in each.name)
    return name


def test_a_durable_source_has_its_start_and_filter_at_a_consumer_that_is_made_before_it() -> None:
    consumer, gathering = changes(ORDERS + GATHER + FILTERED, applied(ORDERS))
    assert (consumer.action, consumer.stream, consumer.place) == (Action.CREATE, "ORDERS", HUB_PLACE)
    wanted = {"deliver_policy": "by_start_sequence", "opt_start_seq": 3, "filter_subjects": ["ORDERS.new"]}
    assert wanted.items() <= consumer.config.items()
    (source,) = gathering.config["sources"]
    assert source == {
        "name": "ORDERS",
        "subject_transforms": [{"src": "ORDERS.new", "dest": ""}],
        "consumer": {"name": consumer.consumer, "deliver_subject": consumer.config["deliver_subject"]},
    }


def test_another_filter_is_another_consumer_and_the_old_one_goes_with_its_source() -> None:
    before, after = ORDERS + GATHER + FILTERED, ORDERS + GATHER + 'filter_subject = "ORDERS.*"\n'
    made, changed, gone = changes(after, applied(before))
    assert (made.action, made.consumer) == (Action.CREATE, durable_name(after))
    assert changed.destroys == "takes nothing more from ORDERS of this domain (ORDERS.new)"
    assert (gone.action, gone.consumer) == (Action.DELETE, durable_name(before))


def test_a_filtered_source_becomes_durable_and_plain_again_behind_what_it_has_taken() -> None:
    durable = ORDERS + GATHER + FILTERED
    plain = durable + 'sourcing = "plain"\n'
    found = applied(plain)
    with_state(found, HUB_PLACE, "ORDERS", StreamState(last_seq=60))
    with_state(found, HUB_PLACE, "ALL", StreamState(), Replication("ORDERS", filter_subject="ORDERS.new", seq=41))
    made, _ = changes(durable, found)
    assert (made.consumer, made.config["opt_start_seq"]) == (durable_name(durable), 42)
    found = applied(durable)
    taken = Replication("ORDERS", subject_transforms=[{"src": "ORDERS.new", "dest": ""}], seq=57)
    with_state(found, HUB_PLACE, "ORDERS", StreamState(last_seq=60))
    with_state(found, HUB_PLACE, "ALL", StreamState(), taken)
    changed, gone = changes(plain, found)
    assert changed.config["sources"] == [{"name": "ORDERS", "filter_subject": "ORDERS.new", "opt_start_seq": 58}]
    assert (gone.action, gone.consumer, changed.destroys, gone.destroys) == (
        Action.DELETE,
        durable_name(durable),
        "",
        "",
    )


def test_a_missing_consumer_is_made_again_with_its_start_and_a_replaced_copy_gets_a_new_one() -> None:
    text = ORDERS + GATHER + FILTERED
    found = applied(text)
    taken = Replication("ORDERS", subject_transforms=[{"src": "ORDERS.new", "dest": ""}], seq=57)
    with_state(found, HUB_PLACE, "ALL", StreamState(), taken)
    del found.consumers[HUB_PLACE, "ORDERS", durable_name(text)]
    aside, made, back = changes(text, found)
    assert (made.action, made.config["opt_start_seq"]) == (Action.CREATE, 3)
    assert (aside.config["sources"], aside.config["subjects"]) == ([], ["muster.aside.hub.ALL"])
    assert back.config == found.streams[HUB_PLACE, "ALL"].config
    again = changes(text.replace('name = "ALL"\n', 'name = "ALL"\nstorage = "memory"\n'), applied(text))
    assert [(change.action, change.stream, bool(change.consumer)) for change in again] == [
        (Action.REPLACE, "ORDERS", True),
        (Action.REPLACE, "ALL", False),
    ]


def test_a_copy_that_was_left_aside_is_taken_up_without_force_and_listens_to_nothing_again() -> None:
    text = ORDERS + GATHER
    found = applied(text)
    del found.consumers[HUB_PLACE, "ORDERS", "muster-ALL@hub"]
    aside, made, back = changes(text, found)
    all_ = found.streams[HUB_PLACE, "ALL"]
    # An apply that was killed behind its first step, and one behind its second.
    found.streams[HUB_PLACE, "ALL"] = msgspec.structs.replace(all_, config=aside.config, sources=[])
    again, taken_up = changes(text, found)
    assert again == made
    found.consumers[HUB_PLACE, "ORDERS", made.consumer] = FoundConsumer(made.config)
    assert changes(text, found) == (taken_up,)
    assert (taken_up.config, taken_up.destroys) == (back.config, "")
    assert "      subjects: muster.aside.hub.ALL -> none" in format_plan(plan(desired(topology(text)), found))


def test_a_consumer_that_was_made_by_an_apply_that_was_killed_then_starts_behind_what_was_taken_since() -> None:
    found = applied(ORDERS + GATHER + 'sourcing = "plain"\n')
    with_state(found, HUB_PLACE, "ORDERS", StreamState(last_seq=60))
    with_state(found, HUB_PLACE, "ALL", StreamState(), Replication("ORDERS", seq=41))
    made, durable = changes(ORDERS + GATHER, found)
    assert (made.action, made.config["opt_start_seq"]) == (Action.CREATE, 42)
    found.consumers[HUB_PLACE, "ORDERS", made.consumer] = FoundConsumer(made.config)
    with_state(found, HUB_PLACE, "ALL", StreamState(), Replication("ORDERS", seq=60))
    again, still_durable = changes(ORDERS + GATHER, found)
    assert (again.action, again.consumer, again.config["opt_start_seq"]) == (Action.REPLACE, made.consumer, 61)
    assert "starts: where it was -> behind what was taken" in format_plan(
        plan(desired(topology(ORDERS + GATHER)), found)
    )
    assert still_durable == durable


def test_a_renamed_place_gives_its_copies_other_consumers_and_nothing_is_taken_twice() -> None:
    text = ORDERS + GATHER
    found = applied(text)
    taken = Replication("ORDERS", seq=57)
    with_state(found, HUB_PLACE, "ORDERS", StreamState(last_seq=60))
    with_state(found, HUB_PLACE, "ALL", StreamState(), taken)
    main = Place(HUB, "main")
    found.levels[main] = found.levels.pop(HUB_PLACE)
    for name in [name for place, name in found.streams if place == HUB_PLACE]:
        found.streams[main, name] = found.streams.pop((HUB_PLACE, name))
    key = main, "ORDERS", "muster-ALL@hub"
    found.orphans[key] = found.consumers.pop((HUB_PLACE, *key[1:]))
    renamed = TWO_REGIONS.replace('domain = "hub"', 'domain = "main"') + text
    todo = plan(desired(parse_settings(renamed, TopologySettings, Path("t"))), found)
    made, changed, gone = todo.changes
    assert (made.action, made.consumer, made.config["opt_start_seq"]) == (Action.CREATE, "muster-ALL@main", 58)
    assert changed.config["sources"][0]["consumer"]["name"] == "muster-ALL@main"
    assert (gone.action, gone.consumer) == (Action.DELETE, "muster-ALL@hub")
    assert not todo.destructive
    shown = "source ORDERS of this domain: durable through muster-ALL@hub -> durable through muster-ALL@main"
    assert shown in format_plan(todo)
    # Before any message has come through it, what counts is where the old one started.
    with_state(found, main, "ALL", StreamState(), Replication("ORDERS"))
    found.orphans[key] = FoundConsumer(found.orphans[key].config | {"opt_start_seq": 42})
    assert (
        plan(desired(parse_settings(renamed, TopologySettings, Path("t"))), found).changes[0].config["opt_start_seq"]
        == 42
    )


@pytest.mark.parametrize("kind", ["[stream.source]", "stream.mirror"])
def test_a_copy_whose_place_is_renamed_keeps_its_consumer_while_its_origins_place_does_not_answer(kind: str) -> None:
    """Another consumer cannot be made there now; the next plan would take the source for one that reads through it."""
    copied = f'[{kind}]\nname = "O"\ndomain = "eu-west"\n'
    origin = '[[stream]]\nname = "O"\nplace = "eu-west"\nsubjects = ["o"]\n'
    text = f'{origin}[[stream]]\nname = "ALL"\n{copied}sourcing = "durable"\n'
    found = applied(text)
    taken = Replication("O", External(EU.api), seq=57)
    with_state(found, EU, "O", StreamState(last_seq=60))
    with_state(found, HUB_PLACE, "ALL", StreamState(messages=57, last_seq=57), *[taken] * ("source" in kind))
    main = Place(HUB, "main")
    found.levels[main] = found.levels.pop(HUB_PLACE)
    for name in [name for place, name in found.streams if place == HUB_PLACE]:
        found.streams[main, name] = found.streams.pop((HUB_PLACE, name))
    found.orphans[EU, "O", "muster-ALL@hub"] = found.consumers.pop((EU, "O", "muster-ALL@hub"))
    renaming = TWO_REGIONS.replace('domain = "hub"', 'domain = "main"')
    renamed = desired(parse_settings(renaming + text, TopologySettings, Path("t")))
    found.unreachable[EU] = "O's consumer muster-ALL@main is not available: no answer"
    todo = plan(renamed, found)
    assert (todo.changes, todo.left) == ((), ())
    del found.unreachable[EU]
    actions = [(change.action, change.consumer) for change in plan(renamed, found).changes]
    assert actions[0] == (Action.CREATE, "muster-ALL@main")
    assert actions[-1] == (Action.DELETE, "muster-ALL@hub")


@pytest.mark.parametrize(("sourcing", "is_told"), [("durable", True), ("plain", False)])
def test_a_copy_that_is_made_while_its_origins_place_does_not_answer_may_go_on_where_one_before_it_was(
    sourcing: str, is_told: bool
) -> None:
    """Its consumer may be left from that, and gives nothing twice. Nobody can ask; a region that is new has none."""
    text = f'[archive]\nsourcing = "{sourcing}"\n'
    found = applied(text)
    archive = found.streams.pop((HUB_PLACE, "ARCHIVE"))
    found.unreachable[EU] = "nobody answers"
    (made,) = [each for each in plan(desired(topology(text)), found).changes if each.stream == "ARCHIVE"]
    said = "eu-west gives no answer: if it was copied before, ARCHIVE will lack what was taken then; better wait for it"
    assert (made.action, made.destroys, made.remark) == (Action.CREATE, "", said if is_told else "")
    found.streams[HUB_PLACE, "ARCHIVE"] = archive
    in_memory = plan(desired(topology(f'{text}storage = "memory"\n')), found)
    (replaced,) = [each for each in in_memory.changes if each.stream == "ARCHIVE"]
    said = "begins without what eu-west will not send again: wait until it answers"
    assert (replaced.action, replaced.destroys) == (Action.REPLACE, said if is_told else "")


def test_a_source_of_what_is_not_there_is_plain_until_it_is() -> None:
    (change,) = changes(GATHER, applied(""))
    assert change.config["sources"] == [{"name": "ORDERS"}]
    found = applied(GATHER)
    found.streams[ORDERS_KEY] = applied(ORDERS).streams[ORDERS_KEY]
    assert "source ORDERS of this domain: plain -> durable" in format_plan(plan(desired(topology(GATHER)), found))


def test_a_mirror_is_durable_only_where_it_is_told_to_be() -> None:
    assert [change.stream for change in changes(ORDERS + COPY, applied(ORDERS))] == ["COPY"]
    consumer, copy = changes(ORDERS + COPY + 'sourcing = "durable"\n', applied(ORDERS))
    assert copy.config["mirror"]["consumer"]["name"] == consumer.consumer
    replaced = changes(ORDERS + COPY + 'sourcing = "durable"\n', applied(ORDERS + COPY))[-1]
    assert (replaced.action, replaced.stream) == (Action.REPLACE, "COPY")


# What was made for somebody who is gone


def test_a_consumer_whose_copy_is_gone_is_removed_and_one_that_is_still_read_through_is_not() -> None:
    text = ORDERS + GATHER
    found = applied(text)
    found.orphans[HUB_PLACE, "ORDERS", "muster-ALL@hub"] = found.consumers.pop((HUB_PLACE, "ORDERS", "muster-ALL@hub"))
    assert changes(ORDERS, found) == ()
    del found.streams[HUB_PLACE, "ALL"]
    (gone,) = changes(ORDERS, found)
    assert (gone.action, gone.consumer, gone.destroys) == (Action.DELETE, "muster-ALL@hub", "")
    # What gives no answer may be there, and read through it.
    found.silent[HUB_PLACE, "ALL", ""] = "no answer within 5 s"
    assert changes(ORDERS, found) == ()
    found.silent.clear()
    found.unreachable[HUB_PLACE] = "nobody answers"
    assert changes(ORDERS, found) == ()


def test_a_consumer_whose_copy_is_in_a_place_that_is_gone_is_removed_when_told_to() -> None:
    copy = '[[stream]]\nname = "ALL"\nplace = "us-east"\n[[stream.source]]\nname = "ORDERS"\ndomain = "hub"\n'
    found = applied(ORDERS + copy)
    name = "muster-ALL@us-east"
    found.orphans[HUB_PLACE, "ORDERS", name] = found.consumers.pop((HUB_PLACE, "ORDERS", name))
    one_region = TWO_REGIONS.replace('[[region]]\n    name = "us-east"', "")
    wanted = desired(parse_settings(one_region + ORDERS, TopologySettings, Path("t")))
    # Its domain answers, and it still reads through the consumer; then it does not answer any more.
    assert name not in {change.consumer for change in plan(wanted, found).changes}
    del found.levels[US]
    (gone,) = (change for change in plan(wanted, found).changes if change.consumer == name)
    assert (gone.action, gone.destroys) == (Action.DELETE, "gives ALL of us-east nothing more")
    # A place that is wanted and does not answer just now is not gone.
    found.unreachable[US] = "nobody answers"
    assert name not in {change.consumer for change in plan(wanted, found).changes}


def test_a_removed_sites_and_a_removed_regions_consumers_are_removed_when_told_to() -> None:
    sites = "".join(f'[[site]]\nname = "{name}"\nregion = "eu-west"\n' for name in ("dub1", "lon1"))
    found = applied("[policy]\n" + sites)
    for key in ((EU, "MUSTER_POLICY", "muster-lon1"), (HUB_PLACE, "MUSTER_POLICY", "@us-east")):
        (whole,) = [each for each in found.consumers if each[:2] == key[:2] and each[2].endswith(key[2])]
        found.orphans[whole] = found.consumers.pop(whole)
    one_region = TWO_REGIONS.replace('[[region]]\n    name = "us-east"', "")
    fewer = one_region + "[policy]\n" + sites.replace('[[site]]\nname = "lon1"\nregion = "eu-west"\n', "")
    # Whether the region that was removed answers does not matter.
    for _ in range(2):
        todo = plan(desired(parse_settings(fewer, TopologySettings, Path("t"))), found)
        assert [change.destroys for change in todo.changes if change.stream == "MUSTER_POLICY"] == [
            "tells lon1 nothing more of the policy",
            "tells us-east nothing more of the policy",
        ]
        found.levels.pop(US, None)
    unnamed = one_region + "[policy]\n"
    todo = plan(desired(parse_settings(unnamed, TopologySettings, Path("t"))), found)
    assert "muster-lon1" not in {change.consumer for change in todo.changes}


def test_a_relay_that_is_gone_takes_its_consumer_along_and_an_agents_own_stays() -> None:
    text = '[[relay]]\nname = "up"\nregion = "eu-west"\n'
    found = applied(text)
    key = EU, "FLEET", "muster-up-up"
    found.orphans[key] = found.consumers.pop(key)
    (gone,) = changes("", found)
    assert (gone.action, gone.place, gone.consumer) == (Action.DELETE, EU, "muster-up-up")
    assert gone.destroys == "lets the relay up read nothing more"
    own = {name: value for name, value in found.orphans[key].config.items() if name != "metadata"}
    found.orphans[key] = FoundConsumer(own | {"metadata": {"_nats.level": "0"}})
    assert changes("", found) == ()
    # Once the file names it, it is the file's, and keeps what else an operator noted on it.
    found.consumers[key] = FoundConsumer(own | {"metadata": {"owner": "ops"}})
    (marked,) = changes(text, found)
    assert (marked.action, marked.config["metadata"]) == (Action.UPDATE, {"owner": "ops", "muster.relay": "up"})
    assert "metadata: owner ops -> muster.relay up" in format_plan(plan(desired(topology(text)), found))


@pytest.mark.parametrize("messages", [0, 41])
def test_the_plan_says_where_something_may_be_taken_twice(messages: int) -> None:
    found = applied(ORDERS + GATHER + 'sourcing = "plain"\n')
    with_state(found, HUB_PLACE, "ORDERS", StreamState(last_seq=messages))
    with_state(
        found, HUB_PLACE, "ALL", StreamState(messages=messages, last_seq=messages), Replication("ORDERS", seq=messages)
    )
    shown = format_plan(plan(desired(topology(ORDERS + GATHER)), found))
    said = "  ~ update stream ALL\n      what comes in while this is applied may be taken twice\n"
    assert (said in shown) == bool(messages)


def test_what_is_to_be_removed_where_nobody_answers_is_told_and_not_tried() -> None:
    found = applied("")
    found.away[US] = "nobody answers"
    del found.levels[US], found.streams[US, "FLEET"], found.consumers[US, "FLEET", "muster-archive"]
    without = parse_settings(TWO_REGIONS.replace('[[region]]\n    name = "us-east"', ""), TopologySettings, Path("t"))
    todo = plan(desired(without), found)
    assert [(change.action, change.stream) for change in todo.changes] == [(Action.UPDATE, "ARCHIVE")]
    assert [(change.action, change.place, change.consumer) for change in todo.left] == [
        (Action.DELETE, US, "muster-archive")
    ]
    assert "us-east: does not answer, so muster-archive on FLEET stays: once it is back, nats --js" in format_plan(todo)


def test_where_nothing_that_counts_was_taken_a_source_that_turns_plain_starts_as_it_is_told() -> None:
    text = ORDERS + GATHER + "start_sequence = 100\n"
    found = applied(text)
    with_state(found, HUB_PLACE, "ORDERS", StreamState(last_seq=50))
    (changed, _) = changes(text + 'sourcing = "plain"\n', found)
    assert changed.config["sources"] == [{"name": "ORDERS", "opt_start_seq": 100}]
