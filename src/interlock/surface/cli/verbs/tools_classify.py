"""interlock tools classify [PATTERN]"""

from typing import TYPE_CHECKING, Annotated

import typer

from interlock.surface.cli.command import Invocation, verb
from interlock.surface.cli.completion import tool_names
from interlock.surface.cli.keys.passphrases import FromDescriptor, can_ask

if TYPE_CHECKING:
    from interlock.operator_api.tools import Tool

SKIP = "skip"


def register(app: typer.Typer) -> None:
    verb(
        app,
        "classify",
        examples="""
        interlock tools classify
        interlock tools classify 'notes.*'
        interlock tools classify --rules >> interlock.toml
        """,
    )(classify)


def classify(
    invocation: Invocation,
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="PATTERN", help="A glob of names, or one name.", autocompletion=tool_names),
    ] = None,
    *,
    rules: Annotated[bool, typer.Option("--rules", help="Print rules to paste instead of asking.")] = False,
    key: Annotated[
        str | None, typer.Option("--key", metavar="NAME", help="Which of your keys signs.", show_default=False)
    ] = None,
    passphrase_fd: FromDescriptor = None,
) -> None:
    """Classify the tools that do not say what they do.

    It asks about each tool and signs your answer, which is remembered as long as the definition stays the same.
    Without a terminal it prints strict rules for the configuration, for you to loosen.
    """
    from interlock.operator_api.tools import Tools

    out = invocation.out
    found = [tool for tool in invocation.node.get("tools").as_(Tools).tools if _is_meant(tool, pattern)]
    if out.as_json:
        out.json({"unclassified": [{"name": tool.name, "description": tool.description} for tool in found]})
    elif not found and pattern is not None and _is_name(pattern) and can_ask() and not rules:
        _ask(invocation, pattern, key, passphrase_fd)  # withheld, perhaps: the node knows
    elif not found:
        out.remark("every tool says what it does" if pattern is None else f"no tool to classify matches {pattern}")
    elif rules or not can_ask():
        for line in _rules(found):
            out.line(line)
    else:
        for tool in found:
            _ask(invocation, tool.name, key, passphrase_fd)


def _is_meant(tool: "Tool", pattern: str | None) -> bool:
    from fnmatch import fnmatchcase

    return bool(tool.unclassified) and (pattern is None or fnmatchcase(tool.name, pattern) or tool.alias == pattern)


def _is_name(pattern: str) -> bool:
    return not any(sign in pattern for sign in "*?[")


def _rules(tools: "list[Tool]") -> list[str]:
    from interlock.config.toml_text import toml_text
    from interlock.surface.cli.terminal.text import first_sentence

    lines = ["# What tools do that do not say it themselves. Strict; loosen what you know to be harmless."]
    for tool in tools:
        gist = first_sentence(tool.description or "")
        lines += ["", f"# {gist}" if gist else "# It has no description.", "[[tool]]"]
        lines += [f"match = {toml_text(tool.name)}", "mutable = true", "reversible = false"]
    return lines


def _ask(invocation: Invocation, name: str, key: str | None, passphrase_fd: int | None) -> None:
    from interlock.operator_api.approvals import Approval
    from interlock.operator_api.requests import DecideApproval
    from interlock.surface.cli.keys.sign_decision import prove
    from interlock.surface.cli.render.approval import is_folded
    from interlock.surface.cli.terminal.text import one_line
    from interlock.surface.cli.verbs.approvals import draw_preview
    from interlock.surface.cli.verbs.approve import CLASSES

    node, out = invocation.node, invocation.out
    raised = node.post("tools", name, "classify")
    answer = node.get("approvals", raised.as_(Approval).id, under="")
    one = answer.as_(Approval)
    draw_preview(invocation, answer)
    said = _ask_class(f"What is {one_line(one.tool)}? {', '.join(one.answers)}, {SKIP}", (*one.answers, SKIP))
    if said != SKIP and is_folded(one) and not typer.confirm("Parts of it are folded. Say so all the same?", err=True):
        said = SKIP
    if said == SKIP:
        out.line(f"{one_line(one.tool)} waits: interlock approvals")
        return
    proof = prove(answer, said=said, key=key, passphrase_fd=passphrase_fd)
    tool_class = next((known for known in CLASSES if known == said), None)
    body = DecideApproval(decision="approve", proof=proof, tool_class=tool_class)
    node.post("approvals", one.id, under="", body=body)
    out.line(f"{one_line(one.tool)}: {said}, remembered")


def _ask_class(question: str, possible: tuple[str, ...]) -> str:
    while True:
        said = str(typer.prompt(question, default=SKIP, err=True)).strip().lower().replace("-", "_")
        if said in possible:
            return said
