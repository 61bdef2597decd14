"""A server's tools as contracts of a driver: which exist already, which are made, what a person is asked about each.

`propose` is what is shown and asked; `compose` makes the texts of a driver's folder from what was answered. Nothing is
looked for and nothing is written here. A contract that exists is reused where the tool keeps it; where it would with
other names of arguments, these are proposed and marked for review (AIP-author-3).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from interlock.ax.protocol.capability import ToolClass
from interlock.drivers.protocol.authoring.draft import (
    DraftedDriver,
    contract_id_of,
    draft_contracts,
    draft_driver,
    proposed_renames,
)
from interlock.drivers.protocol.binding.effects import maybe_question, proposed_class
from interlock.drivers.protocol.binding.match import RISK_IRREVERSIBLE, Bound, match
from interlock.drivers.protocol.files.contract import TOOL_FILE
from interlock.drivers.protocol.files.driver import DRIVER_FILE
from interlock.drivers.protocol.files.frontmatter import frontmatter_text, read_frontmatter
from interlock.drivers.protocol.model import Contract
from interlock.drivers.protocol.problems import Problem
from interlock.wire.jsontext.pointer import quoted

OWN_TOOLS: Final = "tools"  # the folder of a driver's own contracts
ASKED: Final = "always"

Said = Literal["annotations", "name", "schema", "nothing", "person", "contract"]
SUGGESTED: Final = ("name", "schema", "nothing")  # only suggests a class: somebody has to accept it
Tool = Mapping[str, Any]


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """A contract that is there. `text`: it is the driver's own, at `path` in its folder."""

    contract: Contract
    path: str | None = None
    text: str | None = None


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """One tool, as a person is asked about it. `by`: who says the class; a name only suggests it. `question`: what
    contradicts it."""

    tool_name: str
    contract_id: str
    tool_class: ToolClass
    by: Said
    is_new: bool = True
    question: str | None = None


class Composed(msgspec.Struct, frozen=True, kw_only=True):
    driver: DraftedDriver
    files: Mapping[str, str]  # by their path in the folder
    reviews: tuple[str, ...] = ()  # what a person should look at


def propose(
    tools: Sequence[Tool],
    driver_id: str,
    *,
    wanted: Mapping[str, str | None] | None = None,
    known: Mapping[str, Known] | None = None,
    classes: Mapping[str, ToolClass] | None = None,
) -> tuple[Proposal, ...] | tuple[Problem, ...]:
    """Propose a contract for each tool, or return the problems that prevent it.

    `wanted` maps the tools to wrap to the ids of their contracts; None means all tools.
    """
    listed = {str(tool.get("name")): tool for tool in tools}
    unknown = [name for name in (*(wanted or ()), *(classes or ())) if name not in listed]
    if unknown:
        there = ", ".join(map(quoted, list(listed)[:20])) or "none"
        return tuple(_problem("tool_unknown", f"the server has no tool {quoted(each)}", there) for each in unknown)
    proposals = []
    for name, tool in listed.items():
        if wanted is not None and name not in wanted:
            continue
        contract_id = (wanted or {}).get(name) or contract_id_of(driver_id, name)
        standing = (known or {}).get(contract_id)
        proposals.append(_proposal(name, tool, contract_id, standing, (classes or {}).get(name)))
    return tuple(proposals)


def _proposal(
    name: str, tool: Tool, contract_id: str, standing: Known | None, chosen_class: ToolClass | None
) -> Proposal:
    proposed = proposed_class(tool)
    if standing is not None:
        tool_class = _class_of(standing.contract)
        return Proposal(tool_name=name, contract_id=contract_id, tool_class=tool_class, by="contract", is_new=False)
    if chosen_class is not None:
        question = maybe_question(name, chosen_class)
        return Proposal(
            tool_name=name, contract_id=contract_id, tool_class=chosen_class, by="person", question=question
        )
    return Proposal(
        tool_name=name,
        contract_id=contract_id,
        tool_class=proposed.tool_class,
        by=proposed.by,
        question=proposed.question,
    )


