"""Keep the agents and the fleets running: one that ends by itself ends the demo, one that is told to may go.

An agent that somebody else ends is started again, as its service would be on a real host.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager

from aggregator.demo.directory import DemoDirectory
from aggregator.demo.processes import Child, CommandFailed
from aggregator.demo.story import Story, Tone


class Crew:
    """The running children, by name. What they print goes to the log of their name."""

    def __init__(self, directory: DemoDirectory, story: Story, tasks: asyncio.TaskGroup) -> None:
        self._directory = directory
        self._story = story
        self._tasks = tasks
        self._children: dict[str, Child] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._company: list[asyncio.Task[None]] = []
        self._followed = ""

    async def start(self, name: str, command: Sequence[str]) -> None:
        """Show a command and start it; raise CommandFailed."""
        child = await self._hire(name, command)
        self._watches[name] = self._tasks.create_task(child.fail_when_it_ends())

    async def start_service(self, name: str, place: str, command: Sequence[str]) -> None:
        """Show a command and start it, again whenever somebody else ends it; raise CommandFailed."""
        child = await self._hire(name, command)
        self._watches[name] = self._tasks.create_task(self._serve(child, place, command))

    def accompany(self, work: Coroutine[None, None, None]) -> None:
        """Run ``work`` until all have ended; what it raises ends the demo."""
        self._company.append(self._tasks.create_task(work))

    async def start_aside(self, name: str, command: Sequence[str], told: Callable[[list[str]], None]) -> None:
        """Show a command and start it; when it has ended well, ``told`` is called with the lines that it printed.

        Raise CommandFailed where it cannot be started, later on where it ends badly.
        """
        self._story.command(command)
        child = await Child.start(name, command)
        self._children[name] = child
        self._watches[name] = self._tasks.create_task(self._follow(name, child, told))

    async def wait_for(self, name: str) -> None:
        """Wait until what was started aside has ended, and was told of; show meanwhile what it prints."""
        self._followed = name
        await self._watches[name]

    async def _hire(self, name: str, command: Sequence[str]) -> Child:
        self._story.command(command)
        self._children[name] = await Child.start(name, command, log=self._directory.log(name))
        return self._children[name]

    async def _serve(self, child: Child, place: str, command: Sequence[str]) -> None:
        while (code := await child.wait()) <= 0:
            how = signal.Signals(-code).name if code else "as asked"
            self._story.event(place, f"somebody ended {child.name} ({how}): it is started again", Tone.STRONG)
            child = await self._hire(child.name, command)
        raise child.failure(code)

    async def _follow(self, name: str, child: Child, told: Callable[[list[str]], None]) -> None:
        lines = []
        with self._directory.log(name).open("a") as log:
            async for line in child.lines():
                lines.append(line)
                log.write(line + "\n")
                log.flush()
                if self._followed == name:
                    self._story.output([line], timed=True)
        code = await child.wait()
        if code != 0:
            raise CommandFailed("\n  ".join([f"{name} ended with {code}:", *lines]))
        told(lines)
        del self._children[name], self._watches[name]

    def has(self, name: str) -> bool:
        return name in self._children

    async def end(self, names: Iterable[str]) -> None:
        """Ask some to end, all at once, and wait until they have; raise CommandFailed where one ends badly."""
        leaving = [self._dismissed(name) for name in names]
        for child, code in zip(leaving, await asyncio.gather(*(child.end() for child in leaving)), strict=True):
            if code != 0:
                raise CommandFailed(f"{child.name} was asked to end, and ended with {code}: see its log")

    async def kill(self, name: str) -> None:
        await self._dismissed(name).kill()

    async def end_all(self) -> None:
        for work in self._company:
            work.cancel()
        await asyncio.gather(*(self._dismissed(name).end() for name in list(self._children)))

    def _dismissed(self, name: str) -> Child:
        self._watches.pop(name).cancel()
        return self._children.pop(name)


@asynccontextmanager
async def crew(directory: DemoDirectory, story: Story) -> AsyncIterator[Crew]:
    """Have a crew, and nobody left at the end; raise CommandFailed as soon as one ends by itself."""
    try:
        async with asyncio.TaskGroup() as tasks:
            hired = Crew(directory, story, tasks)
            try:
                yield hired
            finally:
                await hired.end_all()
    except BaseExceptionGroup as group:
        raise _first(group) from None


async def run_shown(story: Story, name: str, command: Sequence[str]) -> None:
    """Show a command, run it to its end, and show what it prints; raise CommandFailed where it ends badly."""
    story.command(command)
    child = await Child.start(name, command)
    ticking = asyncio.create_task(_tick(story))
    try:
        async for line in child.lines():
            story.output([line], timed=True)
        code = await child.wait()
    finally:
        ticking.cancel()
        await child.end(deadline=1.0)
    if code != 0:
        raise CommandFailed(f"{name} ended with {code}")


async def _tick(story: Story) -> None:
    while True:
        await asyncio.sleep(1.0)
        if story.is_quiet:
            story.say("... still at work", Tone.DIM)


async def run_quietly(name: str, command: Sequence[str]) -> list[str]:
    """Run a command to its end and give what it printed; raise CommandFailed, with it, where it ends badly."""
    child = await Child.start(name, command)
    try:
        lines = [line async for line in child.lines()]
        code = await child.wait()
    finally:
        await child.end(deadline=1.0)
    if code != 0:
        raise CommandFailed("\n  ".join([f"{name} ended with {code}:", *lines]))
    return lines


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Give the error that matters: a child's, where there is one."""
    failed, others = group.split(CommandFailed)
    found = (failed or others or group).exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
