"""What a server is asked to report: updates of watched resources, changed lists, the state of tasks, log messages.

Theory of operation. A legacy server is asked for each resource (`resources/subscribe`). A 2026-07-28 server gets one
`subscriptions/listen` request for everything that is wanted, and another one when that changes:

    next       sent and not acknowledged; only one at a time, and changes in the meantime go into the one after it
    current    acknowledged, or open long enough to count as such
    lingering  replaced, and kept open for LINGER_S over HTTP, so that no event is missed in between

While two requests are open, the server reports each update twice; `ServerNotifications.update_counts` passes on the
first report only. If the server refuses a request with several new resources, they are asked for one by one, to find
out which of them it refuses.

`TaskListening` does the same for tasks, with a request of its own. `LogLevel` is for legacy servers only.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from interlock.core.calls.call import Outcome
from interlock.core.calls.check import degraded_refusal
from interlock.links.connected_link import MODERN_META, TASKS_META, ConnectedLink
from interlock.links.server_messages import RESOURCE_FILTER, ListenRequest
from interlock.mcp.meta import has
from interlock.mcp.methods import LISTEN, LOG_RANK, SET_LEVEL, SUBSCRIBE, UNSUBSCRIBE, Era
from interlock.mcp.modern_requests import modern_head
from interlock.wire.jsonrpc.codec import Response
from interlock.wire.refusal import CALL_TIMEOUT, INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, Refusal

log = logging.getLogger("interlock.links")

SUBSCRIBE_S: Final = 10.0
LINGER_S: Final = 0.5  # over HTTP, events on the older stream may have been sent before the newer one was open
LISTEN_AGAIN_S: Final = 2.0  # after the server ended our request
_LISTS: Final = ("tools", "prompts", "resources")
_TIMED_OUT: Final = Refusal(CALL_TIMEOUT, "call_timeout", {"timeout_ms": int(SUBSCRIBE_S * 1000), "outcome": "unknown"})


class Subscriptions:
    """Subscriptions at one server to updates of resources and to changes of its lists."""

    def __init__(self, link: ConnectedLink, missed: Callable[[], None]) -> None:
        """Create the subscriptions of a link. `missed` is called when lists may have changed while the node was not
        listening.
        """
        self.uris: set[str] = set()  # watched resources, granted or being asked for
        self._link = link
        self._missed = missed
        self._asking: dict[str, asyncio.Task[Response | Refusal | None]] = {}
        self._waiting: dict[str, asyncio.Future[Response | Refusal | None]] = {}  # for an acknowledgement
        self._open = False
        self._current: ListenRequest | None = None
        self._next: ListenRequest | None = None
        self._lingering = 0  # number of replaced requests that are still open
        self._overdue: asyncio.TimerHandle | None = None
        self._stale = False  # the wanted resources changed since `_next` was sent
        self._one_by_one = False  # the server refused several new resources at once

    async def subscribe(self, uri: str) -> Response | Refusal | None:
        """Watch a resource. Return None when the server agrees to report changes, otherwise the refusal."""
        facts = self._link.facts
        if facts is None or not has(facts.capabilities.get("resources"), "subscribe"):
            return Refusal(METHOD_NOT_FOUND, "the server of this resource has no subscriptions")
        if not self._open:
            return degraded_refusal(self._link.standing)
        if (asking := self._asking.get(uri)) is None and uri in self.uris:
            return None
        self.uris.add(uri)
        if asking is None:
            asking = self._asking[uri] = asyncio.get_running_loop().create_task(self._ask(uri, facts.era))
        return await asyncio.shield(asking)

    def unsubscribe(self, uri: str) -> None:
        if uri in self.uris:
            self.uris.discard(uri)
            if uri not in self._asking:  # otherwise it is sent when the answer is there
                self._say(UNSUBSCRIBE, uri)

    def say_again(self) -> None:
        """Send all subscriptions again to a server that has been reconnected."""
        self._open = True
        if (facts := self._link.facts) is not None and facts.era is Era.MODERN:
            self._listen()
        else:
            for uri in sorted(self.uris):
                self._say(SUBSCRIBE, uri)

    def hang_up(self) -> None:
        """Send no more requests until `say_again`, because the connection is lost. The open listeners end with it."""
        self._open = False

    # One resource

    async def _ask(self, uri: str, era: Era) -> Response | Refusal | None:
        """Ask the server to report updates of a resource. Return None if it agrees, otherwise its refusal."""
        refusal: Response | Refusal | None
        try:
            if era is Era.MODERN:
                refusal = await self._ask_modern(uri)
            else:
                reply = await self._link.request(SUBSCRIBE, {"uri": uri}, SUBSCRIBE_S) or _TIMED_OUT
                refusal = reply if isinstance(reply, Refusal) or reply.error else None
        finally:
            del self._asking[uri]
        if refusal is not None:
            self.uris.discard(uri)
        elif uri not in self.uris:  # no client wants it any more
            self._say(UNSUBSCRIBE, uri)
        return refusal

    async def _ask_modern(self, uri: str) -> Response | Refusal | None:
        heard = self._waiting[uri] = asyncio.get_running_loop().create_future()
        self._listen()
        try:
            return await asyncio.wait_for(heard, SUBSCRIBE_S)
        except TimeoutError:
            self.uris.discard(uri)
            self._listen()
            return _TIMED_OUT
        finally:
            del self._waiting[uri]

    def _say(self, method: str, uri: str) -> None:
        facts = self._link.facts
        if not self._open or facts is None:
            return
        if facts.era is Era.MODERN:
            self._listen()
        else:
            self._link.ask(method, {"uri": uri})

    # Everything wanted of a 2026-07-28 server

    def _listen(self) -> None:
        """Ask a modern server to report changes of its lists and of all watched resources.

        If one is waiting for its acknowledgement, the new request follows it.
        """
        if not self._open:
            return
        if self._next is not None:
            self._stale = True
            return
        unheard = [uri for uri, heard in self._waiting.items() if not heard.done()]
        self._one_by_one = self._one_by_one and bool(unheard)
        uris = frozenset(self.uris)
        if self._one_by_one:
            self._stale = len(unheard) > 1
            uris = uris.difference(unheard[1:])
        capabilities = self._link.facts.capabilities if self._link.facts is not None else {}
        changing = [kind for kind in _LISTS if has(capabilities.get(kind), "listChanged")]
        wanted: dict[str, Any] = {f"{kind}ListChanged": True for kind in changing}
        if uris:
            wanted[RESOURCE_FILTER] = sorted(uris)
        if not wanted:
            self._replace_current(None)
            return
        self._next = listener = ListenRequest(self, RESOURCE_FILTER, uris)
        self._overdue = asyncio.get_running_loop().call_later(SUBSCRIBE_S, self._accept, listener)
        params = {"_meta": MODERN_META, "notifications": wanted}
        self._link.attach(listener, LISTEN, params, modern_head(LISTEN))

    def acknowledged(self, listener: ListenRequest, honoured: set[str]) -> None:
        """Handle the server's acknowledgement. `honoured` are the resources whose updates it will report."""
        if listener is not self._next:
            return
        for uri in listener.wanted - honoured:
            if not self._tell(uri, Refusal(INVALID_PARAMS, "the server does not tell of changes of this resource")):
                log.warning("link %s: it no longer tells of changes of %s", self._link.name, uri[:200])
        for uri in listener.wanted & honoured:
            self._tell(uri, None)
        self._accept(listener)

    def _accept(self, listener: ListenRequest) -> None:
        """Replace the current `subscriptions/listen` request by a newer one. The server acknowledged the newer one, or
        had enough time to refuse it.
        """
        if listener is self._next:
            stale = self._take_next()
            self._replace_current(listener)
            if stale:
                self._listen()

    def ended(self, listener: ListenRequest, why: Response | Refusal) -> None:
        """Handle the end of a `subscriptions/listen` request. `why` is the server's answer, or the failure of the
        connection.
        """
        refused = isinstance(why, Response) and bool(why.error) and not listener.is_acknowledged
        if listener is self._current:
            self._current = None
        elif listener is self._next:
            stale = self._take_next()
            new = [uri for uri in listener.wanted if uri in self._waiting]
            # If several resources were new, it is not clear which one the server refused: no task learns of it yet.
            is_unclear = refused and len(new) > 1
            self._one_by_one |= is_unclear
            if isinstance(why, Response) and not refused:
                why = Refusal(INTERNAL_ERROR, "the server ended the subscription before it acknowledged it")
            for uri in () if is_unclear else new:
                self._tell(uri, why)
            if is_unclear or stale:
                self._listen()
        if self._next is not None or self._current is not None or not self._open:
            return

        def listen_if_idle() -> None:
            if self._open and self._current is None and self._next is None:
                self._listen()
                self._missed()

        if refused:
            log.warning("link %s: it refuses subscriptions/listen; its changes are not noticed", self._link.name)
        else:
            asyncio.get_running_loop().call_later(LISTEN_AGAIN_S, listen_if_idle)

    def _tell(self, uri: str, outcome: Response | Refusal | None) -> bool:
        """Pass the server's answer about a subscription to the task that waits for it. Return False if there is no such
        task.
        """
        if (heard := self._waiting.get(uri)) is None:
            return False
        if outcome is not None:
            self.uris.discard(uri)
        if not heard.done():
            heard.set_result(outcome)
        return True

    def _take_next(self) -> bool:
        """Stop treating the newest `subscriptions/listen` request as pending. Return whether it has to be replaced,
        because the watched resources changed after it was sent.
        """
        self._next = None
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        stale, self._stale = self._stale, False
        return stale

    def _replace_current(self, listener: ListenRequest | None) -> None:
        old, self._current = self._current, listener
        if old is None:
            return
        if listener is None or self._link.transport == "stdio":  # one pipe keeps the order of messages
            self._link.cancel(old, "replaced")
        else:
            self._lingering += 1
            self._link.notifications.update_counts = self._link.notifications.update_counts or {}
            asyncio.get_running_loop().call_later(LINGER_S, self._let_go, old)

    def _let_go(self, old: ListenRequest) -> None:
        notifications = self._link.notifications
        self._link.cancel(old, "replaced")
        self._lingering -= 1
        if not self._lingering:
            notifications.update_counts = None
        for counts in (notifications.update_counts or {}).values():
            counts.pop(old.upstream_id, None)


