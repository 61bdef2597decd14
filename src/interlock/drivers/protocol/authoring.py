"""Files that Interlock writes for drivers: DRIVER.md and TOOL.md of a server that has none, and files for other hosts.

`propose` lists a server's tools with the contract and the effect class that a person is asked about. `compose` makes
the texts of a driver's folder from the answers. A contract that exists is reused if the tool satisfies it. If the tool
would satisfy it with other argument names, these are proposed and marked for review (AIP-author-3 to -5).
`driver_upstream` and `contract_upstream` rewrite frontmatter for hosts that do not know our extensions (AIP-export-3).

The items of tools/list come from a server that may try to deceive. Every text is read back before it is returned, so
that a caller gets either a valid file or the problems that prevent it. This module finds and writes no file.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from interlock.ax.protocol.capability import ToolClass
from interlock.ax.protocol.names import normalise
from interlock.drivers.protocol.binding.effects import (
    GATE,
    RISK_IRREVERSIBLE,
    UNANNOTATED,
    effects_of,
    find_contradiction,
    proposed_class,
)
from interlock.drivers.protocol.binding.match import Bound, match
from interlock.drivers.protocol.files.contract import TOOL_FILE, read_contract
from interlock.drivers.protocol.files.driver import DRIVER_FILE, read_driver
from interlock.drivers.protocol.files.frontmatter import frontmatter_text, read_frontmatter
from interlock.drivers.protocol.kinds import SERVERS
from interlock.drivers.protocol.model import Contract, Driver
from interlock.drivers.protocol.problems import FileProblem
from interlock.drivers.protocol.server_name import exposed_segment
from interlock.wire.jsontext.canonical import quoted
from interlock.wire.schemas.digest import to_2020_12

# Frontmatter for hosts without our extensions. A key that has an equivalent is written as that; every other one is left
# out and named. Nothing becomes less strict: an approval that only this node understands becomes one that asks.

OWN: Final = "interlock"

_RISK_IRREVERSIBLE: Final = 3


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    data: dict[str, Any]
    lost: tuple[str, ...]  # dotted keys: server.cwd, implements[0].metadata.interlock.result_parse
    changed: tuple[str, ...]  # dotted keys that say the same in other words


def driver_upstream(data: Mapping[str, Any]) -> Upstream:
    """Convert the frontmatter of a DRIVER.md to the form that hosts without our extensions read.

    `data` is the frontmatter as this node reads it, with its server block inline. The result lists what was lost or
    changed.
    """
    lost: list[str] = []
    changed: list[str] = []
    published = {key: value for key, value in data.items() if key != "sandbox"}
    published["server"] = SERVERS[data["server"]["kind"]].publish(data["server"], lost, changed)
    if "sandbox" in data:
        lost.append("sandbox")
    published["implements"] = [
        _without_own(entry, f"implements[{index}].", lost) for index, entry in enumerate(data["implements"])
    ]
    if "install" in data:
        published["install"] = _installs(data["install"], lost)
    return Upstream(data=_without_own(published, "", lost), lost=tuple(lost), changed=tuple(changed))


def contract_upstream(data: Mapping[str, Any]) -> Upstream:
    """Convert the frontmatter of a TOOL.md to the form that hosts without our extensions read."""
    lost: list[str] = []
    changed: list[str] = []
    published = _without_own(data, "", lost)
    approval = data.get("approval")
    if approval in (GATE, UNANNOTATED):
        irreversible = approval == UNANNOTATED or data.get("risk_level", 0) >= _RISK_IRREVERSIBLE
        published["approval"] = "always" if irreversible else "on-mutate"
        changed.append("approval")
    return Upstream(data=published, lost=tuple(lost), changed=tuple(changed))


def _installs(entries: list[Any], lost: list[str]) -> list[Any]:
    lost += [f"install[{index}]" for index, each in enumerate(entries) if each.get("method") == "docker"]
    return [each for each in entries if each.get("method") != "docker"]


def _without_own(data: Mapping[str, Any], pointer: str, lost: list[str]) -> dict[str, Any]:
    metadata = data.get("metadata")
    if not isinstance(metadata, Mapping) or OWN not in metadata:
        return dict(data)
    lost += [f"{pointer}metadata.{OWN}.{key}" for key in metadata[OWN]]
    rest = {key: value for key, value in metadata.items() if key != OWN}
    return {key: rest if key == "metadata" else value for key, value in data.items() if key != "metadata" or rest}


VERSION: Final = "1.0.0"  # of a file that is written the first time
NAME_CHARS_MAX: Final = 80  # AIP-14
ID_CHARS_MAX: Final = 80  # AIP-14
DESCRIPTION_CHARS_MAX: Final = 2000  # AIP-14
TEXT_OUTPUTS: Final[Mapping[str, Any]] = {  # of a tool without outputSchema, AIP-author-4
    "type": "object",
    "required": ["content"],
    "properties": {"content": {"type": "string"}},
}

_OUTSIDE_ID = re.compile(r"[^a-z0-9.]+")
_ID = re.compile(r"[a-z0-9][a-z0-9.-]*[a-z0-9]")
_HASH_DIGITS = 8
_NOT_SHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


class DraftedContract(msgspec.Struct, frozen=True, kw_only=True):
    tool_name: str
    contract: Contract
    text: str

    def binding(self, reference: str | None = None) -> dict[str, Any]:
        """Return the entry of implements[] that binds the contract by `reference`, a path, or by the contract's id
        if it is None.
        """
        return {
            "tool": reference or self.contract.id,
            "version": f"^{self.contract.version}",
            "metadata": {"mcp": {"tool_name": self.tool_name}},
        }


class DraftedContracts(msgspec.Struct, frozen=True, kw_only=True):
    drafted: tuple[DraftedContract, ...]
    problems: tuple[FileProblem, ...]


class DraftedDriver(msgspec.Struct, frozen=True, kw_only=True):
    driver: Driver
    text: str
    problems: tuple[FileProblem, ...]  # warnings and notes of the file


def draft_contracts(
    tools: Iterable[Any],
    driver_id: str,
    *,
    contract_ids: Mapping[str, str] | None = None,
    classes: Mapping[str, ToolClass] | None = None,
) -> DraftedContracts:
    """Draft a contract for every tool. `contract_ids` and `classes` are keyed by tool name.

    Tools whose contracts would have the same id are all refused, because numbering them would depend on the server's
    order.
    """
    contracts: list[DraftedContract] = []
    problems: list[FileProblem] = []
    for tool in tools:
        name = str(tool.get("name")) if isinstance(tool, Mapping) else ""
        contract_id_override, tool_class = (contract_ids or {}).get(name), (classes or {}).get(name)
        drafted = draft_contract(tool, driver_id, contract_id=contract_id_override, tool_class=tool_class)
        if isinstance(drafted, DraftedContract):
            contracts.append(drafted)
        else:
            problems += drafted
    claims: dict[str, list[DraftedContract]] = {}
    for each in contracts:
        claims.setdefault(each.contract.id, []).append(each)
    for contract_id, several in claims.items():
        if len(several) > 1:
            names = ", ".join(sorted(quoted(each.tool_name) for each in several))
            problems.append(
                _tool_problem(
                    "id_collision", f"the tools {names} would all have the contract {contract_id}", "name one each"
                )
            )
    unique = tuple(each for each in contracts if len(claims[each.contract.id]) == 1)
    return DraftedContracts(drafted=unique, problems=tuple(problems))


def draft_contract(
    tool: Any,
    driver_id: str,
    *,
    contract_id: str | None = None,
    tool_class: ToolClass | None = None,
    outputs: Mapping[str, Any] | None = None,
) -> DraftedContract | tuple[FileProblem, ...]:
    """Draft the contract of one tool, or return the problems that prevent it.

    `tool_class` is the effect class that a person chose. `outputs` replaces the output schema that the server declares.
    """
    if not isinstance(tool, Mapping) or not isinstance(tool.get("name"), str) or not tool["name"]:
        return (_tool_problem("tool_invalid", "a tool of the server's list has no name", "ask the server's author"),)
    name: str = tool["name"]
    inputs = tool.get("inputSchema")
    outputs = tool.get("outputSchema", TEXT_OUTPUTS) if outputs is None else outputs
    if not isinstance(inputs, Mapping) or not isinstance(outputs, Mapping):
        return (_tool_problem("tool_invalid", f"the tool {quoted(name)} has no schema", "ask the server's author"),)
    effects = effects_of(tool.get("annotations"), driver_id, tool_class)
    title = next((line for each in (tool.get("title"), name) if (line := _one_line(each))), "Tool")
    data = {
        "name": title[:NAME_CHARS_MAX].strip(),
        "id": contract_id or contract_id_of(driver_id, name),
        "description": _cut(_clean(tool.get("description")) or title),
        "version": VERSION,
        "inputs": to_2020_12(inputs),
        "outputs": to_2020_12(outputs),
        **({"idempotent": True} if effects.idempotent else {}),
        "mutates": list(effects.mutates),
        "approval": effects.approval,
        "risk_level": effects.risk_level,
        "metadata": {"interlock": {"name": f"{exposed_segment(driver_id)}.{normalise(name)}"}},
    }
    text = frontmatter_text(data)
    reading = read_contract(text.encode("utf-8", "replace"), TOOL_FILE)
    if reading.value is None:
        return tuple(
            msgspec.structs.replace(each, message=f"the tool {quoted(name)} makes no contract: {each.message}")
            for each in reading.problems
        )
    return DraftedContract(tool_name=name, contract=reading.value, text=text)


def contract_id_of(driver_id: str, tool_name: str) -> str:
    """Return the id of a tool's contract: filesystem-mcp and read_file give filesystem.read-file.

    An id that would be too long or invalid ends in a hash of the tool's name.
    """
    head = driver_id.removesuffix("-mcp") or driver_id
    tail = _OUTSIDE_ID.sub("-", normalise(tool_name)).strip("-.")
    contract_id = f"{head}.{tail}"
    if tail and len(contract_id) <= ID_CHARS_MAX and _ID.fullmatch(contract_id):
        return contract_id
    digest = hashlib.sha256(tool_name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
    chars_max = ID_CHARS_MAX - _HASH_DIGITS - 1
    return f"{contract_id[:chars_max].rstrip('-.')}-{digest}" if tail else f"{head[: chars_max - 5]}.tool-{digest}"


def draft_driver(data: Mapping[str, Any], body: str = "") -> DraftedDriver | tuple[FileProblem, ...]:
    """Draft a DRIVER.md from its frontmatter `data`, or return the problems that prevent it.

    The kind defaults to mcp and the version to 1.0.0.
    """
    whole = {
        key: value
        for key, value in {
            "name": data.get("name"),
            "id": data.get("id"),
            "description": data.get("description"),
            "version": VERSION,
            "kind": "mcp",
            **data,
        }.items()
        if value is not None
    }
    text = frontmatter_text(whole, body)
    identifier = whole.get("id")
    reading = read_driver(
        text.encode("utf-8", "replace"), DRIVER_FILE, folder=identifier if isinstance(identifier, str) else None
    )
    if reading.value is None:
        return reading.problems
    return DraftedDriver(driver=reading.value, text=text, problems=reading.problems)


def proposed_renames(inputs: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, str]:
    """Propose an argument_mapping for a person to review.

    Each input of the contract that the server does not know by name is mapped to the only unused argument of the same
    type, or to the only one of that type that shares a word of its name.
    """
    ours, theirs = _properties(inputs), _properties(arguments)
    free = {name: each for name, each in theirs.items() if name not in ours}
    renames: dict[str, str] = {}
    for name, schema in ours.items():
        if name in theirs:
            continue
        fitting = [other for other, each in free.items() if _type(each) == _type(schema) is not None]
        alike = [other for other in fitting if _words(other) & _words(name)]
        if len(alike) == 1:
            renames[name] = alike[0]
        elif len(fitting) == 1 and not alike:
            renames[name] = fitting[0]
    targets: Sequence[str] = list(renames.values())
    return {name: target for name, target in renames.items() if targets.count(target) == 1}


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _type(schema: Any) -> Any:
    return schema.get("type") if isinstance(schema, Mapping) else None


def _words(name: str) -> set[str]:
    return set(normalise(name).replace("-", "_").split("_")) - {""}


def _clean(text: Any) -> str:
    """Remove invisible characters, which could hide words from the person who reads the file."""
    return _NOT_SHOWN.sub("", text.replace("\r\n", "\n")).strip() if isinstance(text, str) else ""


def _one_line(text: Any) -> str:
    return " ".join(_clean(text).split())


def _cut(text: str) -> str:
    return text if len(text) <= DESCRIPTION_CHARS_MAX else text[: DESCRIPTION_CHARS_MAX - 1] + "…"


def _tool_problem(code: str, message: str, hint: str) -> FileProblem:
    return FileProblem(file=TOOL_FILE, code=code, message=message, hint=hint)


OWN_TOOLS: Final = "tools"  # the folder of a driver's own contracts
ASKED: Final = "always"

Said = Literal["annotations", "name", "schema", "nothing", "person", "contract"]
SUGGESTED: Final = ("name", "schema", "nothing")  # only suggests a class: somebody has to accept it
Tool = Mapping[str, Any]


class ExistingContract(msgspec.Struct, frozen=True, kw_only=True):
    """A contract that is there. `text`: it is the driver's own, at `path` in its folder."""

    contract: Contract
    path: str | None = None
    text: str | None = None


