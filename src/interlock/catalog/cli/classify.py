"""interlock tools classify [PATTERN]"""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

import typer

from interlock.approvals.cli.keys import KeyChoice, can_ask
from interlock.cli.command import Invocation
from interlock.cli.completion import tool_names
from interlock.cli.terminal.errors import BadUsage, Waits
from interlock.cli.terminal.output import confirm, prompt
from interlock.cli.terminal.text import count, first_sentence

if TYPE_CHECKING:
    from interlock.approvals.api import ClassProposal
    from interlock.ax.protocol.capability import ToolClass

CLASSES: "tuple[ToolClass, ...]" = ("read_only", "reversible", "irreversible")


def classes_of(texts: Sequence[str]) -> "dict[str, ToolClass]":
    """Parse arguments of the form TOOL=CLASS into a map from tools to classes."""
    classes: dict[str, ToolClass] = {}
    for text in texts:
        tool, _, word = text.rpartition("=")
        tool_class = next((known_class for known_class in CLASSES if known_class == word.replace("-", "_")), None)
        if not tool or tool_class is None:
            raise BadUsage("usage", f"{text} is not TOOL=CLASS", hint=f"a class is one of {', '.join(CLASSES)}")
        classes[tool] = tool_class
    return classes


def ask_classes(
    question: str,
    tools: Mapping[str, str],
    show: "Callable[[Mapping[str, ToolClass]], None]",
    remark: Callable[[str], None],
    *,
    nothing_done: str,
) -> "dict[str, ToolClass]":
    """Ask a person about the classes of tools, and return the classes that the person changed.

    `tools` maps the tools that may be changed to their names at their servers; such a name can be used if it is unique.
    `show` prints the table with the current classes. If the person chooses read-only and the tool's name contradicts
    it, the choice must be confirmed.
    """
    answers: dict[str, ToolClass] = {}
    while True:
        show(answers)
        answer = prompt(f"{question} yes, no, or TOOL=CLASS to change one", default="yes").strip()
        if answer.lower() in ("y", "yes"):
            return answers
        if answer.lower() in ("n", "no", "q"):
            raise Waits("not_decided", nothing_done)
        try:
            changed = classes_of(answer.replace(",", " ").split())
        except BadUsage as bad:
            remark(bad.message)
            continue
        for written, tool_class in changed.items():
            if (name := find_tool_name(written, tools)) is None:
                remark(f"there is no tool {written} whose class could be changed")
            elif may_be(tools[name], tool_class):
                answers[name] = tool_class


def find_tool_name(written: str, tools: Mapping[str, str]) -> str | None:
    if written in tools:
        return written
    like = [name for name, original in tools.items() if original == written]
    return like[0] if len(like) == 1 else None


def may_be(name: str, tool_class: "ToolClass") -> bool:
    """Return whether the person at the terminal wants a tool to have this class. Ask for confirmation only if the
    tool's name contradicts the class.
    """
    from interlock.drivers.protocol.binding.effects import find_contradiction

    doubt = find_contradiction(name, tool_class)
    return doubt is None or confirm(f"{name}: {doubt}. Is it read_only all the same?")


WHY = {
    "annotations": "the server says so",
    "name": "its name suggests it",
    "schema": "its arguments suggest it",
    "nothing": "nothing suggests less",
    "person": "you say so",
    "contract": "its contract says so",
}


def reason(by: str, question: str | None) -> str:
    return WHY.get(by, by) if question is None else f"? {question}"


SKIP = "skip"


def classify(
    invocation: Invocation,
    pattern: Annotated[str | None, typer.Argument(metavar="PATTERN", autocompletion=tool_names)] = None,
    *,
    classes: Annotated[list[str] | None, typer.Option("--class", metavar="TOOL=CLASS")] = None,
    rules: Annotated[bool, typer.Option("--rules")] = False,
    key: KeyChoice,
    yes: Annotated[bool, typer.Option("--yes", "-y")] = False,
) -> None:
    """Classify the tools that do not say what they do.

    It proposes a class for each of them, from annotations, names and arguments, takes your corrections and signs all
    of them with one signature; that is remembered as long as a definition stays the same. A tool that is said to only
    read, and whose name says otherwise, is asked about. Without a terminal it prints strict rules, for you to loosen.

    Options:
        pattern: A glob of names, or one name.
        classes: The class of a tool; may be repeated.
        rules: Print rules to paste instead of asking.
        yes: Sign what is proposed without asking.

    Examples:
        interlock tools classify
        interlock tools classify 'notes.*' --class notes.tidy=reversible
        interlock tools classify --yes --key ada --json
        interlock tools classify --rules >> interlock.toml
    """
    from interlock.approvals.api import PROPOSE_CLASSES, ClassProposals

    out = invocation.out
    proposals = invocation.node.call(PROPOSE_CLASSES).as_(ClassProposals)
    matching = [
        proposal
        for proposal in proposals.tools
        if pattern is None or fnmatchcase(proposal.tool, pattern) or proposal.tool.replace(".", "__") == pattern
    ]
    if (
        not matching
        and pattern is not None
        and (not any(sign in pattern for sign in "*?["))
        and can_ask()
        and not (rules or out.as_json)
    ):
        _ask(invocation, pattern, key)  # withheld, perhaps: the node knows
    elif not matching and not out.as_json:
        out.remark("every tool says what it does" if pattern is None else f"no tool to classify matches {pattern}")
    elif yes:
        _sign(invocation, proposals.aggregator_id, _said(matching, classes), key)
    elif out.as_json:
        unclassified = [
            {
                "name": proposal.tool,
                "description": proposal.description,
                "class": proposal.tool_class,
                "by": proposal.by,
                "question": proposal.question,
                "digest": proposal.digest,
            }
            for proposal in matching
        ]
        out.json({"unclassified": unclassified})
    elif rules or not can_ask():
        for line in _rules(matching):
            out.line(line)
    else:
        entries = _said(matching, classes)

        def show(chosen: "Mapping[str, ToolClass]") -> None:
            _draw(invocation, _changed(entries, chosen))

        nothing = "nothing was signed; their calls wait"
        corrected = ask_classes("Sign this?", _originals(entries), show, out.remark, nothing_done=nothing)
        _sign(invocation, proposals.aggregator_id, _changed(entries, corrected), key)


