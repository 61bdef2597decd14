"""Tools as clients see them: names, MCP definitions and effects, for contracts and for tools without a contract.

The definition of a contract's tool is made from TOOL.md alone; nothing that a server lists can change it
(AIP-tools-15). The contract's effect fields become the MCP-AX capability, from which gate.mode derives the class of the
tool (AIP-14.rules-1). `OfferedContract.asks` tells whether a person confirms every call. It is not part of the
definition's _meta, so no server can set or clear it.

MCP annotations of a server are interpreted cautiously, and only if they are real booleans (AIP-author-5). The name of a
tool never sets an effect; it only leads to a proposal for the person who classifies the tool.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from interlock.ax.protocol import capability
from interlock.ax.protocol.hop_metadata import CAPABILITY
from interlock.ax.protocol.names import check_segment, normalise
from interlock.drivers.protocol.model import Contract
from interlock.drivers.protocol.problems import FileProblem
from interlock.wire.jsontext.canonical import quoted

GATE: Final = "policy:gate"  # the class and gate.mode decide; AIP-author-5
UNANNOTATED: Final = "policy:unannotated"  # its effects are not declared: a person says it once

ClassSource = Literal["annotations", "name", "schema", "nothing", "person", "contract"]

ANNOTATION_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


class Effects(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a contract that say what its calls may change (AIP-14)."""

    mutates: tuple[str, ...] = ()
    approval: str = "auto"
    risk_level: int = 0
    idempotent: bool = False


def effects_of(annotations: object, driver_id: str, tool_class: capability.ToolClass | None = None) -> Effects:
    """Return what calls of a tool may change, according to its MCP annotations.

    `annotations` come from tools/list; a value that is not an object is ignored. `tool_class` is the class that a
    person chose; it takes precedence over the annotations.
    """
    hints = _read_hints(annotations)
    annotated = _class_of_hints(hints)
    tool_class = tool_class or annotated
    mutates = (f"external:{driver_id}",)
    if tool_class is None:  # AIP-author-5
        return Effects(mutates=mutates, approval=UNANNOTATED, risk_level=2)
    idempotent = hints.get("idempotentHint", False) and annotated is not None  # AIP-author-5
    if tool_class == "read_only":  # AIP-author-5
        return Effects(idempotent=idempotent)
    risk = 3 if tool_class == "irreversible" else 2 if hints.get("openWorldHint", True) else 1  # AIP-author-5
    return Effects(mutates=mutates, approval=GATE, risk_level=risk, idempotent=idempotent)


class ProposedClass(msgspec.Struct, frozen=True, kw_only=True):
    """Proposal for the class of a tool (read-only, reversible or irreversible), which a person accepts or corrects.

    `by` tells where the class comes from. `question` names a contradiction to the class, or is None if there is none.
    """

    tool_class: capability.ToolClass
    by: ClassSource  # what says or suggests the class; "nothing" means that it is the strictest without a reason
    question: str | None = None  # what a person should look at, because two signs contradict each other


def proposed_class(tool: Mapping[str, object]) -> ProposedClass:
    """Propose the class of a tool from its annotations, its name and its arguments.

    The annotations decide, unless the tool's name suggests a stronger effect. Without annotations the verbs in the name
    decide, unless the arguments contradict them.
    """
    listed_name = tool.get("name")
    name = listed_name if isinstance(listed_name, str) else ""
    by_name = capability.maybe_class(name)
    annotated = _class_of_hints(_read_hints(tool.get("annotations")))
    if annotated is not None:
        question = find_contradiction(name, annotated)
        if question is None:
            return ProposedClass(tool_class=annotated, by="annotations")
        return propose_stricter_class(name, question)
    if by_name == "read_only":
        schema = tool.get("inputSchema")
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        argument = capability.maybe_changing_argument([*properties] if isinstance(properties, Mapping) else [])
        if argument is not None:
            question = f"its name says that it only reads, and it takes {quoted(argument)}"
            return ProposedClass(tool_class="irreversible", by="schema", question=question)
    return ProposedClass(tool_class=by_name or "irreversible", by="name" if by_name is not None else "nothing")


