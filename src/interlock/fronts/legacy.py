"""The legacy era at the front: a session, its requests, its notifications, its answers to servers' questions."""

import asyncio
from typing import Any, Final

from msgspec import Raw

from interlock.ax.protocol.messages import CONFIRM
from interlock.config.plan import NameForm
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call
from interlock.core.calls.caller import Caller, ClientRequest, Principal, Sink, view_key
from interlock.dispatch.client_notifications import ClientNotifications
from interlock.dispatch.dispatch import resource_not_found
from interlock.dispatch.task_methods import ABOUT, TaskMethods
from interlock.dispatch.task_updates import AskedTasks
from interlock.fronts.audience import Audience
from interlock.fronts.lists import ClientDispatch, ClientLists
from interlock.fronts.server_info import SERVER_INFO, capabilities
from interlock.fronts.sessions import ClientSession, Sessions
from interlock.links.link import Link
from interlock.links.subscriptions import Heard
from interlock.mcp.capabilities import capabilities_to_modern
from interlock.mcp.methods import (
    CANCELLED,
    COMPLETE,
    EXTENSION,
    INITIALIZE,
    LATEST_LEGACY,
    LISTS,
    LOG_RANK,
    PING,
    PROMPTS_GET,
    RESOURCES_READ,
    ROOTS_CHANGED,
    SET_LEVEL,
    SUBSCRIBE,
    TASK_STATUS,
    TASKS_LIST,
    TOOLS_CALL,
    UNSUBSCRIBE,
    Era,
    negotiate_legacy,
)
from interlock.wire.jsonrpc.codec import (
    Message,
    Notification,
    Request,
    Response,
    decode_object,
    decode_params_untrusted,
    encode_error,
    encode_refusal,
    encode_result,
    encode_value,
    find_string,
)
from interlock.wire.refusal import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, UNAVAILABLE, Refusal

EMPTY_RESULT: Final = b"{}"


