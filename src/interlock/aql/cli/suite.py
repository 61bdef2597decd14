"""The live suite of conformance levels 1 and 2 (10.1).

Each item of the suite is an async function that sends requests to a surface, as a client does, and compares the answers
with the specification. It raises an exception if they differ. The item's message in the report contains the text of the
exception.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Literal, cast

import msgspec

from interlock import __version__
from interlock.aql.protocol.answer_schemas import check_answer
from interlock.aql.protocol.families import Mode
from interlock.aql.protocol.model import SPEC_VERSION
from interlock.node.node import Node

Verdict = Literal["passed", "failed", "skipped"]
IMPLEMENTATION: Final = "interlock"


class SuiteItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one conformance check on one AQL surface."""

    name: str
    result: Verdict
    message: str = ""


class SuiteSection(msgspec.Struct, frozen=True, kw_only=True):
    """A category of checks in the report. It must pass if the claimed level is at least its own level."""

    name: str
    level: int
    tests: tuple[SuiteItem, ...]

    @property
    def result(self) -> Verdict:
        results = {test.result for test in self.tests}
        return "failed" if "failed" in results or not results else "passed" if "passed" in results else "skipped"


class SuiteReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a complete run, with the members that the runner of the specification writes."""

    claimed: int  # the level that the surface says it has
    sections: tuple[SuiteSection, ...]

    @property
    def level(self) -> int:
        """Return the highest level whose checks, and those of all lower levels, have passed. Return 0 if there is
        none.
        """
        reached = 0
        for level in range(1, self.claimed + 1):
            of_level = [section for section in self.sections if section.level == level]
            if not of_level or any(section.result != "passed" for section in of_level):
                break
            reached = level
        return reached

    @property
    def is_held(self) -> bool:
        return self.claimed > 0 and self.level == self.claimed

    def counts(self) -> dict[str, int]:
        results: list[str] = [test.result for section in self.sections for test in section.tests]
        counts = {result: results.count(result) for result in ("passed", "warned", "failed", "skipped")}
        return {"total": len(results), **counts}

    def claim(self) -> str:
        verdict = "holds" if self.is_held else "does not hold"
        return f"{IMPLEMENTATION} {__version__}: the claim of MCP-AQL {SPEC_VERSION}, level {self.claimed}, {verdict}"

    def shown(self) -> dict[str, Any]:
        """Return the report in the format of the specification's own runner."""
        return {
            "implementation": IMPLEMENTATION,
            "version": __version__,
            "specVersion": SPEC_VERSION,
            "requestedLevel": self.claimed,
            "conformanceLevel": self.level,
            "summary": self.counts(),
            "categories": [
                {
                    "name": section.name,
                    "required": section.level <= self.claimed,
                    "result": section.result,
                    "tests": msgspec.to_builtins(section.tests),
                }
                for section in self.sections
            ],
        }


LEGACY: Final = "2025-11-25"
MODERN: Final = "2026-07-28"
PATIENCE_S: Final = 10.0
_META: Final = "io.modelcontextprotocol/"
_INFO: Final = {"name": "interlock-check", "version": "1"}


