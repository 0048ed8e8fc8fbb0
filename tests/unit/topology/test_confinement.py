"""What comes from a region is confined to it: without loss, also after a restore and an apply that ended half-way."""

from pathlib import Path

import msgspec
import pytest

from aggregator.topology.desired.confinement import confined_to, is_confined
from aggregator.topology.desired.settings import TopologySettings
from aggregator.topology.desired.streams import desired
from aggregator.topology.observed.state import AckFloor, External, Found, FoundConsumer, Replication, StreamState
from aggregator.topology.plan.changes import Action, plan
from aggregator.topology.plan.text import format_plan
from aggregator.topology.report.checks import Limits, check
from aggregator.topology.report.evidence import HubFacts
from shared.settings import parse_settings
from tests.support.topology.topologies import EU, HUB_PLACE, TWO_REGIONS, US, as_applied, topology, with_state


@pytest.mark.parametrize("sourcing", ["durable", "plain"])
def test_an_archive_that_was_laid_out_without_is_confined_behind_what_it_has_taken(sourcing: str) -> None:
    wanted = desired(topology(f'[archive]\nsourcing = "{sourcing}"\n'))
    found = as_applied(wanted)
    archive = found.streams[HUB_PLACE, "ARCHIVE"].config
    archive["sources"] = [
        {key: value for key, value in source.items() if key != "subject_transforms"} for source in archive["sources"]
    ]
    taken = [Replication("FLEET", External(place.api), seq=seq) for place, seq in ((EU, 57), (US, 41))]
    with_state(found, HUB_PLACE, "ARCHIVE", StreamState(messages=98, last_seq=98), *taken)
    for place in (EU, US):
        with_state(found, place, "FLEET", StreamState(last_seq=60))
    todo = plan(wanted, found)
    assert not todo.destructive
    made = [change for change in todo.changes if change.consumer]
    first, last = (change for change in (todo.changes[0], todo.changes[-1]))
    assert [source["subject_transforms"] for source in last.config["sources"]] == [
        confined_to("eu-west"),
        confined_to("us-east"),
    ]
    if sourcing == "durable":
        assert first.config["sources"] == []
        assert [(each.action, each.config["opt_start_seq"]) for each in made] == [
            (Action.REPLACE, 58),
            (Action.REPLACE, 42),
        ]
    else:
        assert (first, made) == (last, [])
        assert [source["opt_start_seq"] for source in last.config["sources"]] == [58, 42]
    assert "all below fleet.eu-west" in format_plan(todo)


@pytest.mark.parametrize("before", ["durable", "plain"])
@pytest.mark.parametrize("sourcing", ["durable", "plain"])
def test_a_region_that_does_not_answer_is_confined_once_it_does(before: str, sourcing: str) -> None:
    """Its consumer cannot be told now where to begin, and no later plan would know that it had to be."""
    found = as_applied(desired(topology(f'[archive]\nsourcing = "{before}"\n')))
    config = found.streams[HUB_PLACE, "ARCHIVE"].config
    config["sources"] = [source | {"subject_transforms": []} for source in config["sources"]]
    eu_west = config["sources"][0]
    found.unreachable[EU] = "FLEET's consumer muster-archive is not available: no answer"
    todo = plan(desired(topology(f'[archive]\nsourcing = "{sourcing}"\n')), found)
    (last,) = [each for each in todo.changes if each.fields and each.stream == "ARCHIVE"][-1:]
    assert last.config["sources"][0] == {key: value for key, value in eu_west.items() if value is not None}
    assert last.config["sources"][1]["subject_transforms"] == confined_to("us-east")
    assert [change.place for change in (*todo.changes, *todo.left) if change.place == EU] == []
    anew = plan(desired(topology(f'[archive]\nstorage = "memory"\nsourcing = "{sourcing}"\n')), found).changes
    (replaced,) = [each for each in anew if each.stream == "ARCHIVE"]
    assert replaced.config["sources"][0]["subject_transforms"] == confined_to("eu-west")