class LegacyFront:
    def __init__(
        self,
        dispatch: ClientDispatch,
        stock: ClientLists,
        sessions: Sessions,
        audience: Audience,
        tasks: TaskMethods,
        asked_tasks: AskedTasks,
        notifications: ClientNotifications | None = None,
    ) -> None:
        self._dispatch = dispatch
        self._notifications = notifications
        self._task_methods = tasks
        self._asked = asked_tasks
        self._stock = stock
        self._audience = audience
        self.sessions = sessions
        self._tasks = BackgroundTasks()

    def find_unreadable_answer(self, data: bytes) -> bytes | None:
        """Return the surface's answer to a message that cannot be read, or None if it has no special answer."""
        return self._stock.find_unreadable_answer(data, is_modern=False)

    def initialize(
        self, request: Request, principal: Principal, via: str, only: str | None, names: NameForm
    ) -> ClientSession | Refusal:
        """Open a session. The answer is `welcome`, once servers had their moment to arrive."""
        params = decode_object(request.params) if request.params else None
        version = find_string(params.get("protocolVersion")) if params is not None else None
        if params is None or version is None:
            return Refusal(INVALID_PARAMS, "initialize needs params.protocolVersion")
        offered = decode_object(params.get("capabilities", Raw(b"{}")))
        if offered is None:
            return Refusal(INVALID_PARAMS, "params.capabilities must be an object")
        experimental = decode_object(offered["experimental"]) if "experimental" in offered else None
        declares = experimental is not None and EXTENSION in experimental
        key = view_key(principal, only=only, names=names, declares_extension=declares, via=via)
        caller = Caller(principal, Era.LEGACY, via, key)
        caller.capabilities = offered
        caller.modern_capabilities = capabilities_to_modern(offered)
        caller.client = params.get("clientInfo")
        session = self.sessions.open(caller, negotiate_legacy(version))
        if session is None:
            return Refusal(UNAVAILABLE, "unavailable", {"reason": "too_many_sessions"})
        session.knows_tree = declares
        session.front, session.unchanging = self, self._stock.unchanging
        caller.version = session.version
        return session

    def welcome(self, session: ClientSession, request: Request, sink: Sink) -> None:
        def answer() -> None:
            view = self._dispatch.view(session.caller.key)
            result: dict[str, Any] = {
                "protocolVersion": session.version,
                "capabilities": capabilities(
                    view,
                    modern=False,
                    tasks=session.version == LATEST_LEGACY,
                    upward=session.caller.hop is not None,
                ),
                "serverInfo": SERVER_INFO,
                "instructions": self._stock.introduction(view, session.caller.key.only),
            }
            sink.answer(encode_result(request.id, encode_value(result)))
            if not session.ended:
                self._audience.join(session)

        self._stock.when_fresh(INITIALIZE, answer)

    def handle(self, session: ClientSession, message: Message, sink: Sink) -> Call | None:
        """Handle a message of an open session and return the call that began, or None.

        Requests are answered through the sink.
        """
        if isinstance(message, Request):
            params = decode_params_untrusted(message.params, message.text) if message.params else {}
            if params is None:
                fault = Refusal(INVALID_PARAMS, "params must be an object, small but for its arguments")
                sink.answer(encode_refusal(message.id, fault))
                return None
            return self.request(session, message.id, message.method, params, sink)
        if isinstance(message, Notification):
            self._notification(session, message)
        elif isinstance(message, Response):
            session.take_answer(message)
        return None

    def request(
        self, session: ClientSession, message_id: bytes, method: str, params: dict[str, Any], sink: Sink
    ) -> Call | None:
        """Answer a request through the sink and return the call that began, or None."""
        caller = session.caller
        if caller.calls is not None and message_id in caller.calls:
            fault = Refusal(INVALID_REQUEST, "this id is in use by a request under way")
            sink.answer(encode_refusal(message_id, fault), 400)
            return None
        if method in _ROUTED:
            meta = decode_object(params["_meta"]) if "_meta" in params else {}
            if meta is None:
                sink.answer(encode_refusal(message_id, Refusal(INVALID_PARAMS, "params._meta must be an object")))
                return None
            request = ClientRequest(caller, message_id, method, params, meta, sink)
            if method == TOOLS_CALL:
                if "task" in params:
                    return self._task_methods.call_tool(request)
                return self._dispatch.call_tool(request)
            if method == RESOURCES_READ:
                return self._dispatch.read_resource(request)
            if method == PROMPTS_GET:
                return self._dispatch.get_prompt(request)
            if method in ABOUT[Era.LEGACY]:
                return self._task_methods.ask(request)
            if method == CONFIRM:
                return self._dispatch.confirm(request)
            return self._dispatch.complete(request)
        if method in LISTS:
            self._list(session, message_id, method, params, sink)
        elif method == SUBSCRIBE:
            uri = find_string(params.get("uri"))
            target = self._dispatch.view(session.caller.key).find_resource(uri) if uri is not None else []
            if uri is None:
                self._answer(message_id, sink, Refusal(INVALID_PARAMS, "params.uri must be a string"))
            elif isinstance(target, list):
                self._answer(message_id, sink, resource_not_found(uri, target, Era.LEGACY))
            else:
                self._tasks.begin(self._on_subscribed(session, message_id, target, uri, sink))
        elif method == SET_LEVEL:
            self._set_level(session, message_id, params, sink)
        elif method == TASKS_LIST:
            self._task_methods.list_tasks(caller, params, lambda outcome: self._answer(message_id, sink, outcome))
        else:
            self._answer(message_id, sink, self._local(session, method, params))
        return None

    def _list(self, session: ClientSession, message_id: bytes, method: str, params: dict[str, Raw], sink: Sink) -> None:
        def answer() -> None:
            self._answer(message_id, sink, self._stock.list(method, session.caller.key, params, Era.LEGACY))

        self._stock.when_fresh(method, answer)

    def _answer(self, message_id: bytes, sink: Sink, outcome: bytes | Refusal) -> None:
        if isinstance(outcome, Refusal):
            sink.answer(encode_refusal(message_id, outcome, draft=True))
        else:
            sink.answer(encode_result(message_id, outcome))

    def _local(self, session: ClientSession, method: str, params: dict[str, Raw]) -> bytes | Refusal:
        if method == PING:
            return EMPTY_RESULT
        if method == UNSUBSCRIBE:
            uri = find_string(params.get("uri"))
            if uri is None:
                return Refusal(INVALID_PARAMS, "params.uri must be a string")
            target = self._dispatch.view(session.caller.key).find_resource(uri)
            if isinstance(target, list):
                return resource_not_found(uri, target, Era.LEGACY)
            self._audience.unwatch(session, *target)
            return EMPTY_RESULT
        if method == INITIALIZE:
            return Refusal(INVALID_REQUEST, "this session is already initialized")
        return Refusal(METHOD_NOT_FOUND, "Method not found", {"method": method[:100]})

    def _set_level(self, session: ClientSession, message_id: bytes, params: dict[str, Raw], sink: Sink) -> None:
        """Set the log level of a client. The answer waits until servers have it: the next call logs at it."""
        level = find_string(params.get("level"))
        if level not in LOG_RANK:
            fault = Refusal(INVALID_PARAMS, f"params.level must be one of {', '.join(LOG_RANK)}")
            self._answer(message_id, sink, fault)
            return
        session.caller.log_level = level
        heard = self._audience.log_levels_changed()
        if heard:
            self._tasks.begin(self._level_set(heard, message_id, sink))
        else:
            self._answer(message_id, sink, EMPTY_RESULT)

    async def _level_set(self, heard: list[Heard], message_id: bytes, sink: Sink) -> None:
        await asyncio.wait(heard)
        self._answer(message_id, sink, EMPTY_RESULT)

    async def _on_subscribed(
        self, session: ClientSession, message_id: bytes, target: tuple[Link, str], requested_uri: str, sink: Sink
    ) -> None:
        refusal = await self._audience.watch(session, target[0], target[1], requested_uri)
        if isinstance(refusal, Response):
            sink.answer(encode_error(message_id, refusal.error))
        else:
            self._answer(message_id, sink, EMPTY_RESULT if refusal is None else refusal)

    def _notification(self, session: ClientSession, message: Notification) -> None:
        if message.method == CANCELLED:
            params = decode_object(message.params) or {}
            call = (session.caller.calls or {}).get(bytes(params.get("requestId", b"")))
            if call is not None:
                call.cancel(find_string(params.get("reason")) or "cancelled by the client")
        elif message.method == ROOTS_CHANGED:
            self._audience.roots_changed(session.caller)
        elif message.method == TASK_STATUS:
            self._asked.on_status(session.caller, message.params)
        elif self._notifications is not None:
            self._notifications.pass_on(session.caller, message)


_ROUTED: Final = frozenset((TOOLS_CALL, RESOURCES_READ, PROMPTS_GET, COMPLETE, CONFIRM)) | ABOUT[Era.LEGACY]
