"""The decision of `share = "auto"`: whether all clients share the link to a server, or get links of their own.

Every server begins with one shared link.

- A 2026-07-28 server stays shared: each of its questions belongs to one request.
- A legacy server that is known to keep a client's state (STATEFUL) stops being shared for all clients.
- A legacy server that asks its clients something, on a pipe where nothing tells which client is meant, stops being
  shared for the clients that can be asked. A question for roots counts only if the operator allows the server to know
  any folders.
- A legacy server learns once, when it is greeted, what its client can do, and the shared link declares everything that
  any client may have. That is wrong for a server that acts on it. So after a server has asked for sampling or
  elicitation, on any stream, every call goes over a link that declares what its own client can do; clients that can do
  the same share one link.
- A 2026-07-28 server that is dialled may speak the older era too, as servers of the SDKs do, and some of its tools ask
  in mid-call, which only that era has. So legacy clients that can be asked get links of their own to it, in their era,
  if the server turns out to speak it. A program that the node starts would have to run twice for that, and keep its
  state twice: it needs `share = "session"`.

`AskingMemory` remembers across restarts which servers asked.
"""

import logging
from typing import Final

import msgspec

from interlock.config.plan import Dial, Spawn
from interlock.core.background import BackgroundTasks
from interlock.core.clock import Clock
from interlock.drivers.protocol.server_name import server_name
from interlock.links.connected_link import ServerLink
from interlock.links.link import ServerFacts
from interlock.links.own_links import OwnLinks
from interlock.mcp.meta import RAW_EMPTY
from interlock.mcp.methods import ASKED_OF_CLIENT, EXTENSION, Era
from interlock.mcp.tasks import offers_tasks
from interlock.store.ports import KeyValue
from interlock.wire.jsonrpc.codec import decode_object


class StatefulServer(msgspec.Struct, frozen=True, kw_only=True):
    """Server that is known to keep a client's state in its process.

    It is recognised by its package, wherever its command names it, or by the name that it reports in the handshake. A
    recognised server costs one process per session, so a server gains nothing by reporting a false name.
    """

    packages: tuple[str, ...]
    names: tuple[str, ...] = ()  # as in serverInfo
    asks: bool = False  # it also asks its clients
    reason: str


STATEFUL: Final = (
    StatefulServer(
        packages=("@modelcontextprotocol/server-everything",),
        names=("mcp-servers/everything", "example-servers/everything"),
        asks=True,
        reason="it asks its client for answers, and keeps subscriptions and a log level for one client",
    ),
    StatefulServer(
        packages=("@modelcontextprotocol/server-sequential-thinking",),
        names=("sequential-thinking-server",),
        reason="it counts the thoughts of one conversation",
    ),
    StatefulServer(
        packages=("@playwright/mcp", "@executeautomation/playwright-mcp-server"),
        names=("Playwright",),
        reason="its browser has one current page",
    ),
    StatefulServer(
        packages=("@modelcontextprotocol/server-puppeteer",),
        names=("example-servers/puppeteer",),
        reason="its browser has one current page",
    ),
    StatefulServer(
        packages=("chrome-devtools-mcp",),
        names=("chrome_devtools",),
        reason="its browser has one selected page",
    ),
)


def find_stateful(reach: Spawn | Dial | None, name: str) -> StatefulServer | None:
    """Return the entry of a server that is known to be stateful, or None.

    `name` is the name that the server reports.
    """
    words: tuple[str, ...] = ()
    if isinstance(reach, Spawn):
        words = reach.command if reach.package is None else (reach.package.name, *reach.command)
    for server in STATEFUL:
        if name in server.names or any(_names(word, package) for word in words for package in server.packages):
            return server
    return None


def _names(word: str, package: str) -> bool:
    """Return whether a word of a command is a package name, with or without a version, or a path into that package."""
    return word == package or word.startswith(f"{package}@") or f"/node_modules/{package}/" in word


BUCKET: Final = "asking"


class Asking(msgspec.Struct, frozen=True):
    """Capabilities of clients that one server has asked for."""

    server: str  # the name it gives itself: another server under the same segment is not known to ask
    asks: frozenset[str]  # capabilities of clients: elicitation, sampling, roots; nothing said which client was meant
    asks_in_calls: frozenset[str] = frozenset()  # the same, on the stream of a call, whose client was meant


ASKS_NOTHING: Final = Asking("", frozenset())