AGREE_S: Final = 10.0  # how long a server may take to acknowledge a request
AGAIN_S: Final = 2.0  # until a stream that ended is opened again


class _TaskListenRequest(ListenRequest):
    """Open `subscriptions/listen` request for tasks."""

    def __init__(self, owner: "TaskListening", ids: frozenset[str], older: "_TaskListenRequest | None") -> None:
        super().__init__(owner, "taskIds", ids)
        self.older = older
        self.settled = asyncio.Event()  # acknowledged, refused, or replaced by another
        self.agreed: set[str] = set()


class TaskListening:
    """Open `subscriptions/listen` request to a modern server for all tasks that clients follow.

    It is separate from the request for lists and resources: a server that refuses to report a task must still report
    those. It is replaced when the tasks change, and repeated after a reconnection. The older request stays open until
    the server has answered the newer one, so that no event is missed in between.
    """

    def __init__(self, link: ConnectedLink) -> None:
        self._link = link
        self._ids: set[str] = set()  # as the server knows them
        self._open: _TaskListenRequest | None = None

    async def watch(self, ids: set[str]) -> set[str]:
        """Follow the tasks with these ids. Return the ids of those that the server agrees to report."""
        self._ids |= ids
        self.say()
        try:
            async with asyncio.timeout(AGREE_S):
                while (listening := self._open) is not None:
                    await listening.settled.wait()
                    if listening is self._open:
                        return ids & listening.agreed
        except TimeoutError:
            pass
        return set()

    def unwatch(self, ids: set[str]) -> None:
        if ids & self._ids:
            self._ids -= ids
            self.say()

    def say(self) -> None:
        """Send a new `subscriptions/listen` request for all tasks that are followed, if the server is connected."""
        link, old = self._link, self._open
        self._open = None
        if self._ids and link.modern and link.pipe is not None:
            self._open = newer = _TaskListenRequest(self, frozenset(self._ids), old)
            params = {"_meta": TASKS_META, "notifications": {"taskIds": sorted(self._ids)}}
            link.attach(newer, LISTEN, params, modern_head(LISTEN))
            asyncio.get_running_loop().call_later(AGREE_S, self._settle, newer)
            if old is not None:
                old.settled.set()  # its waiters wait for the newer one
        elif old is not None:
            self._settle(old)
            link.cancel(old, "replaced")

    def acknowledged(self, listening: ListenRequest, agreed: set[str]) -> None:
        if isinstance(listening, _TaskListenRequest) and listening is self._open:
            listening.agreed = agreed
            self._settle(listening)

    def _settle(self, listening: _TaskListenRequest) -> None:
        """Cancel the older `subscriptions/listen` requests that `listening` replaces.

        The server has answered this one, or had enough time to answer.
        """
        listening.settled.set()
        while (older := listening.older) is not None:
            self._link.cancel(older, "replaced")
            listening.older, older.older = older.older, None

    def ended(self, listening: ListenRequest, why: Response | Refusal) -> None:
        """Handle the end of a `subscriptions/listen` request. If the server ended it without an error and is still
        connected, send it again after a pause.
        """

        def say_if_silent() -> None:
            if self._open is None:
                self.say()

        if isinstance(listening, _TaskListenRequest):
            self._settle(listening)
        if listening is self._open and not (isinstance(why, Response) and why.error):
            self._open = None
            if self._link.pipe is not None:
                asyncio.get_running_loop().call_later(AGAIN_S, say_if_silent)


