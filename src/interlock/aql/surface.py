"""An AQL surface at the front: a tools/call of an endpoint tool becomes the call of the tool behind its operation.

The order of 3.2: read the request, find the operation among those the caller may call, ask whether it belongs to the
endpoint, validate its parameters (check 3 of the guard's order); then the same call is made as by a flat tools/call,
through the same guard, with the same argument bytes wherever names need no mapping. There is no second way to a link.
"""

import json
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.aql.acknowledgement import Acknowledgement, PersonHold
from interlock.aql.adapter import AqlAdapter
from interlock.aql.answers import Answered, Deliver, Delivery, OperationSink, unexpected
from interlock.aql.batch import BatchCall
from interlock.aql.introspect import Introspection
from interlock.aql.loop_operations import DECLARATIONS
from interlock.aql.native_calls import NativeCalls, OwnCall
from interlock.aql.operation_index import Entry
from interlock.aql.protocol.envelope import Warn, failed, tool_result
from interlock.aql.protocol.errors import (
    Code,
    Failure,
    danger_denied,
    endpoint_mismatch,
    failure,
    invalid_encoding,
    unknown_operation,
)
from interlock.aql.protocol.errors import Code as AqlCode
from interlock.aql.protocol.families import INTROSPECT, EndpointTool, Mode, endpoint_tools
from interlock.aql.protocol.field_selection import Selection, read_selection
from interlock.aql.protocol.model import Category, Danger
from interlock.aql.protocol.requests import Batch, Request, read_request
from interlock.aql.protocol.tokens import digest_of
from interlock.aql.protocol.validation import Arguments
from interlock.catalog.catalog import View
from interlock.core.audit_record import AuditRecord
from interlock.core.calls.call import Call
from interlock.core.calls.caller import Caller, ViewKey
from interlock.core.calls.charge import Account
from interlock.core.calls.client_request import ClientRequest
from interlock.core.clock import Clock, rfc3339
from interlock.dispatch.arrivals import ArrivingCall
from interlock.dispatch.dispatch import Dispatch
from interlock.guard.budgets import Budgets
from interlock.mcp.meta import PROGRESS_TOKEN
from interlock.mcp.methods import TOOLS_CALL
from interlock.safety.executions import HeldOperation
from interlock.wire.jsonrpc.codec import decode_object, encode_result, encode_value, find_string

# Budgets as quotas of MCP-AQL (C.err-7): a warning when one is nearly used up, and when a limit opens again.

WARN_FROM: Final = 0.8  # of a limit


class Quotas:
    def __init__(self, budgets: Budgets, clock: Clock) -> None:
        self._budgets = budgets
        self._clock = clock

    @property
    def is_needed(self) -> bool:
        return self._budgets.is_enforced

    def warnings(self, caller: Caller, entry: Entry) -> tuple[Warn, ...]:
        """Return warnings for the quotas of this operation that are nearly used up."""
        route = entry.route
        if route is None or not self._budgets.is_enforced:
            return ()
        price = route.price
        counted = {
            "max_mutable_calls_per_session": price.mutable,
            "max_cost_units_per_session": price.units > 0,
        }
        now = self._clock.now()
        return tuple(
            _nearly_used_up(name, spent.used, spent.limit)
            for account in self._accounts(caller, entry)
            for name, spent in account.shown(now).items()
            if counted.get(name) and spent.used >= WARN_FROM * spent.limit
        )

    def _accounts(self, caller: Caller, entry: Entry) -> Iterator[Account]:
        route, budgets = entry.route, self._budgets
        if route is None:
            return
        account = getattr(route.link, "account", None)
        for candidate in (account, budgets.callers.get(caller.principal.name), budgets.tools.get(route.qualified)):
            if candidate is not None:
                yield candidate

    def with_time(self, failure: Failure) -> Failure:
        """Add the time at which the limit resets to a failure of an exceeded rate."""
        details = failure.details or {}
        wait_s = details.get("retry_after_seconds")
        if failure.code != Code.RATE_LIMIT_EXCEEDED.value or not isinstance(wait_s, int):
            return failure
        resets_at = rfc3339(self._clock.wall() + wait_s)
        return msgspec.structs.replace(failure, details={**details, "resets_at": resets_at})


