"""What a bad server does. FAULTS names them all; several may be combined, with each other and with any feature."""

import asyncio
import os
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable

from .server import Exchange, Fault, envelope, notification
from .text import prepend

Write = Callable[[bytes], Awaitable[None]]
GARBAGE = (
    b"npm WARN deprecated something@1.0.0: this is not JSON\n",
    b"\n",
    b'{"jsonrpc":"2.0","id":\n',
    b"[]\n",
    b"null\n",
    b'"text"\n',
    b'{"hello":"world"}\n',
    b'{"jsonrpc":"2.0","id":987654321,"result":{}}\n',
    b'{"jsonrpc":"2.0","id":"no-such-request","error":{"code":1,"message":"?"}}\n',
    b'{"jsonrpc":"2.0","method":"notifications/unheard-of","params":{}}\n',
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"nobody","progress":1}}\n',
    b"\xff\xfe\x00garbage\x80\n",
)


async def forever() -> None:
    await asyncio.Event().wait()


def is_call(exchange: Exchange) -> bool:
    return exchange.method == "tools/call"


class Hang(Fault):
    """Answers nothing, not even the first request."""

    methods: tuple[str, ...] = ()

    async def before(self, exchange: Exchange) -> None:
        if not self.methods or exchange.method in self.methods:
            await forever()


class HangList(Hang):
    """Says hello, then never answers a list of tools."""

    methods = ("tools/list",)


class Never(Hang):
    """Lists its tools and answers no call."""

    methods = ("tools/call",)


class DeafToDiscover(Hang):
    """An old server that says nothing to a request it does not know."""

    methods = ("server/discover",)


class DiesOfDiscover(Fault):
    """An old server that ends at a request it does not know."""

    async def before(self, exchange: Exchange) -> None:
        if exchange.method == "server/discover":
            os._exit(1)


class CrashLoop(Fault):
    """Ends as soon as it starts."""

    async def started(self, write: Write) -> None:
        sys.stderr.write("fatal: cannot find the database\n")
        sys.stderr.flush()
        os._exit(3)


class CrashOnCall(Fault):
    """Ends in the middle of every call."""

    async def before(self, exchange: Exchange) -> None:
        if is_call(exchange):
            sys.stderr.write("fatal: crashed in a call\n")
            sys.stderr.flush()
            os._exit(9)


class FloodStdout(Fault):
    """Writes lines of garbage without end, and answers between them."""

    async def started(self, write: Write) -> None:
        while True:
            for line in GARBAGE:
                await write(line)
            await asyncio.sleep(0)


class FloodLine(Fault):
    """Writes one line without end."""

    async def started(self, write: Write) -> None:
        while True:
            await write(b"A" * 65536)
            await asyncio.sleep(0)


class FloodStderr(Fault):
    """Writes to stderr without end."""

    async def started(self, write: Write) -> None:
        while True:
            await asyncio.to_thread(os.write, 2, b"debug: still here\n" * 200)


class FloodNotifications(Fault):
    """Sends log messages nobody asked for, without end."""

    async def started(self, write: Write) -> None:
        number = 0
        while True:
            number += 1
            params = b'{"level":"info","data":%d}' % number
            await write(notification("notifications/message", params.decode()) + b"\n")
            if number % 100 == 0:
                await asyncio.sleep(0)


class PrintsBanner(Fault):
    """Prints a banner on stdout before it speaks the protocol."""

    async def started(self, write: Write) -> None:
        await write("Starting server…\nListening on stdio ✓\n\n".encode())


class GarbageLines(Fault):
    """Puts lines that are no answer before and after every answer."""

    def answers(self, exchange: Exchange, messages: list[bytes]) -> list[bytes]:
        lines = [line.rstrip(b"\n") for line in GARBAGE if line.strip()]
        return [*lines, *messages, *lines]


class Slow(Fault):
    """Waits `--ms` before every answer (slow-calls: before answers to calls)."""

    def __init__(self, ms: int, calls_only: bool) -> None:
        self.seconds, self.calls_only = ms / 1000, calls_only

    async def before(self, exchange: Exchange) -> None:
        if is_call(exchange) or not self.calls_only:
            await asyncio.sleep(self.seconds)


