"""An agent's settings file as people write it: complete, and as small as it may be."""

from pathlib import Path

import pytest

from edge_agent.config.agent import AgentSettings
from shared.settings import SettingsError, parse_settings

PATH = Path("/etc/muster-agent/agent.toml")

COMPLETE = """
site = "dub1"
region = "eu-west"
name = "dub1-a"                  # default: the host's name

[upstream]                       # the region's servers
servers = ["nats://127.0.0.1:5222"]
domain = ""                      # JetStream domain, where it is not the connection's own
max_bandwidth = "0"              # bytes per second, 0 = unlimited
id_key_file = ""                 # default: made beside the store; shared by a redundant pair

[store]
path = "/var/lib/muster-agent/agent.db"
max_outbox = "2GiB"

[watermark]
interval = "10s"

[monitor]
listen = "127.0.0.1:8787"        # "" = off
hosts = []                       # further names that the host is asked by

[[stream]]                       # one or more
name = "nodes"                   # the block's name, a subject token
mode = "sample"                  # sample | copy | relay

[stream.source]
servers = ["nats://127.0.0.1:4222"]
domain = ""
stream = "REGISTRATION"
consumer = "muster-dub1"         # durable; created unless create_consumer = false
create_consumer = true
filter_subject = ""
start = "all"                    # all | new | sequence:100 | time:2026-01-31T00:00:00Z | delta:1h
probe = true                     # false: no probes
probe_subject = ""               # "": the agent chooses one that no sender uses
settle = "5s"                    # how far behind the server's clock a time counts as complete

[stream.sender]                  # exactly one of:
json_path = "sender"             # header = "X-Sender" | subject_token = 4 | subject = true
normalize = "none"               # none | hostname
batch = "none"                   # none | lines | array: registrations of several senders in one message

[stream.policy]
sample_interval = "1h"
stale_after = "12m"
retire_after = "24h"
blind_after = "3m"               # default stale_after / 4
size_trigger = 1024              # bytes; 0 = off
force_path = ""                  # a JSON path whose value true forwards at once
digest_paths = []                # forward when these change; ["*"] = all but digest_ignore
digest_ignore = []
max_age = "0s"                   # do not forward older messages; 0s = never
max_senders = 2_000_000

[stream.target]
prefix = ""                      # default: the site's own subjects; else subjects below this prefix
remove = ""                      # a part taken out of copied subjects

[stream.goodbye]                 # messages of senders that go
json_path = ""
values = []

[stream.heartbeat]
interval = "0s"                  # a message on idle streams; 0s = off
subject = ""
"""

SMALLEST = """
site = "dub1"
region = "eu-west"
[upstream]
servers = ["nats://127.0.0.1:5222"]
[[stream]]
name = "nodes"
[stream.source]
servers = ["nats://127.0.0.1:4222"]
stream = "REGISTRATION"
[stream.sender]
json_path = "sender"
"""


def parsed(text: str) -> AgentSettings:
    return parse_settings(text, AgentSettings, PATH)


def complaint(text: str) -> str:
    """Give what is said of a file that is refused, less the file's name."""
    with pytest.raises(SettingsError) as publish_error:
        parsed(text)
    line = str(publish_error.value)
    assert line.startswith(f"{PATH}: ")
    return line.removeprefix(f"{PATH}: ")


def with_line(table: str, key: str, line: str) -> str:
    """Put a line in the place of a key's own in the complete file; ``table`` is empty for the top of the file."""
    header = COMPLETE.index(f"[{table}]") if table else 0
    start = COMPLETE.index(f"\n{key} = ", header) + 1
    return COMPLETE[:start] + line + COMPLETE[COMPLETE.index("\n", start) :]
