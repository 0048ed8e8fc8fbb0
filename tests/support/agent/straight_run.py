"""Replay what a real site's stream and a real agent's store hold: what the agent must have said, to the byte."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import msgspec
from nats.aio.client import Client

from edge_agent.config import agent
from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import Advise, EpochBegun, RecordedInput
from edge_agent.core.intake import Intake
from edge_agent.core.observation import SourceMessage
from edge_agent.core.records import Emitter, WatermarkContext
from shared.identifiers import Incarnation, SourcePosition
from shared.instants import parse_instant
from shared.nats.jetstream_api import request_json
from tests.support.core.straight_replay import replay
from tests.support.nats.source_site import StoredMessage

DEADLINE = 90.0


class _Reply(msgspec.Struct):
    message: StoredMessage


async def advisories_of_a_straight_run(config_path: Path, site: Client) -> list[bytes]:
    """Give every advisory of an agent that has ended, in order, as bodies on the wire.

    For a store that was never lost, settings that never changed, and a stream read from its first message on that was
    never made anew nor restored: whatever epochs there were, its sequences went on.
    """
    settings = agent.load(config_path)
    block = settings.stream[0]
    with closing(sqlite3.connect(settings.store.path)) as database:
        state = msgspec.json.decode(database.execute("SELECT state FROM block").fetchone()[0], type=BlockState)
        bodies = database.execute("SELECT body FROM recorded_input ORDER BY row_id").fetchall()
        first = Incarnation(
            *database.execute("SELECT created_at, epoch_ms FROM incarnation ORDER BY number").fetchone()
        )
    recorded = [msgspec.json.decode(body, type=RecordedInput) for (body,) in bodies]
    epochs = [(each.sequence, each.incarnation) for each in recorded if isinstance(each, EpochBegun)]
    rule = block.sender_rule()
    intake = Intake(rule)
    messages = [
        await stored_message(site, block.source.stream, sequence) for sequence in range(1, state.position.sequence + 1)
    ]
    decisions = replay(
        BlockState(SourcePosition(block.source.stream, first, 0), block.policy.policy()),
        [
            ([first, *(begun for after, begun in epochs if after < message.sequence)][-1], intake.read(message))
            for message in messages
        ],
        recorded,
        state.observed_through,
    )
    emitter = Emitter(settings.block_id(block), "", "", "", rule.inspect_field, bytes(32))
    advisories = [decision for decision in decisions if isinstance(decision, Advise)]
    return [row.payload for row in emitter.rows(list(advisories), state, WatermarkContext({}, {}, {}))]


async def assert_straight_run(arrived: Iterable[bytes], config_path: Path, site: Client) -> None:
    """Assert that the bodies of advisories that arrived are those of a straight run of an agent that has ended."""
    assert sorted(arrived, key=_place) == await advisories_of_a_straight_run(config_path, site)


def _place(body: bytes) -> tuple[str, int]:
    advisory = msgspec.json.decode(body)
    return advisory["incarnation"], advisory["ordinal"]


async def stored_message(client: Client, stream: str, sequence: int) -> SourceMessage:
    """Look at one message of a stream, without its headers."""
    subject = f"$JS.API.STREAM.MSG.GET.{stream}"
    found = (await request_json(client, subject, {"seq": sequence}, _Reply, deadline=DEADLINE)).message
    return SourceMessage(found.subject, found.payload, None, sequence, parse_instant(found.time))
