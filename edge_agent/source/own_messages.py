"""Say what has become of the messages that the agent itself stores in its source: probes and heartbeats."""

from enum import StrEnum


class OwnMessagePhase(StrEnum):
    """What has become of them, as people are told."""

    STORED = "stored"
    NOT_STORED = "not stored"
    OFF = "off"


def is_denied(subject: str, reason: str) -> bool:
    """Tell whether a permission violation is about a publish on a subject.

    >>> is_denied("registration.Probe", 'nats: permissions violation for publish to "registration.probe"')
    True
    """
    # nats-py gives it in small letters.
    return f'publish to "{subject}"'.lower() in reason.lower()
