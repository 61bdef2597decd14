"""What a call of a contract leaves behind in the audit log, and what of its caller travels with it."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.drivers.contract_node import ANY, ContractNode, LendingProvider, binding, contract, contract_node, driver

from interlock.drivers.driver_state import DriverState
from interlock.drivers.protocol.problems import DriverRefusal

pytestmark = pytest.mark.asyncio(loop_scope="module")

MARK = "MARKER-7f1c"
HEAD = {"at", "who", "via", "method", "tool", "outcome", "user_id", "workspace_id", "tool_id"}
RESOLVED = HEAD | {
    "tool_version",
    "candidates_total",
    "candidates_passed_phase_2_capability",
    "candidates_passed_phase_3_policy",
    "pinned_provider",
    "rejected",
    "selected",
}
INVOKED = HEAD | {
    "mutates",
    "provider_id",
    "provider_version",
    "input_keys",
    "duration_ms",
    "ok",
    "cost_units_charged",
    "auth_state",
    "kind",
    "mcp_tool_name",
    "transport",
    "server_kind",
}
KEEP = {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}}
PLAY = {"type": "object", "properties": {"act": ANY, "label": {"type": "string"}}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ContractNode]:
    async with contract_node(tmp_path_factory.mktemp("records"), {"new": "modern", "old": "legacy"}) as here:
        yield here


async def rows_of(here: ContractNode, asked: Any) -> list[Any]:
    """The rows of drivers that this one call left."""
    after = await here.node.stores.audit.last()
    await asked()
    return [row for row in await here.rows(after) if row["method"].startswith("driver.")]


@pytest.mark.req("AIP-30.audit-1", "AIP-30.resolve-6")
async def test_a_call_leaves_two_rows_with_exactly_the_documented_keys_and_no_value(here: ContractNode) -> None:
    lending = await here.serve("new", contract("test.keep", inputs=KEEP), "keep", metadata={})
    assert lending.state is DriverState.READY
    await here.node.stores.recorder.flush()
    after = await here.node.stores.audit.last()
    arguments = {"path": MARK, "text": MARK}
    result = await here.call("test__keep", arguments, client=MARK, meta={"com.example/x": MARK}).result()
    assert result["structuredContent"]["got"] == arguments
    rows = await here.rows(after)
    resolved, invoked = [row for row in rows if row["method"].startswith("driver.")]
    assert (resolved["method"], resolved.keys()) == ("driver.resolved", RESOLVED)
    assert (invoked["method"], invoked.keys()) == ("driver.invoked", INVOKED)
    assert resolved["selected"] == {"provider_id": "only-mcp@1", "kind": "mcp", "cost_units_per_call": 0.0}
    assert (resolved["candidates_total"], resolved["rejected"]) == (1, [])
    assert (invoked["input_keys"], invoked["ok"], invoked["mcp_tool_name"]) == (["path", "text"], True, "keep")
    assert (invoked["transport"], invoked["server_kind"], invoked["auth_state"]) == ("stdio", "npm", "unknown")
    assert (invoked["user_id"], invoked["tool_id"], invoked["tool"]) == ("local", "test.keep", "test.keep")
    assert MARK not in json.dumps(rows)


@pytest.mark.req("AIP-30.audit-1")
@pytest.mark.parametrize(
    ("act", "code"),
    [
        ({"result": {"content": [{"type": "text", "text": MARK}], "isError": True}}, "upstream_error"),
        ({"error": {"code": -32000, "message": MARK}}, "upstream_error"),
        ({"result": {"content": [], "structuredContent": {"n": MARK}}}, "output_parse_failed"),
        ({"wait": True}, "timeout"),
    ],
)
async def test_a_failed_call_leaves_two_rows_with_its_code_and_no_value(
    here: ContractNode, act: Any, code: str
) -> None:
    outputs = {"type": "object", "properties": {"n": {"type": "integer"}}}
    await here.serve("new", contract("test.play", inputs=PLAY, outputs=outputs, timeout_ms=300), "play")

    async def asked() -> None:
        await here.call("test__play", {"act": act, "label": MARK}).message()

    rows = await rows_of(here, asked)
    assert [row["method"] for row in rows] == ["driver.resolved", "driver.invoked"]
    assert (rows[1]["ok"], rows[1]["outcome"]) == (False, code)
    assert MARK not in json.dumps(rows)


@pytest.mark.req("AIP-30.audit-1")
async def test_a_cancelled_call_is_recorded_as_such(here: ContractNode) -> None:
    await here.serve("new", contract("test.play", inputs=PLAY), "play")

    async def asked() -> None:
        here.call("test__play", {"act": {"wait": True}}).running.cancel("enough")

    rows = await rows_of(here, asked)
    assert (rows[1]["ok"], rows[1]["outcome"]) == (False, "cancelled")


@pytest.mark.req("AIP-30.resolve-6")
async def test_no_route_tells_the_operator_every_candidate_and_the_client_none(
    here: ContractNode, caplog: pytest.LogCaptureFixture
) -> None:
    made = contract("test.keep", inputs=KEEP)
    broken = LendingProvider(here.node, "new", driver("broken-mcp", binding("test.keep", "keep")), [made])
    broken.state, broken.reason = DriverState.UNAVAILABLE, "install_failed"
    locked = LendingProvider(here.node, "old", driver("locked-mcp", binding("test.keep", "keep")), [made])
    locked.state = DriverState.UNAUTHED
    await here.offer([made], broken, locked)
    answers: list[Any] = []

    async def asked() -> None:
        answers.append(await here.call("test__keep", {"path": MARK}).result())

    (resolved,) = await rows_of(here, asked)
    assert {each["provider_id"]: each["phase"] for each in resolved["rejected"]} == {
        "broken-mcp@1": 2,
        "locked-mcp@1": 2,
    }
    assert (resolved["selected"], resolved["outcome"]) == (None, "no_route")
    said = json.dumps(answers)
    assert "broken-mcp" not in said
    ref = answers[0]["_meta"]["dev.interlock/error"]["ref"]
    (noted,) = [each for each in caplog.messages if ref in each]
    assert "broken-mcp@1" in noted
    assert "install_failed" in noted
    assert MARK not in noted


async def test_a_driver_that_never_took_the_call_leaves_no_row_of_having_been_invoked(here: ContractNode) -> None:
    lending = await here.serve("new", contract("test.keep", inputs=KEEP), "keep")
    lending.refusal = DriverRefusal(code="auth_required", message="log in")

    async def asked() -> None:
        await here.call("test__keep", {}).result()

    assert [row["method"] for row in await rows_of(here, asked)] == ["driver.resolved"]


# Whose call it is


def bound_to_its_caller() -> Any:
    return binding("test.keep", "keep", metadata={"interlock": {"context_arguments": {"tenant": "context.tenant_id"}}})


@pytest.mark.req("AIP-security-7")
async def test_each_caller_is_named_to_the_server_and_cannot_name_another(here: ContractNode) -> None:
    made = contract("test.keep", inputs=KEEP)
    await here.offer([made], LendingProvider(here.node, "new", driver("only-mcp", bound_to_its_caller()), [made]))
    asked = [
        (
            who,
            here.call("test__keep", {"path": f"of {who}"}, who=who, meta={"tenant": "client:eve", "tenant_id": "eve"}),
        )
        for _ in range(500)
        for who in ("client:ada", "client:bob")
    ]
    for who, one in asked:
        assert (await one.result())["structuredContent"]["got"] == {"path": f"of {who}", "tenant": who}


@pytest.mark.req("AIP-security-7")
async def test_an_argument_of_the_same_name_does_not_override_the_callers(here: ContractNode) -> None:
    inputs = {"type": "object", "properties": {"tenant": {"type": "string"}}}
    made = contract("test.keep", inputs=inputs)
    await here.offer([made], LendingProvider(here.node, "new", driver("only-mcp", bound_to_its_caller()), [made]))
    result = await here.call("test__keep", {"tenant": "client:eve"}, who="client:ada").result()
    assert result["structuredContent"]["got"] == {"tenant": "client:ada"}


@pytest.mark.req("AIP-14.rules-4")
async def test_a_context_that_lacks_what_the_contract_needs_sends_nothing(here: ContractNode) -> None:
    wants = {"type": "object", "required": ["room_id"], "properties": {"room_id": {"type": "string"}}}
    made = contract("test.keep", inputs=KEEP, metadata={"interlock": {"context_schema": wants}})
    await here.serve("new", made, "keep")
    before = len(await here.seen("new"))
    for meta in ({}, {"room_id": "r"}, {"context": {"room_id": "r"}}):
        result = await here.call("test__keep", {"path": "/a"}, meta=meta).result()
        assert result["content"][0]["text"].startswith("input_invalid: context")
    assert len(await here.seen("new")) == before + 1
    has = {"type": "object", "required": ["tenant_id", "user_id"], "properties": {"tenant_id": {"const": "client:ada"}}}
    await here.serve("new", contract("test.keep", inputs=KEEP, metadata={"interlock": {"context_schema": has}}), "keep")
    assert "isError" not in await here.call("test__keep", {"path": "/a"}, who="client:ada").result()
    assert (await here.call("test__keep", {"path": "/a"}, who="client:bob").result())["isError"] is True
