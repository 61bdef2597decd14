"""What this program is called where it was started, so that a command that is named can be pasted there."""

import os
import re
import shlex
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.text import Text

NAME: Final = "interlock"
VARIABLE: Final = "INTERLOCK_PROGRAM"  # set by a script that starts it under another name, with its own configuration
_COMMAND: Final = re.compile(rf"(?<![\w./-]){NAME} (?=[a-z]|--[a-z])")


@cache
def program() -> str:
    """Return the command that starts this program: `interlock`, unless a shell would not find it by that name."""
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
    """Return the text with every command in the form in which it is typed here."""
    name = program()
    return text if name == NAME else _COMMAND.sub(lambda _: f"{name} ", text)


def drawn_as_typed(text: "Text") -> "Text":
    """Do the same as `as_typed` for a text with styles."""
    name = program()
    if name == NAME or _COMMAND.search(text.plain) is None:
        return text
    from rich.text import Text

    pieces, start = Text(style=text.style, end=text.end), 0
    for match in _COMMAND.finditer(text.plain):
        pieces.append_text(text[start : match.start()]).append(f"{name} ")
        start = match.end()
    return pieces.append_text(text[start:])


def command_line(*words: str, config: str | None, data: str | None) -> str:
    """Return a command of this program for the node with this configuration, ready to be pasted."""
    if config is None and VARIABLE not in os.environ:
        config = os.environ.get("INTERLOCK_CONFIG")
    named = [*(("--config", config) if config else ()), *(("--data", data) if data else ())]
    return f"{program()} {shlex.join([*words, *named])}"
