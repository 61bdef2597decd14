"""The life of one link: launch or dial, greet, list, stay, come back.

One task per link, so a server that hangs or crashes in a loop costs nobody else anything. Everything the link was asked
to remember (subscriptions, log level) is said again after each return.
"""

import asyncio
import logging
import os
import random
import secrets
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw

from interlock.config.plan import Dial, Package, Spawn
from interlock.protocol.jsonrpc.codec import decode_object
from interlock.protocol.jsonrpc.errors import CALL_TIMEOUT, METHOD_NOT_FOUND, Fault
from interlock.protocol.jsonrpc.messages import Request, Response
from interlock.protocol.mcp.eras import Era
from interlock.protocol.mcp.methods import (
    DISCOVER,
    INITIALIZED,
    LISTEN,
    LOG_RANK,
    PING,
    PROMPTS_LIST,
    RESOURCES_LIST,
    SET_LEVEL,
    SUBSCRIBE,
    TEMPLATES_LIST,
    TOOLS_LIST,
    UNSUBSCRIBE,
)
from interlock.runtime.callers import Asked
from interlock.runtime.calls import Outcome
from interlock.runtime.clock import Clock
from interlock.runtime.links.greeting import MODERN_META, PROBE_S, GreetingFailed, greet, modern_head
from interlock.runtime.links.link import Link, LostFault, ServerFacts
from interlock.runtime.links.listing import FIELD, Items, ListFailed, Listing, read_list
from interlock.runtime.links.pipes import HttpPipe, SsePipe, StdioPipe, Trouble
from interlock.runtime.links.state import LinkState
from interlock.runtime.links.task_listening import TaskListening
from interlock.transport.launch import ChildStartFailed, child_environment
from interlock.transport.packages import PackageUnavailable, ensure
from interlock.transport.stderr import StderrRing
from interlock.transport.stdio import Child
from interlock.transport.warden import Warden

log = logging.getLogger("interlock.links")

BACKOFF_FIRST_S: Final = 0.5
BACKOFF_MAX_S: Final = 30.0
STEADY_S: Final = 30.0  # ready this long means the next loss starts the backoff anew
UNAUTHORISED_RETRY_S: Final = 60.0
GRACE_S: Final = 300.0  # MCP-AX 13.2: how long a lost server's tools stay listed
LAUNCH_S: Final = 15.0
SUBSCRIBE_S: Final = 10.0
STOP_S: Final = 6.0
QUICK_RETURNS_MAX: Final = 3

LISTS_OF: Final = {
    "tools": (TOOLS_LIST,),
    "prompts": (PROMPTS_LIST,),
    "resources": (RESOURCES_LIST, TEMPLATES_LIST),
}


class Eras(Protocol):
    """What is remembered of servers met before."""

    def get(self, server: str) -> Era | None: ...

    def put(self, server: str, era: Era) -> None: ...


class Workshop(msgspec.Struct, frozen=True, kw_only=True):
    """What keepers need to launch and dial."""

    packages: Path
    message_bytes: int
    warden: Warden | None
    eras: Eras
    clock: Clock


