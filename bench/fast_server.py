"""An MCP server that costs almost nothing, so that what is measured is what stands in front of it.

    python -m bench.fast_server PORT [--era modern|legacy] [--tools N] [--result-bytes N]
    python -m bench.fast_server --stdio

Bare httptools, JSON answers, keep-alive. Modern: stateless. Legacy: `initialize` hands out a session, which later
requests must carry.
"""

import argparse
import asyncio
import sys

import httptools
import msgspec
import uvloop

RAW_NULL = msgspec.Raw(b"null")
SESSION = b"bench-session"


class Call(msgspec.Struct):
    method: str = ""
    id: msgspec.Raw = RAW_NULL


decode_call = msgspec.json.Decoder(Call).decode


class Answers:
    """The result of each method, encoded once."""

    def __init__(self, era: str, tools: int, result_bytes: int) -> None:
        modern = era == "modern"
        kind = {"resultType": "complete"} if modern else {}
        hints = {"ttlMs": 60000, "cacheScope": "public"} if modern else {}
        info = {"name": "fast", "version": "1"}
        capabilities = {"capabilities": {"tools": {}}}
        signed = {"_meta": {"io.modelcontextprotocol/serverInfo": info}}
        said, count = {"type": "string", "description": "What to say."}, {"type": "integer"}
        schema = {"type": "object", "properties": {"text": said, "count": count}}
        names = ["echo", *(f"tool_{number:05}" for number in range(1, tools))]
        listed = [{"name": name, "description": f"The tool {name}.", "inputSchema": schema} for name in names]
        text = "x" * result_bytes
        self.of = {
            method: msgspec.json.encode(result)
            for method, result in {
                "initialize": {**capabilities, "protocolVersion": "2025-11-25", "serverInfo": info},
                "server/discover": {**kind, **capabilities, **hints, **signed, "supportedVersions": ["2026-07-28"]},
                "ping": {},
                "tools/list": {**kind, "tools": listed, **hints},
                "tools/call": {**kind, "content": [{"type": "text", "text": text}], "isError": False},
            }.items()
            if method != ("initialize" if modern else "server/discover")
        }

    def message(self, call: Call) -> bytes:
        result = self.of.get(call.method)
        if result is None:
            error = b'{"code":-32601,"message":"Method not found"}'
            return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (bytes(call.id), error)
        return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (bytes(call.id), result)


class Connection(asyncio.Protocol):
    def __init__(self, answers: Answers, era: str) -> None:
        self.answers, self.legacy = answers, era == "legacy"
        self.chunks: list[bytes] = []
        self.session = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport, self.parser = transport, httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == 14 and name.lower() == b"mcp-session-id":
            self.session = value

    def on_body(self, data: bytes) -> None:
        self.chunks.append(data)

    def on_message_complete(self) -> None:
        body, self.chunks = b"".join(self.chunks), []
        session, self.session = self.session, b""
        if self.parser.get_method() != b"POST":
            self.reply(b"405 Method Not Allowed", b"")
            return
        call = decode_call(body)
        greeting = self.legacy and call.method == "initialize"
        if call.id == RAW_NULL:
            self.reply(b"202 Accepted", b"")
        elif self.legacy and not greeting and session != SESSION:
            self.reply(b"400 Bad Request", b"")
        else:
            message = self.answers.message(call)
            status = b"200 OK" if b'"error":{' not in message[:60] else b"404 Not Found"
            self.reply(status, message, b"mcp-session-id: %b\r\n" % SESSION if greeting else b"")

    def reply(self, status: bytes, body: bytes, headers: bytes = b"") -> None:
        self.transport.write(
            b"HTTP/1.1 %b\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b"
            % (status, headers, len(body), body)
        )


async def serve_http(port: int, answers: Answers, era: str) -> None:
    listener = await asyncio.get_running_loop().create_server(
        lambda: Connection(answers, era), "127.0.0.1", port, backlog=512
    )
    print(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/mcp", flush=True)
    await listener.serve_forever()


def serve_stdio(answers: Answers) -> None:
    for line in sys.stdin.buffer:
        call = decode_call(line)
        if call.id != RAW_NULL:
            sys.stdout.buffer.write(answers.message(call) + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int, nargs="?", default=0)
    parser.add_argument("--stdio", action="store_true")
    parser.add_argument("--era", choices=("modern", "legacy"), default="modern")
    parser.add_argument("--tools", type=int, default=1)
    parser.add_argument("--result-bytes", type=int, default=200)
    options = parser.parse_args()
    prepared = Answers(options.era, options.tools, options.result_bytes)
    if options.stdio:
        serve_stdio(prepared)
    else:
        uvloop.run(serve_http(options.port, prepared, options.era))
