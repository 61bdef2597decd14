"""What a leaf's functions become as MCP tools, seen from an aggregator that is none of ours."""

import asyncio
import contextlib
import enum
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from jsonschema import Draft202012Validator
from tests.ax.raw_aggregator import MODERN_META, PATIENCE_S, Session, aggregator

from interlock.sdk.subserver import Context, Subserver, ToolFailed, ToolInvalid, ToolResult
from interlock.sdk.subserver.mcp_server import CALLS_MAX


class Plant(msgspec.Struct):
    name: str
    height_cm: float = 0.0


class Valve(enum.Enum):
    OPEN = "open"
    SHUT = "shut"


@dataclass
class Reading:
    bench: int
    celsius: float


@pytest.fixture
def leaf(tmp_path: Path) -> Subserver:
    return Subserver("greenhouse", ["ws://127.0.0.1:1/ax"], state=tmp_path, heartbeat_interval_ms=0)


@contextlib.asynccontextmanager
async def serving(leaf: Subserver) -> AsyncIterator[Session]:
    async with aggregator() as parent:
        leaf._parents = [type(leaf._parents[0])(url=parent.url)]
        task = asyncio.create_task(leaf.serve())
        try:
            yield await parent.joined()
        finally:
            leaf.stop()
            await asyncio.wait_for(task, PATIENCE_S)


async def listed(session: Session) -> dict[str, dict[str, Any]]:
    answer = await session.modern("tools/list")
    return {tool["name"]: tool for tool in answer["result"]["tools"]}


def text(result: dict[str, Any]) -> str:
    (block,) = result["content"]
    assert block["type"] == "text"
    block_text = block["text"]
    assert isinstance(block_text, str)
    return block_text


