"""What an honest server offers. Each feature puts its tools and methods into a Server; FEATURES names them all."""

import asyncio
import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable

from . import cases
from .driven import driven
from .server import Exchange, InputRequired, Refusal, Server
from .tasks import tasks
from .text import array, header_text, members, obj, string

ODD_NAMES = (
    "createIssue",
    "HTTPGet",
    "get/user",
    "größe",
    "admin.tools.list",
    "n" * 128,
    "n" * 127 + "m",
    # These collide with each other once case, punctuation or both are normalised.
    "get_user",
    "get-user",
    "getUser",
    "get.user",
    "Get_User",
    "two__underscores",
    "_leading",
    "trailing_",
    "9lives",
    "with space",
    "日本語",
    "😀",
    "tools",
    "*",
)


def text_result(text: str) -> str:
    return obj([("content", array([obj([("type", '"text"'), ("text", string(text))])]))])


def structured(text: str) -> str:
    """A result whose structuredContent is this JSON text, byte for byte."""
    return obj([("content", "[]"), ("structuredContent", text)])


def echo(server: Server, options: Namespace) -> None:
    """`echo` returns its arguments as bytes, `exact` a known result, `fail` and `refuse` the two kinds of error."""

    async def echo_(exchange: Exchange, arguments: str) -> str:
        return structured(arguments)

    async def exact(exchange: Exchange, arguments: str) -> str:
        case = json.loads(members(arguments).get("case", '"plain"'))
        if case not in cases.RESULTS:
            raise Refusal(-32602, f"no such case: {case}")
        return cases.RESULTS[case]

    async def fail(exchange: Exchange, arguments: str) -> str:
        return cases.RESULTS["tool-error"]

    async def refuse(exchange: Exchange, arguments: str) -> str:
        given = members(arguments)
        code, message = int(given.get("code", "-32000")), json.loads(given.get("message", '"refused"'))
        raise Refusal(code, message, given.get("data"))

    server.tool(
        "echo",
        echo_,
        '"title":"Echo","description":"Returns its arguments.","inputSchema":{"type":"object","x-any":{"z":1,"a":[]},'
        '"properties":{"n":{"type":"integer","maximum":1208925819614629174706175}}},"annotations":{"readOnlyHint":true,'
        '"x-cost":0.10},"x-unknown":{"empty":{},"big":18446744073709551616},"_meta":{"com.example/k":{"z":1,"a":2}}',
    )
    server.tool("exact", exact)
    server.tool("fail", fail)
    server.tool("refuse", refuse)


def asks(server: Server, options: Namespace) -> None:
    """`ask` {method, params, rounds?} asks the client in mid-call, once or several times.

    Legacy: a request to the client, whose result or error is returned byte for byte. Modern: input_required, and the
    retry's inputResponses and requestState are returned.
    """

    async def ask(exchange: Exchange, arguments: str) -> str:
        given = members(arguments)
        method, params = json.loads(given["method"]), given.get("params", "{}")
        rounds = int(given.get("rounds", "1"))
        if exchange.era == "legacy":
            answers = [await exchange.ask(method, params) for _ in range(rounds)]
            return structured(obj([("answers", array(answers))]))
        state = exchange.message.params.get("requestState")
        done = int(json.loads(state).rpartition(" ")[2]) if state else 0
        if done < rounds:
            request = obj([("method", string(method)), ("params", params)])
            next_state = string(f"opaque é \\ state {done + 1}")
            return InputRequired(obj([("inputRequests", obj([("one", request)])), ("requestState", next_state)]))
        responses = exchange.message.params.get("inputResponses", "null")
        return structured(obj([("inputResponses", responses), ("requestState", state or "null")]))

    server.tool("ask", ask)


def progress(server: Server, options: Namespace) -> None:
    """`progress` {steps, ms}: that many progress notifications, then the result."""

    async def progress_(exchange: Exchange, arguments: str) -> str:
        given = members(arguments)
        token = exchange.message.meta.get("progressToken")
        steps = int(given.get("steps", "3"))
        for step in range(1, steps + 1):
            await asyncio.sleep(int(given.get("ms", "0")) / 1000)
            if token is not None:
                pairs = [("progressToken", token), ("progress", str(step)), ("total", str(steps))]
                await exchange.notify("notifications/progress", obj([*pairs, ("message", string(f"step {step}"))]))
        return text_result(f"{steps} steps")

    server.tool("progress", progress_)


def logs(server: Server, options: Namespace) -> None:
    """`log` {level, data}: one log message, if the client asked for that level."""

    async def log(exchange: Exchange, arguments: str) -> str:
        given = members(arguments)
        await exchange.log(json.loads(given.get("level", '"info"')), given.get("data", '"hello"'))
        return text_result("logged")

    async def set_level(exchange: Exchange) -> str:
        exchange.session.level = exchange.param("level")
        return "{}"

    server.capabilities["logging"] = "{}"
    server.methods["logging/setLevel"] = set_level
    server.tool("log", log)


