"""Conversion of the answer of a tool call to the envelope that an AQL client gets.

An operation is executed as a tool call, whose answer passes three stages: `OperationSink` reads it as data or as a
failure, `Guidance` adds what the client can do about a failure, and `AnswerDelivery` writes the envelope to the client.
For an item of a batch the last stage is a different one, which collects the answers (`own_calls.BatchCall`).
"""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.aql.acknowledgement import DangerHold
from interlock.aql.adapter import AqlAdapter
from interlock.aql.loop_operations import DECLARATIONS
from interlock.aql.operation_index import OperationEntry
from interlock.aql.protocol.envelope import AnswerWarning, failed, success, tool_result
from interlock.aql.protocol.errors import AqlFailure, Code, internal_error, too_large
from interlock.aql.protocol.families import Mode
from interlock.aql.protocol.field_selection import Selection, known_fields, select, unmatched
from interlock.aql.protocol.model import Category
from interlock.aql.protocol.results import find_envelope_data, read_error, read_result
from interlock.core.calls.caller import Caller, ClientRequest
from interlock.core.calls.check import Account
from interlock.core.clock import rfc3339
from interlock.guard.budgets import Budgets
from interlock.mcp.methods import MODERN
from interlock.wire.jsonrpc.codec import decode_value, encode_result, encode_value

log = logging.getLogger("interlock.aql")

FIELDS_NAMED_MAX: Final = 20  # of the selected fields that the data does not have
WARN_FROM: Final = 0.8  # of a quota
SESSION_META: Final = "dev.interlock/aql-session"
STRUCTURED_SINCE: Final = "2025-06-18"  # the first revision of MCP with structuredContent


class _Message(msgspec.Struct):
    """The members of a JSON-RPC answer that this module uses."""

    result: Raw | msgspec.UnsetType = msgspec.UNSET
    error: Raw | msgspec.UnsetType = msgspec.UNSET


_decode: Final = msgspec.json.Decoder(_Message).decode


class OperationAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one operation.

    `message` is the complete JSON-RPC answer, set only if it is passed on unchanged because the tool has not ended the
    call.
    """

    data: Any = None
    failure: AqlFailure | None = None
    blocks: tuple[Raw, ...] = ()
    meta: Raw | None = None
    warnings: tuple[AnswerWarning, ...] = ()
    annotations: Raw | None = None
    message: bytes | None = None
    status: int = 200


def result_for(caller: Caller, envelope: bytes, *, is_error: bool = False, **others: Any) -> bytes:
    """Return the MCP result with the envelope, as the caller's revision of MCP has it."""
    is_modern = caller.era is MODERN
    is_structured = is_modern or caller.version >= STRUCTURED_SINCE
    return tool_result(envelope, is_error=is_error, is_modern=is_modern, is_structured=is_structured, **others)


Deliver = Callable[[OperationAnswer], None]


def unexpected(what: str) -> AqlFailure:
    """Log an unexpected exception and return the failure to answer with. The failure and the log entry have the same
    id.
    """
    ref = secrets.token_hex(6)
    log.exception("%s cannot be served, reference %s", what, ref)
    return internal_error("something went wrong here", ref=ref)


# The operation that helps a client after a refusal of the safety loop, by the reason of the refusal.
_HELPFUL_OPERATIONS: Final = {
    "execution_required": "execute_agent",
    "unreported_action": "record_execution_step",
    "paused": "record_execution_step",
    "agent_blocked": "verify_challenge",
}
_LOOP_CATEGORIES: Final = {declaration.name: declaration.category for declaration in DECLARATIONS}


@dataclass(eq=False)
class Guidance:
    """Advice that is added to answers: what a client can do about a refusal, and warnings about its quotas.

    MCP-AQL calls the node's budgets quotas (C.err-7). A client is warned when a quota is nearly used up. If it exceeds
    a rate limit, the answer says when it may call again.
    """

    adapter: AqlAdapter
    mode: Mode
    budgets: Budgets

    def quota_warnings(self, caller: Caller, entry: OperationEntry) -> tuple[AnswerWarning, ...]:
        """Return warnings for the quotas of an operation that are nearly used up."""
        route, budgets = entry.route, self.budgets
        if route is None or not budgets.is_enforced:
            return ()
        link_account: Account | None = getattr(route.link, "account", None)
        accounts = (link_account, budgets.callers.get(caller.principal.name), budgets.tools.get(route.qualified))
        # The quotas that a call of this tool counts towards; the others cannot be exceeded by calling it again.
        is_counted = {
            "max_mutable_calls_per_session": route.price.mutable,
            "max_cost_units_per_session": route.price.units > 0,
        }
        now = self.adapter.clock.now()
        return tuple(
            AnswerWarning(
                code="RATE_LIMIT_QUOTA_WARNING",
                message="Approaching quota limit",
                details={"metric": name, "current": spent.used, "warn_threshold": int(WARN_FROM * spent.limit)},
                severity="medium",
            )
            for account in accounts
            if account is not None
            for name, spent in account.shown(now).items()
            if is_counted.get(name) and spent.used >= WARN_FROM * spent.limit
        )

    def complete(self, failure: AqlFailure) -> AqlFailure:
        """Return the failure with advice: the operation and the tool that help, or how long to wait."""
        details = failure.details or {}
        if failure.code == Code.RATE_LIMIT_EXCEEDED.value and isinstance(details.get("retry_after_seconds"), int):
            resets_at = rfc3339(self.adapter.clock.wall() + details["retry_after_seconds"])
            return msgspec.structs.replace(failure, details={**details, "resets_at": resets_at})
        operation = _HELPFUL_OPERATIONS.get(str(details.get("reason")))
        if operation is None or failure.code != Code.PERMISSION_DENIED.value:
            return failure
        endpoints = self.adapter.endpoints(self.mode)
        tool = endpoints.tool_of_family(endpoints.profile.by_category[_LOOP_CATEGORIES[operation]])
        detail = details.get("detail")
        sentence = f"{detail[:1].upper()}{detail[1:]}. " if isinstance(detail, str) and detail else ""
        message = f"{failure.message}. {sentence}Operation '{operation}' is called via {tool}"
        return msgspec.structs.replace(
            failure, message=message, details={**details, "operation": operation, "tool": tool}
        )


