"""What a tool's MCP annotations say of its effects, in the fields of a contract (AIP-author-5), and what is proposed to
the person who classifies it.

Annotations are a server's word: they are read in the cautious direction, and only where they are real booleans. A name
is less than a word: it makes a proposal, never an effect.
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from interlock.ax.protocol.capability import ToolClass, maybe_changing_argument, maybe_changing_verb, maybe_class
from interlock.wire.jsontext.pointer import quoted

GATE: Final = "policy:gate"  # the class and gate.mode decide; AIP-author-5
UNANNOTATED: Final = "policy:unannotated"  # its effects are not declared: a person says it once

SuggestedBy = Literal["annotations", "name", "schema", "nothing"]

ANNOTATION_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


class Effects(msgspec.Struct, frozen=True, kw_only=True):
    mutates: tuple[str, ...] = ()
    approval: str = "auto"
    risk_level: int = 0
    idempotent: bool = False


def effects_of(annotations: object, driver_id: str, tool_class: ToolClass | None = None) -> Effects:
    """Return the effects of a tool with these annotations.

    `annotations` come from tools/list; a value that is not an object is ignored. `tool_class` is the class that a
    person chose, and takes precedence over the annotations.
    """
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


class ProposedClass(msgspec.Struct, frozen=True, kw_only=True):
    """`by`: what suggests the class; nothing does where it is the strictest for want of anything else. `question`:
    what a person should look at, because two of them contradict each other."""

    tool_class: ToolClass
    by: SuggestedBy
    question: str | None = None


def proposed_class(tool: Mapping[str, object]) -> ProposedClass:
    """Propose a class for a tool of tools/list.

    The annotations decide, unless the tool's name suggests a stronger effect. Without annotations the verbs of the name
    decide, unless the arguments contradict them.
    """
    listed_name = tool.get("name")
    name = listed_name if isinstance(listed_name, str) else ""
    by_name = maybe_class(name)
    annotated = _Hints.read(tool.get("annotations")).tool_class
    if annotated is not None:
        question = maybe_question(name, annotated)
        if question is None:
            return ProposedClass(tool_class=annotated, by="annotations")
        return contradicted(name, question)
    if by_name == "read_only":
        schema = tool.get("inputSchema")
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        argument = maybe_changing_argument([*properties] if isinstance(properties, Mapping) else [])
        if argument is not None:
            question = f"its name says that it only reads, and it takes {quoted(argument)}"
            return ProposedClass(tool_class="irreversible", by="schema", question=question)
    return ProposedClass(tool_class=by_name or "irreversible", by="name" if by_name is not None else "nothing")


def contradicted(name: str, question: str) -> ProposedClass:
    """Propose the stricter class for a tool that is declared read-only although its name suggests a change."""
    return ProposedClass(tool_class=maybe_class(name) or "irreversible", by="name", question=question)


def maybe_question(name: str, tool_class: ToolClass) -> str | None:
    """Return the question to ask if a tool is to be read-only and its name suggests a change, or None."""
    verb = maybe_changing_verb(name) if tool_class == "read_only" else None
    return None if verb is None else f"it is said to only read, and its name says {verb!r}"


class _Hints(msgspec.Struct, frozen=True, kw_only=True):
    read_only: bool | None
    destructive: bool | None
    idempotent: bool | None
    open_world: bool | None

    @classmethod
    def read(cls, annotations: object) -> "_Hints":
        hints = annotations if isinstance(annotations, Mapping) else {}
        read_only, destructive, idempotent, open_world = (
            each if isinstance(each, bool) else None for each in map(hints.get, ANNOTATION_HINTS)
        )
        return cls(read_only=read_only, destructive=destructive, idempotent=idempotent, open_world=open_world)

    @property
    def tool_class(self) -> ToolClass | None:
        """Return the class that the hints declare, or None if they do not say what the tool changes.

        MCP's default for a tool that is not read-only is destructive.
        """
        if self.destructive is True or (self.read_only is False and self.destructive is None):  # AIP-author-5
            return "irreversible"
        if self.read_only is True:
            return "read_only"
        return "reversible" if self.destructive is False else None
