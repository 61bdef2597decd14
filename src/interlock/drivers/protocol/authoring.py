"""Files that Interlock writes for drivers: DRIVER.md and TOOL.md for a server that has none, and files for other hosts.

`propose` returns a contract and an effect class for each tool of a server. A person reviews these proposals. `compose`
then writes the texts of a driver's folder from the reviewed proposals. An existing contract is reused if the tool
satisfies it. If the tool would satisfy it with other argument names, `compose` proposes these names and marks them for
review (AIP-author-3 to -5). `driver_upstream` and `contract_upstream` rewrite frontmatter for hosts that do not know
the extensions of Interlock (AIP-export-3).

The items of tools/list come from a server that may try to deceive. Every text is parsed again before it is returned, so
the result is either a valid file or the problems that prevent it. This module does not access the disk.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from interlock.ax.protocol.capability import ToolClass
from interlock.ax.protocol.names import normalise
from interlock.drivers.protocol.binding import effects
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
from interlock.wire.schemas.validators import find_excess

OWN: Final = "interlock"
VERSION: Final = "1.0.0"  # of a file that is written the first time
NAME_CHARS_MAX: Final = 80  # AIP-14
ID_CHARS_MAX: Final = 80  # AIP-14
DESCRIPTION_CHARS_MAX: Final = 2000  # AIP-14
TEXT_OUTPUTS: Final[Mapping[str, Any]] = {  # of a tool without outputSchema, AIP-author-4
    "type": "object",
    "required": ["content"],
    "properties": {"content": {"type": "string"}},
}
SUGGESTED: Final = ("name", "schema", "nothing")  # signs that only suggest a class: a person has to accept it

Tool = Mapping[str, Any]

_OUTSIDE_ID = re.compile(r"[^a-z0-9.]+")
_ID = re.compile(r"[a-z0-9][a-z0-9.-]*[a-z0-9]")
_HASH_DIGITS = 8
_NOT_SHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """The frontmatter of a file without Interlock's extensions, for hosts that do not support them.

    `changed` lists the keys that were replaced by an equivalent, `lost` the keys that were left out. An approval rule
    that only this node understands becomes a rule that asks a person. Other restrictions can be among the lost keys,
    such as the sandbox block.
    """

    data: dict[str, Any]
    lost: tuple[str, ...]  # dotted keys: server.cwd, implements[0].metadata.interlock.result_parse
    changed: tuple[str, ...]  # dotted keys that are written as their equivalent


def driver_upstream(data: Mapping[str, Any]) -> Upstream:
    """Convert the frontmatter of a DRIVER.md to plain AIP-32, for hosts that do not support Interlock's extensions.

    `data` is the frontmatter as this node reads it, with the server block inline. The result lists the keys that were
    lost or changed.
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
        lost += [f"install[{index}]" for index, each in enumerate(data["install"]) if each.get("method") == "docker"]
        published["install"] = [each for each in data["install"] if each.get("method") != "docker"]
    return Upstream(data=_without_own(published, "", lost), lost=tuple(lost), changed=tuple(changed))


def _without_own(data: Mapping[str, Any], pointer: str, lost: list[str]) -> dict[str, Any]:
    """Return the frontmatter without the block metadata.interlock. Add the pointer of each removed key to `lost`;
    `pointer` is the place of the frontmatter.
    """
    metadata = data.get("metadata")
    if not isinstance(metadata, Mapping) or OWN not in metadata:
        return dict(data)
    lost += [f"{pointer}metadata.{OWN}.{key}" for key in metadata[OWN]]
    rest = {key: value for key, value in metadata.items() if key != OWN}
    return {key: rest if key == "metadata" else value for key, value in data.items() if key != "metadata" or rest}


class DraftedContract(msgspec.Struct, frozen=True, kw_only=True):
    """A new TOOL.md that has not been written yet: the contract of one tool, and the text of the file."""

    tool_name: str
    contract: Contract
    text: str

    def binding(self, reference: str | None = None) -> dict[str, Any]:
        """Return the entry of a driver's implements[] that binds this contract to its tool.

        The entry refers to the contract by `reference`, a path, or by the contract's id if `reference` is None.
        """
        return _binding(reference, self.contract, {"tool_name": self.tool_name})


