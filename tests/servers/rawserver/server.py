"""The protocol of both eras: messages come in as text, answers go out through the channel of their request.

Knows no pipe. Everything a peer sent is kept in `received`, every id it cancelled in `cancelled`.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .text import NotAnObject, array, members, obj, prepend, string

LEGACY_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSION = "2026-07-28"
META = "io.modelcontextprotocol/"
CACHEABLE = frozenset(
    {
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
    }
)
RECEIVED_MAX = 2000
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


class Refusal(Exception):
    """Answered as a JSON-RPC error. `data` is JSON text."""

    def __init__(self, code: int, message: str, data: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data


class InputRequired(str):
    """A modern result that asks for input instead of being complete."""


class MadeTask(str):
    """A modern result that is a task."""


class Channel(Protocol):
    """Where one request is answered."""

    async def send(self, message: bytes) -> None:
        """A message before the answer."""

    async def finish(self, messages: Sequence[bytes], status: int) -> None:
        """The answer: one message unless a fault made it none or several."""


@dataclass
class Message:
    text: str
    id: str | None  # as text: 1 and "1" differ
    method: str | None
    params: dict[str, str]
    answer: str | None  # of a response: the text of its result or error
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def meta(self) -> dict[str, str]:
        return members(self.params.get("_meta", "{}"))

    @property
    def version(self) -> str | None:
        """The modern envelope's version; None for a legacy message."""
        text = self.meta.get(META + "protocolVersion")
        return None if text is None else str(json.loads(text))

    @classmethod
    def parse(cls, data: bytes) -> "Message":
        try:
            text = data.decode()
            found = members(text)
            method = json.loads(found["method"]) if "method" in found else None
            params = members(found.get("params", "{}"))
        except UnicodeDecodeError:
            raise Refusal(-32700, "not UTF-8") from None
        except NotAnObject as error:
            raise Refusal(-32700, f"not a JSON object: {error}") from None
        return cls(text, found.get("id"), method, params, found.get("result") or found.get("error"))


class Exchange:
    """One request of the peer while it is being answered."""

    def __init__(self, server: "Server", session: "Session", message: Message, channel: Channel) -> None:
        self.server, self.session, self.message, self.channel = server, session, message, channel
        self.era = "modern" if message.version else "legacy"
        self.task: asyncio.Task[None] | None = None

    @property
    def method(self) -> str:
        return self.message.method or ""

    def param(self, key: str) -> str:
        """A parameter that must be a string."""
        try:
            value = json.loads(self.message.params[key])
        except KeyError:
            raise Refusal(-32602, f"missing {key}") from None
        if not isinstance(value, str):
            raise Refusal(-32602, f"{key} is not a string")
        return value

    async def notify(self, method: str, params: str) -> None:
        await self.channel.send(notification(method, params))

    async def log(self, level: str, data: str) -> None:
        """A log message, if the peer asked for its level."""
        asked = self.session.level
        if self.era == "modern":
            wanted = self.message.meta.get(META + "logLevel")
            asked = json.loads(wanted) if wanted else None
        if asked is not None and LEVELS.index(level) >= LEVELS.index(asked):
            pairs = [("level", string(level)), ("logger", '"raw"'), ("data", data)]
            await self.notify("notifications/message", obj(pairs))

    async def ask(self, method: str, params: str) -> str:
        """A legacy request to the peer in the middle of its call; returns the text of its result or error."""
        self.server.asked += 1
        ask_id = string(f"ask-{self.server.asked}")
        answer = self.session.asked[ask_id] = asyncio.get_running_loop().create_future()
        pairs = [("jsonrpc", '"2.0"'), ("id", ask_id), ("method", string(method)), ("params", params)]
        await self.channel.send(obj(pairs).encode())
        return await asyncio.shield(answer)  # the answer to a cancelled call may still come


class Session:
    """What a connection remembers. `outbox` holds what belongs to no request until the pipe takes it."""

    def __init__(self, session_id: str = "") -> None:
        self.id = session_id
        self.initialized = False  # only a legacy connection is
        self.offered = "{}"  # what the client of such a one says that it can do
        self.level: str | None = "debug"
        self.subscriptions: set[str] = set()
        self.exchanges: dict[str, Exchange] = {}
        self.asked: dict[str, asyncio.Future[str]] = {}
        self.outbox: asyncio.Queue[bytes] = asyncio.Queue()


