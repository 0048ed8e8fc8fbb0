"""Put together what a block's mode consists of: how messages are read, what decides, what writes the records."""

from collections.abc import Callable

import msgspec

from edge_agent.config.agent import AgentSettings
from edge_agent.config.stream import StreamSettings
from edge_agent.core.block_mode import Decider, MessageIntake, RecordWriter
from edge_agent.core.block_state import BlockState
from edge_agent.core.copy_mode import Copier, CopyEmitter, CopyIntake
from edge_agent.core.intake import Intake
from edge_agent.core.records import Emitter
from edge_agent.core.relay_mode import Relay
from edge_agent.core.relaying import RelayEmitter, RelayIntake
from edge_agent.core.senders import SenderTable
from edge_agent.core.tracker import Tracker
from shared.subjects import copy_prefix


class AgentIdentity(msgspec.Struct, frozen=True):
    """Who writes records: this version of the agent, this run of it, with the site's secret for message ids."""

    version: str
    boot_id: str
    key: bytes


class Mode(msgspec.Struct, frozen=True):
    """What a block does with its messages. ``decides`` goes on from a state and its senders.

    ``passes`` where rows may go to the region without having been stored.
    """

    intake: MessageIntake
    emitter: RecordWriter
    decides: Callable[[BlockState, SenderTable], Decider]
    passes: bool = False


def mode_of(settings: AgentSettings, block: StreamSettings, identity: AgentIdentity) -> Mode:
    """Give what a block's settings ask for."""
    block_id = settings.block_id(block)
    match block.mode:
        case "copy":
            return Mode(
                CopyIntake(block.copy_subject(copy_prefix(block_id))),
                CopyEmitter(block_id, identity.key),
                lambda state, _senders: Copier(state),
                passes=True,
            )
        case "relay":
            intake = Intake(block.sender_rule())
            return Mode(RelayIntake(intake), RelayEmitter(block_id, identity.key), Relay)
        case _:
            rule = block.sender_rule()
            emitter = Emitter(
                block_id=block_id,
                agent=settings.agent_name,
                boot_id=identity.boot_id,
                version=identity.version,
                inspect_field=rule.inspect_field,
                key=identity.key,
                prefix=block.target.prefix,
            )
            intake = Intake(rule, block.policy.force_path, block.policy.digest_rule(), str(block_id))
            return Mode(intake, emitter, Tracker)
