"""Settings of agents under test: what stands above the blocks, and a block of a mode."""

ABOVE_BLOCKS = """
site = "dub1"
region = "eu-west"
name = "dub1-a"

[upstream]
servers = ["{upstream}"]

[store]
path = "agent.db"

[watermark]
interval = "300ms"

[monitor]
listen = "{listen}"
"""
SAMPLING = """
[stream.sender]
json_path = "sender"

[stream.policy]
sample_interval = "1h"
stale_after = "4s"
retire_after = "1h"
blind_after = "1500ms"
"""


def block(name: str, mode: str, tables: str = "", *, stream: str = "REGISTRATION", source: str = "") -> str:
    """Write a block; ``tables`` are its further tables, ``source`` further lines of ``[stream.source]``."""
    return f"""
[[stream]]
name = "{name}"
mode = "{mode}"

[stream.source]
servers = ["{{source}}"]
stream = "{stream}"
settle = "200ms"
{source}
{tables}
"""
