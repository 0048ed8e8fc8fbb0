"""What should be follows from the settings."""

import pytest

from aggregator.topology.desired.model import DesiredConsumer, DesiredStream, Place
from aggregator.topology.desired.streams import desired
from aggregator.topology.plan.durable_sources import with_durable_sources
from shared.settings import SettingsError
from tests.support.topology.topologies import DAY, EU, HUB_PLACE, US, nothing, topology


def test_each_fleet_listens_to_its_own_region_only() -> None:
    fleets = [each for each in desired(topology()) if isinstance(each, DesiredStream) and each.name == "FLEET"]
    assert [(each.place, each.config["subjects"]) for each in fleets] == [
        (EU, ["fleet.eu-west.>"]),
        (US, ["fleet.us-east.>"]),
    ]


def test_the_archive_listens_to_nothing_and_sources_every_region_by_its_domain() -> None:
    wanted = with_durable_sources(desired(topology()), nothing())
    archive = next(each for each in wanted if isinstance(each, DesiredStream) and each.name == "ARCHIVE")
    assert archive.place == HUB_PLACE
    assert archive.config["subjects"] == []
    assert archive.config["sources"] == [
        {
            "name": "FLEET",
            "external": {"api": f"$JS.{region}.API"},
            "subject_transforms": [
                {"src": "*.*.>", "dest": f"fleet.{region}.>"},
                {"src": "*.*", "dest": f"fleet.{region}"},
                {"src": "*", "dest": f"fleet.{region}"},
            ],
            "consumer": {"name": "muster-archive", "deliver_subject": f"muster.source.{region}.FLEET"},
        }
        for region in ("eu-west", "us-east")
    ]


def test_settings_become_jetstreams_own_words_and_units() -> None:
    text = '[fleet]\nmax_age = "1d"\nmax_bytes = "2GiB"\nreplicas = 3\nduplicate_window = "2m"\n'
    fleet = desired(topology(text))[0]
    assert isinstance(fleet, DesiredStream)
    assert fleet.config == {
        "name": "FLEET",
        "subjects": ["fleet.eu-west.>"],
        "storage": "file",
        "num_replicas": 3,
        "max_age": DAY,
        "max_bytes": 2 << 30,
        "discard": "new",
        "compression": "none",
        "duplicate_window": 120 * 10**9,
        "retention": "limits",
        "allow_atomic": True,
        "allow_direct": True,
    }


def test_a_region_in_the_hubs_own_domain_is_sourced_without_a_detour() -> None:
    wanted = desired(topology('[[region]]\nname = "here"\ndomain = "hub"\n'))
    archive = next(each for each in wanted if isinstance(each, DesiredStream) and each.name == "ARCHIVE")
    assert archive.config["sources"][-1] == {"name": "FLEET"}
    assert [each.place for each in wanted if isinstance(each, DesiredConsumer)] == [EU, US]


def test_regions_in_the_hubs_own_domain_need_no_copy_of_the_policy() -> None:
    two = '[policy]\n[[region]]\nname = "a"\ndomain = "hub"\n'
    two += '[[region]]\nname = "b"\ndomain = "hub"\nfleet = { name = "B" }\n'
    copies = [
        str(each.place)
        for each in with_durable_sources(desired(topology(two)), nothing())
        if each.name == "MUSTER_POLICY"
    ]
    assert copies == ["hub", "eu-west", "us-east"]


def test_a_site_with_a_server_has_its_registration_stream_managed_there() -> None:
    site = '[[site]]\nname = "dub1"\nregion = "eu-west"\nserver.servers = ["nats://dub1"]\n'
    first = desired(topology(site + 'registration.subjects = ["nodes.>"]\nregistration.retention = "workqueue"\n'))[0]
    assert isinstance(first, DesiredStream)
    assert (first.place, first.name) == (Place("dub1", ""), "REGISTRATION")
    assert first.config["subjects"] == ["nodes.>", "muster.probe.eu-west.dub1.nodes"]
    assert first.config["retention"] == "workqueue"
    covering = desired(topology(site + 'registration.subjects = [">"]\n'))[0]
    assert isinstance(covering, DesiredStream)
    assert covering.config["subjects"] == [">"]
    unmanaged = '[[site]]\nname = "dub1"\nregion = "eu-west"\n'
    assert desired(topology(unmanaged)) == desired(topology())


def test_a_regions_copy_of_the_policy_has_as_many_replicas_as_its_fleet() -> None:
    replicas = "[policy]\nreplicas = 3\n[archive]\nreplicas = 3\n[fleet]\nreplicas = 1\n"
    streams = [each for each in desired(topology(replicas)) if isinstance(each, DesiredStream)]
    assert [(str(each.place), each.config["num_replicas"]) for each in streams if each.name == "MUSTER_POLICY"] == [
        ("hub", 3),
        ("eu-west", 1),
        ("us-east", 1),
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[[region]]\nname = "eu-west"\n', "region 'eu-west' stands here more than once"),
        ('[[region]]\nname = "x"\ndomain = "us-east"\n', "stream 'us-east/FLEET' stands here more than once"),
        ('[[region]]\nname = "a.b"\n', "region 'a.b' is not usable in a subject"),
        ('[[region]]\nname = "a"\nservers = ["nats://a:b"]\n', "not a server: 'nats://a:b'"),
        ('[[site]]\nname = "s"\nregion = "mars"\n', "site 's' names the region 'mars', there is no such [[region]]"),
        ('[[region]]\nname = "hub"\ndomain = "far"\n', "place 'hub' stands here more than once"),
        (
            '[[site]]\nname = "eu-west"\nregion = "us-east"\nserver = { servers = ["nats://a"] }\n',
            "place 'eu-west' stands here more than once",
        ),
        ('[archive]\nname = "REPORT"\n', "archive and report cannot both be called 'REPORT'"),
        (
            '[policy]\n[[region]]\nname = "x"\ndomain = "us-east"\nfleet = { name = "X" }\n',
            "regions 'us-east' and 'x' are in one domain: with [policy] each needs its own, for its copy of that",
        ),
        ('[fleet]\nmax_age = "1m"\n', "duplicate_window must not exceed max_age"),
        ('[archive]\nsourcing = "fast"\n', "archive.sourcing: invalid enum value 'fast'"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(text: str, line: str) -> None:
    with pytest.raises(SettingsError) as caught:
        topology(text)
    assert line in str(caught.value)
