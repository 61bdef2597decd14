"""A stdio MCP server that a driver starts: it writes down all it is told, and does as its options say.

python driven.py --log FILE [--tools FILE] [--era legacy|modern|both] [--answers VERSION] [--ttl-ms N] [--exit CODE]
                 [--mute] [--banner LINES] [--dies-on-call] [--ignores-term] [--forks]

--log      one JSON object a line: {"pid", "argv", "env"} when it starts, {"pid", "got"} for each message
--tools    a JSON list of definitions, read anew for each tools/list; SIGUSR1 makes it say that the list changed
           a file `deaf` beside it: no ping is answered
--banner   so many lines that are no messages come first
--mute     answers nothing;  --exit: ends at once with this code

Tools: `echo` returns its arguments and its process id, `wait` answers when the file that its argument `until` names
exists, and everything else in --tools does what `echo` does.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from pathlib import Path

OBJECT = {"type": "object"}
INPUTS = {"type": "object", "properties": {"n": {"type": "integer"}, "until": {"type": "string"}}}
TOOLS = [{"name": name, "inputSchema": INPUTS, "outputSchema": OBJECT} for name in ("echo", "wait")]
MODERN = "2026-07-28"


class Server:
    def __init__(self, options):
        self.options = options
        self.out = sys.stdout.buffer

    def note(self, **what):
        with Path(self.options.log).open("a") as log:
            log.write(json.dumps({"pid": os.getpid(), **what}) + "\n")

    def say(self, message):
        self.out.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.out.flush()

    def changed(self):
        self.say({"method": "notifications/tools/list_changed"})

    async def on(self, message):
        self.note(got=message)
        if "id" not in message or "method" not in message or self.options.mute:
            return
        try:
            result = await self.result(message["method"], message.get("params", {}))
        except LookupError:
            self.say({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})
        else:
            if result is not None:
                self.say({"id": message["id"], "result": result})

    async def result(self, method, params):
        options = self.options
        capabilities = {"tools": {"listChanged": True}}
        if method == "initialize" and options.era != "modern":
            version = options.answers or params["protocolVersion"]
            return {
                "protocolVersion": version,
                "capabilities": capabilities,
                "serverInfo": {"name": "d", "version": "1"},
            }
        if method == "server/discover" and options.era != "legacy":
            return {"resultType": "complete", "supportedVersions": [MODERN], "capabilities": capabilities}
        if method == "tools/list":
            tools = json.loads(Path(options.tools).read_text()) if options.tools else TOOLS
            return {"resultType": "complete", "tools": tools, "ttlMs": options.ttl_ms, "cacheScope": "private"}
        if method == "tools/call":
            return await self.call(params["name"], params.get("arguments", {}))
        if method == "ping":
            return None if Path(options.log).with_name("deaf").exists() else {}
        if method == "subscriptions/listen":
            return None
        raise LookupError

    async def call(self, name, arguments):
        if self.options.dies_on_call:
            os._exit(7)
        while True:
            if name != "wait" or Path(arguments["until"]).exists():
                break
            await asyncio.sleep(0.01)
        value = {**arguments, "pid": os.getpid()}
        return {"resultType": "complete", "content": [], "structuredContent": value}


async def main(options):
    server = Server(options)
    server.note(argv=sys.argv[1:], env=dict(os.environ))
    if options.exit is not None:
        print("ends as it was told to", file=sys.stderr)
        sys.exit(options.exit)
    if options.ignores_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.forks and os.fork() == 0:
        server.note(forked=True)
        signal.pause()
    for number in range(options.banner):
        print(f"line {number} of a banner", flush=True)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, server.changed)
    reader = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tasks = set()
    while line := await reader.readline():
        task = asyncio.create_task(server.on(json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    if options.ignores_term:
        await asyncio.Event().wait()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", required=True)
    parser.add_argument("--tools")
    parser.add_argument("--era", choices=("legacy", "modern", "both"), default="legacy")
    parser.add_argument("--answers")
    parser.add_argument("--ttl-ms", type=int, default=60_000)
    parser.add_argument("--exit", type=int)
    parser.add_argument("--banner", type=int, default=0)
    for flag in ("--mute", "--dies-on-call", "--ignores-term", "--forks"):
        parser.add_argument(flag, action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main(arguments()))