def changes(server: Server, options: Namespace) -> None:
    """`change` {kind, name?}: a list changes (a named tool appears or goes) and that is announced.

    kind is tools, prompts or resources.
    `hang_up` ends every modern subscription gracefully.
    """

    async def named(exchange: Exchange, arguments: str) -> str:
        return text_result("here")

    async def change(exchange: Exchange, arguments: str) -> str:
        given = members(arguments)
        kind = json.loads(given.get("kind", '"tools"'))
        if "name" in given:
            name = json.loads(given["name"])
            if name in server.tools:
                del server.tools[name]
            else:
                server.tool(name, named)
        await server.announce(f"{kind}ListChanged", f"notifications/{kind}/list_changed")
        return text_result("changed")

    async def hang_up(exchange: Exchange, arguments: str) -> str:
        for _, _, over in server.listeners.values():
            over.set()
        return text_result("hung up")

    server.tool("change", change)
    server.tool("hang_up", hang_up)


def vendor(server: Server, options: Namespace) -> None:
    """`tell` {method, params, times?}: notifications of these on the call's own stream; `tell_all`: on everybody's.

    Declares an experimental capability.
    """
    server.capabilities["experimental"] = '{"com.example/feature":{"n":1.0,"a":[]},"dev.interlock/ax":{}}'

    async def tell(exchange: Exchange, arguments: str) -> str:
        given = members(arguments)
        for _ in range(int(given.get("times", "1"))):
            await exchange.notify(json.loads(given["method"]), given.get("params", "{}"))
        return text_result("told")

    async def tell_all(exchange: Exchange, arguments: str) -> str:
        given = members(arguments)
        method, params = json.loads(given["method"]), given.get("params", "{}")

        async def later() -> None:
            await asyncio.sleep(float(given.get("after", "0.05")))  # when no call is under way
            for _ in range(int(given.get("times", "1"))):
                await server.announce("toolsListChanged", method, params=params)

        server.later = asyncio.ensure_future(later())
        return text_result("told")

    server.tool("tell", tell)
    server.tool("tell_all", tell_all)


def resources(server: Server, options: Namespace) -> None:
    """Two resources and a template; `touch` {uri} announces an update to those who subscribed."""
    server.capabilities["resources"] = '{"subscribe":true,"listChanged":true}'
    server.resources.update(
        {
            "raw://text": '{"uri":"raw://text","name":"text","mimeType":"text/plain","x-shelf":{"row":7}}',
            "raw://blob": '{"uri":"raw://blob","name":"blob","size":3,"annotations":{"priority":1.0}}',
        }
    )
    server.templates["raw://item/{id}"] = '{"uriTemplate":"raw://item/{id}","name":"item","x-kind":[]}'

    async def read(exchange: Exchange) -> str:
        uri = exchange.param("uri")
        if uri == "raw://blob":
            return '{"contents":[{"uri":"raw://blob","blob":"AAEC","x-crc":18446744073709551616}],"x-took":{}}'
        if uri == "raw://text" or uri.startswith("raw://item/"):
            content = obj([("uri", string(uri)), ("mimeType", '"text/plain"'), ("text", string(f"text of {uri}"))])
            return obj([("contents", array([content]))])
        code = -32602 if exchange.era == "modern" else -32002
        raise Refusal(code, "Resource not found", obj([("uri", string(uri))]))

    async def subscribe(exchange: Exchange) -> str:
        exchange.session.subscriptions.add(exchange.param("uri"))
        return "{}"

    async def unsubscribe(exchange: Exchange) -> str:
        exchange.session.subscriptions.discard(exchange.param("uri"))
        return "{}"

    async def touch(exchange: Exchange, arguments: str) -> str:
        uri = json.loads(members(arguments).get("uri", '"raw://text"'))
        await server.announce("resourceSubscriptions", "notifications/resources/updated", uri)
        return text_result("touched")

    server.list_method("resources/list", "resources", lambda: list(server.resources.values()))
    server.list_method("resources/templates/list", "resourceTemplates", lambda: list(server.templates.values()))
    server.methods["resources/read"] = read
    server.methods["resources/subscribe"] = subscribe
    server.methods["resources/unsubscribe"] = unsubscribe
    server.tool("touch", touch)


def prompts(server: Server, options: Namespace) -> None:
    """Two prompts; `greet` returns its arguments byte for byte in a vendor field."""
    server.capabilities["prompts"] = '{"listChanged":true}'
    server.prompts["greet"] = '{"name":"greet","arguments":[{"name":"who","required":true}],"x-tone":{"warm":true}}'
    server.prompts["plain"] = '{"name":"plain"}'

    async def get(exchange: Exchange) -> str:
        name = exchange.param("name")
        if name not in server.prompts:
            raise Refusal(-32602, f"Unknown prompt: {name}")
        message = '{"role":"user","content":{"type":"text","text":"Hello."},"x-m":1}'
        given = exchange.message.params.get("arguments", "{}")
        return obj([("messages", array([message])), ("x-arguments", given)])

    server.list_method("prompts/list", "prompts", lambda: list(server.prompts.values()))
    server.methods["prompts/get"] = get


