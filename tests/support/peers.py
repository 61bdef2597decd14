"""The plainest of clients on each pipe MCP has, for a node or for a server directly. No code of the product, no SDK.

`HttpPeer`, `SsePeer` and `StdioPeer` speak one era each and are used alike:

    async with await HttpPeer.legacy(url, capabilities) as peer:
        reply = await peer.request("tools/call", {"name": "echo"})
        message = await peer.hear("notifications/progress")

What comes from a node is put before the judge; a complaint fails the test when the peer is closed.
"""

import asyncio
import base64
import itertools
import json
import os
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Self
from urllib.parse import urlsplit

from tests.servers.rawserver.text import members, obj, prepend, string
from tests.support import mcp_judge as judge
from tests.support.http_exchange import HttpExchange

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
META = "io.modelcontextprotocol/"
ANSWER_SECONDS = 15.0
LINE_MAX = 64 * 1024 * 1024
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
NAMED |= dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")
Params = Mapping[str, Any] | str | None
Answerer = Callable[[Any], Mapping[str, Any]]


class Reply:
    """The answer to one request."""

    def __init__(self, text: str, status: int | None = None) -> None:
        self.text, self.status = text, status
        self.message = json.loads(text)

    @property
    def result_text(self) -> str:
        """The bytes of `result` as they came."""
        assert "result" in self.message, self.text
        return members(self.text)["result"]

    @property
    def error_text(self) -> str:
        assert "error" in self.message, self.text
        return members(self.text)["error"]

    @property
    def outcome_text(self) -> str:
        return members(self.text).get("result") or self.error_text

    @property
    def result(self) -> Any:
        assert "result" in self.message, self.text
        return self.message["result"]

    @property
    def error(self) -> Any:
        assert "error" in self.message, self.text
        return self.message["error"]


class Ongoing:
    """A request under way."""

    def __init__(self, request_id: str, method: str) -> None:
        self.id, self.method = request_id, method  # the id as JSON text
        self.future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.future.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody need wait for it
        self.task: asyncio.Task[None] | None = None

    async def reply(self, seconds: float = ANSWER_SECONDS) -> Reply:
        async with asyncio.timeout(seconds):
            return await self.future


