"""A call's handler with a witness: somebody who is told how the call ended, whatever else becomes of it."""

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec import Raw

from interlock.protocol.jsonrpc.messages import Request
from interlock.runtime.calls.call import Call, CallHandler, Outcome
from interlock.runtime.calls.caller import Asked
from interlock.runtime.credentials.consents import Consent


class Witnessed:
    """A CallHandler that passes everything on."""

    __slots__ = ("_handler", "_witness", "timing")

    def __init__(self, handler: CallHandler, witness: Callable[[Call, Outcome], None]) -> None:
        self._handler = handler
        self.timing = handler.timing
        self._witness = witness

    def finish(self, call: Call, outcome: Outcome) -> None:
        self._handler.finish(call, outcome)
        self._witness(call, outcome)

    def ask_client(self, call: Call, link: Asked, request: Request) -> None:
        self._handler.ask_client(call, link, request)

    def withdraw_question(self, call: Call, upstream_id: bytes) -> None:
        self._handler.withdraw_question(call, upstream_id)

    def prepare_server(self, call: Call) -> asyncio.Future[Any] | None:
        return self._handler.prepare_server(call)

    def set_aside(self, call: Call) -> None:
        self._handler.set_aside(call)

    def take_up(self, call: Call) -> None:
        self._handler.take_up(call)

    def interview_client(self, call: Call, result: Raw) -> bool:
        return self._handler.interview_client(call, result)

    def ask_consent(self, call: Call, segment: str, consent: Consent) -> None:
        self._handler.ask_consent(call, segment, consent)

    def translate_error(self, call: Call, error: Raw) -> tuple[bytes, int] | None:
        return self._handler.translate_error(call, error)