class Keeper:
    def __init__(
        self, link: Link, workshop: Workshop, stock: Callable[[Link, Listing | None], Awaitable[None]]
    ) -> None:
        self.link = link
        self.listing: Listing | None = None
        self.listed_at = dict.fromkeys(LISTS_OF, 0.0)  # when each kind of list was last read
        self.settled = asyncio.Event()  # the first attempt has ended, well or not
        self.stderr = StderrRing(now=workshop.clock.wall)
        self.uris: set[str] = set()
        self.task_listening = TaskListening(link)
        self.log_level: str | None = None
        self._workshop = workshop
        self._stock_catalog = stock
        self._lost: asyncio.Event = asyncio.Event()
        self._lost_reason = ""
        self._wake = asyncio.Event()
        self._usable = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._relists: dict[str, asyncio.Task[None]] = {}
        self._unread: set[str] = set()  # kinds of lists that changed since they were last asked for
        self._regreeting: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._listener: _Listener | None = None
        self._first: Era | None = None  # which era to try first, when the last attempt ended in the greeting
        self._attempts = 0
        self._stopping = False

    # Commands

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._live(), name=f"link {self.link.segment}")

    async def stop(self) -> None:
        """Bounded: a child caught in the middle of its start must not hold the node; the warden sees to it."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=STOP_S)
        try:
            await asyncio.wait_for(self._hang_up("the node is stopping"), STOP_S)
        except TimeoutError:
            log.warning("link %s: did not stop within %g s", self.link.segment, STOP_S)
        self.link.stand(LinkState.STOPPED, None)

    async def restart(self) -> None:
        """Now, whatever the backoff says."""
        self._attempts = 0
        if self.link.standing.state in (LinkState.READY, LinkState.SLOW):
            self.lose("restarted by the operator")
        self._wake.set()

    def lose(self, reason: str) -> None:
        self._lost_reason = reason
        self._lost.set()

    def wake(self) -> None:
        """Somebody wants this server now."""
        self._wake.set()

    @property
    def may_return_soon(self) -> bool:
        """A server that was there and ended is worth a short wait; one that keeps ending is not."""
        return self.listing is not None and self._attempts <= QUICK_RETURNS_MAX and not self._stopping

    async def usable_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._usable.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def refresh(self, kind: str) -> "asyncio.Task[None]":
        """Read one kind of list again; asked twice while under way, it is read once more afterwards at most."""
        task = self._relists.get(kind)
        self._unread.add(kind)
        if task is None or task.done():
            task = asyncio.get_running_loop().create_task(self._relist(kind))
            self._relists[kind] = task
        return task

    async def refreshed(self, kind: str) -> None:
        await asyncio.shield(self.refresh(kind))

    @property
    def announces_changes(self) -> bool:
        return self.link.facts is not None and _has(self.link.facts.capabilities.get("tools"), "listChanged")

    async def subscribe(self, uri: str) -> Response | Fault | None:
        """None when the server will tell of changes; otherwise its refusal."""
        facts = self.link.facts
        if facts is None or not _has(facts.capabilities.get("resources"), "subscribe"):
            return Fault(METHOD_NOT_FOUND, "the server of this resource has no subscriptions")
        if uri in self.uris:
            return None
        if facts.era is Era.MODERN:
            self.uris.add(uri)
            self._listen()
            return None
        inquiry = self.link.ask(SUBSCRIBE, {"uri": uri})
        try:
            reply = await asyncio.wait_for(inquiry.future, SUBSCRIBE_S)
        except TimeoutError:
            self.link.cancel(inquiry, "timeout")
            return Fault(CALL_TIMEOUT, "call_timeout", {"timeout_ms": int(SUBSCRIBE_S * 1000), "outcome": "unknown"})
        if isinstance(reply, Fault) or reply.error:
            return reply
        self.uris.add(uri)
        return None

    def unsubscribe(self, uri: str) -> None:
        if uri in self.uris:
            self.uris.discard(uri)
            self._say_subscription(UNSUBSCRIBE, uri)

    def set_log_level(self, level: str) -> None:
        if level != self.log_level:
            self.log_level = level
            self._say_log_level()

    def want_log_level(self, level: str) -> None:
        """At least this much: each client hears only what it asked for, whatever the server says."""
        if self.log_level is None or LOG_RANK[level] < LOG_RANK[self.log_level]:
            self.set_log_level(level)

    # Life

    async def _live(self) -> None:
        while not self._stopping:
            self._lost.clear()
            self._wake.clear()
            began = self._workshop.clock.now()
            retry_s = None
            try:
                await self._connect()
                self.settled.set()
                self._usable.set()
                await self._lost.wait()
                reason = self._lost_reason
            except GreetingFailed as failed:
                reason = failed.reason
                if failed.what is not None and failed.what.trouble is Trouble.UNAUTHORISED:
                    retry_s = UNAUTHORISED_RETRY_S
            except (PackageUnavailable, ChildStartFailed, OSError, TimeoutError) as failed:
                reason = _launch_reason(failed)
            except Exception:
                ref = secrets.token_hex(6)
                log.exception("link %s: internal error %s", self.link.segment, ref)
                reason = f"internal error {ref}"
            self._usable.clear()
            await self._hang_up(reason)
            if self._workshop.clock.now() - began > STEADY_S:
                self._attempts = 0
            self._attempts += 1
            self.link.restarts += 1
            wait_s = retry_s or _backoff(self._attempts)
            self._stand_lost(reason, wait_s, unauthorised=retry_s is not None)
            self.settled.set()
            await self._pause(wait_s)

    def _stand_lost(self, reason: str, wait_s: float, *, unauthorised: bool) -> None:
        log.warning("link %s: %s; next attempt in %.1f s", self.link.segment, reason, wait_s)
        if unauthorised:
            self.link.stand(LinkState.UNAUTHORISED, f"{reason}; check its headers in [servers.{self.link.segment}]")
        elif self.listing is not None:
            self.link.stand(LinkState.DEGRADED, reason)
        else:
            self.link.stand(LinkState.FAILED, reason)

    async def _pause(self, wait_s: float) -> None:
        """Wait for the next attempt; a degraded link's tools leave when their grace is over."""
        try:
            await asyncio.wait_for(self._wake.wait(), wait_s)
        except TimeoutError:
            pass
        standing = self.link.standing
        if standing.state is LinkState.DEGRADED and self._workshop.clock.wall() - standing.since_wall > GRACE_S:
            self.listing = None
            self.link.stand(LinkState.FAILED, standing.reason)
            await self._stock_catalog(self.link, None)

    async def _connect(self) -> None:
        link, reach = self.link, self.link.plan.reach
        if self.listing is None and link.standing.state is not LinkState.CONNECTING:
            link.stand(LinkState.CONNECTING, link.standing.reason)
        remembered = self._first or self._workshop.eras.get(link.segment)
        if isinstance(reach, Spawn):
            await self._launch(reach)
            facts = await self._greet_or_lose(remembered)
        else:
            facts = await self._dial(reach, remembered)
        self._workshop.eras.put(link.segment, facts.era)
        self._welcome(facts)
        await self._stock()
        self._say_everything()

    def _welcome(self, facts: ServerFacts) -> None:
        link = self.link
        if facts.era is Era.LEGACY:
            if isinstance(link.pipe, HttpPipe):
                link.pipe.adopt_session(link.session, facts.version)
            link.notify(INITIALIZED)
            if isinstance(link.pipe, HttpPipe):
                link.pipe.open_stream()
        link.greeted(facts)

    def probe(self) -> None:
        """A request found nobody: ask once more, and if that fails too, the server is lost."""
        if self._usable.is_set() and (self._probing is None or self._probing.done()):
            self._probing = asyncio.get_running_loop().create_task(self._probe())

    async def _probe(self) -> None:
        facts = self.link.facts
        if facts is None or facts.era is Era.LEGACY:
            inquiry = self.link.ask(PING, {})
        else:
            inquiry = self.link.ask(DISCOVER, {"_meta": MODERN_META}, modern_head(DISCOVER))
        try:
            reply = await asyncio.wait_for(inquiry.future, PROBE_S)
        except TimeoutError:
            self.link.cancel(inquiry, "timeout")
            return
        if isinstance(reply, LostFault):
            self.lose(reply.detail)

    def regreet(self) -> None:
        """A legacy HTTP server forgot our session: open a new one on the same connection, lose no call."""
        if self._regreeting is None or self._regreeting.done():
            self._regreeting = asyncio.get_running_loop().create_task(self._regreet())

    async def _regreet(self) -> None:
        pipe = self.link.pipe
        if not isinstance(pipe, HttpPipe):
            return
        pipe.forget_session()
        self.link.session = b""
        try:
            self._welcome(await greet(self.link, Era.LEGACY, self._say_progress))
        except GreetingFailed as failed:
            self.lose(failed.reason)
            return
        self._say_everything()
        for kind in LISTS_OF:
            self.refresh(kind)

    async def _launch(self, reach: Spawn) -> None:
        argv: tuple[str, ...] = reach.command
        if reach.package is not None:
            argv = (*await self._install(reach.package), *argv)
        pipe = StdioPipe(self.link)
        self.link.pipe = pipe
        pipe.child = Child(
            argv,
            child_environment(reach.env, os.environ),
            reach.cwd,
            max_message_bytes=self._workshop.message_bytes,
            sink=pipe,
            stderr=self.stderr,
            warden=self._workshop.warden,
        )
        await asyncio.wait_for(pipe.child.start(), LAUNCH_S)
        self.link.pid = pipe.child.pid

    async def _install(self, package: Package) -> tuple[str, ...]:
        workshop = self._workshop
        return await ensure(package, workshop.packages, self._say_progress, warden=workshop.warden)

    def _say_progress(self, text: str) -> None:
        self.link.stand(self.link.standing.state, text)

    async def _dial(self, reach: Dial, remembered: Era | None) -> ServerFacts:
        link, size = self.link, self._workshop.message_bytes
        if reach.transport != "sse":
            link.session = b""
            link.pipe = HttpPipe(link, reach.url, reach.headers, size)
            link.transport = "http"
            try:
                return await self._greet_or_lose(remembered)
            except GreetingFailed as failed:
                refused = failed.what is not None and failed.what.trouble in (Trouble.REFUSED, Trouble.MALFORMED)
                if reach.transport == "http" or not refused:
                    raise
                await link.pipe.close()
                reason = failed
        else:
            reason = None
        pipe = SsePipe(link, reach.url, reach.headers, size)
        link.pipe, link.transport = pipe, "sse"
        trouble = await pipe.open(LAUNCH_S)
        if trouble is not None:
            raise reason or GreetingFailed(trouble.detail, trouble)
        return await self._greet_or_lose(Era.LEGACY)

    async def _greet_or_lose(self, remembered: Era | None) -> ServerFacts:
        """Greet, unless the connection goes first: then its own words say why."""
        greeting = asyncio.ensure_future(greet(self.link, remembered, self._say_progress))
        lost = asyncio.ensure_future(self._lost.wait())
        try:
            await asyncio.wait((greeting, lost), return_when=asyncio.FIRST_COMPLETED)
            if lost.done() and not (greeting.done() and greeting.exception() is None):
                # Some servers end when asked in the tongue they do not speak: next time the other goes first.
                self._first = Era.MODERN if remembered is Era.LEGACY else Era.LEGACY
                raise GreetingFailed(self._lost_reason)
            self._first = None
            return await greeting
        finally:
            greeting.cancel()
            lost.cancel()
            await asyncio.gather(greeting, lost, return_exceptions=True)

    async def _stock(self) -> None:
        """Read all lists. A list that does not come leaves the link usable but slow."""
        methods = (TOOLS_LIST, PROMPTS_LIST, RESOURCES_LIST, TEMPLATES_LIST)
        outcomes = await asyncio.gather(*(self._read(method) for method in methods))
        troubles = [text for _, text in outcomes if text is not None]
        old = self.listing or Listing()
        fields = {
            FIELD[method]: items if items is not None else getattr(old, FIELD[method])
            for method, (items, _) in zip(methods, outcomes, strict=True)
        }
        await self._publish(Listing(**fields), LISTS_OF)
        self._stand_listed(troubles)

    async def _relist(self, kind: str) -> None:
        while kind in self._unread:
            self._unread.discard(kind)
            await self._relist_once(kind)

    async def _relist_once(self, kind: str) -> None:
        listing = self.listing
        if listing is None or not self._usable.is_set():
            return
        troubles = []
        for method in LISTS_OF[kind]:
            items, trouble = await self._read(method)
            if items is not None:
                listing = msgspec.structs.replace(self.listing or listing, **{FIELD[method]: items})
                await self._publish(listing, (kind,))
            elif trouble is not None:
                troubles.append(trouble)
        if self.link.standing.state in (LinkState.READY, LinkState.SLOW):
            self._stand_listed(troubles)

    async def _read(self, method: str) -> tuple[Items | None, str | None]:
        try:
            return await read_list(self.link, method), None
        except ListFailed as failed:
            return None, str(failed)

    async def _publish(self, listing: Listing, kinds: Iterable[str]) -> None:
        self.listing = listing
        for kind in kinds:
            self.listed_at[kind] = self._workshop.clock.now()
        await self._stock_catalog(self.link, listing)

    def _stand_listed(self, troubles: list[str]) -> None:
        self.link.stand(LinkState.SLOW if troubles else LinkState.READY, "; ".join(troubles) or None)

    async def _hang_up(self, reason: str) -> None:
        pipe, self.link.pipe = self.link.pipe, None
        self.link.pid = None
        self._listener = None
        for task in (*self._relists.values(), self._regreeting, self._probing):
            if task is not None:
                task.cancel()
        self._relists.clear()
        self.link.fail_all(reason)
        if pipe is not None:
            await pipe.close()

    # What is said again after each return

    def _say_everything(self) -> None:
        facts = self.link.facts
        if facts is None:
            return
        if facts.era is Era.MODERN:
            self._listen()
            self.task_listening.say()
        else:
            for uri in sorted(self.uris):
                self._say_subscription(SUBSCRIBE, uri)
            self._say_log_level()

    def _say_log_level(self) -> None:
        facts = self.link.facts
        if facts is not None and facts.era is Era.LEGACY and "logging" in facts.capabilities and self.log_level:
            self.link.ask(SET_LEVEL, {"level": self.log_level})

    def _say_subscription(self, method: str, uri: str) -> None:
        facts = self.link.facts
        if facts is None or self.link.pipe is None:
            return
        if facts.era is Era.MODERN:
            self._listen()
        else:
            self.link.ask(method, {"uri": uri})

    def _listen(self) -> None:
        """One `subscriptions/listen` for all we want of this server, replaced when that changes."""
        facts = self.link.facts
        if facts is None or self.link.pipe is None:
            return
        wanted: dict[str, Any] = {}
        for capability in LISTS_OF:
            if _has(facts.capabilities.get(capability), "listChanged"):
                wanted[f"{capability}ListChanged"] = True
        if self.uris:
            wanted["resourceSubscriptions"] = sorted(self.uris)
        old, self._listener = self._listener, None
        if wanted:
            self._listener = _Listener(self._listen_again)
            params = {"_meta": MODERN_META, "notifications": wanted}
            self.link.attach(self._listener, LISTEN, params, modern_head(LISTEN))
        if old is not None:
            old.wanted = False
            self.link.cancel(old, "replaced")

    def _listen_again(self, listener: "_Listener") -> None:
        if listener is self._listener and self.link.pipe is not None:
            self._listener = None
            asyncio.get_running_loop().call_later(_backoff(listener.tries), self._listen_if_idle)

    def _listen_if_idle(self) -> None:
        if self._listener is None and self._usable.is_set():
            self._listen()
            for kind in LISTS_OF:  # what changed while nobody listened
                self.refresh(kind)


