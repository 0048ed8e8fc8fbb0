"""Say in a person's words why an attempt to connect failed or a connection ended, and whether time may mend it."""

import errno
import re
import socket
import ssl

import msgspec
import nats.errors
from nats.protocol.parser import AUTHORIZATION_VIOLATION

from shared.nats_secrets import UnusableSecret

_HANDSHAKE_HINT = "tls.handshake_first must be as the server has it"
_FULL_OR_HANDSHAKE = f"the server is full (max_connections), or {_HANDSHAKE_HINT}"
"""A full server says so in clear text, where encryption would begin, or just closes."""

_NO_ROOM = "connections exceeded"


class Cause(msgspec.Struct, frozen=True):
    """Why, in one line; ``lasting`` where trying again changes nothing (credentials, certificates, TLS).

    ``told``: the server itself says it, so that what follows (a broken pipe) explains nothing more.
    """

    text: str
    lasting: bool = False
    told: bool = False


def explain(error: Exception, *, reached: bool) -> Cause:
    """Translate an error of nats-py; ``reached`` tells that the server accepted the TCP connection."""
    text = str(error).removeprefix("nats: ").strip("'")
    if isinstance(error, ssl.SSLError | nats.errors.SecureConnWantedError):
        return Cause(_tls(error, text), lasting=True)
    if isinstance(error, UnusableSecret):
        return Cause(text, lasting=True)
    told = _told(text)
    if told is not None:
        return told
    if isinstance(error, nats.errors.StaleConnectionError):
        return Cause("the server fell silent" if "stale" in text else "the server closed the connection")
    if isinstance(error, TimeoutError) or "empty response from server" in text:
        return Cause(
            f"it accepts the connection, then nothing comes: it hangs, or {_HANDSHAKE_HINT}" if reached else "no answer"
        )
    return Cause(_system(error, text) if isinstance(error, OSError) else text)


def _told(text: str) -> Cause | None:
    if AUTHORIZATION_VIOLATION in text.lower():
        return Cause("it refuses our credentials (auth): Authorization Violation", lasting=True, told=True)
    if _NO_ROOM in text.lower():
        return Cause(f"it takes no more connections, of all or of ours (max_connections): {text}", told=True)
    return None


def _tls(error: Exception, text: str) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}; check tls.ca and the server's name"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or text}): {_FULL_OR_HANDSHAKE}"
    return "it offers no TLS, and clear text is not wanted (tls)"


def _system(error: OSError, text: str) -> str:
    if isinstance(error, socket.gaierror):
        return f"the name does not resolve ({error.strerror})"
    # A name with several addresses gives one error that lists the errors of all of them.
    numbers: set[int | None] = {int(number) for number in re.findall(r"\[Errno (\d+)\]", text)} or {error.errno}
    if numbers == {errno.ECONNREFUSED}:
        return "connection refused, nothing listens there"
    # What asyncio raises where a connection ends while it is being encrypted has no text.
    return error.strerror or text or f"it closed the connection where TLS begins: {_FULL_OR_HANDSHAKE}"