class LiveClient:
    """An AQL client inside the process of the node. `exchanges` lists every request with its answer, in order."""

    def __init__(self, node: Node, surface: Any, version: str) -> None:
        self._next = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._stamp: dict[str, Any] = {}
        self.version = version
        self.exchanges: list[tuple[dict[str, Any], dict[str, Any]]] = []
        if version == MODERN:
            self._stamp = {f"{_META}protocolVersion": MODERN, f"{_META}clientCapabilities": {}}
        front = node.fronts.lines.make(None, surface)
        self._feed: Callable[[bytes], None] = front.feed
        front.connect(cast(Any, self))

    async def greet(self) -> None:
        if self.version == LEGACY:
            params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": _INFO}
            await self.request("initialize", params)
            self._feed(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._next += 1
        waits: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[self._next] = waits
        meta = {"_meta": self._stamp} if self._stamp else {}
        request = {"jsonrpc": "2.0", "id": self._next, "method": method, "params": {**params, **meta}}
        self._feed(json.dumps(request).encode() + b"\n")
        answer = await asyncio.wait_for(waits, PATIENCE_S)
        self.exchanges.append((request, answer))
        return answer

    async def tools(self) -> dict[str, dict[str, Any]]:
        return {tool["name"]: tool for tool in (await self.request("tools/list", {}))["result"]["tools"]}

    async def send(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool and return the envelope. Raise ValueError if the answer does not have the form of the
        specification.
        """
        answer = await self.request("tools/call", {"name": tool, "arguments": arguments})
        if "result" not in answer:
            raise ValueError(f"{tool} answered with an error of JSON-RPC: {answer.get('error')}")
        result = answer["result"]
        first = result["content"][0]
        if first["type"] != "text":
            raise ValueError(f"content[0] is {first['type']!r} and not text")
        envelope = json.loads(first["text"])
        if result.get("structuredContent", envelope) != envelope:
            raise ValueError("structuredContent and the text of content[0] differ")
        check_answer(envelope, arguments)
        return cast(dict[str, Any], envelope)

    async def introspect(self, tool: str, **params: Any) -> dict[str, Any]:
        envelope = await self.send(tool, {"operation": "introspect", "params": params})
        if envelope["success"] is not True:
            raise ValueError(f"introspect is answered {envelope['error']['code']}")
        return cast(dict[str, Any], envelope["data"])

    # asyncio.WriteTransport, as far as a front needs one

    def write(self, data: bytes) -> None:
        message = json.loads(data)
        waits = self._waiting.pop(message.get("id"), None) if "method" not in message else None
        if waits is not None and not waits.done():
            waits.set_result(message)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.write(b"".join(pieces))

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        pass


SAMPLE: Final = "sample"
MISMATCH: Final = "VALIDATION_ENDPOINT_MISMATCH"
NOTE: Final = {"note_id": "n1"}
# Of the sample's operations: category, and whether it is read-only and destructive (6.1).
EXPECTED: Final[dict[str, tuple[str, bool, bool]]] = {
    f"{SAMPLE}__create_note": ("CREATE", False, False),
    f"{SAMPLE}__get_note": ("READ", True, False),
    f"{SAMPLE}__update_note": ("UPDATE", False, True),
    f"{SAMPLE}__delete_note": ("DELETE", False, True),
    f"{SAMPLE}__run_report": ("EXECUTE", False, True),
}
GET: Final = f"{SAMPLE}__get_note"
COUNT: Final = f"{SAMPLE}__get_count"
NOWHERE: Final = f"{SAMPLE}__get_nothing"
CATEGORIES: Final = frozenset(category for category, _, _ in EXPECTED.values())
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")


class Mismatch(Exception):
    """Exception raised when an answer differs from what the specification requires."""


class CheckedSurface(msgspec.Struct, frozen=True, kw_only=True):
    """A surface under test, with the client that is connected to it."""

    client: LiveClient
    mode: Mode
    tools: tuple[str, ...]  # the endpoints that the configuration asks for
    reads: str  # the endpoint that takes introspect
    batch_max: int

    @property
    def name(self) -> str:
        return f"{self.mode} mode, {self.client.version}"

    async def operations(self) -> list[dict[str, Any]]:
        listed = await self.client.introspect(self.reads, query="operations", prefix=f"{SAMPLE}__")
        return list(listed["operations"])

    async def details(self, name: str) -> dict[str, Any]:
        operation = (await self.client.introspect(self.reads, query="operations", name=name))["operation"]
        want(operation is not None, f"introspection does not know {name}")
        return dict(operation)

    async def do(self, name: str, params: dict[str, Any]) -> dict[str, Any]:
        tool = (await self.details(name))["mcpTool"]
        return await self.client.send(tool, {"operation": name, "params": params})


def want(holds: bool, message: str) -> None:
    if not holds:
        raise Mismatch(message)


def code_of(envelope: dict[str, Any]) -> str:
    return "success" if envelope["success"] else str(envelope["error"]["code"])


def want_code(envelope: dict[str, Any], code: str, what: str) -> None:
    want(code_of(envelope) == code, f"{what} is answered {code_of(envelope)} and not {code}")


# Level 1


async def check_mode(surface: CheckedSurface) -> None:
    listed = await surface.client.tools()
    want(tuple(listed) == surface.tools, f"listed are {', '.join(listed)}, and not {', '.join(surface.tools)}")
    for name, tool in listed.items():
        want("introspect" in tool["description"], f"the description of {name} does not mention introspect")
        want("operation" in tool["inputSchema"]["properties"], f"{name} has no property 'operation'")


async def check_introspect(surface: CheckedSurface) -> None:
    names = {operation["name"] for operation in await surface.operations()}
    for name in EXPECTED:
        want(name in names, f"{name} is not listed")
    ask = surface.client.introspect
    types = (await ask(surface.reads, query="types"))["types"]
    want(bool(types), "no types are listed")
    named = (await ask(surface.reads, query="types", name=types[0]["name"]))["type"]
    want(named is not None and named["name"] == types[0]["name"], f"the type {types[0]['name']} has no details")
    unknown = await ask(surface.reads, query="operations", name=NOWHERE)
    want(unknown["operation"] is None, "an unknown operation is not answered null")


async def check_formats(surface: CheckedSurface) -> None:
    """Check an answer of each format. The client compares every answer with the schemas of the specification."""
    answer = await surface.do(GET, NOTE)
    want_code(answer, "success", GET)
    want(answer["data"].get("title") == "A note", "the data of a success is not what the tool answered")
    lacking = await surface.do(GET, {})
    want_code(lacking, "VALIDATION_MISSING_PARAM", "a missing parameter")
    unknown = await surface.client.send(surface.reads, {"operation": NOWHERE, "params": {}})
    want_code(unknown, "NOT_FOUND_OPERATION", "an unknown operation")
    wrong = await surface.client.send(surface.reads, {"operation": "introspect", "params": {"query": "nothing"}})
    want_code(wrong, "INVALID_QUERY_TYPE", "an unknown query")


async def check_categories(surface: CheckedSurface) -> None:
    for name, (category, read_only, destructive) in EXPECTED.items():
        details = await surface.details(name)
        shown = details["semantic_category"]
        want(shown == category, f"{name} is {shown} and not {category}")
        permissions = {"readOnly": read_only, "destructive": destructive}
        want(details["permissions"] == permissions, f"{name} has the permissions {details['permissions']}")


async def check_family_and_category(surface: CheckedSurface) -> None:
    """Check the family and category of every operation of the first page, including the node's own."""
    listed = (await surface.client.introspect(surface.reads, query="operations"))["operations"]
    want(any(operation["name"] == "introspect" for operation in listed), "introspect is not listed")
    for operation in listed:
        name = operation["name"]
        want(operation.get("semantic_category") in CATEGORIES, f"{name} has no category")
        want(_NAME.fullmatch(operation.get("endpoint", "")) is not None, f"{name} has no family")
        details = await surface.details(name)
        for key in ("semantic_category", "endpoint"):
            listed_value, value = operation[key], details[key]
            want(value == listed_value, f"{name}: {key} is {listed_value} in the list and {value} in the details")
        want(details["mcpTool"] in surface.tools, f"{name} belongs to {details['mcpTool']}, which is not listed")


async def check_wrong_endpoints(surface: CheckedSurface) -> None:
    """Check that an operation sent to the wrong endpoint is refused.

    Single mode has only one endpoint, so there the check is that a tool of another mode does not exist.
    """
    before = (await surface.do(COUNT, {}))["data"]
    if surface.mode == "single":
        named = {"name": f"{surface.reads}_read", "arguments": {"operation": GET, "params": NOTE}}
        answer = await surface.client.request("tools/call", named)
        want("error" in answer or answer["result"].get("isError") is True, "a tool that is not listed answered")
    else:
        for name in EXPECTED:
            own = (await surface.details(name))["mcpTool"]
            single = own.rpartition("mcp_aql_")[0] + "mcp_aql"
            for tool in surface.tools:
                if tool not in (own, single):
                    refused = await surface.client.send(tool, {"operation": name, "params": {}})
                    want_code(refused, MISMATCH, f"{name} at {tool}")
    want((await surface.do(COUNT, {}))["data"] == before, "what was refused has reached the server")


# Level 2


async def check_field_selection(surface: CheckedSurface) -> None:
    answer = await surface.do(GET, {**NOTE, "fields": ["title"]})
    want_code(answer, "success", "fields")
    want(answer["data"] == {"title": "A note"}, f"with fields = title the data is {answer['data']}")
    shown = [parameter["name"] for parameter in (await surface.details(GET))["parameters"]]
    want("fields" in shown, f"{GET} does not show the parameter fields")


async def check_batch(surface: CheckedSurface) -> None:
    tool = (await surface.details(GET))["mcpTool"]
    items = [{"operation": GET, "params": NOTE}, {"operation": NOWHERE, "params": {}}][: surface.batch_max]
    answer = await surface.client.send(tool, {"operations": items})
    want("results" in answer, f"a batch is answered {code_of(answer)}")
    codes = [code_of(item["result"]) for item in answer["results"]]
    want(codes == ["success", "NOT_FOUND_OPERATION"][: len(items)], f"the operations of a batch are answered {codes}")
    failed = len(items) - 1
    want(answer["summary"] == {"total": len(items), "succeeded": 1, "failed": failed}, "the summary is wrong")


async def check_same_answers(surface: CheckedSurface, other: CheckedSurface) -> None:
    for name, params in ((GET, NOTE), (GET, {}), (f"{SAMPLE}__run_report", {"report": "r"})):
        first, two = [{**await each.do(name, params), "_meta": None} for each in (surface, other)]
        want(first == two, f"{name} is answered otherwise in {other.mode} mode")
    first, two = [{**await each.details(GET), "mcpTool": None} for each in (surface, other)]
    want(first == two, f"{GET} is described otherwise in {other.mode} mode")


ItemOf = Callable[[CheckedSurface], Awaitable[None]]
LEVEL_1: Final[tuple[tuple[str, ItemOf], ...]] = (
    ("endpoint mode", check_mode),
    ("introspect", check_introspect),
    ("standard formats", check_formats),
    ("categories", check_categories),
    ("family and category in introspection", check_family_and_category),
    ("rejection at wrong endpoints", check_wrong_endpoints),
)
LEVEL_2: Final[tuple[tuple[str, ItemOf], ...]] = (("field selection", check_field_selection), ("batch", check_batch))
BOTH: Final = "both modes"


async def run_suite(surfaces: tuple[CheckedSurface, ...], claimed: int) -> SuiteReport:
    """Run every conformance check on every surface. The checks of level 2 are skipped if only level 1 is claimed."""

    async def run(name: str, level: int, item: ItemOf) -> SuiteSection:
        tests = [await _tried(surface.name, item(surface)) for surface in surfaces]
        return SuiteSection(name=name, level=level, tests=tuple(tests))

    sections = [await run(name, 1, item) for name, item in LEVEL_1]
    if claimed < 2:
        message = "level 2 is not claimed"
        skipped = tuple(SuiteItem(name=surface.name, result="skipped", message=message) for surface in surfaces)
        names = (BOTH, *(name for name, _ in LEVEL_2))
        sections += [SuiteSection(name=name, level=2, tests=skipped) for name in names]
    else:
        pairs = [
            await _tried(surface.client.version, check_same_answers(surface, single))
            for surface in surfaces
            for single in surfaces
            if surface.mode != "single" == single.mode and surface.client.version == single.client.version
        ]
        sections.append(SuiteSection(name=BOTH, level=2, tests=tuple(pairs)))
        sections += [await run(name, 2, item) for name, item in LEVEL_2]
    return SuiteReport(claimed=claimed, sections=tuple(sections))


async def _tried(name: str, item: Awaitable[None]) -> SuiteItem:
    try:
        await item
    except Mismatch as mismatch:
        return SuiteItem(name=name, result="failed", message=str(mismatch))
    except TimeoutError:
        return SuiteItem(name=name, result="failed", message="no answer in time")
    except (LookupError, TypeError, AttributeError, ValueError) as error:  # an answer of another shape
        reason = (str(error).splitlines() or [""])[0][:300]
        return SuiteItem(name=name, result="failed", message=f"the answer has not the form it should: {reason}")
    return SuiteItem(name=name, result="passed")
