"""Translation of a stream-replicator configuration into our settings, and a list of the rest. Pure."""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, urlsplit

import msgspec

from edge_agent.config.agent import AgentSettings
from edge_agent.config.effective import toml_value
from edge_agent.migration.peer import (
    MigrationRefused,
    PeerChoria,
    PeerHeartbeats,
    PeerSettings,
    PeerStream,
    PeerTls,
    duration,
    read_settings,
)
from shared.instants import SECOND
from shared.settings import Duration, SettingsError, parse_settings

_NO_TOKEN = re.compile(r"[^A-Za-z0-9_-]")
_PLAIN_PATH = re.compile(r"[^.*?#|@\\\[\]{}!\"'()]+(\.[^.*?#|@\\\[\]{}!\"'()]+)*")
_DEFAULT_SETTLE = 5 * SECOND

Table = dict[str, object]


class MigratedBlock(msgspec.Struct, frozen=True):
    """The consumer and the state file of the peer that a block takes over."""

    name: str
    consumer: str
    state_file: str


class Migrated(msgspec.Struct, frozen=True):
    """Our settings file, a line for each option that it lacks, and the state that its blocks take over."""

    text: str
    settings: AgentSettings
    remarks: tuple[str, ...]
    blocks: tuple[MigratedBlock, ...]


def migrate(text: bytes, region: str, path: Path, store: Path | None = None) -> Migrated:
    """Write the settings of an agent in ``region`` for a configuration of the peer's.

    ``path`` is where they will lie; ``store`` is where its store is to be, None for the usual place.

    Raise MigrationRefused.
    """
    peer, unknown = read_settings(text)
    migration = _Migration(peer, unknown)
    migrated = migration.text(region, store)
    try:
        settings = parse_settings(migrated, AgentSettings, path)
    except SettingsError as error:
        raise MigrationRefused(f"what it says cannot be said in our settings: {error}") from None
    return Migrated(migrated, settings, tuple(migration.remarks), tuple(migration.blocks))


