"""Read Prometheus' text format strictly: whatever a scraper may refuse, or a linter complain of, fails."""

import re

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
_SAMPLE = re.compile(rf"({_NAME})\{{({_LABEL}(?:,{_LABEL})*)?\}} (-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
_HELP = re.compile(rf"# HELP ({_NAME}) (\S.*\.)")
_TYPE = re.compile(rf"# TYPE ({_NAME}) (counter|gauge|summary)")
_NOT_BASE = re.compile(r"milli|micro|kib|_(ms|us|kb|mb)(_|$)|minutes|percent")

Labels = tuple[tuple[str, str], ...]


def parsed(text: str) -> dict[tuple[str, Labels], float]:
    """Give every sample by its name and labels; fail where the text breaks a rule of the format, or a convention."""
    assert text.endswith("\n")
    samples: dict[tuple[str, Labels], float] = {}
    metric = kind = ""
    seen: set[str] = set()
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("# HELP"):
            told = _HELP.fullmatch(line)
            assert told, line
            metric = told[1]
            assert metric not in seen, f"{metric} comes in two pieces"
            seen.add(metric)
            typed = _TYPE.fullmatch(lines[number + 1])
            assert typed, lines[number + 1]
            assert typed[1] == metric, f"{metric} has no type"
            kind = typed[2]
            _check_name(metric, kind)
        elif not line.startswith("# TYPE"):
            name, labels, value = _sample(line)
            suffixes = ("_sum", "_count") if kind == "summary" else ("",)
            assert name in {metric + suffix for suffix in suffixes}, f"{name} stands below {metric}"
            assert (name, labels) not in samples, f"{line}: twice"
            assert kind == "gauge" or value >= 0, line
            samples[name, labels] = value
    return samples


def _check_name(metric: str, kind: str) -> None:
    assert metric.islower(), metric
    assert not _NOT_BASE.search(metric), f"{metric}: base units only"
    assert (kind == "counter") == metric.endswith("_total"), f"{metric}: counters, and no others, end with _total"


def _sample(line: str) -> tuple[str, Labels, float]:
    match = _SAMPLE.fullmatch(line)
    assert match, line
    pairs = [pair.partition("=")[::2] for pair in re.findall(_LABEL, match[2] or "")]
    names = [name for name, _ in pairs]
    assert len(names) == len(set(names)), f"{line}: a label twice"
    return match[1], tuple((name, value[1:-1]) for name, value in pairs), float(match[3])
