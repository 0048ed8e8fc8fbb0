"""Who registers when follows from settings and script alone, and agrees with who is up."""

from itertools import pairwise, takewhile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.simulator.fleet import FOREVER, Fleet, FleetSettings, Lifetime, Transition
from edge_agent.simulator.script import EXAMPLE, Script, play
from shared.instants import MINUTE, SECOND
from shared.settings import SettingsError, parse_settings

SCRIPT = Path("outages.toml")
INTERVAL = 10 * SECOND


def fleet_settings(*, sender_count: int = 6, jitter: int = 0, seed: int = 1) -> FleetSettings:
    return FleetSettings(
        site="dub1", sender_count=sender_count, registration_interval=INTERVAL, jitter=jitter, rack_size=3, seed=seed
    )


def played(script: str, *, sender_count: int = 6) -> dict[str, tuple[tuple[int, int], ...]]:
    """Play a script on a small fleet and give each sender's up spans in seconds."""
    lifetimes = play(fleet_settings(sender_count=sender_count), parse_settings(script, Script, SCRIPT), SCRIPT)
    return {
        lifetime.sender_id: tuple((a // SECOND, b if b == FOREVER else b // SECOND) for a, b in lifetime.up_spans())
        for lifetime in lifetimes
    }


def registrations_until(fleet: Fleet, ended_at: int) -> list[tuple[int, int]]:
    return list(takewhile(lambda registration: registration[0] < ended_at, fleet.registrations()))


def test_senders_are_named_by_site_rack_and_number() -> None:
    assert list(played("", sender_count=4)) == [
        "dub1-r1-n1.example.net",
        "dub1-r1-n2.example.net",
        "dub1-r1-n3.example.net",
        "dub1-r2-n1.example.net",
    ]


def test_the_example_that_help_shows_plays() -> None:
    up = played(EXAMPLE, sender_count=6)
    assert up["dub1-r2-n2.example.net"] == ((0, 30), (70, FOREVER))
    assert up["web1.example.net"] == ((70, FOREVER),)


def test_outage_of_a_rack_leaves_the_others_up() -> None:
    up = played('[[outage]]\nat = "30s"\nfor = "40s"\nracks = [2]')
    assert up["dub1-r1-n1.example.net"] == ((0, FOREVER),)
    assert all(up[f"dub1-r2-n{n}.example.net"] == ((0, 30), (70, FOREVER)) for n in (1, 2, 3))


def test_outage_without_an_end_lasts_until_the_end() -> None:
    assert set(played('[[outage]]\nat = "30s"\nsite = true').values()) == {((0, 30),)}


def test_overlapping_outages_are_one_down_time() -> None:
    up = played(
        '[[outage]]\nat = "30s"\nfor = "40s"\nsite = true\n'
        '[[outage]]\nat = "60s"\nfor = "30s"\nsenders = ["dub1-r1-n1.*"]'
    )
    assert up["dub1-r1-n1.example.net"] == ((0, 30), (90, FOREVER))
    assert up["dub1-r1-n2.example.net"] == ((0, 30), (70, FOREVER))


def test_flapping_sender_goes_down_once_in_every_period() -> None:
    up = played(
        '[[flapping]]\nat = "10s"\nperiod = "20s"\ncount = 3\ndown = "8s"\nsenders = ["dub1-r1-n3.example.net"]'
    )
    assert up["dub1-r1-n3.example.net"] == ((0, 10), (18, 30), (38, 50), (58, FOREVER))


def test_retired_sender_never_comes_back_even_from_an_outage() -> None:
    up = played(
        '[[retire]]\nat = "1m"\nsenders = ["dub1-r1-n[12].example.net"]\n'
        '[[outage]]\nat = "50s"\nfor = "40s"\nsenders = ["dub1-r1-n2.example.net"]'
    )
    assert up["dub1-r1-n1.example.net"] == ((0, 60),)
    assert up["dub1-r1-n2.example.net"] == ((0, 50),)
    assert up["dub1-r1-n3.example.net"] == ((0, FOREVER),)


def test_renamed_sender_leaves_and_arrives_and_stays_in_its_rack() -> None:
    up = played(
        '[[rename]]\nat = "1m"\nsender = "dub1-r2-n1.example.net"\nto = "web5.example.net"\n'
        '[[outage]]\nat = "90s"\nfor = "10s"\nracks = [2]'
    )
    assert up["dub1-r2-n1.example.net"] == ((0, 60),)
    assert up["web5.example.net"] == ((60, 90), (100, FOREVER))


def test_joining_senders_arrive_late_in_racks_of_their_own() -> None:
    up = played('[[join]]\nat = "90s"\ncount = 4\n[[join]]\nat = "95s"\ncount = 1', sender_count=5)
    assert {name: spans for name, spans in up.items() if spans[0][0] > 0} == {
        "dub1-r3-n1.example.net": ((90, FOREVER),),
        "dub1-r3-n2.example.net": ((90, FOREVER),),
        "dub1-r3-n3.example.net": ((90, FOREVER),),
        "dub1-r4-n1.example.net": ((90, FOREVER),),
        "dub1-r5-n1.example.net": ((95, FOREVER),),
    }


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("[[outage]\n", "not valid TOML"),
        ('[[outages]]\nat = "1s"', "outages: there is no such key, did you mean outage?"),
        ('[[outage]]\nat = "soon"\nsite = true', r"outage\[0\].at: not a duration: 'soon'.*after the fleet's start"),
        ('[[outage]]\nat = "1s"', r"outage\[0\]: needs exactly one of senders"),
        ('[[outage]]\nat = "1s"\nsite = true\nracks = [1]', r"outage\[0\]: needs exactly one of senders"),
        ('[[outage]]\nat = "1s"\nracks = [3]', r"outage\[0\].racks: there is no rack 3"),
        (
            '[[outage]]\nat = "1s"\nsenders = ["x*"]',
            r"outage\[0\].senders: nobody is called x\*; names look like dub1-",
        ),
        ('[[retire]]\nat = "1s"\nwho = "x"\nsite = true', r"retire\[0\].who: there is no such key"),
        (
            '[[flapping]]\nat = "1s"\nperiod = "12s"\ndown = "5s"\ncount = 2\nsite = true',
            r"flapping\[0\].down: they would be up for 7s only, less than the registration interval and jitter of 10s",
        ),
        ('[[flapping]]\nat = "1s"\nperiod = "5s"\ndown = "5s"\ncount = 2\nsite = true', r"flapping\[0\]: down must be"),
        ('[[flapping]]\nat = "1s"\nperiod = "5s"\ncount = 0\nsite = true', r"flapping\[0\].count: .*>= 1"),
        ('[[rename]]\nat = "1s"\nsender = "x"\nto = "y"', r"rename\[0\].sender: nobody is called x"),
        (
            '[[rename]]\nat = "1s"\nsender = "dub1-r1-n1.example.net"\nto = "dub1-r1-n2.example.net"',
            r"rename\[0\].to: dub1-r1-n2.example.net is taken",
        ),
        (
            """rename = [
                {at = "1s", sender = "dub1-r1-n1.example.net", to = "a"},
                {at = "2s", sender = "dub1-r1-n1.example.net", to = "b"},
            ]""",
            r"rename\[1\].at: dub1-r1-n1.example.net is not there 2s after the start",
        ),
    ],
)
def test_a_wrong_script_is_refused_in_one_line_that_says_where(script: str, line: str) -> None:
    with pytest.raises(SettingsError, match=f"^outages.toml: .*{line}") as caught:
        played(script)
    assert "\n" not in str(caught.value)


