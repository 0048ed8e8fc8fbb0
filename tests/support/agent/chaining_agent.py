"""Run the agent so that large copies leave as chains wherever they may: ``-m tests.support.agent.chaining_agent``.

The agent itself would time batches first, and take whichever are faster here.
"""

from edge_agent.cli import main
from edge_agent.delivery import copy_lane
from edge_agent.delivery.copy_lane import FormChoice
from edge_agent.delivery.shipment import Form


def chain_unless_one_broke(choice: FormChoice, _row_size: int) -> Form:
    """Choose in place of ``FormChoice.of``."""
    return Form.BATCH if choice._paused_for else Form.CHAIN


if __name__ == "__main__":
    copy_lane.FIRST_PAUSE = copy_lane.LONGEST_PAUSE = 1
    FormChoice.of = chain_unless_one_broke  # type: ignore[assignment, method-assign]
    main()
