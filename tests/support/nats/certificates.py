"""Make an authority and certificates that live as long as a test."""

import datetime as dt
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = dt.timedelta(days=1)


class Certificate(NamedTuple):
    """Paths of a certificate and its key, in PEM."""

    cert: Path
    key: Path


class Authority:
    """Sign certificates for 127.0.0.1; ``ca`` is the path of its own."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._name = directory, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        authority = x509.BasicConstraints(ca=True, path_length=0)
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = self._builder(self._subject, self._key).add_extension(authority, critical=True)
        certificate = builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())
        self.ca = self._write("ca.pem", certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, days: int = 0, lasts: int = 1) -> Certificate:
        """Sign a certificate for server and client use at 127.0.0.1.

        It is valid from a day before now and ``days``, until as many days after that as it ``lasts``.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = self._builder(subject, key, days, lasts).add_extension(addresses, critical=False)
        certificate = builder.add_extension(issuer, critical=False).sign(self._key, hashes.SHA256())
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Certificate(
            self._write(f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM)),
            self._write(f"{name}.key", pem),
        )

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: int = 0, lasts: int = 1
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC) + days * _DAY
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + lasts * _DAY)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )

    def _write(self, suffix: str, content: bytes) -> Path:
        path = self._directory / f"{self._name}-{suffix}"
        path.write_bytes(content)
        return path