def test_every_sender_registers_once_in_every_interval_at_its_own_place() -> None:
    fleet = Fleet(fleet_settings(sender_count=50), play(fleet_settings(sender_count=50), Script(), SCRIPT))
    due: dict[int, list[int]] = {}
    for at, sender in registrations_until(fleet, 20 * INTERVAL):
        due.setdefault(sender, []).append(at)
    assert len(due) == 50
    for instants in due.values():
        assert len(instants) == 20
        assert {later - earlier for earlier, later in pairwise(instants)} == {INTERVAL}
    places = sorted(instants[0] for instants in due.values())
    assert max(later - earlier for earlier, later in pairwise([0, *places, INTERVAL])) < INTERVAL // 4


def test_another_seed_gives_other_places_and_the_same_seed_the_same() -> None:
    def schedule(seed: int) -> list[tuple[int, int]]:
        settings = fleet_settings(seed=seed, jitter=2 * SECOND)
        return registrations_until(Fleet(settings, play(settings, Script(), SCRIPT)), 5 * INTERVAL)

    assert schedule(1) == schedule(1)
    assert schedule(1) != schedule(2)


spans = st.lists(st.tuples(st.integers(0, 120), st.integers(1, 60)), max_size=4).map(
    lambda starts: [(at * SECOND + 1, (at + length) * SECOND) for at, length in starts]
)
lifetimes = st.builds(
    lambda number, born_at, lives_for, outages: Lifetime(
        sender_id=f"n{number}",
        rack=1,
        born_at=born_at * SECOND,
        gone_at=(born_at + lives_for) * SECOND,
        outages=outages,
    ),
    number=st.integers(0, 10_000),
    born_at=st.integers(0, 60),
    lives_for=st.integers(0, 200),
    outages=spans,
)


