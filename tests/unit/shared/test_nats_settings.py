"""How a connection is written in a settings file, and what is refused before anything is dialled."""

from pathlib import Path

import pytest

from shared.nats.settings import AuthSettings, ConnectionSettings, TlsSettings
from shared.settings import FilePath, Settings, SettingsError, parse_settings


class Upstream(ConnectionSettings, frozen=True):
    id_key_file: FilePath = FilePath()


class Agent(Settings, frozen=True):
    upstream: Upstream


def upstream(text: str) -> Upstream:
    return parse_settings(text, Agent, Path("/etc/muster/agent.toml")).upstream


def test_a_table_with_keys_of_its_own_derives_from_a_connection() -> None:
    text = """
        [upstream]
        servers = ["nats://one:4222", "two"]
        domain = "us-east"
        id_key_file = "id.key"
        [upstream.auth]
        user = "dub1"
        password_file = "/run/secrets/password"
        [upstream.tls]
        ca = "ca.pem"
        handshake_first = true
    """
    assert upstream(text) == Upstream(
        servers=("nats://one:4222", "two"),
        domain="us-east",
        id_key_file=FilePath("/etc/muster/id.key"),
        auth=AuthSettings(user="dub1", password_file=FilePath("/run/secrets/password")),
        tls=TlsSettings(ca=FilePath("/etc/muster/ca.pem"), handshake_first=True),
    )


@pytest.mark.parametrize(("servers", "wanted"), [('"nats://a"', False), ('"nats://a", "tls://b"', True)])
def test_one_server_with_tls_makes_clear_text_unwanted(servers: str, wanted: bool) -> None:
    assert upstream(f"[upstream]\nservers = [{servers}]").wants_tls is wanted


def test_a_tls_table_makes_clear_text_unwanted() -> None:
    assert upstream('[upstream]\nservers = ["a"]\n[upstream.tls]').wants_tls


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ("servers = []", "upstream.servers: expected a list in [ ] of length >= 1"),
        ('servers = ["http://a"]', "upstream: not a server: 'http://a', write for example nats://nats.example:4222"),
        ('servers = ["nats://a:b"]', "upstream: not a server: 'nats://a:b'"),
        ('servers = ["nats://a:4222/x"]', "upstream: not a server: 'nats://a:4222/x'"),
        ('servers = ["nats://a :4222"]', "upstream: not a server: 'nats://a :4222'"),
        ('servers = [" nats://a"]', "upstream: not a server: ' nats://a'"),
        ('servers = ["nats://a\\tb"]', "upstream: not a server: 'nats://a\\tb'"),
        ('servers = ["nats://a,b:4222"]', "upstream: not a server: 'nats://a,b:4222'"),
        (
            'servers = ["nats://me:hidden@a"]',
            "upstream: the server 'a' carries a secret, secrets are files: use the auth table",
        ),
        (
            'servers = ["a"]\nauth.token_file = "t"\nauth.nkey_seed_file = "n"',
            "upstream.auth: nkey_seed_file and token_file exclude each other, keep one",
        ),
        ('servers = ["a"]\nauth.user = "u"', "upstream.auth: user and password_file belong together"),
        (
            'servers = ["a"]\nauth.password = "p"',
            "upstream.auth.password: there is no such key, did you mean password_",
        ),
        ('servers = ["a"]\ntls.cert = "c"', "upstream.tls: cert and key belong together"),
    ],
)
def test_what_cannot_be_meant_is_refused(table: str, line: str) -> None:
    with pytest.raises(SettingsError) as caught:
        upstream(f"[upstream]\n{table}")
    assert str(caught.value).startswith(f"/etc/muster/agent.toml: {line}")
    assert "hidden" not in str(caught.value)
