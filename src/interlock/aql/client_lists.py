"""The lists of a client on an AQL surface: its tools are the endpoints; prompts and resources are the flat ones.

`ClientLists` of `fronts` is what both surfaces offer; the flat one is `fronts.lists.ListCache`.
"""

from collections.abc import Callable
from typing import Final

from msgspec import Raw

from interlock.aql.surface import AqlSurface
from interlock.catalog.catalog import View
from interlock.core.calls.caller import ViewKey
from interlock.fronts.lists import SERVER_META, ListCache
from interlock.mcp.methods import TOOLS_LIST, Era
from interlock.wire.refusal import Refusal

LIST_TTL_MS: Final = 3_600_000  # the endpoints change only with the configuration

INTRODUCTION: Final = (
    "Interlock gathers several MCP servers behind a few tools. Every tool takes an operation and its params; the"
    " operation introspect finds operations by words and shows how each is called."
)


class AqlLists:
    """The lists, the introduction and the answers to unreadable messages of one AQL surface."""

    unchanging = frozenset({"tools"})

    def __init__(self, flat: ListCache, surface: AqlSurface) -> None:
        self._flat = flat
        self._surface = surface

    def list(self, method: str, key: ViewKey, params: dict[str, Raw], era: Era) -> bytes | Refusal:
        if method != TOOLS_LIST:
            return self._flat.list(method, key, params, era)
        items = self._surface.tools()
        if era is Era.LEGACY:
            return b'{"tools":%b}' % items
        return b'{"resultType":"complete","tools":%b,"ttlMs":%d,"cacheScope":"public","_meta":%b}' % (
            items,
            LIST_TTL_MS,
            SERVER_META,
        )

    def when_fresh(self, method: str, then: Callable[[], None]) -> None:
        if method == TOOLS_LIST:
            then()
        else:
            self._flat.when_fresh(method, then)

    def find_unreadable_answer(self, data: bytes, *, is_modern: bool) -> bytes | None:
        return self._surface.find_unreadable_answer(data, is_modern=is_modern)

    def introduction(self, view: View, only: str | None) -> str:
        return f"{INTRODUCTION} {self._surface.adapter.loop.instructions()}".rstrip()
