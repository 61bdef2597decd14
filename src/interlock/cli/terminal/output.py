"""Where a command's words go: results to stdout, remarks and errors to stderr.

With --json, stdout holds JSON and nothing else, and an error is JSON there too. Colours appear only on a terminal and
never with NO_COLOR. rich is imported when something is drawn, so that --json and short answers stay quick.
"""

import io
import json
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

from interlock.cli.terminal.program import as_typed, drawn_as_typed
from interlock.cli.terminal.text import one_line, printable
from interlock.wire.refusal import Refused

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

WIDTH_WITHOUT_TERMINAL = 4000  # wide enough that nothing a filter looks for is cut

_RED = "\x1b[1;31m"
_DIM = "\x1b[2m"
_PLAIN = "\x1b[0m"


class Output:
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
            self._console = _console_on(sys.stdout)
        return self._console

    def draw(self, *lines: "Text") -> None:
        """Draw lines that were laid out for the screen. A very narrow screen cuts them instead of wrapping them."""
        for line in lines:
            shown = drawn_as_typed(line)
            fits = shown is line  # else a command in it became longer, and must not be cut
            self.console.print(shown, no_wrap=True, overflow="ellipsis" if fits else "ignore", crop=fits)

    def line(self, text: str = "") -> None:
        """Write one line that is never wrapped, so that it can be copied completely."""
        _write(sys.stdout, text)

    def advice(self, text: str) -> None:
        """Write one line that names a command, in the form in which it is typed here."""
        self.line(as_typed(text))

    def remark(self, text: str) -> None:
        _write(sys.stderr, as_typed(text))

    def json(self, value: Any) -> None:
        _write(sys.stdout, json.dumps(value, ensure_ascii=False, indent=2))

    def raw_json(self, encoded: bytes) -> None:
        """JSON as it came, indented; numbers keep their digits and objects their order."""
        import msgspec

        _write(sys.stdout, msgspec.json.format(encoded, indent=2).decode())

    def json_line(self, value: Any) -> None:
        _write(sys.stdout, json.dumps(value, ensure_ascii=False, separators=(",", ":")))
        sys.stdout.flush()

    def failure(self, failed: Refused, *, in_stream: bool = False) -> None:
        """Report a failure. With `in_stream` it is one line, to follow other lines of JSON."""
        if self.as_json:
            details = {**failed.details, "hint": failed.hint} if failed.hint else failed.details
            body = {"error": failed.code, "message": failed.message, "details": details}
            (self.json_line if in_stream else self.json)(body)
            return
        red, dim, plain = (_RED, _DIM, _PLAIN) if colours_on(sys.stderr) else ("", "", "")
        _write(sys.stderr, f"{red}error:{plain} {as_typed(printable(failed.message))}")
        if failed.hint:
            _write(sys.stderr, f"{dim} hint:{plain} {as_typed(printable(failed.hint))}")


def colours_on(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _console_on(stream: TextIO) -> "Console":
    from rich.console import Console

    class Pipe(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # the command's frame ends it, as for every other write

    wide = None if stream.isatty() or os.environ.get("COLUMNS") else WIDTH_WITHOUT_TERMINAL
    return Pipe(file=stream, markup=False, highlight=False, emoji=False, width=wide)


def _write(stream: TextIO, text: str) -> None:
    stream.write(text + "\n")


def shortened_line(text: str, width: int) -> str:
    """Return the text as one line of at most `width` characters."""
    flat = one_line(text)
    return flat if len(flat) <= width else flat[: max(0, width - 1)] + "…"
