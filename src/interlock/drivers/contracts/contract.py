"""A compiled contract: its schemas, its providers, and the choice of the provider that serves a call.

A contract is compiled once after each change of the registry. Two results are cached, so that a call does not compute
them again. The first is the resolver's decision (`decide`). It depends on the states of the providers and on which
inputs of the call a driver does not support, and is reused until one of these changes. The second is what all calls of
one binding need (`PreparedBinding`).

Each call leaves two kinds of rows in the audit log (AIP-30.audit-1), with names and counts but no values.
`driver.resolved` records which drivers could have served the call and which one was chosen; `driver.invoked` records
how the call ended. A call that was sent several times leaves one `driver.invoked` for each time.
docs/driver-calls.md lists the keys.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.core.calls.caller import Caller
from interlock.core.clock import Clock, rfc3339
from interlock.core.link_state import Outlook
from interlock.drivers.api import RankedDriver, RejectedDriver, ServedContract
from interlock.drivers.driver_state import UNHEALTHY, DriverState
from interlock.drivers.protocol import resolver
from interlock.drivers.protocol.binding.match import ArgumentRules, Bound
from interlock.drivers.protocol.binding.uri_access import UriWatch
from interlock.drivers.protocol.model import Contract, Retry, ToolBinding
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.drivers.protocol.server_name import server_name
from interlock.drivers.provider.provider import DriverProvider
from interlock.mcp.items import find_value
from interlock.mcp.methods import TOOLS_CALL
from interlock.mcp.modern_requests import Mirrored, mirrored_arguments, modern_head
from interlock.wire.jsonrpc.codec import encode_value
from interlock.wire.refusal import Refusal
from interlock.wire.schemas.validators import Compiled, compile_schema


class ContractTable(msgspec.Struct, frozen=True, kw_only=True):
    """The contracts that the registry offers, with the drivers that serve each of them."""

    contracts: Mapping[str, Contract] = {}  # by id
    providers: Mapping[str, tuple[DriverProvider, ...]] = {}  # by the same id, in the order of the drivers' keys
    drivers: tuple[DriverProvider, ...] = ()  # every trusted one, whatever it serves: unbound tools, prompts, resources


RESOLVED: Final = "driver.resolved"
INVOKED: Final = "driver.invoked"
INPUT_KEYS_MAX: Final = 100

_encode = msgspec.json.Encoder().encode


@functools.lru_cache(maxsize=256)
def _encode_row(
    method: str,
    at: int,
    who: str,
    via: str,
    tool: str,
    workspace: str,
    facts: bytes,
    code: str | None,
    input_keys: tuple[str, ...] | None = None,
) -> bytes:
    """Encode an audit row without its closing brace, so that more members can follow. Equal calls within one second
    share the encoded row.
    """
    head: dict[str, Any] = {
        "at": rfc3339(at),
        "who": who,
        "via": str(via),
        "method": method,
        "tool": tool,
        "outcome": code or "ok",
        "user_id": who,
        "workspace_id": workspace,
    }
    if input_keys is not None:
        head |= {"ok": code is None, "input_keys": input_keys[:INPUT_KEYS_MAX]}
    return _encode(head)[:-1] + b"," + facts[1:-1]


def resolution_row(*row: Any) -> bytes:
    """Encode the audit row that says which driver was chosen for a call.

    `row` are the arguments of `_encode_row` after the method. Its facts are the encoded `resolved_row` of the resolver,
    its code is the reason why no driver was chosen, or None.
    """
    return _encode_row(RESOLVED, *row) + b"}"


def context_of(caller: Caller, workspace: str) -> Mapping[str, str]:
    """Return the facts about a caller that a tool can receive as arguments: the tenant, the user and the workspace.

    They are taken from the caller's principal and never from data that a client sends. Outside rooms, each principal is
    treated as a separate tenant.
    """
    name = caller.principal.name
    return {"tenant_id": name, "user_id": name, "workspace_id": workspace}


def invoked_row(*row: Any) -> bytes:
    """Encode the audit row of one call that was sent to a driver's server.

    `row` are the arguments of `_encode_row` after the method, and then the duration in seconds. The facts come from
    `facts_of`. The code is that of the error, or None if the call succeeded.
    """
    return b'%b,"duration_ms":%.3f}' % (_encode_row(INVOKED, *row[:-1]), row[-1] * 1000)


def facts_of(contract: Contract, choice: resolver.SelectionChoice) -> bytes:
    """Encode the members of an audit row that are the same in all calls of one contract through one driver."""
    candidate = choice.candidate
    driver = candidate.driver
    return _encode(
        {
            "tool_id": contract.id,
            "mutates": contract.mutates,
            "provider_id": candidate.key,
            "provider_version": driver.version,
            "cost_units_charged": choice.cost_units,
            # A driver without its login or secret accepts no calls.
            "auth_state": "authed" if driver.secret_names or driver.auth is not None else "unknown",
            "kind": candidate.kind,
            "mcp_tool_name": candidate.binding.tool_name,
            "transport": driver.transport,
            "server_kind": driver.server.__struct_config__.tag,
        }
    )


_NO_INPUTS: Final[frozenset[str]] = frozenset()
DECISIONS_MAX: Final = 64  # cached for one contract
CONTEXT: Final = "context"
_UNUSABLE: Final = frozenset(
    (DriverState.UNTRUSTED, DriverState.REJECTED, DriverState.UNAVAILABLE, DriverState.KIND_UNSUPPORTED)
)


class ServingDecision(msgspec.Struct, frozen=True):
    """Result of choosing drivers for a call: the drivers, best first, and the facts about the choice for
    the audit log.
    """

    resolution: resolver.DriverResolution
    providers: tuple[DriverProvider, ...]  # of the ranked drivers
    row: bytes  # the audit row, without caller and time
    facts: tuple[bytes, ...]  # of each ranked driver: what its audit rows say


UNDECIDED: Final = ServingDecision(resolver.DriverResolution(), (), b"", ())  # of a call before drivers are chosen


class PreparedBinding(msgspec.Struct, frozen=True, kw_only=True):
    """Values that calls of one contract through one driver need, computed once instead of for every call."""

    bound: Bound
    wire_name: Raw
    head: bytes
    mirrored: tuple[Mirrored, ...]
    timeout_s: float
    retry: Retry | None
    keeps_result: bool  # the value is the whole result: the content blocks of the server are passed on
    plain: frozenset[str] | None  # inputs that pass unchanged under their own names; None if others do not
    accepts: Callable[[Any], bool]  # the server's inputSchema
    watches: tuple[UriWatch, UriWatch]  # of the contract's input and of the server's arguments

    def is_plain(self, inputs: dict[str, Any]) -> bool:
        """Return whether the input can be sent to the server unchanged."""
        try:
            return self.plain is not None and self.plain.issuperset(inputs) and self.accepts(inputs)
        except ValueError:  # the validator cannot judge it, and the longer way reports why
            return False

    def uris(self, inputs: dict[str, Any], arguments: dict[str, Any]) -> list[str]:
        """Return the URIs that must be checked before the call is forwarded (AIP-security-6).

        Most calls contain no text that could be a URI, so this is usually empty.
        """
        ours, theirs = self.watches
        if (
            ours.names is not None
            and theirs.names is not None
            and ours.names.isdisjoint(inputs)
            and theirs.names.isdisjoint(arguments)
            and not may_hold_uri(arguments)
            and (arguments is inputs or not may_hold_uri(inputs))
        ):
            return []
        return list(dict.fromkeys((*ours.uris(inputs), *theirs.uris(arguments))))


@dataclass(eq=False)
class CompiledContract:
    """A contract with the drivers that serve it in one workspace."""

    contract: Contract
    providers: tuple[DriverProvider, ...]
    policy: resolver.SelectionPolicy
    pinned: str | None  # the driver that the operator pins
    workspace: str

    def __post_init__(self) -> None:
        contract, providers = self.contract, self.providers
        self.timeout_s = contract.timeout_ms / 1000
        self._inputs = _compile({"type": "object", **contract.inputs})
        self._context = None if contract.context_schema is None else _compile(contract.context_schema)
        bindings = [provider.bindings[contract.id] for provider in providers if contract.id in provider.bindings]
        self._dropped = frozenset(name for each in bindings for name in each.schema_narrowing.drop_inputs)
        self._checked = [each for each in providers if each.driver.health_check is not None]
        self._only = providers[0] if len(providers) == 1 and not self._checked else None
        self._decisions: dict[tuple[object, ...], ServingDecision] = {}
        self._last: tuple[list[tuple[object, ...]], ServingDecision] | None = None
        self._prepared: dict[int, PreparedBinding] = {}

    # Check 7 of the guard

    def find_refusal(self, inputs: Any, caller: Caller) -> DriverRefusal | None:
        """Return why the input or the caller does not satisfy the contract, or None if both do (AIP-14.rules-4)."""
        if not self._inputs.accepts(inputs):  # AIP-tools-12, AIP-30.resolve-6
            refusal = self._inputs.find_fault(inputs)
            return DriverRefusal("input_invalid", str(refusal))
        if self._context is not None:
            refusal = self._context.find_fault(context_of(caller, self.workspace))
            if refusal is not None:  # AIP-14.rules-4
                return DriverRefusal("input_invalid", f"{CONTEXT}: {refusal}")
        return None

    # Check 8 of the guard

    def decide(self, inputs: Mapping[str, Any], pinned: str | None, clock: Clock) -> ServingDecision:
        """Return the drivers that can serve a call with these inputs, best first.

        `pinned` names the only driver that may serve the call, or is None if any driver may. A driver that the
        operator pinned has priority over it.
        """
        dropped = self._dropped.intersection(inputs) if self._dropped else _NO_INPUTS
        only, last, ident = self._only, self._last, self.contract.id
        if only is not None and last is not None and pinned is None and not dropped:
            state, code, reason, login, serves = last[0][0]
            if (
                only.state is state
                and only.code == code
                and only.reason == reason
                and only.login == login
                and (ident in only.contract_ids) is serves
            ):
                return last[1]
        states: list[tuple[object, ...]] = [
            (provider.state, provider.code, provider.reason, provider.login, ident in provider.contract_ids)
            for provider in self.providers
        ]
        if self._checked:
            states += [(provider.health.passed_at, provider.health.failed_at) for provider in self._checked]
        if last is not None and pinned is None and not dropped and last[0] == states:
            return last[1]
        key = (pinned, *states, *sorted(dropped))
        decision = self._decisions.get(key)
        if decision is None:
            decision, lasts = self._make_decision(inputs, pinned, clock.now())
            if not lasts:
                return decision
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            self._decisions[key] = decision
        if pinned is None and not dropped:
            self._last = (states, decision)
        return decision

    def _make_decision(self, inputs: Mapping[str, Any], pinned: str | None, now: float) -> tuple[ServingDecision, bool]:
        """Choose the drivers for a call. Return the decision, and whether it can be reused until the state of a
        provider changes.

        A decision that used a failed health check does not stay valid, because the failure expires after some time.
        """
        possible = [self._candidate(provider) for provider in self.providers]
        candidates = [each for each in possible if each is not None]
        request = resolver.SelectionRequest(
            contract=self.contract,
            inputs=frozenset(inputs),
            now=now,
            pinned=self.pinned or pinned,  # what the operator pins wins over the driver of an earlier round
            region=self.policy.region,
        )
        resolution = resolver.resolve(request, candidates, self.policy)
        by_key = {provider.driver.key: provider for provider in self.providers}
        providers = tuple(by_key[each.candidate.key] for each in resolution.ranked)
        row = encode_value(resolver.resolved_row(request, resolution))
        facts = tuple(facts_of(self.contract, each) for each in resolution.ranked)
        decision = ServingDecision(resolution, providers, row, facts)
        return decision, not any(each.failed_at is not None for each in candidates)

    def describe(self, name: str, clock: Clock) -> ServedContract:
        """Return a description for the operator API: which driver would serve a call without optional
        inputs, and why.
        """
        resolution = self.decide({}, None, clock).resolution
        return ServedContract(
            contract=self.contract.id,
            version=self.contract.version,
            name=name,
            file=self.contract.places.file,
            pinned=self.pinned,
            decided_by=resolution.decided_by,
            ranked=tuple(
                RankedDriver(driver=each.candidate.key, cost_units=each.cost_units) for each in resolution.ranked
            ),
            rejected=tuple(RejectedDriver(**each._asdict()) for each in resolution.rejected),
            error=None if resolution.error is None else resolution.error.code,
        )

    def _candidate(self, provider: DriverProvider) -> resolver.Candidate | None:
        binding = provider.bindings.get(self.contract.id)
        if binding is None:
            return None
        refusal = None
        # The resolver judges how long a failed health check counts.
        if provider.state in _UNUSABLE and provider.code != UNHEALTHY:
            refusal = Refusal(provider.code or provider.state.value, provider.reason or provider.state.value)
        elif provider.state is DriverState.PARTIAL and self.contract.id not in provider.contract_ids:
            refusal = Refusal("contract_mismatch", "its server does not fit this contract")
        unauthed = provider.state is DriverState.UNAUTHED
        return resolver.Candidate(
            driver=provider.driver,
            binding=binding,
            refusal=refusal,
            auth="unauthed" if unauthed else "unknown",
            login=provider.login if unauthed else None,
            passed_at=provider.health.passed_at,
            failed_at=provider.health.failed_at,
        )

    def outlook(self, clock: Clock) -> Outlook:
        """Return a short forecast for an operator: which driver would serve a call without optional inputs, and why."""
        resolution = self.decide({}, None, clock).resolution
        if resolution.chosen is None:
            why = [f"{server_name(each.driver)}: {each.reason}" for each in resolution.rejected]
            code = resolution.error.code if resolution.error is not None else "no_route"
            return Outlook(False, f"{code}; {'; '.join(why)}" if why else code, self.timeout_s)
        others = len(resolution.ranked) - 1
        reason = f"{server_name(resolution.chosen.key)} would serve it ({resolution.decided_by})"
        return Outlook(True, reason + (f", {others} more could" if others else ""), self.timeout_s)

    # Sending

    def prepared(self, provider: DriverProvider) -> PreparedBinding | None:
        """Return the prepared binding of a provider, or None if a check showed that its server does not satisfy the
        contract.
        """
        bound = provider.bound.get(self.contract.id)
        cached = self._prepared.get(id(provider))  # the id stays valid: this object holds the provider
        if cached is not None and cached.bound is bound:
            return cached
        if bound is None:
            return None
        binding: ToolBinding = bound.binding
        listed = dict(provider.listing.tools.items).get(bound.tool_name) if provider.listing is not None else None
        schemas = (self.contract.inputs, None if listed is None else find_value(listed, "inputSchema"))
        mirrored = mirrored_arguments(schemas[1])  # arguments that a 2026-07-28 server wants repeated as headers
        # A driver can shorten the contract's limit but not extend it (AIP-30.implements-5).
        own_ms = binding.timeout_ms if binding.timeout_ms is not None else provider.driver.timeout_ms
        timeout_ms = self.contract.timeout_ms if own_ms is None else min(self.contract.timeout_ms, own_ms)
        prepared = self._prepared[id(provider)] = PreparedBinding(
            bound=bound,
            wire_name=Raw(encode_value(bound.tool_name)),
            head=modern_head(TOOLS_CALL, bound.tool_name),
            mirrored=() if isinstance(mirrored, str) else mirrored,
            timeout_s=timeout_ms / 1000,  # AIP-30.implements-5
            retry=binding.retry or provider.driver.retry or self.contract.retry,
            watches=(UriWatch(schemas[0]), UriWatch(schemas[1])),
            plain=_find_unchanged_inputs(bound.feeding),
            accepts=bound.accepted.validator.is_valid,
            keeps_result=binding.result_extract == "$"
            and binding.result_parse is None
            and binding.result_wrap is None
            and not binding.schema_narrowing.drop_outputs,
        )
        return prepared


def _find_unchanged_inputs(feeding: ArgumentRules) -> frozenset[str] | None:
    """Return the names of inputs that are passed as arguments of the same name. Return None if the rules add other
    arguments or drop inputs.
    """
    if feeding.defaults or feeding.context or feeding.dropped:
        return None
    fed = feeding.inputs.items()
    if any(each.argument in feeding.required and each.default is not msgspec.UNSET for _, each in fed):
        return None
    return frozenset(name for name, each in fed if each.argument == name and each.transform is None)


def may_hold_uri(value: dict[str, Any]) -> bool:
    """Return whether any text in the value contains a colon, which every absolute URI has.

    This is a fast first test: most calls contain only a few texts and numbers.
    """
    for member in value.values():
        kind = type(member)
        if kind is str:
            if ":" in member:
                return True
        elif (kind is dict and may_hold_uri(member)) or (
            kind is list and may_hold_uri(dict(enumerate(member)))  # type: ignore[arg-type]
        ):
            return True
    return False


def _compile(schema: Mapping[str, Any]) -> Compiled:
    compiled = compile_schema(dict(schema))
    if compiled is None:
        raise ValueError("a contract's schema was checked when its file was read")
    return compiled
