"""Choria fleet streams: nodes of two cities, their region and the centre, each fresh to another measure.

Source: "Stream Replicator 0.5.0", the announcement of Choria's replicator. Here the cities' agents are Muster's, and so
is the region's, which relays; one more city still runs Choria's own replicator. An hour of the
nodes takes four seconds.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from shared.embedded.server import EmbeddedNats, LeafRemote, ServerSettings
from shared.instants import MINUTE, SECOND, format_instant
from shared.subjects import RecordType
from shared.wire import ChoriaAdvisory, decode_advisory, decode_watermark
from tests.scenarios.fleet_records import (
    Levels,
    NodeKey,
    Stored,
    advisories,
    ages,
    arrivals_of,
    median_age,
    ours,
    read,
)
from tests.scenarios.narrator import Narrator
from tests.scenarios.stage import JetStream, Topology, connected, explicit_consumer
from tests.support.agent.agent_process import AgentProcess

CITIES = ("dub1", "lon1")
NODES = tuple(f"web{number}.example.net" for number in range(1, 9))
EVERYONE = sorted((city, name) for city in CITIES for name in NODES)
SILENT = ("dub1", NODES[-1])
GONE = ("lon1", NODES[0])
REGION, RELAY, PLAIN_CITY = "eu", "eu-relay", "ber1"
REGISTRATION = "choria.stream.input.registration"
ADVISORIES = "choria.stream.input.registration_advisories"
# What Choria's replicator 0.9.0 published of one node of ber1.
PLAIN_ADVISORIES = Path(__file__).parent.parent / "lakehouse" / "bronze" / "choria_advisories.jsonl"
COPIED = 100

# Minutes of the nodes.
HOUR_HERE = 4 * SECOND
INTERVAL = 5
CITY_SAMPLE, RELAY_SAMPLE = 28, 56  # a little less than half an hour, and than an hour
STALE, RETIRED, BLIND = 40, 240, 19
FRESHNESS = {"city": (3, 15), "region": (20, 45), "centre": (45, 90)}  # around 5, 30 and 60

CITY_STREAMS = f"""
[[stream]]
name = "CHORIA_REGISTRATION"
subjects = ["{REGISTRATION}.>"]
max_age = "1d"

[[stream]]
name = "LIFECYCLE"
subjects = ["choria.lifecycle.>"]
max_age = "1d"
"""
TREE_STREAMS = f"""
[[stream]]                       # what the cities' agents send: samples, advisories, watermarks
name = "FLEET"
domain = "eu"
subjects = ["fleet.eu.>"]
max_age = "14d"
duplicate_window = "10m"
allow_atomic = true

[[stream]]                       # what is copied whole
name = "LIFECYCLE"
domain = "eu"
subjects = ["dub1.lifecycle.>", "lon1.lifecycle.>"]
storage = "memory"
max_messages = 10_000

[[stream]]                       # every sample once more, under the name that Choria's consumers know
name = "CHORIA_REGISTRATION"
domain = "eu"
[[stream.source]]
name = "FLEET"
transforms = [{{ source = "fleet.*.*.*.registration", destination = "{REGISTRATION}.{{{{wildcard(2)}}}}" }}]

[[stream]]                       # and every advisory
name = "CHORIA_REGISTRATION_ADVISORIES"
domain = "eu"
[[stream.source]]
name = "FLEET"
transforms = [{{ source = "fleet.*.*.*.advisory.*", destination = "{ADVISORIES}" }}]

[[stream]]                       # what the region's relay sends: samples of samples
name = "FLEET"
subjects = ["fleet.*.*.*.registration"]
max_age = "14d"
duplicate_window = "10m"
allow_atomic = true

[[stream]]
name = "CHORIA_REGISTRATION"
[[stream.source]]
name = "FLEET"
transforms = [{{ source = "fleet.*.*.*.registration", destination = "{REGISTRATION}.{{{{wildcard(2)}}}}" }}]

[[stream]]                       # of a city that runs Choria's own replicator
name = "PLAIN_ADVISORIES"
subjects = ["{ADVISORIES}"]

