"""Settings of one ``[[stream]]`` block, and the core's rules that they describe."""

from typing import Annotated, Literal, Self

import msgspec
from msgspec import Meta

from edge_agent.core.copy_mode import CopySubject
from edge_agent.core.intake import (
    GoodbyeRule,
    NameForm,
    SenderByHeader,
    SenderByPath,
    SenderBySubject,
    SenderBySubjectToken,
    SenderRule,
)
from edge_agent.core.observation import BatchForm
from edge_agent.core.payload import DigestRule
from edge_agent.core.policy import MAX_SENDERS, Policy
from edge_agent.source.consumer import StartRule
from edge_agent.source.own_messages import ProbeRule
from shared.identifiers import validated_token
from shared.instants import HOUR, MINUTE, SECOND, InvalidInstant, format_duration, parse_duration, parse_instant
from shared.nats.settings import ConnectionSettings
from shared.settings import Duration, Settings
from shared.subjects import EVERY_REGISTRATION, covers, is_publishable, is_readable, probe_subject
from shared.thresholds import InvalidThresholds, Thresholds

_START = "write all, new, sequence:100, time:2026-01-31T00:00:00Z or delta:1h"


class SourceSettings(ConnectionSettings, frozen=True, kw_only=True):
    """``[stream.source]``: the site's stream of registrations, and how it is read."""

    stream: Annotated[str, Meta(description="name of the stream to read")]
    consumer: Annotated[str, Meta(description="name of the durable consumer; default: muster-<site>-<block>")] = ""
    create_consumer: Annotated[bool, Meta(description="create the consumer where it is missing")] = True
    filter_subject: Annotated[str, Meta(description="read only messages on this subject; empty: all")] = ""
    start: Annotated[str, Meta(description="where the first read begins: all, new, sequence:, time: or delta:")] = "all"
    probe: Annotated[bool, Meta(description="publish small messages that show that the stream stores")] = True
    probe_subject: Annotated[str, Meta(description="subject of these; empty: one that no sender uses is chosen")] = ""
    settle: Annotated[Duration, Meta(description="how far behind the server's clock a time counts as complete")] = (
        Duration(5 * SECOND)
    )
    max_clock_ahead: Annotated[
        Duration, Meta(description="how far the server's clock is followed beyond the others; 0s: wherever it goes")
    ] = Duration(HOUR)

    def __post_init__(self) -> None:
        super().__post_init__()
        validated_token(self.stream, "the stream")
        if self.consumer:
            validated_token(self.consumer, "the consumer")
        if self.filter_subject and not is_readable(self.filter_subject):
            raise ValueError(
                f"filter_subject {self.filter_subject!r} cannot be read on: write tokens joined by single dots, * for "
                "any one token, > for all the rest"
            )
        if self.probe_subject and (not is_publishable(self.probe_subject) or self.probe_subject.startswith("$")):
            raise ValueError(
                f"probe_subject {self.probe_subject!r} cannot be published on: write tokens and single dots"
            )
        if self.probe_subject and not self.probe:
            raise ValueError("probe_subject has no effect with probe = false: take one of them out")
        self.start_rule()

    def start_rule(self) -> StartRule:
        """Return the rule of ``start``; raise ValueError if it is none of the documented forms."""
        kind, _, value = self.start.partition(":")
        try:
            match kind:
                case "all" | "new" if self.start == kind:
                    return StartRule(kind)
                case "sequence" if value.isdecimal() and len(value) <= 18 and int(value) > 0:
                    return StartRule(kind, int(value))
                case "time":
                    return StartRule(kind, parse_instant(value))
                case "delta":
                    return StartRule(kind, parse_duration(value))
        except InvalidInstant as error:
            raise ValueError(f"start: {error}") from None
        raise ValueError(f"start {self.start!r} is not known: {_START}")


def _check_path(key: str, path: str) -> None:
    if path and not all(path.split(".")):
        raise ValueError(f"{key} {path!r} has an empty key in it: write keys joined by single dots, such as data.time")


