"""A legacy server whose answers are as large as asked for: over stdio, streamable HTTP (plain or a stream) and SSE.

`bulky` says with `shape` where the id of its answer stands and what else is sent; `held` is answered after the next of
them, so that a call under way on the same link can be seen to go on.
"""

import argparse
import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PIECE = b"x" * 65536
HELD: list[Callable[[], None]] = []
ANSWERED: "queue.Queue[Any]" = queue.Queue()  # what the node answered to our own requests


def filled(size: int, before: bytes, after: bytes) -> Iterator[bytes]:
    yield before
    for _ in range(size // len(PIECE)):
        yield PIECE
    yield after


def text(answer: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": json.dumps(answer)}]}


def bulk(id: int, arguments: dict[str, Any]) -> list[Iterator[bytes]]:
    """The messages that answer one call of `bulky`."""
    size = arguments["bytes"]
    plain = [iter([json.dumps({"jsonrpc": "2.0", "id": id, "result": text("small")}).encode()])]
    content = b'"content":[{"type":"text","text":"'
    match arguments["shape"]:
        case "first":
            return [filled(size, b'{"jsonrpc":"2.0","id":%d,"result":{' % id + content, b'"}]}}')]
        case "last":
            return [filled(size, b'{"result":{' + content, b'"}]},"jsonrpc":"2.0","id":%d}' % id)]
        case "decoy":
            decoys = b'"id":%d,"x":{"id":%d,"y":"\\"},\\"id\\":%d}"},' % ((id + 1,) * 3)
            return [filled(size, b'{"result":{' + decoys + content, b'\\\\"}]},"id":%d}' % id)]
        case "escaped":
            return [filled(size, b'{"result":{' + content, b'"}]},"\\u0069d":%d}' % id)]
        case "notification":
            method = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"'
            return [filled(size, method, b'"}}'), *plain]
        case "request":
            method = b'{"jsonrpc":"2.0","id":"ours","method":"ping","params":{"x":"'
            return [filled(size, method, b'"}}'), *plain]
        case "endless id":
            return [filled(size, b'{"result":{' + content, b'"}]},"id":' + b"9" * 5000 + b"}"), *plain]
        case "text":
            return [filled(size, b"no JSON", b""), *plain]
        case "endless":
            return [endless(id)]
    raise ValueError(arguments["shape"])


def endless(id: int) -> Iterator[bytes]:
    yield b'{"jsonrpc":"2.0","id":%d,"result":{"x":"' % id
    for _ in range(320):
        yield PIECE
    sys.stdout.flush()
    threading.Event().wait()  # until we are ended


def answers(message: dict[str, Any], later: Callable[[list[Iterator[bytes]]], None]) -> list[Iterator[bytes]] | None:
    """None: it is answered later."""
    id, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if method is None:
        ANSWERED.put(message)
        return []
    if id is None:
        return []

    def result(value: Any) -> list[Iterator[bytes]]:
        return [iter([json.dumps({"jsonrpc": "2.0", "id": id, "result": value}).encode()])]

    match method:
        case "initialize":
            offers = {"tools": {}, "resources": {}, "prompts": {}}
            info = {"name": "bulky", "version": "1"}
            return result({"protocolVersion": "2025-06-18", "capabilities": offers, "serverInfo": info})
        case "tools/list":
            hints = {"readOnlyHint": True}
            names = ("bulky", "echo", "held", "answered")
            tools = [{"name": name, "inputSchema": {"type": "object"}, "annotations": hints} for name in names]
            return result({"tools": tools})
        case "resources/list":
            return result({"resources": [{"uri": "bulk://all", "name": "all"}]})
        case "prompts/list":
            return result({"prompts": [{"name": "bulk"}]})
        case "resources/read":
            head = b'{"result":{"contents":[{"uri":"bulk://all","text":"'
            return [filled(SIZE, head, b'"}]},"id":%d}' % id)]
        case "prompts/get":
            head = b'{"result":{"messages":[{"role":"user","content":{"type":"text","text":"'
            return [filled(SIZE, head, b'"}}]},"id":%d}' % id)]
        case "tools/call" if params["name"] == "bulky":
            while params["arguments"].get("after_held") and not HELD:
                time.sleep(0.005)
            held, HELD[:] = list(HELD), []
            for answer in held:
                threading.Timer(0.1, answer).start()
            return bulk(id, params["arguments"])
        case "tools/call" if params["name"] == "held":
            HELD.append(lambda: later(result(text("held"))))
            return None
        case "tools/call" if params["name"] == "answered":
            return result(text(ANSWERED.get(timeout=5)))
        case "tools/call":
            return result(text(params["arguments"]))
    return [iter([json.dumps({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": method}}).encode()])]


def serve_stdio() -> None:
    turn = threading.Lock()

    def say(messages: list[Iterator[bytes]]) -> None:
        with turn:
            for message in messages:
                for piece in message:
                    sys.stdout.buffer.write(piece)
                sys.stdout.buffer.write(b"\n")
            sys.stdout.buffer.flush()

    for line in sys.stdin.buffer:
        message = json.loads(line)
        found = answers(message, say)
        if found is not None:
            threading.Thread(target=say, args=(found,), daemon=True).start()


class Http(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    streams = False

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(405)
        self.send_header("content-length", "0")
        self.end_headers()

    do_DELETE = do_GET

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        came = threading.Event()
        later: list[list[Iterator[bytes]]] = []

        def answer(found: list[Iterator[bytes]]) -> None:
            later.append(found)
            came.set()

        found = answers(message, answer)
        if found is None:
            came.wait()
            found = later[0]
        if not found:
            self.send_response(202)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if self.streams else "application/json")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for one in found:
            for piece in (b"data: ", *one, b"\n\n") if self.streams else one:
                if piece:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")


class Sse(Http):
    """HTTP+SSE of 2024-11-05."""

    out: "queue.Queue[list[Iterator[bytes]]]" = queue.Queue()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"event: endpoint\ndata: /messages\n\n")
        while True:
            for message in self.out.get():
                for piece in (b"event: message\ndata: ", *message, b"\n\n"):
                    self.wfile.write(piece)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(202 if self.path == "/messages" else 405)
        self.send_header("content-length", "0")
        self.end_headers()
        found = answers(message, self.out.put) if self.path == "/messages" else None
        if found:
            self.out.put(found)


parser = argparse.ArgumentParser()
parser.add_argument("--transport", choices=("stdio", "json", "stream", "sse"), default="stdio")
parser.add_argument("--bytes", type=int, default=0)
parser.add_argument("--http", type=int, default=0, help="the port")
options = parser.parse_args()
SIZE = options.bytes
if options.transport == "stdio":
    serve_stdio()
else:
    Http.streams = options.transport == "stream"
    server = ThreadingHTTPServer(("127.0.0.1", options.http), Sse if options.transport == "sse" else Http)
    server.daemon_threads = True
    print(f"http://127.0.0.1:{server.server_port}/", flush=True)
    server.serve_forever()
