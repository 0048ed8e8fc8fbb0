"""Rate of records, and pauses for other tasks, by the loop's clock, which no one sets."""

import asyncio

BURST_BYTES = 64 << 10
LONGEST_STRETCH = 0.03
"""Seconds after which work that takes long stops for others."""


class Pace:
    """Keep to a number of bytes per second (0: no limit), bursts of 64 KiB allowed."""

    def __init__(self, bytes_per_second: int) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0

    async def wait(self, size: int) -> None:
        if not self._rate:
            return
        now = loop_time()
        self._free_at = max(self._free_at, now - BURST_BYTES / self._rate) + size / self._rate
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)


class Stretch:
    """Work on the loop that nothing interrupts: it begins now, and again whenever others were let run."""

    def __init__(self) -> None:
        self._began_at = loop_time()

    async def yield_to_loop(self) -> None:
        """Yield to other tasks if the work has lasted for long."""
        if loop_time() - self._began_at > LONGEST_STRETCH:
            await asyncio.sleep(0)
            self._began_at = loop_time()


def loop_time() -> float:
    """Read the loop's clock, in seconds."""
    return asyncio.get_running_loop().time()
