"""Calls that the node answers itself instead of sending them to a server: native operations and batches."""

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw

from interlock.aql.answers import Deliver, OperationAnswer, result_for, unexpected
from interlock.aql.operation_index import NativeAnswer, NativeOperation, OperationContext
from interlock.aql.protocol.envelope import Halted, batch, failed, success
from interlock.aql.protocol.errors import AqlFailure, Code, OperationFailed, internal_error, too_large
from interlock.aql.protocol.families import EndpointTool
from interlock.aql.protocol.requests import BatchRequest, read_item
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call, Outcome
from interlock.core.calls.caller import ClientRequest
from interlock.mcp.meta import PROGRESS_TOKEN
from interlock.mcp.methods import META_CAPABILITIES, PROGRESS, TOOLS_CALL
from interlock.wire.jsonrpc import codec

if TYPE_CHECKING:
    from interlock.aql.surface import AqlSurface

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
        """Release an answered call and record its outcome. `failure` is None if the call succeeded."""
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
    """The sink of one item of a batch. It passes progress to the client and the answer to the batch."""

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
            item_caller=caller if caller.channel is None else caller.unasking(),
        )
        whole.on_cancel = whole.cancel_item
        whole.advance()
        return whole

    def advance(self) -> None:
        """Run items as long as each is answered at once.

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
                has_asked = call is not None and call.dialogue is not None
                self._take(
                    name, OperationAnswer(failure=_ASKS) if has_asked and answered.failure is not None else answered
                )
                self.advance()

        client_request = ClientRequest(
            self.item_caller, self.client_id, TOOLS_CALL, dict(self.params), dict(self.meta), _ItemSink(self)
        )
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
        """Handle a cancellation request. The running item has the same request id as the batch."""
        if not self.done:
            self.current = None
            self.reason = f"cancelled after {self.place} of {len(self.items)}"
            self.cancel("cancelled by the client")
