"""Text for a terminal: escapes untrusted text, formats quantities, and spells commands in the form in which the user
can type them.

A command in a message can be copied and run, because it contains the name under which this program was started.
"""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from rich.text import Text

Item = TypeVar("Item")

# A letter alone before the mark is an abbreviation: "e.g. Berlin" goes on.
_SENTENCE_END = re.compile(r"(?<![ .(]\w)[.!?](?= +[^a-z])")
# Explicit direction marks can make a line show something other than what it holds.
_DIRECTION_MARKS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def safe_text(untrusted: str, *, keep: str = "\n\t") -> str:
    """Escape control characters in untrusted text, which could move the cursor, change colours or reverse a line.
    Characters in `keep` stay.

    `Output` does this to all that a command writes, so a command need not. Done twice, it changes nothing.
    """
    unsafe = _find_unsafe(untrusted, keep)
    return untrusted.translate({ord(c): _escape_sequence(c) for c in unsafe}) if unsafe else untrusted


def safe_line(untrusted: str) -> str:
    """Return untrusted text as one line without control characters. Line breaks become spaces."""
    return safe_text(" ".join(untrusted.splitlines()), keep="\t")


def safe_json(encoded: str) -> str:
    """Escape control characters in encoded JSON as JSON does, so that its value is the same."""
    unsafe = _find_unsafe(encoded, "\n")
    return encoded.translate({ord(c): json.dumps(c)[1:-1] for c in unsafe}) if unsafe else encoded


def safe_drawing(untrusted: "Text", *, keep: str = "\n\t") -> "Text":
    """Return a styled text with control characters escaped, as `safe_text` does. A line break that is not kept becomes
    a space.
    """
    unsafe = _find_unsafe(untrusted.plain, keep)
    if not unsafe:
        return untrusted
    pattern = re.compile(f"[{re.escape(''.join(unsafe))}]")
    return _replaced(untrusted, pattern, lambda c: " " if c == "\n" else _escape_sequence(c))


def _find_unsafe(text: str, keep: str) -> set[str]:
    if text.isprintable() and _DIRECTION_MARKS.isdisjoint(text):
        return set()
    return {c for c in set(text) if c not in keep and (c in _DIRECTION_MARKS or not c.isprintable())}


def _escape_sequence(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def one_line(untrusted: str) -> str:
    """Return untrusted text as one line, in which one space stands for any whitespace."""
    return safe_text(" ".join(untrusted.split()), keep="")


def first_sentence(untrusted: str) -> str:
    """Return the first sentence of a description's first line, for a table."""
    for line in untrusted.splitlines():
        if line.strip():
            flat = one_line(line)
            end = _SENTENCE_END.search(flat)
            return flat[: end.end()] if end else flat
    return ""


def mcp_url(url: str) -> str:
    """Return the URL of a node's MCP endpoint. The path of the endpoint is appended unless `url` has a path."""
    parts = urlsplit(url)
    return parts._replace(path="/mcp").geturl() if parts.path in ("", "/") else url


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def repeats(items: Iterable[Item], alike: Callable[[Item], object]) -> Iterator[tuple[int, Item]]:
    """Group neighbouring items that are alike. Yield the length and the last item of each group."""
    for _, group in groupby(items, alike):
        same = list(group)
        yield len(same), same[-1]


def duration(seconds: float) -> str:
    """Format a time span with at most two units: 12 s, 3 min, 4 h 10 min, 2 d 3 h."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 86400:
        hours, minutes = whole // 3600, whole % 3600 // 60
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = whole // 86400, whole % 86400 // 3600
    return f"{days} d {hours} h" if hours else f"{days} d"


def latency(milliseconds: float) -> str:
    if milliseconds < 10:
        return f"{milliseconds:.1f} ms"
    if milliseconds < 10_000:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:.0f} s"


def moment(rfc3339: str | None) -> datetime | None:
    if not rfc3339:
        return None
    try:
        parsed = datetime.fromisoformat(rfc3339)
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def since(rfc3339: str | None, now: datetime) -> str | None:
    at = moment(rfc3339)
    return duration((now - at).total_seconds()) if at else None


def local_time(rfc3339: str, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    at = moment(rfc3339)
    return at.astimezone().strftime(form) if at else one_line(rfc3339)


NAME: Final = "interlock"
VARIABLE: Final = "INTERLOCK_PROGRAM"  # set by a script that starts it under another name, with its own configuration
_COMMAND: Final = re.compile(rf"(?<![\w./-]){NAME} (?=[a-z]|--[a-z])")


@cache
def program() -> str:
    """Return the command that starts this program: `interlock`, or another form if a shell would not find it under that
    name.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return shlex.quote(named)
    started = Path(sys.argv[0])
    if started.name != NAME or not started.is_file():
        return NAME
    installed = shutil.which(NAME)
    if installed is not None and Path(installed).samefile(started):
        return NAME
    folder = Path.cwd()
    return shlex.quote(str(started.relative_to(folder) if started.is_relative_to(folder) else started))


def as_typed(text: str) -> str:
    """Rewrite the commands in a text so that the user can type them: each begins as `program` returns it."""
    name = program()
    return text if name == NAME else _COMMAND.sub(lambda _: f"{name} ", text)


def drawn_as_typed(text: "Text") -> "Text":
    """Rewrite the commands in a styled text so that the user can type them, as `as_typed` does."""
    name = program()
    return text if name == NAME else _replaced(text, _COMMAND, lambda _: f"{name} ")


def _replaced(text: "Text", pattern: re.Pattern[str], replace: Callable[[str], str]) -> "Text":
    """Replace each match of a pattern in a styled text. Return the same text if there is none."""
    if pattern.search(text.plain) is None:
        return text
    from rich.text import Text

    pieces, start = Text(style=text.style, end=text.end), 0
    for match in pattern.finditer(text.plain):
        pieces.append_text(text[start : match.start()]).append(replace(match[0]))
        start = match.end()
    return pieces.append_text(text[start:])


def command_line(*words: str, config: str | None, data: str | None) -> str:
    """Return a command line of this program that addresses the node with this configuration or data folder. It can be
    pasted into a shell.
    """
    if config is None and VARIABLE not in os.environ:
        config = os.environ.get("INTERLOCK_CONFIG")
    named = [*(("--config", config) if config else ()), *(("--data", data) if data else ())]
    return f"{program()} {shlex.join([*words, *named])}"