[[stream]]
name = "CHORIA_REGISTRATION_ADVISORIES"
[[stream.source]]
name = "CHORIA_REGISTRATION_ADVISORIES"
domain = "eu"
[[stream.source]]
name = "PLAIN_ADVISORIES"

[[stream]]                       # what the rollup reads: samples from the relay, all else from the cities
name = "ARCHIVE"
[[stream.source]]
name = "FLEET"
[[stream.source]]
name = "FLEET"
domain = "eu"
transforms = [{{ source = "fleet.*.*.*.advisory.*" }}, {{ source = "fleet.*.*.*.watermark" }}]
[[stream.source]]
name = "PLAIN_ADVISORIES"
"""
AGENT = """\
site = "{site}"
region = "eu"
name = "{site}-a"

[upstream]
servers = ["{upstream}"]

[store]
path = "agent.db"

[watermark]
interval = "500ms"

[monitor]
listen = ""

[[stream]]
name = "{block}"
mode = "{mode}"

[stream.source]
servers = ["{source}"]
stream = "{stream}"
settle = "200ms"

[stream.sender]
json_path = "sender"

[stream.policy]
sample_interval = "{sample}"
"""
CITY_MORE = """\
stale_after = "{stale}"
retire_after = "{retired}"
blind_after = "{blind}"

[[stream]]
name = "lifecycle"
mode = "copy"

[stream.source]
servers = ["{source}"]
stream = "LIFECYCLE"

[stream.target]
prefix = "{site}"
remove = "choria"
"""
LAKEHOUSE = """\
[hub]
servers = ["{centre}"]
domain = "centre"

[lakehouse]
path = "tables"
report_stream = "ARCHIVE"        # there is no mirror of it here
registration_interval = "{interval}"
choria_region = "eu"             # where plain advisories are from
"""


def here(minutes: float) -> int:
    """Return the microseconds that minutes of the nodes take here."""
    return round(minutes * HOUR_HERE / 60)


def in_minutes(duration: float) -> float:
    """Return the nodes' minutes that a duration here (microseconds) is."""
    return duration / HOUR_HERE * 60


def setting(minutes: float) -> str:
    return f"{here(minutes) // 1000}ms"


class Scene(NamedTuple):
    """The levels, the nodes that send nothing now, and the agents by their sites."""

    levels: Levels
    silent: set[NodeKey]
    agents: dict[str, AgentProcess]
    narrator: Narrator


async def test_a_tree_is_as_fresh_as_designed_and_counts_every_node_once(tmp_path: Path, narrator: Narrator) -> None:
    narrator.chapter("Two cities, their region, and the centre, of which the region is a leaf node")
    async with AsyncExitStack() as stack:

        async def started(name: str, **more: Any) -> EmbeddedNats:
            settings = ServerSettings(name=name, store_dir=tmp_path / "servers" / name, **more)
            return await stack.enter_async_context(EmbeddedNats(settings))

        *city_servers, centre = await asyncio.gather(
            *map(started, CITIES), started("centre", domain="centre", leaf_port=0)
        )
        # In one account relayed records would else come back down, and the cities' go past the relay.
        remote = LeafRemote(centre.leaf_url, 'deny_exports: "fleet.>", deny_imports: "fleet.>"')
        region = await started(REGION, domain=REGION, leaf_remotes=(remote,))
        servers = {**dict(zip(CITIES, city_servers, strict=True)), REGION: region, "centre": centre}
        at = {name: await stack.enter_async_context(connected(each.url)) for name, each in servers.items()}
        levels = Levels({city: at[city] for city in CITIES}, at[REGION], at["centre"])
        reaches = partial(levels.centre.reaches, REGION)
        await narrator.comes("the centre reaches the region's JetStream", reaches, True)
        topology = await _lay_out(tmp_path, servers, narrator)
        await _publish_lifecycle(levels)

        agents = {site: _agent(tmp_path / "agents" / site, servers) for site in (*CITIES, RELAY)}
        for agent in agents.values():
            stack.callback(agent.end)
            agent.start()
        scene = Scene(levels, set(), agents, narrator)
        for city in CITIES:
            await stack.enter_async_context(_registering(levels.cities[city], city, scene.silent))
        await _announce(scene)
        await _watch(scene)
        await _freshness(levels, narrator)
        retired = partial(_kinds_of, levels, GONE)
        await narrator.comes("the node that never came back is given up", retired, ["new", "stale", "retired"])
        await narrator.comes("and watermarks cover all advisories", partial(_is_covered, levels), True)
        await _copied(levels, narrator)
        for agent in agents.values():
            agent.process.terminate()
        codes = [await agent.ended() for agent in agents.values()]
        narrator.show("on SIGTERM, the agents end well (exit codes)", codes, [0, 0, 0])
        await _plain(levels.centre, narrator)
        await _is_offered_to_choria(levels, narrator)
        await _is_counted_once(levels, narrator)
        await _is_not_accused(levels, narrator)
        lakehouse = tmp_path / "aggregator.toml"
        lakehouse.write_text(LAKEHOUSE.format(centre=centre.url, interval=setting(INTERVAL)))
        reports = [f"nats --server {each.url} stream report" for each in (*city_servers, centre)]
        of_region = f"nats --server {centre.url} --js-domain eu stream report"
        rollup = f"muster-aggregator rollup --config {lakehouse}"
        await narrator.stay(rollup, topology.report_command, *reports, of_region)


