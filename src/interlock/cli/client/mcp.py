"""A minimal MCP client (version 2026-07-28) for a node's public endpoint: one POST per request, no session.

The client is synchronous and uses http.client. Results stay encoded. If the server replies with a stream of events
(SSE), the client reads the stream and passes progress notifications to a callback as they arrive.
"""

import http.client
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Raw

from interlock import __version__
from interlock.cli.client.operator import check_url, http_connection, unreachable
from interlock.mcp import methods
from interlock.mcp.modern_requests import encode_header, mirror_text, mirrored_arguments
from interlock.wire.refusal import Refused

PAGES_MAX = 10_000  # a server that pages for ever must not keep us for ever
LINE_BYTES_MAX = 64 * 1024 * 1024
FLAT = "/mcp/flat"

PUBLIC_URL = "for this command --url takes the public URL of a node, port 7411 unless configured"

Progress = Callable[[float, float | None, str | None], None]


_ABSENT = Raw()

OUTCOMES = {  # MCP-AX 13.1: what is known of a call that failed on its way
    "unknown": "; it was sent, and whether it was carried out is not known",
    "not_sent": "; it was not sent",
}


class Error(msgspec.Struct, frozen=True):
    code: int
    message: str
    data: Any = None


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    id: Any = None
    method: str | None = None
    params: Raw = Raw(b"{}")
    result: Raw = _ABSENT
    error: Error | None = None


class ListedTool(msgspec.Struct, frozen=True, rename={"input_schema": "inputSchema", "meta": "_meta"}):
    name: str
    input_schema: Any = None
    meta: dict[str, Any] = {}

    @property
    def names(self) -> tuple[str, ...]:
        qualified = self.meta.get("x-mcpax-name")
        return (self.name, qualified) if isinstance(qualified, str) else (self.name,)


class _Page(msgspec.Struct, frozen=True, rename="camel"):
    tools: tuple[ListedTool, ...] = ()
    next_cursor: str | None = None


class _ProgressParams(msgspec.Struct, frozen=True):
    progress: float = 0
    total: float | None = None
    message: str | None = None


