"""Calls of contracts, from a client to a real server and back: names, input, results and errors."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.drivers.contract_node import ANY, ContractNode, LendingProvider, binding, contract, contract_node, driver
from tests.support.local_node import LegacyClient
from tests.support.memory_subserver import Leaf

from interlock.ax.parts import AxParts
from interlock.cli.explain import codes_for
from interlock.core.calls.caller import Principal
from interlock.drivers.driver_state import DriverState
from interlock.drivers.parts import DriverParts
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.links.pipes import StdioPipe

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = {
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
    "additionalProperties": False,
}
PLAY = {
    "type": "object",
    "properties": {"act": ANY, "acts": {"type": "array", "items": ANY}, "label": {"type": "string"}},
}
GOT = {"type": "object", "properties": {"got": ANY}, "required": ["got"]}
BOTH = pytest.mark.parametrize("segment", ["new", "old"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ContractNode]:
    async with contract_node(tmp_path_factory.mktemp("contracts"), {"new": "modern", "old": "legacy"}) as here:
        yield here


def error_of(result: Any) -> tuple[str, str]:
    assert result["isError"] is True
    said = result["_meta"]["dev.interlock/error"]
    assert said.keys() == {"code", "retryable", "ref"}
    text = result["content"][0]["text"]
    assert text.startswith(f"{said['code']}: ")
    return said["code"], text.partition(": ")[2]


async def listed(here: ContractNode) -> dict[str, Any]:
    tools = (await here.ask("tools/list", {}).result())["tools"]
    return {each["_meta"].get("x-mcpax-name", each["name"]): each for each in tools}


async def playing(here: ContractNode, segment: str, **changed: Any) -> LendingProvider:
    made = contract("test.play", **{"inputs": PLAY, **changed.pop("contract", {})})
    return await here.serve(segment, made, "play", **changed)


@pytest.mark.req("AIP-tools-12")
@BOTH
async def test_a_call_reaches_the_server_by_its_tools_name_with_exactly_the_mapped_arguments(
    here: ContractNode, segment: str
) -> None:
    read = contract("fs.read", inputs=PATH, name="Read", description="Reads a file.")
    lending = await here.serve(segment, read, "keep", mcp={"argument_mapping": {"path": "file"}})
    result = await here.call("fs__read", {"path": "/a"}).result()
    assert result["structuredContent"] == {"got": {"file": "/a"}}
    (asked,) = [each for each in await here.seen(segment) if each["name"] == "keep"][-1:]
    assert asked["arguments"] == {"file": "/a"}
    assert lending.lent == 0


@pytest.mark.req("AIP-tools-12", "AIP-30.resolve-6")
@pytest.mark.parametrize(
    ("arguments", "field"),
    [({}, "/path"), ({"path": 7}, "/path"), ({"path": "/a", "also": 1}, "also"), ({"path": None}, "/path")],
)
async def test_input_that_fails_the_contract_ends_as_input_invalid_with_the_field_and_nothing_is_sent(
    here: ContractNode, arguments: Any, field: str
) -> None:
    made = contract("fs.read", inputs=PATH)
    await here.serve("new", made, "keep")
    before = len(await here.seen("new"))
    code, message = error_of(await here.call("fs__read", arguments).result())
    assert code == "input_invalid"
    assert field in message
    assert len(await here.seen("new")) == before + 1  # which is the second look itself
    await here.offer([made], *[])
    assert "fs.read" not in await listed(here)


@pytest.mark.req("AIP-30.resolve-6")
async def test_input_is_judged_before_a_driver_is_looked_for(here: ContractNode) -> None:
    lending = await here.serve("new", contract("fs.read", inputs=PATH), "keep")
    lending.state, lending.reason = DriverState.UNAVAILABLE, "install_failed"
    assert error_of(await here.call("fs__read", {}).result())[0] == "input_invalid"
    assert error_of(await here.call("fs__read", {"path": "/a"}).result())[0] == "no_route"


async def test_arguments_that_are_no_json_object_or_cannot_be_read_are_refused(here: ContractNode) -> None:
    await here.serve("new", contract("fs.read", inputs=PATH), "keep")
    for arguments in ([], "x", 7):
        asked = here.ask("tools/call", {"name": "fs__read", "arguments": arguments})
        assert (await asked.error())["code"] == -32602
    deep: Any = "x"
    for _ in range(400):
        deep = [deep]
    assert error_of(await here.call("fs__read", {"path": deep}).result())[0] == "input_invalid"


@pytest.mark.req("AIP-tools-13")
@BOTH
async def test_a_servers_isError_becomes_upstream_error_with_its_text_and_its_blocks(
    here: ContractNode, segment: str
) -> None:
    await playing(here, segment, contract={"outputs": GOT}, mcp={"result_extract": "$.got"})
    image = {"type": "image", "data": "AA==", "mimeType": "a/b"}
    denied = {"type": "text", "text": "Access denied - path outside", "annotations": {"priority": 1}}
    failed = {"content": [image, denied, image], "isError": True, "structuredContent": {"got": {}}}
    result = await here.call("test__play", {"act": {"result": failed}}).result()
    assert error_of(result) == ("upstream_error", "Access denied - path outside")
    said = {"type": "text", "text": "upstream_error: Access denied - path outside", "annotations": {"priority": 1}}
    assert result["content"] == [said, image, image]  # the code before the first text, and nothing twice
    assert "structuredContent" not in result
    empty = await here.call("test__play", {"act": {"result": {"content": [], "isError": True}}}).result()
    assert error_of(empty) == ("upstream_error", "unknown")


@BOTH
async def test_a_result_that_is_too_large_fails_by_name_and_is_not_tried_again(
    here: ContractNode, segment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lending = await here.serve(segment, contract("fs.read", inputs=PATH, idempotent=True), "keep")
    pipe = lending.link.pipe
    assert isinstance(pipe, StdioPipe) and pipe.child is not None
    before = len(await here.seen(segment))
    with monkeypatch.context() as patched:
        patched.setattr(pipe.child._splitter, "_max_bytes", 300)
        result = await here.call("fs__read", {"path": "x" * 300}).result()
    code, message = error_of(result)
    assert (code, "300 bytes" in message) == ("result_too_large", True)
    assert result["_meta"]["dev.interlock/error"]["retryable"] is False
    assert len(await here.seen(segment)) == before + 2  # the call, and the second look itself
    assert lending.lent == 0


@pytest.mark.req("AIP-tools-13")
@BOTH
async def test_a_json_rpc_error_becomes_upstream_error_and_its_code_stays_with_the_operator(
    here: ContractNode, segment: str, caplog: pytest.LogCaptureFixture
) -> None:
    await playing(here, segment)
    act = {"error": {"code": -32011, "message": "out of paper"}}
    result = await here.call("test__play", {"act": act}).result()
    assert error_of(result) == ("upstream_error", "out of paper")
    ref = result["_meta"]["dev.interlock/error"]["ref"]
    (noted,) = [each for each in caplog.messages if ref in each]
    assert "-32011" in noted
    assert "-32011" not in json.dumps(result)


@pytest.mark.req("AIP-tools-14")
@BOTH
async def test_a_value_that_fails_outputs_is_not_returned(here: ContractNode, segment: str) -> None:
    outputs = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    await playing(here, segment, contract={"outputs": outputs})
    good = {"content": [], "structuredContent": {"n": 7}}
    assert (await here.call("test__play", {"act": {"result": good}}).result())["structuredContent"] == {"n": 7}
    bad = {"content": [{"type": "text", "text": "SECRET"}], "structuredContent": {"n": "SECRET"}}
    result = await here.call("test__play", {"act": {"result": bad}}).result()
    code, message = error_of(result)
    assert (code, "/n" in message) == ("output_parse_failed", True)
    assert "SECRET" not in json.dumps(result)


@pytest.mark.req("AIP-tools-14")
async def test_dropped_outputs_are_gone_before_the_check(here: ContractNode) -> None:
    outputs = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "note": {"type": "string"}},
        "required": ["n"],
    }
    await playing(here, "new", contract={"outputs": outputs}, schema_narrowing={"drop_outputs": ["note"]})
    given = {"content": [], "structuredContent": {"n": 1, "note": 7}}
    assert (await here.call("test__play", {"act": {"result": given}}).result())["structuredContent"] == {"n": 1}


@pytest.mark.req("AIP-tools-15")
async def test_two_drivers_of_one_contract_are_one_tool_and_nothing_a_server_says_of_it_is_listed(
    here: ContractNode,
) -> None:
    made = contract("fs-read", inputs=PATH, description="Reads one file.")
    lending = [
        LendingProvider(here.node, segment, driver(f"{segment}-mcp", binding("fs-read", "keep")), [made])
        for segment in ("new", "old")
    ]
    named = contract("fs-list", name="List", metadata={"interlock": {"name": "filesystem.list_files"}})
    created = contract("image.create")
    others = driver("other-mcp", binding("fs-list", "keep"), binding("image.create", "keep"))
    await here.offer([made, named, created], *lending, LendingProvider(here.node, "new", others, [named, created]))
    tools = await listed(here)
    ours = {name: one for name, one in tools.items() if "dev.interlock/contract" in one["_meta"]}
    assert sorted(ours) == ["filesystem.list_files", "image.create", "tools.fs-read"]
    assert ours["tools.fs-read"]["description"] == "Reads one file."
    assert "POISON" not in json.dumps(list(ours.values()))


async def test_a_contract_that_left_is_gone_from_the_list_and_the_others_keep_their_routes(
    here: ContractNode,
) -> None:
    one, two = contract("a.one", inputs=PATH), contract("a.two")
    both = LendingProvider(
        here.node, "new", driver("d-mcp", binding("a.one", "keep"), binding("a.two", "keep")), [one, two]
    )
    await here.offer([one, two], both)
    before = here.node.calls.catalog.namespace.view(here.node.fronts.modern.caller(*_local()).key).find_tool("a.one")
    await here.offer([one], LendingProvider(here.node, "new", driver("d-mcp", binding("a.one", "keep")), [one]))
    after = here.node.calls.catalog.namespace.view(here.node.fronts.modern.caller(*_local()).key).find_tool("a.one")
    assert before is after
    assert (await here.call("a__two").error())["data"]["reason"] == "tool_not_found"
    assert (await here.call("a__one", {"path": "/a"}).result())["structuredContent"]["got"] == {"path": "/a"}
    await here.offer([])
    assert (await here.call("a__one").error())["data"]["reason"] == "tool_not_found"


def _local() -> tuple[Any, ...]:
    return Principal("local"), "http", None, "auto"


async def test_a_contract_in_a_segment_of_a_server_is_reported_and_not_offered(here: ContractNode) -> None:
    made = contract("new.thing")
    await here.serve("old", made, "keep")
    assert "new.thing" not in await listed(here)
    assert [each.code for each in here.node.get(DriverParts).contracts.get().problems] == ["name_collision"]


@pytest.mark.req("AIP-tools-15")
@BOTH
async def test_a_binding_without_mapping_forwards_the_servers_result(here: ContractNode, segment: str) -> None:
    await playing(here, segment)
    given = {
        "content": [{"type": "text", "text": "t", "x-odd": 1.50}],
        "structuredContent": {"z": 1, "a": 2},
        "x-more": {},
    }
    result = await here.call("test__play", {"act": {"result": given}}).result()
    assert {key: value for key, value in result.items() if key != "resultType"} == given
    assert list(result["structuredContent"]) == ["z", "a"]


@BOTH
async def test_text_without_structure_keeps_its_blocks_and_becomes_the_contracts_value(
    here: ContractNode, segment: str
) -> None:
    said = {"type": "object", "properties": {"content": {"type": "string"}}, "required": ["content"]}
    inputs = {"type": "object", "properties": {"say": {"type": "string"}}}
    await here.serve(segment, contract("test.words", inputs=inputs, outputs=said), "words")
    result = await here.call("test__words", {"say": "hello"}).result()
    assert result["content"] == [{"type": "text", "text": "hello"}]
    assert result["structuredContent"] == {"content": "hello"}


async def test_an_empty_result_is_still_a_result(here: ContractNode) -> None:
    await playing(here, "new")
    result = await here.call("test__play", {"act": {"result": {}}}).result()
    assert result["structuredContent"] == {"content": ""}


async def test_an_extracted_value_is_given_as_structure_and_as_text(here: ContractNode) -> None:
    inputs = {"type": "object", "properties": {"path": {"type": "string"}}}
    made = contract("test.taken", inputs=inputs, outputs={"type": "string"})
    await here.serve("new", made, "keep", mcp={"result_extract": "$.got.path"})
    result = await here.call("test__taken", {"path": "deep"}).result()
    assert result["structuredContent"] == "deep"
    assert result["content"] == [{"type": "text", "text": "deep"}]


@pytest.mark.req("AIP-tools-15")
@BOTH
async def test_outputs_that_are_no_object_are_not_shown_to_handshake_clients(here: ContractNode, segment: str) -> None:
    made = contract("test.taken", inputs=PATH, outputs={"type": "string"})
    await here.serve(segment, made, "keep", mcp={"result_extract": "$.got.path"})
    client = LegacyClient(here.node)
    tools = (await client.ask("tools/list", {}).result())["tools"]
    (tool,) = [each for each in tools if each["name"] == "test__taken"]
    assert "outputSchema" not in tool
    result = await client.call("test__taken", {"path": "deep"}).result()
    assert result == {"content": [{"type": "text", "text": "deep"}], "isError": False}
    assert (await listed(here))["test.taken"]["outputSchema"] == {"type": "string"}
    wrong = await client.call("test__taken", {}).result()
    assert error_of(wrong)[0] == "input_invalid"
    assert "resultType" not in wrong


@pytest.mark.req("AIP-30.errors-1", "AIP-transport-12")
async def test_every_failure_of_a_driver_but_an_unreachable_server_is_an_isError_result_with_a_code_that_is_explained(
    here: ContractNode,
) -> None:
    lending = await playing(here, "new")
    for code in ("auth_required", "auth_failed", "rate_limited", "contract_mismatch", "input_unsupported", "internal"):
        for retryable in (False, True):
            lending.refusal = DriverRefusal(code=code, message="because", retryable=retryable)
            result = await here.call("test__play", {"act": {}}).result()
            assert error_of(result) == (code, "because")
            assert codes_for(code), code
            assert result["_meta"]["dev.interlock/error"]["retryable"] is retryable
    lending.refusal = DriverRefusal(code="tool_unavailable", message="because", retryable=True)
    error = await here.call("test__play", {"act": {}}).error()
    assert (error["code"], error["message"], error["data"]["outcome"]) == (32002, "tool_degraded", "not_sent")
    assert lending.lent == 0


async def test_a_driver_that_cannot_be_reached_is_a_degraded_tool(here: ContractNode) -> None:
    lending = await playing(here, "new")
    lending.refusal = DriverRefusal(
        code="tool_unavailable", message="/usr/bin/secret-path did not start", retryable=True
    )
    error = await here.call("test__play", {"act": {}}).error()
    assert (error["code"], error["data"]["reason"], error["data"]["outcome"]) == (
        32002,
        "subserver_unreachable",
        "not_sent",
    )
    assert "secret-path" not in json.dumps(error)
    lending.refusal = None
    assert (await here.call("test__play").result())["structuredContent"]["done"] == ""


async def test_a_sleeping_driver_is_woken_and_a_call_waits_for_it(here: ContractNode) -> None:
    lending = await playing(here, "new")
    lending.asleep = True
    assert (await here.call("test__play", {"label": "woken"}).result())["structuredContent"]["done"] == "woken"
    assert (lending.woken, lending.lent) == (1, 0)


async def test_segments_of_contracts_cannot_be_registered_and_contracts_take_no_registered_segment(
    here: ContractNode,
) -> None:
    await here.serve("new", contract("image.create"), "keep")
    refused = await Leaf(here.node.get(AxParts).registrar, "image").register()
    assert refused["error"]["message"] == "namespace_conflict"
    leaf = Leaf(here.node.get(AxParts).registrar, "sound")
    assert "result" in await leaf.register()
    lending = await here.serve("new", contract("sound.create"), "keep")
    assert lending.unlisted == (
        "the name sound belongs to another server, and the tools below it are that server's;"
        " give the driver another id, or rename that server"
    )
    assert [each.code for each in here.node.get(DriverParts).contracts.get().problems] == ["name_collision"]
    assert "sound.create" not in await listed(here)


async def test_a_segment_that_the_configuration_gives_to_a_server_is_the_contracts_no_longer(
    here: ContractNode,
) -> None:
    await here.serve("new", contract("image.create"), "keep")
    here.node.calls.keepers["image"] = here.node.calls.keepers["old"]
    await here.node.get(DriverParts).contracts.get().retake()
    assert "image.create" not in await listed(here)
    del here.node.calls.keepers["image"]
    await here.node.get(DriverParts).contracts.get().retake()
    assert (await here.call("image__create").result())["structuredContent"] == {"got": {}}


async def test_an_operator_learns_who_would_serve_a_call_and_what_checks_it_passes(here: ContractNode) -> None:
    lending = await here.serve("new", contract("fs.read", inputs=PATH, timeout_ms=1500, approval="always"), "keep")

    def told() -> dict[int, tuple[str, str]]:
        shown = here.node.operations.tools.get("fs.read")
        return {each.number: (each.verdict, each.reason) for each in shown.checks}

    assert told()[7][0] == "later"
    assert told()[7][1].startswith("checked against the contract")
    assert told()[8] == ("pass", "only would serve it (only)")
    assert told()[10][1].startswith("its contract asks for every call")
    assert told()[12][1] == "timeout 1.5 s"
    lending.state, lending.reason = DriverState.UNAVAILABLE, "it does not start"
    assert told()[8] == ("refuse", "no_route; only: it does not start")
    served = here.node.get(DriverParts).contracts.get().find_contract("fs.read")
    assert served is not None
    assert [each.reason for each in served.rejected] == ["it does not start"]
    assert here.node.get(DriverParts).contracts.get().find_contract("nothing") is None
