"""Run the agent so that its disk can be made to fail: ``python -m tests.support.agent.failing_agent run``.

SIGUSR1: from then on nothing can be read that it has open of the store that the environment names. The agent itself
knows nothing of this.
"""

import os
import signal
from pathlib import Path

from edge_agent.cli import main
from tests.support.store.failing_disk import fail

STORE = "MUSTER_TEST_STORE"


def _fail() -> None:
    # Never healed: a copy that stayed open would keep the store locked.
    for copy in fail(Path(os.environ[STORE])).values():
        os.close(copy)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, lambda *_: _fail())
    main()