def completions(server: Server, options: Namespace) -> None:
    """completion/complete returns the ref, argument and context it was given, byte for byte, in a vendor field."""
    server.capabilities["completions"] = "{}"

    async def complete(exchange: Exchange) -> str:
        given = exchange.message.params
        asked = obj((key, given[key]) for key in ("ref", "argument", "context") if key in given)
        value = json.loads(members(given.get("argument", "{}")).get("value", '""'))
        values = array([string(value + "-one"), string(value + "-two")])
        completion = obj([("values", values), ("total", "2"), ("hasMore", "false")])
        return obj([("completion", completion), ("x-asked", asked)])

    server.methods["completion/complete"] = complete


def recorder(server: Server, options: Namespace) -> None:
    """`seen` returns every message with its headers and `_meta`, and the process's environment, arguments and ids."""

    async def seen(exchange: Exchange, arguments: str) -> str:
        messages = [
            obj(
                [
                    ("method", json.dumps(message.method)),
                    ("id", message.id or "null"),
                    ("headers", json.dumps(message.headers)),
                    ("meta", message.params.get("_meta", "null")),
                    ("text", string(message.text)),
                ]
            )
            for message in server.received
        ]
        process = {"environment": dict(os.environ), "arguments": sys.argv, "cwd": os.getcwd()}  # noqa: PTH109
        ids = {"pid": os.getpid(), "parent": os.getppid(), "group": os.getpgid(0), "session": os.getsid(0)}
        offered = ("offered", exchange.session.offered)
        return structured(obj([("messages", array(messages)), ("process", json.dumps(process | ids)), offered]))

    server.tool("seen", seen)


def cancellations(server: Server, options: Namespace) -> None:
    """`wait` never answers; `cancelled` lists the ids cancelled, `waiting` those in flight, as they were written."""

    async def wait(exchange: Exchange, arguments: str) -> str:
        await asyncio.Event().wait()
        return "{}"

    async def cancelled(exchange: Exchange, arguments: str) -> str:
        return structured(obj([("ids", array(server.cancelled))]))

    async def waiting(exchange: Exchange, arguments: str) -> str:
        held = [key for session in server.sessions.values() for key in session.exchanges]
        return structured(obj([("ids", array(key for key in held if key != exchange.message.id))]))

    server.tool("wait", wait)
    server.tool("cancelled", cancelled)
    server.tool("waiting", waiting)


def odd_names(server: Server, options: Namespace) -> None:
    """A tool of each of ODD_NAMES; it answers with the name it was called by."""

    async def own_name(exchange: Exchange, arguments: str) -> str:
        return text_result(exchange.param("name"))

    for name in ODD_NAMES:
        server.tool(name, own_name)


def many_tools(server: Server, options: Namespace) -> None:
    """`--count` tools with schemas of a common size."""

    async def own_name(exchange: Exchange, arguments: str) -> str:
        return text_result(exchange.param("name"))

    for number in range(options.count):
        server.tool(
            f"tool_{number:05}",
            own_name,
            f'"description":"Tool number {number} of many, with a description of an ordinary length.","inputSchema":'
            '{"type":"object","properties":{"path":{"type":"string","description":"Where."},"depth":{"type":"integer",'
            '"minimum":0},"tags":{"type":"array","items":{"type":"string"}}},"required":["path"]}',
        )


def header_params(server: Server, options: Namespace) -> None:
    """`regional` mirrors `region` into Mcp-Param-Region and checks it; `badly_mirrored` declares no valid header."""

    async def regional(exchange: Exchange, arguments: str) -> str:
        region = members(arguments).get("region")
        sent = header_text(exchange.message.headers.get("mcp-param-region"))
        over_http = bool(exchange.message.headers)
        if exchange.era == "modern" and over_http and (json.loads(region) if region else None) != sent:
            raise Refusal(-32020, "Mcp-Param-Region does not match the argument")
        return text_result(sent or "")

    async def badly(exchange: Exchange, arguments: str) -> str:
        return text_result("called")

    schema = '"inputSchema":{"type":"object","properties":{"region":{"type":"%s","x-mcp-header":"%s"}}}'
    server.tool("regional", regional, schema % ("string", "Region"))
    server.tool("badly_mirrored", badly, schema % ("number", "Not A Token"))


FEATURES: dict[str, Callable[[Server, Namespace], None]] = {
    "echo": echo,
    "asks": asks,
    "progress": progress,
    "logs": logs,
    "list-changed": changes,
    "vendor": vendor,
    "resources": resources,
    "prompts": prompts,
    "completions": completions,
    "recorder": recorder,
    "cancellations": cancellations,
    "header-params": header_params,
    "odd-names": odd_names,
    "many-tools": many_tools,
    "tasks": tasks,
    "driven": driven,
}
# What a server offers when only faults were named, and what `all` stands for.
USUAL = ("echo",)
ALL = tuple(name for name in FEATURES if name not in ("odd-names", "many-tools", "header-params", "tasks", "driven"))
