"""Each record is one line that programs can take apart, whatever stands in it."""

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from edge_agent.observability.log_format import LogFormat, log_to

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
log = logging.getLogger("muster.agent")


@pytest.fixture(autouse=True)
def root_as_it_was() -> Iterator[None]:
    root, level, handlers = logging.getLogger(), logging.getLogger().level, logging.getLogger().handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


def logging_to(form: LogFormat) -> io.StringIO:
    stream = io.StringIO()
    log_to(stream, form, site="dub1", region="eu-west")
    return stream


def test_line_says_when_how_bad_where_and_what() -> None:
    stream = logging_to("text")
    log.info("stopping")
    assert re.fullmatch(rf"time={TIME} level=INFO site=dub1 region=eu-west msg=stopping\n", stream.getvalue())


def test_fields_stand_behind_the_message() -> None:
    stream = logging_to("text")
    log.warning("upstream: not connected", extra={"fields": {"part": "upstream", "repeated": 4, "why": ""}})
    assert stream.getvalue().endswith(' msg="upstream: not connected" part=upstream repeated=4 why=""\n')


@pytest.mark.parametrize(
    "text", ["two words", 'with "quotes"', "a=b", "two\nlines", "back\\slash", "nul\x00", "é ü", "\u202eevil", "\x9b2J"]
)
def test_value_that_is_no_plain_word_is_quoted_and_reads_back(text: str) -> None:
    stream = logging_to("text")
    log.info("%s", text)
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line.partition(" msg=")[2]) == text


def test_json_line_is_an_object_with_the_same_fields() -> None:
    stream = logging_to("json")
    log.warning('it "broke"\n', extra={"fields": {"stream": "nodes", "repeated": 4}})
    (line,) = stream.getvalue().splitlines()
    said = json.loads(line)
    assert re.fullmatch(TIME, said.pop("time"))
    assert said == {
        "level": "WARNING",
        "site": "dub1",
        "region": "eu-west",
        "msg": 'it "broke"\n',
        "stream": "nodes",
        "repeated": 4,
    }


@pytest.mark.parametrize("form", ["text", "json"])
def test_traceback_stays_in_its_line_and_another_library_is_named(form: LogFormat) -> None:
    stream = logging_to(form)
    try:
        int("no number")
    except ValueError:
        logging.getLogger("asyncio").exception("task failed")
    (line,) = stream.getvalue().splitlines()
    assert "Traceback" in line
    assert "asyncio" in line


def test_what_only_developers_want_is_not_logged() -> None:
    stream = logging_to("text")
    log.debug("nothing for people")
    assert stream.getvalue() == ""
