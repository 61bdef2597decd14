"""The log of a node on stderr: every line with its time and level, as text or as JSON.

A line that comes again within a minute is counted; the next time it is written it says how often it came.
"""

import json
import logging
import re
import sys
import time
import traceback
from collections.abc import Iterable
from typing import Any, Final, Literal, TextIO

from interlock.cli.terminal.program import as_typed

LogFormat = Literal["text", "json"]
REPEAT_S: Final = 60.0
KNOWN_MAX: Final = 256  # different lines within that time
_PAUSE: Final = re.compile(r"\b\d+(?:\.\d+)? m?s\b")  # the one part of a repeated line that differs


class LogHandler(logging.Handler):
    def __init__(self, form: LogFormat, stream: TextIO) -> None:
        super().__init__()
        self._form = form
        self._stream = stream
        self._known: dict[str, tuple[float, int]] = {}  # line -> when it was last written, and how often it came since

    def emit(self, record: logging.LogRecord) -> None:
        try:
            repeated = self._count(record)
            if repeated is not None:
                self._stream.write(self._line(record, repeated) + "\n")
                self._stream.flush()
        except Exception:
            self.handleError(record)

    def _count(self, record: logging.LogRecord) -> int | None:
        """Return how often the record was repeated since it was last written, or None if it must not be written
        again yet.
        """
        line = f"{record.levelno} {record.name} {_PAUSE.sub('', record.getMessage())}"
        at, times = self._known.pop(line, (-REPEAT_S, 0))
        if record.created - at < REPEAT_S and record.exc_info is None:
            self._known[line] = (at, times + 1)
            return None
        if len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[line] = (record.created, 0)
        return times

    def _line(self, record: logging.LogRecord, repeated: int) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        message = record.getMessage()
        trace = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else ""
        if self._form == "json":
            fields: dict[str, Any] = {"at": at, "level": record.levelname.lower(), "logger": record.name}
            fields["message"] = message
            fields |= ({"repeated": repeated} if repeated else {}) | ({"trace": trace} if trace else {})
            return json.dumps(fields, ensure_ascii=False)
        again = f" ({repeated} more times before)" if repeated else ""
        return f"{at} {record.levelname:<7} {record.name}: {as_typed(message)}{again}" + (f"\n{trace}" if trace else "")


def begin_logging(form: LogFormat) -> None:
    logging.getLogger().addHandler(LogHandler(form, sys.stderr))


def log_warnings(warnings: Iterable[object]) -> None:
    """Log the warnings about the configuration."""
    for each in warnings:
        logging.getLogger("interlock.config").warning("%s", each)
