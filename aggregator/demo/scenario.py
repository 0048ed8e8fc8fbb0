"""Say what the demo plays: who registers how often, what goes wrong when, and what each of it shall show.

Times are told in seconds of the story; ``pace`` is how long one of them takes, in microseconds. Outages that
are noticed last a little less than whole registration intervals: one that is a little longer comes out at the very edge
of what is promised, where the machine's own lateness would decide.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from shared.instants import SECOND, format_duration

REGIONS: Final = ("eu-west", "us-east")
SITES: Final = {"dub1": "eu-west", "lon1": "eu-west", "nyc1": "us-east"}
HUB: Final = "hub"
BLOCK: Final = "nodes"
NEW_NAME: Final = "web5"
CUT_REGION: Final = "us-east"
BEHIND_THE_CUT: Final = "nyc1"
STOPPED_SITE: Final = "lon1"
KILLED_AGENT: Final = "lon1"

REGISTRATION_INTERVAL: Final = 3.0
JITTER: Final = 0.2
STALE_AFTER: Final = 10.0
RETIRE_AFTER: Final = 25.0
BLIND_AFTER: Final = 3.0
SETTLE: Final = 0.5
WATERMARK_INTERVAL: Final = 2.0
SAMPLE_INTERVAL: Final = 15.0
UNKNOWN_AFTER: Final = 8.0
INCIDENT_AFTER: Final = 4.0

AGENT_KILLED: Final = (44.0, 55.0)
LINK_CUT: Final = (20.0, 42.0)
FIRST_ROLLUP_AT: Final = 40.0
STATUS_AT: Final = 33.0
SERVER_STOPPED: Final = (64.0, 79.0)
ENDED_AT: Final = 95.0


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happens to senders of one site.

    ``whom`` and ``what`` are its line in the summary, ``concerns`` tells a sender's name, ``table`` is its table in the
    simulator's script; ``starts`` and ``ends`` are told at their time, in seconds of the story, where they are not "".
    """

    site: str
    whom: str
    concerns: Callable[[str], bool]
    what: str
    table: str = ""
    starts: str = ""
    started_at: float = 0.0
    ends: str = ""
    ended_at: float | None = None


class Flapping(msgspec.Struct, frozen=True, kw_only=True):
    """Down ``count`` times, once in every ``period``, each time for ``down``: seconds of the story."""

    at: float
    period: float
    down: float
    count: int


class Scenario(msgspec.Struct, frozen=True):
    """One run: ``pace`` is how many microseconds a second of the story takes.

    ``rolls_up_midway``: make tables in the midst of it too, so that what arrives late must find its place in them.
    """

    senders_per_site: int = 200
    rack_size: int = 20
    pace: int = SECOND
    rolls_up_midway: bool = True

    def length(self, seconds: float) -> int:
        """Give how long some seconds of the story really take, in microseconds."""
        return round(seconds * self.pace)

    def setting(self, seconds: float) -> str:
        """Write a time of the story as settings files and commands want it: what it really takes."""
        return f"{self.length(seconds) / SECOND:g}s"

    def length_text(self, seconds: float) -> str:
        """Write a time of the story as people say it: what it really takes."""
        return format_duration(self.length(seconds))

    @property
    def sender_count(self) -> int:
        return self.senders_per_site * len(SITES)

    def incidents(self) -> tuple[Incident, ...]:
        """List what happens to senders, in the order of the summary."""
        return (
            self._rack("dub1", 3, (10.0, 30.7), "lost power", "gets power again"),
            self._flapping("dub1", "r2-n4", Flapping(at=12.0, period=24.0, down=14.7, count=3)),
            self._flapping("dub1", "r1-n3", Flapping(at=8.0, period=9.0, down=3.0, count=8)),
            self._gone("nyc1", "r1-n4", 12.0),
            *self._renamed("lon1", "r1-n5", 15.0),
            self._rack("nyc1", 4, (20.8, 41.5), "down behind the cut link", "is back, still behind the cut"),
            self._rack("lon1", 2, (41.0, 58.7), "down, its agent dead too", "is back"),
            self._rack("lon1", 4, (66.0, 77.7), "down while nobody could see", "is back, unseen as well"),
        )

    def script(self, site: str) -> str:
        return "\n".join(incident.table for incident in self.incidents() if incident.site == site and incident.table)

    def _rack(self, site: str, rack: int, down: tuple[float, float], what: str, back: str) -> Incident:
        prefix = f"{site}-r{rack}-"
        started_at, ended_at = down
        return Incident(
            site=site,
            whom=f"rack {rack} ({self.rack_size})",
            concerns=lambda sender: sender.startswith(prefix),
            what=what,
            table=f'[[outage]]\nat = "{self.setting(started_at)}"\nfor = "{self.setting(ended_at - started_at)}"\n'
            f"racks = [{rack}]\n",
            starts=f"rack {rack} goes down: {self.rack_size} senders fall silent",
            started_at=started_at,
            ends=f"rack {rack} {back}",
            ended_at=ended_at,
        )

    def _flapping(self, site: str, place: str, flaps: Flapping) -> Incident:
        sender = f"{site}-{place}"
        often = f"{flaps.count} x {self.length_text(flaps.down)}"
        longest_silence = flaps.down + 1.5 * REGISTRATION_INTERVAL + 2 * JITTER
        unseen = longest_silence < STALE_AFTER
        return Incident(
            site=site,
            whom=place,
            concerns=lambda found: found == _full(sender),
            what=f"flaps {often}" + (", unseen" if unseen else ""),
            table=f'[[flapping]]\nat = "{self.setting(flaps.at)}"\nperiod = "{self.setting(flaps.period)}"\n'
            f'count = {flaps.count}\ndown = "{self.setting(flaps.down)}"\nsenders = ["{_full(sender)}"]\n',
            starts=f"{sender} begins to flap: {often} down" + (", too briefly to be noticed" if unseen else ""),
            started_at=flaps.at,
        )

    def _gone(self, site: str, place: str, at: float) -> Incident:
        sender = f"{site}-{place}"
        return Incident(
            site=site,
            whom=place,
            concerns=lambda found: found == _full(sender),
            what="taken out of service",
            table=f'[[retire]]\nat = "{self.setting(at)}"\nsenders = ["{_full(sender)}"]\n',
            starts=f"{sender} is taken out of service for good",
            started_at=at,
        )

    def _renamed(self, site: str, place: str, at: float) -> tuple[Incident, Incident]:
        sender = f"{site}-{place}"
        gone = Incident(
            site=site,
            whom=place,
            concerns=lambda found: found == _full(sender),
            what=f"renamed {NEW_NAME}: retires",
            table=f'[[rename]]\nat = "{self.setting(at)}"\nsender = "{_full(sender)}"\nto = "{_full(NEW_NAME)}"\n',
            starts=f"{sender} is renamed {NEW_NAME}",
            started_at=at,
        )
        born = Incident(
            site=site,
            whom=NEW_NAME,
            concerns=lambda found: found == _full(NEW_NAME),
            what=f"what {place} became",
        )
        return gone, born


def _full(name: str) -> str:
    return f"{name}.example.net"