def _agent(place: Path, servers: dict[str, EmbeddedNats]) -> AgentProcess:
    """Write the settings of a city's agent, which samples, watches and copies, or of the region's, which relays."""
    site = place.name
    source, upstream = (REGION, "centre") if site == RELAY else (site, REGION)
    of_block = (
        {"block": "up", "mode": "relay", "stream": "FLEET", "sample": setting(RELAY_SAMPLE)}
        if site == RELAY
        else {"block": "nodes", "mode": "sample", "stream": "CHORIA_REGISTRATION", "sample": setting(CITY_SAMPLE)}
    )
    more = "" if site == RELAY else CITY_MORE
    place.mkdir(parents=True)
    config = place / "agent.toml"
    settings = (AGENT + more).format(
        site=site,
        source=servers[source].url,
        upstream=servers[upstream].url,
        stale=setting(STALE),
        retired=setting(RETIRED),
        blind=setting(BLIND),
        **of_block,
    )
    config.write_text(settings)
    return AgentProcess(config)


async def _lay_out(directory: Path, servers: dict[str, EmbeddedNats], narrator: Narrator) -> Topology:
    narrator.chapter("The streams: muster-aggregator apply, for each city and for the tree above")
    for city in CITIES:
        head = f'[hub]\nservers = ["{servers[city].url}"]\n'
        await Topology(directory / f"topology-{city}.toml", head, narrator.sentence).apply(CITY_STREAMS)
    head = f'[hub]\nservers = ["{servers["centre"].url}"]\ndomain = "centre"\n'
    topology = Topology(directory / "topology.toml", head, narrator.sentence)
    await topology.apply(TREE_STREAMS)
    narrator.show("doing it again changes", len((await topology.apply()).changes), 0)
    await narrator.comes("each copy hears from its origin", topology.is_healthy, True)
    return topology


@asynccontextmanager
async def _registering(jetstream: JetStream, city: str, silent: set[NodeKey]) -> AsyncIterator[None]:
    """Register the nodes of a city as Choria's do, one after the other; a late one does not catch up."""

    async def register() -> None:
        clock = asyncio.get_running_loop().time
        pause = here(INTERVAL) / SECOND / len(NODES)
        due_at, number = clock(), 0
        while True:
            for name in NODES:
                if (city, name) not in silent:
                    await jetstream.client.publish(f"{REGISTRATION}.{name}", _registration(name, number))
                due_at = max(due_at + pause, clock())
                await asyncio.sleep(due_at - clock())
            number += 1

    task = asyncio.create_task(register())
    try:
        yield
    finally:
        task.cancel()