@pytest.mark.parametrize("held", [98, 0], ids=["holds", "purged"])
@pytest.mark.parametrize("sourcing", ["durable", "plain"])
def test_where_a_server_before_2_15_does_not_say_what_was_taken_its_consumer_does(sourcing: str, held: int) -> None:
    wanted = desired(topology(f'[archive]\nsourcing = "{sourcing}"\n'))
    found = as_applied(wanted)
    archive = found.streams[HUB_PLACE, "ARCHIVE"].config
    archive["sources"] = [source | {"subject_transforms": []} for source in archive["sources"]]
    for place in (EU, US):
        with_state(found, place, "FLEET", StreamState(last_seq=60))
    taken = [Replication("FLEET", External(place.api), active=5) for place in (EU, US)]
    with_state(found, HUB_PLACE, "ARCHIVE", StreamState(messages=held, last_seq=98), *taken)
    for key, consumer in found.consumers.items():
        found.consumers[key] = msgspec.structs.replace(consumer, ack_floor=AckFloor(57))
    todo = plan(wanted, found)
    unknown = [
        f"it is not known how much of FLEET of {place} was taken: all that it holds comes once more"
        for place in (EU, US)
    ]
    if sourcing == "durable":
        assert [each.config["opt_start_seq"] for each in todo.changes if each.consumer] == [58, 58]
        assert todo.changes[-1].remark == "what comes in while this is applied may be taken twice"
    else:
        assert [source["opt_start_seq"] for source in todo.changes[-1].config["sources"]] == [1, 1]
        assert todo.changes[-1].remark == "; ".join(unknown)


def test_each_restore_of_a_region_makes_another_source_of_it_that_begins_from_the_start() -> None:
    """One that the server has known before would go on where it was."""
    wanted = desired(topology())
    found = as_applied(wanted)
    for number in (2, 3):
        with_state(found, EU, "FLEET", StreamState(last_seq=50))
        sources = found.streams[HUB_PLACE, "ARCHIVE"].config["sources"]
        taken = Replication("FLEET", External(EU.api), subject_transforms=sources[0]["subject_transforms"], seq=57)
        with_state(found, HUB_PLACE, "ARCHIVE", StreamState(messages=57, last_seq=57), taken)
        aside, made, changed = plan(wanted, found).changes
        assert [each["external"]["api"] for each in aside.config["sources"]] == [US.api]
        assert (made.action, made.config["deliver_policy"]) == (Action.REPLACE, "all")
        assert changed.remark == "FLEET of eu-west was restored: all that it holds comes once more"
        assert f"all below fleet.eu-west, anew (number {number})" in format_plan(plan(wanted, found))
        assert changed.config["sources"][0]["subject_transforms"][2] == {"src": "*", "dest": f"fleet.eu-west.{number}"}
        found.streams[HUB_PLACE, "ARCHIVE"] = msgspec.structs.replace(
            found.streams[HUB_PLACE, "ARCHIVE"], config=changed.config, sources=[]
        )
        assert plan(wanted, found).changes == ()


@pytest.mark.parametrize("sourcing", ["durable", "plain"])
def test_a_region_that_is_wanted_again_comes_whole_as_another_source(sourcing: str) -> None:
    wanted = desired(topology(f'[archive]\nsourcing = "{sourcing}"\n'))
    found = as_applied(wanted)
    taken = [Replication("FLEET", External(place.api), seq=57) for place in (EU, US)]
    with_state(found, HUB_PLACE, "ARCHIVE", StreamState(messages=98, last_seq=98), *taken)
    for place in (EU, US):
        with_state(found, place, "FLEET", StreamState(last_seq=60))
    assert plan(wanted, found).changes == ()
    again = (HUB_PLACE, "ARCHIVE"), (EU, "FLEET")
    asked = msgspec.structs.replace(found, again=frozenset({again}))
    *before, changed = plan(wanted, asked).changes
    eu, us = changed.config["sources"]
    assert (eu["subject_transforms"][2]["dest"], us["subject_transforms"]) == (
        "fleet.eu-west.2",
        confined_to("us-east"),
    )
    assert changed.remark == "all that FLEET of eu-west holds comes once more"
    if sourcing == "durable":
        assert [(each.place, each.config.get("deliver_policy")) for each in before if each.consumer] == [(EU, "all")]
    else:
        assert (before, eu["opt_start_seq"]) == ([], 1)
    found.unreachable[EU] = "nobody answers"
    todo = plan(wanted, asked)
    assert (todo.changes, list(todo.problems)) == ((), [EU])


def test_a_region_that_stops_answering_half_way_is_not_taken_anew_without_its_consumer() -> None:
    found = restored(50)
    found.unreachable[EU] = "timeout"
    assert plan(desired(topology()), found).changes == ()


