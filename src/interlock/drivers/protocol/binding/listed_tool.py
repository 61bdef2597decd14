"""A contract as clients see it: under which name, as which MCP tool, with which MCP-AX capability (AIP-tools-15).

The definition is made of TOOL.md alone; nothing a server lists reaches it. What the contract's effect fields mean for
MCP-AX is AIP-14.rules-1: the capability says the class, from which gate.mode decides, and `asks` says whether each call
is asked about whatever the class. `asks` stands beside the definition and not in its _meta, so that no server can
claim or deny it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from interlock.ax.protocol.capability import TIMEOUT_S, LatencyClass, is_semver
from interlock.ax.protocol.hop_metadata import CAPABILITY
from interlock.ax.protocol.names import check_segment, normalise
from interlock.drivers.protocol.binding.effects import GATE, UNANNOTATED, effects_of
from interlock.drivers.protocol.model import Contract
from interlock.drivers.protocol.problems import Problem
from interlock.wire.jsontext.pointer import quoted

CONTRACT_KEY: Final = "dev.interlock/contract"  # AIP-tools-16
NO_CONTRACT: Final = "none"  # AIP-tools-16
UNDOTTED_SEGMENT: Final = "tools"  # of contracts whose id names no other; AIP-tools-15

_OWN_PREFIXES: Final = ("x-mcpax-", "dev.interlock/")
RISK_IRREVERSIBLE: Final = 3
_DECIDED_BY_CLASS: Final = ("auto", GATE, UNANNOTATED)
_COSTS: Final = {"trivial": "free", "metered": "metered", "expensive": "expensive"}


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """One contract ready for a list."""

    contract: Contract
    segment: str
    local: str
    item: dict[str, Any]
    asks: bool

    @property
    def qualified(self) -> str:
        return f"{self.segment}.{self.local}"


class Offering(msgspec.Struct, frozen=True, kw_only=True):
    offered: tuple[Offered, ...]  # sorted by qualified name
    problems: tuple[Problem, ...]


def offer(contracts: Iterable[Contract]) -> Offering:
    """Every contract under its name. Where two would have one name neither is offered: which of them is meant must not
    depend on the order of files."""
    problems: list[Problem] = []
    claims: dict[tuple[str, str], list[Contract]] = {}
    for contract in contracts:
        name = qualified_name(contract)
        if isinstance(name, Problem):
            problems.append(name)
        else:
            claims.setdefault(name, []).append(contract)
    offered = []
    for (segment, local), claimants in sorted(claims.items()):
        if len(claimants) == 1:
            (contract,) = claimants
            item = tool_item(contract)
            offered.append(Offered(contract=contract, segment=segment, local=local, item=item, asks=asks(contract)))
        else:
            problems += _collisions(f"{segment}.{local}", claimants)
    return Offering(offered=tuple(offered), problems=tuple(problems))


def qualified_name(contract: Contract) -> tuple[str, str] | Problem:
    """Segment and local name: a function of the file alone, because policies match names."""
    if contract.listed_as is not None:  # AIP-tools-15
        segment, _, local = contract.listed_as.partition(".")
        place = "/metadata/interlock/name"
        if "." in local:
            return contract.places.problem(
                place, "name_invalid", "a contract stands directly below its segment", "write segment.tool, one dot"
            )
    else:
        head, dot, rest = contract.id.partition(".")
        segment, local = (normalise(head), normalise(rest)) if dot else (UNDOTTED_SEGMENT, normalise(head))
        place = "/id"
    if segment != UNDOTTED_SEGMENT and (why := check_segment(segment)) is not None:
        return contract.places.problem(place, "name_collision", why, "set metadata.interlock.name to segment.tool")
    return segment, local


def tool_item(contract: Contract) -> dict[str, Any]:
    """The definition as an item of tools/list, under the local name; outputs whose root is no object stay in it, for
    the list leaves them out where the client's version forbids them."""
    name = qualified_name(contract)
    return {
        "name": contract.id if isinstance(name, Problem) else name[1],
        "title": contract.name,
        "description": contract.description,  # AIP-tools-15
        "inputSchema": {"type": "object", **contract.inputs},
        "outputSchema": dict(contract.outputs),
        "_meta": {CAPABILITY: capability_of(contract), CONTRACT_KEY: f"{contract.id}@{contract.version}"},
    }


def capability_of(contract: Contract) -> dict[str, Any]:
    """The capability keys a contract settles (AIP-14.rules-1). One that leaves its effect open has neither `mutable`
    nor `reversible`: it counts as irreversible until a person classifies it, once."""
    said: dict[str, Any] = {"latency_class": latency_class(contract.timeout_ms).value}
    if contract.approval != UNANNOTATED:
        irreversible = contract.risk_level >= RISK_IRREVERSIBLE
        said["mutable"] = bool(contract.mutates) or irreversible
        said["reversible"] = not irreversible
    said["idempotent"] = contract.idempotent
    said["cost_class"] = _COSTS[contract.cost_class]
    if is_semver(contract.version):
        said["schema_version"] = contract.version
    return said


def latency_class(timeout_ms: int) -> LatencyClass:
    """The fastest class whose time holds the contract's."""
    for each, limit_s in TIMEOUT_S.items():
        if limit_s is None or timeout_ms <= limit_s * 1000:
            return each
    return LatencyClass.BATCH


def asks(contract: Contract) -> bool:
    """Whether a person confirms each call, whatever driver is chosen and whatever gate.mode says."""
    if contract.approval == "on-mutate":  # AIP-14.rules-1
        return bool(contract.mutates)
    return contract.approval not in _DECIDED_BY_CLASS  # AIP-14.rules-1


def exposed_item(tool: Mapping[str, Any], driver_id: str) -> dict[str, Any]:
    """An unbound tool of a server (AIP-tools-16): its definition as listed, marked, and with the class its annotations
    give it in the cautious direction. What it says under our own keys is dropped."""
    effects = effects_of(tool.get("annotations"), driver_id)
    given = tool.get("_meta")
    meta = {
        key: value
        for key, value in (given.items() if isinstance(given, Mapping) else ())
        if not key.lower().startswith(_OWN_PREFIXES)
    }
    said: dict[str, Any] = {}
    if effects.approval != UNANNOTATED:
        said = {"mutable": bool(effects.mutates), "reversible": effects.risk_level < RISK_IRREVERSIBLE}
        said["idempotent"] = effects.idempotent
    return {**tool, "_meta": {**meta, CAPABILITY: said, CONTRACT_KEY: NO_CONTRACT}}


def _collisions(qualified: str, claimants: list[Contract]) -> list[Problem]:
    files = sorted(each.places.file for each in claimants)
    return [
        each.places.problem(
            "/metadata/interlock/name" if each.listed_as is not None else "/id",
            "name_collision",
            f"{', '.join(map(quoted, files))} would all be listed as {qualified}",
            "give one of them another metadata.interlock.name",
        )
        for each in claimants
    ]