def _binding(reference: str | None, contract: Contract, block: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry for the implements[] list of a DRIVER.md that binds a contract. `block` is the value of the
    entry's metadata.mcp.
    """
    return {"tool": reference or contract.id, "version": f"^{contract.version}", "metadata": {"mcp": block}}


class DraftedDriver(msgspec.Struct, frozen=True, kw_only=True):
    """A new DRIVER.md that has not been written yet: the parsed driver, the text of the file, and its warnings."""

    driver: Driver
    text: str
    problems: tuple[FileProblem, ...]  # warnings and notes of the file


def draft_contracts(
    tools: Iterable[Any],
    driver_id: str,
    *,
    contract_ids: Mapping[str, str] = MappingProxyType({}),
    classes: Mapping[str, ToolClass] = MappingProxyType({}),
) -> tuple[list[DraftedContract], list[FileProblem]]:
    """Draft a contract for every tool. `contract_ids` and `classes` have values for single tools, by tool name.

    Return the contracts, and the problems of the tools that could not get one.

    If the contracts of several tools would have the same id, all of these tools are refused: adding numbers to the ids
    would make them depend on the order in which the server lists its tools.
    """
    contracts: list[DraftedContract] = []
    problems: list[FileProblem] = []
    for tool in tools:
        name = str(tool.get("name")) if isinstance(tool, Mapping) else ""
        drafted = draft_contract(tool, driver_id, contract_id=contract_ids.get(name), tool_class=classes.get(name))
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
            message = f"the tools {names} would all have the contract {contract_id}"
            problems.append(FileProblem(file=TOOL_FILE, code="id_collision", message=message, hint="name one each"))
    return [each for each in contracts if len(claims[each.contract.id]) == 1], problems


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
    listed_name = tool.get("name") if isinstance(tool, Mapping) else None
    name = listed_name if isinstance(listed_name, str) else ""
    inputs = tool.get("inputSchema") if name else None
    outputs = tool.get("outputSchema", TEXT_OUTPUTS) if name and outputs is None else outputs
    if not isinstance(inputs, Mapping) or not isinstance(outputs, Mapping):
        message = f"the tool {quoted(name)} has no schema" if name else "a tool of the server's list has no name"
        return (FileProblem(file=TOOL_FILE, code="tool_invalid", message=message, hint="ask the server's author"),)
    excess = find_excess(inputs) or find_excess(outputs)
    if excess is not None:
        message, hint = f"a schema of the tool {quoted(name)} is too large: {excess}", "leave the tool out (--tools)"
        return (FileProblem(file=TOOL_FILE, code="tool_invalid", message=message, hint=hint),)
    declared = effects.effects_of(tool.get("annotations"), driver_id, tool_class)
    title = " ".join(_clean(tool.get("title")).split()) or " ".join(_clean(name).split()) or "Tool"
    description = _clean(tool.get("description")) or title
    if len(description) > DESCRIPTION_CHARS_MAX:
        description = description[: DESCRIPTION_CHARS_MAX - 1] + "…"
    data = {
        "name": title[:NAME_CHARS_MAX].strip(),
        "id": contract_id or contract_id_of(driver_id, name),
        "description": description,
        "version": VERSION,
        "inputs": to_2020_12(inputs),
        "outputs": to_2020_12(outputs),
        **({"idempotent": True} if declared.idempotent else {}),
        "mutates": list(declared.mutates),
        "approval": declared.approval,
        "risk_level": declared.risk_level,
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
    """Return the id of a tool's contract, such as filesystem.read-file for filesystem-mcp and read_file.

    If this id would be too long or invalid, it is shortened and ends in a hash of the tool's name.
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
    """Draft a DRIVER.md from the frontmatter `data` and the Markdown `body`, or return the problems that prevent it.

    The kind defaults to mcp and the version to 1.0.0.
    """
    # The usual fields come first, in the usual order.
    first = {key: data.get(key) for key in ("name", "id", "description")} | {"version": VERSION, "kind": "mcp"}
    whole = {key: value for key, value in {**first, **data}.items() if value is not None}
    text = frontmatter_text(whole, body)
    folder = whole["id"] if isinstance(whole.get("id"), str) else None
    reading = read_driver(text.encode("utf-8", "replace"), DRIVER_FILE, folder=folder)
    if reading.value is None:
        return reading.problems
    return DraftedDriver(driver=reading.value, text=text, problems=reading.problems)


def proposed_renames(inputs: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, str]:
    """Propose which inputs of a contract correspond to differently named arguments of a server's tool. A person reviews
    the proposal.

    An input of the contract that the server has no argument for is mapped to the only unused argument of the same type
    that shares a word with its name. If no name is similar, it is mapped to the only unused argument of that type. An
    argument is never proposed for two inputs.
    """
    ours, theirs = _types(inputs), _types(arguments)
    renames: dict[str, str] = {}
    for name, type_name in ours.items():
        if name in theirs:
            continue
        fitting = [other for other in theirs if other not in ours and theirs[other] == type_name is not None]
        alike = [other for other in fitting if _words(other) & _words(name)]
        if len(alike) == 1:
            renames[name] = alike[0]
        elif len(fitting) == 1 and not alike:
            renames[name] = fitting[0]
    targets = list(renames.values())
    return {name: target for name, target in renames.items() if targets.count(target) == 1}


def _types(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the type of each property that an object schema declares, or None for a property without a type."""
    properties = schema.get("properties")
    members = properties.items() if isinstance(properties, Mapping) else ()
    return {name: each.get("type") if isinstance(each, Mapping) else None for name, each in members}


def _words(name: str) -> set[str]:
    return set(normalise(name).replace("-", "_").split("_")) - {""}


def _clean(text: Any) -> str:
    """Remove invisible characters, which could hide words from the person who reviews the file."""
    return _NOT_SHOWN.sub("", text.replace("\r\n", "\n")).strip() if isinstance(text, str) else ""


class ExistingContract(msgspec.Struct, frozen=True, kw_only=True):
    """A contract that already has a TOOL.md, so that none is drafted for it.

    For a contract in the driver's folder, `path` is its path in the folder and `text` its text. Both are None for a
    contract from elsewhere.
    """

    contract: Contract
    path: str | None = None
    text: str | None = None


class ToolProposal(effects.ProposedClass, frozen=True, kw_only=True):
    """Proposal for one tool: the id of its contract, and its class, which a person confirms or changes."""

    tool_name: str
    contract_id: str
    is_new: bool = True  # the contract does not exist yet


class ComposedDriver(msgspec.Struct, frozen=True, kw_only=True):
    """The texts of all files of a driver's folder, by their paths in the folder. `reviews` lists what a person should
    review.
    """

    files: Mapping[str, str]  # by their path in the folder
    reviews: tuple[str, ...] = ()  # what a person should look at


def propose(
    tools: Sequence[Tool],
    driver_id: str,
    *,
    wanted: Mapping[str, str | None] | None = None,
    contracts: Mapping[str, ExistingContract] | None = None,
    classes: Mapping[str, ToolClass] | None = None,
) -> tuple[ToolProposal, ...] | tuple[FileProblem, ...]:
    """Propose a contract and a class for each tool, or return the problems that prevent it.

    `wanted` maps the names of the tools to include to the ids of their contracts; None includes all tools.
    """
    listed = {str(tool.get("name")): tool for tool in tools}
    hint = ", ".join(map(quoted, list(listed)[:20])) or "none"
    unknown = tuple(
        FileProblem(file=DRIVER_FILE, code="tool_unknown", message=f"the server has no tool {quoted(name)}", hint=hint)
        for name in (*(wanted or ()), *(classes or ()))
        if name not in listed
    )
    if unknown:
        return unknown
    proposals = []
    for name, tool in listed.items():
        if wanted is not None and name not in wanted:
            continue
        contract_id = (wanted or {}).get(name) or contract_id_of(driver_id, name)
        existing = (contracts or {}).get(contract_id)
        chosen = (classes or {}).get(name)
        if existing is not None:
            tool_class: ToolClass = "reversible" if existing.contract.mutates else "read_only"
            if existing.contract.risk_level >= effects.RISK_IRREVERSIBLE:
                tool_class = "irreversible"
            proposed = effects.ProposedClass(tool_class=tool_class, by="contract")
        elif chosen is not None:
            question = effects.find_contradiction(name, chosen)
            proposed = effects.ProposedClass(tool_class=chosen, by="person", question=question)
        else:
            proposed = effects.proposed_class(tool)
        fields = msgspec.structs.asdict(proposed)
        proposals.append(ToolProposal(tool_name=name, contract_id=contract_id, is_new=existing is None, **fields))
    return tuple(proposals)


def compose(
    data: Mapping[str, Any],
    tools: Sequence[Tool],
    proposals: Sequence[ToolProposal],
    *,
    contracts: Mapping[str, ExistingContract] | None = None,
    body: str = "",
    asks: bool | frozenset[str] = False,
) -> ComposedDriver | tuple[FileProblem, ...]:
    """Compose the files of a driver from the proposals, or return the problems that prevent it.

    `data` is the frontmatter without implements. A class that is only inferred from a tool's name or arguments is not
    written, so the contract leaves its effect open (AIP-author-5). It is written if the name contradicts the tool's
    annotations. `asks` names the tools that require a confirmation before each call; True means all tools. It applies
    only to contracts that are new.
    """
    contracts = contracts or {}
    listed = {str(tool.get("name")): tool for tool in tools}
    fresh = [each for each in proposals if each.contract_id not in contracts]
    # If annotations and name contradict each other, the stricter class applies until a person says otherwise.
    classes = {
        each.tool_name: each.tool_class
        for each in fresh
        if each.by == "person" or (each.by == "name" and each.question is not None)
    }
    ids = {each.tool_name: each.contract_id for each in fresh}
    new_tools = [listed[each.tool_name] for each in fresh]
    drafted, problems = draft_contracts(new_tools, str(data.get("id")), contract_ids=ids, classes=classes)
    if problems:
        return tuple(problems)
    files: dict[str, str] = {}
    bindings: dict[str, dict[str, Any]] = {}
    reviews: list[str] = []
    for each in drafted:
        # The folder of a driver's own contracts.
        path = f"tools/{each.contract.id}/{TOOL_FILE}"
        files[path] = each.text
        front = read_frontmatter(each.text.encode(), TOOL_FILE).value
        if front is not None and (asks is True or each.tool_name in (asks or ())):
            files[path] = frontmatter_text({**front.data, "approval": "always"})
        bindings[each.tool_name] = each.binding(f"./{path}")
    for proposal in proposals:
        existing = contracts.get(proposal.contract_id)
        if existing is None:
            continue
        binding = _bind_existing(data, listed[proposal.tool_name], proposal, existing, reviews)
        if isinstance(binding, FileProblem):
            problems.append(binding)
        else:
            bindings[proposal.tool_name] = binding
        if existing.path is not None and existing.text is not None:
            files[existing.path] = existing.text
    if problems:
        return tuple(problems)
    reviewed_body = f"{body.rstrip()}\n\n" + "\n".join(f"Review: {each}" for each in reviews) if reviews else body
    driver = draft_driver({**data, "implements": [bindings[each.tool_name] for each in proposals]}, reviewed_body)
    if not isinstance(driver, DraftedDriver):
        return driver
    return ComposedDriver(files={**files, DRIVER_FILE: driver.text}, reviews=tuple(reviews))


def _bind_existing(
    data: Mapping[str, Any], tool: Tool, proposal: ToolProposal, existing: ExistingContract, reviews: list[str]
) -> dict[str, Any] | FileProblem:
    """Bind an existing contract to a tool that the server lists.

    Return the entry of implements[], or a problem if the tool does not satisfy the contract. If the tool only uses
    other names for its arguments, the entry renames them, and the renames are added to `reviews` (AIP-author-3).
    """
    contract, name = existing.contract, proposal.tool_name
    reference = f"./{existing.path}" if existing.path is not None else None
    plain = _binding(reference, contract, {"tool_name": name})
    fault = _find_fault(data, plain, contract, tool)
    if fault is None:
        return plain
    arguments = tool.get("inputSchema")
    renames = proposed_renames(contract.inputs, arguments) if isinstance(arguments, Mapping) else {}
    renamed = _binding(reference, contract, {"tool_name": name, "argument_mapping": renames})
    if renames and _find_fault(data, renamed, contract, tool) is None:
        pairs = ", ".join(f"{ours} to {theirs}" for ours, theirs in renames.items())
        reviews.append(f"{contract.id} is bound to {name} with {pairs}; only the types match.")
        return renamed
    message = f"the tool {quoted(name)} does not keep the contract {contract.id} that is there: {fault.message}"
    hint = f"name another contract: --tools {name}:ID"
    return FileProblem(file=DRIVER_FILE, code="contract_mismatch", message=message, hint=hint)


def _find_fault(
    data: Mapping[str, Any], binding: Mapping[str, Any], contract: Contract, tool: Tool
) -> FileProblem | None:
    """Return why a tool does not satisfy a contract with this binding, or None if it does."""
    driver = draft_driver({**data, "implements": [binding]})
    if not isinstance(driver, DraftedDriver):
        return driver[0]
    outcome = match(driver.driver, driver.driver.implements[0], contract, tool)
    if isinstance(outcome, Bound):
        return None
    return next((each for each in outcome if each.severity == "error"), outcome[0])
