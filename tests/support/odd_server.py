"""Servers that offer what ordinary ones do not, on the fixture's own engine.

    python offers.py OFFER[,OFFER...] [--era legacy|modern] [--http PORT] [--names JSON]

`command` gives the command line of one.
"""

import argparse
import asyncio
import json
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

SERVERS = Path(__file__).resolve().parents[1] / "servers"
if __name__ == "__main__":
    sys.path.insert(0, str(SERVERS))

ICONS = '[{"src":"data:image/png;base64,iVBORw0KGgo=","mimeType":"image/png","sizes":["48x48"],"theme":"dark","x-i":1}]'
OUTPUT = '{"type":"object","properties":{"n":{"type":"integer"}},"x-order":{"z":1,"a":2}}'
STATE = '"il1.s \\u00e9"'
SAMPLING = '{"messages":[],"maxTokens":1}'
DAWDLES_S = 0.15
DECLARED = {"latency_class": "fast", "mutable": True, "reversible": True, "schema_version": "2.1.0", "x-own": {"k": []}}


def command(offer: str, *options: str) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), offer, *options]


def build(options: Namespace):  # type: ignore[no-untyped-def]
    from rawserver import features
    from rawserver.features import structured, text_result
    from rawserver.server import Exchange, InputRequired, Refusal, Server
    from rawserver.text import obj, string

    server = Server(options.era)

    async def own_name(exchange: Exchange, arguments: str) -> str:
        return text_result(exchange.param("name"))

    def rich() -> None:
        """Items with icons, titles, annotations and notes of every kind."""
        plain = '"inputSchema":{"type":"object"}'
        server.tool("bare", own_name)
        server.tool("reader", own_name, f'{plain},"annotations":{{"readOnlyHint":true}}')
        server.tool("gentle", own_name, f'{plain},"annotations":{{"destructiveHint":false,"idempotentHint":true}}')
        server.tool("liar", own_name, f'{plain},"_meta":{{"x-mcpax-hops":7,"x-mcpax-name":"admin.reset"}}')
        declared = json.dumps(DECLARED)
        server.tool("declared", own_name, f'{plain},"_meta":{{"x-mcpax-capability":{declared}}}')
        server.tool("broken", own_name, f'{plain},"_meta":{{"x-mcpax-capability":{{"mutable":"perhaps"}}}}')
        server.tool("ruled", own_name)
        about = f'"title":"Iconic","icons":{ICONS},"outputSchema":{OUTPUT},"_meta":{{"com.example/k":{{"z":1}}}}'
        server.tool("iconic", own_name, f"{plain},{about}")
        server.capabilities |= {"prompts": "{}", "resources": "{}"}
        about = f'"title":"Iconic","icons":{ICONS},"_meta":{{"com.example/k":{{"z":1}}}}'
        server.prompts["iconic"] = f'{{"name":"iconic",{about}}}'
        server.resources["r://iconic"] = f'{{"uri":"r://iconic","name":"iconic",{about},"size":3}}'
        server.templates["r://{id}"] = f'{{"uriTemplate":"r://{{id}}","name":"iconic",{about}}}'
        server.list_method("prompts/list", "prompts", lambda: list(server.prompts.values()))
        server.list_method("resources/list", "resources", lambda: list(server.resources.values()))
        server.list_method("resources/templates/list", "resourceTemplates", lambda: list(server.templates.values()))

    def names() -> None:
        """A tool and a prompt of each of --names."""
        server.capabilities["prompts"] = "{}"
        for name in json.loads(options.names):
            server.tool(name, own_name)
            server.prompts[name] = f'{{"name":{string(name)}}}'
        server.list_method("prompts/list", "prompts", lambda: list(server.prompts.values()))

        async def get(exchange: Exchange) -> str:
            said = {"type": "text", "text": exchange.param("name")}
            return json.dumps({"messages": [{"role": "user", "content": said}]})

        server.methods["prompts/get"] = get

    def schemas() -> None:
        """A tool for each of --names, which has the texts of their schemas."""
        for name, schema in json.loads(options.names).items():
            server.tool(name, own_name, f'"inputSchema":{schema},"annotations":{{"readOnlyHint":true}}')

    def shapes() -> None:
        """What one revision has and another forbids."""

        async def array(exchange: Exchange, arguments: str) -> str:
            return '{"content":[{"type":"text","text":"[1]"}],"structuredContent":[1],"x-kept":{}}'

        output = '"outputSchema":{"type":"array","items":{"type":"integer"}}'
        if server.serves("modern"):
            server.tool("array", array, f'"inputSchema":{{"type":"object"}},{output}')
        execution = '"execution":{"taskSupport":"optional"}'
        server.tool("tasks", own_name, f'"inputSchema":{{"type":"object"}},{execution},"outputSchema":{OUTPUT}')

    def asking() -> None:
        """A prompt and a resource that need input first."""
        server.capabilities |= {"prompts": "{}", "resources": "{}"}
        server.prompts["asking"] = '{"name":"asking"}'
        server.resources["r://asking"] = '{"uri":"r://asking","name":"asking"}'
        server.list_method("prompts/list", "prompts", lambda: list(server.prompts.values()))
        server.list_method("resources/list", "resources", lambda: list(server.resources.values()))

        def needs_input(complete: str) -> Callable[[Exchange], object]:
            async def answer(exchange: Exchange) -> str:
                given = exchange.message.params
                if "requestState" not in given:
                    return InputRequired(
                        f'{{"inputRequests":{{"r":{{"method":"roots/list"}}}},"requestState":{STATE}}}'
                    )
                return complete % obj([(key, given[key]) for key in ("inputResponses", "requestState")])

            return answer

        server.methods["prompts/get"] = needs_input('{"messages":[],"x-given":%s}')
        server.methods["resources/read"] = needs_input('{"contents":[],"x-given":%s}')

    def stubborn() -> None:
        """A resource nobody may subscribe to, and a list of prompts it does not have after all."""
        server.capabilities["resources"] = '{"subscribe":true}'
        server.resources["r://shy"] = '{"uri":"r://shy","name":"shy"}'
        server.list_method("resources/list", "resources", lambda: list(server.resources.values()))

        async def refuse(exchange: Exchange) -> str:
            raise Refusal(-32602, "not this one", '{"why":"shy"}')

        server.methods["resources/subscribe"] = refuse

    def asides() -> None:
        """What a legacy server says between the lines of a call."""

        async def ping(exchange: Exchange, arguments: str) -> str:
            return structured(obj([("pong", await exchange.ask("ping", "{}"))]))

        async def elicited(exchange: Exchange, arguments: str) -> str:
            await exchange.notify("notifications/elicitation/complete", '{"elicitationId":"e-1","x-more":{"n":1.0}}')
            return text_result("told")

        async def takes_back(exchange: Exchange, arguments: str) -> str:
            asking = asyncio.create_task(exchange.ask("sampling/createMessage", SAMPLING))
            await asyncio.sleep(0)
            withdrawn = obj([("requestId", string(f"ask-{server.asked}")), ("reason", '"found it"')])
            await exchange.notify("notifications/cancelled", withdrawn)
            asking.cancel()
            return text_result("took it back")

        async def asks_strangely(exchange: Exchange, arguments: str) -> str:
            return structured(obj([("said", await exchange.ask("x-vendor/ask", "{}"))]))

        for handler in (ping, elicited, takes_back, asks_strangely):
            server.tool(handler.__name__, handler)

    def half() -> None:
        """`half` answers with half of a surrogate pair, as a program that cuts text anywhere does."""

        async def answer(exchange: Exchange, arguments: str) -> str:
            return '{"content":[{"type":"text","text":"cut \\ud83d"}]}'

        server.tool("half", answer)
        server.tool("whole", own_name)

    def asks() -> None:
        """The fixture's own `ask`."""
        features.asks(server, options)

    offers = {made.__name__: made for made in (rich, names, schemas, shapes, asking, stubborn, asides, half, asks)}
    for offer in options.offer.split(","):
        if offer not in ("pretty", "dawdling"):
            offers[offer]()
    return server


