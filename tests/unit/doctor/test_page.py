"""What the doctor prints can be read in a narrow terminal, and copied from it."""

from pathlib import Path

from edge_agent.config import agent
from edge_agent.doctor.command import SUBJECT, render_finding, summary
from edge_agent.doctor.files import check_files
from edge_agent.doctor.finding import Level, bad, good, warning
from tests.support.store.failing_disk import dead_sector

SUBJECT_OF_JETSTREAM = "$JS.API.CONSUMER.INFO.REGISTRATION.muster-dub1-nodes"
SETTINGS = """
site = "dub1"
region = "eu-west"
[upstream]
servers = ["nats://127.0.0.1:1"]
auth = {{ user = "agent", password_file = "{secret}" }}
[store]
path = "agent.db"
[[stream]]
name = "nodes"
sender = {{ subject = true }}
[stream.source]
servers = ["nats://127.0.0.1:1"]
stream = "REGISTRATION"
auth = {{ user = "agent", password_file = "{secret}" }}
"""


def test_text_and_remedy_stand_in_a_column_of_their_own() -> None:
    level, lines = render_finding(bad("region", "it is down " * 6, "start it"), width=60)
    first, *others = (level + lines).splitlines()
    assert first.endswith("region" + " " * (SUBJECT - 4) + "it is down it is down it is down")
    assert all(line.startswith(" " * (6 + SUBJECT + 2)) for line in others)
    assert others[-1].strip() == "-> start it"


def test_a_subject_is_never_broken() -> None:
    _, page = render_finding(
        bad("source", f"not permitted: {SUBJECT_OF_JETSTREAM}", f"allow {SUBJECT_OF_JETSTREAM}"), 60
    )
    assert page.count(SUBJECT_OF_JETSTREAM) == 2


def test_the_summary_counts_what_is_not_well() -> None:
    assert summary([good("a", ""), good("b", "")]) == "0 failed, 0 warnings, 2 passed: all well"
    assert summary([good("a", ""), warning("b", "", ""), bad("c", "", "")]) == "1 failed, 1 warning, 1 passed"


def test_a_secret_that_two_connections_share_is_named_once(tmp_path: Path) -> None:
    secret, path = tmp_path / "secret", tmp_path / "agent.toml"
    secret.write_text("secret")
    secret.chmod(0o600)
    path.write_text(SETTINGS.format(secret=secret))
    (said,) = [each for each in check_files(path, agent.load(path)) if each.subject == "secrets"]
    assert (said.level, said.text) == (Level.OK, f"{secret}: readable, and not by everyone")


def test_a_store_that_its_disk_does_not_give_is_named(tmp_path: Path) -> None:
    secret, path, store = tmp_path / "secret", tmp_path / "agent.toml", tmp_path / "agent.db"
    path.write_text(SETTINGS.format(secret=secret).replace('"agent.db"', f'"{store}"'))
    store.touch()
    with dead_sector(store):
        found = [each for each in check_files(path, agent.load(path)) if each.subject == "disk"]
    assert (found[0].level, found[0].text) == (Level.FAIL, f"{store} cannot be read: input/output error")