async def test_a_signature_becomes_a_schema_and_a_docstring_a_description(leaf: Subserver) -> None:
    @leaf.tool(mutable=False, latency_class="fast", title="Water")
    def water(
        bench: Annotated[int, msgspec.Meta(ge=1, le=40, description="from the door")],
        plants: list[Plant],
        valve: Valve = Valve.OPEN,
        mode: Literal["drip", "mist"] = "drip",
        tags: list[str] = [],  # noqa: B006
        note: str | None = None,
    ) -> str:
        """Water a bench.

        Slowly.
        """
        return "ok"

    async with serving(leaf) as session:
        tool = (await listed(session))["water"]
    assert tool["title"] == "Water"
    assert tool["description"] == "Water a bench.\n\nSlowly."
    schema = tool["inputSchema"]
    Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert schema["required"] == ["bench", "plants"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["bench"]["description"] == "from the door"
    judge = Draft202012Validator(schema)
    assert judge.is_valid({"bench": 1, "plants": [{"name": "fern"}], "valve": "shut", "mode": "mist", "note": None})
    assert not judge.is_valid({"bench": 41, "plants": []})
    assert tool["annotations"]["readOnlyHint"] is True
    capability = tool["_meta"]["x-mcpax-capability"]
    assert (capability["mutable"], capability["latency_class"], capability["auth_scope"]) == (False, "fast", "read")
    assert len(capability) == 10


async def test_a_tool_without_any_statement_has_the_gravest_class(leaf: Subserver) -> None:
    @leaf.tool
    def burn() -> None: ...

    async with serving(leaf) as session:
        tool = (await listed(session))["burn"]
    capability = tool["_meta"]["x-mcpax-capability"]
    assert (capability["mutable"], capability["reversible"], capability["auth_scope"]) == (True, False, "write")
    assert tool["annotations"] == {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False}


async def test_arguments_arrive_as_the_types_they_are_annotated_with(leaf: Subserver) -> None:
    seen: list[Any] = []

    @leaf.tool(mutable=False)
    def water(plants: list[Plant], valve: Valve = Valve.OPEN, tags: list[str] = []) -> None:  # noqa: B006
        seen.extend([plants, valve, tags])
        tags.append("changed")

    async with serving(leaf) as session:
        await session.call("water", plants=[{"name": "fern", "height_cm": 3}], valve="shut")
        await session.call("water", plants=[])
    assert seen[:3] == [[Plant(name="fern", height_cm=3.0)], Valve.SHUT, ["changed"]]
    assert seen[3:5] == [[], Valve.OPEN]
    assert seen[5] == ["changed"]  # its own list, not the one the first call changed
    assert seen[5] is not seen[2]


@pytest.mark.parametrize(
    "arguments",
    [{}, {"bench": "1"}, {"bench": 1.5}, {"bench": None}, {"bench": 1, "more": 2}, [], "text", None, 7],
)
async def test_arguments_that_do_not_fit_are_an_error_result_and_reach_no_function(
    leaf: Subserver, arguments: Any
) -> None:
    called = False

    @leaf.tool(mutable=False)
    def temperature(bench: int) -> float:
        nonlocal called
        called = True
        return 1.0

    async with serving(leaf) as session:
        answer = await session.modern("tools/call", name="temperature", arguments=arguments)
        assert answer["result"]["isError"] is True
        assert "do not fit" in text(answer["result"])
    assert not called


@pytest.mark.parametrize(
    ("value", "said", "structured"),
    [
        ("words", "words", None),
        (21.5, "21.5", None),
        ([1, 2], "[1,2]", None),
        ({"a": 1}, '{"a":1}', {"a": 1}),
        (Plant(name="fern"), '{"name":"fern","height_cm":0.0}', {"name": "fern", "height_cm": 0.0}),
        (Reading(bench=1, celsius=2.5), '{"bench":1,"celsius":2.5}', {"bench": 1, "celsius": 2.5}),
        (True, "true", None),
    ],
)
async def test_the_return_value_of_a_tool_becomes_text_and_structured_content(
    leaf: Subserver, value: Any, said: str, structured: Any
) -> None:
    @leaf.tool(mutable=False)
    def give() -> Any:
        return value

    async with serving(leaf) as session:
        result = await session.call("give")
    assert text(result) == said
    assert result.get("structuredContent") == structured
    assert result["isError"] is False
    assert result["resultType"] == "complete"


async def test_a_tool_may_write_its_result_itself_or_say_nothing(leaf: Subserver) -> None:
    @leaf.tool(mutable=False)
    def photo() -> ToolResult:
        return ToolResult(content=[{"type": "image", "data": "AA==", "mimeType": "image/png"}], structured=[1])

    @leaf.tool(mutable=False)
    def nothing() -> None: ...

    async with serving(leaf) as session:
        result = await session.call("photo")
        assert result["content"][0]["mimeType"] == "image/png"
        assert result["structuredContent"] == [1]
        assert (await session.call("nothing"))["content"] == []


async def test_a_failure_is_reported_in_its_words_and_any_other_error_only_by_reference(
    leaf: Subserver, caplog: pytest.LogCaptureFixture
) -> None:
    @leaf.tool(mutable=False)
    def closed() -> None:
        raise ToolFailed("the door is closed; open it first")

    @leaf.tool(mutable=False)
    async def broken() -> None:
        raise OSError("/dev/secret is away")

    @leaf.tool(mutable=False)
    def leaving() -> None:
        raise SystemExit(3)

    @leaf.tool(mutable=False)
    def odd() -> Any:
        return object()

    async with serving(leaf) as session:
        assert text(await session.call("closed")) == "the door is closed; open it first"
        for name in ("broken", "leaving", "odd"):
            result = await session.call(name)
            assert result["isError"] is True
            ref = text(result).rpartition("ref ")[2].rstrip(")")
            assert "secret" not in text(result)
            assert ref in caplog.text
    assert "/dev/secret is away" in caplog.text


async def test_an_unknown_tool_is_not_found(leaf: Subserver) -> None:
    async with serving(leaf) as session:
        answer = await session.modern("tools/call", name="nothing", arguments={})
        assert answer["error"]["code"] == -32601


async def test_progress_reaches_its_requester_from_both_kinds_of_function(leaf: Subserver) -> None:
    @leaf.tool(mutable=False)
    def plain(context: Context, steps: int) -> str:
        for step in range(steps):
            context.progress(step + 1, steps, "watering")
        return "done"

    @leaf.tool(mutable=False)
    async def quick(context: Context) -> None:
        context.progress(0.5)

    async with serving(leaf) as session:
        tool = (await listed(session))["plain"]
        assert list(tool["inputSchema"]["properties"]) == ["steps"]
        meta = {"progressToken": "t1"}
        await session.modern("tools/call", name="plain", arguments={"steps": 3}, _meta=meta)
        await session.modern("tools/call", name="quick", arguments={}, _meta={"progressToken": 7})
        await session.modern("tools/call", name="quick", arguments={})
        hears = [hear["params"] for hear in await session.hears("notifications/progress", 4)]
    assert hears[:3] == [{"progressToken": "t1", "progress": n, "total": 3, "message": "watering"} for n in (1, 2, 3)]
    assert hears[3:] == [{"progressToken": 7, "progress": 0.5}]


async def test_a_cancelled_call_is_reported_to_its_function_and_never_answered(leaf: Subserver) -> None:
    started = asyncio.Event()
    ended: list[str] = []
    finished = threading.Event()

    @leaf.tool(mutable=False)
    async def wait() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("wait")
            raise

    @leaf.tool(mutable=False)
    def poll(context: Context) -> None:
        loop.call_soon_threadsafe(started.set)
        while not context.cancelled:
            finished.wait(0.01)
        loop.call_soon_threadsafe(polled.set)

    loop = asyncio.get_running_loop()
    polled = asyncio.Event()
    async with serving(leaf) as session:
        for name in ("wait", "poll"):
            started.clear()
            params = {"name": name, "arguments": {}, "_meta": MODERN_META}
            await session.say({"jsonrpc": "2.0", "id": name, "method": "tools/call", "params": params})
            await asyncio.wait_for(started.wait(), PATIENCE_S)
            cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": name}}
            await session.say(cancel)
        await asyncio.wait_for(polled.wait(), PATIENCE_S)
        await session.modern("tools/list")
        assert ended == ["wait"]
        assert [envelope for envelope in session.heard if envelope.get("id") in ("wait", "poll")] == []


async def test_more_calls_than_it_can_hold_are_refused_and_the_others_are_answered(leaf: Subserver) -> None:
    release = asyncio.Event()

    @leaf.tool(mutable=False)
    async def wait() -> str:
        await release.wait()
        return "done"

    async with serving(leaf) as session:
        calls = [asyncio.create_task(session.call("wait")) for _ in range(CALLS_MAX)]
        await asyncio.sleep(0)  # the calls are written in the order they were made
        answer = await session.ask("tools/call", {"name": "wait", "arguments": {}}, id="one more")
        assert answer["error"]["code"] == -32002
        assert answer["error"]["data"]["reason"] == "link_busy"
        release.set()
        assert {text(await call) for call in calls} == {"done"}


async def test_an_id_in_use_is_refused(leaf: Subserver) -> None:
    release = asyncio.Event()

    @leaf.tool(mutable=False)
    async def wait() -> None:
        await release.wait()

    async with serving(leaf) as session:
        request = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "wait"}}
        await session.say(request)
        assert "in use" in (await session.ask("tools/list", id=5))["error"]["message"]
        release.set()


