import subprocess
import sys
from pathlib import Path

import pytest

from edge_agent.store.files import StoreUnusable, held

HOLD = """
import sys, time
from pathlib import Path
from edge_agent.store.files import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_agent_is_kept_out_of_a_store_in_use(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with held(path), pytest.raises(StoreUnusable, match="another agent is running on it"), held(path):
        pass
    with held(path):
        pass


def test_a_killed_agent_keeps_nobody_out(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "held\n"
        with pytest.raises(StoreUnusable), held(path):
            pass
        agent.kill()
    with held(path):
        pass