QUIET: Final = "emergency"  # the level that a server gets when no client wants its logs any longer
TAKEN_S: Final = 2.0  # for the server's answer: a log line is not worth a longer wait

Heard = asyncio.Future[Response | Refusal]


def lowest_level(*levels: str | None) -> str | None:
    """Return the log level that includes the messages of all others, or None if no client wants any."""
    return min((level for level in levels if level is not None), key=LOG_RANK.__getitem__, default=None)


@dataclass(eq=False)
class LogLevel:
    """The log level that the node requests from a legacy server (`logging/setLevel`). The node sends a request when a
    client wants another level, and again after each reconnection.
    """

    link: ConnectedLink
    of_sessions: str | None = None
    _level: str | None = None
    _of_requests: str | None = None  # of 2026-07-28, each of which names its own
    _heard: Heard | None = None

    def set(self, level: str | None) -> Heard | None:
        """Set the level that sessions want, or None if they want no logs.

        Return a future that is done when the server has accepted the level or its time is over, or None if nothing is
        pending.
        """
        self.of_sessions = level
        return self._settle()

    def want(self, level: str) -> Heard | None:
        """Request log messages at this level or a more severe one, as the `_meta` of a modern request demands. The
        level of the server is never made less detailed.

        Each client still gets only the messages that it asked for. The result is the same as for `set`.
        """
        self._of_requests = lowest_level(level, self._of_requests)
        return self._settle()

    def _settle(self) -> Heard | None:
        level = lowest_level(self.of_sessions, self._of_requests)
        if level is None and self._level is not None:
            level = QUIET
        if level != self._level:
            self._level = level
            self.say()
        heard = self._heard
        return None if heard is None or heard.done() else heard

    def say(self) -> None:
        facts = self.link.facts
        if facts is not None and facts.era is Era.LEGACY and "logging" in facts.capabilities and self._level:
            inquiry = self.link.ask(SET_LEVEL, {"level": self._level})
            self._heard = inquiry.future

            def stop_waiting() -> None:
                if not inquiry.future.done():
                    self.link.cancel(inquiry, "timeout")
                    inquiry.on_failed(Refusal(CALL_TIMEOUT, "call_timeout"), Outcome.TIMEOUT)

            asyncio.get_running_loop().call_later(TAKEN_S, stop_waiting)
