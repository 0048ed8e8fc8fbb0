"""Write out the settings that will be in effect, defaults included, as a settings file would have them."""

import json
from collections.abc import Iterator, Mapping

import msgspec

from edge_agent.config.agent import AgentSettings
from edge_agent.config.stream import UNUSED_POLICY, StreamSettings
from shared.instants import DAY, HOUR, MINUTE, SECOND
from shared.settings import Duration

_DEFAULT = "# default"
_COMMENT_COLUMN = 44
_UNITS = (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND), ("ms", 1_000), ("us", 1))


def render_settings(settings: AgentSettings) -> str:
    """Return the whole file: defaults are marked as such, derived settings have their values."""
    derived: dict[str, object] = {"name": settings.agent_name, "upstream.id_key_file": str(settings.id_key_path)}
    return "\n".join(_table("", settings, derived, settings)).strip("\n")


def _table(name: str, table: msgspec.Struct, derived: Mapping[str, object], settings: AgentSettings) -> Iterator[str]:
    below: list[tuple[str, msgspec.Struct]] = []
    for field in msgspec.structs.fields(type(table)):
        value, place = getattr(table, field.encode_name), f"{name}.{field.name}".lstrip(".")
        if isinstance(value, msgspec.Struct):
            if value != field.default or any(msgspec.structs.astuple(value)):
                # A table without any setting, such as the login, is left out. A table whose presence alone has an
                # effect, such as an empty one of TLS, differs from its field's default.
                below.append((place, value))
        elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
            below += [(f"[{place}]", each) for each in value]
        else:
            is_default = value == field.default
            value = derived.get(place, value)
            if value is not None:
                line = f"{field.name} = {toml_value(value)}"
                yield f"{line:{_COMMENT_COLUMN}} {_DEFAULT}" if is_default else line
    for place, each in below:
        yield ""
        yield f"[{place}]"
        inner = {**derived, **(_derived_values(settings, each) if isinstance(each, StreamSettings) else {})}
        yield from _table(place.strip("[]"), each, inner, settings)


def _derived_values(settings: AgentSettings, block: StreamSettings) -> dict[str, object]:
    policy = block.policy.policy()
    return {
        "stream.source.consumer": settings.consumer_of(block),
        "stream.source.filter_subject": block.filter_subject,
        "stream.policy.blind_after": Duration(policy.blind_after),
        **{f"stream.policy.{name}": None for name in UNUSED_POLICY.get(block.mode, ())},
    }


def toml_value(value: object) -> str:
    """Write a value as TOML has it; durations to the microsecond.

    >>> toml_value(Duration(90_500_000)), toml_value(True), toml_value(("a", "b"))
    ('"1m30s500ms"', 'true', '["a", "b"]')
    """
    if isinstance(value, Duration):
        return json.dumps(_exactly(int(value)))
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(str(value), ensure_ascii=False) if isinstance(value, str) else str(value)


def _exactly(duration: int) -> str:
    parts = []
    for unit, size in _UNITS:
        count, duration = divmod(duration, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
