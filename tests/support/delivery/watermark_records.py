"""Watermarks of any run of an agent."""

from shared.wire import Watermark


def watermark_of(through: int, run: str, agent: str = "b") -> Watermark:
    """Return a watermark of a run of an agent of the block ``nodes``, as of an instant."""
    return Watermark(
        region="eu-west",
        site="dub1",
        block="nodes",
        agent=agent,
        observed_since_us=1,
        observed_through_us=through,
        stream="REGISTRATION",
        incarnation="7-8",
        sequence=1,
        advisory_ordinal=0,
        senders={},
        outbox={},
        counters={},
        stale_after=1,
        retire_after=2,
        blind_after=1,
        policy_revision=0,
        version="1",
        boot_id=run,
    )