async def run(options: Namespace) -> None:
    from rawserver import http, stdio
    from rawserver.faults import Slow

    server = build(options)
    if options.http is None:
        await stdio.serve(server)
        return
    if "pretty" in options.offer:  # over several lines, as a server that writes for people does
        plain = http.Response.plain

        async def pretty(self: http.Response, status: int, body: bytes = b"", **headers: str) -> None:
            text = json.dumps(json.loads(body), indent=2).encode() if body else b""
            await plain(self, status, text, **headers)

        http.Response.plain = pretty  # type: ignore[method-assign]
    if "dawdling" in options.offer:  # the answer is there, the end of its stream is not
        end = http.Response.end

        async def late(self: http.Response) -> None:
            await asyncio.sleep(DAWDLES_S)
            await end(self)

        http.Response.end = late  # type: ignore[method-assign]
        server.faults = [Slow(int(DAWDLES_S * 2000), calls_only=True)]
    pipe = http.HttpPipe(server, token=None, always_stream="dawdling" in options.offer, forget_after=None)
    await http.serve(pipe, options.http)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("offer")
    parser.add_argument("--era", choices=("legacy", "modern"), default="modern")
    parser.add_argument("--http", type=int)
    parser.add_argument("--names", default="[]")
    asyncio.run(run(parser.parse_args()))