class _Listener:
    """The open `subscriptions/listen` of a modern server."""

    def __init__(self, on_end: Callable[["_Listener"], None]) -> None:
        self.upstream_id = 0
        self.handle: object = None
        self.wanted = True
        self.tries = 3
        self._on_end = on_end

    def on_response(self, response: Response, era: Era) -> None:
        refused = bool(response.error)
        if self.wanted and not refused:
            self._on_end(self)

    def on_failed(self, fault: Fault, outcome: Outcome) -> None:
        if self.wanted:
            self._on_end(self)

    def on_progress(self, params: dict[str, Raw]) -> None:
        pass

    def on_log(self, params: Raw) -> None:
        pass

    def on_request(self, link: Asked, request: Request) -> None:
        pass


def _has(raw: Raw | None, member: str) -> bool:
    """Whether a capability carries a setting."""
    settings = decode_object(raw) if raw is not None else None
    return settings is not None and bytes(settings.get(member, b"")) == b"true"


def _backoff(attempt: int) -> float:
    exact = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(attempt - 1, 10))
    return exact * random.uniform(0.8, 1.2)  # noqa: S311  (jitter, not a secret)


def _launch_reason(failed: Exception) -> str:
    if isinstance(failed, TimeoutError):
        return f"it did not start within {LAUNCH_S:g} s"
    return str(failed) or "it could not be started"
