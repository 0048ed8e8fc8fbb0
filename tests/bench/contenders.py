"""The two programs that are measured: our agent and, where a binary is given, the peer, on the same servers."""

import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import msgspec

from tests.bench.children import Child

# Each sender's first interval is shortened by a hash, to a 65,536th at least: of this, to twelve hours.
ONCE = "800000h"
AGENT = Path(sys.executable).with_name("muster-agent")


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What a contender shall do. Durations as both programs write them ("12m"). ``member``: as one of a pair."""

    site: str
    region: str
    copies: bool = False
    sample_interval: str = ONCE
    stale_after: str = "6h"
    retire_after: str = "48h"
    settle: str = "5s"
    size_trigger: int = 0
    member: str = ""
    probes: bool = True


MEMBERS = ("dub1-a", "dub1-b")


class Ours:
    """The agent, on a store of its own."""

    name = "ours"
    advisories = ("region", "FLEET", "fleet.>")
    stale = ".advisory.stale"
    target_stream = "FLEET"

    def __init__(self, directory: Path, work: Work) -> None:
        self.directory = directory / f"ours{work.member}"
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self.store = self.directory / "agent.db"
        config = self.directory / "agent.toml"
        config.write_text(_agent_settings(self.store, work))
        self.child = Child([str(AGENT), "run", "--config", str(config)], self.directory / "agent.log")

    def observed_through(self) -> int:
        """Give the instant that the block has observed through, as last committed; 0 before there is one."""
        if not self.store.exists():
            return 0
        with closing(sqlite3.connect(f"file:{self.store}?mode=ro", uri=True, timeout=30)) as database:
            row = database.execute("SELECT json_extract(state, '$.observed_through') FROM block").fetchone()
        return int(row[0]) if row else 0


class Peer:
    """A built ``stream-replicator``; its advisories go back to the site, that is how it works."""

    name = "peer"
    advisories = ("site", "PEERADV", "peeradv.>")
    stale = ".timeout"
    target_stream = "PEER"

    def __init__(self, directory: Path, work: Work, binary: Path) -> None:
        self.directory = directory / "peer"
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        config = self.directory / "peer.json"
        config.write_bytes(msgspec.json.format(msgspec.json.encode(_peer_settings(self.directory, work))))
        self.child = Child([str(binary), "replicate", "--config", str(config)], self.directory / "peer.log")


Contender = Ours | Peer


def _agent_settings(store: Path, work: Work) -> str:
    mode = "copy" if work.copies else "sample"
    sampled = f"""
[stream.sender]
json_path = "sender"
[stream.policy]
sample_interval = "{work.sample_interval}"
stale_after = "{work.stale_after}"
retire_after = "{work.retire_after}"
size_trigger = {work.size_trigger}
"""
    as_member = f'name = "{work.member}"\npair = {{ members = {list(MEMBERS)} }}' if work.member else ""
    return f"""
site = "dub1"
region = "eu-west"
{as_member}
[upstream]
servers = ["{work.region}"]
id_key_file = "{store.parent.parent / "id.key"}"
[store]
path = "{store}"
[monitor]
listen = ""
[[stream]]
name = "nodes"
mode = "{mode}"
[stream.source]
servers = ["{work.site}"]
stream = "REGISTRATION"
settle = "{work.settle}"
{"" if work.probes else "probe = false"}
{"" if work.copies else sampled}"""


def _peer_settings(directory: Path, work: Work) -> dict[str, object]:
    stream: dict[str, object] = {
        "name": "nodes",
        "stream": "REGISTRATION",
        "source_url": work.site,
        "target_url": work.region,
        "target_stream": "PEER",
    }
    if not work.copies:
        stream |= {
            "inspect_field": "sender",
            "inspect_duration": work.sample_interval,
            "warn_duration": work.stale_after,
            "size_trigger": work.size_trigger,
            "advisory": {"subject": "peeradv.%s", "reliable": True},
        }
    return {"name": "dub1", "state_store": str(directory / "state"), "loglevel": "warn", "streams": [stream]}