class Fault:
    """Something a bad server does; the default does nothing."""

    async def started(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Once, when the pipe is open; `write` puts bytes on stdout, over HTTP on the streams of legacy sessions."""

    async def before(self, exchange: Exchange) -> None:
        """Before a request is handled; may hang or end the process."""

    def answers(self, exchange: Exchange, messages: list[bytes]) -> list[bytes]:
        """What is sent instead of `messages`."""
        return messages


Handler = Callable[[Exchange], Awaitable[str]]
ToolHandler = Callable[[Exchange, str], Awaitable[str]]


class Server:
    def __init__(
        self,
        era: str = "both",
        *,
        name: str = "raw",
        instructions: str | None = None,
        page: int | None = None,
        ttl_ms: int = 0,
        cache_scope: str = "private",
        newest: str = LEGACY_VERSIONS[-1],
    ) -> None:
        self.newest = newest
        self.era, self.name, self.instructions, self.page = era, name, instructions, page
        self.cache_hints = [("ttlMs", str(ttl_ms)), ("cacheScope", string(cache_scope))]
        self.capabilities: dict[str, str] = {}
        self.tools: dict[str, tuple[str, ToolHandler]] = {}
        self.prompts: dict[str, str] = {}
        self.resources: dict[str, str] = {}
        self.templates: dict[str, str] = {}
        self.faults: list[Fault] = []
        self.sessions: dict[str, Session] = {}
        self.listeners: dict[str, tuple[Exchange, dict[str, str], asyncio.Event]] = {}
        self.received: list[Message] = []
        self.cancelled: list[str] = []
        self.asked = 0
        self.later: asyncio.Future[None] | None = None  # what it does after an answer
        self.methods: dict[str, Handler] = {
            "initialize": self._initialize,
            "server/discover": self._discover,
            "ping": self._ping,
            "tools/call": self._call,
            "subscriptions/listen": self._listen,
        }
        self.list_method("tools/list", "tools", lambda: [definition for definition, _ in self.tools.values()])

    def tool(self, name: str, handler: ToolHandler, rest: str = '"inputSchema":{"type":"object"}') -> None:
        """Offer a tool; `rest` is the JSON text of its other members."""
        self.capabilities["tools"] = '{"listChanged":true}'
        self.tools[name] = (f'{{"name":{string(name)},{rest}}}', handler)

    def list_method(self, method: str, key: str, items: Callable[[], list[str]]) -> None:
        """Offer a list; in pages of `page` when the server has one. The cursor is the number of items seen."""

        async def handler(exchange: Exchange) -> str:
            everything = items()
            if self.page is None:
                return obj([(key, array(everything))])
            start = 0
            if "cursor" in exchange.message.params:
                cursor = exchange.param("cursor")
                if not cursor.startswith("at-") or not cursor[3:].isdecimal():
                    raise Refusal(-32602, "unknown cursor")
                start = int(cursor[3:])
            end = start + self.page
            more = [("nextCursor", string(f"at-{end}"))] if end < len(everything) else []
            return obj([(key, array(everything[start:end])), *more])

        self.methods[method] = handler

    def serves(self, era: str) -> bool:
        return self.era in ("both", era)

    def record(self, message: Message) -> None:
        if len(self.received) < RECEIVED_MAX:
            self.received.append(message)

    async def notice(self, message: Message, session: Session) -> None:
        """A notification or a response."""
        if message.method == "notifications/cancelled":
            self.cancel(session, message.params.get("requestId", ""))
        elif message.method is None and message.id in session.asked and message.answer is not None:
            session.asked.pop(message.id).set_result(message.answer)

    def cancel(self, session: Session, request_id: str) -> None:
        exchange = session.exchanges.get(request_id)
        if exchange is not None and exchange.task is not None and exchange.task.cancel():
            self.cancelled.append(request_id)

    async def request(self, message: Message, session: Session, channel: Channel) -> None:
        """Answer one request. Run in a task of its own: cancelling the task is cancelling the request."""
        exchange = Exchange(self, session, message, channel)
        exchange.task = asyncio.current_task()
        key = message.id or ""
        session.exchanges[key] = exchange
        status = 200
        try:
            for fault in self.faults:
                await fault.before(exchange)
            answer = envelope(message.id, "result", await self._result(exchange))
        except Refusal as refusal:
            status = http_status(refusal.code) if exchange.era == "modern" else 200
            answer = error_message(message.id, refusal)
        finally:
            session.exchanges.pop(key, None)
        answers = [answer]
        for fault in self.faults:
            answers = fault.answers(exchange, answers)
        await channel.finish(answers, status)

    async def _result(self, exchange: Exchange) -> str:
        modern = exchange.era == "modern"
        removed = modern and exchange.method in ("initialize", "ping", "logging/setLevel", "resources/subscribe")
        unborn = not modern and exchange.method in ("server/discover", "subscriptions/listen")
        if not modern and not self.serves("legacy"):
            raise unsupported_version("")
        handler = self.methods.get(exchange.method)
        if handler is None or removed or unborn or not self.serves(exchange.era):
            raise Refusal(-32601, "Method not found")
        text = await handler(exchange)
        if not modern:
            return text
        kind = KINDS.get(type(text), "complete")
        hints = self.cache_hints if exchange.method in CACHEABLE and kind == "complete" else []
        return prepend([("resultType", string(kind)), *hints], text)

    async def _initialize(self, exchange: Exchange) -> str:
        asked = exchange.param("protocolVersion")
        exchange.session.initialized = True
        exchange.session.offered = exchange.message.params.get("capabilities", "{}")
        version = min(asked, self.newest) if asked in LEGACY_VERSIONS else self.newest
        return self._identity([("protocolVersion", string(version))], [])

    async def _discover(self, exchange: Exchange) -> str:
        info = obj([("_meta", obj([(META + "serverInfo", self._info())]))])[1:-1]
        return self._identity([("supportedVersions", f'["{MODERN_VERSION}"]')], [info], with_info=False)

    def _identity(self, first: list[tuple[str, str]], last: list[str], with_info: bool = True) -> str:
        pairs = [*first, ("capabilities", obj(self.capabilities.items()))]
        if with_info:
            pairs.append(("serverInfo", self._info()))
        if self.instructions is not None:
            pairs.append(("instructions", string(self.instructions)))
        return "{" + ",".join([obj(pairs)[1:-1], *last]) + "}"

    def _info(self) -> str:
        icon = '{"src":"data:image/png;base64,iVBORw0KGgo=","mimeType":"image/png","sizes":["48x48"]}'
        return obj([("name", string(self.name)), ("version", '"1.0"'), ("icons", array([icon]))])

    async def _ping(self, exchange: Exchange) -> str:
        return "{}"

    async def _call(self, exchange: Exchange) -> str:
        name = exchange.param("name")
        if name not in self.tools:
            raise Refusal(-32602, f"Unknown tool: {name}")
        return await self.tools[name][1](exchange, exchange.message.params.get("arguments", "{}"))

    async def _listen(self, exchange: Exchange) -> str:
        wanted = exchange.message.params.get("notifications", "{}")
        over = asyncio.Event()
        key = exchange.message.id or ""
        self.listeners[key] = (exchange, members(wanted), over)
        try:
            pairs = [(META + "subscriptionId", key)]
            acknowledged = obj([("_meta", obj(pairs)), ("notifications", wanted)])
            await exchange.notify("notifications/subscriptions/acknowledged", acknowledged)
            await over.wait()
            return obj([("_meta", obj(pairs))])
        finally:
            self.listeners.pop(key, None)

    async def announce(self, kind: str, method: str, uri: str | None = None, params: str = "{}") -> None:
        """Tell everybody who asked: legacy sessions on their stream, modern ones on their subscription."""
        said = list(members(params).items()) if uri is None else [("uri", string(uri))]
        for session in list(self.sessions.values()):
            if session.initialized and (uri is None or uri in session.subscriptions):
                session.outbox.put_nowait(notification(method, obj(said)))
        for key, (exchange, wanted, _) in list(self.listeners.items()):
            asked = uri in json.loads(wanted.get(kind, "[]")) if uri is not None else wanted.get(kind) == "true"
            if asked:
                await exchange.notify(method, obj([("_meta", obj([(META + "subscriptionId", key)])), *said]))


KINDS: dict[type, str] = {InputRequired: "input_required", MadeTask: "task"}


def notification(method: str, params: str) -> bytes:
    return obj([("jsonrpc", '"2.0"'), ("method", string(method)), ("params", params)]).encode()


def envelope(message_id: str | None, key: str, text: str) -> bytes:
    return obj([("jsonrpc", '"2.0"'), ("id", message_id or "null"), (key, text)]).encode()


def error_message(message_id: str | None, refusal: Refusal) -> bytes:
    pairs = [("code", str(refusal.code)), ("message", string(refusal.message))]
    if refusal.data is not None:
        pairs.append(("data", refusal.data))
    return envelope(message_id, "error", obj(pairs))


def unsupported_version(requested: str) -> Refusal:
    data = obj([("supported", f'["{MODERN_VERSION}"]'), ("requested", string(requested))])
    return Refusal(-32022, "Unsupported protocol version", data)


def http_status(code: int) -> int:
    """The status of a modern answer over HTTP (MCP 2026-07-28, transports)."""
    if code == -32601:
        return 404
    return 400 if code in (-32700, -32600, -32602, -32020, -32021, -32022) else 200
