"""What a tool's MCP annotations say of its effects, in the fields of a contract (AIP-author-5), and what is proposed to
the person who classifies it.

Annotations are a server's word: they are read in the cautious direction, and only where they are real booleans. A name
is less than a word: it makes a proposal, never an effect.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from interlock.protocol.ax.capability import ToolClass
from interlock.protocol.ax.names import normalise

GATE: Final = "policy:gate"  # the class and gate.mode decide; AIP-author-5
UNANNOTATED: Final = "policy:unannotated"  # its effects are not declared: a person says it once

ANNOTATION_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


class Effects(msgspec.Struct, frozen=True, kw_only=True):
    mutates: tuple[str, ...] = ()
    approval: str = "auto"
    risk_level: int = 0
    idempotent: bool = False


def effects_of(annotations: object, driver_id: str, tool_class: ToolClass | None = None) -> Effects:
    """`annotations` as decoded from tools/list; whatever is no object says nothing. `tool_class` is what a person said,
    and goes before them."""
    hints = _Hints.read(annotations)
    tool_class = tool_class or hints.tool_class
    mutates = (f"external:{driver_id}",)
    if tool_class is None:  # AIP-author-5
        return Effects(mutates=mutates, approval=UNANNOTATED, risk_level=2)
    idempotent = hints.idempotent is True and hints.tool_class is not None  # AIP-author-5
    if tool_class == "read_only":  # AIP-author-5
        return Effects(idempotent=idempotent)
    risk = 3 if tool_class == "irreversible" else 1 if hints.open_world is False else 2  # AIP-author-5
    return Effects(mutates=mutates, approval=GATE, risk_level=risk, idempotent=idempotent)


def proposed_class(tool: Mapping[str, object]) -> ToolClass:
    """What to propose for a tool of tools/list: what its annotations say, else what the verbs of its name promise."""
    said = _Hints.read(tool.get("annotations")).tool_class
    if said is not None:
        return said
    name = tool.get("name")
    words = set(normalise(name).replace("-", "_").split("_")) if isinstance(name, str) else set()
    if words & _LOSING:
        return "irreversible"
    if words & _ADDING:
        return "reversible"
    return "read_only" if words & _READING else "irreversible"


class _Hints(msgspec.Struct, frozen=True, kw_only=True):
    read_only: bool | None
    destructive: bool | None
    idempotent: bool | None
    open_world: bool | None

    @classmethod
    def read(cls, annotations: object) -> "_Hints":
        given = annotations if isinstance(annotations, Mapping) else {}
        read_only, destructive, idempotent, open_world = (
            each if isinstance(each, bool) else None for each in map(given.get, ANNOTATION_HINTS)
        )
        return cls(read_only=read_only, destructive=destructive, idempotent=idempotent, open_world=open_world)

    @property
    def tool_class(self) -> ToolClass | None:
        """None: nothing is said of what it changes. MCP's default for a tool that is not read-only is destructive."""
        if self.destructive is True or (self.read_only is False and self.destructive is None):  # AIP-author-5
            return "irreversible"
        if self.read_only is True:
            return "read_only"
        return "reversible" if self.destructive is False else None


# fmt: off
_READING: Final = frozenset((
    "check", "count", "describe", "diff", "exists", "fetch", "find", "get", "help", "history", "info", "inspect",
    "list", "log", "lookup", "ls", "peek", "ping", "preview", "read", "schema", "search", "show", "stat", "stats",
    "status", "time", "tree", "validate", "version", "view", "whoami",
))
_ADDING: Final = frozenset(("add", "append", "branch", "clone", "copy", "create", "insert", "mkdir", "new", "star"))
_LOSING: Final = frozenset((
    "apply", "archive", "call", "cancel", "clear", "close", "commit", "delete", "deploy", "destroy", "drop", "edit",
    "email", "eval", "exec", "execute", "kill", "merge", "migrate", "modify", "move", "overwrite", "patch", "pay",
    "post", "publish", "purge", "push", "put", "remove", "rename", "replace", "reset", "revoke", "rm", "run", "send",
    "set", "shutdown", "start", "stop", "submit", "terminate", "transfer", "truncate", "update", "upload", "wipe",
    "write",
))
# fmt: on
