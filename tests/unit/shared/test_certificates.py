"""Until when a certificate is valid, read out of its bytes."""

import base64
import datetime as dt
from pathlib import Path

import msgspec
import pytest
from cryptography import x509

from shared.certificates import NotACertificate, certificates_in, valid_until
from shared.instants import DAY, HOUR, SECOND
from shared.nats.expiry import expiry
from shared.nats.secrets import login
from shared.nats.settings import AuthSettings
from shared.settings import FilePath
from tests.support.nats.certificates import Authority

AT = 1_700_000_000 * SECOND


@pytest.mark.parametrize("days", [0, -400, 100 * 365], ids=["now", "expired", "beyond 2050, in another form"])
def test_the_instant_is_the_one_that_the_certificate_holds(tmp_path: Path, days: int) -> None:
    cert = Authority(tmp_path, "authority").issue("server", days).cert
    until = x509.load_pem_x509_certificate(cert.read_bytes()).not_valid_after_utc
    assert dt.datetime.fromtimestamp(valid_until(certificates_in(cert)[0]) / SECOND, dt.UTC) == until


def test_the_first_certificate_of_a_file_is_its_owners(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    first, second = authority.issue("first", 10).cert, authority.issue("second", 20).cert
    chain = tmp_path / "chain.pem"
    chain.write_text("a remark\n" + first.read_text() + second.read_text())
    assert certificates_in(chain)[0] == certificates_in(first)[0]


@pytest.mark.parametrize("der", [b"", b"nonsense", b"\x30", b"\x30\x82", b"\x30\x05\x30\x03\x02\x01\x01"])
def test_what_is_no_certificate_is_called_so(der: bytes) -> None:
    with pytest.raises(NotACertificate):
        valid_until(der)


def test_no_cut_of_a_certificate_is_taken_for_one(tmp_path: Path) -> None:
    der = certificates_in(Authority(tmp_path, "authority").issue("server").cert)[0]
    for length in range(len(der)):
        with pytest.raises(NotACertificate):
            valid_until(der[:length])


def test_a_file_without_a_certificate_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "nothing.pem").write_text("nothing")
    with pytest.raises(NotACertificate):
        certificates_in(tmp_path / "nothing.pem")


def test_people_are_told_fourteen_days_before() -> None:
    assert expiry("it", AT + 15 * DAY, AT) == ""
    assert expiry("it", AT + 13 * DAY + HOUR, AT) == "it expires in 13d 1h"
    assert expiry("it", AT - 2 * HOUR, AT) == "it has expired, 2h ago"


@pytest.mark.parametrize(
    ("claims", "until"),
    [
        ({"exp": 1_700_000_000}, 1_700_000_000 * SECOND),
        ({}, 0),
        ({"exp": 1 << 80}, 0),
        ({"exp": "soon"}, 0),
        ([[]], 0),
        (None, 0),
    ],
)
def test_the_end_of_a_jwt_is_read_from_its_claims(tmp_path: Path, claims: object, until: int) -> None:
    payload = base64.urlsafe_b64encode(msgspec.json.encode(claims)).decode().rstrip("=")
    path = tmp_path / "user.creds"
    for token, end in ((f"e30.{payload}.sig", until), (f"e30.{payload[:3]}", 0), ("e30", 0), ("..", 0), ("a.*.b", 0)):
        path.write_text(f"-----BEGIN NATS USER JWT-----\n{token}\n")
        assert login(AuthSettings(credentials_file=FilePath(path))).valid_until == end
