"""Write the configuration that is sent: what is wanted over what was found, each copy where it goes on. Pure."""

from aggregator.topology.model import Config, DesiredStream
from aggregator.topology.observed.state import Found, FoundStream, sources_of
from aggregator.topology.plan.differences import confines, source_pairs

_STARTS = ("opt_start_seq", "opt_start_time")
_BELONGS_TO_A_CONSUMER = (*_STARTS, "filter_subject", "subject_transforms")


def created(config: Config) -> Config:
    """Give the configuration that makes a stream."""
    return {key: value for key, value in request_body(config).items() if value != []}


def request_body(config: Config) -> Config:
    """Leave out what is not set, in the stream and in what it copies."""
    body = _without_nulls(config)
    for key in ("mirror", "placement"):
        if key in body:
            body[key] = _without_nulls(body[key])
    if "sources" in body:
        body["sources"] = [_without_nulls(source) for source in body["sources"]]
    return body


def _without_nulls(config: Config) -> Config:
    return {key: value for key, value in config.items() if value is not None}


def merged_sources(wanted: DesiredStream, current: FoundStream, found: Found) -> list[Config]:
    """Lay the wanted sources over the found ones, keeping what an operator added to them, and where they started.

    A source that loses its consumer, or is confined, starts behind what it had taken; one that gets a consumer must not
    say where to start.
    """
    merged = []
    for before, source in source_pairs(wanted.config["sources"], sources_of(current)):
        if source is None:
            continue
        old, new = dict(before or {}), dict(source)
        if new.get("consumer"):
            old = {name: value for name, value in old.items() if name not in _BELONGS_TO_A_CONSUMER}
        elif before is not None:
            starts = {name: start for name in _STARTS if (start := new.pop(name, None))}
            if old.pop("consumer", None) or confines(source, before):
                behind = found.resumes_behind(wanted.key, before)
                old = {name: value for name, value in old.items() if name not in _STARTS}
                old |= starts if starts and not behind else {"opt_start_seq": behind + 1}
        external = (old.get("external") or {}) | (new.get("external") or {})
        merged.append(old | new | ({"external": external} if external else {}))
    return merged
