"""The choice of the driver that serves a call of a contract, in the six phases of AIP-30.

The input is the contract, the names of the inputs that the call uses, the state of each driver that binds the contract,
and the operator's policy. Phase 1 removes drivers that do not fit the contract, phase 2 drivers that cannot serve at
present, and phase 3 drivers that the policy forbids. If the call is pinned to a driver, only this driver can be chosen
(phase 4). Otherwise the remaining drivers are ranked (phase 5). The result contains the ranking, the reason for each
rejected driver, and an error if no driver remains (phase 6).

The order in which drivers are passed does not matter. The error's message reaches the client and names no driver; its
cause is for the operator.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from interlock.drivers.protocol.files.versions import satisfies
from interlock.drivers.protocol.model import Contract, Driver, ToolBinding
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.wire.refusal import Refusal

KINDS: Final = ("builtin", "sdk", "http", "mcp", "cli")  # the order of preference, AIP-30.resolve-5
COST_OF_CLASS: Final = {"trivial": 0.0, "metered": 100.0, "expensive": 1000.0}  # millicents, AIP-30.resolve-5
HEALTH_EVERY_S: Final = 300.0  # of a check that does not say how often
HEALTH_COUNTS: Final = 2  # times its every, AIP-30.resolve-2

# If all candidates were removed for the same one of these reasons, it is the error of the call, because it tells the
# caller more than no_route does.
_TELLING: Final = ("input_unsupported", "auth_required", "policy_violation", "region_mismatch")
_MESSAGES: Final = {
    "auth_required": "the server behind this tool needs a login or a secret first",
    "policy_violation": "the workspace's policy allows no driver of this tool",
    "region_mismatch": "no driver of this tool serves the region this call must stay in",
    "no_route": "no driver can serve this tool now",
    "pinned_provider_unavailable": "the driver this tool is pinned to cannot serve it now",
}


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A driver that could serve a call of the contract, and its present state."""

    driver: Driver
    binding: ToolBinding
    kind: str = "mcp"
    refusal: Refusal | None = None
    auth: Literal["unknown", "unauthed", "authed"] = "unknown"
    login: str | None = None  # what an unauthed driver waits for, in words the client may read: slugs, a login URL
    # The last health check that passed and the last that failed, in the time of SelectionRequest.now. The later counts.
    passed_at: float | None = None
    failed_at: float | None = None

    @property
    def key(self) -> str:
        return self.driver.key

    @property
    def every_s(self) -> float:
        """Return the seconds between two health checks of the driver."""
        check = self.driver.health_check
        return HEALTH_EVERY_S if check is None or check.every_s is None else check.every_s

    @property
    def is_failing(self) -> bool:
        """Return whether the latest health check failed."""
        return self.failed_at is not None and (self.passed_at is None or self.failed_at > self.passed_at)


class SelectionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a call for which a driver is to be chosen."""

    contract: Contract
    inputs: Collection[str]  # the names of the inputs this call uses
    now: float
    pinned: str | None = None  # id, or id@major
    region: str | None = None  # where the call must stay
    login_only: bool = False  # the call is a login, so a missing login is no reason against a driver


class SelectionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's rules for the choice of drivers: tags that a driver must have (`allow`) or must not have
    (`deny`).
    """

    allow: tuple[str, ...] = ()  # empty: any
    deny: tuple[str, ...] = ()
    region: str | None = None  # where this node runs


class Rejection(NamedTuple):
    """Reason why a driver may not serve a call, and the phase of the selection in which it was found."""

    driver: str  # id@major
    phase: int
    code: str
    reason: str


class SelectionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A driver that may serve a call, and the cost of the call. With `check_first`, its health must be checked
    before.
    """

    candidate: Candidate
    cost_units: float
    check_first: bool  # its failed health check is too old to count, so it is checked again before it is used


class DriverResolution(msgspec.Struct, frozen=True, kw_only=True):
    """Result of choosing drivers for a call: the drivers to try, best first, or an error if there is none."""

    ranked: tuple[SelectionChoice, ...] = ()  # a pinned call has at most one, because it never falls back
    rejected: tuple[Rejection, ...] = ()
    error: DriverRefusal | None = None
    total: int = 0
    decided_by: str = ""  # why the first is first: pin, only, default_implementation, cost, kind, health, id

    @property
    def chosen(self) -> Candidate | None:
        """Return the best driver for the call, or None if no driver may serve it."""
        return self.ranked[0].candidate if self.ranked else None


def resolve(request: SelectionRequest, candidates: Sequence[Candidate], policy: SelectionPolicy) -> DriverResolution:
    """Choose the drivers that may serve a call, and rank them from best to worst."""
    rejected: list[Rejection] = []
    allowed: list[Candidate] = []
    for each in candidates:
        rejection = next(_rejections(request, each, policy), None)
        if rejection is None:
            allowed.append(each)
        else:
            rejected.append(Rejection(each.key, *rejection))
    # Sorted, so that the order in which drivers are passed does not show.
    rejected.sort(key=lambda each: (each.phase, each))
    ranked, decided_by = _rank_candidates(request, allowed)
    error = None
    if request.pinned is not None:
        # AIP-30.resolve-4, AIP-30.resolve-7
        ranked = [each for each in ranked if _is_named(each.candidate, request.pinned)][:1]
        decided_by = "pin"
        if not ranked:
            error = _pin_error(request.pinned, candidates, rejected)
    elif not ranked:
        error = _no_candidate_error(request, candidates, rejected)
    return DriverResolution(
        ranked=tuple(ranked),
        rejected=tuple(rejected),
        error=error,
        total=len(candidates),
        decided_by=decided_by if ranked else "",
    )


def resolved_row(request: SelectionRequest, resolution: DriverResolution) -> dict[str, Any]:
    """Return the members of the audit row that says how a driver was chosen, without user, workspace and time.

    They contain names and reasons, but no values of inputs.
    """
    selected: dict[str, Any] | None = None
    if resolution.ranked:
        best = resolution.ranked[0]
        selected = {"provider_id": best.candidate.key, "kind": best.candidate.kind}
        selected["cost_units_per_call"] = best.cost_units
    return {
        "tool_id": request.contract.id,
        "tool_version": request.contract.version,
        "candidates_total": resolution.total,
        "candidates_passed_phase_2_capability": resolution.total - sum(each.phase < 3 for each in resolution.rejected),
        "candidates_passed_phase_3_policy": resolution.total - len(resolution.rejected),
        "pinned_provider": request.pinned,
        "rejected": _rows(resolution.rejected),
        "selected": selected,
    }


def cost_units(contract: Contract, candidate: Candidate) -> float:
    """Return the cost of one call of the contract through this driver, in millicents.

    It is the cost in the binding, or else in the driver, or else the cost of the contract's class.
    """
    for cost in (candidate.binding.cost, candidate.driver.cost):
        if cost is not None and cost.cost_units_per_call is not None:
            return cost.cost_units_per_call
    return COST_OF_CLASS[contract.cost_class]


def _rejections(
    request: SelectionRequest, candidate: Candidate, policy: SelectionPolicy
) -> Iterator[tuple[int, str, str]]:
    """Yield the reasons why a driver may not serve a call: the phase, a code and a text. Only the first reason
    counts.
    """
    contract, binding, driver = request.contract, candidate.binding, candidate.driver
    # Phase 1: does the driver fit the contract and the inputs of the call?
    if not satisfies(contract.version, binding.version):  # AIP-30.resolve-1
        yield 1, "version_unsupported", f"it implements {binding.version}, the contract is {contract.version}"
    constraints = contract.driver_constraints
    if candidate.kind in constraints.forbid:  # AIP-30.resolve-1
        yield 1, "kind_forbidden", f"driver_constraints.forbid has {candidate.kind}"
    if constraints.require_kind and candidate.kind not in constraints.require_kind:  # AIP-30.resolve-1
        yield 1, "kind_forbidden", f"driver_constraints.require_kind has no {candidate.kind}"
    dropped = sorted(set(binding.schema_narrowing.drop_inputs).intersection(request.inputs))
    if dropped:  # AIP-30.resolve-1, AIP-30.implements-4
        yield 1, "input_unsupported", f"it does not take {', '.join(dropped)}"
    # Phase 2: can the driver serve a call at present?
    if candidate.refusal is not None:  # AIP-30.resolve-2
        yield 2, candidate.refusal.code, candidate.refusal.message
    if candidate.auth == "unauthed" and not request.login_only:  # AIP-30.resolve-2
        yield 2, "auth_required", candidate.login or "it is not logged in"
    if candidate.is_failing and not _is_check_outdated(request, candidate):  # AIP-30.resolve-2
        yield 2, "health_check_failed", "its last health check failed"
    # Phase 3: do the operator's policy and the call's region allow the driver?
    denied = [each for each in driver.policy_tags if each in policy.deny]
    if denied:  # AIP-30.resolve-3
        yield 3, "policy_violation", f"policy.deny has {', '.join(denied)}"
    if policy.allow and not set(driver.policy_tags).intersection(policy.allow):  # AIP-30.resolve-3
        yield 3, "policy_violation", "it has no tag of policy.allow"
    region = request.region
    is_in_region = region is None or "global" in driver.region or region in driver.region  # AIP-30.resolve-3
    # A driver that runs on this host leaves the data where the host is.
    if not is_in_region and not ("self-hosted" in driver.region and policy.region == region):  # AIP-30.resolve-3
        yield 3, "region_mismatch", f"it serves {', '.join(driver.region)}, not {region}"


def _is_check_outdated(request: SelectionRequest, candidate: Candidate) -> bool:
    """Return whether a driver's failed health check is so long ago that the driver may be tried again."""
    age_s = request.now - (candidate.failed_at or 0.0)
    return candidate.is_failing and age_s > HEALTH_COUNTS * candidate.every_s


