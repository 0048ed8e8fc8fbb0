"""Hold the levels of a fleet's tree against each other: how fresh each is, who was counted, and who accused."""

from collections import Counter, defaultdict
from enum import StrEnum

import msgspec

from aggregator.scenarios.fleet.agents import RELAY, STALE_MINUTES
from aggregator.scenarios.fleet.nodes import ADVISORIES, REGISTRATION, in_minutes
from aggregator.scenarios.fleet.records import (
    Arrival,
    NodeKey,
    Stored,
    advisories,
    ages,
    arrivals_of,
    ours,
    read,
    repeated,
    typical,
)
from aggregator.scenarios.narrator import Narrator
from aggregator.scenarios.stage import JetStream, explicit_consumer
from shared.subjects import RecordType
from shared.wire import Advisory, ChoriaAdvisory, decode_watermark


class Level(StrEnum):
    """Where registrations are kept, from the nodes up."""

    CITY = "city"
    REGION = "region"
    CENTRE = "centre"


_BOUNDS = {Level.CITY: (3, 15), Level.REGION: (20, 45), Level.CENTRE: (45, 90)}
"""Minutes between which a level's freshness lies: 5, 30 and 60; whatever makes nodes late makes all of it so."""
_CITY_MINUTES = 5
_SAMPLE = RecordType.REGISTRATION


class Levels(msgspec.Struct, frozen=True):
    """A connection to each server."""

    cities: dict[str, JetStream]
    region: JetStream
    centre: JetStream

    async def kinds_at_centre(self) -> dict[NodeKey, list[str]]:
        """Say what Choria's consumers at the centre are told of each node, in the order of its happening."""
        told: dict[NodeKey, list[str]] = defaultdict(list)
        found = advisories(await read(self.centre.client, "CHORIA_REGISTRATION_ADVISORIES"))
        for advisory in sorted((each for each in found if isinstance(each, Advisory)), key=lambda each: each.at_us):
            told[advisory.site, advisory.value].append(advisory.kind.value)
        return told

    async def vouched_at_centre(self) -> dict[str, int]:
        """Say, by site, up to which ordinal watermarks vouch at the centre for the advisories of nodes."""
        archived = ours(await read(self.centre.client, "ARCHIVE"))
        vouched = [decode_watermark(each.body) for subject, each in archived if subject.record_type == "watermark"]
        return {each.site: each.advisory_ordinal for each in sorted(vouched, key=lambda each: each.advisory_ordinal)}

    async def all_is_vouched_for(self) -> bool:
        """Tell whether the centre has a watermark of each site that counts all advisories that it has of that site."""
        told = Counter(site for (site, _), kinds in (await self.kinds_at_centre()).items() for _ in kinds)
        return told == await self.vouched_at_centre()

    async def city_arrivals(self) -> list[Arrival]:
        """Say when registrations came to the cities themselves."""
        return [
            Arrival((city, record.sender), record.stored_at, record.stored_at)
            for city, jetstream in self.cities.items()
            for record in await read(jetstream.client, "CHORIA_REGISTRATION")
        ]


async def freshness(levels: Levels, but: set[NodeKey], narrator: Narrator) -> None:
    """Wait until each node came to the centre twice more, and measure; those in ``but`` are left out."""
    narrator.chapter("How old a node's newest registration gets on each level until the next one comes")
    since = max(record.stored_at for record in await read(levels.region.client, "FLEET"))

    async def of_centre() -> dict[NodeKey, list[int]]:
        return ages(arrivals_of(await read(levels.centre.client, "FLEET")), since)

    async def twice() -> bool:
        found = await of_centre()
        return all(found.get((city, name)) for city, name in steady)

    steady = [node for node in {each.node for each in await levels.city_arrivals()} if node not in but]
    await narrator.comes("every node came to the centre twice more", twice, True)
    measured = {
        Level.CITY: typical(ages(await levels.city_arrivals(), since)),
        Level.REGION: typical(ages(arrivals_of(await read(levels.region.client, "FLEET")), since)),
        Level.CENTRE: typical(await of_centre()),
    }
    for level, age in measured.items():
        narrator.output(f"{level}: {in_minutes(age):.0f} minutes")
    late = max(in_minutes(measured[Level.CITY]) / _CITY_MINUTES, 1.0)
    within = {level: low <= in_minutes(measured[level]) <= high * late for level, (low, high) in _BOUNDS.items()}
    narrator.show("city 5 minutes, region 30, centre an hour", within, dict.fromkeys(_BOUNDS, True))
    rarer = in_minutes(measured[Level.CENTRE]) > STALE_MINUTES
    narrator.show(f"the centre hears of a living node more rarely than in {STALE_MINUTES} minutes", rarer, True)


