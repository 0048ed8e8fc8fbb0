"""Describe which versions of nats-server were tried, out of the one table of them."""

from collections.abc import Iterator

from shared.nats.server_version import OLDEST, PAIRS, RECOMMENDED, SAFE, release_text

_INTRODUCTION = """\
# Which versions of nats-server work?

Written from `shared/nats/server_version.py` by `make docs`; a test tries each pair on the real servers.

- {recommended} or newer is recommended at sites, regions and the hub.
- {oldest} is the oldest that an agent can read from. `muster-aggregator plan` and `apply` refuse an older hub.
- {safe} are the oldest without known security holes; agent, `doctor`, `plan`, `apply` and `check` warn of older ones.
- Configurations that `render` writes need 2.14 or newer. With one of your own, give a hub that has older regions
  `leafnodes {{ advertise: "HOST:PORT" }}` and no `no_advertise`: servers before 2.15 do not link to a hub of 2.15 that
  advertises no address.

| hub | region | configuration | archive | policy |
| --- | --- | --- | --- | --- |"""


def version_reference() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    safe = " and ".join(map(release_text, SAFE))
    yield _INTRODUCTION.format(recommended=RECOMMENDED, oldest=release_text(OLDEST), safe=safe)
    for pair in PAIRS:
        how, policy = "rendered" if pair.rendered else "by hand", "yes" if pair.policy else "**never arrives**"
        yield f"| {pair.hub} | {pair.region} | {how} | yes | {policy} |"
