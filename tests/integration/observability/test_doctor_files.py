"""What the doctor says of files is what the agent may do with them, or it says that it cannot tell."""

import os
import pwd
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from edge_agent.config import agent
from edge_agent.core.records import Lane
from edge_agent.doctor.agent import check_agent
from edge_agent.doctor.command import examination
from edge_agent.doctor.files import check_files
from edge_agent.doctor.finding import Finding, Level
from edge_agent.observability.status_board import StatusBoard
from edge_agent.pair.health import MemberHealth, Trouble
from edge_agent.store import housekeeping, schema
from edge_agent.store.files import DIRECTORY_REMEDY, prepare
from edge_agent.store.marker import marker_of
from edge_agent.store.port import StoreFull
from shared.nats.causes import MEND_FILE
from tests.support.agent.agent_process import SETTINGS
from tests.support.faults.disk import SmallDisk
from tests.support.store.store_batches import ALL_ROWS, advisory, batch, opened, registration
from tests.support.waiting import until

NOBODYS = 54_321
NAMED = pwd.getpwnam("nobody").pw_uid

by_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")


def said_of_the_user(config_path: Path) -> list[Finding]:
    return [each for each in check_files(config_path, agent.load(config_path)) if each.subject == "user"]


@pytest.fixture
def config_path(tmp_path: Path) -> Path:
    path = tmp_path / "agent.toml"
    path.write_text(SETTINGS.format(source="nats://127.0.0.1:1", upstream="nats://127.0.0.1:1", listen=""))
    return path


@by_root
@pytest.mark.parametrize(("owner", "name"), [(NAMED, "nobody"), (NOBODYS, f"'#{NOBODYS}'")])
def test_root_hears_that_another_user_may_be_refused_what_it_may_read(config_path: Path, owner: int, name: str) -> None:
    os.chown(config_path.parent, owner, -1)
    (finding,) = said_of_the_user(config_path)
    assert finding.level is Level.WARN
    assert f": sudo -u {name} " in finding.remedy
    assert finding.remedy.endswith(f" doctor --config {config_path}")


def test_the_agents_user_hears_nothing_of_it(config_path: Path) -> None:
    assert said_of_the_user(config_path) == []


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("", "", []),
        ('site = "dub1"', 'site = "dub2"', ["belongs to site dub1 of region eu-west, the settings say site dub2"]),
        ('stream = "REGISTRATION"', 'stream = "OTHER"', ["block nodes had stream REGISTRATION in store"]),
    ],
    ids=["the same", "another site", "another stream"],
)
async def test_settings_that_the_agent_refuses_to_run_with_on_its_store_are_said(
    config_path: Path, before: str, after: str, said: list[str]
) -> None:
    async with opened(Path(agent.load(config_path).store.path)) as store:
        await store.commit(batch(1))
    config_path.write_text(config_path.read_text().replace(before, after))
    findings = check_files(config_path, agent.load(config_path))
    failed = [each.text for each in findings if each.level is Level.FAIL]
    assert [text for text in failed if any(each in text for each in said)] == failed
    assert len(failed) == len(said)


@pytest.mark.parametrize(
    ("key", "content", "said"),
    [
        ("nkey_seed_file", None, "there is no such file"),
        ("nkey_seed_file", "SUdamaged", "the nkey seed is damaged: a user's seed is one line that starts with SU"),
        ("credentials_file", "cut short", "has no section 'BEGIN NATS USER JWT'"),
        ("token_file", "", "is empty"),
    ],
)
async def test_a_secret_that_is_of_no_use_is_one_failure_that_names_its_file(
    config_path: Path, key: str, content: str | None, said: str
) -> None:
    secret = config_path.with_name("secret")
    if content is not None:
        secret.write_text(content)
        secret.chmod(0o600)
    text = config_path.read_text()
    for table in ("[upstream", "[stream.source"):
        text = text.replace(f"{table}]", f'{table}]\nauth = {{ {key} = "{secret}" }}')
    config_path.write_text(text)
    (failed,) = [each async for each in examination(config_path) if each.level is Level.FAIL]
    assert failed.subject == "secrets"
    assert failed.text.endswith(f"{key} {secret}: {said}")
    assert "upstream" in failed.text
    assert "stream nodes: source" in failed.text
    assert failed.remedy in (MEND_FILE, "put the secret there, or correct the path")


