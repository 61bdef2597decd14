"""The links to one server beside the shared one: opened for a call, limited in number, ended when idle.

Theory of operation. The shared link greets the server, and the catalog shows the lists that it reads. A client that
must not share it gets a link of its own, which opens with the client's first call, shares nothing with other links, and
ends with the client's session, after the idle time, or to make room for another. The segment of such a link is that of
the server with a suffix, so that subscriptions, tasks and the log level belong to one link alone.

The key of a link says who uses it (`_find_key`):

    a session        `share = "session"`, for a client that has one
    a principal      `share = "principal"`, and users of a server that knows people (`auth = { per = "user" }`)
    (principal, capabilities, number)  a 2026-07-28 client, which has no session. If the server asks its clients, each
                     of its calls gets a link on which no other call is under way, as long as there is room: only then
                     is it clear for which call a question is. A call whose client is being asked does not count.
    (None, capabilities, 0)            clients that cannot be asked: those that declare the same share a link, because a
                     legacy server learns only once, in the greeting, what its clients can do

With a user's token (`token_of`), a link is for calls only: what the server sends beside them is dropped, and a user
without a token is sent to the page where they can agree to one.

`AutoSharing` is the decision of `share = "auto"`: whether all clients share the link, or get links of their own. Every
server begins with one shared link.

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

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from math import inf
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from interlock.config.plan import Dial, ServerPlan, Spawn
from interlock.core.background import BackgroundTasks
from interlock.core.calls.caller import Caller
from interlock.core.link_state import USABLE, LinkState
from interlock.credentials.token import RequestedConsent, TokenHolder
from interlock.links import connector
from interlock.links.connected_link import ConnectedLink, ServerLink
from interlock.links.connector import LEGACY_CAPABILITIES, ConnectorParts, LimitReached, ServerMemory
from interlock.links.keeper import SAME_REST_S, WAKE_LEAST_S, Keeper, ServerKeeper
from interlock.links.link import Link, LinkEvents, ServerFacts
from interlock.links.listing import Listing
from interlock.links.pipes import Undelivered
from interlock.mcp.meta import RAW_EMPTY, common_capabilities
from interlock.mcp.methods import ASKED_OF_CLIENT, EXTENSION, Era
from interlock.mcp.tasks import offers_tasks
from interlock.wire.jsonrpc.codec import Notification, decode_object, encode_value

OPEN_S: Final = 15.0  # how long a call waits for its link
TELL_S: Final = 0.05  # changes within this time are announced as one


class OwnKeeper(ServerKeeper):
    """Keeper of an additional link to a server, which serves only some clients. It reads no lists: the catalog shows
    those of the shared link.
    """

    link: ServerLink
    is_offered = False
    reads = ()
    wakes_after_s = 0.0, WAKE_LEAST_S  # a call of its owner is all that starts it

    def __init__(
        self,
        make_link: Callable[[LinkEvents], ServerLink],
        connector_parts: ConnectorParts,
        events: LinkEvents,
        holder: TokenHolder | None,
        *,
        token: TokenHolder | None = None,
    ) -> None:
        """Create the keeper. `holder` holds the token to send, which belongs to the user or to the node. `token` is the
        holder for the user's own token, to which the user may first have to consent; it is None if no such token is
        used.
        """

        async def ignore_lists(link: Link, listing: Listing | None) -> None:
            """Do nothing: the catalog shows the lists of the shared link."""

        super().__init__(make_link, connector_parts, ignore_lists, events, holder)
        self.closes_holder = token is not None
        self.token = token
        self.used_at = connector_parts.clock.now()
        self.fell = asyncio.Event()
        self.opening = 0  # calls that wait for it to come up
        self.settled.set()  # no list waits for it
        self._telling: dict[str, asyncio.TimerHandle] = {}  # kinds of lists whose change is about to be announced
        self._told_at: dict[str, float] = {}  # when a change of each kind was announced last

    @property
    def is_serving(self) -> bool:
        """Return whether the server works on a call, or a call is about to be sent to it."""
        return bool(self.opening or self.link.booked)

    @property
    def is_idle(self) -> bool:
        return not self.opening and not self.is_busy

    @property
    def idle_s(self) -> float:
        """Return the seconds since the last call began, or 0 while a call is under way."""
        is_used = self.is_serving or self.link.waiting.suspended
        return 0.0 if is_used else self._connector_parts.clock.now() - self.used_at

    @property
    def is_usable(self) -> bool:
        return self.link.standing.state in USABLE and not (self.token is not None and self.token.waits_for_consent)

    def use(self) -> None:
        self.used_at = self._connector_parts.clock.now()

    async def open(self) -> ServerLink | RequestedConsent:
        """Connect the link and return it when it is usable, has failed, or has not connected within OPEN_S seconds.

        If the user has to consent first, return the request for that consent. Raise Unobtainable if no token can be
        obtained, or StoreError.
        """
        token = self.token
        self.opening += 1
        try:
            if token is not None:
                await token.ready()
            if token is None or token.has_token:
                self.use()
                self.fell.clear()
                if self._task is None:
                    self.start()
                else:
                    self.wake()
                waits = [asyncio.ensure_future(event.wait()) for event in (self._usable, self.fell)]
                try:
                    await asyncio.wait(waits, timeout=OPEN_S, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for wait in waits:
                        wait.cancel()
            return self.link if token is None or token.has_token else await token.consent()
        finally:
            self.opening -= 1

    def on_standing(self, link: Link) -> None:
        super().on_standing(link)
        if link.standing.state not in USABLE and link.standing.state is not LinkState.CONNECTING:
            self.fell.set()

    # A link with a user's token is for calls only: messages beside them are dropped

    def on_changed(self, link: ConnectedLink, kind: str) -> None:
        """Notify the owner of the link that one of the server's lists changed, after a short delay and at most once in
        SAME_REST_S.

        The lists are those of the shared link. If this link has no owner, they are read again.
        """
        shared = self.link.shared
        if self.link.owner is None and isinstance(shared, ConnectedLink):
            shared.events.on_changed(shared, kind)
        elif self.token is None and kind not in self._telling:
            loop = asyncio.get_running_loop()

            def tell_changed() -> None:
                del self._telling[kind]
                self._told_at[kind] = loop.time()
                self._events.on_own_changed(self.link, kind)

            wait_s = max(TELL_S, self._told_at.get(kind, -inf) + SAME_REST_S - loop.time())
            self._telling[kind] = loop.call_later(wait_s, tell_changed)

    def on_resource_updated(self, link: ConnectedLink, params: Raw) -> None:
        if self.token is None:
            super().on_resource_updated(link, params)

    def on_log(self, link: Link, params: Raw) -> None:
        if self.token is None:
            super().on_log(link, params)

    def on_vendor_notification(self, link: ConnectedLink, notification: Notification) -> None:
        if self.token is None:
            super().on_vendor_notification(link, notification)

    def on_unauthorised(self, link: ConnectedLink, what: Undelivered) -> None:
        self.refused(what)

    async def stop(self) -> None:
        for timer in self._telling.values():
            timer.cancel()
        await super().stop()

    async def _stock(self) -> None:
        self.listing = Listing()
        self.link.set_state(LinkState.READY, None)

    def _repeat_requests(self) -> None:
        if self.token is None:
            super()._repeat_requests()
            return
        self.link.tasks = False  # a user's link with a token makes none: see `OwnLinks.is_whole`
        self.task_listening.say()
        self.log_level.say()


SWEEP_S: Final = 60.0
CONNECTIONS_MAX: Final = 1000  # to one server that is dialled: each costs a socket, and no process of this machine

# A session; or a principal (None: any that declares the same), what its requests declare, and the number of its link.
Key = Caller | tuple[str | None, bytes, int]


class OwnLinkRule(msgspec.Struct, frozen=True, kw_only=True):
    """Rule that says which clients get additional links to a server, and why."""

    reason: str | None = None
    asked_for: frozenset[str] | None = None  # only clients that can be asked for one of these; None: every client
    asks: bool = False  # the server asks its clients questions
    is_exact: bool = False  # every link declares exactly what its clients can do
    in_own_era: bool = False  # only legacy sessions get a link, in their era, if the server may speak both


@dataclass(eq=False)
class OwnLinks:
    """Pool of the additional links to one server, each of which serves only some clients."""

    plan: ServerPlan
    connector_parts: ConnectorParts
    events: LinkEvents
    all_keepers: dict[str, Keeper]  # of the node, to which the pool adds its own
    _: KW_ONLY
    per: Literal["principal", "session"]
    vendor_meta: bool
    holder: TokenHolder | None = None  # of the node's token
    token_of: Callable[[str], TokenHolder] | None = None  # with it, each link uses the token of its user instead
    rule: OwnLinkRule = field(default_factory=OwnLinkRule)
    _keepers: dict[Key, OwnKeeper] = field(default_factory=dict)
    _sweeper: asyncio.TimerHandle | None = None
    _ending: BackgroundTasks = field(default_factory=BackgroundTasks)

    def __post_init__(self) -> None:
        self.is_whole = self.token_of is None
        self._is_process = isinstance(self.plan.reach, Spawn)
        if self._is_process:
            self.connector_parts.process_limit.pools.add(self)

    def __len__(self) -> int:
        return len(self._keepers)

    @property
    def most(self) -> int:
        return self.plan.max_processes if self._is_process else CONNECTIONS_MAX

    @property
    def keepers(self) -> Iterable[OwnKeeper]:
        return self._keepers.values()

    @property
    def links(self) -> list[ServerLink]:
        return [keeper.link for keeper in self._keepers.values()]

    async def stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for key in list(self._keepers):
            self._end(key)
        self.connector_parts.process_limit.pools.discard(self)
        await self._ending.finish()

    # Whose

    def _find_key(self, caller: Caller, declared_raw: Raw | None) -> Key | None:
        """Return the key of the additional link for a client, or None if the client uses the shared link."""
        principal = caller.principal.name
        if self.per == "principal":
            return principal, b"", 0
        offered = caller.capabilities if caller.channel is not None else decode_object(declared_raw or RAW_EMPTY) or {}
        if self.rule.asked_for is not None and self.rule.asked_for.isdisjoint(offered):
            declaration = _declared({**offered, "roots": _ROOTS}) if self.rule.is_exact else _EVERYTHING
            return None if declaration == _EVERYTHING else (None, declaration, 0)
        if caller.channel is not None:
            return caller
        declaration, number = _declared(offered) if self.rule.is_exact else b"", 0
        while self.rule.asks and (keeper := self._keepers.get((principal, declaration, number))) and keeper.is_serving:
            number += 1
        return principal, declaration, number

    def ready(self, caller: Caller, declared: Raw | None = None) -> ServerLink | None:
        """Return the open link that a client uses, and count it as used now. Return None if it must be opened first.

        A client that does not need a separate link gets the shared one. `declared` is the encoded capabilities in a
        2026-07-28 request.
        """
        if (key := self._find_key(caller.whole or caller, declared)) is None:
            return self._shared
        if (keeper := self._keepers.get(key)) is None or not keeper.is_usable:
            return None
        keeper.use()
        return keeper.link

    @property
    def _shared(self) -> ServerLink:
        return self.all_keepers[self.plan.segment].link  # type: ignore[return-value]

    def find_usable(self, principal: str) -> ServerLink | None:
        """Return a usable additional link of a principal that all its sessions may use, or None.

        The link is not marked as used.
        """
        return next((keeper.link for keeper in self._links_of(principal) if keeper.is_usable), None)

    async def open(self, caller: Caller, declared: Raw | None = None) -> ServerLink | RequestedConsent:
        """Open the client's link and return it, after at most OPEN_S seconds for connecting.

        The link may have failed to connect. A client that does not need a separate link gets the shared one; so may a
        client for which no separate link can be opened. If the user has to consent first, return the request for that
        consent. Raise Unobtainable if no token can be obtained, LimitReached if there are too many links or processes,
        or StoreError.
        """
        client = caller.whole or caller
        if (key := self._find_key(client, declared)) is None:
            return self._shared
        is_of_several = not isinstance(key, Caller) and key[0] is None
        try:
            keeper = self._keepers.get(key)
            opened = await (keeper or self._make_or_share(key, client)).open()
        except LimitReached:
            if not self.rule.in_own_era and not is_of_several:
                raise
            return self._shared  # which serves all but some questions
        if is_of_several and not (isinstance(opened, ServerLink) and opened.is_connected):
            return self._shared
        if self.rule.in_own_era and isinstance(opened, ServerLink) and opened.is_connected:
            if opened.modern:  # it speaks one era only
                self.rule = msgspec.structs.replace(self.rule, asked_for=frozenset())
                self.end_session(client)
                return self._shared
            self.rule = msgspec.structs.replace(self.rule, reason="it speaks the era of legacy clients too")
        return opened

    def _links_of(self, principal: str) -> Iterator[OwnKeeper]:
        """Yield the keepers of those additional links of a principal that all its sessions may use."""
        for keeper in self._keepers.values():
            if keeper.link.owner == principal and keeper.link.client is None:
                yield keeper

    # Making

    def _make_or_share(self, key: Key, caller: Caller) -> OwnKeeper:
        """Return the keeper of a new link. If the limit is reached, return the keeper of another link of the same
        principal.

        Raise LimitReached if there is none.
        """
        try:
            return self._make(key, caller)
        except LimitReached:
            other = None if isinstance(key, Caller) or key[0] is None else next(self._links_of(key[0]), None)
            if other is None:
                raise
            return other

    def _make(self, key: Key, caller: Caller) -> OwnKeeper:
        if len(self._keepers) >= self.most:
            if self.find_idle_since() is None:
                raise LimitReached(self.most)
            self.end_longest_idle()
        if self._is_process:
            self.connector_parts.process_limit.free_one()
        principal = caller.principal.name
        token = self.token_of(principal) if self.token_of is not None else None
        client, owner = (key, principal) if isinstance(key, Caller) else (None, key[0])
        while (segment := f"{self.plan.segment}+{secrets.token_hex(4)}") in self.all_keepers:
            pass
        plan = msgspec.structs.replace(self.plan, segment=segment)
        shared = self.all_keepers[self.plan.segment]
        make_shared = partial(ServerLink, plan, clock=self.connector_parts.clock, vendor_meta=self.vendor_meta)
        make_link = partial(make_shared, shared=shared.link, owner=owner, client=client)
        keeper = OwnKeeper(make_link, self._own_parts(key), self.events, token or self.holder, token=token)
        if client is not None:
            keeper.log_level.set(client.log_level)
        elif isinstance(shared, ServerKeeper):
            keeper.log_level.set(shared.log_level.of_sessions)
        self._keepers[key] = self.all_keepers[plan.segment] = keeper
        if self._sweeper is None:
            self._sweep_later()
        return keeper

    def _own_parts(self, key: Key) -> ConnectorParts:
        """Return the parts that connect an additional link, with the capabilities that the link declares for its
        clients.

        If these are unknown, the capabilities that any client may have are declared.
        """
        is_in_own_era = isinstance(key, Caller) and self._shared.modern  # if it speaks that too
        parts = self.connector_parts
        if is_in_own_era:
            # The era of a separate link says nothing about the shared one.
            parts = msgspec.structs.replace(parts, eras=connector.Eras())
        offered: Mapping[str, Any]
        if not isinstance(key, Caller):
            if not key[1]:
                return parts
            offered = msgspec.json.decode(key[1])
        else:
            offered = {name: key.capabilities[name] for name in _PASSED if name in key.capabilities}
            experimental = decode_object(key.capabilities.get("experimental", RAW_EMPTY)) or {}
            experimental.pop(EXTENSION, None)  # it concerns the names here, and the lists come over the shared link
            if experimental:
                offered = {**offered, "experimental": experimental}
        manner = connector.Manner(capabilities=offered, first=Era.LEGACY if is_in_own_era else None)
        return msgspec.structs.replace(parts, manner=manner)

    # Ending

    async def forget(self, principal: str) -> None:
        """End the link of a user whose token was removed."""
        if (key := (principal, b"", 0)) in self._keepers:
            await self._end(key)

    def end_session(self, caller: Caller) -> None:
        if caller in self._keepers:
            self._end(caller)

    def find_idle_since(self) -> float | None:
        """Return when the link that has been idle longest was last used, or None if no link may be ended."""
        key = self._find_longest_idle()
        return None if key is None else self._keepers[key].used_at

    def end_longest_idle(self) -> None:
        if (key := self._find_longest_idle()) is not None:
            self._end(key)

    def _find_longest_idle(self) -> Key | None:
        """Return the key of the link that has been idle longest and may be ended, or None."""
        before = self.connector_parts.clock.now() - (connector.SETTLED_S if self._is_process else 0.0)
        idle = [key for key, keeper in self._keepers.items() if keeper.is_idle and keeper.used_at <= before]
        return min(idle, key=lambda key: self._keepers[key].used_at, default=None)

    def _sweep(self) -> None:
        now = self.connector_parts.clock.now()
        for key, keeper in list(self._keepers.items()):
            if now - keeper.used_at > self.plan.idle_timeout_s and keeper.is_idle:
                self._end(key)
        self._sweeper = None
        if self._keepers:
            self._sweep_later()

    def _sweep_later(self) -> None:
        wait_s = min(SWEEP_S, self.plan.idle_timeout_s)
        self._sweeper = asyncio.get_running_loop().call_later(wait_s, self._sweep)

    def _end(self, key: Key) -> "asyncio.Task[None]":
        keeper = self._keepers.pop(key)

        async def stop() -> None:
            await keeper.stop()
            self.events.tasks.on_link_ended(keeper.link)
            self.all_keepers.pop(keeper.link.segment, None)

        return self._ending.begin(stop())


_PASSED: Final = tuple(LEGACY_CAPABILITIES)
_EVERYTHING: Final = encode_value(LEGACY_CAPABILITIES)
_ROOTS: Final = Raw(encode_value(LEGACY_CAPABILITIES["roots"]))  # where a link is shared, they are the operator's


def _declared(offered: Mapping[str, Raw]) -> bytes:
    return encode_value(common_capabilities(LEGACY_CAPABILITIES, offered))


class StatefulServer(msgspec.Struct, frozen=True):
    """Server that is known to keep a client's state in its process.

    It is recognised by its package, wherever its command names it, or by the name that it reports in the handshake. A
    recognised server costs one process per session, so a server gains nothing by reporting a false name.
    """

    reason: str
    packages: tuple[str, ...]
    names: tuple[str, ...] = ()  # as in serverInfo
    asks: bool = False  # it also asks its clients


_ASKS: Final = "it asks its client for answers, and keeps subscriptions and a log level for one client"
_ONE_PAGE: Final = "its browser has one current page"
_THOUGHTS: Final = ("@modelcontextprotocol/server-sequential-thinking",)
_PLAYWRIGHT: Final = ("@playwright/mcp", "@executeautomation/playwright-mcp-server")
_EVERYTHING_NAMES: Final = ("mcp-servers/everything", "example-servers/everything")
STATEFUL: Final = (
    StatefulServer(_ASKS, ("@modelcontextprotocol/server-everything",), _EVERYTHING_NAMES, asks=True),
    StatefulServer("it counts the thoughts of one conversation", _THOUGHTS, ("sequential-thinking-server",)),
    StatefulServer(_ONE_PAGE, _PLAYWRIGHT, ("Playwright",)),
    StatefulServer(_ONE_PAGE, ("@modelcontextprotocol/server-puppeteer",), ("example-servers/puppeteer",)),
    StatefulServer("its browser has one selected page", ("chrome-devtools-mcp",), ("chrome_devtools",)),
)


def find_stateful(reach: Spawn | Dial | None, name: str) -> StatefulServer | None:
    """Return the entry for a server in the table of servers that keep a client's state, or None if the server is not in
    it.

    `name` is the name that the server reports.
    """
    words: tuple[str, ...] = ()
    if isinstance(reach, Spawn):
        words = reach.command if reach.package is None else (reach.package.name, *reach.command)
    for server in STATEFUL:
        for package in server.packages:
            # A word is a package name, with or without a version, or a path into that package.
            starts, part = (f"{package}@",), f"/node_modules/{package}/"
            if any(word == package or word.startswith(starts) or part in word for word in words):
                return server
        if name in server.names:
            return server
    return None


BUCKET: Final = "asking"


class Asking(msgspec.Struct, frozen=True):
    """Record of the client capabilities, such as sampling, that one server has asked for."""

    server: str  # the name it gives itself: another server under the same segment is not known to ask
    asks: frozenset[str]  # capabilities of clients: elicitation, sampling, roots; nothing said which client was meant
    asks_in_calls: frozenset[str] = frozenset()  # the same, on the stream of a call, whose client was meant


ASKS_NOTHING: Final = Asking("", frozenset())


class AskingMemory(ServerMemory[Asking]):
    """Memory of the requests that servers have sent to clients over a shared link. It is kept across restarts.

    It makes the decision possible before the first call, instead of only after the server's first question.
    """

    bucket = BUCKET
    subject = "what {} asks for"

    def decode(self, value: bytes) -> Asking:
        return msgspec.json.decode(value, type=Asking)

    def of(self, segment: str, server: str) -> Asking:
        asking = self.values.get(segment)
        return asking if asking is not None and asking.server == server else ASKS_NOTHING

    def add(self, segment: str, server: str, capability: str, *, in_call: bool) -> None:
        asking, new = self.of(segment, server), {capability}
        asks = asking.asks if in_call else asking.asks | new
        self.put(segment, Asking(server, asks, asking.asks_in_calls | new if in_call else asking.asks_in_calls))


DECLARED: Final = frozenset(("sampling", "elicitation"))  # roots are the operator's folders wherever a link is shared

log = logging.getLogger("interlock.links")


@dataclass(eq=False)
class AutoSharing:
    """Decision whether the clients of one server share one link, for the setting `share = "auto"`."""

    own: OwnLinks
    memory: AskingMemory

    def find_own(self, link: ServerLink, facts: ServerFacts) -> OwnLinks | None:
        """Return the pool of additional links to a server, if its handshake or earlier requests show that clients must
        not share one link.

        Return None if all clients share one link.
        """
        if facts.era is not Era.LEGACY:
            return None
        if (stateful := find_stateful(link.reach, facts.name)) is not None:
            self.own.rule = OwnLinkRule(reason=stateful.reason, asks=stateful.asks, is_exact=stateful.asks)
            return self.own
        asking = self.memory.of(link.segment, facts.name)
        capabilities, all_capabilities = asking.asks, asking.asks | asking.asks_in_calls
        if "roots" in capabilities and not link.allowed_folders():
            capabilities -= {"roots"}
        is_exact = not all_capabilities.isdisjoint(DECLARED)
        if not capabilities and not is_exact:
            return None
        reason = f"it asks for {', '.join(sorted(all_capabilities))}"
        self.own.rule = OwnLinkRule(reason=reason, asked_for=capabilities, asks=True, is_exact=is_exact)
        return self.own

    def find_own_of_legacy(self, link: ServerLink, facts: ServerFacts) -> OwnLinks | None:
        """Return the pool of additional links on which a modern server may serve legacy clients in the legacy era.
        Return None if such clients use the shared link.

        A server that supports MCP-AX handles questions itself. A server with tasks stays with its era, because tasks
        differ between the eras.
        """
        if facts.era is not Era.MODERN or not isinstance(link.reach, Dial):
            return None
        extensions = decode_object(facts.capabilities.get("extensions", RAW_EMPTY)) or {}
        if EXTENSION in extensions or offers_tasks(facts.capabilities, facts.era):
            return None
        self.own.rule = OwnLinkRule(asked_for=frozenset(ASKED_OF_CLIENT.values()), in_own_era=True)
        return self.own

    def on_asked(self, link: ServerLink, method: str, *, in_call: bool) -> OwnLinks | None:
        """Record that the server sent a request to a client, from which follows whether its clients need links of their
        own.

        Return the pool of links that clients use from now on besides the shared one, or None if all clients keep
        sharing one link.
        """
        facts, capability = link.facts, ASKED_OF_CLIENT.get(method)
        if facts is None or capability is None:
            return link.own
        asking = self.memory.of(link.segment, facts.name)
        if capability in (asking.asks_in_calls if in_call else asking.asks):
            return link.own
        self.memory.add(link.segment, facts.name, capability, in_call=in_call)
        if (own := self.find_own(link, facts)) is not None and link.own is None:
            log.info("link %s: %s; clients get other links from now on", link.name, own.rule.reason)
        return own
