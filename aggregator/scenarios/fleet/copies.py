"""Copy a stream whole, as the replicator does that samples nothing: elsewhere, stored otherwise, on other subjects."""

from aggregator.scenarios.fleet.levels import Levels
from aggregator.scenarios.fleet.records import read
from aggregator.scenarios.narrator import Narrator

COUNT = 100
_STREAM = "LIFECYCLE"


async def publish(levels: Levels) -> None:
    """Let nodes of each city say something that is not for sampling."""
    for jetstream in levels.cities.values():
        for number in range(COUNT):
            subject = f"choria.lifecycle.{('startup', 'alive', 'shutdown')[number % 3]}"
            await jetstream.publish(subject, f'{{"number":{number}}}')


async def judge(levels: Levels, narrator: Narrator) -> None:
    """Show that the region has all of it, what was there before the agents and what came since."""
    narrator.chapter("Copied whole: each city's LIFECYCLE, a file, into the region's, in memory, on other subjects")
    await publish(levels)
    below = {
        city: [(each.subject.removeprefix("choria."), each.body) for each in await read(jetstream.client, _STREAM)]
        for city, jetstream in levels.cities.items()
    }

    async def copied() -> dict[str, bool]:
        above = [(each.subject, each.body) for each in await read(levels.region.client, _STREAM)]
        of_city = {
            city: [(subject.removeprefix(f"{city}."), body) for subject, body in above if subject.startswith(city)]
            for city in below
        }
        return {city: of_city[city] == below[city] for city in below}

    narrator.show("messages", {city: len(each) for city, each in below.items()}, dict.fromkeys(below, 2 * COUNT))
    await narrator.comes("the region has all of them once, in their order", copied, dict.fromkeys(below, True))
    storage = [
        (await jetstream.info(_STREAM))["config"]["storage"] for jetstream in (*levels.cities.values(), levels.region)
    ]
    narrator.show("where they are kept", storage, ["file", "file", "memory"])