async def test_both_eras_are_served_on_one_link(leaf: Subserver) -> None:
    @leaf.tool(mutable=False)
    def hello() -> str:
        return "hello"

    async with serving(leaf) as session:
        result = (await session.modern("server/discover"))["result"]
        assert result["supportedVersions"] == ["2026-07-28"]
        assert result["capabilities"] == {"tools": {"listChanged": True}}
        assert (result["resultType"], result["ttlMs"], result["cacheScope"]) == ("complete", 0, "private")
        assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "greenhouse"
        old = (await session.ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}}))["result"]
        assert (old["protocolVersion"], old["serverInfo"]["name"]) == ("2025-06-18", "greenhouse")
        assert (await session.ask("ping"))["result"] == {}
        legacy = (await session.ask("tools/call", {"name": "hello", "arguments": {}}))["result"]
        assert (text(legacy), "resultType" in legacy) == ("hello", False)
        assert (await session.modern("ping"))["error"]["code"] == -32601
        wrong = {"_meta": {**MODERN_META, "io.modelcontextprotocol/protocolVersion": "2030-01-01"}}
        assert (await session.ask("tools/list", wrong))["error"]["code"] == -32022


@pytest.mark.parametrize("method", ["mcpax/walk", "mcpax/register", "resources/list", "prompts/list", "x"])
async def test_unknown_methods_are_answered_as_unknown(leaf: Subserver, method: str) -> None:
    async with serving(leaf) as session:
        assert (await session.ask(method))["error"]["code"] == -32601