def _originals(proposals: "Sequence[ClassProposal]") -> dict[str, str]:
    return {proposal.tool: proposal.tool.rpartition(".")[2] for proposal in proposals}


def _said(proposals: "Sequence[ClassProposal]", texts: list[str] | None) -> "list[ClassProposal]":
    classes = classes_of(texts or [])
    tools = _originals(proposals)
    changed: dict[str, ToolClass] = {}
    for name, tool_class in classes.items():
        if (tool := find_tool_name(name, tools)) is None:
            raise BadUsage("usage", f"{name} is no tool to classify", hint="interlock tools classify --json lists them")
        changed[tool] = tool_class
    return _changed(proposals, changed)


def _changed(proposals: "Sequence[ClassProposal]", classes: "Mapping[str, ToolClass]") -> "list[ClassProposal]":
    from msgspec.structs import replace

    return [
        replace(proposal, tool_class=classes[proposal.tool], by="person", question=None)
        if proposal.tool in classes
        else proposal
        for proposal in proposals
    ]


def _draw(invocation: Invocation, proposals: "Sequence[ClassProposal]") -> None:
    rows = [
        (
            (proposal.tool, "bold"),
            proposal.tool_class,
            (reason(proposal.by, proposal.question), "yellow" if proposal.question else ""),
            (first_sentence(proposal.description or ""), "dim"),
        )
        for proposal in proposals
    ]
    invocation.out.draw_table("TOOL|CLASS|BECAUSE|ITS SERVER SAYS", rows, shrink={3: 12, 2: 16, 0: 16})


def _sign(
    invocation: Invocation,
    aggregator_id: str,
    proposals: "Sequence[ClassProposal]",
    key: KeyChoice,
) -> None:
    import uuid

    import msgspec

    from interlock.approvals.api import CLASSIFIED_MAX, SIGN_CLASSES, ClassifiedTools, SignClasses, ToolRuling
    from interlock.approvals.cli.signing import prove_classes

    entries = tuple(
        ToolRuling(tool=entry.tool, digest=entry.digest, tool_class=entry.tool_class) for entry in proposals
    )
    answers = []
    for start in range(0, len(entries), CLASSIFIED_MAX):
        part, id = entries[start : start + CLASSIFIED_MAX], str(uuid.uuid4())
        proof = prove_classes(aggregator_id, id, part, key)
        body = SignClasses(id=id, entries=part, proof=proof)
        answers.append(invocation.node.call(SIGN_CLASSES, body=body).as_(ClassifiedTools))
    done = ClassifiedTools(
        classified=tuple(entry for answer in answers for entry in answer.classified),
        left_out=tuple(entry for answer in answers for entry in answer.left_out),
    )
    out = invocation.out
    if out.as_json:
        out.json(msgspec.to_builtins(done))
        return
    out.line(f"{count(len(done.classified), 'tool')} classified, remembered for their definitions")
    for entry in done.left_out:
        out.line(f"left out: {entry.tool}: {entry.why}")


def _rules(tools: "Sequence[ClassProposal]") -> list[str]:
    from interlock.config.toml_text import toml_text

    lines = ["# What tools do that do not say it themselves. Strict; loosen what you know to be harmless."]
    for proposal in tools:
        gist = first_sentence(proposal.description or "")
        lines += ["", f"# {gist}" if gist else "# It has no description.", "[[tool]]"]
        lines += [f"match = {toml_text(proposal.tool)}", "mutable = true", "reversible = false"]
    return lines


def _ask(invocation: Invocation, name: str, key: KeyChoice) -> None:
    """Ask the person at the terminal to decide about one tool that is withheld or was denied, and show everything that
    the tool's server declares about it.
    """
    from interlock.approvals.api import DECIDE_APPROVAL, GET_APPROVAL, Approval, DecideApproval
    from interlock.approvals.cli.inbox import CLASSES, draw_preview, is_folded
    from interlock.approvals.cli.signing import prove
    from interlock.catalog.api import CLASSIFY_TOOL

    node, out = invocation.node, invocation.out
    raised = node.call(CLASSIFY_TOOL, name=name)
    approval = node.call(GET_APPROVAL, id=raised.as_(Approval).id).as_(Approval)
    draw_preview(invocation, approval)
    possible = (*approval.answers, SKIP)
    question, word = f"What is {approval.tool}? {', '.join(possible)}", ""
    while word not in possible:
        word = prompt(question, default=SKIP).strip().lower().replace("-", "_")
    question = "Parts of it are folded. Say so all the same?"
    if word != SKIP and is_folded(approval) and not confirm(question):
        word = SKIP
    if word == SKIP:
        out.advice(f"{approval.tool} waits: interlock approvals")
        return
    proof = prove(approval, key, choice=word)
    tool_class = next((known_class for known_class in CLASSES if known_class == word), None)
    body = DecideApproval(decision="approve", proof=proof, tool_class=tool_class)
    node.call(DECIDE_APPROVAL, id=approval.id, body=body)
    out.line(f"{approval.tool}: {word}, remembered")
