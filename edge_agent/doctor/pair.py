"""Look at whether this agent and the other member of its pair fit together: names, secret, settings, log."""

from collections.abc import AsyncGenerator

from edge_agent.config.agent import AgentSettings
from edge_agent.doctor.finding import Finding, bad, good, warning
from edge_agent.doctor.visit import open_visit
from edge_agent.inspection.moments import rough
from edge_agent.observability.status_board import now
from edge_agent.pair.log import LogRecord, LogUnavailable, NoLog, OtherKey, PairLog
from edge_agent.pair.peer import PairRefused, check_key_file, difference, log_address, other_key, writer_of
from edge_agent.store.files import StoreUnusable
from edge_agent.store.site_key import is_missing, read_key
from shared.nats.connection import ConnectFailed

SUBJECT = "pair"


async def check_pair(settings: AgentSettings) -> AsyncGenerator[Finding, None]:
    """Check the secret and the last entry of the log; nothing if there is no pair."""
    if not settings.pair.members:
        return
    other = next(name for name in settings.pair.members if name != settings.agent_name)
    try:
        check_key_file(settings)
    except (PairRefused, StoreUnusable) as error:
        yield bad(SUBJECT, str(error), "copy the file, readable by the agent's user alone")
        return
    if is_missing(settings.id_key_path):
        yield good(SUBJECT, f"{settings.id_key_path} is made at the first start; copy it to {other} then")
        return
    try:
        key = read_key(settings.id_key_path)
    except StoreUnusable as error:
        yield bad(SUBJECT, str(error), f"copy the file from {other}, readable by the agent's user alone")
        return
    for finding in await _log(settings, key, other):
        yield finding


async def _log(settings: AgentSettings, key: bytes, other: str) -> list[Finding]:
    address = log_address(settings, key)
    try:
        async with open_visit(settings, settings.stream[0].source) as visit:
            log = PairLog(visit.client, address)
            await log.look()
            last = await log.last()
    except ConnectFailed as error:
        # Errors of our own files are reported with the secrets.
        return [] if error.is_ours else [bad(SUBJECT, str(error), error.remedy)]
    except NoLog:
        return [_fit(settings, key, None, other)]
    except OtherKey:
        return [bad(SUBJECT, other_key(other, settings.id_key_path), "an agent refuses to start like this")]
    except LogUnavailable as error:
        remedy = f"allow the agent's user what the manual's page on permissions lists for pairs: {address.stream}"
        return [warning(SUBJECT, f"the log cannot be read: {error}", remedy)]
    else:
        return [_fit(settings, key, last, other)]


def _fit(settings: AgentSettings, key: bytes, last: LogRecord | None, other: str) -> Finding:
    first = settings.pair.members[0]
    if last is None:
        return good(SUBJECT, f"{settings.agent_name} and {other}: the log is empty, {first} begins it")
    writer = last.entry.writer
    problem = difference(writer_of(settings, key, ""), writer, settings.id_key_path)
    if problem and writer.member != settings.agent_name:
        return bad(SUBJECT, problem, "an agent refuses to start like this")
    if writer.member not in settings.pair.members:
        text = f"{writer.member} leads, which is none of pair.members {' and '.join(settings.pair.members)}"
        return bad(SUBJECT, text, "name both members in both files")
    silence = rough(max(now() - last.stored_at, 0))
    return good(SUBJECT, f"{writer.member} leads, heard {silence} ago; key and settings are the same")
