"""Translate a ``[[stream]]`` into JetStream's words. Pure.

The settings speak for a source as a whole: what they leave out is None here, so that it is compared too.
"""

from datetime import UTC, datetime

from aggregator.topology.model import Config
from aggregator.topology.stream_settings import FreeStreamSettings, OriginSettings
from shared.nats.jetstream_api import api_prefix


def free_fields(wanted: FreeStreamSettings, own_domain: str) -> Config:
    """Give what a ``[[stream]]`` says beyond what every stream has; it is in the domain ``own_domain``."""
    config: Config = {
        "subjects": list(wanted.subjects),
        "retention": wanted.retention,
        "discard": wanted.discard,
        "max_msgs": wanted.max_messages or -1,
        "max_msgs_per_subject": wanted.max_messages_per_subject or -1,
        "max_msg_size": int(wanted.max_message_size) or -1,
        "allow_direct": wanted.allow_direct,
        "allow_atomic": wanted.allow_atomic,
        "allow_rollup_hdrs": wanted.allow_rollup,
        "deny_delete": wanted.deny_delete,
        "deny_purge": wanted.deny_purge,
        "description": wanted.description or None,
        "sources": [free_source(source, own_domain) for source in wanted.sources],
        "mirror": free_source(wanted.mirror, own_domain) if wanted.mirror is not None else None,
    }
    if wanted.mirror_direct:
        # Not false otherwise: to a mirror in its origin's domain the server gives what the origin has.
        config["mirror_direct"] = True
    if wanted.placement is not None:
        config["placement"] = {
            "cluster": wanted.placement.cluster or None,
            "tags": list(wanted.placement.tags) or None,
        }
    return config


def free_source(origin: OriginSettings, own_domain: str) -> Config:
    """Give the plain form of what a ``[[stream]]`` copies."""
    external = {"api": origin.api, "deliver": origin.deliver} if origin.api else None
    if origin.domain not in ("", own_domain):
        external = {"api": api_prefix(origin.domain)}
    # Without a destination a transform only filters.
    transforms = [{"src": each.source, "dest": each.destination} for each in origin.transforms]
    return {
        "name": origin.name,
        "external": external,
        "opt_start_seq": origin.start_sequence or None,
        "opt_start_time": _server_time(origin.start_time) if origin.start_time is not None else None,
        "filter_subject": origin.filter_subject or None,
        "subject_transforms": transforms or None,
        "consumer": None,
    }


def _server_time(at: datetime) -> str:
    """Write an instant as the server writes it back: UTC, the fraction without trailing zeros."""
    text = at.astimezone(UTC).replace(tzinfo=None).isoformat()
    return (text.rstrip("0") if "." in text else text) + "Z"
