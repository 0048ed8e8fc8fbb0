"""What a region's FLEET holds is taken once more where somebody asks for it, and nobody is told to who cannot."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from aggregator.cli import cli
from aggregator.topology.desired.confinement import confined_to
from aggregator.topology.desired.settings import TopologySettings
from aggregator.topology.desired.streams import archiving_of, desired
from aggregator.topology.observed.state import External, Found, Replication, StreamState
from aggregator.topology.plan.changes import plan
from aggregator.topology.plan.text import format_plan
from aggregator.topology.report.checks import Limits, check
from aggregator.topology.report.evidence import BlockEvidence, HubFacts
from shared.instants import SECOND
from shared.settings import parse_settings
from tests.support.topology.topologies import EU, HUB_PLACE, TWO_REGIONS, US, applied, as_applied, topology, with_state

NOW = 1_800_000_000 * SECOND
HERE = '[[region]]\nname = "here"\ndomain = "hub"\n'


def asked(found: Found, wanted: TopologySettings, *names: str) -> Found:
    """Want once more all of the regions of these names."""
    again = frozenset(archiving_of(wanted, each) for each in wanted.regions if each.name in names)
    return msgspec.structs.replace(found, again=again)


@pytest.mark.parametrize("sourcing", ["durable", "plain"])
def test_a_source_that_is_not_confined_yet_is_so_from_the_start_where_all_is_wanted_again(sourcing: str) -> None:
    settings = topology(f'[archive]\nsourcing = "{sourcing}"\n')
    found = as_applied(desired(settings))
    archive = found.streams[HUB_PLACE, "ARCHIVE"].config
    archive["sources"] = [each | {"subject_transforms": []} for each in archive["sources"]]
    taken = [Replication("FLEET", External(place.api), seq=57) for place in (EU, US)]
    with_state(found, HUB_PLACE, "ARCHIVE", StreamState(messages=114, last_seq=114), *taken)
    for place in (EU, US):
        with_state(found, place, "FLEET", StreamState(last_seq=60))
    *before, changed = plan(desired(settings), asked(found, settings, "eu-west")).changes
    eu, us = changed.config["sources"]
    assert (eu["subject_transforms"], us["subject_transforms"]) == (confined_to("eu-west"), confined_to("us-east"))
    assert "all that FLEET of eu-west holds comes once more" in changed.remark
    if sourcing == "durable":
        started = [(each.place, each.config.get("opt_start_seq")) for each in before if each.consumer]
        assert started == [(EU, None), (US, 58)]
    else:
        assert (eu["opt_start_seq"], us["opt_start_seq"]) == (1, 58)


def test_of_a_source_that_is_set_aside_it_is_said_that_it_cannot_be_taken_once_more_yet() -> None:
    settings = topology()
    found = as_applied(desired(settings))
    archive = found.streams[HUB_PLACE, "ARCHIVE"].config
    archive["sources"] = archive["sources"][1:]
    todo = plan(desired(settings), asked(found, settings, "eu-west", "us-east"))
    said = "hub: ARCHIVE does not copy FLEET of eu-west: apply first, then once more with --again"
    assert todo.warnings == (said,)
    assert f"\nwarning: {said}\n" in format_plan(todo)
    del found.streams[HUB_PLACE, "ARCHIVE"]
    assert plan(desired(settings), asked(found, settings, "eu-west")).warnings == ()


def test_a_further_copy_of_the_region_is_not_taken_once_more() -> None:
    further = '[[stream]]\nname = "GATHER"\n[[stream.source]]\nname = "FLEET"\ndomain = "eu-west"\n'
    settings = topology(further + 'sourcing = "plain"\n')
    found = applied(further)
    for name, count in (("ARCHIVE", 57), ("GATHER", 41)):
        sources = found.streams[HUB_PLACE, name].config["sources"]
        transforms = sources[0].get("subject_transforms") or []
        taken = Replication("FLEET", External(EU.api), subject_transforms=transforms, seq=count)
        with_state(found, HUB_PLACE, name, StreamState(messages=count, last_seq=count), taken)
    with_state(found, EU, "FLEET", StreamState(last_seq=60))
    todo = plan(desired(settings), asked(found, settings, "eu-west")).changes
    (gather,) = [each for each in todo if each.stream == "GATHER"]
    assert gather.config["sources"][0]["opt_start_seq"] == 42


def test_a_region_of_the_hubs_domain_is_refused_with_what_helps(tmp_path: Path) -> None:
    path = tmp_path / "topology.toml"
    path.write_text(TWO_REGIONS + HERE)
    for command in ("plan", "apply"):
        answer = CliRunner().invoke(cli, [command, "--config", str(path), "--again", "here"])
        assert answer.exit_code == 2
        assert answer.output.endswith(
            "Error: --again here: it is in the hub's domain, where ARCHIVE copies FLEET as it is: give that source"
            " another filter, such as fleet.here.>, with nats stream edit ARCHIVE, and all comes once more\n"
        )


def test_who_cannot_be_taken_once_more_is_not_told_to() -> None:
    settings = parse_settings(TWO_REGIONS + HERE, TopologySettings, Path("topology.toml"))
    wanted = desired(settings)
    blocks = tuple(BlockEvidence(region, "dub1", "nodes", NOW, ((2, 2),)) for region in ("eu-west", "here", "gone"))
    findings = check(settings, wanted, as_applied(wanted), HubFacts(blocks=blocks, now=NOW), Limits())
    lacks = {each.place: each.text for each in findings if "the archive lacks" in each.text}
    (said,) = {text.partition(";")[0] for text in lacks.values()}
    assert said == "the archive lacks 1 advisories of dub1, block nodes (2): its time is unknown from there on"
    advised = [place for place, text in lacks.items() if f"apply --again {place} takes once more" in text]
    assert (list(lacks), advised) == (["eu-west", "here", "gone"], ["eu-west"])


def test_of_two_regions_in_one_domain_only_the_one_that_is_named_is_taken_once_more() -> None:
    settings = topology('[[region]]\nname = "city"\ndomain = "eu-west"\nfleet = { name = "CITY" }\n')
    found = as_applied(desired(settings))
    *_, changed = plan(desired(settings), asked(found, settings, "city")).changes
    kept, _, again = changed.config["sources"]
    assert kept["subject_transforms"] == confined_to("eu-west")
    assert again["subject_transforms"][2]["dest"] == "fleet.city.2"