@pytest.mark.parametrize("sourcing", ["durable", "plain"])
def test_a_source_of_what_is_empty_again_is_confined_from_the_start(sourcing: str) -> None:
    """A memory store that was restarted counts from 1: behind what was taken nothing would come for long."""
    wanted = desired(topology(f'[archive]\nsourcing = "{sourcing}"\n'))
    found = as_applied(wanted)
    archive = found.streams[HUB_PLACE, "ARCHIVE"].config
    archive["sources"] = [source | {"subject_transforms": []} for source in archive["sources"]]
    with_state(
        found,
        HUB_PLACE,
        "ARCHIVE",
        StreamState(messages=57, last_seq=57),
        Replication("FLEET", External(EU.api), seq=57),
    )
    starts = {}
    for last_seq in (0, 57):
        with_state(found, EU, "FLEET", StreamState(last_seq=last_seq))
        todo = plan(wanted, found).changes
        at = todo[1].config if sourcing == "durable" else todo[-1].config["sources"][0]
        starts[last_seq] = at.get("opt_start_seq")
    assert starts == {0: None if sourcing == "durable" else 1, 57: 58}


@pytest.mark.parametrize("last", ["archive", "fleet.eu-west.x", "fleet.eu-west.02", "fleet.eu-west2", ""])
def test_transforms_that_store_elsewhere_too_do_not_confine(last: str) -> None:
    *rest, _ = confined_to("eu-west")
    assert not is_confined({"subject_transforms": [*rest, {"src": "*", "dest": last}]})
    assert is_confined({"subject_transforms": [*rest, {"src": "*", "dest": "fleet.eu-west.2"}]})


def test_an_apply_that_ends_before_a_restored_region_is_taken_up_is_ended_by_the_next_one() -> None:
    """The server knows the source under its old number, and goes on where it was: only the archive can tell."""
    found, wanted = restored(50), desired(topology())
    found.streams[HUB_PLACE, "ARCHIVE"].config["metadata"] = {"owner": "ops"}
    aside, made, back = plan(wanted, found).changes
    assert aside.config["metadata"] == {"owner": "ops", "muster.anew.eu-west": "2"}
    assert back.config["metadata"] == {"owner": "ops"}
    archive = found.streams[HUB_PLACE, "ARCHIVE"]
    found.streams[HUB_PLACE, "ARCHIVE"] = msgspec.structs.replace(archive, config=aside.config, sources=[])
    # Killed behind the first step, within the second, behind the second.
    key = EU, "FLEET", made.consumer
    for there in (found.consumers[key], None, FoundConsumer(made.config)):
        found.consumers.pop(key, None)
        found.consumers.update({key: there} if there is not None else {})
        again, taken_up = plan(wanted, found).changes
        assert (again.config, again.action is Action.REPLACE) == (made.config, there is not None)
        assert (taken_up.destroys, taken_up.config["metadata"]) == ("", {"owner": "ops"})
        assert taken_up.remark == back.remark != ""
        assert sorted(taken_up.config["sources"], key=repr) == sorted(back.config["sources"], key=repr)
    found.unreachable[EU] = "nobody answers"
    assert plan(wanted, found).changes == ()


def test_the_only_region_that_is_set_aside_stays_so_while_it_does_not_answer() -> None:
    one = TWO_REGIONS.replace('[[region]]\n    name = "us-east"', "")
    wanted = desired(parse_settings(one, TopologySettings, Path("t")))
    found = as_applied(wanted)
    config = found.streams[HUB_PLACE, "ARCHIVE"].config
    found.unreachable[EU] = "nobody answers"
    config |= {"sources": [], "subjects": ["muster.aside.hub.ARCHIVE"], "metadata": {"muster.anew.eu-west": "2"}}
    assert plan(wanted, found).changes == ()
    del found.unreachable[EU]
    _, taken_up = plan(wanted, found).changes
    assert taken_up.config["sources"][0]["subject_transforms"][2]["dest"] == "fleet.eu-west.2"
    assert (taken_up.config["subjects"], taken_up.config["metadata"]) == ([], {})