def _registration(name: str, number: int) -> bytes:
    """Return a registration in an adapter's envelope (https://choria.io/schemas/choria/adapters/choria_streams/v1)."""
    content = {"facts": {"fqdn": name, "uptime": 1_000_000 + number}, "filler": "x" * 2_000}
    data = {"protocol": "choria:registration:inventorycontent:1", "content": content}
    envelope = {
        "protocol": "choria:adapters:choria_streams:output:1",
        "data": msgspec.json.encode(data).decode(),
        "sender": name,
        "time": format_instant(1_700_000_000 * SECOND + number * INTERVAL * MINUTE),
    }
    return msgspec.json.encode(envelope)


async def _announce(scene: Scene) -> None:
    levels, narrator = scene.levels, scene.narrator
    narrator.chapter("Every five minutes each node registers: the cities' agents announce them, up to the centre")

    async def announced() -> int:
        return len(await levels.kinds_at_centre())

    async def sampled() -> int:
        return len({record.node for record in await read(levels.centre.client, "FLEET")})

    await narrator.comes("the centre knows all nodes", announced, len(EVERYONE))
    is_everyone = sorted(await levels.kinds_at_centre()) == EVERYONE
    narrator.show("one name in both cities is two nodes", is_everyone, True)
    await narrator.comes("and has a registration of each", sampled, len(EVERYONE))


async def _watch(scene: Scene) -> None:
    narrator = scene.narrator
    narrator.chapter(
        f"A node of dub1 falls silent for {STALE} minutes, one of lon1 for good;"
        " the relay is killed (kill -9), and started again"
    )
    scene.silent.update({SILENT, GONE})
    scene.agents[RELAY].kill()
    kinds = partial(_kinds_of, scene.levels, SILENT)
    await narrator.comes("the centre hears of it all the same: sources carry advisories", kinds, ["new", "stale"])
    scene.silent.remove(SILENT)
    scene.agents[RELAY].start()
    await narrator.comes("and that it is back", kinds, ["new", "stale", "recovered"])


async def _kinds_of(levels: Levels, node: NodeKey) -> list[str]:
    return (await levels.kinds_at_centre())[node]


async def _is_covered(levels: Levels) -> bool:
    counts = Counter(site for (site, _), kinds in (await levels.kinds_at_centre()).items() for _ in kinds)
    return counts == await levels.covered_at_centre()


async def _freshness(levels: Levels, narrator: Narrator) -> None:
    """Wait until each steady node came to the centre twice more, and measure."""
    narrator.chapter("The age of a node's newest registration on each level when the next one comes")
    since = max(record.stored_at for record in await read(levels.region.client, "FLEET"))
    steady = [node for node in EVERYONE if node not in (SILENT, GONE)]

    async def of_centre() -> dict[NodeKey, list[int]]:
        return ages(arrivals_of(await read(levels.centre.client, "FLEET")), since)

    async def twice() -> bool:
        found = await of_centre()
        return all(found.get(node) for node in steady)

    await narrator.comes("every node came to the centre twice more", twice, True)
    of_region = ages(arrivals_of(await read(levels.region.client, "FLEET")), since)
    of_cities = ages(await levels.city_arrivals(), since)
    found = zip(FRESHNESS, (of_cities, of_region, await of_centre()), strict=True)
    measured = {level: in_minutes(median_age(each)) for level, each in found}
    for level, age in measured.items():
        narrator.output(f"{level}: {age:.0f} minutes")
    # A busy machine that makes nodes late makes every level late.
    late = max(measured["city"] / INTERVAL, 1.0)
    within = {level: low <= measured[level] <= high * late for level, (low, high) in FRESHNESS.items()}
    narrator.show("city 5 minutes, region 30, centre an hour", within, dict.fromkeys(FRESHNESS, True))
    claim = f"the centre hears of a living node more rarely than in {STALE} minutes"
    narrator.show(claim, measured["centre"] > STALE, True)


async def _publish_lifecycle(levels: Levels) -> None:
    for jetstream in levels.cities.values():
        for number in range(COPIED):
            subject = f"choria.lifecycle.{('startup', 'alive', 'shutdown')[number % 3]}"
            await jetstream.publish(subject, f'{{"number":{number}}}')


