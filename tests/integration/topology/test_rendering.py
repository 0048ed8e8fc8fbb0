"""What render writes holds for other topologies too, and what it lacks is said in one line."""

import json
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from aggregator.topology.render import certificates
from tests.support.nats.free_ports import free_ports
from tests.support.topology.rendered import (
    Rendered,
    assert_accepted,
    lay_out,
    muster,
    rendered_servers,
    running_servers,
)
from tests.support.waiting import until


async def test_plain_sources_and_mirrors_pass_the_leaf_link_both_ways(tmp_path: Path) -> None:
    further = """
        [archive]
        sourcing = "plain"
        [[stream]]
        name = "BACK"
        place = "eu-west"
        [stream.mirror]
        name = "ARCHIVE"
        domain = "hub"
    """
    with rendered_servers(tmp_path, further) as rendered:
        async with rendered.visited("eu-west", "dub1-agent", "_INBOX_dub1") as agent:
            await agent.store("fleet.eu-west.dub1.nodes.watermark", b"{}")
        async with rendered.visited("hub", "aggregator") as hub:

            async def is_back() -> bool:
                answer = await hub.of_domain("eu-west", "STREAM.INFO.BACK")
                return bool(answer["state"]["messages"] == 1)

            await until(is_back, "what went to the hub is back in the region")


async def test_a_rendered_cluster_meets_over_tls_keeps_replicas_and_what_comes_over_one_servers_link(
    tmp_path: Path,
) -> None:
    client, leaf, route, region = free_ports(4)
    hosts = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    urls = ", ".join(f'"nats://{host}:{client}"' for host in hosts)
    login = 'auth = { nkey_seed_file = "nats/keys/aggregator.nk" }\n'
    login += 'tls = { ca = "nats/keys/ca.pem", handshake_first = true }\n'
    (tmp_path / "topology.toml").write_text(
        f'[hub]\nservers = [{urls}]\ndomain = "hub"\n{login}[archive]\nreplicas = 3\n'
        f'[policy]\n[[region]]\nname = "eu"\nservers = ["nats://127.0.0.1:{region}"]\n'
        '[[site]]\nname = "dub1"\nregion = "eu"\n'
        f'[render]\nlisten = ""\nstore = "{tmp_path}/store"\nleaf_port = {leaf}\nroute_port = {route}\n'
    )
    done = muster(tmp_path, "render", "--make-keys", "--make-certificates")
    assert done.returncode == 0, done.stderr
    names = ["hub-1", "hub-2", "hub-3", "eu"]
    with running_servers(tmp_path, names, [*((host, client) for host in hosts), ("127.0.0.1", region)]):
        lay_out(tmp_path)
        shown = muster(tmp_path, "report", "--json")
        archive = next(row for row in json.loads(shown.stdout)["streams"] if row["name"] == "ARCHIVE")
        assert archive["servers"] == names[:3]
        # Whichever of the hub's servers the region is linked to, and whichever leads.
        rendered = Rendered(tmp_path, {"eu": region})
        async with rendered.visited("eu", "dub1-agent", "_INBOX_dub1") as agent:
            await agent.store("fleet.eu.dub1.nodes.watermark", b"{}")
        done = muster(tmp_path, "policy", "set", "--region", "eu", "--sample-interval", "30m")
        assert done.returncode == 0, done.stderr
        await until(partial(holds, tmp_path, {"ARCHIVE": 2, "REPORT": 2, "FLEET": 1}), "each stream has its records")
        await until(partial(holds, tmp_path, {"MUSTER_POLICY": 2}), "the region has its policy")
    configs = {name: (tmp_path / "nats" / name / "nats-server.conf").read_text() for name in names}
    # A server alone acknowledges what its disk has; leaves learn of no addresses beside those that they were given.
    assert [name for name, text in configs.items() if "sync_interval: always" in text] == ["eu"]
    advertised = {name: f'advertise: "{host}:{leaf}"' for name, host in zip(names[:3], hosts, strict=True)}
    assert {name for name, text in configs.items() if "advertise" in text} == set(advertised)
    assert all(line in configs[name] for name, line in advertised.items())


