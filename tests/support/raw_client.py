"""A client without manners: one TCP connection on which any bytes can be said, and requests that may be wrong anywhere.

Every HTTP answer that is read here is also looked at for things that must not leave the node (`assert_discreet`).
"""

import base64
import contextlib
import json
import re
import socket
import time
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from tests.support.node_process import LEGACY, MODERN, Answer, RunningNode

META = "io.modelcontextprotocol/"
STAMP = {META + "protocolVersion": MODERN, META + "clientCapabilities": {}}
ACCEPT = "application/json, text/event-stream"
Headers = Mapping[str, str | None] | Iterable[tuple[str, str]]

# Traces, files, modules, class names and absolute paths say how the node is made and where it lies.
_INDISCREET = re.compile(
    rb"Traceback|File \"|\.py\b|interlock\.\w+\.|\b(?:msgspec|asyncio|uvicorn|uvloop|httptools|starlette|sqlite)\b"
    rb"|\b(?:[A-Z][a-z0-9]+)+(?:Error|Exception)\b|(?<![\w:/])/(?:[\w.-]+/){2,}[\w.-]+"
)


def assert_discreet(data: bytes) -> None:
    found = _INDISCREET.search(data)
    assert found is None, f"{found[0]!r} left the node in {data[max(0, found.start() - 100) : found.end() + 100]!r}"


