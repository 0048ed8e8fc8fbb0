"""Make registrations that look like Choria's: an adapter's envelope around an inventory, of a chosen size, cheaply.

A body is a function of seed, sender, number of the registration, and instant. Most of it is made once: a pool of
packages that all senders share, of which each has a selection of its own, and a head and a tail for each sender; a
body joins a few pieces. Now and then a node changes (packages come and go), and its size with it.

Source: https://choria.io/schemas/choria/registration/v1/inventorycontent.json and
https://choria.io/schemas/choria/adapters/choria_streams/v1/output.json
"""

import base64
import gzip
from bisect import bisect_right
from itertools import accumulate
from typing import Any, Final

import msgspec

from edge_agent.simulator.fleet import stable_hash
from shared.instants import SECOND, format_instant

SMALLEST: Final = 3_000
LARGEST: Final = 40_000

_CHANGES_EVERY = 96
"""Registrations between two changes of a node: eight hours at 300 s."""
_LARGEST_CHANGE = 3_000
_COMPRESSION_LEVEL = 1
_AGENTS = ("choria_util", "discovery", "package", "puppet", "rpcutil", "scout", "service", "shell")
_CLASSES = ("apache", "choria", "haproxy", "kafka", "mysql", "ntp", "postgresql", "profile::web", "roles::db", "ssh")
_SYSTEMS = (("Debian", "12.5"), ("RedHat", "9.3"), ("Ubuntu", "24.04"))
_PACKAGES = ("acl", "bind", "core", "curl", "dbus", "gnu", "http", "java", "kernel", "lib", "net", "perl", "ssl", "xz")
_POOL_SIZE = 600
_DATA = b'{"protocol":"choria:adapters:choria_streams:output:1","data":"{'
_INVENTORY = b'\\"protocol\\":\\"choria:registration:inventorycontent:1\\",'
_PLAIN = (_DATA + _INVENTORY + b'\\"content\\":', b'}"')
_ZIPPED = (_DATA + _INVENTORY + b'\\"zcontent\\":\\"', b'\\"}"')
_KEYS = base64.b64encode(b"".join(stable_hash("key", number).to_bytes(8, "little") for number in range(4_000)))


class SizeRange(msgspec.Struct, frozen=True):
    """Bound the bodies of a fleet, in bytes, both ends included."""

    smallest: int
    largest: int

    def __post_init__(self) -> None:
        if not SMALLEST <= self.smallest <= self.largest <= LARGEST:
            raise ValueError(f"sizes go from {SMALLEST} to {LARGEST} bytes, the smaller one first")


class _Node(msgspec.Struct):
    """One sender's part of its bodies: constant fields, and fields that last until its next change."""

    fingerprint: int
    head: bytes
    tail: bytes
    envelope: bytes
    generation: int = -1
    packages: slice = slice(0)
    key: bytes = b""


