"""BLAKE2b as Python's hashlib has it, also on hosts whose policy keeps Python from offering it.

In FIPS mode the Python of EL takes hashes from OpenSSL alone, whose BLAKE2b has neither a key nor a chosen length, and
is refused even so; libsodium, which NATS's keys need anyway, asks no policy. What is derived here are identities and
fingerprints, which must be the same on every host.
"""

import hashlib
from typing import TYPE_CHECKING

from nacl.bindings import crypto_generichash as sodium


class SodiumBlake2b:
    """Hash as hashlib.blake2b does, as far as Muster uses it."""

    def __init__(self, state: sodium.Blake2State) -> None:
        self._state = state

    def update(self, data: bytes | memoryview) -> None:
        sodium.generichash_blake2b_update(self._state, bytes(data))

    def copy(self) -> "SodiumBlake2b":
        return SodiumBlake2b(self._state.copy())

    def digest(self) -> bytes:
        return sodium.generichash_blake2b_final(self._state.copy())

    def hexdigest(self) -> str:
        return self.digest().hex()


def sodium_blake2b(data: bytes = b"", *, digest_size: int = 64, key: bytes = b"") -> SodiumBlake2b:
    """Begin as hashlib.blake2b() does."""
    begun = SodiumBlake2b(sodium.generichash_blake2b_init(key=key, digest_size=digest_size))
    begun.update(data)
    return begun


def _is_offered() -> bool:
    try:
        hashlib.blake2b(digest_size=16, key=b"key")  # noqa: TID251 - this asks whether it may be used
    except (AttributeError, TypeError, ValueError):
        return False
    return True


if TYPE_CHECKING:
    blake2b = hashlib.blake2b  # noqa: TID251
else:
    blake2b = hashlib.blake2b if _is_offered() else sodium_blake2b  # noqa: TID251
