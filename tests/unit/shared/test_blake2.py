"""BLAKE2b is the same on every host, whatever Python may offer there."""

import hashlib
import io
import random
import subprocess
import sys
from pathlib import Path

import pytest

from shared.blake2 import sodium_blake2b

ROOT = Path(__file__).parents[3]

REFUSALS = {
    "EL in FIPS mode": "def refused(string=b'', *, usedforsecurity=True): raise ValueError('disabled for FIPS')",
    "OpenSSL's FIPS provider": "def refused(*_, **__): raise ValueError('[digital envelope routines] unsupported')",
    "Python built without it": "refused = None; del hashlib.blake2b",
}
IDENTITIES = """
from shared import identifiers as of, blake2
from edge_agent.pair.peer import fingerprint
block, incarnation = of.BlockId("eu-west", "dub1", "nodes"), of.Incarnation(1_700_000_000_000_000, 7)
print(of.advisory_event_id(block, (incarnation, 7), "n1", of.AdvisoryKind.STALE, 1))
print(of.message_id(bytes(32), "eu-west", "dub1", 7), fingerprint(bytes(32)))
print(blake2.blake2b is __import__("hashlib").__dict__.get("blake2b"))
"""


def identities(preamble: str) -> list[str]:
    ended = subprocess.run(
        [sys.executable, "-c", f"import hashlib\n{preamble}\n{IDENTITIES}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_sodium_hashes_as_hashlib_does() -> None:
    draw = random.Random(7)
    for _ in range(200):
        key, size = draw.randbytes(draw.choice((0, 1, 16, 64))), draw.choice((4, 8, 12, 16, 32, 64))
        parts = [draw.randbytes(draw.randrange(300)) for _ in range(3)]
        ours = sodium_blake2b(parts[0], digest_size=size, key=key)
        theirs = hashlib.blake2b(parts[0], digest_size=size, key=key)
        for part in parts[1:]:
            copied = ours.copy()
            ours.update(part)
            assert copied.hexdigest() == theirs.hexdigest()
            theirs.update(part)
            assert (ours.digest(), ours.hexdigest()) == (theirs.digest(), theirs.hexdigest())
    file = draw.randbytes(1_000_000)
    assert hashlib.file_digest(io.BytesIO(file), sodium_blake2b).digest() == hashlib.blake2b(file).digest()  # type: ignore[arg-type]


@pytest.mark.parametrize("host", REFUSALS)
def test_identities_are_those_of_other_hosts_where_python_refuses_blake2b(host: str) -> None:
    *offered, is_pythons = identities("")
    assert is_pythons == "True"
    *derived, is_pythons = identities(f"{REFUSALS[host]}\nif refused: hashlib.blake2b = refused")
    assert is_pythons == "False"
    assert derived == offered
