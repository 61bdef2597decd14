"""Output of a command: results are written to stdout, remarks and errors to stderr.

Much of what a command writes comes from servers, files and registries. Control characters in it are escaped here, where
text reaches the terminal: in lines and questions (`safe_text`), in JSON (`safe_json`), in drawings (`safe_drawing`, and
at last every segment that the console renders) and in the log. No command writes to the terminal by another way.

With --json, stdout contains only JSON, including errors. Colours appear only on a terminal, and never if NO_COLOR is
set. rich is imported only when something is drawn, so that --json and short answers stay fast.

The log of a node is also written to stderr, each line with its time and level, as text or as JSON. A line that is
repeated within a minute is only counted; the next time the line is written, it includes the count.
"""

import io
import json
import logging
import os
import re
import shutil
import sys
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

from interlock.cli.terminal.text import (
    as_typed,
    drawn_as_typed,
    one_line,
    safe_drawing,
    safe_json,
    safe_line,
    safe_text,
)
from interlock.wire.refusal import Refused

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.text import Text

    Segments = Iterable[Segment]

WIDTH_WITHOUT_TERMINAL = 4000  # wide enough that nothing a filter looks for is cut

_RED = "\x1b[1;31m"
_DIM = "\x1b[2m"
_PLAIN = "\x1b[0m"
_CLEAR_LINE = "\r\x1b[K"


class Output:
    """The output of one command: results to stdout, remarks and errors to stderr, as text or as JSON."""

    def __init__(self, *, as_json: bool) -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # a poor encoding costs a character, not the answer
        self.as_json = as_json
        self._console: Console | None = None

    @property
    def console(self) -> "Console":
        """Return the console for drawing on stdout."""
        if self._console is None:
            from rich.console import Console

            class _PipeConsole(Console):
                def on_broken_pipe(self) -> None:
                    raise BrokenPipeError  # the command's frame ends it, as for every other write

                def render(self, renderable: "RenderableType", options: "ConsoleOptions | None" = None) -> "Segments":
                    for segment in super().render(renderable, options):
                        text, style, control = segment
                        yield segment if control else segment._replace(text=safe_text(text), style=style)

            wide = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else WIDTH_WITHOUT_TERMINAL
            self._console = _PipeConsole(file=sys.stdout, markup=False, highlight=False, emoji=False, width=wide)
        return self._console

    def draw(self, *lines: "Text") -> None:
        """Draw lines that are laid out for the width of the screen. Lines that are still too long are cut instead of
        wrapped.
        """
        for line in lines:
            safe = safe_drawing(line, keep="")
            shown = drawn_as_typed(safe)
            fits = shown is safe  # else a command in it became longer, and must not be cut
            self.console.print(shown, no_wrap=True, overflow="ellipsis" if fits else "ignore", crop=fits)

    def draw_table(
        self,
        heads: str,
        rows: "Iterable[Sequence[str | tuple[str, str] | Text]]",
        shrink: Mapping[int, int],
        right: frozenset[int] = frozenset(),
    ) -> None:
        """Draw rows of cells below column heads, as `table_lines` lays them out."""
        from interlock.cli.terminal.drawing import table_lines

        self.draw(*table_lines(heads, rows, width=self.console.width, shrink=shrink, right=right))

    def line(self, text: str = "") -> None:
        """Write one line that is never wrapped, so that it can be copied completely."""
        _write(sys.stdout, safe_line(text))

    def lines(self, text: str) -> None:
        """Write a text of several lines. None of them is wrapped."""
        _write(sys.stdout, safe_text(text))

    def document(self, text: str) -> None:
        """Write a document that another program may read: as it is, unless stdout is a terminal."""
        _write(sys.stdout, safe_text(text) if sys.stdout.isatty() else text)

    def advice(self, text: str) -> None:
        """Write one line that names a command, so that the user can type the command."""
        self.line(as_typed(text))

    def remark(self, text: str) -> None:
        _write(sys.stderr, as_typed(safe_line(text)))

    def progress(self, text: str = "") -> None:
        """Write a line to stderr in place of the one before, without a line feed. Without text, clear the line."""
        sys.stderr.write(f"{_CLEAR_LINE}{shortened_line(text, shutil.get_terminal_size().columns - 1)}")
        sys.stderr.flush()

    def json(self, value: Any) -> None:
        self.json_text(json.dumps(value, ensure_ascii=False, indent=2))

    def json_text(self, encoded: str) -> None:
        """Write encoded JSON as it is."""
        _write(sys.stdout, safe_json(encoded))

    def raw_json(self, encoded: bytes) -> None:
        """Write encoded JSON with indentation. Numbers keep their digits, and objects keep the
        order of their members.
        """
        import msgspec

        self.json_text(msgspec.json.format(encoded, indent=2).decode())

    def json_line(self, value: Any) -> None:
        self.json_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
        sys.stdout.flush()

    def failure(self, failed: Refused, *, in_stream: bool = False) -> None:
        """Report a failure. With `in_stream`, the JSON is written as a single line, because it follows other lines of
        JSON.
        """
        if self.as_json:
            details = {**failed.details, "hint": failed.hint} if failed.hint else failed.details
            body = {"error": failed.code, "message": failed.message, "details": details}
            (self.json_line if in_stream else self.json)(body)
            return
        is_coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        red, dim, plain = (_RED, _DIM, _PLAIN) if is_coloured else ("", "", "")
        _write(sys.stderr, f"{red}error:{plain} {as_typed(safe_line(failed.message))}")
        if failed.hint:
            _write(sys.stderr, f"{dim} hint:{plain} {as_typed(safe_text(failed.hint))}")


def _write(stream: TextIO, safe: str) -> None:
    stream.write(safe + "\n")


def confirm(question: str, *, default: bool = False) -> bool:
    """Ask a person a question on the terminal that is answered with yes or no."""
    import typer

    return typer.confirm(safe_text(question), default=default, err=True)


def prompt(question: str, *, default: str | None = None, is_hidden: bool = False) -> str:
    """Ask a person for a text on the terminal. `default` is shown and is the answer to an empty line. With `is_hidden`,
    what is typed is not shown.
    """
    import typer

    shown = f"{question} [{default}]" if default else question
    return str(typer.prompt(safe_text(shown), default=default, show_default=False, hide_input=is_hidden, err=True))


def shortened_line(text: str, width: int) -> str:
    """Return a text as one line of at most `width` characters."""
    flat = one_line(text)
    return flat if len(flat) <= width else flat[: max(0, width - 1)] + "…"


LogFormat = Literal["text", "json"]
REPEAT_S: Final = 60.0
KNOWN_MAX: Final = 256  # different lines within that time
_PAUSE: Final = re.compile(r"\b\d+(?:\.\d+)? m?s\b")  # the one part of a repeated line that differs


class LogHandler(logging.Handler):
    """A logging handler that writes records to a stream and counts repeated records."""

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
        """Return how often a record was repeated since it was last written. Return None if it must not be written again
        yet.
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
            return safe_json(json.dumps(fields, ensure_ascii=False))
        again = f" ({repeated} more times before)" if repeated else ""
        return f"{at} {record.levelname:<7} {record.name}: {as_typed(safe_line(message))}{again}" + (
            f"\n{safe_text(trace)}" if trace else ""
        )


def begin_logging(form: LogFormat) -> None:
    logging.getLogger().addHandler(LogHandler(form, sys.stderr))


def log_warnings(warnings: Iterable[object]) -> None:
    """Log the warnings about the configuration."""
    for each in warnings:
        logging.getLogger("interlock.config").warning("%s", each)
