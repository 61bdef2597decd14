"""Calls that an operator makes: like any client's, through the guard, with their gate and their record."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
from msgspec import Raw

from interlock.catalog.api import CallEvent, CallHeld, CallProgress
from interlock.core.calls.caller import Principal
from interlock.dispatch.dispatch import Dispatch
from interlock.fronts.modern import ModernFront
from interlock.gate.protocol.held_call import CONFIRMATION, REQUIRED
from interlock.mcp.meta import PROGRESS_TOKEN, stamp_modern
from interlock.mcp.methods import PROGRESS
from interlock.wire.jsonrpc.codec import decode_object, encode_value, find_string

_ids = itertools.count(1)


class CallOperations:
    def __init__(self, modern: ModernFront, dispatch: Dispatch, principal: Callable[[str], Principal]) -> None:
        """`principal`: what the operator of this name may do as a caller."""
        self._modern = modern
        self._dispatch = dispatch
        self._principal = principal

    async def call(self, name: str, arguments: Raw, by: str) -> AsyncGenerator[CallEvent, None]:
        """The call as it goes on; closing this cancels it."""
        caller = self._modern.caller(self._principal(by), "operator", None, "qualified")
        id = str(next(_ids)).encode()
        meta: dict[str, Raw] = {}
        stamp_modern(meta, capabilities=Raw(b"{}"), client=None, log_level=None)
        meta[PROGRESS_TOKEN] = Raw(id)
        params: dict[str, Any] = {"name": Raw(encode_value(name)), "arguments": arguments}
        sink = _Progress()
        call = self._dispatch.call_tool(caller, id, params, meta, sink)
        try:
            while not sink.is_over:
                await sink.changed.wait()
                sink.changed.clear()
                if (progress := sink.take_progress()) is not None:
                    yield CallEvent(progress=progress)
            if sink.message is not None:
                yield _answer(sink.message)
        finally:
            call.cancel("the operator cancelled it")


class _Progress:
    """A Sink that keeps the newest progress and the answer: however much a server says, it takes no more room."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.message: bytes | None = None
        self.is_over = False
        self._newest: bytes | None = None

    def emit(self, message: bytes) -> None:
        self._newest = message
        self.changed.set()

    def answer(self, message: bytes, status: int = 200) -> None:
        self.message = message
        self.drop()

    def drop(self) -> None:
        self.is_over = True
        self.changed.set()

    def take_progress(self) -> CallProgress | None:
        newest, self._newest = self._newest, None
        said = decode_object(newest) if newest is not None else None
        if said is None or find_string(said.get("method")) != PROGRESS:
            return None
        try:
            return msgspec.json.decode(said.get("params", b"{}"), type=CallProgress)
        except msgspec.DecodeError:
            return None


def _answer(message: bytes) -> CallEvent:
    said = decode_object(message) or {}
    if "result" not in said:
        return CallEvent(error=said.get("error", Raw(b"{}")))
    result = said["result"]
    meta = decode_object((decode_object(result) or {}).get("_meta", b"{}")) or {}
    held = decode_object(meta.get(CONFIRMATION, b"{}")) or {}
    if find_string(held.get("status")) != REQUIRED:
        return CallEvent(result=result)
    id, url = find_string(held.get("confirmation_id")), find_string(held.get("approval_url"))
    return CallEvent(result=result, held=CallHeld(approval_id=id or "", url=url))
