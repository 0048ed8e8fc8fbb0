"""Say that two members cannot be a pair as they are set up, and find it out from what each says of itself."""

from pathlib import Path

import msgspec

from edge_agent.config.agent import AgentSettings
from edge_agent.config.stream import StreamSettings
from edge_agent.pair.log import LogAddress, Writer
from edge_agent.store.site_key import KeyDamaged, is_missing, read_key
from shared.blake2 import blake2b

_FINGERPRINT, _LOG_SECRET = b"muster pair", b"muster pair log"


class PairRefused(Exception):
    """The two members cannot be a pair as they are set up; the text says why, and what to do."""


def writer_of(settings: AgentSettings, key: bytes, boot_id: str) -> Writer:
    """Say which run of which member this is, and what must be the same at the other."""
    blocks = {block.name: _digest(block) for block in settings.stream}
    return Writer(settings.agent_name, boot_id, fingerprint(key), blocks)


def fingerprint(key: bytes) -> str:
    return blake2b(_FINGERPRINT, key=key, digest_size=8).hexdigest()


def log_address(settings: AgentSettings, key: bytes) -> LogAddress:
    """Say where the log is: with the first block's stream, under subjects that only who has the key can name."""
    secret = blake2b(_LOG_SECRET, key=key, digest_size=8).hexdigest()
    domain = settings.stream[0].source.domain
    return LogAddress(settings.region, settings.site, secret, domain, settings.pair.replicas)


def check_key_file(settings: AgentSettings) -> None:
    """Refuse to draw a secret of its own for the member that has to have the other's."""
    first, path = settings.pair.members[0], settings.id_key_path
    if settings.agent_name == first:
        return
    if is_missing(path):
        raise PairRefused(f"id key file {path}: there is none; both members need the same: {remedy(first, path)}")
    try:
        read_key(path)
    except KeyDamaged as damage:
        raise PairRefused(
            f"id key file {path}: {damage.found}; both members need the same: {remedy(first, path)}"
        ) from damage


def difference(ours: Writer, theirs: Writer, path: Path) -> str:
    """Say what two members have otherwise that must be the same, and what to do; "" where nothing is."""
    if ours.key != theirs.key:
        return other_key(theirs.member, path)
    names = ours.settings.keys() | theirs.settings.keys()
    different = sorted(name for name in names if ours.settings.get(name) != theirs.settings.get(name))
    if not different:
        return ""
    return (
        f"stream block {different[0]} is set otherwise than at {theirs.member}: stream, domain, filter, sender, "
        "goodbye, force_path, digest_paths, digest_ignore and target must be the same in both files"
    )


def other_key(member: str, path: Path) -> str:
    return f"id key file {path} is not that of {member}: {remedy(member, path)}"


def remedy(member: str, path: Path) -> str:
    return (
        f"copy the id key file of {member}, beside its store or where upstream.id_key_file says, to {path} (mode 600)"
    )


def _digest(block: StreamSettings) -> str:
    """Fingerprint what a block's decisions depend on beside its policy, of which the log tells."""
    policy = block.policy
    # Members of the release before know neither of both.
    sender = msgspec.to_builtins(block.sender)
    if block.sender is not None and block.sender.batch == "none":
        del sender["batch"]
    goodbye = (block.goodbye,) if block.goodbye.rule() else ()
    parts = (
        block.source.stream,
        block.source.domain,
        block.filter_subject,
        sender,
        (policy.force_path, policy.digest_paths, policy.digest_ignore),
        block.target,
        *goodbye,
    )
    return blake2b(msgspec.json.encode(parts), digest_size=8).hexdigest()
