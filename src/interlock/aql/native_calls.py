"""Calls of the node's own operations: a task per call, which ends with the call, however that ends."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from msgspec import Raw

from interlock.aql.answers import Answered, Deliver, unexpected
from interlock.aql.native_operations import Answer, NativeOperation, OperationContext
from interlock.aql.protocol.errors import Failure, OperationFailed
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call, Outcome
from interlock.mcp.meta import PROGRESS_TOKEN
from interlock.mcp.methods import PROGRESS
from interlock.wire.jsonrpc.codec import decode_value, encode_notification, encode_value


class OwnCall(Call):
    """A call that is answered here. `on_cancel` stops what runs for it."""

    on_cancel: Any = None

    def stop_with(self, stop: Callable[[], object]) -> None:
        self.on_cancel = stop

    def cancel(self, reason: str) -> None:
        if not self.done and self.on_cancel is not None:
            self.on_cancel()
        super().cancel(reason)

    def end(self, failure: Failure | None) -> None:
        """Free an answered call, and record how it ended."""
        if self.done:
            return
        self.done = True
        self.reason = None if failure is None else failure.code
        refused = failure is not None and not failure.is_error
        outcome = Outcome.OK if failure is None else Outcome.REFUSED if refused else Outcome.ERROR
        self.handler.finish(self, outcome)


class NativeCalls:
    def __init__(self) -> None:
        self._tasks = BackgroundTasks()

    def answer_later(self, call: OwnCall, work: Awaitable[Answered], deliver: Deliver) -> None:
        """Answer a call with the result of `work`."""

        async def run() -> None:
            answered = await work
            if not call.done:
                call.end(answered.failure)
                deliver(answered)

        call.stop_with(self._tasks.begin(run()).cancel)

    def begin(
        self, call: OwnCall, native: NativeOperation, arguments: Raw, session_id: str | None, deliver: Deliver
    ) -> None:
        context = OperationContext(
            operation=native.declaration,
            caller=call.caller,
            session_id=session_id,
            tell_progress=partial(_tell_progress, call),
        )
        calls = call.caller.calls
        if calls is not None:
            calls[call.client_id] = call
        self.answer_later(call, _outcome(native, context, decode_value(arguments)), deliver)


async def _outcome(native: NativeOperation, context: OperationContext, params: dict[str, Any]) -> Answered:
    try:
        data = await native.handler(context, params)
        answer = data if isinstance(data, Answer) else Answer(data)
        text = answer.data if isinstance(answer.data, Raw) else Raw(encode_value(answer.data))
        return Answered(data=text, warnings=tuple(answer.warnings))
    except OperationFailed as failed:
        return Answered(failure=failed.failure)
    except asyncio.CancelledError:
        raise
    except Exception:
        return Answered(failure=unexpected(f"the operation {native.declaration.name}"))


def _tell_progress(call: OwnCall, progress: float, total: float | None, message: str | None) -> None:
    token = call.meta.get(PROGRESS_TOKEN)
    if token is None or call.done:
        return
    params: dict[str, Any] = {PROGRESS_TOKEN: token, "progress": progress}
    if total is not None:
        params["total"] = total
    if message is not None:
        params["message"] = message
    call.sink.emit(encode_notification(PROGRESS.encode(), encode_value(params)))
