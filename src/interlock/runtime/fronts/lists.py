"""The cache of lists: answered at once from cached bytes, or after a short wait while servers arrive or are reread."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from msgspec import Raw

from interlock.protocol.jsonrpc.codec import decode_string, encode_value
from interlock.protocol.jsonrpc.errors import INVALID_PARAMS, CodecError, Fault
from interlock.protocol.mcp.cursor import decode_cursor_untrusted
from interlock.protocol.mcp.eras import Era
from interlock.protocol.mcp.methods import LISTS, META_SERVER, PROMPTS_LIST, TOOLS_LIST
from interlock.runtime.base.background import BackgroundTasks
from interlock.runtime.base.clock import Clock
from interlock.runtime.base.link_state import LinkState
from interlock.runtime.calls.caller import ViewKey
from interlock.runtime.catalog.catalog import Catalog, View
from interlock.runtime.fronts.server_info import SERVER_INFO, instructions
from interlock.runtime.links.keeper import Keeper

SETTLE_S: Final = 2.0  # after the start, lists wait this long for servers that are still connecting
REREAD_S: Final = 1.0  # and this long for lists that are read again because they are old
LEAST_TTL_S: Final = 1.0  # a server that says its list is stale at once is not re-read more often than this
KIND: Final = {TOOLS_LIST: "tools", PROMPTS_LIST: "prompts"}

_LISTS: Final = frozenset((LinkState.READY, LinkState.SLOW))
SERVER_META: Final = encode_value({META_SERVER: SERVER_INFO})


class ListCache:
    unchanging: frozenset[str] = frozenset()

    def __init__(self, catalog: Catalog, keepers: Mapping[str, Keeper], clock: Clock, list_ttl_s: float) -> None:
        self._catalog = catalog
        self._keepers = keepers
        self._clock = clock
        self._ttl_s = list_ttl_s
        self._started = clock.now()
        self._settled = False
        self._tasks = BackgroundTasks()

    def list(self, method: str, key: ViewKey, params: dict[str, Raw], era: Era) -> bytes | Fault:
        """The result of one list request."""
        after = ""
        if "cursor" in params:
            try:
                decoded = decode_cursor_untrusted(decode_string(params["cursor"]))
            except CodecError:
                decoded = None
            if decoded is None:
                return Fault(INVALID_PARAMS, "this cursor is not one of ours; list again from the start")
            after = decoded
        view = self._catalog.namespace.view(key)
        page = view.page(method, era, after)
        more = b"" if page.next_cursor is None else b',"nextCursor":%b' % encode_value(page.next_cursor)
        member = LISTS[method].encode()
        if era is Era.LEGACY:
            return b'{"%b":%b%b}' % (member, page.items, more)
        return b'{"resultType":"complete","%b":%b%b,"ttlMs":%d,"cacheScope":"%b","_meta":%b}' % (
            member,
            page.items,
            more,
            self._ttl_ms(view.ttl_s),
            b"private" if view.private else b"public",
            SERVER_META,
        )

    def maybe_unreadable(self, data: bytes, *, is_modern: bool) -> bytes | None:
        return None

    def introduction(self, view: View, only: str | None) -> str:
        return instructions(view, only)

    def when_fresh(self, method: str, then: Callable[[], None]) -> None:
        """Calls `then` as soon as the lists are fresh, at once or within a bound."""
        waits = self._waits(KIND.get(method, "resources"))
        if waits is None:
            then()
            return
        self._tasks.begin(self._after(waits, then))

    async def quiet(self) -> None:
        """Waits until no request waits for a list any more, within the bound every list has."""
        await self._tasks.finish(SETTLE_S)

    async def _after(self, waits: Coroutine[Any, Any, Any], then: Callable[[], None]) -> None:
        await waits
        then()

    def _waits(self, kind: str) -> Coroutine[Any, Any, Any] | None:
        if not self._settled:
            unsettled = [keeper for keeper in self._keepers.values() if not keeper.settled.is_set()]
            left = SETTLE_S - (self._clock.now() - self._started)
            self._settled = not unsettled
            if unsettled and left > 0:
                return _wait([keeper.settled.wait() for keeper in unsettled], left)
        now = self._clock.now()
        old = [
            keeper
            for keeper in self._keepers.values()
            if keeper.is_offered
            and keeper.link.standing.state in _LISTS
            and now - keeper.listed_at[kind] >= self._life_s(keeper)
        ]
        if not old:
            return None
        return _wait([keeper.refreshed(kind) for keeper in old], REREAD_S)

    def _life_s(self, keeper: Keeper) -> float:
        """How long a list counts as fresh. A server that announces changes needs no shorter one."""
        hint = keeper.list_hint_s
        return self._ttl_s if hint is None else min(self._ttl_s, max(LEAST_TTL_S, hint))

    def _ttl_ms(self, hint: float | None) -> int:
        listed = (keeper for keeper in self._keepers.values() if keeper.is_offered and keeper.listing is not None)
        ages = [self._clock.now() - keeper.listed_at["tools"] for keeper in listed]
        left = self._ttl_s - max(ages, default=0.0)
        return int(max(0.0, min(left, left if hint is None else hint)) * 1000)


async def _wait(things: Sequence[Awaitable[Any]], seconds: float) -> None:
    tasks = [asyncio.ensure_future(thing) for thing in things]
    _, pending = await asyncio.wait(tasks, timeout=seconds)
    for task in pending:
        task.cancel()
