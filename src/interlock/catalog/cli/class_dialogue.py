"""The dialogue in which a person says what tools do: one table, corrections, one answer."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import typer

from interlock.cli.terminal.errors import BadUsage, Waits
from interlock.cli.terminal.text import one_line

if TYPE_CHECKING:
    from interlock.ax.protocol.capability import ToolClass

CLASSES: "tuple[ToolClass, ...]" = ("read_only", "reversible", "irreversible")


def classes_of(texts: Sequence[str]) -> "dict[str, ToolClass]":
    """TOOL=CLASS, each."""
    found: dict[str, ToolClass] = {}
    for text in texts:
        tool, _, said = text.rpartition("=")
        tool_class = next((one for one in CLASSES if one == said.replace("-", "_")), None)
        if not tool or tool_class is None:
            raise BadUsage("usage", f"{text} is not TOOL=CLASS", hint=f"a class is one of {', '.join(CLASSES)}")
        found[tool] = tool_class
    return found


def ask_classes(
    question: str,
    tools: Mapping[str, str],
    show: "Callable[[Mapping[str, ToolClass]], None]",
    remark: Callable[[str], None],
    *,
    nothing_done: str,
) -> "dict[str, ToolClass]":
    """What the person changed, once they agree. `tools`: what may be changed, each with its name at its server, which
    does where it is unique. `show` draws the table as it then is. A read-only class that the name contradicts is
    asked about once more."""
    said: dict[str, ToolClass] = {}
    while True:
        show(said)
        answer = typer.prompt(f"{question} yes, no, or TOOL=CLASS to change one", default="yes", err=True).strip()
        if answer.lower() in ("y", "yes"):
            return said
        if answer.lower() in ("n", "no", "q"):
            raise Waits("not_decided", nothing_done)
        try:
            changed = classes_of(answer.replace(",", " ").split())
        except BadUsage as bad:
            remark(bad.message)
            continue
        for given, tool_class in changed.items():
            name = maybe_tool(given, tools)
            if name is None:
                remark(f"there is no tool {one_line(given)} whose class could be changed")
            elif may_be(tools[name], tool_class):
                said[name] = tool_class


def maybe_tool(given: str, tools: Mapping[str, str]) -> str | None:
    if given in tools:
        return given
    like = [name for name, original in tools.items() if original == given]
    return like[0] if len(like) == 1 else None


def may_be(name: str, tool_class: "ToolClass") -> bool:
    """Whether the person stays with a class that the name of the tool contradicts."""
    from interlock.drivers.protocol.binding.effects import maybe_question

    doubt = maybe_question(name, tool_class)
    return doubt is None or typer.confirm(f"{one_line(name)}: {doubt}. Is it read_only all the same?", err=True)


WHY = {
    "annotations": "the server says so",
    "name": "its name suggests it",
    "schema": "its arguments suggest it",
    "nothing": "nothing suggests less",
    "person": "you say so",
    "contract": "its contract says so",
}


def reason(by: str, question: str | None) -> str:
    return WHY.get(by, by) if question is None else f"? {one_line(question)}"