def _rank_candidates(request: SelectionRequest, candidates: Sequence[Candidate]) -> tuple[list[SelectionChoice], str]:
    """Rank the drivers that may serve a call from best to worst (phase 5).

    Also return the name of the criterion that placed the best driver before the second.
    """
    keyed = sorted(((_rank(request.contract, each), each) for each in candidates), key=lambda pair: [*pair[0].values()])
    ranked = [
        SelectionChoice(candidate=each, cost_units=rank["cost"], check_first=_is_check_outdated(request, each))
        for rank, each in keyed
    ]
    if len(keyed) < 2:
        return ranked, "only"
    first, second = keyed[0][0], keyed[1][0]
    return ranked, next((name for name in first if first[name] != second[name]), "id")


def _rank(contract: Contract, candidate: Candidate) -> dict[str, Any]:
    """Return the criteria by which drivers are ranked, the most important first. Smaller values are better."""
    driver = candidate.driver
    return {
        "default_implementation": driver.id != contract.default_implementation,  # AIP-30.resolve-5
        "cost": cost_units(contract, candidate),
        "kind": KINDS.index(candidate.kind) if candidate.kind in KINDS else len(KINDS),
        "health": float("inf") if candidate.passed_at is None else -candidate.passed_at,
        # Of two major versions the newer one is better.
        "id": (driver.id, -int(driver.version.partition(".")[0])),
    }


def _is_named(candidate: Candidate, name: str) -> bool:
    return name in (candidate.driver.id, candidate.key)


def _pin_error(pinned: str, candidates: Sequence[Candidate], rejected: Sequence[Rejection]) -> DriverRefusal:
    """Return the error for a call that only one driver may serve, if this driver was rejected or does not exist.

    The error's cause names the phase of the rejection and the reason (phase 4).
    """
    keys = {each.key for each in candidates if _is_named(each, pinned)}
    unknown = Rejection(pinned, 1, "not_a_candidate", "it does not implement this contract here")
    removed = [each for each in rejected if each.driver in keys] or [unknown]
    last = max(removed, key=lambda each: each.phase)  # AIP-30.resolve-4
    cause = {"pinned_provider": pinned, "phase": last.phase, "code": last.code, "reason": last.reason}
    cause["candidates"] = _rows(removed)
    code = "pinned_provider_unavailable"
    return DriverRefusal(code, _MESSAGES[code], cause=cause)  # AIP-30.resolve-4


def _no_candidate_error(
    request: SelectionRequest, candidates: Sequence[Candidate], rejected: Sequence[Rejection]
) -> DriverRefusal:
    """Return the error for a call that no driver can serve (phase 6)."""
    cause = {"candidates": _rows(rejected)}  # AIP-30.resolve-6
    codes = {each.code for each in rejected}
    code = codes.pop() if len(codes) == 1 else "no_route"
    if code == "input_unsupported":
        used = sorted({name for each in candidates for name in each.binding.schema_narrowing.drop_inputs})
        named = ", ".join(name for name in used if name in request.inputs)
        return DriverRefusal(code, f"no driver of this tool takes {named}", cause=cause)
    logins = sorted({each.login for each in candidates if each.login is not None})
    if code == "auth_required" and logins:
        return DriverRefusal(code, "; ".join(logins), cause=cause)
    code = code if code in _TELLING else "no_route"
    return DriverRefusal(code, _MESSAGES[code], cause=cause)  # AIP-30.resolve-6


def _rows(rejected: Sequence[Rejection]) -> list[dict[str, Any]]:
    return [
        {"provider_id": each.driver, "phase": each.phase, "code": each.code, "reason": each.reason} for each in rejected
    ]