class ToolProposal(msgspec.Struct, frozen=True, kw_only=True):
    """One tool, as a person is asked about it. `by`: who says the class; a name only suggests it. `question`: what
    contradicts it."""

    tool_name: str
    contract_id: str
    tool_class: ToolClass
    by: Said
    is_new: bool = True
    question: str | None = None


class ComposedDriver(msgspec.Struct, frozen=True, kw_only=True):
    driver: DraftedDriver
    files: Mapping[str, str]  # by their path in the folder
    reviews: tuple[str, ...] = ()  # what a person should look at


def propose(
    tools: Sequence[Tool],
    driver_id: str,
    *,
    wanted: Mapping[str, str | None] | None = None,
    known: Mapping[str, ExistingContract] | None = None,
    classes: Mapping[str, ToolClass] | None = None,
) -> tuple[ToolProposal, ...] | tuple[FileProblem, ...]:
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
    name: str, tool: Tool, contract_id: str, standing: ExistingContract | None, chosen_class: ToolClass | None
) -> ToolProposal:
    proposed = proposed_class(tool)
    if standing is not None:
        tool_class = _class_of(standing.contract)
        return ToolProposal(tool_name=name, contract_id=contract_id, tool_class=tool_class, by="contract", is_new=False)
    if chosen_class is not None:
        question = find_contradiction(name, chosen_class)
        return ToolProposal(
            tool_name=name, contract_id=contract_id, tool_class=chosen_class, by="person", question=question
        )
    return ToolProposal(
        tool_name=name,
        contract_id=contract_id,
        tool_class=proposed.tool_class,
        by=proposed.by,
        question=proposed.question,
    )


