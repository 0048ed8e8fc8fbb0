"""Run ``muster-aggregator serve`` beside a hub, and ask it as a browser or a program does."""

import http.client
import json
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from shared.nats.settings import ConnectionSettings
from tests.support.command_process import CommandProcess, running

DEADLINE = 180.0


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class LiveService:
    """One running service."""

    def __init__(self, process: CommandProcess, port: int) -> None:
        self.process, self.port = process, port

    def request(
        self, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **query: object) -> Any:
        """Ask the API; give what it answers, which must be a success."""
        answer = self.request(f"/api/v1/{path}" + (f"?{urlencode(query)}" if query else ""))
        assert answer.status == 200, answer
        return answer.json

    def wait_through(self, sequence: int) -> Any:
        """Wait until a message of the archive is in the state; give the fleet."""
        ends_at = time.monotonic() + DEADLINE
        while True:
            fleet = self.get("fleet")
            if fleet["sequence"] >= sequence and fleet["now_us"] and "not to be trusted" not in fleet["trust"]:
                return fleet
            assert time.monotonic() < ends_at, (fleet, self.process.said)
            time.sleep(0.05)

    @contextmanager
    def events(self, last_id: str = "") -> Iterator[Iterator[tuple[str, str, Any]]]:
        """Listen: give the id, the name and the data of each event."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)
        connection.request("GET", "/api/v1/events", headers={"Last-Event-ID": last_id} if last_id else {})
        answer = connection.getresponse()
        assert answer.status == 200
        try:
            yield _events(answer)
        finally:
            connection.close()

    def stop(self) -> int:
        return self.process.end(signal.SIGTERM)


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, str, Any]]:
    fields: dict[str, str] = {}
    while line := answer.readline():
        text = line.decode().rstrip("\r\n")
        if text:
            name, _, value = text.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield fields["id"], fields["event"], json.loads(fields["data"])
            fields = {}


def write_settings(
    directory: Path, hub: ConnectionSettings, live: str = "", port: int = 0, reading: str = "consumer"
) -> Path:
    """Write the aggregator's settings; ``live`` are further lines of ``[live]``, port 0 is any that is free."""
    path = directory / "aggregator.toml"
    path.write_text(
        f'[hub]\nservers = ["{hub.servers[0]}"]\n[lakehouse]\npath = "lake"\nreading = "{reading}"\n'
        f'[live]\nlisten = "127.0.0.1:{port}"\n{live}'
    )
    return path


@contextmanager
def serving(
    directory: Path, hub: ConnectionSettings, live: str = "", port: int = 0, reading: str = "consumer"
) -> Iterator[LiveService]:
    """Run the service meanwhile."""
    path = write_settings(directory, hub, live, port, reading)
    with running(directory, "serve", "--config", str(path)) as process:
        said = process.wait_for("serving http://")
        port = int(said.partition("serving http://127.0.0.1:")[2].partition("/")[0])
        yield LiveService(process, port)