class RawConnection:
    """One connection. `response` reads one answer; None when the node has closed."""

    def __init__(self, node: RunningNode, seconds: float = 10.0, url: str | None = None) -> None:
        """`url`: of another endpoint than the public one."""
        self.node = node
        self.seconds = seconds
        parts = urlsplit(url or f"http://{node.host}:{node.port}")
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.interim: list[int] = []
        self._buffer = b""

    def __enter__(self) -> "RawConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> "RawConnection":
        """Bytes the node no longer takes are no failure of the test: what it answered is what counts."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)
        return self

    def send_apart(self, pieces: Iterable[bytes]) -> "RawConnection":
        """Each piece has surely been read before the next is sent: another connection was served in between."""
        for piece in pieces:
            self.send(piece)
            assert ask(self.node, request("GET", "/healthz")).status == 200
        return self

    def response(self, *, to_head: bool = False) -> Answer | None:
        while True:
            head = self._until(b"\r\n\r\n")
            if head is None:
                return None
            status, headers = _parse_head(head)
            if status >= 200:
                break
            self.interim.append(status)
        if to_head or status in (204, 304):
            body = b""
        elif "chunked" in headers.get("transfer-encoding", ""):
            body = self._chunks()
        elif "content-length" in headers:
            body = self._exactly(int(headers["content-length"]))
        else:
            body = self.rest()
        assert_discreet(head + body)
        return Answer(status, headers, body)

    def answer(self, **options: Any) -> Answer:
        answer = self.response(**options)
        assert answer is not None, "the node closed the connection without an answer"
        return answer

    def stream_head(self) -> Answer:
        """The head of an answer whose body goes on."""
        head = self._until(b"\r\n\r\n")
        assert head is not None
        return Answer(*_parse_head(head), b"")

    def event(self) -> Any:
        """The next message of an open event stream; None at its end."""
        while True:
            size = self._until(b"\r\n")
            if size is None or int(size, 16) == 0:
                return None
            data = self._exactly(int(size, 16) + 2)
            assert_discreet(data)
            lines = [line.removeprefix(b"data: ") for line in data.split(b"\n") if line.startswith(b"data: ")]
            if lines:
                text = b"\n".join(lines)
                return json.loads(text) if text.startswith(b"{") else text.decode()

    def rest(self) -> bytes:
        """Everything until the node closes the connection."""
        while self._more():
            pass
        data, self._buffer = self._buffer, b""
        return data

    def assert_closed(self) -> None:
        assert self.rest() == b"", "the node said more"

    def _more(self) -> bool:
        try:
            data = self.socket.recv(262_144)
        except ConnectionResetError:
            return False
        except TimeoutError:
            raise AssertionError(f"nothing came for {self.seconds} s after {self._buffer[-200:]!r}") from None
        self._buffer += data
        return bool(data)

    def _until(self, mark: bytes) -> bytes | None:
        while mark not in self._buffer:
            if not self._more():
                assert not self._buffer, f"the connection ended within an answer: {self._buffer[-200:]!r}"
                return None
        found, _, self._buffer = self._buffer.partition(mark)
        return found

    def _exactly(self, length: int) -> bytes:
        parts, got = [self._buffer], len(self._buffer)
        while got < length:
            self._buffer = b""
            assert self._more(), "the connection ended within a body"
            parts.append(self._buffer)
            got += len(self._buffer)
        data = b"".join(parts)
        self._buffer = data[length:]
        return data[:length]

    def _chunks(self) -> bytes:
        body = []
        while True:
            size = self._until(b"\r\n")
            assert size is not None, "the connection ended within a stream"
            data = self._exactly(int(size, 16) + 2)[:-2]
            if not data:
                return b"".join(body)
            body.append(data)


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    start, *lines = head.decode("latin-1").split("\r\n")
    version, status, _ = start.split(" ", 2)
    assert version == "HTTP/1.1", start
    return int(status), {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def ask(node: RunningNode, data: bytes, seconds: float = 10.0) -> Answer:
    """One connection, one request, one answer."""
    with RawConnection(node, seconds) as rude:
        return rude.send(data).answer()


def ask_in_every_way(node: RunningNode, data: bytes) -> Answer:
    """The answer, which must not depend on whether the bytes were seen before or came in pieces."""
    first, again = ask(node, data), ask(node, data)
    head, body = data.index(b"\r\n\r\n") // 2, data.index(b"\r\n\r\n") + 4
    with RawConnection(node) as rude:
        apart = rude.send_apart([data[:head], data[head:body], data[body:]]).answer()
    for other in (again, apart):
        assert (other.status, other.body) == (first.status, first.body)
    return first


def request(
    verb: str,
    path: str,
    headers: Headers = (),
    body: bytes | None = None,
    *,
    host: str | None = "127.0.0.1",
    version: str = "HTTP/1.1",
) -> bytes:
    """A request with exactly these headers, and Host and Content-Length unless they are among them."""
    pairs = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
    names = {name.lower() for name, _ in pairs}
    if host is not None and "host" not in names:
        pairs.insert(0, ("host", host))
    if body is not None and not names & {"content-length", "transfer-encoding"}:
        pairs.append(("content-length", str(len(body))))
    lines = [f"{verb} {path} {version}", *(f"{name}: {value}" for name, value in pairs if value is not None), "", ""]
    return "\r\n".join(lines).encode("latin-1") + (body or b"")


def message(method: str, params: Any = None, request_id: Any = 1) -> bytes:
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id, "method": method}
    if params is not None:
        body["params"] = params
    return json.dumps(body).encode()


def modern_headers(method: str, name: str | None = None, **changed: str | None) -> dict[str, str | None]:
    """What 2026-07-28 asks for. Keywords replace a header, or with None leave it out."""
    headers: dict[str, str | None] = {"content-type": "application/json", "accept": ACCEPT}
    headers |= {"mcp-protocol-version": MODERN, "mcp-method": method}
    if name is not None:
        plain = name.isascii() and name.isprintable()
        headers["mcp-name"] = name if plain else f"=?base64?{base64.b64encode(name.encode()).decode()}?="
    return headers | {key.replace("_", "-"): value for key, value in changed.items()}


def modern(
    method: str,
    params: Mapping[str, Any] | None = None,
    *,
    path: str = "/mcp",
    request_id: Any = 1,
    meta: Mapping[str, Any] | None = None,
    version: str = "HTTP/1.1",
    **headers: str | None,
) -> bytes:
    given = dict(params or {})
    name = given.get("uri") if method == "resources/read" else given.get("name")
    body = message(method, {**given, "_meta": {**STAMP, **(meta or {})}}, request_id)
    return request("POST", path, modern_headers(method, name, **headers), body, version=version)


def call(tool: str, arguments: Mapping[str, Any] | None = None, **options: Any) -> bytes:
    return modern("tools/call", {"name": tool, "arguments": dict(arguments or {})}, **options)


def legacy_headers(session: str | None, **changed: str | None) -> dict[str, str | None]:
    headers: dict[str, str | None] = {"content-type": "application/json", "accept": ACCEPT}
    headers |= {"mcp-protocol-version": LEGACY, "mcp-session-id": session}
    return headers | {key.replace("_", "-"): value for key, value in changed.items()}


def legacy(
    session: str | None,
    method: str,
    params: Any = None,
    *,
    path: str = "/mcp",
    request_id: Any = 1,
    **headers: str | None,
) -> bytes:
    return request("POST", path, legacy_headers(session, **headers), message(method, params or {}, request_id))


def hello(**headers: str | None) -> bytes:
    info = {"name": "rude", "version": "1"}
    params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": info}
    return legacy(None, "initialize", params, **headers)


def legacy_session(node: RunningNode, **headers: str | None) -> str:
    return ask(node, hello(**headers)).headers["mcp-session-id"]


def assert_unharmed(node: RunningNode, tool: str = "good__echo", seconds: float = 2.0) -> None:
    """The node is up and answers a call at once, and nothing in its log is its own fault."""
    assert node.process.poll() is None
    began = time.monotonic()
    answer = ask(node, call(tool, {"n": 1}), seconds)
    assert answer.json["result"]["structuredContent"] == {"n": 1}
    assert time.monotonic() - began < seconds
    log = (node.data.parent / "stderr.txt").read_bytes()
    assert b"Traceback" not in log and b"internal error" not in log, log[-2000:].decode()