class RegistrationBodies:
    """Make the bodies of one fleet's registrations.

    Every body lies in the size range. With ``compress`` the inventory travels as ``zcontent``, and the range bounds
    what the body would be without.
    """

    def __init__(self, sizes: SizeRange, *, seed: int = 0, compress: bool = False) -> None:
        self._sizes = sizes
        self._seed = seed
        self._compress = compress
        self._opening, self._closing = _ZIPPED if compress else _PLAIN
        self._state = self._as_content(
            b'"system_uptime":{"seconds":%d},"memory":{"available_kib":%d},"load_average":"%d.%02d","packages":{'
        )
        self._key_opening = self._as_content(b'"keyring":"')
        # Twice, so that a selection may begin anywhere and run over the end.
        self._pool = [self._as_content(_package(seed, number)) for number in range(_POOL_SIZE)] * 2
        self._ends = [0, *accumulate(map(len, self._pool))]
        self._nodes: dict[str, _Node] = {}

    def body(self, sender_id: str, number: int, at: int) -> bytes:
        """Return the body of a sender's registration ``number`` at ``at``, its own clock in microseconds."""
        node = self._nodes.get(sender_id)
        if node is None:
            node = self._nodes[sender_id] = self._node(sender_id)
        seconds, fingerprint = at // SECOND, node.fingerprint
        # Numbers keep their width, so that a body's size tells changes of the node and nothing else.
        state = self._state % (
            10_000_000 + seconds % 80_000_000,
            10_000_000 + (fingerprint + number * 7_919) % 80_000_000,
            number % 4,
            (fingerprint + number) % 100,
        )
        envelope = node.envelope % (format_instant(seconds * SECOND).encode(), fingerprint, number)
        generation = (number + fingerprint % _CHANGES_EVERY) // _CHANGES_EVERY
        if generation != node.generation:
            node.generation = generation
            self._change(node, len(node.head) + len(state) + len(node.tail) + len(envelope))
        content = (node.head, state, *self._pool[node.packages], node.key, node.tail)
        if self._compress:
            content = (base64.b64encode(gzip.compress(b"".join(content), _COMPRESSION_LEVEL, mtime=0)),)
        return b"".join((self._opening, *content, self._closing, envelope))

    def _change(self, node: _Node, fixed_size: int) -> None:
        """Return the node's packages, padded to its size."""
        sizes, fingerprint = self._sizes, node.fingerprint
        usual = sizes.smallest + fingerprint % (sizes.largest - sizes.smallest + 1)
        change = stable_hash(fingerprint, node.generation) % _LARGEST_CHANGE if node.generation else 0
        size = usual + change if usual + change <= sizes.largest else max(sizes.smallest, usual - change)
        room = size - fixed_size - len(self._opening) - len(self._closing) - len(self._key_opening)
        first = fingerprint % _POOL_SIZE
        last = min(bisect_right(self._ends, self._ends[first] + room) - 1, first + _POOL_SIZE)
        node.packages = slice(first, max(first, last))
        padding = room - (self._ends[node.packages.stop] - self._ends[first])
        node.key = self._key_opening + _KEYS[: max(0, padding)]

    def _node(self, sender_id: str) -> _Node:
        fingerprint = stable_hash("node", self._seed, sender_id)
        agents = [_agent(name) for name in _AGENTS if stable_hash(name, fingerprint) % 4]
        classes = [name for name in _CLASSES if stable_hash(name, fingerprint) % 2]
        family, release = _SYSTEMS[fingerprint % len(_SYSTEMS)]
        facts = {
            "fqdn": sender_id,
            "os": {"family": family, "release": release},
            "processors": {"count": 2 << fingerprint % 6},
            "ipaddress": f"10.{fingerprint >> 8 & 255}.{fingerprint >> 16 & 255}.{fingerprint >> 24 & 255}",
        }
        status = {
            "identity": sender_id,
            "connected_server": "nats://broker.example.net:4222",
            "provisioning_mode": False,
            "stats": {"total": 0, "valid": 0, "invalid": 0, "passed": 0, "filtered": 0, "replies": 0, "ttlexpired": 0},
        }
        head = b'{"agents":%s,"classes":%s,"collectives":["mcollective"],"facts":%s,' % (
            _json(agents),
            _json(["base", *classes]),
            _json(facts)[:-1],
        )
        return _Node(
            fingerprint,
            head=self._as_content(head),
            tail=self._as_content(b'"}},"status":%s}' % _json(status)),
            envelope=b',"sender":%s,"time":"%%s","requestid":"%%016x%%016x"}' % _json(sender_id).replace(b"%", b"%%"),
        )

    def _as_content(self, text: bytes) -> bytes:
        """Write a part of the inventory as it stands in the body: zipped later, or within a JSON string now."""
        return text if self._compress else _json(text.decode())[1:-1]


def _package(seed: int, number: int) -> bytes:
    fingerprint = stable_hash("package", seed, number)
    name = f"{_PACKAGES[fingerprint % len(_PACKAGES)]}-{number:03d}"
    version = f"{fingerprint >> 8 & 15}.{fingerprint >> 12 & 31}.{fingerprint >> 17 & 63}-{fingerprint >> 23 & 7}"
    return b'"%s":{"ensure":"%s","arch":"x86_64"},' % (name.encode(), version.encode())


def _agent(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "version": "0.29.4",
        "timeout": 20,
        "author": "Choria",
        "license": "Apache-2.0",
        "url": "https://choria.io",
        "description": f"Choria {name} agent",
    }


_json = msgspec.json.encode
