"""A batch: its operations one after the other, each as a call of its own (C.batch-*).

An item that fails leaves the others alone; one that needs a confirmation halts the batch. Nobody can be asked anything
inside a batch: a tool that fails without an answer is to be called alone, and one that ends well without it has ended
well, because calling it again would do its work twice. Cancelling the batch cancels the call under way, and the
rest does not run.
"""

from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw

from interlock.aql.answers import STRUCTURED_SINCE, Answered
from interlock.aql.native_calls import OwnCall
from interlock.aql.protocol.envelope import Halted, batch, failed, success, tool_result
from interlock.aql.protocol.errors import Code, Failure, internal_error, too_large
from interlock.aql.protocol.families import EndpointTool
from interlock.aql.protocol.requests import Batch, read_item
from interlock.core.calls.call import Call
from interlock.core.calls.client_request import ClientRequest
from interlock.mcp.methods import META_CAPABILITIES, MODERN, TOOLS_CALL
from interlock.wire.jsonrpc.codec import decode_object, encode_result, find_string

if TYPE_CHECKING:
    from interlock.aql.surface import AqlSurface

ITEM_BYTES: Final = 1024  # kept free for each item that is still to come
_EMPTY: Final = Raw(b"{}")
_ASKS: Final = internal_error("the tool asks for input; call it alone", reason="interaction_required")


class _ItemSink:
    """Progress of an item goes to the client; its answer goes to the batch."""

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
    def start(cls, surface: "AqlSurface", request: ClientRequest, batch: Batch, tool: EndpointTool) -> "BatchCall":
        caller = request.caller
        whole = cls(
            caller,
            request.client_id,
            TOOLS_CALL,
            request.params,
            _unasked(request.meta),
            request.sink,
            surface.adapter.clock.now(),
            surface.dispatch.under_way,
            "mcp_aql batch",
            surface=surface,
            tool=tool,
            items=batch.items,
            results=[],
            item_caller=caller if caller.asker is None else caller.unasking(),
        )
        whole.stop_with(whole.cancel_item)
        whole.advance()
        return whole

    def advance(self) -> None:
        """Run items as long as they are answered at once. An item that is answered later calls this again."""
        if self.is_advancing:
            return
        self.is_advancing = True
        while not self.done and not self.is_halted and self.place < len(self.items) and self.current is None:
            self._begin(self.items[self.place])
        self.is_advancing = False
        if not self.done and self.current is None and (self.is_halted or self.place == len(self.items)):
            self._finish()

    def _begin(self, raw: Raw) -> None:
        request = read_item(raw)
        if isinstance(request, Failure):
            self._take("", Answered(failure=request))
            return
        name, place = request.operation, self.place

        def deliver(answered: Answered) -> None:
            call, self.current = self.current, None
            if place == self.place:
                has_asked = call is not None and call.dialogue is not None
                self._take(name, Answered(failure=_ASKS) if has_asked and answered.failure is not None else answered)
                self.advance()

        client_request = ClientRequest(
            self.item_caller, self.client_id, TOOLS_CALL, dict(self.params), dict(self.meta), _ItemSink(self)
        )
        call = self.surface.begin(client_request, request, self.tool, deliver)
        if place == self.place and not call.done:
            self.current = call

    def _take(self, operation: str, answered: Answered) -> None:
        failure = _ASKS if answered.message is not None else answered.failure
        if failure is not None and failure.code == Code.CONFIRMATION_REQUIRED.value:
            pending = tuple(_pending(index, self.items[index]) for index in range(self.place + 1, len(self.items)))
            self.results.append(Halted(index=self.place, operation=operation, failure=failure, pending=pending))
            self.is_halted = True
            return
        text = success(answered.data) if failure is None else failed(_closed(failure))
        limit = self.surface.adapter.plan.aql.limits.response_bytes
        if self.size + len(text) > limit - ITEM_BYTES * (len(self.items) - self.place):
            failure = too_large("response_size", limit, len(text), executed=True)
            text = failed(failure)
        self.size += len(text) + len(operation)
        self.results.append((operation, text, failure is None))
        self.place += 1

    def _finish(self) -> None:
        halted = self.results.pop() if self.is_halted else None
        envelope, caller = batch(self.results, halted), self.caller
        result = tool_result(
            envelope,
            is_error=False,
            is_modern=caller.era is MODERN,
            is_structured=caller.era is MODERN or caller.version >= STRUCTURED_SINCE,
        )
        sink, client_id = self.sink, self.client_id
        self.end(None)
        sink.answer(encode_result(client_id, result))

    def cancel_item(self) -> None:
        current, self.current = self.current, None
        if current is not None:
            current.cancel("the batch was cancelled")

    def on_item_cancelled(self) -> None:
        """Handle a cancellation by the id that the item shares with the batch."""
        if not self.done:
            self.current = None
            self.reason = f"cancelled after {self.place} of {len(self.items)}"
            self.cancel("cancelled by the client")


def _closed(failure: Failure) -> Failure:
    """Reduce a failure to the members that an item of a batch may have."""
    return Failure(failure.code, failure.message, failure.details)


def _pending(index: int, raw: Raw) -> dict[str, Any]:
    members = decode_object(raw) or {}
    item: dict[str, Any] = {"index": index, "operation": find_string(members.get("operation")) or ""}
    if "params" in members:
        item["params"] = members["params"]
    return item


def _unasked(meta: dict[str, Raw]) -> dict[str, Raw]:
    return {**meta, META_CAPABILITIES: _EMPTY} if META_CAPABILITIES in meta else meta
