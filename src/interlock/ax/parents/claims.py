"""What one parent is told of who has which subserver below us (MCP-AX 13.4), and what it says against it.

Only a parent that takes mcpax/claim is asked. An answer that comes after the time to wait for it counts all the same.
"""

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from interlock.ax.protocol.messages import CLAIM, Claimed, Claims, Registered
from interlock.ax.protocol.registration.codec import CLAIMS_MAX, encode_claims, read_held_untrusted
from interlock.ax.protocol.registration.leases import PARENT_ANSWER_S
from interlock.wire.jsonrpc.codec import encode_request
from interlock.wire.jsonrpc.messages import Response
from interlock.wire.refusal import Refusal

ASKED_MAX: Final = 10_000  # unanswered; a parent that answers none must not make the table grow

Held = Mapping[str, str]  # subserver_id -> the aggregator that has it


class ParentClaims:
    def __init__(self, on_held: Callable[[Held], None]) -> None:
        """`on_held`: of subservers that were taken before the parent had answered."""
        self._on_held = on_held
        self._send: Callable[[bytes], bool] | None = None
        self._asked: dict[bytes, asyncio.Future[Held] | None] = {}
        self._ids = itertools.count(1)

    def begin(self, registered: Registered, send: Callable[[bytes], bool], claims: Sequence[Claimed]) -> None:
        """We are registered: the parent is told what we have."""
        if registered.claims:
            self._send = send
            for start in range(0, len(claims), CLAIMS_MAX):
                self._ask(Claims(claims=tuple(claims[start : start + CLAIMS_MAX])), None)

    def end(self) -> None:
        """No parent any more: those who wait go on without."""
        self._send = None
        asked, self._asked = self._asked, {}
        for waiting in asked.values():
            if waiting is not None and not waiting.done():
                waiting.set_result({})

    async def claim(self, claims: Sequence[Claimed], released_session: str | None) -> Held:
        if self._send is None:
            return {}
        waiting: asyncio.Future[Held] = asyncio.get_running_loop().create_future()
        self._ask(Claims(claims=tuple(claims), released_session=released_session), waiting)
        try:
            async with asyncio.timeout(PARENT_ANSWER_S):
                return await waiting
        except TimeoutError:
            return {}

    def release(self, subserver_ids: Sequence[str]) -> None:
        for start in range(0, len(subserver_ids), CLAIMS_MAX):
            self._ask(Claims(released=tuple(subserver_ids[start : start + CLAIMS_MAX])), None)

    def hear(self, response: Response) -> bool:
        """False: it answers nothing of ours."""
        if response.id not in self._asked:
            return False
        waiting = self._asked.pop(response.id)
        read = {} if response.error else read_held_untrusted(response.result)
        held = {} if isinstance(read, Refusal) else read
        if waiting is not None and not waiting.done():
            waiting.set_result(held)
        elif held:
            self._on_held(held)
        return True

    def _ask(self, claims: Claims, waiting: asyncio.Future[Held] | None) -> None:
        if self._send is None:
            return
        if len(self._asked) >= ASKED_MAX:
            del self._asked[next(iter(self._asked))]
        request_id = b'"claim-%d"' % next(self._ids)
        self._asked[request_id] = waiting
        self._send(encode_request(request_id, CLAIM.encode(), encode_claims(claims)))
