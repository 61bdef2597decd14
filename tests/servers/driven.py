"""A stdio MCP server that a driver starts: it writes down all it is told, and does as its options say.

python driven.py --log FILE [--tools FILE] [--era legacy|modern|both] [--answers VERSION] [--ttl-ms N] [--exit CODE]
                 [--mute] [--banner LINES] [--loud BYTES] [--page N] [--lists] [--discover HOW]
                 [--dies-on-call] [--ignores-term] [--forks]

--log      one JSON object a line: {"pid", "argv", "env"} when it starts, {"pid", "got"} for each message
--tools    a JSON list of definitions, read anew for each tools/list; SIGUSR1 makes it say that the list changed
           a file `deaf` beside it: no ping is answered; a file `slow` when it starts: it reads once that is gone
--banner   so many lines that are no messages come first; --loud: one line of so many bytes
--page     so many tools on each page of the list;  --lists: it has (empty) lists of prompts and resources
--discover server/discover gets no answer (silent), ends it (ends) or is refused with -32602 (params)
--mute     answers nothing;  --exit: ends at once with this code

Tools: `ask` asks the client with elicitation/create and returns its answer,
`echo` returns its arguments and its process id, `wait` answers when the file that its argument `until` names
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
TOOLS = [{"name": name, "inputSchema": INPUTS, "outputSchema": OBJECT} for name in ("echo", "wait", "ask")]
MODERN = "2026-07-28"


class Server:
    def __init__(self, options):
        self.options = options
        self.out = sys.stdout.buffer
        self.asked = 0
        self.answers = {}

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
        if message.get("id") in self.answers:
            self.answers.pop(message["id"]).set_result(message.get("result", message.get("error")))
        if "id" not in message or "method" not in message or self.options.mute:
            return
        try:
            result = await self.result(message["method"], message.get("params", {}))
        except ValueError:
            self.say({"id": message["id"], "error": {"code": -32602, "message": "bad params"}})
        except LookupError:
            self.say({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})
        else:
            if result is not None:
                self.say({"id": message["id"], "result": result})

    async def result(self, method, params):
        options = self.options
        capabilities = {"tools": {"listChanged": True}}
        if options.lists:
            capabilities |= {"prompts": {}, "resources": {}}
        if method == "initialize" and options.era != "modern":
            version = options.answers or params["protocolVersion"]
            return {
                "protocolVersion": version,
                "capabilities": capabilities,
                "serverInfo": {"name": "d", "version": "1"},
            }
        if method == "server/discover" and options.discover == "ends":
            os._exit(1)
        if method == "server/discover" and options.discover == "silent":
            return None
        if method == "server/discover" and options.discover == "params":
            raise ValueError
        if method == "server/discover" and options.era != "legacy":
            return {"resultType": "complete", "supportedVersions": [MODERN], "capabilities": capabilities}
        if method == "tools/list":
            tools = json.loads(Path(options.tools).read_text()) if options.tools else TOOLS
            page, more = self.page(tools, params.get("cursor", "0"))
            return {"resultType": "complete", "tools": page, "ttlMs": options.ttl_ms, "cacheScope": "private", **more}
        if method in ("prompts/list", "resources/list", "resources/templates/list") and options.lists:
            member = {"prompts/list": "prompts", "resources/list": "resources"}.get(method, "resourceTemplates")
            return {member: []}
        if method == "tools/call":
            return await self.call(params["name"], params.get("arguments", {}))
        if method == "ping":
            return None if Path(options.log).with_name("deaf").exists() else {}
        if method == "subscriptions/listen":
            return None
        raise LookupError

    def page(self, tools, cursor):
        first = int(cursor)
        end = first + (self.options.page or len(tools))
        return tools[first:end], {"nextCursor": str(end)} if end < len(tools) else {}

    async def ask(self, arguments):
        """Asks the client a question; its answer is the result."""
        self.asked += 1
        answered = self.answers[f"q{self.asked}"] = asyncio.get_running_loop().create_future()
        form = {"type": "object", "properties": {"c": {"type": "string"}}}
        params = {"message": str(arguments.get("n")), "requestedSchema": form}
        self.say({"id": f"q{self.asked}", "method": "elicitation/create", "params": params})
        return {"content": [], "structuredContent": {"answer": await answered}}

    async def call(self, name, arguments):
        if name == "ask":
            return await self.ask(arguments)
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
    while Path(options.log).with_name("slow").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    if options.ignores_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.forks and os.fork() == 0:
        server.note(forked=True)
        signal.pause()
    if options.loud:
        print("x" * options.loud, flush=True)
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
    parser.add_argument("--page", type=int)
    parser.add_argument("--loud", type=int, default=0)
    parser.add_argument("--discover", choices=("silent", "ends", "params"))
    parser.add_argument("--banner", type=int, default=0)
    for flag in ("--lists", "--mute", "--dies-on-call", "--ignores-term", "--forks"):
        parser.add_argument(flag, action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main(arguments()))