class SenderSettings(Settings, frozen=True):
    """``[stream.sender]``: the identification of a sender (exactly one key), and the form of its name."""

    json_path: Annotated[str, Meta(description="keys joined by dots, to a text in the registration")] = ""
    header: Annotated[str, Meta(description="name of a header")] = ""
    subject_token: Annotated[int, Meta(description="one token of the subject, counted from 1", ge=0)] = 0
    subject: Annotated[bool, Meta(description="true: the whole subject")] = False
    normalize: Annotated[
        Literal["none", "hostname"],
        Meta(description="hostname: case folded, blanks around it and a full stop at its end removed"),
    ] = "none"
    batch: Annotated[
        Literal["none", "lines", "array"],
        Meta(description="lines, array: a message holds registrations of several senders, as lines or in an array"),
    ] = "none"

    def __post_init__(self) -> None:
        _check_path("json_path", self.json_path)
        ways = ("json_path", "header", "subject_token", "subject")
        chosen = [key for key in ways if getattr(self, key)]
        if len(chosen) != 1:
            found = " and ".join(chosen) if chosen else "none"
            raise ValueError(f"exactly one of {', '.join(ways)} is needed, found {found}")
        if self.batch != "none" and not self.json_path:
            raise ValueError(
                f'batch = "{self.batch}" needs json_path: {chosen[0]} names one sender for a whole message'
            )

    def rule(self) -> SenderRule:
        normalize = NameForm(self.normalize)
        if self.json_path:
            return SenderByPath(self.json_path, BatchForm(self.batch), normalize=normalize)
        if self.header:
            return SenderByHeader(self.header, normalize=normalize)
        if self.subject_token:
            return SenderBySubjectToken(self.subject_token, normalize=normalize)
        return SenderBySubject(normalize=normalize)


_OF_CONTENT = ("size_trigger", "force_path", "digest_paths", "digest_ignore")
UNUSED_POLICY = {"copy": ("sample_interval", "retire_after", "max_senders", *_OF_CONTENT), "relay": _OF_CONTENT}
"""The settings without effect in each mode. ``stale_after`` bounds ``blind_after``, which all modes use."""


