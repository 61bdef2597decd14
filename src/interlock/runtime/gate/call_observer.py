"""A call's house with a witness: somebody who is told how the call ended, whatever else becomes of it."""

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec import Raw

from interlock.protocol.jsonrpc.messages import Request
from interlock.runtime.calls.call import Call, House, Outcome
from interlock.runtime.calls.caller import Asked
from interlock.runtime.credentials.consents import Consent


class Witnessed:
    """A House that passes everything on."""

    __slots__ = ("_house", "_witness", "timing")

    def __init__(self, house: House, witness: Callable[[Call, Outcome], None]) -> None:
        self._house = house
        self.timing = house.timing
        self._witness = witness

    def ended(self, call: Call, outcome: Outcome) -> None:
        self._house.ended(call, outcome)
        self._witness(call, outcome)

    def asked(self, call: Call, link: Asked, request: Request) -> None:
        self._house.asked(call, link, request)

    def withdrawn(self, call: Call, upstream_id: bytes) -> None:
        self._house.withdrawn(call, upstream_id)

    def returned(self, call: Call) -> asyncio.Future[Any] | None:
        return self._house.returned(call)

    def set_aside(self, call: Call) -> None:
        self._house.set_aside(call)

    def take_up(self, call: Call) -> None:
        self._house.take_up(call)

    def input_required(self, call: Call, result: Raw) -> bool:
        return self._house.input_required(call, result)

    def consent_needed(self, call: Call, segment: str, consent: Consent) -> None:
        self._house.consent_needed(call, segment, consent)

    def refused(self, call: Call, error: Raw) -> tuple[bytes, int] | None:
        return self._house.refused(call, error)