def test_nats_server_accepts_every_file_of_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "topology.toml").write_text(
        '[hub]\nservers = ["nats://a:4222", "nats://b:4222", "nats://c:4222"]\n'
        '[[region]]\nname = "eu"\nservers = ["nats://d:4222"]\n[render]\nmax_store = "10GiB"\n'
        '[[stream]]\nname = "P"\nplace = "eu"\n[stream.mirror]\nname = "POLICY"\ndomain = "hub"\n'
    )
    done = muster(tmp_path, "render", "--make-keys", "--make-certificates")
    assert done.returncode == 0, done.stderr
    files = sorted(tmp_path.glob("nats/*/nats-server.conf"))
    assert [path.parent.name for path in files] == ["eu", "hub-1", "hub-2", "hub-3"]
    for path in files:
        assert_accepted(path)


@pytest.mark.parametrize("listen", ["", "::", "[::]"])
def test_addresses_of_ipv6_stand_in_brackets_wherever_a_port_follows(tmp_path: Path, listen: str) -> None:
    (tmp_path / "topology.toml").write_text(
        '[hub]\nservers = ["nats://[fd00::1]:4222", "nats://[fd00::2]:4222", "nats://c"]\n'
        '[[region]]\nname = "eu"\nservers = ["nats://[fd00::4]:5222"]\n'
        f'[render]\nlisten = "{listen}"\n'
    )
    done = muster(tmp_path, "render", "--make-keys", "--make-certificates")
    assert done.returncode == 0, done.stderr
    hub, eu = (tmp_path / "nats" / name / "nats-server.conf" for name in ("hub-1", "eu"))
    own = "[::]" if listen else "[fd00::1]"
    for line in (f'listen: "{own}:4222"', f'listen: "{own}:7422"', f'listen: "{own}:6222"'):
        assert line in hub.read_text()
    routes = ", ".join(f'"nats-route://{host}:6222"' for host in ("[fd00::1]", "[fd00::2]", "c"))
    assert f"routes: [{routes}]" in hub.read_text()
    leaves = ", ".join(f'"tls://{host}:7422"' for host in ("[fd00::1]", "[fd00::2]", "c"))
    assert f"urls: [{leaves}]" in eu.read_text()
    for path in (hub, eu):
        assert_accepted(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            (),
            "no key of aggregator, reader, eu-leaf: let --make-keys make them, or put public keys there, such as",
        ),
        (("--make-keys",), "no certificate of hub, eu: let --make-certificates make them"),
    ],
)
def test_what_is_missing_is_said_in_one_line(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    (tmp_path / "topology.toml").write_text(
        '[hub]\nservers = ["nats://a"]\n[[region]]\nname = "eu"\nservers = ["nats://b"]\n'
    )
    done = muster(tmp_path, "render", *options)
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_is_rendered_anew_says_what_running_servers_need(tmp_path: Path) -> None:
    """A reload makes a new account's imports the second time only, and leaves open links where they are (2.15.1)."""
    text = '[hub]\nservers = ["nats://a"]\n[[region]]\nname = "eu"\nservers = ["nats://b"]\n'
    us = '[[region]]\nname = "us"\nservers = ["nats://c"]\n'

    def rendered(text: str) -> list[str]:
        (tmp_path / "topology.toml").write_text(text)
        done = muster(tmp_path, "render", "--make-keys", "--make-certificates")
        assert done.returncode == 0, done.stderr
        return [line for line in done.stdout.splitlines() if "load" in line]

    assert rendered(text) == rendered(text) == []
    assert rendered(text + us) == ["hub: reload it twice, REGION_us works from the second time on"]
    assert rendered(text) == ["hub: reload it"]
    site = '[[site]]\nname = "dub1"\nregion = "eu"\n'
    assert rendered(text + site) == ["eu: reload it twice, SITE_dub1 works from the second time on"]
    config = tmp_path / "nats" / "hub" / "nats-server.conf"
    config.write_text(config.read_text().replace("REGION_eu", "OTHER"))
    again = "hub: restart it, eu-leaf has another account, and open links keep theirs over a reload"
    assert rendered(text + site) == [again]


async def test_a_site_that_was_added_is_known_after_a_second_reload(tmp_path: Path) -> None:
    with rendered_servers(tmp_path) as rendered:
        topology = tmp_path / "topology.toml"
        topology.write_text(topology.read_text() + '[[site]]\nname = "new1"\nregion = "eu-west"\n')
        done = muster(tmp_path, "render", "--make-keys", "--make-certificates")
        assert "eu-west: reload it twice, SITE_new1 works from the second time on" in done.stdout
        for number in (1, 2):
            rendered.reload("eu-west")
            await until(partial(has_reloaded, tmp_path / "eu-west.log", number), f"reloaded {number} times")
        async with rendered.visited("eu-west", "new1-agent", "_INBOX_new1") as agent:
            await agent.store("fleet.eu-west.new1.nodes.watermark", b"{}")


def holds(directory: Path, wanted: dict[str, int]) -> bool:
    """Tell whether streams hold so many messages, all of one name together."""
    shown = json.loads(muster(directory, "report", "--json").stdout)["streams"]
    return wanted == {name: sum(row["messages"] or 0 for row in shown if row["name"] == name) for name in wanted}


def has_reloaded(log: Path, times: int) -> bool:
    return log.read_text().count("Reloaded server configuration") == times


def test_a_region_without_servers_is_named(tmp_path: Path) -> None:
    (tmp_path / "topology.toml").write_text('[hub]\nservers = ["nats://a"]\n[[region]]\nname = "eu"\n')
    done = muster(tmp_path, "render")
    assert done.stderr == (
        'muster-aggregator: [[region]] eu says nothing of its servers: add servers = ["nats://its-name.example:4222"]\n'
    )


SMALL = '[hub]\nservers = ["nats://a"]\n[[region]]\nname = "eu"\nservers = ["nats://b"]\n'


def damaged_key(path: Path) -> None:
    path.write_bytes(b"\xff\n")


def another_authority(path: Path) -> None:
    path.write_bytes(certificates.make_authority("another").key)


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("eu-leaf.nk", damaged_key, "eu-leaf.nk: not the seed of a key"),
        ("aggregator.pub", damaged_key, "aggregator.pub: not a user's public key, which is one line"),
        ("ca.pem", damaged_key, "ca.pem and ca-key.pem: not a certificate and its key in PEM, without a password"),
        ("ca-key.pem", damaged_key, "ca.pem and ca-key.pem: not a certificate and its key in PEM"),
        ("ca-key.pem", another_authority, "ca.pem and ca-key.pem: the key is not that of the certificate"),
        ("ca-key.pem", Path.unlink, "ca-key.pem: not there, and without it no certificate of hub can be made"),
    ],
)
def test_a_secret_of_no_use_is_named_in_one_line_and_nothing_is_written(
    tmp_path: Path, file: str, damage: Callable[[Path], None], message: str
) -> None:
    (tmp_path / "topology.toml").write_text(SMALL)
    assert muster(tmp_path, "render", "--make-keys", "--make-certificates").returncode == 0
    for name in ("nats-server.conf", "ca.pem", *(["server.pem"] if "ca" in file else [])):
        (tmp_path / "nats" / "hub" / name).unlink()
    damage(tmp_path / "nats" / "keys" / file)
    done = muster(tmp_path, "render", "--make-certificates")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert message in done.stderr
    left = {path.name for path in (tmp_path / "nats" / "hub").iterdir()}
    assert left <= {"server.pem", "server-key.pem"}


