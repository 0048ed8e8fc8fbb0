"""Who may do what on the rendered servers: as much as is needed, under names that are one's own."""

import re
from pathlib import Path

import pytest

from aggregator.topology.desired.settings import TopologySettings
from aggregator.topology.render.permissions import Grant
from aggregator.topology.render.servers import Address, NotRenderable, Server, servers
from shared.settings import SettingsError, parse_settings
from tests.support.topology.topologies import topology

TOPOLOGY = """
    [hub]
    servers = ["nats://hub-1:4222", "nats://hub-2:4222", "nats://hub-3:4222"]
    [[region]]
    name = "eu-west"
    servers = ["nats://eu:4222"]
    [[region]]
    name = "us-east"
    servers = ["nats://us"]
    [[site]]
    name = "dub1"
    region = "eu-west"
    blocks = ["nodes", "racks"]
    server = { servers = ["tls://dub1:5222"] }
    [[site]]
    name = "nyc1"
    region = "us-east"
"""


def listed(text: str = "") -> dict[str, Server]:
    wanted = parse_settings(TOPOLOGY + text, TopologySettings, Path("topology.toml"))
    return {each.name: each for each in servers(wanted)}


def grant(server: Server, key: str) -> Grant:
    return next(each for each in server.grants if each.key == key)


def test_an_agent_publishes_in_its_own_region_as_its_own_site() -> None:
    regions = listed()
    assert [each.key for each in regions["eu-west"].grants] == ["dub1-agent"]
    last = "$JS.API.DIRECT.GET.FLEET.fleet.us-east.nyc1.nodes.watermark"
    assert grant(regions["us-east"], "nyc1-agent").publish == ("fleet.us-east.nyc1.>", last, "$JS.API.STREAM.NAMES")
    assert grant(regions["us-east"], "nyc1-agent").subscribe == ("_INBOX_nyc1.>",)


def test_a_sites_account_in_the_region_takes_its_own_subjects_and_last_watermarks_and_lends_nothing() -> None:
    fleet, dub1 = listed()["eu-west"].accounts
    last = "$JS.API.DIRECT.GET.FLEET.fleet.eu-west.dub1"
    taken = ("fleet.eu-west.dub1.>", f"{last}.nodes.watermark", f"{last}.racks.watermark", "$JS.API.STREAM.NAMES")
    assert (fleet.name, fleet.grants, fleet.lends) == ("FLEET", (), tuple((each, "SITE_dub1") for each in taken))
    assert (dub1.name, dub1.jetstream, dub1.lends) == ("SITE_dub1", False, ())
    assert dub1.takes == tuple((each, "FLEET") for each in taken)


def test_an_agent_has_a_consumer_for_each_of_its_blocks() -> None:
    allowed = grant(listed()["dub1"], "dub1-agent").publish
    assert [subject for subject in allowed if "MSG.NEXT" in subject] == [
        f"$JS.API.CONSUMER.MSG.NEXT.REGISTRATION.muster-dub1-{block}" for block in ("nodes", "racks")
    ]


def test_a_leaf_link_carries_the_hubs_streams_only_where_the_region_shall_copy_them() -> None:
    policy = '[[stream]]\nname = "P"\nplace = "eu-west"\n[stream.mirror]\nname = "POLICY"\ndomain = "hub"\n'
    hub = listed(policy)["hub-1"]
    with_copy, without = grant(hub, "eu-west-leaf"), grant(hub, "us-east-leaf")
    assert "$JS.hub.API.CONSUMER.CREATE.POLICY.>" in with_copy.publish
    assert not [subject for subject in without.publish if subject.startswith("$JS.hub")]
    assert not [subject for subject in (*with_copy.publish, *with_copy.subscribe) if subject.startswith("fleet")]


def test_a_regions_link_has_an_account_of_its_own_that_the_streams_meet_for_their_copies_alone() -> None:
    policy = '[[stream]]\nname = "P"\nplace = "eu-west"\n[stream.mirror]\nname = "POLICY"\ndomain = "hub"\n'
    streams, operator, reader, eu, us = accounts = listed(policy)["hub-1"].accounts
    assert [(each.name, each.jetstream, [grant.key for grant in each.grants]) for each in accounts] == [
        ("FLEET", True, []),
        ("AGGREGATOR", False, ["aggregator"]),
        ("READER", False, ["reader"]),
        ("REGION_eu-west", False, ["eu-west-leaf"]),
        ("REGION_us-east", False, ["us-east-leaf"]),
    ]
    assert ("$JS.us-east.API.>", "REGION_us-east") in operator.takes
    assert {lender for _, lender in reader.takes} == {"FLEET"}
    # The streams ask a region for the sake of their copy alone; all of its API is the aggregator's.
    assert us.lends == (
        ("$JS.us-east.API.>", "AGGREGATOR"),
        ("$JS.us-east.API.CONSUMER.RESET.FLEET.muster-archive", "FLEET"),
    )
    assert us.takes == ()
    assert {subject for subject, _ in eu.takes} == {
        "$JS.hub.API.CONSUMER.CREATE.POLICY",
        "$JS.hub.API.CONSUMER.CREATE.POLICY.>",
        "$JS.FC.POLICY.*.>",
    }
    assert us.sends == (("muster.source.us-east.FLEET", "FLEET"),)
    assert {taken for taken in streams.takes if taken[1] == "REGION_us-east"} == {
        ("$JS.us-east.API.CONSUMER.RESET.FLEET.muster-archive", "REGION_us-east")
    }


