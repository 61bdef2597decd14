"""Answers to AQL clients: envelopes that are made from the answers of tools, and calls that the node answers itself.

An operation is executed as a tool call, whose answer passes three stages: `OperationSink` reads it as data or as a
failure, `Guidance` adds what the client can do about a failure, and `AnswerDelivery` writes the envelope to the client.
For an item of a batch the last stage is a different one, which collects the answers (`BatchCall`).

Native operations and batches are not sent to a server. Their calls are answered by the node itself (`OwnCall`).
"""

import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from interlock.aql.adapter import AqlAdapter
from interlock.aql.loop_operations import DECLARATIONS, DangerHold
from interlock.aql.operation_index import NativeAnswer, NativeOperation, OperationContext, OperationEntry
from interlock.aql.protocol.envelope import AnswerWarning, Halted, batch, failed, medium_warning, success, tool_result
from interlock.aql.protocol.errors import AqlFailure, Code, OperationFailed, internal_error, too_large
from interlock.aql.protocol.families import EndpointTool, Mode
from interlock.aql.protocol.field_selection import Selection, known_fields, select, unmatched
from interlock.aql.protocol.model import Category
from interlock.aql.protocol.requests import BatchRequest, read_item
from interlock.aql.protocol.results import OperationAnswer, find_envelope_data, read_error, read_result
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call, Outcome
from interlock.core.calls.caller import Caller, ClientRequest
from interlock.core.calls.check import Account
from interlock.core.clock import rfc3339
from interlock.guard.budgets import Budgets
from interlock.mcp.meta import PROGRESS_TOKEN
from interlock.mcp.methods import META_CAPABILITIES, MODERN, PROGRESS, TOOLS_CALL
from interlock.wire.jsonrpc import codec
from interlock.wire.jsonrpc.codec import decode_value, encode_result, encode_value

if TYPE_CHECKING:
    from interlock.aql.surface import AqlSurface

log = logging.getLogger("interlock.aql")

FIELDS_NAMED_MAX: Final = 20  # of the selected fields that the data does not have
WARN_FROM: Final = 0.8  # of a quota
SESSION_META: Final = "dev.interlock/aql-session"
STRUCTURED_SINCE: Final = "2025-06-18"  # the first revision of MCP with structuredContent


class _Message(msgspec.Struct):
    """The members of a tool's JSON-RPC answer that are needed to answer an AQL operation."""

    result: Raw | msgspec.UnsetType = msgspec.UNSET
    error: Raw | msgspec.UnsetType = msgspec.UNSET


_decode: Final = msgspec.json.Decoder(_Message).decode


def result_for(caller: Caller, envelope: bytes, *, is_error: bool = False, **others: Any) -> bytes:
    """Return the MCP result that contains an envelope, in the form of the caller's MCP revision."""
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
    """A source of advice for answers: what a client can do about a refusal, and warnings about its quotas.

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
            medium_warning(
                "RATE_LIMIT_QUOTA_WARNING",
                "Approaching quota limit",
                {"metric": name, "current": spent.used, "warn_threshold": int(WARN_FROM * spent.limit)},
            )
            for account in accounts
            if account is not None
            for name, spent in account.shown(now).items()
            if is_counted.get(name) and spent.used >= WARN_FROM * spent.limit
        )

    def complete(self, failure: AqlFailure) -> AqlFailure:
        """Return the failure with advice for the client: an operation and a tool that help, or the time at which a
        limit on calls ends.
        """
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
        details = {**details, "operation": operation, "tool": tool}
        return msgspec.structs.replace(failure, message=message, details=details)


@dataclass(slots=True, eq=False)
class OperationSink:
    """The receiver of a tool's answer to an operation. It converts the answer to the one that the AQL client gets."""

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
        """Convert a tool's message to the answer of an AQL operation. If a required confirmation of the call is missing
        or invalid, return the failure that says so.
        """
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
        if read.is_unfinished:
            return OperationAnswer(message=message, status=status)
        if entry.upstream is not None and read.failure is None:
            read = find_envelope_data(read.data) or read
        # Select the requested fields of the data, and add warnings.
        data, warnings = read.data, self.warnings
        if self.selection is not None and read.failure is None and self.selection != "full":
            whole = decode_value(data) if isinstance(data, Raw) else data
            data = select(whole, self.selection)
            if missed := unmatched(whole, self.selection):
                text = f"fields names nothing in the data: {', '.join(missed[:FIELDS_NAMED_MAX])}"
                details = {"unknown_fields": missed[:FIELDS_NAMED_MAX], "valid_fields": known_fields(whole)}
                warnings = (*warnings, medium_warning("VALIDATION_TRUNCATED_WARNING", text, details))
        if read.failure is None:
            warnings = (*warnings, *self.guidance.quota_warnings(self.request.caller, self.entry))
        return msgspec.structs.replace(read, data=data, warnings=warnings)


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
        """Encode an answer as an MCP result. If its data is too large, encode a failure that says that the operation
        was executed.
        """
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
        is_error, annotations = failure is not None and failure.is_error, answered.annotations
        return result_for(caller, envelope, is_error=is_error, blocks=blocks, meta=meta, annotations=annotations)