async def _copied(levels: Levels, narrator: Narrator) -> None:
    """Show that the region has every message from before the agents started and since."""
    narrator.chapter("Copied whole: each city's LIFECYCLE, a file, into the region's, in memory, on other subjects")
    await _publish_lifecycle(levels)
    below = {
        city: [(each.subject.replace("choria", city), each.body) for each in await read(jetstream.client, "LIFECYCLE")]
        for city, jetstream in levels.cities.items()
    }

    async def copied() -> dict[str, bool]:
        above = [(each.subject, each.body) for each in await read(levels.region.client, "LIFECYCLE")]
        return {city: [each for each in above if each[0].startswith(city)] == of for city, of in below.items()}

    narrator.show("messages", {city: len(each) for city, each in below.items()}, dict.fromkeys(below, 2 * COPIED))
    await narrator.comes("the region has all of them once, in their order", copied, dict.fromkeys(below, True))
    holders = (*levels.cities.values(), levels.region)
    storage = [(await jetstream.info("LIFECYCLE"))["config"]["storage"] for jetstream in holders]
    narrator.show("where they are kept", storage, ["file", "file", "memory"])


async def _plain(centre: JetStream, narrator: Narrator) -> None:
    narrator.chapter(f"{PLAIN_CITY} still runs Choria's own replicator, which copies its advisories to the centre")
    bodies = PLAIN_ADVISORIES.read_bytes().splitlines()
    await centre.publish(ADVISORIES, *(body.decode() for body in bodies))

    async def has_all(stream: str) -> bool:
        return [each.body for each in await read(centre.client, stream) if each.body in bodies] == bodies

    await narrator.comes("ARCHIVE has them as they are", partial(has_all, "ARCHIVE"), True)
    next_to_ours = partial(has_all, "CHORIA_REGISTRATION_ADVISORIES")
    await narrator.comes("CHORIA_REGISTRATION_ADVISORIES has them next to ours", next_to_ours, True)
    decoded = [decode_advisory(each.body) for each in await read(centre.client, "ARCHIVE") if each.body in bodies]
    plain = [f"{each.replicator} {each.kind}" for each in decoded if isinstance(each, ChoriaAdvisory)]
    kinds = [f"{PLAIN_CITY} {kind}" for kind in ("new", "stale", "recovered", "stale", "retired")]
    narrator.show("each is an advisory without watermarks, of a known kind", plain, kinds)


async def _is_offered_to_choria(levels: Levels, narrator: Narrator) -> None:
    narrator.chapter("Choria's consumers at the centre find the streams that they know")
    at_region, names = await read(levels.region.client, "FLEET"), list(levels.above)
    issued = sorted(each.body for _, each in ours(at_region, RecordType.ADVISORY))

    async def carried() -> list[str]:
        stream = "CHORIA_REGISTRATION_ADVISORIES"
        records = {level: await read(jetstream.client, stream) for level, jetstream in levels.above.items()}
        # The centre has plain ones, too.
        bodies = {name: sorted(each.body for each in of if b'"at_us"' in each.body) for name, of in records.items()}
        return [level for level, of in bodies.items() if of == issued]

    async def offered() -> list[str]:
        return [level for level, jetstream in levels.above.items() if await _has_samples_twice(jetstream)]

    claim = "CHORIA_REGISTRATION_ADVISORIES: every advisory of the cities, unsampled, in"
    await narrator.comes(claim, carried, names)
    stream = "CHORIA_REGISTRATION_ADVISORIES"
    subjects = sorted({each.subject for each in await read(levels.centre.client, stream)})
    narrator.show("under the subject that they read", subjects, [ADVISORIES])
    await levels.centre.request(*explicit_consumer(stream, "cmdb", filter_subject=ADVISORIES))
    bodies = await levels.centre.fetch(stream, "cmdb", await levels.centre.count(stream))
    cities = sorted({msgspec.json.decode(body, type=ChoriaAdvisory).replicator for body in bodies})
    claim = "a consumer that knows Choria's schema alone reads all of it, ours and plain, of"
    narrator.show(claim, cities, sorted([*CITIES, PLAIN_CITY]))
    await narrator.comes("CHORIA_REGISTRATION: every registration of", offered, names)
    subjects = sorted({each.subject for each in await read(levels.centre.client, "CHORIA_REGISTRATION")})
    narrator.show("one subject for each city", subjects, [f"{REGISTRATION}.{city}" for city in CITIES])

    async def archived() -> bool:
        above = await read(levels.centre.client, "FLEET")
        below = list(ours(at_region, RecordType.ADVISORY, RecordType.WATERMARK))
        return len([*ours(await read(levels.centre.client, "ARCHIVE"))]) == len(above) + len(below)

    await narrator.comes("ARCHIVE: the centre's registrations, and all else of the region", archived, True)


