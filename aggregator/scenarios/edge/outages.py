"""What becomes of streams across domains while the spokes' leaf nodes are off the hub, and while the hub is down."""

from functools import partial
from typing import Any

from nats.errors import NoRespondersError

from aggregator.scenarios.edge.domains import CNC_COUNTS, COUNT, Counts, counts_in, publish
from aggregator.scenarios.edge.network import HUB, SPOKES
from aggregator.scenarios.edge.scene import Scene
from aggregator.scenarios.stage import JetStream
from shared.instants import format_duration
from shared.nats.jetstream_api import RequestFailed, api_prefix, request_json

Mirrors = dict[str, dict[str, Any]]
_SILENCE = 3_000_000_000
"""Nanoseconds: an origin that is there is heard every second."""
_ANSWERED_WITHIN = 1.0
"""Seconds. A request that was on its way when the link went is not answered."""
_BACKUP = "backup-test-spoke-1"
_MIRRORS = (("recv-cnc",), ("recv-cnc", _BACKUP))


async def links_cut(scene: Scene, at_hub: JetStream, at_spokes: tuple[JetStream, JetStream]) -> None:
    """Take the leaf nodes off the hub, tell it something, and put them back."""
    narrator = scene.narrator
    narrator.chapter("Leaf nodes off the hub (their remotes are taken away): what it is told meanwhile is not lost")
    scene.net.cut()

    async def reached() -> list[str]:
        return [spoke for spoke in SPOKES if not await is_off(at_hub, spoke)]

    await narrator.comes("spokes that the hub reaches", reached, [])
    await publish(at_hub, "cnc")
    held = partial(_held, at_hub, at_spokes)
    await narrator.comes("ten more stay with the hub", held, {"hub": 20, "spoke-1": 10, "spoke-2": 10})
    scene.net.restore()
    await narrator.comes("and come to the spokes when they are back", held, {"hub": 20, "spoke-1": 20, "spoke-2": 20})


async def is_off(at_hub: JetStream, domain: str) -> bool:
    """Tell whether the hub knows that nobody is there; that no answer came may be due to a busy machine, too."""
    subject = f"{api_prefix(domain)}.INFO"
    try:
        await request_json(at_hub.client, subject, None, dict[str, Any], deadline=_ANSWERED_WITHIN)
    except RequestFailed as error:
        return isinstance(error.__cause__, NoRespondersError)
    return False


async def _held(at_hub: JetStream, at_spokes: tuple[JetStream, JetStream]) -> Counts:
    spokes = zip(SPOKES, at_spokes, strict=True)
    counts = {spoke: await jetstream.count("recv-cnc") for spoke, jetstream in spokes}
    return {HUB: await at_hub.count("cnc")} | counts


async def hub_down(scene: Scene, _at_hub: JetStream, at_spokes: tuple[JetStream, JetStream]) -> None:
    """Kill the hub, publish at a spoke, and start it again."""
    narrator, (at_first, at_second) = scene.narrator, at_spokes
    narrator.chapter("The hub is down: kill -9 of its three servers")
    await scene.net.kill_cluster(HUB)
    narrator.show("whoever asks the hub gets an answer", await scene.answers(scene.test, HUB), False)
    await publish(at_first, "test")
    await narrator.comes("spoke-1 still stores", lambda: at_first.count("test"), 4 * COUNT)
    narrator.show("spoke-2's backup has what it had", await at_second.count(_BACKUP), 3 * COUNT)
    await _silent(scene, at_spokes)
    narrator.sentence("its servers are started again; copies look for a silent origin every ten seconds")
    await scene.net.start_cluster(HUB)


async def _silent(scene: Scene, at_spokes: tuple[JetStream, JetStream]) -> None:
    """Show that it is their silence that tells that origins are away: ``active`` grows, ``lag`` says nothing."""
    seen: Mirrors = {}

    async def grown() -> dict[str, bool]:
        seen.update(await _mirrors(at_spokes))
        return {name: mirror["active"] > _SILENCE for name, mirror in seen.items()}

    mirrors = [f"{spoke}/{name}" for spoke, names in zip(SPOKES, _MIRRORS, strict=True) for name in names]
    await scene.narrator.comes("copies have not heard from their origins for 3s", grown, dict.fromkeys(mirrors, True))
    for name, mirror in seen.items():
        scene.narrator.sentence(f"{name}: active {format_duration(mirror['active'] // 1000)}, lag {mirror['lag']}")
    lags = {name: mirror["lag"] for name, mirror in seen.items()}
    scene.narrator.show("their lag, which is what they last heard", lags, dict.fromkeys(mirrors, 0))


async def _mirrors(at_spokes: tuple[JetStream, JetStream]) -> Mirrors:
    return {
        f"{spoke}/{name}": (await jetstream.info(name))["mirror"]
        for spoke, jetstream, names in zip(SPOKES, at_spokes, _MIRRORS, strict=True)
        for name in names
    }


async def catch_up(scene: Scene) -> None:
    """Show that the copies have come to what was missed while the hub was down."""
    scene.narrator.chapter("Back to the domains, whose hub was started again")
    await scene.narrator.comes(
        "the backup has caught up, and so has the aggregate; spoke-2 never heard the last ten",
        partial(counts_in, scene.topology),
        dict.fromkeys(CNC_COUNTS, 2 * COUNT)
        | {"spoke-1/test": 40, "spoke-2/test": 30, "hub/aggregate": 70, f"spoke-2/{_BACKUP}": 40},
    )