@pytest.mark.parametrize(
    ("done", "text", "remedy"),
    [
        ("", "the agent has not written a status yet", "try again in some seconds"),
        (
            "PRAGMA user_version=1",
            f"version 1, this muster-agent reads {schema.VERSION}",
            "the agent migrates it when it starts",
        ),
        (
            f"PRAGMA user_version={schema.VERSION + 1}",
            f"version {schema.VERSION + 1}, this muster-agent reads {schema.VERSION}",
            "use a newer one",
        ),
        ("INSERT INTO status VALUES ('agent', '{')", "it is damaged", "the agent sets it aside when it starts"),
    ],
    ids=["new", "older", "newer", "damaged"],
)
def test_whoever_may_read_a_store_that_shows_nothing_is_not_sent_to_another_user(
    config_path: Path, done: str, text: str, remedy: str
) -> None:
    settings = agent.load(config_path)
    prepare(Path(settings.store.path))
    with closing(sqlite3.connect(settings.store.path, isolation_level=None)) as database:
        database.execute(done)
    (finding,) = check_agent(settings)
    assert finding.level is Level.WARN
    assert text in finding.text
    assert finding.remedy == remedy


async def test_a_store_that_lost_its_log_is_told_before_the_agent_starts_on_it(config_path: Path) -> None:
    path = Path(agent.load(config_path).store.path)
    async with opened(path) as store:
        await store.commit(batch(1, [advisory("a")]))
        assert not any("holds less" in each.text for each in check_files(config_path, agent.load(config_path)))
        empty = path.read_bytes()
    path.write_bytes(empty)
    (finding,) = [each for each in check_files(config_path, agent.load(config_path)) if "holds less" in each.text]
    assert finding.level is Level.WARN
    assert finding.remedy.startswith("put back its -wal")


@pytest.mark.parametrize("body", ["", "00ff"])
def test_a_key_that_was_cut_is_not_called_readable_and_well(config_path: Path, body: str) -> None:
    settings = agent.load(config_path)
    settings.id_key_path.write_text(body)
    settings.id_key_path.chmod(0o600)
    (finding,) = [each for each in check_files(config_path, settings) if each.subject == "secrets"]
    assert finding.level is Level.WARN
    assert finding.text.endswith("it must hold 32 bytes in hex")
    assert "makes a new one" in finding.remedy


def test_what_lies_in_the_place_of_a_file_or_a_directory_is_one_failure(config_path: Path) -> None:
    settings = agent.load(config_path)
    path = Path(settings.store.path)
    marker_of(path).mkdir()
    (failed,) = [each for each in check_files(config_path, settings) if each.level is Level.FAIL]
    assert failed.text == f"{path}: {marker_of(path)}: is a directory"
    marker_of(path).rmdir()

    (file := path.with_name("file")).touch(0o755)
    for place in (file / "agent.db", file / "below" / "agent.db"):
        store = msgspec.structs.replace(settings.store, path=str(place))
        found = check_files(config_path, msgspec.structs.replace(settings, store=store))
        assert [each.text for each in found if each.level is Level.FAIL] == [f"{file} is no directory"]


def test_a_directory_that_is_not_there_is_a_failure_with_what_to_do(config_path: Path) -> None:
    settings = agent.load(config_path)
    place = Path(settings.store.path).parent / "mistyped"
    store = msgspec.structs.replace(settings.store, path=str(place / "agent.db"))
    found = check_files(config_path, msgspec.structs.replace(settings, store=store))
    (failed,) = [each for each in found if each.level is Level.FAIL]
    assert (failed.subject, failed.text, failed.remedy) == ("store", f"{place} does not exist", DIRECTORY_REMEDY)


async def test_doctor_commit_and_pair_member_judge_the_disk_alike_and_count_the_room_within_the_store(
    config_path: Path, tmp_path: Path
) -> None:
    with SmallDisk(tmp_path / "disk", size="160m") as disk:
        if not disk.is_small:
            pytest.skip("a disk of its own for the store can be mounted by root only")
        settings = agent.load(config_path)
        store = msgspec.structs.replace(settings.store, path=str(disk.path / "agent.db"), max_outbox=1 << 20)
        settings = msgspec.structs.replace(settings, store=store)
        board = StatusBoard("dub1", "eu-west", "dub1", "1", "boot", 1 << 20)
        async with opened(Path(store.path)) as opened_store:
            health = MemberHealth(board, [], opened_store, "fleet.watermark")
            await opened_store.commit(batch(1, [registration("", "r", size=60_000)] * 200))
            rows = await opened_store.pending(Lane.REGISTRATIONS, 0, ALL_ROWS)
            opened_store.delete_through(Lane.REGISTRATIONS, rows[-1].row_id)
            await until(lambda: not opened_store.depths()[Lane.REGISTRATIONS].rows, "the file has free pages")

            def judged() -> tuple[Level, bool]:
                (found,) = [each for each in check_files(config_path, settings) if each.subject == "disk"]
                return found.level, Trouble.COMMITTING in health.troubles()

            left = housekeeping.DISK_RESERVE - (4 << 20)
            disk.fill(left)
            await opened_store.commit(batch(2))
            await until(lambda: judged() == (Level.OK, False), "all have room")
            disk.fill(left // 2)
            with pytest.raises(StoreFull):
                await opened_store.commit(batch(3))
            assert judged() == (Level.FAIL, True)
