"""Say in a person's words why an attempt to connect failed or a connection ended, and whether time may mend it."""

import errno
import re
import socket
import ssl
import time

import msgspec
import nats.errors
from nats.protocol.parser import AUTHORIZATION_VIOLATION

from shared.nats.expiry import expiry
from shared.nats.secrets import Login, UnusableSecret

_HANDSHAKE_HINT = "tls.handshake_first must be as the server has it"
_FULL_OR_HANDSHAKE = f"the server is full (max_connections), or {_HANDSHAKE_HINT}"
"""A full server says so in clear text, where encryption would begin, or just closes."""

_NO_ROOM = "connections exceeded"

MEND_FILE = "mend that file, or correct its path in the settings"
_LOOK = "look at the server and at the way to it, or correct servers in the settings"
_ROOM = "close what is connected and should not be (/connz), or raise max_connections there"
_ROOM_OR_HANDSHAKE = f"set tls.handshake_first as the server has it; else {_ROOM}"
_REFUSES = "it refuses our credentials (auth)"
_RENEW = "put a new one into that file (nsc generate creds): it is read again at each attempt to connect"
_LOGIN_ENDS = {
    "user authentication expired": ("the user's JWT has expired", _RENEW),
    "user authentication revoked": ("the user was revoked", "have new credentials made for the agent (nsc add user)"),
    "account authentication expired": ("the account's JWT has expired", "renew it at the server (nsc edit, nsc push)"),
}
"""Errors of nats-server that end a connection of a user who was let in before."""

# OpenSSL's X509_V_ERR_*.
_NOT_YET, _EXPIRED, _OTHER_NAME = 9, 10, (62, 63, 64)


class LinkCause(msgspec.Struct, frozen=True):
    """Why, in one line; ``lasting`` where trying again changes nothing (credentials, certificates, TLS).

    ``by_server``: the server itself says it, so that what follows (a broken pipe) explains nothing more. ``remedy`` is
    what helps against just this.
    """

    text: str
    lasting: bool = False
    by_server: bool = False
    remedy: str = _LOOK


def explain(error: Exception, *, reached: bool, login: Login) -> LinkCause:
    """Translate an error of nats-py.

    ``reached`` tells that the server accepted the TCP connection, ``login`` with what we wanted to log in.
    """
    text = str(error).removeprefix("nats: ").strip("'")
    if isinstance(error, ssl.SSLError | nats.errors.SecureConnWantedError):
        return _tls(error, text)
    ours = LinkCause(text, lasting=True, remedy=MEND_FILE) if isinstance(error, UnusableSecret) else None
    by_server = ours or _server_cause(text, login)
    if by_server is not None:
        return by_server
    if isinstance(error, nats.errors.StaleConnectionError):
        return LinkCause("the server fell silent" if "stale" in text else "the server closed the connection")
    if isinstance(error, TimeoutError) or "empty response from server" in text:
        if not reached:
            return LinkCause(
                "no answer", remedy="start the server, open the way to it (firewall, route), or correct servers"
            )
        hangs = f"it accepts the connection, then nothing comes: it hangs, or {_HANDSHAKE_HINT}"
        return LinkCause(
            hangs, remedy="set tls.handshake_first as the server has it; else look at the server, and restart it"
        )
    return _system(error, text) if isinstance(error, OSError) else LinkCause(text)


def _server_cause(text: str, login: Login) -> LinkCause | None:
    said = text.lower()
    if _NO_ROOM in said:
        no_room = f"it takes no more connections, of all or of ours (max_connections): {text}"
        return LinkCause(no_room, by_server=True, remedy=_ROOM)
    is_violation = AUTHORIZATION_VIOLATION in said
    for event, (cause, remedy) in _LOGIN_ENDS.items():
        if event in said:
            return LinkCause(f"{_REFUSES}: {cause}", lasting=True, by_server=True, remedy=remedy)
    if not is_violation:
        return None
    if expired := _expired_jwt(login):
        return LinkCause(f"{_REFUSES}: {expired}", lasting=True, by_server=True, remedy=_RENEW)
    user = login.whom
    if login.is_anonymous:
        remedy = "set auth in the settings, or tls.cert where the server knows its users by certificates"
    elif login.is_by_certificate:
        remedy = f"let the server map {user} to one of its users (verify_and_map), or set auth in the settings"
    else:
        remedy = f"let the server know {user or 'this user'}, or correct auth in the settings"
        if login.seed is not None:
            remedy += "; a Choria broker knows no nkeys: tls.cert and tls.key of its CA in place of auth"
    refused = f"{_REFUSES}: Authorization Violation"
    return LinkCause(f"{refused}, as {user}" if user else refused, lasting=True, by_server=True, remedy=remedy)


def _expired_jwt(login: Login) -> str:
    """Return that the JWT has expired by this host's clock, "" where it has not."""
    now = time.time_ns() // 1000
    try:
        until = login.valid_until
    except UnusableSecret:
        return ""
    return expiry(f"the user's JWT in {login.seed_file}", until, now) if 0 < until <= now else ""


def _tls(error: Exception, text: str) -> LinkCause:
    if isinstance(error, ssl.SSLCertVerificationError):
        code, said = error.verify_code, error.verify_message
        if code == _EXPIRED:
            remedy = "renew it, or its authority's, at the server; nothing in the settings helps"
            return LinkCause("the server's certificate has expired", lasting=True, remedy=remedy)
        if code == _NOT_YET:
            remedy = "set the clocks of both hosts right; else renew the server's certificate"
            return LinkCause("the server's certificate is not valid yet", lasting=True, remedy=remedy)
        untrusted = f"its certificate is not trusted: {said}; check tls.ca and the server's name"
        if code in _OTHER_NAME:
            remedy = "write it in servers by a name that its certificate has, or have one made with this name"
        else:
            remedy = "put the authority that has signed the server's certificate into tls.ca"
        return LinkCause(untrusted, lasting=True, remedy=remedy)
    if isinstance(error, ssl.SSLError):
        reason = error.reason or text
        if "ALERT" in reason and ("CERT" in reason or "UNKNOWN_CA" in reason):
            remedy = "name in tls.cert and tls.key a certificate that the server trusts and that has not expired"
            return LinkCause(
                f"it refuses our certificate, or wants one (tls.cert): {reason}", lasting=True, remedy=remedy
            )
        return LinkCause(f"TLS failed ({reason}): {_FULL_OR_HANDSHAKE}", lasting=True, remedy=_ROOM_OR_HANDSHAKE)
    remedy = "let the server offer TLS, or take tls (and tls:// in servers) out of the settings"
    return LinkCause("it offers no TLS, and clear text is not wanted (tls)", lasting=True, remedy=remedy)


def _system(error: OSError, text: str) -> LinkCause:
    if isinstance(error, socket.gaierror):
        remedy = "correct the name in servers, or look after this host's name service"
        return LinkCause(f"the name does not resolve ({error.strerror})", remedy=remedy)
    # A name with several addresses gives one error that lists the errors of all of them.
    numbers: set[int | None] = {int(number) for number in re.findall(r"\[Errno (\d+)\]", text)} or {error.errno}
    if numbers == {errno.ECONNREFUSED}:
        remedy = "start the server, or correct servers in the settings"
        return LinkCause("connection refused, nothing listens there", remedy=remedy)
    # What asyncio raises where a connection ends while it is being encrypted has no text.
    if error.strerror or text:
        return LinkCause(error.strerror or text)
    return LinkCause(f"it closed the connection where TLS begins: {_FULL_OR_HANDSHAKE}", remedy=_ROOM_OR_HANDSHAKE)
