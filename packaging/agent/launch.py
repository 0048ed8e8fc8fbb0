"""Start the agent from its own tree: nothing of the host's other Python packages is seen."""

import sys

sys.argv[0] = "muster-agent"
sys.path.insert(0, "/usr/lib/muster-agent/site")

from edge_agent.cli import main  # noqa: E402 - it is found there

main()
