"""A legacy MCP server whose one tool asks the client a question in mid-call and ends when it has the answer.

    python -m bench.asking_server PORT

The call's answer is an event stream: the question, then, however much later, the result. Nothing is kept of a call but
where to answer it.
"""

import argparse
import asyncio

import msgspec
import uvloop

from bench import fast_server
from bench.fast_server import SESSION, Answers, Call, decode_call
from bench.processes import raise_descriptors

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
QUESTION = (
    b'{"jsonrpc":"2.0","id":%d,"method":"elicitation/create","params":{"message":"Shall it be done?",'
    b'"requestedSchema":{"type":"object","properties":{"sure":{"type":"boolean"}},"required":["sure"]}}}'
)


class Questions:
    """The questions under way: their number -> the call's id and where its answer goes."""

    def __init__(self) -> None:
        self.open: dict[bytes, tuple[bytes, asyncio.Transport]] = {}
        self.last = 0

    def ask(self, call: Call, to: asyncio.Transport) -> bytes:
        self.last += 1
        self.open[b"%d" % self.last] = (bytes(call.id), to)
        return QUESTION % self.last


class Connection(fast_server.Connection):
    def __init__(self, answers: Answers, questions: Questions) -> None:
        super().__init__(answers, "legacy")
        self.questions = questions

    def on_message_complete(self) -> None:
        if self.session != SESSION or self.parser.get_method() != b"POST":
            super().on_message_complete()
            return
        call = decode_call(b"".join(self.chunks))
        if call.method == "tools/call":
            self.chunks = []
            self.transport.write(STREAM + event(self.questions.ask(call, self.transport)))
        elif not call.method and (asked := self.questions.open.pop(bytes(call.id), None)):
            self.chunks = []
            self.reply(b"202 Accepted", b"")
            call_id, stream = asked
            stream.write(event(result(self.answers, call_id)) + b"0\r\n\r\n")
        else:
            super().on_message_complete()


def result(answers: Answers, call_id: bytes) -> bytes:
    return answers.message(Call(method="tools/call", id=msgspec.Raw(call_id)))


def event(message: bytes) -> bytes:
    data = b"event: message\ndata: %b\n\n" % message
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve_http(port: int, answers: Answers) -> None:
    questions = Questions()
    listener = await asyncio.get_running_loop().create_server(
        lambda: Connection(answers, questions), "127.0.0.1", port, backlog=2048
    )
    print(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/mcp", flush=True)
    await listener.serve_forever()


if __name__ == "__main__":
    raise_descriptors()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int, nargs="?", default=0)
    options = parser.parse_args()
    uvloop.run(serve_http(options.port, Answers("legacy", tools=1, result_bytes=200)))