def _nearly_used_up(metric: str, current: int, limit: int) -> Warn:
    return Warn(
        code="RATE_LIMIT_QUOTA_WARNING",
        message="Approaching quota limit",
        details={"metric": metric, "current": current, "warn_threshold": int(WARN_FROM * limit)},
        severity="medium",
    )


# What a client of an AQL surface can do about a refusal: the operation that helps, and the tool that takes it.

_CATEGORIES: Final = {one.name: one.category for one in DECLARATIONS}
# By the reason of a refusal of the safety loop.
_OPERATIONS: Final = {
    "execution_required": "execute_agent",
    "unreported_action": "record_execution_step",
    "paused": "record_execution_step",
    "agent_blocked": "verify_challenge",
}


class Guidance:
    def __init__(self, adapter: AqlAdapter, mode: Mode, quotas: Quotas) -> None:
        self._adapter = adapter
        self._mode: Mode = mode
        self._quotas = quotas

    @property
    def has_quotas(self) -> bool:
        return self._quotas.is_needed

    def quota_warnings(self, caller: Caller, entry: Entry) -> tuple[Warn, ...]:
        return self._quotas.warnings(caller, entry)

    def complete(self, failure: Failure) -> Failure:
        details = failure.details or {}
        operation = _OPERATIONS.get(str(details.get("reason")))
        if operation is None or failure.code != Code.PERMISSION_DENIED.value:
            return self._quotas.with_time(failure)
        tool = self._tool(_CATEGORIES[operation])
        message = f"{failure.message}. {_sentence(details.get('detail'))}Operation '{operation}' is called via {tool}"
        return msgspec.structs.replace(
            failure, message=message, details={**details, "operation": operation, "tool": tool}
        )

    def _tool(self, category: Category) -> str:
        endpoints = self._adapter.endpoints(self._mode)
        return endpoints.tool_of_family(endpoints.profile.by_category[category])


def _sentence(detail: object) -> str:
    return f"{detail[:1].upper()}{detail[1:]}. " if isinstance(detail, str) and detail else ""


log = logging.getLogger("interlock.aql")

_LOOP_OPERATIONS: Final = frozenset(one.name for one in DECLARATIONS)
_LOOP_OFF: Final = "The safety loop is disabled here"