def test_at_a_site_the_aggregator_has_an_account_of_its_own() -> None:
    own, operator = listed()["dub1"].accounts
    assert [grant.key for grant in own.grants] == ["dub1-agent", "dub1-nodes"]
    assert (operator.name, operator.takes) == ("AGGREGATOR", (("$JS.API.>", "SITE_dub1"),))
    assert own.lends == (("$JS.API.>", "AGGREGATOR"),)


def test_accounts_of_one_name_are_refused() -> None:
    with pytest.raises(NotRenderable, match="^two accounts would be called AGGREGATOR: give account in"):
        listed('[render]\naccount = "AGGREGATOR"\n')


def test_each_address_is_a_server_and_a_cluster_needs_no_fsync_for_each_message() -> None:
    listed_servers = listed()
    assert {name: each.address for name, each in listed_servers.items()} == {
        "hub-1": Address("hub-1", 4222),
        "hub-2": Address("hub-2", 4222),
        "hub-3": Address("hub-3", 4222),
        "eu-west": Address("eu", 4222),
        "us-east": Address("us", 4222),
        "dub1": Address("dub1", 5222),
    }
    assert [name for name, each in listed_servers.items() if each.stands_alone] == ["eu-west", "us-east", "dub1"]
    assert listed_servers["eu-west"].uplinks == ("hub-1", "hub-2", "hub-3")


def test_a_region_without_servers_is_named() -> None:
    with pytest.raises(NotRenderable, match="eu-west says nothing of its servers"):
        list(servers(topology()))


@pytest.mark.parametrize("table", ["[stream.mirror]", "[[stream.source]]"])
def test_what_one_region_copies_from_another_is_refused_by_its_name(table: str) -> None:
    copied = f'[[stream]]\nname = "P"\nplace = "eu-west"\n{table}\nname = "FLEET"\n'
    with pytest.raises(
        NotRenderable, match="^stream P of eu-west copies FLEET of us-east: no leaf link lets that pass"
    ):
        listed(copied + 'domain = "us-east"\n')
    for domain in ("hub", "eu-west"):
        listed(f'{copied}domain = "{domain}"\n')


def test_servers_of_one_name_are_not_rendered_over_each_other() -> None:
    region = '[[region]]\nname = "hub-2"\nservers = ["nats://other"]\n'
    with pytest.raises(NotRenderable, match="^two servers would be called hub-2, at hub-2:4222 and other:4222: give"):
        listed(region)


def test_a_site_without_a_server_here_may_be_called_as_its_region() -> None:
    region = listed('[[site]]\nname = "us-east"\nregion = "us-east"\n')["us-east"]
    assert grant(region, "us-east-agent").publish[0] == "fleet.us-east.us-east.>"


def test_two_agents_that_are_a_pair_have_consumers_of_their_own_and_a_log_in_common() -> None:
    text = TOPOLOGY.replace('blocks = ["nodes", "racks"]', 'members = ["dub1-a", "dub1-b"]')
    wanted = parse_settings(text, TopologySettings, Path("topology.toml"))
    allowed = grant(next(each for each in servers(wanted) if each.name == "dub1"), "dub1-agent")
    alone = set(grant(listed()["dub1"], "dub1-agent").publish)
    assert [subject for subject in allowed.publish if "MSG.NEXT" in subject] == [
        f"$JS.API.CONSUMER.MSG.NEXT.REGISTRATION.muster-dub1-nodes-{member}" for member in ("dub1-a", "dub1-b")
    ]
    assert {subject for subject in allowed.publish if "CONSUMER" not in subject and "ACK" not in subject} - alone == {
        "$JS.API.STREAM.INFO.MUSTER_PAIR_dub1",
        "$JS.API.STREAM.CREATE.MUSTER_PAIR_dub1",
        "$JS.API.STREAM.MSG.GET.MUSTER_PAIR_dub1",
        "muster.pair.eu-west.dub1.>",
        "_INBOX_dub1.>",
    }
    assert allowed.subscribe == ("_INBOX_dub1.>", "muster.pair.eu-west.dub1.>")


def test_a_relay_has_accounts_of_its_own_on_both_levels() -> None:
    relay = '[[relay]]\nname = "eu-relay"\nregion = "eu-west"\n'
    found = listed(relay)
    below, above = (grant(found[server], "eu-relay-relay") for server in ("eu-west", "hub-1"))
    assert above.publish == ("fleet.eu-west.*.*.registration",)
    assert not [subject for subject in below.publish if "CREATE" in subject or subject.startswith("fleet")]
    fleet = found["hub-1"].accounts[0]
    assert [each for each in fleet.lends if each[1].startswith("RELAY")] == [
        ("fleet.eu-west.*.*.registration", "RELAY_eu-relay")
    ]
    assert not [each for each in found["us-east"].accounts if each.name.startswith("RELAY")]
    between = listed(relay + 'into = "us-east"\n')
    assert grant(between["us-east"], "eu-relay-relay").publish == above.publish
    assert not [each for each in between["hub-1"].accounts if each.name.startswith("RELAY")]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('region = "mars"', "relay 'up' names the region 'mars', there is no such"),
        ('region = "eu-west"\ninto = "eu-west"', "relay 'up' would publish into the region that it reads"),
    ],
)
def test_relays_that_cannot_be_meant_are_refused(lines: str, said: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(said)):
        listed(f'[[relay]]\nname = "up"\n{lines}\n')