def propose_stricter_class(name: str, question: str) -> ProposedClass:
    """Propose the class that a tool's name suggests. Use this for a tool that is declared as read-only although its
    name suggests a change.
    """
    return ProposedClass(tool_class=capability.maybe_class(name) or "irreversible", by="name", question=question)


def find_contradiction(name: str, tool_class: capability.ToolClass) -> str | None:
    """Return a remark for a person if a tool is declared as read-only but its name suggests that it changes something.
    Otherwise return None.
    """
    verb = capability.maybe_changing_verb(name) if tool_class == "read_only" else None
    return None if verb is None else f"it is said to only read, and its name says {verb!r}"


def _class_of_hints(hints: Mapping[str, bool]) -> capability.ToolClass | None:
    """Return the class that a tool's annotations declare, or None if they do not say whether the tool changes anything.

    In MCP, a tool that is not read-only is destructive by default.
    """
    read_only, destructive = hints.get("readOnlyHint"), hints.get("destructiveHint")
    if destructive is True or (read_only is False and destructive is None):  # AIP-author-5
        return "irreversible"
    if read_only is True:
        return "read_only"
    return "reversible" if destructive is False else None


def _read_hints(annotations: object) -> dict[str, bool]:
    """Return the annotations of a tool whose values are true or false, and ignore all others."""
    hints = annotations if isinstance(annotations, Mapping) else {}
    return {name: hints[name] for name in ANNOTATION_HINTS if isinstance(hints.get(name), bool)}


CONTRACT_KEY: Final = "dev.interlock/contract"  # AIP-tools-16
UNDOTTED_SEGMENT: Final = "tools"  # of contracts whose id names no other; AIP-tools-15
RISK_IRREVERSIBLE: Final = 3
_COSTS: Final = {"trivial": "free", "metered": "metered", "expensive": "expensive"}


class OfferedContract(msgspec.Struct, frozen=True, kw_only=True):
    """A contract as clients see it in tools/list.

    `segment` and `local` are the two parts of its name, `item` is its definition under the local name, and `asks` tells
    whether a person confirms every call.
    """

    contract: Contract
    segment: str
    local: str
    item: dict[str, Any]
    asks: bool  # a person confirms every call