def test_a_certificate_whose_key_could_not_be_written_is_made_the_next_time(tmp_path: Path) -> None:
    (tmp_path / "topology.toml").write_text(SMALL)
    key = tmp_path / "nats" / "hub" / "server-key.pem"
    (key / "in the way").mkdir(parents=True)
    done = muster(tmp_path, "render", "--make-keys", "--make-certificates")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert [each.name for each in key.parent.iterdir()] == [key.name]
    (key / "in the way").rmdir()
    key.rmdir()
    assert muster(tmp_path, "render", "--make-certificates").returncode == 0
    pem = key.with_name("server.pem").read_bytes()
    own = serialization.load_pem_private_key(key.read_bytes(), None)
    assert x509.load_pem_x509_certificate(pem).public_key() == own.public_key()
    assert {each.name for each in key.parent.iterdir()} == {
        "ca.pem",
        "nats-server.conf",
        "server-key.pem",
        "server.pem",
    }


def test_an_authority_of_ones_own_may_have_an_rsa_key(tmp_path: Path) -> None:
    (tmp_path / "topology.toml").write_text(SMALL)
    keys = tmp_path / "nats" / "keys"
    keys.mkdir(parents=True)
    request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=own", "-days", "2"]
    subprocess.run(["openssl", *request, "-keyout", keys / "ca-key.pem", "-out", keys / "ca.pem"], check=True)
    done = muster(tmp_path, "render", "--make-keys", "--make-certificates")
    assert done.returncode == 0, done.stderr
    assert_accepted(tmp_path / "nats" / "hub" / "nats-server.conf")
    served = tmp_path / "nats" / "hub" / "server.pem"
    subprocess.run(["openssl", "verify", "-CAfile", keys / "ca.pem", served], check=True)
