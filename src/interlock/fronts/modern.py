"""Clients of the modern era (2026-07-28), which have no session: every request contains everything that is needed to
serve it.

A front has validated a request before it arrives here (`mcp`): its version, its capabilities and its mirrored headers.
`ModernFront.handle` turns it into a call of the dispatcher, or answers it from lists and from what the node knows about
itself. Its caller is shared between equal requests, because a caller without a session has no state.

A subscription is one request that stays open: `ListenStream` is its sink and a member of the `Audience`. It ends when
its client closes the connection or cancels the request, or when its credential is no longer valid.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.config.plan import NameForm
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call
from interlock.core.calls.caller import Caller, ClientRequest, Principal, Sink, ViewKey, view_key
from interlock.dispatch.dispatch import ClientNotifications
from interlock.dispatch.task_methods import ABOUT, TaskMethods
from interlock.fronts.audience import Audience
from interlock.fronts.lists import SERVER_INFO, ClientDispatch, ClientLists, capabilities, routed_methods
from interlock.fronts.sessions import CHANGED
from interlock.mcp import methods
from interlock.mcp.methods import DISCOVER, LISTEN, LISTS, META_CAPABILITIES, TOOLS_CALL, Era
from interlock.mcp.modern_requests import ValidatedRequest
from interlock.mcp.tasks import NOT_DECLARED, declares_tasks
from interlock.wire.jsonrpc import codec
from interlock.wire.jsonrpc.codec import Notification, decode_object, encode_notification, encode_refusal, encode_value
from interlock.wire.refusal import INVALID_PARAMS, METHOD_NOT_FOUND, Refusal

SUBSCRIPTIONS_MAX: Final = 1000  # resource URIs and tasks in one filter
WATCH_AT_ONCE: Final = 50  # resources asked of servers at a time
EVENTS: Final = "x-mcpax-events"
DISCOVER_TTL_MS: Final = 60_000
_FILTERS: Final = {"tools": "toolsListChanged", "prompts": "promptsListChanged", "resources": "resourcesListChanged"}


class _Filter(msgspec.Struct, frozen=True):
    """The filter of a `subscriptions/listen` request, which selects the notifications that the client wants."""

    kinds: frozenset[str]
    uris: list[str]
    tasks: list[str]


@dataclass(eq=False)
class ListenStream:
    """An open `subscriptions/listen` request of a modern client, to which notifications are sent."""

    caller: Caller
    listen_id: bytes
    sink: Sink
    kinds: frozenset[str]
    events: bool = False  # whether it also hears what the tree tells beside MCP (MCP-AX 12)
    # News from before the acknowledgement, which comes first.
    _early: dict[bytes, None] | None = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._meta = encode_value({methods.META_SUBSCRIPTION: Raw(self.listen_id)})

    def acknowledge(self, honoured: dict[str, Any]) -> None:
        body = encode_value({"_meta": Raw(self._meta), "notifications": honoured})
        self.sink.emit(encode_notification(methods.ACKNOWLEDGED.encode(), body))
        early, self._early = self._early or {}, None
        for message in early:
            self.sink.emit(message)

    def _tell(self, message: bytes) -> None:
        if self._early is None:
            self.sink.emit(message)
        else:
            self._early[message] = None

    def on_lists_changed(self, kind: str) -> None:
        if kind in self.kinds:
            self._tell(encode_notification(CHANGED[kind].encode(), b'{"_meta":%b}' % self._meta))

    def on_resource_updated(self, params: bytes) -> None:
        members: dict[str, Any] = {**(decode_object(params) or {}), "_meta": Raw(self._meta)}
        self._tell(encode_notification(methods.RESOURCE_UPDATED.encode(), encode_value(members)))

    def on_task(self, members: dict[str, Any]) -> None:
        params = {**members, "_meta": Raw(self._meta)}
        self._tell(encode_notification(methods.TASK_NEWS.encode(), encode_value(params)))

    def on_log(self, params: Raw) -> None:
        pass  # 2026-07-28 sends logs on the request they belong to

    def tell_legacy(self, message: bytes) -> None:
        pass

    def on_vendor_notification(self, notification: codec.Notification) -> None:
        self._tell_tagged(notification.method, notification.params)

    def on_notice(self, notice: Notification) -> None:
        if self.events:
            self._tell_tagged(notice.method, notice.params)

    def _tell_tagged(self, method: str, raw_params: Raw) -> None:
        params: dict[str, Any] = dict(decode_object(raw_params) or {})
        meta = decode_object(params["_meta"]) if "_meta" in params else None
        params["_meta"] = {**(meta or {}), methods.META_SUBSCRIPTION: Raw(self.listen_id)}
        self._tell(encode_notification(encode_value(method)[1:-1], encode_value(params)))

    def finish(self) -> None:
        """End the stream properly, by answering the listen request."""
        self.sink.answer(codec.encode_result(self.listen_id, b'{"resultType":"complete","_meta":%b}' % self._meta))


@dataclass(eq=False)
class ModernFront:
    """The entry point for modern clients. It handles each of their requests independently."""

    dispatch: ClientDispatch
    stock: ClientLists
    audience: Audience
    tasks: TaskMethods
    listeners: set[ListenStream] = field(default_factory=set)  # which two fronts may share
    notifications: ClientNotifications | None = None  # passes on notifications of vendors
    _background: BackgroundTasks = field(default_factory=BackgroundTasks)
    _callers: dict[tuple[str, str, str | None, NameForm], Caller] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._routed = routed_methods(self.dispatch)

    def caller(self, principal: Principal, via: str, only: str | None, names: NameForm) -> Caller:
        """Return the `Caller` object of a modern client. Clients with the same credential and settings share one
        object.
        """
        key = (principal.name, via, only, names)
        if (caller := self._callers.get(key)) is None or caller.principal is not principal:
            if len(self._callers) > 10_000:
                self._callers.clear()
            view = view_key(principal, only=only, names=names, declares_extension=False, via=via)
            caller = self._callers[key] = Caller(principal, Era.MODERN, via, view)
            caller.front = self
        return caller

    def handle(
        self,
        caller: Caller,
        request: ValidatedRequest,
        sink: Sink,
        headers: Mapping[bytes, bytes] | None,
        names: NameForm = "auto",
    ) -> Call | ListenStream | None:
        """Answer a request through the sink, now or later.

        Return the call or stream to stop when the client disconnects, or None if there is nothing to stop.
        """
        method, params, meta = request.method, request.params, request.meta
        if method == TOOLS_CALL:
            return self.dispatch.call_tool(ClientRequest(caller, request.id, method, params, meta, sink, headers))
        if method in LISTS:
            self._list(caller, request, params, self._key(caller, meta, names), sink)
        elif (serve := self._routed.get(method)) is not None:
            return serve(ClientRequest(caller, request.id, method, params, meta, sink))
        elif method in ABOUT[Era.MODERN]:
            return self.tasks.ask(ClientRequest(caller, request.id, method, params, meta, sink))
        elif method == LISTEN:
            if isinstance(wanted := _read_filter(request), Refusal):
                sink.answer(encode_refusal(request.id, wanted), wanted.mcp_status)
                return None
            events = bytes(request.meta.get(EVENTS, b"")) == b"true"
            kinds = wanted.kinds - self.stock.unchanging
            listener = ListenStream(caller, request.id, sink, kinds, events=events)
            honoured: dict[str, Any] = {_FILTERS[kind]: True for kind in sorted(kinds)}
            self.audience.join(listener)
            self.listeners.add(listener)
            if not wanted.uris and not wanted.tasks:
                listener.acknowledge(honoured)
                return listener
            self._background.begin(self._watch(listener, wanted, honoured, request.meta[META_CAPABILITIES]))
            return listener
        elif method == DISCOVER:
            self._discover(caller, request, sink)
        else:
            refusal = Refusal(METHOD_NOT_FOUND, "Method not found", {"method": method[:100]})
            sink.answer(encode_refusal(request.id, refusal), refusal.mcp_status)
        return None

    def pass_on(self, caller: Caller, notification: codec.Notification) -> None:
        """Pass on a client's notification to servers. Only clients on stdio send any; over HTTP, clients of 2026-07-28
        send none.
        """
        if self.notifications is not None:
            self.notifications.pass_on(caller, notification)

    def _key(self, caller: Caller, meta: dict[str, Raw], names: NameForm) -> ViewKey:
        """Return the view key of a request. A client that declares the MCP-AX extension gets dotted names (MCP-AX 3.2,
        our rule).
        """
        if methods.EXTENSION.encode() not in bytes(meta[META_CAPABILITIES]):
            return caller.key
        offered = decode_object(meta[META_CAPABILITIES]) or {}
        extensions = decode_object(offered["extensions"]) if "extensions" in offered else None
        declares = extensions is not None and methods.EXTENSION in extensions
        return view_key(
            caller.principal, only=caller.key.only, names=names, declares_extension=declares, via=caller.via
        )

    def _list(
        self, caller: Caller, request: ValidatedRequest, params: dict[str, Raw], key: ViewKey, sink: Sink
    ) -> None:
        def answer() -> None:
            if isinstance(listed := self.stock.list(request.method, key, params, Era.MODERN), Refusal):
                sink.answer(encode_refusal(request.id, listed), listed.mcp_status)
            else:
                sink.answer(codec.encode_result(request.id, listed))

        self.stock.when_fresh(request.method, answer)

    def _discover(self, caller: Caller, request: ValidatedRequest, sink: Sink) -> None:
        def answer() -> None:
            view = self.dispatch.view(caller.key)
            result = {
                "resultType": "complete",
                "supportedVersions": list(methods.MODERN_VERSIONS),
                "capabilities": capabilities(view, modern=True, upward=caller.hop is not None),
                "instructions": self.stock.introduction(view, caller.key.only),
                "ttlMs": DISCOVER_TTL_MS,
                "cacheScope": "private",
                "_meta": {methods.META_SERVER: SERVER_INFO},
            }
            sink.answer(codec.encode_result(request.id, encode_value(result)))

        self.stock.when_fresh(DISCOVER, answer)

    async def _watch(self, listener: ListenStream, wanted: _Filter, honoured: dict[str, Any], declared: Raw) -> None:
        """Subscribe to the resources and tasks of a filter. Only subscriptions that the servers accepted are
        acknowledged.
        """
        view = self.dispatch.view(listener.caller.key)
        slots = asyncio.Semaphore(WATCH_AT_ONCE)

        async def granted(uri: str) -> bool:
            target = view.find_resource(uri)
            async with slots:
                return (
                    not isinstance(target, list) and await self.audience.watch(listener, *target, uri, declared) is None
                )

        outcomes = await asyncio.gather(*(granted(uri) for uri in wanted.uris))
        watched = [uri for uri, is_granted in zip(wanted.uris, outcomes, strict=True) if is_granted]
        if watched:
            honoured["resourceSubscriptions"] = watched
        if wanted.tasks and (agreed := await self.tasks.watch(listener.caller, listener.on_task, wanted.tasks)):
            honoured["taskIds"] = agreed
        if listener in self.listeners:
            listener.acknowledge(honoured)
        else:
            self.tasks.unwatch(listener.on_task)  # it went while servers were asked

    def stop_listening(self, listener: ListenStream) -> None:
        self.listeners.discard(listener)
        self.audience.leave(listener)
        self.tasks.unwatch(listener.on_task)


def _read_filter(climbed: ValidatedRequest) -> _Filter | Refusal:
    wanted = decode_object(climbed.params["notifications"]) if "notifications" in climbed.params else None
    uris = codec.decode_array(wanted.get("resourceSubscriptions", Raw(b"[]"))) if wanted is not None else None
    tasks = codec.decode_array(wanted.get("taskIds", Raw(b"[]"))) if wanted is not None else None
    if wanted is None or uris is None or tasks is None:
        return Refusal(INVALID_PARAMS, "params.notifications must be a filter object")
    if len(uris) + len(tasks) > SUBSCRIPTIONS_MAX:
        return Refusal(INVALID_PARAMS, f"at most {SUBSCRIPTIONS_MAX} resource subscriptions and tasks in one filter")
    if tasks and not declares_tasks(climbed.meta[META_CAPABILITIES]):
        return NOT_DECLARED
    kinds = frozenset(kind for kind, name in _FILTERS.items() if bytes(wanted.get(name, b"")) == b"true")
    texts = [[text for raw in raws if (text := codec.find_string(raw)) is not None] for raws in (uris, tasks)]
    return _Filter(kinds, *texts)