ITEM_BYTES: Final = 1024  # of a batch's answer, kept free for each item that is still to come
_ASKS: Final = internal_error("the tool asks for input; call it alone", reason="interaction_required")


class OwnCall(Call):
    """A call that this node answers itself. `on_cancel` is a function that stops the work for the call."""

    on_cancel: Any = None

    def cancel(self, reason: str) -> None:
        if not self.done and self.on_cancel is not None:
            self.on_cancel()
        super().cancel(reason)

    def end(self, failure: AqlFailure | None) -> None:
        """Mark the call as answered, and record its outcome. `failure` is None if the call succeeded."""
        if self.done:
            return
        self.done = True
        self.reason = None if failure is None else failure.code
        refused = failure is not None and not failure.is_error
        outcome = Outcome.OK if failure is None else Outcome.REFUSED if refused else Outcome.ERROR
        self.handler.finish(self, outcome)

    def answer_later(self, tasks: BackgroundTasks, work: Awaitable[OperationAnswer], deliver: Deliver) -> None:
        """Run `work` in a task, which is cancelled with this call, and answer the call with its result."""

        async def run() -> None:
            answered = await work
            if not self.done:
                self.end(answered.failure)
                deliver(answered)

        self.on_cancel = tasks.begin(run()).cancel

    def tell_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Notify the client of progress, if it asked for that and the call is still running."""
        token = self.meta.get(PROGRESS_TOKEN)
        if token is None or self.done:
            return
        more = {"total": total, "message": message}
        params = {PROGRESS_TOKEN: token, "progress": progress}
        params |= {name: value for name, value in more.items() if value is not None}
        self.sink.emit(codec.encode_notification(PROGRESS.encode(), codec.encode_value(params)))


async def native_answer(native: NativeOperation, context: OperationContext, params: dict[str, Any]) -> OperationAnswer:
    """Run the handler of a native operation and return its answer. Any exception becomes a failure."""
    try:
        data = await native.handler(context, params)
        answer = data if isinstance(data, NativeAnswer) else NativeAnswer(data)
        text = answer.data if isinstance(answer.data, Raw) else Raw(codec.encode_value(answer.data))
        return OperationAnswer(data=text, warnings=tuple(answer.warnings))
    except OperationFailed as failed:
        return OperationAnswer(failure=failed.failure)
    except Exception:
        return OperationAnswer(failure=unexpected(f"the operation {native.declaration.name}"))


class _ItemSink:
    """A receiver of the messages of one batch item. It passes progress to the client."""

    __slots__ = ("_batch",)

    def __init__(self, whole: "BatchCall") -> None:
        self._batch = whole

    def emit(self, message: bytes) -> None:
        self._batch.sink.emit(message)

    def answer(self, message: bytes, status: int = 200) -> None:
        raise TypeError("an item's answer goes to `deliver`")

    def drop(self) -> None:
        self._batch.on_item_cancelled()


class BatchCall(OwnCall):
    """A batch, which runs its operations one after another, each as a separate call (C.batch-*).

    An item that fails does not affect other items. An item that needs a confirmation stops the batch. Nobody can be
    asked for input inside a batch: if a tool asks for input and then fails, the client is advised to call that tool
    alone. If the tool succeeds without the input, that result counts, because calling it again would repeat its work.
    Cancelling the batch cancels the running call, and the remaining items do not run.
    """

    surface: Any = None
    tool: Any = None
    items: tuple[Raw, ...] = ()
    place: int = 0
    results: Any = None
    current: Call | None = None
    is_advancing: bool = False
    is_halted: bool = False
    size: int = 0  # of the results so far
    item_caller: Any = None

    @classmethod
    def start(
        cls, surface: "AqlSurface", request: ClientRequest, batch: BatchRequest, tool: EndpointTool
    ) -> "BatchCall":
        """Create the call of a batch and start its first items."""
        caller = request.caller
        whole = cls(
            caller,
            request.client_id,
            TOOLS_CALL,
            request.params,
            # Without the client's capabilities no tool asks for input.
            {**request.meta, META_CAPABILITIES: Raw(b"{}")} if META_CAPABILITIES in request.meta else request.meta,
            request.sink,
            surface.adapter.clock.now(),
            surface.dispatch.under_way,
            "mcp_aql batch",
            surface=surface,
            tool=tool,
            items=batch.items,
            results=[],
            item_caller=caller if caller.channel is None else caller.without_questions(),
        )
        whole.on_cancel = whole.cancel_item
        whole.advance()
        return whole

    def advance(self) -> None:
        """Run the items of the batch one after another, until one is not answered at once.

        When an item is answered later, this method is called again.
        """
        if self.is_advancing:
            return
        self.is_advancing = True
        while not self.done and not self.is_halted and self.place < len(self.items) and self.current is None:
            self._begin(self.items[self.place])
        self.is_advancing = False
        if not self.done and self.current is None and (self.is_halted or self.place == len(self.items)):
            # Answer the batch with the results of all items that ran.
            halted = self.results.pop() if self.is_halted else None
            result = result_for(self.caller, batch(self.results, halted))
            sink, client_id = self.sink, self.client_id
            self.end(None)
            sink.answer(codec.encode_result(client_id, result))

    def _begin(self, raw: Raw) -> None:
        """Start one item. Its answer may arrive before this method returns, or later."""
        request = read_item(raw)
        if isinstance(request, AqlFailure):
            self._take("", OperationAnswer(failure=request))
            return
        name, place = request.operation, self.place

        def deliver(answered: OperationAnswer) -> None:
            call, self.current = self.current, None
            if place == self.place:
                if call is not None and call.dialogue is not None and answered.failure is not None:
                    answered = OperationAnswer(failure=_ASKS)
                self._take(name, answered)
                self.advance()

        params, meta, sink = dict(self.params), dict(self.meta), _ItemSink(self)
        client_request = ClientRequest(self.item_caller, self.client_id, TOOLS_CALL, params, meta, sink)
        call = self.surface.begin(client_request, request, self.tool, deliver)
        if place == self.place and not call.done:
            self.current = call

    def _take(self, operation: str, answered: OperationAnswer) -> None:
        """Store the answer of an item, or stop the batch if the item needs a confirmation."""
        failure = _ASKS if answered.message is not None else answered.failure
        if failure is not None and failure.code == Code.CONFIRMATION_REQUIRED.value:
            pending: list[dict[str, Any]] = []
            for index in range(self.place + 1, len(self.items)):
                members = codec.decode_object(self.items[index]) or {}
                params = {"params": members["params"]} if "params" in members else {}
                name = codec.find_string(members.get("operation")) or ""
                pending.append({"index": index, "operation": name, **params})
            halted = Halted(index=self.place, operation=operation, failure=failure, pending=tuple(pending))
            self.results.append(halted)
            self.is_halted = True
            return
        # The schema of an item has no place for the other members of a failure.
        bare = None if failure is None else AqlFailure(failure.code, failure.message, failure.details)
        text = success(answered.data) if bare is None else failed(bare)
        limit = self.surface.adapter.plan.aql.limits.response_bytes
        if self.size + len(text) > limit - ITEM_BYTES * (len(self.items) - self.place):
            failure = too_large("response_size", limit, len(text), executed=True)
            text = failed(failure)
        self.size += len(text) + len(operation)
        self.results.append((operation, text, failure is None))
        self.place += 1

    def cancel_item(self) -> None:
        current, self.current = self.current, None
        if current is not None:
            current.cancel("the batch was cancelled")

    def on_item_cancelled(self) -> None:
        """Cancel the batch because the client cancelled the running item, which has the same request id."""
        if not self.done:
            self.current = None
            self.reason = f"cancelled after {self.place} of {len(self.items)}"
            self.cancel("cancelled by the client")