class AskingMemory:
    """Memory, across restarts, of the servers that asked their clients something over a shared link.

    It makes the decision possible before the first call, instead of only after the server's first question.
    """

    def __init__(self, kv: KeyValue, clock: Clock) -> None:
        self._kv = kv
        self._clock = clock
        self._known: dict[str, Asking] = {}
        self._tasks = BackgroundTasks()

    async def open(self) -> None:
        """Load the remembered capabilities. Raise StoreError if the store cannot be read."""
        for entry in await self._kv.entries(BUCKET, self._clock.wall()):
            try:
                self._known[entry.key] = msgspec.json.decode(entry.value, type=Asking)
            except msgspec.MsgspecError as error:
                log.warning("what %s asks for is not known any more: %s", entry.key, error)

    async def close(self) -> None:
        await self._tasks.finish()

    def of(self, segment: str, server: str) -> Asking:
        asking = self._known.get(segment)
        return asking if asking is not None and asking.server == server else ASKS_NOTHING

    def add(self, segment: str, server: str, capability: str, *, in_call: bool) -> None:
        asking = self.of(segment, server)
        asks, in_calls = asking.asks, asking.asks_in_calls
        if in_call:
            in_calls |= {capability}
        else:
            asks |= {capability}
        asking = self._known[segment] = Asking(server, asks, in_calls)
        self._tasks.begin(self._save(segment, asking))

    async def _save(self, segment: str, asking: Asking) -> None:
        try:
            await self._kv.put(BUCKET, segment, msgspec.json.encode(asking), self._clock.wall())
        except Exception as error:
            log.warning("what %s asks for could not be remembered: %s", server_name(segment), error)


DECLARED: Final = frozenset(("sampling", "elicitation"))  # roots are the operator's folders wherever a link is shared

log = logging.getLogger("interlock.links")


class AutoSharing:
    """Decision of `share = "auto"` for one server."""

    def __init__(self, own: OwnLinks, memory: AskingMemory) -> None:
        self._own = own
        self._memory = memory

    def find_own(self, link: ServerLink, facts: ServerFacts) -> OwnLinks | None:
        """Return the pool of links besides the shared one, after the handshake with the server.

        Return None if all clients share one link.
        """
        if facts.era is not Era.LEGACY:
            return None
        stateful = find_stateful(link.reach, facts.name)
        if stateful is not None:
            self._own.serve(stateful.reason, asks=stateful.asks, is_exact=stateful.asks)
            return self._own
        asking = self._memory.of(link.segment, facts.name)
        capabilities, all_capabilities = asking.asks, asking.asks | asking.asks_in_calls
        if "roots" in capabilities and not link.allowed_folders():
            capabilities -= {"roots"}
        is_exact = not all_capabilities.isdisjoint(DECLARED)
        if not capabilities and not is_exact:
            return None
        self._own.serve(
            f"it asks for {', '.join(sorted(all_capabilities))}",
            capabilities=capabilities,
            asks=True,
            is_exact=is_exact,
        )
        return self._own

    def find_own_of_legacy(self, link: ServerLink, facts: ServerFacts) -> OwnLinks | None:
        """Return the pool of links for legacy clients at a modern server that may speak both eras, or None.

        A server that supports MCP-AX handles questions itself. A server with tasks stays with its era, because tasks
        differ between the eras.
        """
        if facts.era is not Era.MODERN or not isinstance(link.reach, Dial):
            return None
        extensions = decode_object(facts.capabilities.get("extensions", RAW_EMPTY)) or {}
        if EXTENSION in extensions or offers_tasks(facts.capabilities, facts.era):
            return None
        self._own.serve(None, capabilities=frozenset(ASKED_OF_CLIENT.values()), in_own_era=True)
        return self._own

    def on_asked(self, link: ServerLink, method: str, *, in_call: bool) -> OwnLinks | None:
        """Record that the server asks a client.

        Return the pool of links that clients use from now on besides the shared one, or None if all clients keep
        sharing one link.
        """
        facts, capability = link.facts, ASKED_OF_CLIENT.get(method)
        if facts is None or capability is None:
            return link.own
        asking = self._memory.of(link.segment, facts.name)
        if capability in (asking.asks_in_calls if in_call else asking.asks):
            return link.own
        self._memory.add(link.segment, facts.name, capability, in_call=in_call)
        own = self.find_own(link, facts)
        if own is not None and link.own is None:
            log.info("link %s: %s; clients get other links from now on", link.name, self._own.reason)
        return own
