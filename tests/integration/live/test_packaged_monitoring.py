"""The rules and the dashboard that are packaged ask for metrics that exist, and say what they should."""

import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from shared.instants import MINUTE
from tests.support.lakehouse.hub import Block, Hub
from tests.support.live.live_service import serving

ROOT = Path(__file__).parents[3]
RULES = ROOT / "packaging/prometheus/muster-rules.yml"
DASHBOARD = ROOT / "packaging/grafana/muster-fleet.json"
ALERTS = '[[live.alerts]]\nkind = "webhook"\nurl = "http://127.0.0.1:9/"\n'
_SAMPLE = re.compile(r"^(muster_\w+)(?:{(.*)})? ", re.MULTILINE)
_ASKED = re.compile(r"\b(muster_(?:live|agent)_\w+)(?:{([^}]*)})?")


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Give the metrics that a running service has, and those of the agent's manual, each with its labels."""
    found: dict[str, set[str]] = {}
    directory = tmp_path_factory.mktemp("monitoring")
    at = time.time_ns() // 1_000 - 20 * MINUTE
    with Hub(directory / "hub") as hub:
        silent, current = Block("eu-west", "dub1"), Block("eu-west", "ber1")
        late = silent.watermark(at, at + MINUTE)
        messages = [silent.new("web1", at), current.new("web1", at), late, current.watermark(at, at + 20 * MINUTE)]
        refused = messages[0]._replace(body=b"{}")
        last = hub.publish([*messages, refused])
        with serving(directory, hub.connection, f'unknown_after = "10m"\n{ALERTS}') as service:
            service.wait_through(last)
            ends_at = time.monotonic() + 180
            while b"muster_live_alerts_failed_total{" not in (text := service.request("/metrics").body):
                assert time.monotonic() < ends_at, text
    for name, labels in _SAMPLE.findall(text.decode()):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    manual = (ROOT / "docs/reference/metrics.md").read_text()
    for name, labels in re.findall(r"^\| `(muster_agent_\w+)` \| \w+ \| ([^|]*) \|", manual, re.MULTILINE):
        found[name] = set(re.findall(r"`(\w+)`", labels))
    return found


def asked(text: str) -> list[tuple[str, set[str]]]:
    """Give what a text asks for: names of metrics, with the labels that it chooses by."""
    return [(name, set(re.findall(r"(\w+)\s*[=!]~?", labels))) for name, labels in _ASKED.findall(text)]


def test_the_rules_ask_for_metrics_that_exist(metrics: dict[str, set[str]]) -> None:
    wanted = asked("\n".join(re.findall(r"expr: (.*?)\n(?=\s+(?:for|labels|keep))", RULES.read_text(), re.DOTALL)))
    assert len(wanted) > 10
    assert [(name, labels) for name, labels in wanted if not labels <= metrics.get(name, set())] == []
    assert [name for name, _ in wanted if name not in metrics] == []


def test_the_dashboard_asks_for_metrics_that_exist(metrics: dict[str, set[str]]) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [each["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    for expression in expressions:
        wanted = asked(expression)
        assert wanted, expression
        for name, labels in wanted:
            assert name in metrics, expression
            assert labels <= metrics[name], expression
        shown = set(re.findall(r"by \(([^)]*)\)", expression))
        grouped = {label.strip() for labels in shown for label in labels.split(",")} - {"instance"}
        assert grouped <= set.union(*(metrics[name] for name, _ in wanted)), expression
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)


def test_the_rules_fire_and_rest_as_they_should(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool is installed here (Debian: prometheus)")
    shutil.copy(RULES, tmp_path)
    shutil.copy(Path(__file__).with_name("muster_rules_test.yml"), tmp_path)
    for command in (["check", "rules", RULES.name], ["test", "rules", "muster_rules_test.yml"]):
        ran = subprocess.run([promtool, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
