"""Memory of a process that runs for long: cycles are collected rarely, and free memory goes back to the system."""

import asyncio
import ctypes
import gc

GIVE_BACK_INTERVAL = 10.0
ALLOCATIONS_BETWEEN_COLLECTIONS = 50_000


def collect_rarely() -> None:
    """Collect cycles less often, and leave out all objects that are loaded by now."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(ALLOCATIONS_BETWEEN_COLLECTIONS, 20, 100)


async def give_memory_back() -> None:
    """Return free memory to the system every few seconds, if the C library can do so (musl cannot)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while True:
        await asyncio.sleep(GIVE_BACK_INTERVAL)
        if trim is not None:
            trim(0)