class Offering(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `offer`: the contracts that clients can see, and the problems of those that cannot be listed."""

    offered: tuple[OfferedContract, ...]  # sorted by qualified name
    problems: tuple[FileProblem, ...]


def offer(contracts: Iterable[Contract]) -> Offering:
    """Prepare contracts for tools/list, each under its full name.

    If two contracts have the same name, neither is listed: otherwise the order of the files would decide.
    """
    problems: list[FileProblem] = []
    claims: dict[tuple[str, str], list[Contract]] = {}
    for contract in contracts:
        name = qualified_name(contract)
        if isinstance(name, FileProblem):
            problems.append(name)
        else:
            claims.setdefault(name, []).append(contract)
    offered = []
    for (segment, local), claimants in sorted(claims.items()):
        files = sorted(each.places.file for each in claimants)
        message = f"{', '.join(map(quoted, files))} would all be listed as {segment}.{local}"
        hint = "give one of them another metadata.interlock.name"
        for contract in claimants:
            if len(claimants) == 1:
                item, asks = tool_item(contract), needs_confirmation(contract)
                offered.append(OfferedContract(contract=contract, segment=segment, local=local, item=item, asks=asks))
            else:
                pointer = "/id" if contract.listed_as is None else "/metadata/interlock/name"
                problems.append(contract.places.problem(pointer, "name_collision", message, hint))
    return Offering(offered=tuple(offered), problems=tuple(problems))


def qualified_name(contract: Contract) -> tuple[str, str] | FileProblem:
    """Return the two parts of the name under which a contract is listed: its segment and its local name. Return a
    problem if the name is not allowed.

    Both names are derived from the file alone. Policies match these names, so other installed contracts must not change
    them.
    """
    if contract.listed_as is not None:  # AIP-tools-15
        segment, _, local = contract.listed_as.partition(".")
        place = "/metadata/interlock/name"
        if "." in local:
            message = "a contract stands directly below its segment"
            return contract.places.problem(place, "name_invalid", message, "write segment.tool, one dot")
    else:
        head, dot, rest = contract.id.partition(".")
        segment, local = (normalise(head), normalise(rest)) if dot else (UNDOTTED_SEGMENT, normalise(head))
        place = "/id"
    if segment != UNDOTTED_SEGMENT and (why := check_segment(segment)) is not None:
        return contract.places.problem(place, "name_collision", why, "set metadata.interlock.name to segment.tool")
    return segment, local


def tool_item(contract: Contract) -> dict[str, Any]:
    """Return the contract as an item of tools/list, under its local name.

    An output schema whose root is not an object is included. `tools/list` omits it for clients whose MCP version
    forbids it.
    """
    name = qualified_name(contract)
    # AIP-14.rules-1: a contract that does not declare its effect has neither `mutable` nor `reversible`. It counts as
    # irreversible until a person classifies it.
    declared: dict[str, Any] = {"latency_class": latency_class(contract.timeout_ms).value}
    if contract.approval != UNANNOTATED:
        irreversible = contract.risk_level >= RISK_IRREVERSIBLE
        declared["mutable"] = bool(contract.mutates) or irreversible
        declared["reversible"] = not irreversible
    declared |= {"idempotent": contract.idempotent, "cost_class": _COSTS[contract.cost_class]}
    if capability.is_semver(contract.version):
        declared["schema_version"] = contract.version
    return {
        "name": contract.id if isinstance(name, FileProblem) else name[1],
        "title": contract.name,
        "description": contract.description,  # AIP-tools-15
        "inputSchema": {"type": "object", **contract.inputs},
        "outputSchema": dict(contract.outputs),
        "_meta": {CAPABILITY: declared, CONTRACT_KEY: f"{contract.id}@{contract.version}"},
    }


def latency_class(timeout_ms: int) -> capability.LatencyClass:
    """Return the fastest latency class whose time limit is at least `timeout_ms`."""
    fitting = (
        each for each, limit_s in capability.TIMEOUT_S.items() if limit_s is None or timeout_ms <= limit_s * 1000
    )
    return next(fitting, capability.LatencyClass.BATCH)


def needs_confirmation(contract: Contract) -> bool:
    """Return whether a person must confirm each call of the contract, whichever driver serves it."""
    if contract.approval == "on-mutate":  # AIP-14.rules-1
        return bool(contract.mutates)
    return contract.approval not in ("auto", GATE, UNANNOTATED)  # AIP-14.rules-1


def exposed_item(tool: Mapping[str, Any], driver_id: str) -> dict[str, Any]:
    """Return the item of tools/list for a tool of a server that no contract describes (AIP-tools-16).

    It is the definition as the server lists it, marked as unbound, with the class that its annotations give if they are
    interpreted cautiously. Metadata that the server sent under Interlock's keys is removed.
    """
    effects = effects_of(tool.get("annotations"), driver_id)
    listed_meta = tool.get("_meta")
    meta = {
        key: value
        for key, value in (listed_meta.items() if isinstance(listed_meta, Mapping) else ())
        if not key.lower().startswith(("x-mcpax-", "dev.interlock/"))
    }
    declared: dict[str, Any] = {}
    if effects.approval != UNANNOTATED:
        declared = {"mutable": bool(effects.mutates), "reversible": effects.risk_level < RISK_IRREVERSIBLE}
        declared["idempotent"] = effects.idempotent
    return {**tool, "_meta": {**meta, CAPABILITY: declared, CONTRACT_KEY: "none"}}