@given(
    fleet_lives=st.lists(lifetimes, min_size=1, max_size=5, unique_by=lambda lifetime: lifetime.sender_id),
    jitter=st.sampled_from([0, 1, 3 * SECOND, INTERVAL - 1]),
)
def test_registrations_lie_in_up_spans_and_no_long_up_span_is_silent(fleet_lives: list[Lifetime], jitter: int) -> None:
    settings = fleet_settings(jitter=jitter)
    fleet = Fleet(settings, fleet_lives)
    registrations = registrations_until(fleet, 5 * MINUTE)
    assert registrations == sorted(registrations, key=lambda registration: registration[0])
    for index, up_spans in enumerate(fleet.up_spans):
        instants = [at for at, sender in registrations if sender == index]
        assert all(later - earlier >= INTERVAL - jitter for earlier, later in pairwise(instants))
        within = [[at for at in instants if up_from <= at < up_to] for up_from, up_to in up_spans]
        assert sum(map(len, within)) == len(instants)
        for (up_from, up_to), heard in zip(up_spans, within, strict=True):
            edges = [up_from, *heard, min(up_to, 5 * MINUTE)]
            assert all(later - earlier <= settings.longest_silence for earlier, later in pairwise(edges))


def test_schedule_of_a_fleet_that_is_all_gone_comes_to_its_end() -> None:
    fleet = Fleet(fleet_settings(), [Lifetime(sender_id="a", rack=1, gone_at=25 * SECOND)])
    assert len(list(fleet.registrations())) in (2, 3)


def test_transitions_come_in_the_order_of_time_and_the_last_of_a_retired_one_says_so() -> None:
    lifetimes = [
        Lifetime(sender_id="a", rack=1, outages=[(10, 20)]),
        Lifetime(sender_id="b", rack=1, born_at=5, gone_at=15),
    ]
    assert Fleet(fleet_settings(), lifetimes).transitions() == [
        Transition(0, 0, comes_up=True, up_from=0, gone=False),
        Transition(5, 1, comes_up=True, up_from=5, gone=False),
        Transition(10, 0, comes_up=False, up_from=0, gone=False),
        Transition(15, 1, comes_up=False, up_from=5, gone=True),
        Transition(20, 0, comes_up=True, up_from=20, gone=False),
    ]
