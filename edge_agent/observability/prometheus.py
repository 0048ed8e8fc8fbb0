"""Write metrics in Prometheus' text format 0.0.4: HELP and TYPE once for each name, then its samples together."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["gauge", "counter", "summary"]


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One value; ``suffix`` is ``_sum`` or ``_count`` of a summary."""

    labels: Mapping[str, str]
    value: float
    suffix: str = ""


class Metric(msgspec.Struct, frozen=True):
    """One metric: what it says in a line, and its samples."""

    name: str
    kind: Kind
    help: str
    samples: Iterable[Sample]


def expose(metrics: Iterable[Metric], common: Mapping[str, str]) -> str:
    """Write metrics out, with ``common`` labels on every sample; those without a sample are left out."""
    return "".join(f"{line}\n" for metric in metrics for line in _lines(metric, common))


def _lines(metric: Metric, common: Mapping[str, str]) -> Iterator[str]:
    samples = list(metric.samples)
    if not samples:
        return
    yield f"# HELP {metric.name} {_escaped(metric.help)}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for sample in samples:
        labels = ",".join(f'{name}="{_quoted(value)}"' for name, value in {**common, **sample.labels}.items())
        yield f"{metric.name}{sample.suffix}{{{labels}}} {_number(sample.value)}"


def _number(value: float) -> str:
    """Write whole numbers without a fraction, others so that they read back the same."""
    return str(int(value)) if value == int(value) else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