class AqlSurface:
    """Dispatcher that the fronts of AQL clients use. There is one per mode."""

    def __init__(self, dispatch: Dispatch, adapter: AqlAdapter, mode: Mode) -> None:
        self.dispatch = dispatch
        self.adapter = adapter
        self._mode: Mode = mode
        self._introspection = Introspection(adapter)
        self._native = NativeCalls()
        self._guidance = Guidance(adapter, mode, Quotas(dispatch.budgets, adapter.clock))
        self._listed: tuple[object, bytes] | None = None
        self.get_prompt = dispatch.get_prompt
        self.read_resource = dispatch.read_resource
        self.complete = dispatch.complete
        self.confirm = dispatch.confirm

    def view(self, key: ViewKey) -> View:
        return self.dispatch.view(key)

    @property
    def endpoints(self) -> Any:
        return self.adapter.endpoints(self._mode)

    def tools(self) -> bytes:
        """Return the JSON array of tools/list. The bytes change only when the configuration changes."""
        plan = self.adapter.plan
        version = (id(plan.aql), self.adapter.loop.mode())
        if self._listed is None or self._listed[0] != version:
            rule = self.adapter.loop.instructions()
            listed = endpoint_tools(self.adapter.endpoints(self._mode), has_batch=plan.aql.batch, rule=rule)
            self._listed = (version, listed)
        return self._listed[1]

    def maybe_unreadable(self, data: bytes, *, is_modern: bool) -> bytes | None:
        """Return the answer to a tools/call of an endpoint whose text is not UTF-8 (AQL 4.7.1), or None."""
        try:
            data.decode()
            return None
        except UnicodeDecodeError as error:
            offset = error.start
        try:
            message = json.loads(data.decode("utf-8", "replace"))
            is_call = message["method"] == TOOLS_CALL and isinstance(message["id"], int | str)
            tool = message["params"]["name"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        if not is_call or not isinstance(tool, str) or tool not in self.adapter.endpoints(self._mode).by_name:
            return None
        envelope = failed(invalid_encoding("request", offset))  # AQL-4.7.1-1
        return encode_result(encode_value(message["id"]), tool_result(envelope, is_error=False, is_modern=is_modern))

    # Calls

    def call_tool(self, client_request: ClientRequest) -> Call:
        caller, meta = client_request.caller, client_request.meta
        name = find_string(client_request.params.get("name"))
        endpoints = self.adapter.endpoints(self._mode)
        tool = endpoints.by_name.get(name or "")
        if tool is None:
            return self.dispatch.call_tool(
                msgspec.structs.replace(client_request, params={"name": Raw(b'""')}, headers=None)
            )
        aql = self.adapter.plan.aql
        if caller.aql is None:
            self.adapter.session_of(caller, meta)
        request = read_request(client_request.params.get("arguments"), aql.limits, has_batch=aql.batch)
        if isinstance(request, Batch):
            return BatchCall.start(self, client_request, request, tool)
        if isinstance(request, Failure):
            is_bare = request.code == AqlCode.BATCH_VALIDATION_ERROR.value
            return self._refuse(client_request, request, is_bare=is_bare)
        deliver = Delivery(
            client_request,
            aql.limits.response_bytes,
            request_id=request.request_id,
            is_bare=request.operation == INTROSPECT,
            started_ms=self._stopwatch() if aql.response_meta and request.operation != INTROSPECT else None,
        )
        return self.begin(client_request, request, tool, deliver)

    def begin(
        self,
        client_request: ClientRequest,
        request: Request,
        tool: EndpointTool,
        deliver: Deliver,
    ) -> Call:
        """Begin an operation. Its answer is passed to `deliver`, now or later."""
        try:
            return self._begin(client_request, request, tool, deliver)
        except Exception:
            answered = Answered(failure=unexpected(f"a request for {request.operation!r}"))
            return self._own(client_request, answered, deliver)

    def _begin(
        self,
        client_request: ClientRequest,
        request: Request,
        tool: EndpointTool,
        deliver: Deliver,
    ) -> Call:
        caller, meta = client_request.caller, client_request.meta
        index = self.adapter.index(caller)
        entry = index.by_name.get(request.operation)
        if entry is None or request.operation == INTROSPECT:
            later = ArrivingCall(*self.dispatch.call_fields(client_request))
            make = partial(self.begin, client_request, request, tool, deliver)
            if self.dispatch.arrivals.postpone(later, make):
                return later
        if entry is None:  # AQL-8.5.2-1
            because = _LOOP_OFF if request.operation in _LOOP_OPERATIONS else ""
            unknown = unknown_operation(request.operation, index.near(request.operation), because=because)
            return self._own(client_request, Answered(failure=unknown), deliver)
        if tool.family is not None:
            wrong = self._misplaced(entry, tool)
            if wrong is not None:
                return self._own(client_request, Answered(failure=wrong), deliver)
        if isinstance(deliver, Delivery):
            deliver.serve(entry)
        if request.operation == INTROSPECT:
            if self.adapter.lifted_servers.is_asking:
                call = self._new(client_request, INTROSPECT)
                self._native.answer_later(call, self._introspect_settled(caller, request), deliver)
                return call
            answered = self._introspect(caller, request)
            return self._own(client_request, answered, deliver, target=INTROSPECT)
        checked = self._check(caller, entry, request)
        if isinstance(checked, Failure):
            answered = Answered(failure=checked)
            return self._own(client_request, answered, deliver, target=entry.name)
        arguments, selection = checked
        ack = self._acknowledgement(caller, entry, arguments, request)
        if isinstance(ack, Failure):
            answered = Answered(failure=ack)
            return self._own(client_request, answered, deliver, target=entry.name)
        if PROGRESS_TOKEN not in meta and request.meta is not None:
            inner = decode_object(request.meta) or {}
            if PROGRESS_TOKEN in inner:
                meta = {**meta, PROGRESS_TOKEN: inner[PROGRESS_TOKEN]}
                client_request = msgspec.structs.replace(client_request, meta=meta)
        if entry.native is not None:
            return self._begin_native(client_request, entry, arguments, ack, deliver)
        warnings: tuple[Warn, ...] = ()
        if arguments.ignored:
            log.warning(
                "%s: strict_mode is off, left out or renamed: %s", entry.name, ", ".join(arguments.ignored)[:200]
            )
            warnings = self.adapter.unsaid(caller, _warnings(arguments.ignored))
        wrapped = OperationSink(
            client_request.sink,
            deliver,
            entry,
            selection,
            caller=caller,
            help=self._guidance,
            ack=ack,
            warnings=warnings,
        )
        sent = {**client_request.params, "name": entry.tool_name, "arguments": _for_upstream(entry, arguments.text)}
        inner_request = ClientRequest(caller, client_request.client_id, TOOLS_CALL, sent, meta, wrapped)
        return self.dispatch.call_tool(inner_request, ack=ack)

    async def _introspect_settled(self, caller: Caller, request: Request) -> Answered:
        """Answer once the upstream AQL servers have listed their operations, so that these are shown and not their
        tools.
        """
        await self.adapter.lifted_servers.settle()
        return self._introspect(caller, request)

    def _introspect(self, caller: Caller, request: Request) -> Answered:
        missing = self.dispatch.arrivals.missing(self.view(caller.key))
        return self._introspection.answer(caller, request, self.adapter.endpoints(self._mode), missing)

    def _misplaced(self, entry: Entry, tool: EndpointTool) -> Failure | None:
        endpoints = self.adapter.endpoints(self._mode)
        profile = endpoints.profile
        own = entry.family if entry.family in profile.families else None
        family = own or profile.by_operation.get(entry.name) or profile.by_category[entry.category]
        if family == tool.family:  # AQL-6.2-2 and -3
            return None
        expected = endpoints.tool_of_family(family)
        return endpoint_mismatch(entry.name, family, expected, tool.family, tool.name)  # AQL-6.2-3

    def _check(self, caller: Caller, entry: Entry, request: Request) -> tuple[Arguments, Selection | None] | Failure:
        aql = self.adapter.plan.aql
        if entry.treatment == "deny":
            danger = entry.danger
            self._note_danger(caller, entry, "denied")
            return danger_denied(entry.name, danger.level.word, entry.trust, entry.least_trust, danger.reasons)
        arguments = entry.validator.validate(request, strict=aql.strict_mode)
        if isinstance(arguments, Failure):
            return arguments
        if "fields" not in arguments.own:
            return arguments, None
        selection = read_selection(arguments.own["fields"])
        return selection if isinstance(selection, Failure) else (arguments, selection)

    def _acknowledgement(
        self, caller: Caller, entry: Entry, arguments: Arguments, request: Request
    ) -> Acknowledgement | PersonHold | Failure | None:
        """Return what must confirm a call, a failure, or None if nothing must.

        A call that the gate holds is confirmed there and needs no token (C.danger-3).
        """
        if entry.treatment != "confirm" or (entry.route is not None and entry.route.gated):
            if entry.danger.level >= Danger.DESTRUCTIVE:
                self._note_danger(caller, entry, "allowed" if entry.treatment != "confirm" else "left to the gate")
            return None
        person = self.adapter.loop.maybe_person_hold(caller, entry.route, self._held(entry, arguments))
        if person is not None:
            self._note_danger(caller, entry, "confirmed by a person" if not person.is_asked_first else "denied, held")
            return person
        note = partial(self._note_danger, caller, entry)
        token = _token(arguments, request)
        if isinstance(token, Failure):
            note(f"denied, {token.code}")
            return token
        owner, principal = self.adapter.owner(caller), caller.principal.name
        digest = digest_of(bytes(arguments.text))
        return Acknowledgement(self.adapter.tokens, entry, owner, principal, digest, token, note)

    def _held(self, entry: Entry, arguments: Arguments) -> HeldOperation:
        has_secret = any(parameter.sensitive for parameter in entry.operation.parameters)
        return HeldOperation(
            operation=entry.name,
            digest=digest_of(bytes(arguments.text)),
            category=entry.category,
            danger=entry.danger.level.word,
            reasons=entry.danger.reasons,
            params=None if has_secret else arguments.text,
            at=self.adapter.clock.wall(),
        )

    def _note_danger(self, caller: Caller, entry: Entry, outcome: str) -> None:
        """Record an attempt on an operation of danger level 2 or more in the audit log (C.danger-5)."""
        adapter, who = self.adapter, caller.principal.name
        detail = f"danger {entry.danger.level.word}, trust {entry.trust}: {outcome}"
        verdict, ended = ("refused", "refused") if outcome.startswith("denied") else ("admitted", "ok")
        adapter.recorder.add(
            AuditRecord(
                adapter.clock.wall(), who, caller.via, "aql/danger", entry.name, None, verdict, ended, 0.0, detail
            )
        )

    def _begin_native(
        self,
        client_request: ClientRequest,
        entry: Entry,
        arguments: Arguments,
        ack: Acknowledgement | PersonHold | None,
        deliver: Deliver,
    ) -> Call:
        if ack is not None and ack.acknowledge() is not None:
            answered = Answered(failure=ack.failure)
            return self._own(client_request, answered, deliver, target=entry.name)
        has_secret = any(parameter.sensitive for parameter in entry.operation.parameters)
        params = {"name": client_request.params.get("name"), "arguments": None if has_secret else arguments.text}
        call = self._new(msgspec.structs.replace(client_request, params=params), entry.name)
        native = entry.native
        if native is not None:
            self._native.begin(call, native, arguments.text, self.adapter.session_of(client_request.caller), deliver)
        return call

    # Answers of our own

    def _new(self, client_request: ClientRequest, target: str) -> OwnCall:
        return OwnCall(*self.dispatch.call_fields(client_request, target))

    def _own(
        self,
        client_request: ClientRequest,
        answered: Answered,
        deliver: Deliver,
        *,
        target: str = "",
    ) -> Call:
        """Deliver an answer that is available at once, and record it like any call."""
        call = self._new(client_request, target or "mcp_aql")
        call.end(answered.failure)
        deliver(answered)
        return call

    def _refuse(
        self,
        client_request: ClientRequest,
        refused: Failure,
        *,
        is_bare: bool,
    ) -> Call:
        limit = self.adapter.plan.aql.limits.response_bytes
        deliver = Delivery(client_request, limit, is_bare=is_bare)
        return self._own(client_request, Answered(failure=refused), deliver)

    def _stopwatch(self) -> Any:
        clock, started = self.adapter.clock, self.adapter.clock.now()
        return lambda: int((clock.now() - started) * 1000)


def _for_upstream(entry: Entry, text: Raw) -> Raw:
    """Behind an AQL server's own tool stands an operation of its own."""
    if entry.upstream is None:
        return text
    return Raw(b'{"operation":%b,"params":%b}' % (encode_value(entry.upstream), bytes(text)))


def _token(arguments: Arguments, request: Request) -> str | Failure | None:
    tokens = []
    if request.confirmation is not None:
        tokens.append(find_string(request.confirmation))
    if "confirmation_token" in arguments.own:
        tokens.append(arguments.own["confirmation_token"])
    if not tokens:
        return None
    if any(not isinstance(each, str) for each in tokens) or len(set(tokens)) > 1:
        return failure(AqlCode.TOKEN_INVALID, "Invalid confirmation token", {"token": str(tokens[0])[:80]})
    return tokens[0]


def _warnings(ignored: tuple[str, ...]) -> tuple[Warn, ...]:
    """Return a warning for each parameter that was ignored because strict_mode is off (AQL 4.6.2)."""
    return tuple(
        Warn(
            code="DEPRECATION_WARNING",
            message=f"Unknown parameter '{name}' was ignored or taken under its new name",
            details={"type": "parameter", "deprecated_item": name},
            severity="medium",
        )
        for name in ignored
    )