class Peer:
    """What the pipes share: ids, the envelope of the era, what was heard, and the judge."""

    def __init__(self, version: str, *, judged: bool = True) -> None:
        self.version, self.modern, self.judged = version, version == MODERN, judged
        self.capabilities: Mapping[str, Any] = {}
        self.log_level: str | None = None  # modern: asked for with every request
        self.answers: dict[str, Answerer] = {}  # method -> what this client says when a server asks
        self.greeting: Any = None
        self.complaints: list[str] = []
        self.asked: list[Any] = []  # requests of servers, as they came
        self.log: list[Any] = []  # every message, in the order of its arrival
        self.batches: asyncio.Queue[str] = asyncio.Queue()  # arrays of messages, as they came
        self._heard: deque[Any] = deque()
        self._news = asyncio.Event()
        self._ids = itertools.count(1)
        self._running: dict[str, Ongoing] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: Any, *_: object) -> None:
        await self.close()
        if kind is None:
            self.assert_clean()

    def assert_clean(self) -> None:
        assert not self.complaints, "\n".join(self.complaints)

    # What a test says

    async def greet(self, capabilities: Mapping[str, Any] | None = None) -> Self:
        self.capabilities = capabilities or {}
        if self.modern:
            self.greeting = (await self.request("server/discover")).result
            return self
        hello = {
            "protocolVersion": self.version,
            "capabilities": self.capabilities,
            "clientInfo": {"name": "peer", "version": "1"},
        }
        self.greeting = (await self.request("initialize", hello)).result
        assert self.greeting["protocolVersion"] == self.version
        await self.notify("notifications/initialized")
        return self

    async def request(self, method: str, params: Params = None, **options: Any) -> Reply:
        return await self.begin(method, params, **options).reply()

    async def call(self, name: str, arguments: Params = None, **options: Any) -> Reply:
        return await self.request("tools/call", call_text(name, arguments), **options)

    def begin_call(self, name: str, arguments: Params = None, **options: Any) -> Ongoing:
        return self.begin("tools/call", call_text(name, arguments), **options)

    def begin(
        self,
        method: str,
        params: Params = None,
        *,
        meta: Mapping[str, Any] | str | None = None,
        capabilities: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Ongoing:
        """Send a request and do not wait. `params`, `meta` and `request_id` as text go out as they are written."""
        ongoing = Ongoing(request_id or str(next(self._ids)), method)
        text = params if isinstance(params, str) else json.dumps(params or {}, ensure_ascii=False)
        added = meta if isinstance(meta, str) else json.dumps(meta or {})
        if self.modern:
            added = prepend([(key, json.dumps(value)) for key, value in self._stamp(capabilities).items()], added)
        if added != "{}":
            text = prepend([("_meta", added)], text)
        body = obj([("jsonrpc", '"2.0"'), ("id", ongoing.id), ("method", string(method)), ("params", text)])
        self._running[ongoing.id] = ongoing
        self._send_request(ongoing, body, text, headers or {})
        return ongoing

    async def notify(self, method: str, params: Params = None) -> None:
        text = params if isinstance(params, str) or params is None else json.dumps(params)
        pairs = [("jsonrpc", '"2.0"'), ("method", string(method))]
        await self._send(obj(pairs if text is None else [*pairs, ("params", text)]))

    async def respond(self, message_id: Any, result: Mapping[str, Any] | str) -> None:
        text = result if isinstance(result, str) else json.dumps(result)
        await self._send(obj([("jsonrpc", '"2.0"'), ("id", json.dumps(message_id)), ("result", text)]))

    async def refuse(self, message_id: Any, code: int, message: str) -> None:
        error = json.dumps({"code": code, "message": message})
        await self._send(obj([("jsonrpc", '"2.0"'), ("id", json.dumps(message_id)), ("error", error)]))

    async def cancel(self, ongoing: Ongoing) -> None:
        """In the words of the pipe: the notification, or closing the stream."""
        await self.notify("notifications/cancelled", f'{{"requestId":{ongoing.id},"reason":"no longer needed"}}')

    async def hear(self, *methods: str, seconds: float = ANSWER_SECONDS) -> Any:
        """The next message of one of these methods that no request asked for; others stay."""
        async with asyncio.timeout(seconds):
            while True:
                for message in self._heard:
                    if message["method"] in methods:
                        self._heard.remove(message)
                        return message
                self._news.clear()
                await self._news.wait()

    def heard(self, *methods: str) -> list[Any]:
        """Everything heard and not yet taken."""
        return [message for message in self._heard if not methods or message["method"] in methods]

    def before(self, reply: Reply, method: str) -> list[Any]:
        """The messages of this method that came before the answer."""
        end = next(at for at, message in enumerate(self.log) if message == reply.message)
        return [message for message in self.log[:end] if message.get("method") == method]

    def forget(self) -> None:
        self._heard.clear()
        self.asked.clear()
        self.log.clear()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What comes back

    def _stamp(self, capabilities: Mapping[str, Any] | None) -> dict[str, Any]:
        level = {} if self.log_level is None else {META + "logLevel": self.log_level}
        return {
            META + "protocolVersion": MODERN,
            META + "clientInfo": {"name": "peer", "version": "1"},
            META + "clientCapabilities": self.capabilities if capabilities is None else capabilities,
            **level,
        }

    def _receive(self, text: str, stream: Ongoing | None, status: int | None = None) -> None:
        message = json.loads(text)
        if isinstance(message, list):
            self.batches.put_nowait(text)
            return
        self.log.append(message)
        answers = self._running.pop(members(text)["id"], None) if "id" in message and "method" not in message else None
        if self.judged:
            method = answers.method if answers is not None else None
            self.complaints += [f"{why} in {text[:300]}" for why in judge.complaints(self.version, message, method)]
        if answers is not None:
            if not answers.future.done():
                answers.future.set_result(Reply(text, status))
            return
        if "method" not in message:
            if stream is None or message.get("id") is not None:
                self.complaints.append(f"an answer to no request under way: {text[:300]}")
            if stream is not None and not stream.future.done():
                stream.future.set_result(Reply(text, status))
            return
        if "id" in message:
            self.asked.append(message)
            if message["method"] in self.answers:
                said = self.answers[message["method"]](message.get("params"))
                self._in_task(self.respond(message["id"], said))
                return
        self._heard.append(message)
        self._news.set()

    def _in_task(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _send_request(self, ongoing: Ongoing, body: str, params: str, headers: Mapping[str, str]) -> None:
        async def send() -> None:
            try:
                await self._send(body)
            except Exception as error:
                if not ongoing.future.done():
                    ongoing.future.set_exception(error)

        ongoing.task = self._in_task(send())

    async def batch(self, body: str, seconds: float = ANSWER_SECONDS) -> str:
        """Send these messages together; what they are answered together."""
        await self._send(body)
        async with asyncio.timeout(seconds):
            return await self.batches.get()

    async def _send(self, body: str) -> None:
        raise NotImplementedError


class HttpPeer(Peer):
    """Streamable HTTP: a connection for each request."""

    def __init__(self, url: str, version: str, *, token: str | None = None, judged: bool = True) -> None:
        super().__init__(version, judged=judged)
        self.url = url
        self.session: str | None = None
        self.base = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        if token is not None:
            self.base["authorization"] = f"Bearer {token}"

    @classmethod
    async def legacy(cls, url: str, capabilities: Mapping[str, Any] | None = None, **options: Any) -> Self:
        return await cls(url, options.pop("version", LEGACY), **options).greet(capabilities)

    @classmethod
    async def modern_(cls, url: str, capabilities: Mapping[str, Any] | None = None, **options: Any) -> Self:
        return await cls(url, MODERN, **options).greet(capabilities)

    async def listen(self) -> None:
        """Open the legacy GET stream; what comes on it is heard."""
        opened: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def pump() -> None:
            headers = {**self._headers(), "accept": "text/event-stream"}
            async with await HttpExchange.open(self.url, "GET", headers) as exchange:
                opened.set_result(exchange.status)
                async for event, data in exchange.events():
                    assert event in ("", "message")
                    self._receive(data, None)

        self._in_task(pump())
        async with asyncio.timeout(ANSWER_SECONDS):
            assert await opened == 200

    async def cancel(self, ongoing: Ongoing) -> None:
        if not self.modern:
            await super().cancel(ongoing)
        else:
            await self.hang_up(ongoing)

    async def hang_up(self, ongoing: Ongoing) -> None:
        """Close the connection of one request."""
        self._running.pop(ongoing.id, None)
        assert ongoing.task is not None
        ongoing.task.cancel()
        await asyncio.gather(ongoing.task, return_exceptions=True)

    async def end(self) -> int:
        """DELETE the legacy session."""
        async with await HttpExchange.open(self.url, "DELETE", self._headers()) as exchange:
            return exchange.status

    def _headers(self) -> dict[str, str]:
        headers = dict(self.base)
        if self.modern or self.session is not None:
            headers["mcp-protocol-version"] = self.version
        if self.session is not None:
            headers["mcp-session-id"] = self.session
        return headers

    def _send_request(self, ongoing: Ongoing, body: str, params: str, headers: Mapping[str, str]) -> None:
        sent = self._headers()
        if self.modern:
            sent["mcp-method"] = ongoing.method
            named = NAMED.get(ongoing.method)
            if named is not None and isinstance(value := json.loads(members(params).get(named, "null")), str):
                sent["mcp-name"] = header_value(value)
        ongoing.task = self._in_task(self._post(ongoing, body, {**sent, **headers}))

    async def _post(self, ongoing: Ongoing, body: str, headers: Mapping[str, str]) -> None:
        try:
            async with await HttpExchange.open(self.url, "POST", headers, body.encode()) as exchange:
                if ongoing.method == "initialize":
                    self.session = exchange.headers.get("mcp-session-id")
                if "text/event-stream" in exchange.headers.get("content-type", ""):
                    async for event, data in exchange.events():
                        assert event in ("", "message")
                        self._receive(data, ongoing, exchange.status)
                else:
                    self._receive((await exchange.body()).decode(), ongoing, exchange.status)
            raise ConnectionError(f"{ongoing.method} got no answer")
        except Exception as error:
            if not ongoing.future.done():
                ongoing.future.set_exception(error)

    async def batch(self, body: str, seconds: float = ANSWER_SECONDS) -> str:
        status, said = await self.post(body, seconds)
        assert status == 200, said
        return said[0]

    async def post(self, body: str, seconds: float = ANSWER_SECONDS) -> tuple[int, list[str]]:
        """The status and the body, or the data of each event."""
        async with (
            asyncio.timeout(seconds),
            await HttpExchange.open(self.url, "POST", self._headers(), body.encode()) as exchange,
        ):
            if "text/event-stream" in exchange.headers.get("content-type", ""):
                return exchange.status, [data async for _, data in exchange.events()]
            return exchange.status, [(await exchange.body()).decode()]

    async def _send(self, body: str) -> None:
        async with await HttpExchange.open(self.url, "POST", self._headers(), body.encode()) as exchange:
            assert exchange.status == 202, (exchange.status, await exchange.body())


class SsePeer(Peer):
    """HTTP+SSE of 2024-11-05: everything comes back on one stream."""

    def __init__(self, url: str, version: str = LEGACY, *, judged: bool = True) -> None:
        super().__init__(version, judged=judged)
        self.url = url
        self._stream: asyncio.Task[Any] | None = None
        self._target: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @classmethod
    async def legacy(cls, url: str, capabilities: Mapping[str, Any] | None = None, **options: Any) -> Self:
        peer = cls(url, **options)
        peer._stream = peer._in_task(peer._pump())
        return await peer.greet(capabilities)

    async def hang_up(self) -> None:
        assert self._stream is not None
        self._stream.cancel()
        await asyncio.gather(self._stream, return_exceptions=True)

    async def _pump(self) -> None:
        try:
            async with await HttpExchange.open(self.url, "GET", {"accept": "text/event-stream"}) as exchange:
                async for event, data in exchange.events():
                    if event == "endpoint":
                        parts = urlsplit(self.url)
                        self._target.set_result(f"{parts.scheme}://{parts.netloc}{data}")
                    else:
                        self._receive(data, None)
        except Exception as error:
            for ongoing in self._running.values():
                if not ongoing.future.done():
                    ongoing.future.set_exception(error)

    async def _send(self, body: str) -> None:
        headers = {"content-type": "application/json"}
        async with await HttpExchange.open(await self._target, "POST", headers, body.encode()) as exchange:
            assert exchange.status == 202, (exchange.status, await exchange.body())


class StdioPeer(Peer):
    """A child process: a server, or `interlock serve --stdio`."""

    process: asyncio.subprocess.Process

    @classmethod
    async def start(
        cls, command: list[str], version: str, capabilities: Mapping[str, Any] | None = None, judged: bool = True
    ) -> Self:
        peer = cls(version, judged=judged)
        pipe = asyncio.subprocess.PIPE
        peer.process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, limit=LINE_MAX, env=dict(os.environ)
        )
        peer._in_task(peer._pump())
        return await peer.greet(capabilities)

    async def close(self) -> None:
        """The end of input is the end of the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            async with asyncio.timeout(15):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
            self.complaints.append("it did not end with its input")
        await super().close()

    async def _pump(self) -> None:
        assert self.process.stdout is not None
        try:
            while line := await self.process.stdout.readline():
                self._receive(line.decode().rstrip("\n"), None)
            raise ConnectionError("it ended")
        except Exception as error:
            for ongoing in self._running.values():
                if not ongoing.future.done():
                    ongoing.future.set_exception(error)
            if not isinstance(error, ConnectionError):
                self.complaints.append(repr(error))

    async def _send(self, body: str) -> None:
        assert self.process.stdin is not None
        assert "\n" not in body
        self.process.stdin.write(body.encode() + b"\n")
        await self.process.stdin.drain()


def call_text(name: str, arguments: Params) -> str:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return obj([("name", string(name)), ("arguments", text)])


def header_value(text: str) -> str:
    """As 2026-07-28 writes a value into a header."""
    if text.isascii() and text == text.strip() and text.isprintable() and not text.startswith("=?base64?"):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="
