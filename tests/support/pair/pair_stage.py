"""Two agents on one site, each with settings, a store and a link to the site's server of its own."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from edge_agent.observability.status_board import UPSTREAM, PairPhase, PairStatus
from edge_agent.observability.status_report import StatusReport, read_status
from edge_agent.store.read_only import StoreUnreadable
from shared.embedded.link import EmbeddedLink
from tests.support.agent.agent_process import AgentProcess
from tests.support.agent.agent_stage import Stage, agent_stage
from tests.support.waiting import until

MEMBERS = ("dub1-a", "dub1-b")
HAND_OVER = 1.0


class MemberStage(NamedTuple):
    """One member: its process, and the links that it reaches the site's and the region's server by."""

    agent: AgentProcess
    link: EmbeddedLink
    uplink: EmbeddedLink
    store_path: Path

    def status(self) -> PairStatus | None:
        """Read what it does; None while this run of it has not said so."""
        report = self.report
        return report.pair if report is not None and report.agent.pid == self.agent.process.pid else None

    @property
    def report(self) -> StatusReport | None:
        """Read its whole status."""
        try:
            return read_status(self.store_path)
        except StoreUnreadable:
            return None

    @property
    def upstream(self) -> str:
        """Read what it says of its region; nothing where it has said nothing yet."""
        report = self.report
        part = report.parts.get(UPSTREAM) if report is not None else None
        return part.phase if part is not None else ""

    def does(self, phase: PairPhase) -> bool:
        """Tell whether it does this now."""
        status = self.status()
        return status is not None and status.phase == phase


class PairStage:
    """A site, a region, and two agents that are not started yet."""

    def __init__(self, stage: Stage, a: MemberStage, b: MemberStage) -> None:
        self.stage = stage
        self.a, self.b = a, b

    async def start(self) -> None:
        """Start both, the first as the leader."""
        self.a.agent.start()
        await until(lambda: self.a.does(PairPhase.LEADING), "the first leads")
        self.b.agent.start()
        await until(lambda: self.b.does(PairPhase.STANDING_BY), "the second stands by")


@asynccontextmanager
async def pair_stage(directory: Path) -> AsyncIterator[PairStage]:
    """Start a site's and a region's servers; the agents do not outlive the test."""
    async with AsyncExitStack() as stack:
        stage = await stack.enter_async_context(agent_stage(directory))
        members = []
        for name in MEMBERS:
            link = await stack.enter_async_context(EmbeddedLink(stage.site.server.port))
            # Behind the region's link, which is both members' then.
            uplink = await stack.enter_async_context(EmbeddedLink(stage.region.link.port))
            stage.write_settings(id_key_file=str(directory / "id.key"))
            text = stage.config_path.read_text()
            text = text.replace('name = "dub1-a"', f'name = "{name}"').replace(stage.site.link.url, link.url)
            text = text.replace(stage.region.link.url, uplink.url)
            text = text.replace(str(stage.store_path), str(directory / name / "agent.db"))
            # A test may have mounted a disk of its own there.
            (directory / name).mkdir(exist_ok=True)
            path = directory / f"{name}.toml"
            pair = f'members = {list(MEMBERS)}\ntakeover_after = "3s"\nhand_over_after = "{HAND_OVER:g}s"'
            path.write_text(f"{text}\n[pair]\n{pair}\n")
            agent = AgentProcess(path)
            stack.callback(agent.end)
            members.append(MemberStage(agent, link, uplink, directory / name / "agent.db"))
        yield PairStage(stage, *members)