@dataclass(slots=True, eq=False)
class OperationSink:
    """The sink of the tool call for an operation. It reads the answer of the tool and delivers an envelope."""

    request: ClientRequest
    deliver: Deliver
    entry: OperationEntry
    guidance: Guidance
    selection: Selection | None
    # If the confirmation failed, its failure is the answer.
    ack: DangerHold | None
    warnings: tuple[AnswerWarning, ...]

    def emit(self, message: bytes) -> None:
        self.request.sink.emit(message)

    def drop(self) -> None:
        self.request.sink.drop()

    def answer(self, message: bytes, status: int = 200) -> None:
        try:
            answered = self._read(message, status)
        except Exception:
            answered = OperationAnswer(failure=unexpected(f"the answer of {self.entry.name}"))
        self.deliver(answered)

    def _read(self, message: bytes, status: int) -> OperationAnswer:
        """Read the answer of the tool. If a confirmation was refused, its failure is returned instead."""
        if self.ack is not None and self.ack.failure is not None:
            return OperationAnswer(failure=self.ack.failure)
        entry = self.entry
        tool = entry.route.qualified if entry.route is not None else entry.name
        answer = _decode(message)
        if answer.error is not msgspec.UNSET:
            failure = read_error(answer.error, tool=tool, operation=entry.name)
            return OperationAnswer(failure=self.guidance.complete(failure))
        if answer.result is msgspec.UNSET:
            return OperationAnswer(failure=internal_error("the answer cannot be read"))
        read = read_result(answer.result, tool=tool, operation=entry.name, danger=entry.danger_word)
        if read.passes:
            return OperationAnswer(message=message, status=status)
        if entry.upstream is not None and read.failure is None:
            read = find_envelope_data(read.data) or read
        # Select the requested fields of the data, and add warnings.
        data, warnings = read.data, self.warnings
        if self.selection is not None and read.failure is None and self.selection != "full":
            whole = decode_value(data) if isinstance(data, Raw) else data
            data = select(whole, self.selection)
            if missed := unmatched(whole, self.selection):
                unmatched_warning = AnswerWarning(
                    code="VALIDATION_TRUNCATED_WARNING",
                    message=f"fields names nothing in the data: {', '.join(missed[:FIELDS_NAMED_MAX])}",
                    details={"unknown_fields": missed[:FIELDS_NAMED_MAX], "valid_fields": known_fields(whole)},
                    severity="medium",
                )
                warnings = (*warnings, unmatched_warning)
        if read.failure is None:
            warnings = (*warnings, *self.guidance.quota_warnings(self.request.caller, self.entry))
        return OperationAnswer(
            data=data,
            failure=read.failure,
            blocks=read.blocks,
            meta=read.meta,
            warnings=warnings,
            annotations=read.annotations,
        )


@dataclass(slots=True, eq=False)
class AnswerDelivery:
    """The delivery of a single operation's answer, which wraps it in an envelope and writes it to the client."""

    request: ClientRequest
    limit: int
    request_id: str | None = None
    # True for an answer of introspection, whose schemas are closed.
    is_bare: bool = False
    started_ms: Callable[[], int] | None = None
    # The operation, once it is known.
    entry: OperationEntry | None = None

    def __call__(self, answered: OperationAnswer) -> None:
        if answered.message is not None:
            self.request.sink.answer(answered.message, answered.status)
            return
        self.request.sink.answer(encode_result(self.request.client_id, self.result(answered)))

    def result(self, answered: OperationAnswer) -> bytes:
        """Encode the MCP result. If the data is too large, encode a failure, although the operation was executed."""
        failure, blocks, meta, caller = answered.failure, answered.blocks, answered.meta, self.request.caller
        if failure is None:
            if self.is_bare:
                envelope = success(answered.data)
            else:
                took = None if self.started_ms is None else self.started_ms()
                envelope = success(answered.data, answered.warnings, request_id=self.request_id, duration_ms=took)
            if len(envelope) > self.limit:
                more: dict[str, Any] = {"executed": True}
                if self.entry is not None and self.entry.category is Category.READ:
                    more["hint"] = "ask for less with fields, or in pages"
                failure, blocks = too_large("response_size", self.limit, len(envelope), **more), ()
        if failure is not None:
            if self.request_id is not None and not self.is_bare:
                details = {**(failure.details or {}), "request_id": self.request_id}
                failure = msgspec.structs.replace(failure, details=details)
            envelope = failed(failure, bare=self.is_bare)
            # Failures name the session, for logs and support (2.3.5, X-16).
            if meta is None and caller.aql is not None:
                meta = Raw(encode_value({SESSION_META: caller.aql}))
        is_error = failure is not None and failure.is_error
        return result_for(
            caller, envelope, is_error=is_error, blocks=blocks, meta=meta, annotations=answered.annotations
        )
