"""Make keys as NATS knows them (nkeys: Ed25519 in base32), and sign tokens with them."""

import secrets
from enum import Enum

import msgspec
import nkeys  # type: ignore[import-untyped]


class KeyKind(Enum):
    """Whose key it is: what its public half begins with."""

    OPERATOR = nkeys.PREFIX_BYTE_OPERATOR
    ACCOUNT = nkeys.PREFIX_BYTE_ACCOUNT
    USER = nkeys.PREFIX_BYTE_USER


class Nkey(msgspec.Struct, frozen=True):
    """A pair of keys. ``seed`` is the secret, ``public`` what servers are told."""

    seed: str
    public: str

    def sign(self, data: bytes) -> bytes:
        """Sign as the protocol asks for: 64 bytes."""
        return bytes(nkeys.from_seed(bytearray(self.seed, "ascii")).sign(data))


def make_key(kind: KeyKind) -> Nkey:
    return key_of(nkeys.encode_seed(secrets.token_bytes(32), kind.value).decode())


def key_of(seed: str) -> Nkey:
    """Give the pair of a seed; raise ValueError where it is none."""
    try:
        return Nkey(seed, nkeys.from_seed(bytearray(seed, "ascii", "replace")).public_key.decode())
    except nkeys.NkeysError as error:
        raise ValueError("not the seed of a key") from error
