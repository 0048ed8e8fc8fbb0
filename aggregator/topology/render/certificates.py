"""Make an authority, and certificates of servers: as far as a first start needs, and until a better one does it.

Elliptic curves (P-256), valid for two years; a server's certificate names its hosts, and serves for routes both ways.
"""

import datetime as dt
import ipaddress
from collections.abc import Iterable

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_FOR = dt.timedelta(days=730)
_SLACK = dt.timedelta(hours=1)
"""Clocks differ: what is made now is valid a little earlier."""


class Pem(msgspec.Struct, frozen=True):
    """A certificate and its private key, in PEM."""

    certificate: bytes
    key: bytes


def make_authority(name: str) -> Pem:
    """Make an authority that signs servers' certificates, and no further authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _named(name)
    usage = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    certificate = (
        _builder(subject, subject, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **usage), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _pem(certificate, key)


def make_certificate(authority: Pem, name: str, hosts: Iterable[str]) -> Pem:
    """Let an authority sign a certificate for a server that is found under ``hosts``, names or addresses.

    Raise ValueError where it cannot.
    """
    try:
        issuer = x509.load_pem_x509_certificate(authority.certificate)
        issuer_key = serialization.load_pem_private_key(authority.key, password=None)
    except (TypeError, ValueError) as error:
        raise ValueError("not a certificate and its key in PEM, without a password") from error
    kinds = ec.EllipticCurvePrivateKey, rsa.RSAPrivateKey
    if not (isinstance(issuer_key, kinds) and issuer_key.public_key() == issuer.public_key()):
        raise ValueError("the key is not that of the certificate, or neither RSA nor of an elliptic curve")
    key = ec.generate_private_key(ec.SECP256R1())
    uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    certificate = (
        _builder(_named(name), issuer.subject, key)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(uses, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return _pem(certificate, key)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(now + VALID_FOR)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pem:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pem(certificate.public_bytes(serialization.Encoding.PEM), private)