async def _has_samples_twice(jetstream: JetStream) -> bool:
    sampled = [each.body for _, each in ours(await read(jetstream.client, "FLEET"), RecordType.REGISTRATION)]
    return [each.body for each in await read(jetstream.client, "CHORIA_REGISTRATION")] == sampled


async def _is_counted_once(levels: Levels, narrator: Narrator) -> None:
    narrator.chapter("No node is counted twice")
    archived = await read(levels.centre.client, "ARCHIVE")
    registrations = [each for _, each in ours(archived, RecordType.REGISTRATION)]
    sent = [each for _, each in ours(await read(levels.region.client, "FLEET"), RecordType.REGISTRATION)]
    found = advisories(archived)
    times_twice = {
        "registrations of the region": _repeated(each.origin for each in sent),
        "registrations of the centre": _repeated(each.origin for each in registrations),
        "advisories of the centre": _repeated(each.event_id for each in found),
        "nodes announced": _repeated((each.site, each.value) for each in found if each.kind == "new"),
    }
    claim = "how many came twice, a killed relay notwithstanding"
    narrator.show(claim, times_twice, dict.fromkeys(times_twice, 0))
    passed_on = {each.origin: each.body for each in sent}
    whole = all(passed_on.get(each.origin) == each.body for each in registrations)
    narrator.show("the relay passed registrations on unchanged, byte for byte", whole, True)
    narrator.show("and fewer than it received", 0 < len(registrations) < len(sent), True)
    await _is_all_read(levels, archived, narrator)


async def _is_all_read(levels: Levels, archived: list[Stored], narrator: Narrator) -> None:
    """Compare each city's stream with its agent's last watermark."""
    watermarks = [decode_watermark(each.body) for _, each in ours(archived, RecordType.WATERMARK)]
    of_nodes = [each for each in watermarks if each.block == "nodes"]
    last = {each.site: each for each in sorted(of_nodes, key=lambda each: each.observed_through_us)}
    read_by = {city: last[city].counters["valid"]["registrations"] for city in CITIES}
    stored = {
        city: sum(each.sequence <= last[city].sequence for each in await read(jetstream.client, "CHORIA_REGISTRATION"))
        for city, jetstream in levels.cities.items()
    }
    narrator.show("and all registrations were read, to the agents' last watermark", read_by, stored)


async def _is_not_accused(levels: Levels, narrator: Narrator) -> None:
    narrator.chapter("No node is accused from sampled data")
    kinds = await levels.kinds_at_centre()
    there = Counter({"stale": "silent", "retired": "gone"}.get(each[-1], "there") for each in kinds.values())
    counted = {"gone": 1, "there": len(EVERYONE) - 1}
    narrator.show("nodes, by the advisories alone", dict(sorted(there.items())), counted)
    narrator.show("of the node that was silent", kinds.pop(SILENT), ["new", "stale", "recovered"])
    narrator.show("of the node that never came back", kinds.pop(GONE), ["new", "stale", "retired"])
    narrator.show("of all others", sorted({kind for each in kinds.values() for kind in each}), ["new"])
    found = advisories(await read(levels.centre.client, "ARCHIVE"))
    narrator.show("sites that report it", sorted({each.site for each in found}), list(CITIES))
    last = await levels.covered_at_centre()
    ordinals = {site: sorted(each.ordinal for each in found if each.site == site) for site in last}
    wanted = {site: list(range(1, last[site] + 1)) for site in CITIES}
    narrator.show(f"their watermarks cover just these, none of {RELAY}'s", ordinals == wanted, True)


def _repeated(identities: Iterable[object]) -> int:
    listed = list(identities)
    return len(listed) - len(set(listed))
