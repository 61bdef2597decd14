"""The interfaces that a surface offers to a front (a dispatcher and lists), and the lists and capabilities of the flat
surface.

Lists are answered at once from cached bytes, or after a short wait while servers connect or are read again. If a server
is missing from a list, the `_meta` of the list names it. A parent also learns there how many tools it is not shown. The
lists of the AQL surfaces are in `aql.surface`.

`capabilities` and `instructions` are what a client gets when it greets: those of the servers in its view, merged.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, Protocol

from msgspec import Raw

from interlock import __version__
from interlock.ax.protocol.hop_metadata import META_UNLISTED
from interlock.ax.protocol.messages import CONFIRM
from interlock.catalog.catalog import Catalog, View
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call
from interlock.core.calls.caller import ClientRequest, ViewKey
from interlock.core.clock import Clock
from interlock.core.link_state import USABLE, LinkState
from interlock.dispatch.availability import Arrivals, MissingServer
from interlock.links.keeper import Keeper
from interlock.mcp import methods
from interlock.mcp.items import decode_cursor_untrusted
from interlock.mcp.meta import has
from interlock.mcp.methods import COMPLETE, PROMPTS_GET, RESOURCES_READ, Era
from interlock.mcp.tasks import offers_cancelling
from interlock.wire.jsonrpc.codec import CodecError, decode_object, decode_string, encode_value
from interlock.wire.refusal import INVALID_PARAMS, Refusal

SERVER_INFO = {"name": "interlock", "title": "Interlock", "version": __version__}
INSTRUCTIONS_CHARS_MAX = 100_000
# Of one server. Every client gets them when it greets.
EXPERIMENTAL_BYTES_MAX = 16 * 1024
INTRODUCTION = (
    "Interlock gathers several MCP servers. A tool's name begins with the server it belongs to; "
    "its annotations say whether it changes anything and whether that can be undone, and _meta['x-mcpax-capability'], "
    "where it has that, how fresh what it reads is (consistency)."
)

# The capabilities that a parent is told, whatever servers there are now.
_PARENT_CAPABILITIES: dict[str, Any] = {
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "completions": {},
    "logging": {},
}


def capabilities(view: View, *, modern: bool, tasks: bool = True, upward: bool = False) -> dict[str, Any]:
    """Return the MCP capabilities that the node declares to a client with this view.

    `tasks` is whether the client's revision has tasks. `upward` is true for a parent, which initializes only once
    although servers may be added later.
    """
    offered: dict[str, Any] = {"tools": {"listChanged": True}}
    facts = [link.facts.capabilities for link in view.links if link.facts is not None]
    if any("prompts" in declared for declared in facts):
        offered["prompts"] = {"listChanged": True}
    if any("resources" in declared for declared in facts):
        offered["resources"] = {"listChanged": True}
        if any(has(declared.get("resources"), "subscribe") for declared in facts):
            offered["resources"]["subscribe"] = True
    for name in ("completions", "logging"):
        if any(name in declared for declared in facts):
            offered[name] = {}
    if upward:
        offered |= _PARENT_CAPABILITIES
    # The experimental capabilities of the servers that have the client's era. Keys are `SEGMENT/KEY`, to distinguish
    # servers, or plain keys for a client that sees only one server.
    experimental: dict[str, Any] = {}
    for link in view.links:
        stated = link.facts.capabilities.get("experimental") if link.facts and link.modern == modern else None
        if stated is None or len(stated) > EXPERIMENTAL_BYTES_MAX or not view.shows(link):
            continue
        for key, value in (decode_object(stated) or {}).items():
            if bytes(value)[:1] == b"{" and key != methods.EXTENSION:
                experimental[key if view.is_of_one_server else f"{link.segment}/{key}"] = value
    if experimental:
        offered["experimental"] = experimental
    offered.setdefault("extensions" if modern else "experimental", {})[methods.EXTENSION] = {}
    makers = [link.facts for link in view.links if tasks and link.facts and link.tasks and link.modern == modern]
    if makers and modern:
        offered["extensions"][methods.TASKS_EXTENSION] = {}
    elif makers:
        offered["tasks"] = {"list": {}, "requests": {"tools": {"call": {}}}}
        if any(offers_cancelling(facts.capabilities) for facts in makers):
            offered["tasks"]["cancel"] = {}
    return offered


class ClientDispatch(Protocol):
    """Interface of the object that runs calls for one surface (what a client sees of the node). The dispatcher and the
    MCP-AQL surfaces implement it.
    """

    def call_tool(self, request: ClientRequest) -> Call: ...

    def get_prompt(self, request: ClientRequest) -> Call: ...

    def read_resource(self, request: ClientRequest) -> Call: ...

    def complete(self, request: ClientRequest) -> Call: ...

    def confirm(self, request: ClientRequest) -> Call: ...

    def view(self, key: ViewKey) -> View: ...


def routed_methods(dispatch: ClientDispatch) -> dict[str, Callable[[ClientRequest], Call]]:
    """Return the functions that serve prompts, resources, completions and confirmations, by method. They are the same
    in both eras.
    """
    return {
        RESOURCES_READ: dispatch.read_resource,
        PROMPTS_GET: dispatch.get_prompt,
        COMPLETE: dispatch.complete,
        CONFIRM: dispatch.confirm,
    }


class ClientLists(Protocol):
    """Interface of the object that answers list requests for one surface (what a client sees of the node), and
    describes the surface.
    """

    @property
    def unchanging(self) -> frozenset[str]:
        """Return the kinds of lists that never change while a client is connected."""

    def list(self, method: str, key: ViewKey, params: dict[str, Raw], era: Era) -> bytes | Refusal: ...

    def when_fresh(self, method: str, then: Callable[[], None]) -> None: ...

    def find_unreadable_answer(self, data: bytes, *, is_modern: bool) -> bytes | None:
        """Return the answer that the surface has for a message that is not UTF-8, or None if it has no
        special answer.
        """

    def introduction(self, view: View, only: str | None) -> str:
        """Return the instructions that a client gets when it initializes."""


log = logging.getLogger("interlock.lists")

REREAD_S: Final = 1.0  # lists that are read again because they are old are waited for this long
MISSING_TTL_MS: Final = 1000  # of a list without a server that is still connecting
LEAST_TTL_S: Final = 1.0  # a server that says its list is stale at once is not re-read more often than this
KIND: Final = {methods.TOOLS_LIST: "tools", methods.PROMPTS_LIST: "prompts"}

SERVER_META: Final = encode_value({methods.META_SERVER: SERVER_INFO})


@dataclass(eq=False)
class ListCache:
    """The lists for clients that see every tool under its own name (the flat surface), answered from cached bytes."""

    catalog: Catalog
    keepers: Mapping[str, Keeper]
    arrivals: Arrivals
    clock: Clock
    list_ttl_s: float
    unchanging: frozenset[str] = frozenset()
    _missing: Sequence[MissingServer] = ()  # when last said in the log
    _tasks: BackgroundTasks = field(default_factory=BackgroundTasks)

    def list(self, method: str, key: ViewKey, params: dict[str, Raw], era: Era) -> bytes | Refusal:
        """Return the encoded result of a list request, or a refusal."""
        after = ""
        if "cursor" in params:
            try:
                decoded = decode_cursor_untrusted(decode_string(params["cursor"]))
            except CodecError:
                decoded = None
            if decoded is None:
                return Refusal(INVALID_PARAMS, "this cursor is not one of ours; list again from the start")
            after = decoded
        view = self.catalog.namespace.view(key)
        page = view.page(method, era, after)
        more = b"" if page.next_cursor is None else b',"nextCursor":%b' % encode_value(page.next_cursor)
        member = methods.LISTS[method].encode()
        missing = self.arrivals.missing(view)
        meta: dict[str, Any] = {}
        if missing:
            if missing != self._missing:
                self._missing = missing
                log.info("lists are without %s", ", ".join(f"{server.server} ({server.state})" for server in missing))
            meta[methods.META_MISSING] = missing
        if key.upward and method == methods.TOOLS_LIST and not after:
            meta[META_UNLISTED] = view.unlisted
        if era is Era.LEGACY:
            if meta:
                more += b',"_meta":%b' % encode_value(meta)
            return b'{"%b":%b%b}' % (member, page.items, more)
        ttl_ms = self._ttl_ms(view.ttl_s)
        if any(server.state == LinkState.CONNECTING.value for server in missing):
            ttl_ms = min(ttl_ms, MISSING_TTL_MS)
        return b'{"resultType":"complete","%b":%b%b,"ttlMs":%d,"cacheScope":"%b","_meta":%b}' % (
            member,
            page.items,
            more,
            ttl_ms,
            b"private" if view.private else b"public",
            encode_value({methods.META_SERVER: SERVER_INFO, **meta}) if meta else SERVER_META,
        )

    def find_unreadable_answer(self, data: bytes, *, is_modern: bool) -> bytes | None:
        return None

    def introduction(self, view: View, only: str | None) -> str:
        """Return the merged instructions of the servers in a view.

        `only` is the server's segment if the client sees only one.
        """
        if only is not None:
            return "\n\n".join(text for _, text in view.instructions)[:INSTRUCTIONS_CHARS_MAX]
        parts = [INTRODUCTION, *(f"## {segment}\n{text}" for segment, text in view.instructions)]
        return "\n\n".join(parts)[:INSTRUCTIONS_CHARS_MAX]

    def when_fresh(self, method: str, then: Callable[[], None]) -> None:
        """Call `then` when the lists are fresh. Lists that are too old are read again first, within a time limit."""
        waits: Coroutine[Any, Any, Any] | None = self.arrivals.maybe_wait()
        if waits is None:
            kind, now = KIND.get(method, "resources"), self.clock.now()
            old = [
                keeper
                for keeper in self.keepers.values()
                if keeper.is_offered
                and keeper.is_reread
                and keeper.link.standing.state in USABLE
                # A list counts as fresh for as long as configured, or shorter if its server suggests that.
                and now - keeper.listed_at[kind]
                >= min(self.list_ttl_s, max(LEAST_TTL_S, inf if keeper.list_hint_s is None else keeper.list_hint_s))
            ]
            if not old:
                then()
                return
            waits = _wait([keeper.refreshed(kind) for keeper in old], REREAD_S)

        async def call_later() -> None:
            await waits
            then()

        self._tasks.begin(call_later())

    async def quiet(self) -> None:
        """Wait until no request is waiting for a list. This takes no longer than a list may wait."""
        await self._tasks.finish(self.arrivals.wait_s)

    def _ttl_ms(self, hint: float | None) -> int:
        listed = (
            keeper
            for keeper in self.keepers.values()
            if keeper.is_offered and keeper.is_reread and keeper.listing is not None
        )
        ages = [self.clock.now() - keeper.listed_at["tools"] for keeper in listed]
        left = self.list_ttl_s - max(ages, default=0.0)
        return int(max(0.0, min(left, left if hint is None else hint)) * 1000)


async def _wait(things: Sequence[Awaitable[Any]], seconds: float) -> None:
    tasks = [asyncio.ensure_future(thing) for thing in things]
    _, pending = await asyncio.wait(tasks, timeout=seconds)
    for task in pending:
        task.cancel()
