"""Use memory as a small daemon should: look for cycles rarely, and give back what a burst has left behind.

Reading a backlog takes tens of megabytes for a moment. The C library keeps them for the next burst, which on a quiet
site is days away. And what the agent makes by the hundred thousand holds no cycles: looking for them on Python's usual
schedule is a fifth of its work.
"""

import asyncio
import ctypes
import gc

GIVE_BACK_INTERVAL = 10.0
ALLOCATIONS_BETWEEN_COLLECTIONS = 50_000


def collect_rarely() -> None:
    """Look for cycles less often; what is there now is not looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(ALLOCATIONS_BETWEEN_COLLECTIONS, 20, 100)


async def give_memory_back() -> None:
    """Give free memory back to the system every few seconds; where the C library cannot (musl), only wait."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while True:
        await asyncio.sleep(GIVE_BACK_INTERVAL)
        if trim is not None:
            trim(0)