class McpClient:
    """An MCP client for one URL. Methods raise Refused for errors that the node reports, and Unreachable if it does not
    answer.
    """

    def __init__(self, url: str, token: str | None, *, timeout: float) -> None:
        """Create a client for `url`, the URL of a node or of an MCP endpoint. For a node, the client uses the flat list
        of tools, even if other clients get another surface.
        """
        parts = urlsplit(check_url(url))
        self.url = parts._replace(path=FLAT).geturl() if parts.path in ("", "/", "/mcp") else url
        self._token = token
        self._timeout = timeout
        self._last_id = 0

    def find_at_server(self, segment: str) -> "McpClient | None":
        """Return a client for the endpoint of a single server, where tools have unqualified names. Return None if this
        client does not use the flat list of a node.
        """
        parts = urlsplit(self.url)
        if parts.path != FLAT:
            return None
        url = parts._replace(path=f"/mcp/only/{quote(segment, safe='')}").geturl()
        return McpClient(url, self._token, timeout=self._timeout)

    def tools(self) -> Iterator[ListedTool]:
        cursor = None
        for _ in range(PAGES_MAX):
            params: dict[str, Any] = {} if cursor is None else {"cursor": cursor}
            page = _decode(self._request(methods.TOOLS_LIST, params), _Page)
            yield from page.tools
            cursor = page.next_cursor
            if cursor is None:
                return

    def call(self, tool: ListedTool, arguments: dict[str, Any], *, on_progress: Progress) -> Raw:
        mirrored = mirrored_arguments(tool.input_schema)
        if isinstance(mirrored, str):
            raise Refused("invalid_tool", f"{tool.name} cannot be called: {mirrored}")
        headers = {}
        for argument in mirrored:
            text = mirror_text(arguments, argument.path)
            if text is not None:
                headers[argument.header.decode()] = encode_header(text).decode()
        params = {"name": tool.name, "arguments": arguments}
        return self._request(methods.TOOLS_CALL, params, headers=headers, on_progress=on_progress)

    def _request(
        self,
        method: str,
        params: dict[str, Any],
        *,
        headers: dict[str, str] | None = None,
        on_progress: Progress | None = None,
    ) -> Raw:
        self._last_id += 1
        meta: dict[str, Any] = {
            methods.META_VERSION: methods.LATEST_MODERN,
            methods.META_CAPABILITIES: {},
            methods.META_CLIENT: {"name": "interlock-cli", "version": __version__},
        }
        if on_progress is not None:
            meta["progressToken"] = self._last_id
        body = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": {**params, "_meta": meta}}
        sent = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": methods.LATEST_MODERN,
            "Mcp-Method": method,
            **(headers or {}),
        }
        if method in methods.NAMED_BY:
            sent["Mcp-Name"] = encode_header(params[methods.NAMED_BY[method]]).decode()
        if self._token:
            sent["Authorization"] = f"Bearer {self._token}"
        connection = http_connection(self.url, self._timeout)
        parts = urlsplit(self.url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        try:
            connection.request("POST", target, body=msgspec.json.encode(body), headers=sent)
            response = connection.getresponse()
            return self._answer(response, on_progress)
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(self.url, error) from error
        finally:
            connection.close()

    def _answer(self, response: http.client.HTTPResponse, on_progress: Progress | None) -> Raw:
        is_stream = response.headers.get_content_type() == "text/event-stream"
        if 'realm="operator"' in response.headers.get("WWW-Authenticate", ""):
            why = "this is the operator endpoint; tools are called at the public endpoint"
            raise Refused("wrong_door", why, hint=PUBLIC_URL)
        for raw in _events(response) if is_stream else (response.read(),):
            message = _message(raw, response.status)
            if message.error is not None:
                raise _call_error(message.error)
            if bytes(message.result):
                return message.result
            if message.method == methods.PROGRESS and on_progress is not None:
                params = _decode(message.params, _ProgressParams)
                on_progress(params.progress, params.total, params.message)
        raise Refused("unexpected_answer", "the node ended its answer before the result")


def _events(response: http.client.HTTPResponse) -> Iterator[bytes]:
    data: list[bytes] = []
    while line := response.readline(LINE_BYTES_MAX):
        line = line.rstrip(b"\r\n")
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line and data:
            yield b"\n".join(data)
            data = []


def _message(raw: bytes, status: int) -> Message:
    try:
        message = msgspec.json.decode(raw, type=Message)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _not_mcp(status) from None
    if status >= 400 and message.error is None:
        raise _not_mcp(status)
    return message


def _not_mcp(status: int) -> Refused:
    code, why, hint = "unexpected_answer", f"HTTP {status}, and not from an MCP endpoint", PUBLIC_URL
    if status in (401, 403):
        code, why = "unauthorised", "the public endpoint needs a different credential"
        hint = "set INTERLOCK_TOKEN to a token from interlock access token --for client --name NAME"
    return Refused(code, why, hint=hint, details={"status": status})


def _call_error(error: Error) -> Refused:
    data = error.data if isinstance(error.data, dict) else {}
    reason, detail, outcome = data.get("reason"), data.get("detail"), data.get("outcome")
    message = f"{error.message} ({reason})" if isinstance(reason, str) and reason != error.message else error.message
    message += f": {detail}" if isinstance(detail, str) else ""
    message += f", code {error.code}" + (OUTCOMES.get(outcome, "") if isinstance(outcome, str) else "")
    details = {"code": error.code, "data": error.data}
    return Refused("call_failed", message, hint=f"interlock explain {error.code}", details=details)


def _decode(raw: Raw, shape: Any) -> Any:
    try:
        return msgspec.json.decode(raw, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Refused("unexpected_answer", "the node's answer is not what MCP says it should be") from None