class PolicySettings(Settings, frozen=True):
    """``[stream.policy]``: when to forward, and when silence becomes stale and stale becomes retired."""

    sample_interval: Annotated[Duration, Meta(description="forward each sender's registration this often")] = Duration(
        HOUR
    )
    stale_after: Annotated[Duration, Meta(description="silence after which a sender is stale")] = Duration(12 * MINUTE)
    retire_after: Annotated[Duration, Meta(description="silence after which a sender is forgotten")] = Duration(
        24 * HOUR
    )
    blind_after: Annotated[
        Duration | None,
        Meta(description="time without proof after which the stream was not seen; default stale_after / 4"),
    ] = None
    size_trigger: Annotated[int, Meta(description="forward when the size moved by this many bytes; 0: off", ge=0)] = (
        1024
    )
    force_path: Annotated[str, Meta(description="JSON path whose value true forwards at once")] = ""
    digest_paths: Annotated[tuple[str, ...], Meta(description='forward when these change; ["*"]: all')] = ()
    digest_ignore: Annotated[tuple[str, ...], Meta(description="JSON paths that digest_paths leaves out")] = ()
    max_age: Annotated[Duration, Meta(description="do not forward older messages; 0s: never too old")] = Duration(0)
    max_senders: Annotated[
        int, Meta(description="how many senders are known at most; further ones are rejected", ge=1, le=2_000_000_000)
    ] = MAX_SENDERS

    def __post_init__(self) -> None:
        self.thresholds.check()
        _check_path("force_path", self.force_path)
        for key, paths in (("digest_paths", self.digest_paths), ("digest_ignore", self.digest_ignore)):
            for path in paths:
                _check_path(key, path or ".")
        if self.digest_ignore and not self.digest_paths:
            raise ValueError('digest_ignore without digest_paths has no effect: set digest_paths, for example to ["*"]')

    def check_effects(self, mode: str) -> None:
        """Raise ValueError for a key that is set and has no effect in a mode; "sample" uses all of them."""
        unused = UNUSED_POLICY.get(mode, ())
        for field in msgspec.structs.fields(type(self)):
            if field.name in unused and getattr(self, field.name) != field.default:
                raise ValueError(f'policy.{field.name} has no effect in mode "{mode}": take it out')

    @property
    def thresholds(self) -> Thresholds:
        """The thresholds that the hub's policy may set too."""
        blind_after = None if self.blind_after is None else int(self.blind_after)
        return Thresholds(int(self.sample_interval), int(self.stale_after), int(self.retire_after), blind_after)

    def overlaid(self, thresholds: Thresholds) -> Self:
        """Return a copy with other thresholds; raise InvalidThresholds if they contradict the rest."""
        self.thresholds.overlaid(thresholds).check()
        return msgspec.structs.replace(self, **{name: Duration(value) for name, value in thresholds.given.items()})

    def policy(self) -> Policy:
        return Policy(
            sample_interval=int(self.sample_interval),
            stale_after=int(self.stale_after),
            retire_after=int(self.retire_after),
            blind_after=int(self.stale_after // 4 if self.blind_after is None else self.blind_after),
            size_trigger=self.size_trigger,
            max_age=int(self.max_age),
            max_senders=self.max_senders,
        )

    def digest_rule(self) -> DigestRule:
        return DigestRule(self.digest_paths, self.digest_ignore)


class TargetSettings(Settings, frozen=True):
    """``[stream.target]``: where records go, where it is not below the site's own subjects."""

    prefix: Annotated[str, Meta(description="publish below this prefix; empty: the site's own subjects")] = ""
    remove: Annotated[str, Meta(description="a part taken out of copied subjects")] = ""

    def __post_init__(self) -> None:
        if self.prefix and (not is_publishable(self.prefix) or self.prefix.startswith("$")):
            raise ValueError(f"prefix {self.prefix!r} is no part of a subject: write tokens joined by single dots")
        if set(self.remove) & set(" *>\t\r\n"):
            raise ValueError(f"remove {self.remove!r} can stand in no subject: write the part as subjects have it")


class GoodbyeSettings(Settings, frozen=True):
    """``[stream.goodbye]``: which messages say that their sender goes: they are counted, and are no sign of life."""

    json_path: Annotated[str, Meta(description="keys joined by dots, to the text that tells")] = ""
    values: Annotated[tuple[str, ...], Meta(description="the texts that mean a goodbye")] = ()

    def __post_init__(self) -> None:
        _check_path("json_path", self.json_path)
        if bool(self.json_path) != bool(self.values):
            raise ValueError("json_path and values belong together, one is missing")

    def rule(self) -> GoodbyeRule | None:
        return GoodbyeRule(self.json_path, self.values) if self.json_path else None


class HeartbeatSettings(Settings, frozen=True):
    """``[stream.heartbeat]``: messages that keep an idle stream moving."""

    interval: Annotated[Duration, Meta(description="how often; 0s: off")] = Duration(0)
    subject: Annotated[str, Meta(description="on which subject")] = ""

    def __post_init__(self) -> None:
        if bool(self.interval) != bool(self.subject):
            raise ValueError("interval and subject belong together, one is missing")
        if self.interval and self.interval < SECOND:
            raise ValueError("interval must be 1s or longer")
        if self.subject and not is_publishable(self.subject):
            raise ValueError(f"subject {self.subject!r} cannot be published on: write tokens joined by single dots")


class StreamSettings(Settings, frozen=True):
    """One ``[[stream]]`` block."""

    name: Annotated[str, Meta(description="the block's name, a subject token")]
    source: Annotated[SourceSettings, Meta(description="the stream to read")]
    sender: Annotated[SenderSettings | None, Meta(description="what identifies a sender")] = None
    mode: Annotated[Literal["sample", "copy", "relay"], Meta(description="sample, copy or relay")] = "sample"
    policy: Annotated[PolicySettings, Meta(description="when to forward, when a sender is stale")] = PolicySettings()
    target: Annotated[TargetSettings, Meta(description="where records go")] = TargetSettings()
    goodbye: Annotated[GoodbyeSettings, Meta(description="messages of senders that go")] = GoodbyeSettings()
    heartbeat: Annotated[HeartbeatSettings, Meta(description="messages on idle streams")] = HeartbeatSettings()

    def __post_init__(self) -> None:
        validated_token(self.name, "the block's name")
        match self.mode:
            case "sample":
                self._check_sampling()
            case "copy":
                self._check_copying()
            case "relay":
                self._check_relaying()
        self.policy.check_effects(self.mode)
        if self.goodbye.rule() and self.mode != "sample":
            raise ValueError(f'goodbye has no effect in mode "{self.mode}", which watches no senders: take it out')
        subject, read = self.heartbeat.subject, self.filter_subject
        if subject and read and not covers(read, subject):
            raise ValueError(f"heartbeat.subject {subject!r} does not pass source.filter_subject {read!r}")
        subject = self.source.probe_subject
        if subject and self.mode != "sample":
            raise ValueError(
                f'source.probe_subject has no effect in mode "{self.mode}", which watches no senders: take it out'
            )
        if subject and read and not covers(read, subject):
            raise ValueError(f"source.probe_subject {subject!r} does not pass source.filter_subject {read!r}")

    @property
    def filter_subject(self) -> str:
        """The subject that is read; a relay reads registrations by default."""
        return self.source.filter_subject or (EVERY_REGISTRATION if self.mode == "relay" else "")

    def sender_rule(self) -> SenderRule:
        """Return the rule that identifies a sender; raise TypeError in copy mode."""
        if self.sender is None:
            raise TypeError(f"mode {self.mode} identifies no senders")
        return self.sender.rule()

    def copy_subject(self, default_prefix: str) -> CopySubject:
        return CopySubject(self.target.prefix or default_prefix, self.target.remove)

    def _check_sampling(self) -> None:
        if self.sender is None:
            raise ValueError('mode "sample" needs [stream.sender]: what identifies a sender')
        if self.target.remove:
            raise ValueError(
                'target.remove takes a part out of copied subjects, and mode "sample" has none: take it out'
            )
        self.check_settle(self.policy)

    def check_settle(self, policy: PolicySettings) -> None:
        """Raise InvalidThresholds where a quiet stream would count as blind under ``policy``."""
        blind_after, settle = policy.policy().blind_after, int(self.source.settle)
        if self.mode == "sample" and blind_after < settle + SECOND:
            # On a quiet stream the newest proof is a check up to a second old, less settle.
            raise InvalidThresholds(
                f"source.settle ({format_duration(settle)}) must be shorter than policy.blind_after "
                f"({format_duration(blind_after)}) by a second or more, or every pause counts as blind"
            )

    @property
    def is_probed(self) -> bool:
        """True if the agent probes the stream, which it does only where it tracks senders."""
        return self.source.probe and self.mode == "sample"

    @property
    def remark(self) -> tuple[str, str]:
        """The reason why the time of a stream without registrations stays unknown, and the remedy; "" if there is none.

        ``edge_agent.core.unproven`` has the rule.
        """
        interval, longest = self.heartbeat.interval, self.policy.policy().blind_after // 2
        if self.mode != "sample" or self.source.probe or interval <= longest:
            return "", ""
        wrong = f"heartbeats every {format_duration(interval)} alone do not prove that a quiet stream stores"
        remedy = f"set source.probe = true, or heartbeat.interval to {format_duration(longest)} or less"
        return (
            f"stream {self.name}: {wrong}: while all senders are silent, the time is unknown",
            f"{remedy}, half of blind_after",
        )

    def probe_rule(self, region: str, site: str) -> ProbeRule:
        own = probe_subject(region, site, self.name)
        return ProbeRule(self.source.stream, own, self.source.probe_subject, self.filter_subject)

    def _check_copying(self) -> None:
        if self.sender is not None:
            raise ValueError('sender has no effect in mode "copy", which identifies nobody: take [stream.sender] out')
        read = self.source.filter_subject
        if read and is_publishable(read) and self.copy_subject("fleet").of(read) is None:
            raise ValueError(f"target.remove {self.target.remove!r} leaves nothing of the subject {read!r}: shorten it")

    def _check_relaying(self) -> None:
        if self.sender is None:
            raise ValueError('mode "relay" needs [stream.sender]: what identifies a sender, as at the sites')
        if self.sender.subject or self.sender.subject_token:
            raise ValueError('mode "relay" tells senders by json_path or header: subjects there are the fleet\'s')
        if self.sender.batch != "none":
            raise ValueError(
                'sender.batch has no effect in mode "relay", which passes on batches unsampled: take it out'
            )
        if self.target != TargetSettings():
            raise ValueError('target has no effect in mode "relay", which keeps subjects as they are: take it out')
        if self.heartbeat != HeartbeatSettings():
            raise ValueError(
                'heartbeat is not for mode "relay": what the sites send keeps its stream moving; take it out'
            )
