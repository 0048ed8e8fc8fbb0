"""Know a cancellation that a wait has lost."""

import asyncio


def is_cancelled() -> bool:
    """Tell whether the task was told to end: before Python 3.12, a wait loses a cancellation that meets its answer."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
