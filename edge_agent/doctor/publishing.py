"""Subjects that an agent publishes on for a block, and their streams, found by publishes that no stream accepts."""

import asyncio
from collections.abc import Sequence

import msgspec

from edge_agent.config.agent import AgentSettings
from edge_agent.config.stream import StreamSettings
from edge_agent.doctor.visit import Visit
from shared import subjects
from shared.identifiers import AdvisoryKind
from shared.nats.jetstream_api import ANOTHER_STREAM, stream_in

ANYBODY = "muster-doctor"


class PublishAnswer(msgspec.Struct, frozen=True):
    """Result of a publish on a subject: the streams that listen, whether it is permitted, and whether it is answered.

    Where nobody listens the server answers; who listens and does not is a stream with ``no_ack``, or no stream.
    """

    subject: str
    streams: frozenset[str]
    is_denied: bool
    is_answered: bool


def subjects_of(settings: AgentSettings, block: StreamSettings) -> tuple[list[str], str]:
    """Return the subjects of a block's records, and the pattern of a permission for all of them."""
    block_id, prefix = settings.block_id(block), block.target.prefix
    match block.mode:
        case "copy":
            below = prefix or subjects.copy_prefix(block_id)
            read = block.filter_subject or ANYBODY
            known = read.replace("*", ANYBODY).replace(">", ANYBODY)
            return [block.copy_subject(subjects.copy_prefix(block_id)).of(known) or f"{below}.{ANYBODY}"], f"{below}.>"
        case "relay":
            other_site = msgspec.structs.replace(block_id, site=ANYBODY)
            return [subjects.registration_subject(other_site)], subjects.EVERY_REGISTRATION
        case _:
            advisories = [subjects.advisory_subject(block_id, kind, prefix) for kind in AdvisoryKind]
            others = [subjects.watermark_subject(block_id, prefix), subjects.registration_subject(block_id, prefix)]
            return [*advisories, *others], f"{prefix or f'{subjects.ROOT}.{block_id}'}.>"


async def heard_on(visit: Visit, wanted: Sequence[str]) -> list[PublishAnswer]:
    """Publish on every subject a message that no stream stores: a stream that answers listens."""
    answered = await asyncio.gather(*(visit.answers(subject, b"", ANOTHER_STREAM) for subject in wanted))
    return [
        PublishAnswer(
            subject,
            frozenset(stream for answer in answers if (stream := stream_in(answer))),
            visit.is_denied(subject),
            bool(answers),
        )
        for subject, answers in zip(wanted, answered, strict=True)
    ]