def compose(
    data: Mapping[str, Any],
    tools: Sequence[Tool],
    proposals: Sequence[ToolProposal],
    *,
    known: Mapping[str, ExistingContract] | None = None,
    body: str = "",
    asks: bool | frozenset[str] = False,
) -> ComposedDriver | tuple[FileProblem, ...]:
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
    problems: list[FileProblem] = []
    for each in drafted.drafted:
        path = f"{OWN_TOOLS}/{each.contract.id}/{TOOL_FILE}"
        files[path] = _question(each.text) if asks is True or each.tool_name in (asks or ()) else each.text
        bindings[each.tool_name] = each.binding(f"./{path}")
    for proposal in proposals:
        standing = known.get(proposal.contract_id)
        if standing is None:
            continue
        fitted = _fit(data, listed[proposal.tool_name], proposal, standing)
        if isinstance(fitted, FileProblem):
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
    return ComposedDriver(driver=driver, files={**files, DRIVER_FILE: driver.text}, reviews=tuple(reviews))


def _question(text: str) -> str:
    front = read_frontmatter(text.encode(), TOOL_FILE).value
    return text if front is None else frontmatter_text({**front.data, "approval": ASKED})


def _fit(
    data: Mapping[str, Any], tool: Tool, proposal: ToolProposal, standing: ExistingContract
) -> tuple[dict[str, Any], list[str]] | FileProblem:
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


def _fault(data: Mapping[str, Any], binding: Mapping[str, Any], contract: Contract, tool: Tool) -> FileProblem | None:
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


def _problem(code: str, message: str, hint: str) -> FileProblem:
    return FileProblem(file=DRIVER_FILE, code=code, message=message, hint=hint)