class _Migration:
    """One configuration on its way."""

    def __init__(self, peer: PeerSettings, unknown: list[str]) -> None:
        self._peer = peer
        self.remarks = [f"{key}: unknown to stream-replicator too, left out" for key in unknown]
        self.blocks: list[MigratedBlock] = []
        if not peer.name:
            raise MigrationRefused("name: is missing, and becomes the site's name: write it")
        if not peer.streams:
            raise MigrationRefused("streams: there are none, so there is nothing to read")

    def text(self, region: str, store: Path | None) -> str:
        peer, first = self._peer, self._peer.streams[0]
        upstream = self._connection(first.target_url, "target", first, "streams[0].target_url")
        blocks = []
        for number, stream in enumerate(peer.streams):
            place = f"streams[{number}]"
            if self._target_of(stream) != self._target_of(first):
                self._say(
                    f"{place}.target_url",
                    "not the first stream's: one agent has one region, left out: write "
                    "this stream into a file of its own, for another agent",
                )
            else:
                blocks.append((stream, self._block(stream, place)))
        self._say_of_the_whole()
        if peer.heartbeats is not None:
            self._add_heartbeats(peer.heartbeats, blocks)
        parts = [
            f"# Written by muster-agent migrate-config from the configuration of stream-replicator {peer.name}.",
            *_lines({"site": self._token(peer.name, "name"), "region": region}),
            *_lines(upstream, "[upstream]"),
        ]
        if store is not None:
            parts += _lines({"path": str(store)}, "[store]")
        if peer.monitor_port:
            parts += _lines({"listen": f"0.0.0.0:{peer.monitor_port}"}, "[monitor]")
        for _, tables in blocks:
            for header, table in tables.items():
                parts += _lines(table, header) if table else []
        return "\n".join(parts) + "\n"

    def _block(self, stream: PeerStream, place: str) -> dict[str, Table]:
        if not stream.stream:
            raise MigrationRefused(f"{place}.stream: is missing: write which stream is read")
        name = self._token(stream.name or stream.stream, f"{place}.name")
        if any(block.name == name for block in self.blocks):
            name = self._token(f"{name}-{stream.stream}-{len(self.blocks)}", f"{place}.name")
        self.blocks.append(MigratedBlock(name, self._peer.consumer_of(stream), self._peer.state_file_of(stream)))
        source = self._connection(stream.source_url, "source", stream, f"{place}.source_url")
        source["stream"] = stream.stream
        if stream.filter_subject:
            source["filter_subject"] = stream.filter_subject
        if start := _start(stream, place):
            source["start"] = start
        sender = self._sender(stream, place)
        sampled = bool(sender) and bool(stream.inspect_duration)
        policy = self._sampling(stream, place, source) if sampled else {}
        if stream.max_age:
            policy["max_age"] = Duration(duration(stream.max_age, f"{place}.max_age"))
        self._say_of_stream(stream, place, sampled=sampled)
        target: Table = {}
        if not sampled and stream.target_subject_prefix:
            target["prefix"] = stream.target_subject_prefix.strip(".")
        if not sampled and stream.target_subject_remove:
            target["remove"] = stream.target_subject_remove
        return {
            "[[stream]]": {"name": name, "mode": "sample" if sampled else "copy"},
            "[stream.source]": source,
            "[stream.sender]": sender if sampled else {},
            "[stream.policy]": policy,
            "[stream.target]": target,
            "[stream.heartbeat]": {},
        }

    def _sender(self, stream: PeerStream, place: str) -> Table:
        if stream.inspect_field:
            if not _PLAIN_PATH.fullmatch(stream.inspect_field):
                self._say(
                    f"{place}.inspect_field",
                    f"{stream.inspect_field!r} is no plain path of keys: correct sender.json_path",
                )
            return {"json_path": stream.inspect_field}
        if stream.inspect_header:
            return {"header": stream.inspect_header}
        if stream.inspect_subject_token == -1:
            return {"subject": True}
        return {"subject_token": stream.inspect_subject_token} if stream.inspect_subject_token > 0 else {}

    def _sampling(self, stream: PeerStream, place: str, source: Table) -> Table:
        interval = duration(stream.inspect_duration, f"{place}.inspect_duration")
        stale = duration(stream.warn_duration, f"{place}.warn_duration") if stream.warn_duration else interval // 2
        retire = interval
        if stale >= interval:
            retire = 2 * stale
            self._say(
                f"{place}.warn_duration",
                "not shorter than inspect_duration, so nobody was ever advised about: "
                "policy.retire_after is twice as long",
            )
        if stale // 4 < _DEFAULT_SETTLE + SECOND:
            source["settle"] = Duration(max(stale // 4 - SECOND, 0))
        policy: Table = {
            "sample_interval": Duration(interval),
            "stale_after": Duration(stale),
            "retire_after": Duration(retire),
            "size_trigger": math.ceil(stream.size_trigger),
        }
        if stream.inspect_force_field:
            policy["force_path"] = stream.inspect_force_field
        return policy

    def _connection(self, url: str, side: str, stream: PeerStream, place: str) -> Table:
        """Return the servers of a URL, and its login; ``side`` is source or target."""
        if not url:
            raise MigrationRefused(f"{place}: is missing: write where the servers are")
        servers, options, secret = [], dict[str, str](), None
        for each in url.split(","):
            parts = urlsplit(each.strip() if "://" in each else f"nats://{each.strip()}")
            servers.append(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}")
            options = {**{key: values[0] for key, values in parse_qs(parts.query).items()}, **options}
            secret = secret or (parts if parts.username else None)
        found: Table = {"servers": tuple(servers)}
        if auth := self._auth(options, secret, side, place):
            found["auth"] = auth
        tls = getattr(stream, f"{side}_tls") or stream.tls or self._peer.tls or PeerTls()
        table: Table = {key: value for key in ("ca", "cert", "key") if (value := getattr(tls, key))}
        if options.get("tls_handshake_first", "").lower() in ("true", "1", "t"):
            table["handshake_first"] = True
        if table:
            found["tls"] = table
        if options.get("insecure", "").lower() in ("true", "1", "t"):
            self._say(place, "insecure has no counterpart: servers are always verified, tls.ca says by whom")
        if "connect_timeout" in options:
            self._say(place, "connect_timeout has no counterpart: the agent tries again for ever")
        choria = getattr(stream, f"{side}_choria") or stream.choria or self._peer.choria or PeerChoria()
        if choria.seed_file or choria.jwt_file:
            self._say(
                f"{place.rpartition('.')[0]}.{side}_choria",
                "Choria's tokens have no counterpart: a Choria broker, which knows no nkeys, lets in certificates of "
                f"its CA, {_table_of(side)} tls = {{ ca, cert, key }}; a nats-server may know a user, "
                "auth = { nkey_seed_file = ... }",
            )
        return found

    def _auth(self, options: Mapping[str, str], secret: SplitResult | None, side: str, place: str) -> Table:
        if "credentials" in options:
            return {"credentials_file": options["credentials"]}
        if "jwt" in options and "nkey" in options:
            self._say(
                place,
                f"jwt and nkey: write both into one file, {_table_of(side)} auth = {{ credentials_file = "
                "... }, as `nsc generate creds` does",
            )
        if secret is None:
            return {}
        file = f"/etc/muster-agent/{side}.{'password' if secret.password else 'token'}"
        what = "password" if secret.password else "token"
        self._say(place, f"its {what} is not written here, secrets are files: put it into {file}, mode 0640")
        return {"user": secret.username, "password_file": file} if secret.password else {"token_file": file}

    def _target_of(self, stream: PeerStream) -> tuple[object, ...]:
        tls = stream.target_tls or stream.tls or self._peer.tls
        choria = stream.target_choria or stream.choria or self._peer.choria
        return stream.target_url, tls, choria

    def _add_heartbeats(self, beats: PeerHeartbeats, blocks: list[tuple[PeerStream, dict[str, Table]]]) -> None:
        free = [tables for stream, tables in blocks if stream.source_url == beats.url]
        for number, subject in enumerate(beats.subjects):
            place = f"heartbeats.subjects[{number}]"
            if not free:
                self._say(
                    place,
                    "no counterpart: one heartbeat for each block, at its source; watermarks tell the hub "
                    "every 10 s that the site is there",
                )
                continue
            interval = duration(subject.interval or beats.interval, f"{place}.interval")
            free.pop(0)["[stream.heartbeat]"] = {"interval": Duration(interval), "subject": subject.subject}
            if subject.headers or beats.headers:
                self._say(f"{place}.headers", "no counterpart: heartbeats carry headers of the agent's own")
        if beats.leader_election:
            self._say("heartbeats.leader_election", "no counterpart: every agent sends its own")

    def _say_of_the_whole(self) -> None:
        peer = self._peer
        if peer.state_store:
            self._say("state_store", "the agent keeps one file, store.path; --state takes over what lies there")
        if peer.monitor_port:
            self._say(
                "monitor_port",
                "kept; metrics have other names, and whoever asks by the host's name needs monitor.hosts",
            )
        if peer.logfile:
            self._say(
                "logfile", "no counterpart: the agent logs to standard error, journalctl -u muster-agent shows it"
            )
        if peer.loglevel not in ("", "info"):
            self._say("loglevel", "no counterpart: muster-agent --debug run logs more, nothing logs less")
        if peer.profiling:
            self._say("profiling", "no counterpart")

    def _say_of_stream(self, stream: PeerStream, place: str, *, sampled: bool) -> None:
        said = {
            "target_stream": _target_of_copies(stream)
            if not sampled and stream.target_subject_prefix
            else "no counterpart: everything goes to the region's stream FLEET, which muster-aggregator apply makes",
            "no_target_create": "no counterpart: the agent creates no stream",
            "ephemeral": "no counterpart: the agent's consumer is durable, and start says where it begins",
            "target_initiated": "no counterpart: uploads are pipelined, so the agent may run at either end; --state "
            "finds no position of such a stream, set source.start",
            "leader_election_name": "no counterpart by itself: write [pair] with the names of both agents",
            "advisory": "no counterpart: advisories go to the region, as "
            "fleet.<region>.<site>.<block>.advisory.<kind>; nothing is published on "
            f"{_subject_of_advisories(stream)} any more: a stream of the site that takes it, and copies of that "
            "stream, get no further ones",
        }
        if sampled:
            said["target_subject_prefix"] = said["target_subject_remove"] = (
                "no counterpart: registrations go to fleet.<region>.<site>.<block>.registration"
            )
        else:
            unused = (
                "inspect_field",
                "inspect_header",
                "inspect_subject_token",
                "inspect_duration",
                "warn_duration",
                "size_trigger",
                "inspect_force_field",
            )
            said |= dict.fromkeys(unused, "without effect there too: it samples by a key and inspect_duration together")
        for key, text in said.items():
            if getattr(stream, key):
                self._say(f"{place}.{key}", text)
        if not sampled and not stream.target_subject_prefix:
            self._say(place, "copies go below fleet.<region>.<site>.<block>.copy, not to the subjects that they had")
        if sampled and not stream.inspect_field:
            self._say(
                place,
                "stream-replicator samples by header or subject token only beside inspect_field, and "
                "copied everything; the agent samples",
            )

    def _token(self, name: str, place: str) -> str:
        token = _NO_TOKEN.sub("_", name)[:64]
        if token != name:
            self._say(place, f"{name!r} is no subject token, the agent's name for it is {token!r}")
        return token

    def _say(self, place: str, text: str) -> None:
        self.remarks.append(f"{place.lstrip('.')}: {text}")


def _target_of_copies(stream: PeerStream) -> str:
    prefix = stream.target_subject_prefix.strip(".")
    return (
        f"no counterpart: copies go to the region's stream that has the subject {prefix}.>, by whatever name: make it "
        "there, by a [[stream]] of topology.toml for example"
    )


def _subject_of_advisories(stream: PeerStream) -> str:
    return stream.advisory.subject if stream.advisory is not None else ""


def _table_of(side: str) -> str:
    return "[upstream]" if side == "target" else "[stream.source]"


def _start(stream: PeerStream, place: str) -> str:
    if stream.start_at_end:
        return "new"
    if stream.start_sequence:
        return f"sequence:{stream.start_sequence}"
    if stream.start_delta:
        micros = duration(stream.start_delta, f"{place}.start_delta")
        return f"delta:{toml_value(Duration(micros))[1:-1]}"
    return f"time:{stream.start_time}" if stream.start_time else ""


def _lines(table: Table, header: str = "") -> Iterator[str]:
    yield ""
    if header:
        yield header
    for key, value in table.items():
        inner = (f"{name} = {toml_value(each)}" for name, each in value.items()) if isinstance(value, dict) else ()
        yield f"{key} = {{ {', '.join(inner)} }}" if isinstance(value, dict) else f"{key} = {toml_value(value)}"