async def judge(levels: Levels, silent: NodeKey, gone: NodeKey, narrator: Narrator) -> None:
    """Say who was counted and who accused, now that nobody sends any more."""
    at_region = await read(levels.region.client, "FLEET")
    issued = [record for subject, record in ours(at_region) if subject.record_type is RecordType.ADVISORY]
    await _until_all_is_there(levels, issued, narrator)

    narrator.chapter("Nobody is counted twice")
    archived = await read(levels.centre.client, "ARCHIVE")
    registrations = [each for subject, each in ours(archived) if subject.record_type is RecordType.REGISTRATION]
    sent = [each for subject, each in ours(at_region) if subject.record_type is RecordType.REGISTRATION]
    found = [each for each in advisories(archived) if isinstance(each, Advisory)]
    times_twice = {
        "registrations of the region": repeated(each.origin for each in sent),
        "registrations of the centre": repeated(each.origin for each in registrations),
        "advisories of the centre": repeated(each.event_id for each in found),
        "nodes announced": repeated((each.site, each.value) for each in found if each.kind == "new"),
    }
    narrator.show("how many came twice, a killed relay notwithstanding", times_twice, dict.fromkeys(times_twice, 0))
    passed_on = {each.origin: each.body for each in sent}
    whole = all(passed_on.get(each.origin) == each.body for each in registrations)
    narrator.show("what the relay passed on is what it was, byte for byte", whole, True)
    narrator.show("and less than it was", 0 < len(registrations) < len(sent), True)

    await _read_all(levels, archived, narrator)

    narrator.chapter("Nobody is accused from sampled data")
    told = await levels.kinds_at_centre()
    there = Counter({"stale": "silent", "retired": "gone"}.get(kinds[-1], "there") for kinds in told.values())
    counted = {"gone": 1, "there": len(told) - 1}
    narrator.show("nodes, as the advisories alone say", dict(sorted(there.items())), counted)
    narrator.show("of the node that was silent", told.pop(silent), ["new", "stale", "recovered"])
    narrator.show("of the node that never came back", told.pop(gone), ["new", "stale", "retired"])
    narrator.show("of all others", sorted({kind for kinds in told.values() for kind in kinds}), ["new"])
    narrator.show("sites that say so", sorted({each.site for each in found}), sorted(levels.cities))
    last = await levels.vouched_at_centre()
    ordinals = {site: sorted(each.ordinal for each in found if each.site == site) for site in last}
    whole = all(ordinals[site] == list(range(1, last[site] + 1)) for site in levels.cities)
    narrator.show(f"their watermarks vouch for just these, none of {RELAY}'s", whole and RELAY not in last, True)


async def _read_all(levels: Levels, archived: list[Stored], narrator: Narrator) -> None:
    """Hold what each city's agent says it has read, in its last watermark, against the city's stream."""
    vouched = [decode_watermark(each.body) for subject, each in ours(archived) if subject.record_type == "watermark"]
    of_nodes = [each for each in vouched if each.block == "nodes"]
    last = {each.site: each for each in sorted(of_nodes, key=lambda each: each.observed_through_us)}
    read_by = {city: last[city].counters["valid"]["registrations"] for city in levels.cities}
    stored = {
        city: sum(each.sequence <= last[city].sequence for each in await read(jetstream.client, "CHORIA_REGISTRATION"))
        for city, jetstream in levels.cities.items()
    }
    narrator.show("and all that nodes sent was read (registrations, to the agents' last word)", read_by, stored)


async def _consume(centre: JetStream, narrator: Narrator) -> None:
    """Read as a consumer does that knows Choria alone: by stream and subject, and what Choria's schema names."""
    stream = "CHORIA_REGISTRATION_ADVISORIES"
    await centre.request(*explicit_consumer(stream, "cmdb", filter_subject=ADVISORIES))
    bodies = await centre.fetch(stream, "cmdb", await centre.count(stream))
    known = [msgspec.json.decode(body, type=ChoriaAdvisory) for body in bodies]
    told = sorted({each.replicator for each in known})
    narrator.show(
        "a consumer that knows Choria alone reads all of it, ours and plain, of", told, ["ber1", "dub1", "lon1"]
    )


async def _is_offered(jetstream: JetStream) -> bool:
    sampled = [each for subject, each in ours(await read(jetstream.client, "FLEET")) if subject.record_type is _SAMPLE]
    offered = await read(jetstream.client, "CHORIA_REGISTRATION")
    return [each.body for each in offered] == [each.body for each in sampled]


async def _until_all_is_there(levels: Levels, issued: list[Stored], narrator: Narrator) -> None:
    narrator.chapter("Choria's consumers at the centre find the streams that they know")
    bodies = sorted(each.body for each in issued)

    upper = {Level.REGION.value: levels.region, Level.CENTRE.value: levels.centre}

    async def carried() -> list[str]:
        records = {
            level: await read(jetstream.client, "CHORIA_REGISTRATION_ADVISORIES") for level, jetstream in upper.items()
        }
        # At the centre there are plain ones, too.
        return [
            level
            for level, of in records.items()
            if sorted(each.body for each in of if b'"at_us"' in each.body) == bodies
        ]

    await narrator.comes(
        "CHORIA_REGISTRATION_ADVISORIES: every advisory of the cities, unsampled, in", carried, list(upper)
    )
    subjects = {each.subject for each in await read(levels.centre.client, "CHORIA_REGISTRATION_ADVISORIES")}
    narrator.show("under the subject that they read", sorted(subjects), [ADVISORIES])
    await _consume(levels.centre, narrator)

    async def offered() -> list[str]:
        return [level for level, jetstream in upper.items() if await _is_offered(jetstream)]

    await narrator.comes("CHORIA_REGISTRATION: every registration of", offered, list(upper))
    records = await read(levels.centre.client, "CHORIA_REGISTRATION")
    narrator.show(
        "one subject for each city",
        sorted({each.subject for each in records}),
        [f"{REGISTRATION}.{city}" for city in sorted(levels.cities)],
    )

    async def archived() -> bool:
        kept = await read(levels.centre.client, "ARCHIVE")
        above = await read(levels.centre.client, "FLEET")
        below = [each for subject, each in ours(await read(levels.region.client, "FLEET"))
                 if subject.record_type is not RecordType.REGISTRATION]  # fmt: skip
        return len([*ours(kept)]) == len(above) + len(below)

    await narrator.comes("ARCHIVE: the centre's registrations, and all else of the region", archived, True)