def compose(
    data: Mapping[str, Any],
    tools: Sequence[Tool],
    proposals: Sequence[Proposal],
    *,
    known: Mapping[str, Known] | None = None,
    body: str = "",
    asks: bool | frozenset[str] = False,
) -> Composed | tuple[Problem, ...]:
    """Compose the files of a driver from its proposals, or return the problems that prevent it.

    `data` is the frontmatter without implements. A class that only a tool's name suggests is not written, so that the
    contract stays open (AIP-author-5). `asks` names the tools that need a confirmation before each call; True means
    all.
    """
    known = known or {}
    listed = {str(tool.get("name")): tool for tool in tools}
    fresh = [each for each in proposals if each.contract_id not in known]
    # Where annotations and name contradict each other, the stricter class stands until a person says otherwise.
    is_written = [each.by == "person" or (each.by == "name" and each.question is not None) for each in fresh]
    classes = {each.tool_name: each.tool_class for each, written in zip(fresh, is_written, strict=True) if written}
    ids = {each.tool_name: each.contract_id for each in fresh}
    drafted = draft_contracts(
        [listed[each.tool_name] for each in fresh], str(data.get("id")), contract_ids=ids, classes=classes
    )
    if drafted.problems:
        return drafted.problems
    files: dict[str, str] = {}
    bindings: dict[str, dict[str, Any]] = {}
    reviews: list[str] = []
    problems: list[Problem] = []
    for each in drafted.drafted:
        path = f"{OWN_TOOLS}/{each.contract.id}/{TOOL_FILE}"
        files[path] = _question(each.text) if asks is True or each.tool_name in (asks or ()) else each.text
        bindings[each.tool_name] = each.binding(f"./{path}")
    for proposal in proposals:
        standing = known.get(proposal.contract_id)
        if standing is None:
            continue
        fitted = _fit(data, listed[proposal.tool_name], proposal, standing)
        if isinstance(fitted, Problem):
            problems.append(fitted)
            continue
        binding, review = fitted
        bindings[proposal.tool_name] = binding
        reviews += review
        if standing.path is not None and standing.text is not None:
            files[standing.path] = standing.text
    if problems:
        return tuple(problems)
    reviewed_body = f"{body.rstrip()}\n\n" + "\n".join(f"Review: {each}" for each in reviews) if reviews else body
    driver = draft_driver({**data, "implements": [bindings[each.tool_name] for each in proposals]}, reviewed_body)
    if not isinstance(driver, DraftedDriver):
        return driver
    return Composed(driver=driver, files={**files, DRIVER_FILE: driver.text}, reviews=tuple(reviews))


def _question(text: str) -> str:
    front = read_frontmatter(text.encode(), TOOL_FILE).value
    return text if front is None else frontmatter_text({**front.data, "approval": ASKED})


def _fit(
    data: Mapping[str, Any], tool: Tool, proposal: Proposal, standing: Known
) -> tuple[dict[str, Any], list[str]] | Problem:
    contract = standing.contract
    plain = {
        "tool": f"./{standing.path}" if standing.path is not None else contract.id,
        "version": f"^{contract.version}",
        "metadata": {"mcp": {"tool_name": proposal.tool_name}},
    }
    fault = _fault(data, plain, contract, tool)
    if fault is None:
        return plain, []
    arguments = tool.get("inputSchema")
    renames = proposed_renames(contract.inputs, arguments) if isinstance(arguments, Mapping) else {}
    if renames:
        renamed = {**plain, "metadata": {"mcp": {"tool_name": proposal.tool_name, "argument_mapping": renames}}}
        if _fault(data, renamed, contract, tool) is None:
            pairs = ", ".join(f"{ours} to {theirs}" for ours, theirs in renames.items())
            return renamed, [f"{contract.id} is bound to {proposal.tool_name} with {pairs}; the types match, no more."]
    return _problem(
        "contract_mismatch",
        f"the tool {quoted(proposal.tool_name)} does not keep the contract {contract.id} that is there: "
        f"{fault.message}",
        f"name another contract: --tools {proposal.tool_name}:ID",
    )


def _fault(data: Mapping[str, Any], binding: Mapping[str, Any], contract: Contract, tool: Tool) -> Problem | None:
    driver = draft_driver({**data, "implements": [binding]})
    if not isinstance(driver, DraftedDriver):
        return driver[0]
    outcome = match(driver.driver, driver.driver.implements[0], contract, tool)
    if isinstance(outcome, Bound):
        return None
    return next((each for each in outcome if each.severity == "error"), outcome[0])


def _class_of(contract: Contract) -> ToolClass:
    if not contract.mutates and contract.risk_level < RISK_IRREVERSIBLE:
        return "read_only"
    return "irreversible" if contract.risk_level >= RISK_IRREVERSIBLE else "reversible"


def _problem(code: str, message: str, hint: str) -> Problem:
    return Problem(file=DRIVER_FILE, code=code, message=message, hint=hint)