class WrongId(Fault):
    """Answers calls under an id nobody used."""

    def answers(self, exchange: Exchange, messages: list[bytes]) -> list[bytes]:
        if not is_call(exchange):
            return messages
        return [envelope('"somebody-else"', "result", '{"content":[]}')]


class TextId(Fault):
    """Answers calls under the right number as a string, or the right string as a number."""

    def answers(self, exchange: Exchange, messages: list[bytes]) -> list[bytes]:
        if not is_call(exchange):
            return messages
        own = exchange.message.id or "null"
        return [envelope(own.strip('"') if own.startswith('"') else f'"{own}"', "result", '{"content":[]}')]


class Twice(Fault):
    """Answers every call twice, the second time differently."""

    def answers(self, exchange: Exchange, messages: list[bytes]) -> list[bytes]:
        if not is_call(exchange):
            return messages
        again = '{"resultType":"complete","content":[{"type":"text","text":"second answer"}]}'
        return [*messages, envelope(exchange.message.id, "result", again)]


class Result(Fault):
    """Answers calls with a structuredContent nobody expects instead of its own."""

    def __init__(self, make: Callable[[], bytes]) -> None:
        self.make = make

    def answers(self, exchange: Exchange, messages: list[bytes]) -> list[bytes]:
        if not is_call(exchange):
            return messages
        kind = [("resultType", '"complete"')] if exchange.era == "modern" else []
        head = envelope(exchange.message.id, "result", prepend(kind, '{"content":[]}'))
        return [head.removesuffix(b"}}") + b',"structuredContent":' + self.make() + b"}}"]


class NotAnAnswer(Fault):
    """Answers calls with an object that is neither result nor error."""

    def answers(self, exchange: Exchange, messages: list[bytes]) -> list[bytes]:
        if not is_call(exchange):
            return messages
        return [b'{"jsonrpc":"2.0","id":%b}' % (exchange.message.id or "null").encode()]


class Batches(Fault):
    """Answers calls with a batch: a log message, an empty batch, the answer. For --speaks 2025-03-26."""

    def answers(self, exchange: Exchange, messages: list[bytes]) -> list[bytes]:
        if not is_call(exchange):
            return messages
        log = notification("notifications/message", '{"level":"error","data":"in a batch"}')
        return [b"[" + b",".join([log, b"[]", *messages]) + b"]"]


class Stubborn(Fault):
    """Ignores SIGTERM, SIGINT and the end of its input."""

    async def started(self, write: Write) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


class Grandchild(Fault):
    """Starts a process of its own that outlives it (by five minutes at most), and writes `grandchild PID` to stderr."""

    async def started(self, write: Write) -> None:
        sleeper = [sys.executable, "-c", "import time; time.sleep(300)"]
        child = subprocess.Popen(sleeper, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)  # noqa: ASYNC220
        sys.stderr.write(f"grandchild {child.pid}\n")
        sys.stderr.flush()


def faults(options: Namespace) -> dict[str, Callable[[], Fault]]:
    return {
        "hang": Hang,
        "hang-list": HangList,
        "never": Never,
        "deaf-to-discover": DeafToDiscover,
        "dies-of-discover": DiesOfDiscover,
        "crash-loop": CrashLoop,
        "crash-on-call": CrashOnCall,
        "flood-stdout": FloodStdout,
        "flood-line": FloodLine,
        "flood-stderr": FloodStderr,
        "flood-notifications": FloodNotifications,
        "prints-banner": PrintsBanner,
        "garbage-lines": GarbageLines,
        "slow": lambda: Slow(options.ms, calls_only=False),
        "slow-calls": lambda: Slow(options.ms, calls_only=True),
        "wrong-id": WrongId,
        "text-id": TextId,
        "twice": Twice,
        "not-an-answer": NotAnAnswer,
        "huge-answer": lambda: Result(lambda: b'{"a":"' + b"x" * options.bytes + b'"}'),
        "invalid-utf8": lambda: Result(lambda: b'{"a":"\xff\xfe \xc3( \xed\xa0\x80"}'),
        "deep-nesting": lambda: Result(lambda: b'{"a":' + b"[" * options.depth + b"]" * options.depth + b"}"),
        "batches": Batches,
        "stubborn": Stubborn,
        "grandchild": Grandchild,
    }
