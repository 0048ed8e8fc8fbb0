"""Write the log: one line for each record, as ``key=value`` or JSON, with the site, region and stream it is about.

A record's own fields are given as ``extra={"fields": {...}}``. No secret comes this far: settings hold paths of
secrets, never secrets, and addresses with a password in them are refused.
"""

import json
import logging
import re
import sys
from collections.abc import Mapping
from typing import Literal, TextIO

import msgspec

from shared.instants import format_instant

LogFormat = Literal["text", "json"]
LOG_FORMATS: tuple[LogFormat, ...] = ("text", "json")

_PLAIN = re.compile(r"[^\s\"=\\\x00-\x1f\x7f]+")
_MICROSECONDS = 1_000_000


class LineFormatter(logging.Formatter):
    """Formatter of log lines; ``context`` (site and region, if configured) is in every line."""

    def __init__(self, form: LogFormat, context: Mapping[str, object]) -> None:
        super().__init__()
        self._form = form
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, whatever characters the message contains."""
        at = int(record.created * 1000) * 1000
        fields: dict[str, object] = {
            "time": format_instant(at - at % _MICROSECONDS)[:-1] + f".{at // 1000 % 1000:03d}Z",
            "level": record.levelname,
            **self._context,
            "msg": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if not record.name.startswith("muster"):
            fields["logger"] = record.name
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        if self._form == "json":
            return msgspec.json.encode(fields, enc_hook=str).decode()
        return " ".join(f"{key}={_value(value)}" for key, value in fields.items())


def _value(value: object) -> str:
    """Write a value so that a line can be taken apart again: in JSON's quotes, unless it is one plain word."""
    text = str(value)
    if _PLAIN.fullmatch(text) and text.isprintable():
        return text
    # What a terminal would obey, and what some take for the end of a line, is escaped beyond what JSON asks for.
    return msgspec.json.encode(text).decode() if text.isprintable() else json.dumps(text)


class LineHandler(logging.StreamHandler[TextIO]):
    """Write lines; ``trouble`` says why the last one could not be written, "" where it was."""

    trouble = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or keep the reason of the failure: if the stream has no reader, a report there is lost, too."""
        self.trouble = ""
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - logging's own
        """Do not write that to standard error, which is where lines go."""
        self.trouble = str(sys.exc_info()[1])


def log_trouble() -> str:
    """Return why the last line of this process's log could not be written; "" if it was."""
    handlers = (each for each in logging.getLogger().handlers if isinstance(each, LineHandler))
    return next((each.trouble for each in handlers if each.trouble), "")


def log_to(stream: TextIO, form: LogFormat = "text", *, debug: bool = False, **context: object) -> None:
    """Send all log records of this process to ``stream``, with the fields of ``context`` in every line."""
    handler = LineHandler(stream)
    handler.setFormatter(LineFormatter(form, context))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if debug else logging.INFO)
    logging.getLogger("aiosqlite").setLevel(logging.INFO)
