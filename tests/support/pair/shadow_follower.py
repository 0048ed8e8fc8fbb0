"""Follow an agent's commits as the other member of a pair does, and hold every decision against the agent's."""

from collections.abc import Iterable

from edge_agent.core.block_mode import MessageIntake
from edge_agent.core.draft import Draft
from edge_agent.core.observation import SourceMessage
from edge_agent.core.replay import CommitReplay, OtherCommit
from edge_agent.core.tracker import Tracker
from edge_agent.store.port import BatchCommit


class ShadowFollower:
    """A tracker that began as the agent's did, and has known since then what the pair's log says, and the messages."""

    def __init__(self, tracker: Tracker, intake: MessageIntake[Draft]) -> None:
        self.tracker = tracker
        self._intake = intake

    def follow(self, batch: BatchCommit, messages: Iterable[SourceMessage]) -> None:
        """Decide one commit once more."""
        commit = OtherCommit(batch.state, tuple(batch.recorded), batch.oldest_forwarded)
        following = CommitReplay(self.tracker, self._intake, commit)
        for _ in following.take(messages):
            pass
        draft = following.finish()
        assert draft.decisions == list(batch.decisions), "the follower decides otherwise"
        self.tracker.adopt(draft)
        self.tracker.state = batch.state
        self.tracker.check_invariants()
