"""Let Java trust the authorities that this machine trusts: a Java runtime brings a list of its own.

Without this, a machine behind a proxy that inspects TLS can fetch with every tool except Java.
"""

import ssl
import struct
from collections.abc import Iterable
from pathlib import Path

from aggregator.lakehouse.spark.caches import write_whole

# Where Linux distributions keep their bundle, for a Python whose OpenSSL was built to look elsewhere.
_USUAL_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem")
_MAGIC, _VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2
_DIGEST_LENGTH = 20


def trust_options(directory: Path) -> tuple[str, ...]:
    """Give the JVM options that trust the machine's authorities, from a truststore made in ``directory``.

    The bundle is that of ``SSL_CERT_FILE``, else of OpenSSL, else of the distribution. Empty where there is none: then
    Java's own list holds. Raise OSError if the truststore cannot be written.
    """
    bundle = _authorities_bundle()
    if bundle is None:
        return ()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(bundle)
    truststore = directory / "authorities.jks"
    write_whole(truststore, java_keystore(context.get_ca_certs(binary_form=True)))
    return (f"-Djavax.net.ssl.trustStore={truststore}", "-Djavax.net.ssl.trustStoreType=JKS")


def java_keystore(certificates: Iterable[bytes]) -> bytes:
    """Write DER certificates as a JKS keystore of trusted authorities, to be opened without a password.

    The layout is that of OpenJDK's sun.security.provider.JavaKeyStore: big-endian; a header, the entries, and a digest
    over both that is checked only when a password is given. Nothing in it is secret, so none ever is.
    """
    entries = [
        struct.pack(">I", _TRUSTED_CERTIFICATE)
        + _text(f"authority-{number}")
        + struct.pack(">Q", 0)
        + _text("X.509")
        + struct.pack(">I", len(certificate))
        + certificate
        for number, certificate in enumerate(certificates, start=1)
    ]
    return struct.pack(">III", _MAGIC, _VERSION, len(entries)) + b"".join(entries) + bytes(_DIGEST_LENGTH)


def _authorities_bundle() -> Path | None:
    found = ssl.get_default_verify_paths().cafile
    places = [Path(place) for place in (found, *_USUAL_BUNDLES) if place]
    return next((place for place in places if place.is_file()), None)


def _text(text: str) -> bytes:
    encoded = text.encode("ascii")
    return struct.pack(">H", len(encoded)) + encoded
