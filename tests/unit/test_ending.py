import asyncio

from edge_agent.daemon import cancelled


async def test_a_part_ends_although_a_wait_lost_its_cancellation() -> None:
    async def loses_the_first() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    part = asyncio.create_task(loses_the_first())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await cancelled([part])
    assert part.cancelled()
