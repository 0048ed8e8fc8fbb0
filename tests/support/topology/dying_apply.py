"""Run the aggregator so that it dies at a request that changes something: ``-m tests.support.topology.dying_apply``.

The aggregator itself knows nothing of this. The environment names the request and the side of it, as in "2 after": the
process is gone just before the second one is sent, or just after it was answered.
"""

import os
import signal
from typing import Any

from nats.aio.client import Client

from aggregator.cli import main
from aggregator.topology import apply
from aggregator.topology.observed.connections import REQUEST_DEADLINE

DEATH = "MUSTER_TEST_DEATH"


def mortal() -> None:
    """Have the requests that change something counted, and the process end at its time."""
    number, when = os.environ[DEATH].split()
    asked, request = 0, apply._request

    async def dying(
        client: Client, subject: str, body: dict[str, Any] | None, deadline: float = REQUEST_DEADLINE
    ) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        is_time = asked == int(number)
        if is_time and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await request(client, subject, body, deadline)
        if is_time:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    apply._request = dying


if __name__ == "__main__":
    mortal()
    main()