@pytest.mark.req("AX-7.2-4")
async def test_a_route_that_does_not_lead_here_reaches_no_tool(leaf: Subserver) -> None:
    called = 0

    @leaf.tool(mutable=False)
    def temperature() -> str:
        nonlocal called
        called += 1
        return "warm"

    async def routed(route: Any, cursor: Any, name: str = "temperature") -> dict[str, Any]:
        meta = {"x-mcpax-route": route, "x-mcpax-cursor": cursor}
        return await session.modern("tools/call", name=name, arguments={}, _meta=meta)

    async with serving(leaf) as session:
        for name in ("temperature", "infra.greenhouse.temperature"):
            right = await routed(["infra", "greenhouse", "temperature"], 1, name)
            assert text(right["result"]) == "warm"
        for name in ("greenhouse.temperature", "humidity"):
            assert (await routed(["infra", "greenhouse", "temperature"], 1, name))["error"]["code"] == 32118
        for route, cursor in [
            (["infra", "cellar", "temperature"], 1),
            (["infra", "greenhouse", "humidity"], 1),
            (["infra", "greenhouse", "shed", "temperature"], 1),
            (["infra", "greenhouse", "temperature"], 0),
            (["infra", "greenhouse", "temperature"], 7),
            ("greenhouse", 0),
            (["infra", 7, "temperature"], 1),
        ]:
            assert (await routed(route, cursor))["error"]["code"] == 32118
    assert called == 2


async def test_notifications_go_up_from_any_thread_with_their_ids_untouched(leaf: Subserver) -> None:
    @leaf.tool(mutable=False)
    def shout() -> None:
        params = {"level": 3, "_meta": {"x-mcpax-event-id": "E", "x-mcpax-causal-parent": None}}
        leaf.notify("notifications/greenhouse/dry", params)

    leaf.notify("notifications/greenhouse/early")  # nobody to tell
    async with serving(leaf) as session:
        await session.call("shout")
        leaf.notify("notifications/greenhouse/wet")
        (dry,) = await session.hears("notifications/greenhouse/dry")
        await session.hears("notifications/greenhouse/wet")
        assert dry["params"] == {"level": 3, "_meta": {"x-mcpax-event-id": "E", "x-mcpax-causal-parent": None}}
        assert session.all("notifications/greenhouse/early") == []
    with pytest.raises(ValueError, match="notifications/"):
        leaf.notify("tools/call")


async def test_a_changed_offer_is_reported_in_the_way_the_parent_listens(leaf: Subserver) -> None:
    async with serving(leaf) as session:

        @leaf.tool(mutable=False)
        def late() -> None: ...

        (plain,) = await session.hears("notifications/tools/list_changed")
        assert "params" not in plain
        assert list(await listed(session)) == ["late"]
        params = {"notifications": {"toolsListChanged": True}, "_meta": MODERN_META}
        await session.say({"jsonrpc": "2.0", "id": 9, "method": "subscriptions/listen", "params": params})
        (heard,) = await session.hears("notifications/subscriptions/acknowledged")
        assert heard["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": 9}
        leaf.withdraw("late")
        tagged = (await session.hears("notifications/tools/list_changed", 2))[1]
        assert tagged["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": 9}
        assert await listed(session) == {}


async def test_a_result_too_large_to_send_is_an_error_result(tmp_path: Path) -> None:
    leaf = Subserver("greenhouse", ["ws://127.0.0.1:1/ax"], state=tmp_path, max_message_bytes=100_000)

    @leaf.tool(mutable=False)
    def flood(size: int) -> str:
        return "x" * size

    async with serving(leaf) as session:
        assert (await session.call("flood", size=40_000))["isError"] is False
        assert "larger" in text(await session.call("flood", size=200_000))


def test_a_function_that_cannot_be_a_tool_is_refused_with_what_to_do(leaf: Subserver) -> None:
    def getTemperature() -> None: ...
    def many(*benches: int) -> None: ...
    def named(**benches: int) -> None: ...
    def typed(bench: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
    def odd(bench: threading.Thread) -> None: ...
    def fine() -> None: ...

    for function, words in [
        (getTemperature, 'name="get_temperature"'),
        (many, "have names"),
        (named, "have names"),
        (typed, "Nowhere"),
        (odd, "JSON Schema"),
    ]:
        with pytest.raises(ToolInvalid, match=words):
            leaf.tool(function)
    with pytest.raises(ToolInvalid, match="dotted"):
        leaf.tool(name="dotted.name")(fine)
    with pytest.raises(ToolInvalid, match="latency_class must be one of"):
        leaf.tool(latency_class="soon")(fine)
    leaf.tool(fine)
    with pytest.raises(ToolInvalid, match="already"):
        leaf.tool(fine)
    with pytest.raises(ToolInvalid, match="no tool"):
        leaf.withdraw("nothing")
