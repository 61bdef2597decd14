"""Requests whose answers show whether anything was read, rounded, reordered or dropped on the way.

Each is written as text, for a server directly or for the same server behind a node: `Place` says how names and URIs
are spelled there.
"""

from collections.abc import Callable

from tests.servers.rawserver import cases
from tests.servers.rawserver.text import obj, string


class Place:
    """How a server's names are spelled where the request is sent. This one is the server itself."""

    def name(self, own: str) -> str:
        return own

    def uri(self, own: str) -> str:
        return own


class Behind(Place):
    """Under a segment of a node."""

    def __init__(self, segment: str) -> None:
        self.segment = segment

    def name(self, own: str) -> str:
        return f"{self.segment}__{own}"

    def uri(self, own: str) -> str:
        return f"mcpax://{self.segment}/{own}"


ODD_ARGUMENTS = {
    "empty": "{}",
    "spaced": '{ "a" : [ 1 , 2 ]\t,"b":{ } }',
    "key order": '{"z":1,"a":{"q":0,"b":[{"y":1,"x":2}]},"m":null}',
    "big integers": '{"n":1208925819614629174706175,"m":-1208925819614629174706175,"h":' + "7" * 200 + "}",
    "floats": '{"a":1.0,"b":-0.0,"c":1E+5,"d":1e-7,"e":0.1000000000000000055511151231257827,"f":0.10,"g":1e400}',
    "escapes": '{"\\u00e9":"\\/ / \\u0041 \\ud83d\\ude00 \\u0000 \\u2028","é":"é e\u0301 \u2028 😀 \ufeff"}',
    "repeated keys": '{"a":1,"a":2,"b":{"c":1,"c":2}}',
    "empty things": '{"":{},"a":[],"b":"","c":[[]],"d":{"":null}}',
    "like an envelope": '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{},"result":{},"error":{"code":1}}',
    "like our own": '{"name":"echo","arguments":{},"_meta":{"progressToken":1},"x-mcpax-name":"a.b"}',
    "deep": '{"a":' + "[" * 200 + "]" * 200 + "}",
    "as deep as Python goes": '{"a":' + "[" * 990 + "]" * 990 + "}",
    "deeper": '{"b":[1],"a":' + '{"a":[' * 2500 + "]}" * 2500 + "}",
    "half a pair": '{"a":"\\ud83d","b":"\\udfff x"}',
    "long": '{"a":"' + "é" * 100_000 + '"}',
}
Written = tuple[str, Callable[[Place], str]]


def corpus() -> dict[str, Written]:
    """label -> (method, params for a place)."""
    found: dict[str, Written] = {}
    for case in cases.RESULTS:
        found[f"exact {case}"] = _call("exact", obj([("case", string(case))]))
    for label, text in ODD_ARGUMENTS.items():
        found[f"echo {label}"] = _call("echo", text)
        if "argument" not in label:
            found[f"prompt {label}"] = _prompt(text)
    found["echo null"] = _call("echo", "null")
    found["echo nothing"] = "tools/call", lambda at: obj([("name", string(at.name("echo")))])
    found["tool error"] = _call("fail", "{}")
    for code in (-32000, -32602, -32603, 7, 32002):
        data = '{"z":1,"a":18446744073709551616,"e":{},"s":"\\u00e9"}'
        found[f"refusal {code}"] = _call("refuse", f'{{"code":{code},"message":"no \\u00e9 é","data":{data}}}')
    for own in ("raw://text", "raw://blob", "raw://item/7", "raw://item/a%20b", "raw://none"):
        found[f"read {own}"] = _read(own)
    for label, ref in (("prompt", _prompt_ref), ("template", _template_ref)):
        found[f"complete {label}"] = _complete(ref)
    return found


def _call(name: str, arguments: str) -> Written:
    return "tools/call", lambda at: obj([("name", string(at.name(name))), ("arguments", arguments)])


def _prompt(arguments: str) -> Written:
    return "prompts/get", lambda at: obj([("name", string(at.name("greet"))), ("arguments", arguments)])


def _read(own: str) -> Written:
    return "resources/read", lambda at: obj([("uri", string(at.uri(own)))])


def _complete(ref: Callable[[Place], str]) -> Written:
    argument = '{"value":"\\u00e9-","name":"who"}'
    context = '{"arguments":{ "z":"1","a":"2" }}'
    return "completion/complete", lambda at: obj([("argument", argument), ("ref", ref(at)), ("context", context)])


def _prompt_ref(at: Place) -> str:
    return obj([("type", '"ref/prompt"'), ("name", string(at.name("greet"))), ("x-more", "{}")])


def _template_ref(at: Place) -> str:
    return obj([("type", '"ref/resource"'), ("uri", string(at.uri("raw://item/{id}")))])
