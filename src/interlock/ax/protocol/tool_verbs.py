"""What the name of a tool says of its effects: the verbs in it, by whole words, however the name is written.

A name is no promise. It makes a proposal for the person who classifies the tool, and raises a question where something
else says that the tool only reads.
"""

import re
from collections.abc import Sequence
from typing import Final

from interlock.ax.protocol.capability import ToolClass

NAME_CHARS_MAX: Final = 1000
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_JOINING: Final = frozenset(("and", "or", "then"))

# fmt: off
READING: Final = frozenset((
    "check", "count", "describe", "diff", "exists", "fetch", "find", "get", "help", "history", "info", "inspect",
    "list", "log", "lookup", "ls", "peek", "ping", "preview", "read", "schema", "search", "show", "stat", "stats",
    "status", "time", "tree", "validate", "version", "view", "whoami",
))
ADDING: Final = frozenset(("add", "append", "branch", "clone", "copy", "create", "insert", "mkdir", "new", "star"))
LOSING: Final = frozenset((
    "apply", "archive", "call", "cancel", "clear", "close", "commit", "delete", "deploy", "destroy", "drop", "edit",
    "email", "eval", "exec", "execute", "kill", "merge", "migrate", "modify", "move", "overwrite", "patch", "pay",
    "post", "publish", "purge", "push", "put", "remove", "rename", "replace", "reset", "revoke", "rm", "run", "send",
    "set", "shutdown", "start", "stop", "submit", "terminate", "transfer", "truncate", "update", "upload", "wipe",
    "write",
))
_CHANGING_ARGUMENTS: Final = frozenset((
    "append", "commit", "confirm", "content", "contents", "delete", "force", "overwrite", "recursive",
))
# fmt: on


def words_of(name: str) -> tuple[str, ...]:
    """The words of snake_case, camelCase, kebab-case and dotted names, in lower case."""
    return tuple(word.lower() for word in _WORD.findall(name[:NAME_CHARS_MAX]))


def maybe_class(name: str) -> ToolClass | None:
    """What the verbs of a name promise, in the cautious direction; None: it has none that is known."""
    words = set(words_of(name))
    if words & LOSING:
        return "irreversible"
    if words & ADDING:
        return "reversible"
    return "read_only" if words & READING else None


def maybe_changing_verb(name: str) -> str | None:
    """The verb by which a name says that the tool changes something. `get_post` reads a post; `get_and_post` posts."""
    words = words_of(name)
    known = [position for position, word in enumerate(words) if word in READING or word in ADDING or word in LOSING]
    for position in known:
        is_leading = position == known[0] or words[position - 1] in _JOINING
        if is_leading and words[position] not in READING:
            return words[position]
    return None


def maybe_changing_argument(arguments: Sequence[str]) -> str | None:
    """The argument by whose name a tool changes something."""
    return next((name for name in arguments if not _CHANGING_ARGUMENTS.isdisjoint(words_of(name))), None)