def test_a_source_with_a_filter_of_the_operators_gives_way_to_one_that_begins_from_the_start() -> None:
    """Both read through one consumer: it is made again while neither does, and stays."""
    wanted = desired(topology())
    found = as_applied(wanted)
    sources = found.streams[HUB_PLACE, "ARCHIVE"].config["sources"]
    filtered = sources[0] | {"subject_transforms": [{"src": "fleet.eu-west.dub1.>", "dest": ""}]}
    found.streams[HUB_PLACE, "ARCHIVE"].config["sources"] = [filtered, sources[1]]
    aside, made, changed = plan(wanted, found).changes
    assert [each["external"]["api"] for each in aside.config["sources"]] == [US.api]
    assert (made.action, made.place, made.config["deliver_policy"]) == (Action.REPLACE, EU, "all")
    assert changed.destroys == "takes nothing more from FLEET of $JS.eu-west.API (fleet.eu-west.dub1.>)"
    archive = found.streams[HUB_PLACE, "ARCHIVE"]
    found.streams[HUB_PLACE, "ARCHIVE"] = msgspec.structs.replace(archive, config=aside.config, sources=[])
    again, taken_up = plan(wanted, found).changes
    assert (again, taken_up.config["sources"]) == (made, changed.config["sources"])


@pytest.mark.parametrize(
    ("source", "is_told"),
    [
        ({}, True),
        ({"filter_subject": "fleet.>"}, True),
        ({"subject_transforms": confined_to("city")}, True),
        ({"subject_transforms": [{"src": "fleet.city.>", "dest": "fleet.city.>"}]}, True),
        ({"filter_subject": "fleet.eu-west.>"}, False),
        ({"subject_transforms": [{"src": "old.>", "dest": "fleet.eu-west.old.>"}]}, False),
        ({"subject_transforms": confined_to("eu-west")}, False),
    ],
)
@pytest.mark.parametrize("region", ["city", "us-east"])
def test_of_a_region_that_gathers_others_plan_and_check_warn_and_no_region_can_hinder_an_apply_by_that(
    region: str, source: dict[str, object], is_told: bool
) -> None:
    wanted = desired(topology())
    found = as_applied(wanted)
    found.streams[EU, "FLEET"].config["sources"] = [
        {"name": "FLEET", "external": {"api": f"$JS.{region}.API"}, **source}
    ]
    todo = plan(wanted, found)
    assert (bool(todo.warnings), todo.refused) == (is_told, ())
    assert ("\nwarning: hub: ARCHIVE shall copy FLEET" in f"\n{format_plan(todo)}") is is_told
    checked = check(topology(), wanted, found, HubFacts(), Limits())
    assert [f"{each.place}: {each.text}" for each in checked] == list(todo.warnings)
    for line in todo.warnings:
        told = f"hub: ARCHIVE shall copy FLEET of $JS.eu-west.API, which itself takes FLEET of $JS.{region}.API"
        assert line.startswith(told)
        assert "give where the rest comes from a [[region]] of its own" in line


@pytest.mark.parametrize(("region", "is_refused"), [("us-east", True), ("city", False)])
@pytest.mark.parametrize("before", ["not copied", "not confined"])
def test_a_region_that_gathers_another_of_the_file_is_not_begun_with(
    region: str, is_refused: bool, before: str
) -> None:
    """The archive would hold the records of both below the first."""
    wanted = desired(topology())
    found = as_applied(wanted)
    found.streams[EU, "FLEET"].config["sources"] = [{"name": "FLEET", "external": {"api": f"$JS.{region}.API"}}]
    archive = found.streams[HUB_PLACE, "ARCHIVE"].config
    unconfined = [archive["sources"][0] | {"subject_transforms": []}] if before == "not confined" else []
    archive["sources"] = [*unconfined, archive["sources"][1]]
    todo = plan(wanted, found)
    assert (len(todo.refused), len(todo.warnings)) == (is_refused, not is_refused)
    assert ("; 1 refused: apply changes nothing" in format_plan(todo)) is is_refused
    said = [each.text for each in check(topology(), wanted, found, HubFacts(), Limits())]
    assert any(each.endswith(": until then apply changes nothing") for each in said) is is_refused


def restored(last_seq: int) -> Found:
    """Answer as the servers of an archive do that has taken more of a region than that holds."""
    found = as_applied(desired(topology()))
    with_state(found, EU, "FLEET", StreamState(last_seq=last_seq))
    transforms = found.streams[HUB_PLACE, "ARCHIVE"].config["sources"][0]["subject_transforms"]
    taken = Replication("FLEET", External(EU.api), subject_transforms=transforms, seq=57)
    with_state(found, HUB_PLACE, "ARCHIVE", StreamState(messages=57, last_seq=57), taken)
    return found
