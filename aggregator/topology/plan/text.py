"""Write a plan for people, and as JSON for programs. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any

from aggregator.topology.desired.confinement import confinement_of, number_of
from aggregator.topology.desired.model import lines_by_place
from aggregator.topology.observed.state import api_of, consumer_name_of, sealed
from aggregator.topology.plan.changes import Action, Change, Plan
from aggregator.topology.plan.differences import FieldChange
from shared.instants import format_duration
from shared.sizes import format_size

_SIGNS = {Action.CREATE: "+", Action.UPDATE: "~", Action.REPLACE: "!", Action.DELETE: "-"}
_LIMITS = {
    "max_bytes": format_size,
    "max_msg_size": format_size,
    "max_msgs": "{:,}".format,
    "max_msgs_per_subject": "{:,}".format,
    "max_ack_pending": "{:,}".format,
    "max_deliver": "{:,}".format,
}
_UNREMARKABLE = dict.fromkeys(
    ("max_msg_size", "max_msgs", "max_msgs_per_subject", "max_ack_pending", "max_deliver"), -1
)
_NANOSECONDS = ("max_age", "duplicate_window", "idle_heartbeat", "ack_wait")


def format_plan(plan: Plan) -> str:
    """List every step below the place it is for, then what cannot be planned for, and a summary."""
    lines: list[str] = []
    place = ""
    for change in plan.changes:
        if str(change.place) != place:
            place = str(change.place)
            lines.append(place)
        lines.extend(f"  {line}" for line in change_lines(change))
    lines.extend(lines_by_place(plan.problems.items()))
    lines.extend(left_lines(plan))
    lines.extend(warning_lines(plan))
    lines.extend(f"refused: {reason}" for reason in plan.refused)
    return "\n".join([*lines, summary(plan)])


def change_lines(change: Change) -> Iterator[str]:
    yield from step_lines(change)
    for field in change.fields:
        if change.action is Action.CREATE and _is_unremarkable(field):
            continue
        if change.action is Action.CREATE and field.field == "sources":
            yield from (f"    source: {_source(source)}" for source in field.after)
        elif change.action is Action.CREATE:
            yield f"    {field.field}: {_shown(field.field, field.after)}"
        else:
            yield f"    {field.field}: {_shown(field.field, field.before)} -> {_shown(field.field, field.after)}"


def step_lines(change: Change) -> Iterator[str]:
    what = f"consumer {change.consumer} on {change.stream}" if change.consumer else f"stream {change.stream}"
    yield f"{_SIGNS[change.action]} {change.action} {what}" + (f", which {change.destroys}" if change.destroys else "")
    if change.remark:
        yield f"    {change.remark}"


def left_lines(plan: Plan) -> Iterator[str]:
    """Say what stays where nobody answers, and how it is removed."""
    for change in plan.left:
        command = f"nats --js-domain {change.place.domain} consumer rm {change.stream} {change.consumer}"
        yield f"{change.place}: does not answer, so {named(change)} stays: once it is back, {command}"


def untaken(change: Change, fields: Iterable[FieldChange]) -> str:
    """Say what a server did not make of a step to which it answered OK, and what to look at."""
    kept = ", ".join(f"{each.field}: {_shown(each.field, each.before)}" for each in fields)
    asked = ", ".join(_shown(each.field, each.after) for each in fields)
    return (
        f"{change.place}: {named(change)}: the server answered OK to {change.action} and keeps {kept} (asked for:"
        f" {asked}): it is too old for that, or somebody sealed the stream meanwhile: plan tells"
    )


def warning_lines(plan: Plan) -> Iterator[str]:
    """Say what to look at, which the plan neither mends nor minds."""
    yield from lines_by_place((key[0], sealed(key)) for key in plan.sealed)
    yield from (f"warning: {text}" for text in plan.warnings)


def named(change: Change) -> str:
    return f"{change.consumer} on {change.stream}" if change.consumer else change.stream


def _is_unremarkable(field: FieldChange) -> bool:
    return field.after is False or (field.field in _UNREMARKABLE and field.after == _UNREMARKABLE[field.field])


def summary(plan: Plan) -> str:
    counts = {action: sum(change.action is action for change in plan.changes) for action in Action}
    text = ", ".join(f"{count} to {action}" for action, count in counts.items() if count)
    text = text or f"nothing {'that can be done' if plan.sealed else 'to do'}" + (
        " where there was an answer" if plan.problems else ""
    )
    if plan.refused:
        count = len(plan.refused)
        text += f"; {count} refused: apply changes nothing"
    if plan.destructive:
        text += f"; {len(plan.destructive)} of them destructive: apply asks for --force"
    return text


def plan_as_json(plan: Plan) -> dict[str, Any]:
    """Give the plan as plain data; values stand as JetStream has them (nanoseconds, bytes, -1 for unlimited)."""
    return {
        "changes": [
            {
                "action": change.action,
                "place": str(change.place),
                "domain": change.place.domain,
                "stream": change.stream,
                "consumer": change.consumer,
                "fields": [{"field": each.field, "from": each.before, "to": each.after} for each in change.fields],
                "destroys": change.destroys,
                "remark": change.remark,
            }
            for change in plan.changes
        ],
        "problems": {str(place): reason for place, reason in plan.problems.items()},
        "refused": list(plan.refused),
        "warnings": list(plan.warnings),
        "sealed": [{"place": str(place), "stream": name} for place, name in plan.sealed],
        "left": [
            {"place": str(change.place), "stream": change.stream, "consumer": change.consumer} for change in plan.left
        ],
    }


def _shown(field: str, value: Any) -> str:
    if field in _NANOSECONDS:
        return format_duration(value // 1000) if value else "for ever" if field == "max_age" else "none"
    if field in _LIMITS:
        limited = value is not None and value >= 0
        return _LIMITS[field](value) if limited else "unlimited"
    if field in ("sources", "mirror", "placement") or field.startswith("source "):
        return _shown_copy(field, value) if value else "none"
    return _plainly(value)


def _shown_copy(field: str, value: Any) -> str:
    if field == "sources":
        return ", ".join(_source(source) for source in value)
    if field == "placement":
        return ", ".join([*filter(None, [value.get("cluster")]), *(value.get("tags") or [])])
    if field == "mirror":
        return f"of {_source(value)}" if api_of(value) or list(_taken(value)) else f"of {value['name']}"
    through = consumer_name_of(value)
    return ", ".join([f"durable through {through}" if through else "plain", *_taken(value)])


def _source(source: dict[str, Any]) -> str:
    details = [*(["durable"] if source.get("consumer") else []), *_taken(source)]
    shown = f" ({', '.join(details)})" if details else ""
    return f"{source['name']} of {api_of(source) or 'this domain'}{shown}"


def _taken(source: dict[str, Any]) -> Iterator[str]:
    """Say what of an origin is taken, where it is not all."""
    if source.get("opt_start_seq"):
        yield f"from sequence {source['opt_start_seq']:,}"
    if source.get("opt_start_time"):
        yield f"from {source['opt_start_time']}"
    if source.get("filter_subject"):
        yield f"only {source['filter_subject']}"
    if confinement_of(source):
        yield f"all below {confinement_of(source)}"
        if number_of(source) > 1:
            yield f"anew (number {number_of(source)})"
        return
    for each in source.get("subject_transforms") or []:
        yield f"{each['src']} as {each['dest']}" if each.get("dest") else f"only {each['src']}"


def _plainly(value: Any) -> str:
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        # What the server notes there for itself is nobody's business.
        return ", ".join(f"{key} {said}" for key, said in value.items() if not key.startswith("_")) or "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
