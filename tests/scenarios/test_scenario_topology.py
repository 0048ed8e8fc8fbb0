"""What scenarios lay out: where a place does not answer yet, that is done again until all of it is there."""

from pathlib import Path

from aggregator.scenarios.stage import Topology, connected
from shared.embedded.server import EmbeddedNats, ServerSettings

_STREAM = """
[[stream]]
name = "kept"
place = "LATE"
subjects = ["kept"]
"""


async def test_a_place_that_answers_late_is_laid_out_all_the_same(tmp_path: Path) -> None:
    told: list[str] = []
    async with (
        EmbeddedNats(ServerSettings(name="hub", store_dir=tmp_path / "hub")) as hub,
        EmbeddedNats(ServerSettings(name="late", store_dir=tmp_path / "late")) as late,
    ):
        url = late.url
        servers = f'[hub]\nservers = ["{hub.url}"]\n[[account]]\nname = "LATE"\n[account.server]\nservers = ["{url}"]\n'
        late.suspend()

        def wake(line: str) -> None:
            told.append(line)
            late.resume()

        topology = Topology(tmp_path / "topology.toml", servers, wake)
        await topology.apply(_STREAM)
        async with connected(url) as at_late:
            assert await at_late.count("kept") == 0
    assert told[0].endswith(": once more in 1 s")
    assert told[1:] == ["LATE: + create stream kept"]
