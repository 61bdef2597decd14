"""What a driver offers besides its contracts: tools without one, prompts, resources and references to them."""

import hashlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio
from msgspec import Raw
from msgspec.structs import replace
from tests.drivers.contract_node import ContractNode, LendingProvider, binding, contract, contract_node, driver
from tests.servers.start import raw
from tests.support.local_node import LegacyClient

from interlock.approvals.protocol.approval import Kind
from interlock.drivers.contracts.service import expose
from interlock.drivers.parts import DriverParts

pytestmark = pytest.mark.asyncio(loop_scope="module")

BOTH = pytest.mark.parametrize("segment", ["new", "old"])
TEXT = "text of raw://text"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ContractNode]:
    servers = {"new": "modern", "old": "legacy", "bare": {"command": raw("driven,recorder")}}
    async with contract_node(tmp_path_factory.mktemp("exposing"), servers) as here:
        yield here


async def offered(here: ContractNode, segment: str, **changed: Any) -> LendingProvider:
    made = contract("notes.keep")
    lending = LendingProvider(here.node, segment, driver("notes-mcp", binding("notes.keep", "keep"), **changed), [made])
    await here.offer([made], lending)
    return lending


async def names(here: ContractNode, method: str, member: str, key: str) -> list[str]:
    """Those of the driver's segment."""
    items = (await here.ask(method, {}).result())[member]
    return sorted(each[key] for each in items if "notes" in each[key])


def warned(here: ContractNode) -> list[str]:
    assert all(each.severity == "warning" for each in here.node.get(DriverParts).contracts.get().problems)
    return [each.code for each in here.node.get(DriverParts).contracts.get().problems]


# Tools


@pytest.mark.req("AIP-tools-16")
@BOTH
async def test_tools_without_a_contract_are_listed_only_where_the_driver_says_so_and_marked(
    here: ContractNode, segment: str
) -> None:
    await offered(here, segment)
    assert await names(here, "tools/list", "tools", "name") == ["notes__keep"]
    assert (await here.call("notes__words").error())["data"]["reason"] == "tool_not_found"
    lending = await offered(here, segment, metadata={"interlock": {"expose": "all"}})
    tools = {each["name"]: each for each in (await here.ask("tools/list", {}).result())["tools"]}
    assert {"notes__keep", "notes__words", "notes__play"} <= tools.keys()
    assert tools["notes__words"]["_meta"]["dev.interlock/contract"] == "none"
    assert tools["notes__keep"]["_meta"]["dev.interlock/contract"] == "notes.keep@1.0.0"
    assert tools["notes__keep"].get("description") != "POISON"
    result = await here.call("notes__words", {"say": "as it is"}).result()
    assert result["content"] == [{"type": "text", "text": "as it is"}]
    failed = await here.call("notes__play", {"act": {"error": {"code": -32011, "message": "no"}}}).error()
    assert (failed["code"], failed["message"]) == (-32011, "no")
    assert lending.lent == 0
    rows = await here.rows()
    assert not [row for row in rows if row["method"].startswith("driver.") and row["tool"] != "notes.keep"]


async def test_a_changed_tool_without_a_contract_stays_as_accepted_and_a_contract_does_not(here: ContractNode) -> None:
    async def described() -> dict[str, str | None]:
        tools = (await here.ask("tools/list", {}).result())["tools"]
        return {tool["name"]: tool.get("description") for tool in tools if tool["name"].startswith("notes__")}

    exposing: dict[str, Any] = {"metadata": {"interlock": {"expose": "all"}}}
    lending = await offered(here, "new", **exposing)
    await here.node.approvals.definitions.wait_until_processed()
    before, listing = await described(), lending.listing
    assert listing is not None
    tools = tuple((name, {**item, "description": Raw(b'"First read."')}) for name, item in listing.tools.items)
    lending.listing = replace(listing, tools=replace(listing.tools, items=tools))
    await here.offer([contract("notes.keep", description="Another.")], lending)
    assert await described() == {**before, "notes__keep": "Another."}
    await here.node.approvals.definitions.wait_until_processed()
    waiting = {approval.tool for approval in here.node.approvals.inbox.waiting(Kind.DEFINITION)}
    assert {"notes.keep", "notes.words"} <= waiting


@pytest.mark.req("AIP-tools-16")
async def test_a_contract_has_its_name_before_a_tool_without_a_contract(here: ContractNode) -> None:
    made = contract("notes.words", description="The contract's.")
    lending = LendingProvider(
        here.node,
        "new",
        driver("notes-mcp", binding("notes.words", "keep"), metadata={"interlock": {"expose": "all"}}),
        [made],
    )
    await here.offer([made], lending)
    tools = {each["name"]: each for each in (await here.ask("tools/list", {}).result())["tools"]}
    assert tools["notes__words"]["description"] == "The contract's."
    assert "name_collision" in warned(here)
    unlisted = cast(Any, SimpleNamespace(driver=lending.driver, listing=None))  # its server has not answered yet
    assert expose([unlisted], {}).segments["notes"].tools == {}


async def test_a_tool_whose_name_would_become_a_contracts_carries_a_hash(here: ContractNode) -> None:
    made = contract("notes.words", description="The contract's.")
    bound = driver("notes-mcp", binding("notes.words", "keep"), metadata={"interlock": {"expose": "all"}})
    lending = LendingProvider(here.node, "new", bound, [made])
    assert lending.listing is not None
    words = [("Words", item) for name, item in lending.listing.tools.items if name == "words"]
    lending.listing = replace(lending.listing, tools=replace(lending.listing.tools, items=tuple(words)))
    await here.offer([made], lending)
    tools = {each["name"]: each for each in (await here.ask("tools/list", {}).result())["tools"]}
    hashed = f"notes__words_{hashlib.sha256(b'Words').hexdigest()[:8]}"
    assert {name for name in tools if name.startswith("notes__")} == {"notes__words", hashed}
    assert tools["notes__words"]["description"] == "The contract's."
    assert tools[hashed]["_meta"]["dev.interlock/contract"] == "none"
    assert "name_collision" not in warned(here)


# Prompts


@pytest.mark.req("AIP-prompts-1", "AIP-prompts-2")
@BOTH
async def test_only_declared_prompts_are_offered_and_what_the_server_says_is_passed_on(
    here: ContractNode, segment: str
) -> None:
    prompts = [{"name": "greet", "integrate_as": "raw"}, {"name": "absent", "integrate_as": "raw"}]
    lending = await offered(here, segment, prompts=prompts)
    assert warned(here) == ["prompt_missing"]
    items = (await here.ask("prompts/list", {}).result())["prompts"]
    (mine,) = [each for each in items if each["name"].startswith("notes")]
    assert (mine["name"], mine["arguments"], mine["x-tone"]) == (
        "notes__greet",
        [{"name": "who", "required": True}],
        {"warm": True},
    )
    for client in (here, LegacyClient(here.node)):
        result = await client.ask("prompts/get", {"name": "notes__greet", "arguments": {"who": "Ada"}}).result()
        assert result["messages"] == [{"role": "user", "content": {"type": "text", "text": "Hello."}, "x-m": 1}]
        assert result["x-arguments"] == {"who": "Ada"}
    before = len(await _asked(here, segment, "prompts/get"))
    refused = await here.ask("prompts/get", {"name": "notes__plain"}).error()
    assert refused["data"]["reason"] == "prompt_not_found"
    assert len(await _asked(here, segment, "prompts/get")) == before
    assert (await here.call("notes__keep").result())["structuredContent"] == {"got": {}}
    assert lending.lent == 0


async def _asked(here: ContractNode, segment: str, method: str) -> list[Any]:
    told = (await here.call(f"{segment}__seen").result())["structuredContent"]["messages"]
    return [each for each in told if each["method"] == method]


@pytest.mark.req("AIP-prompts-1")
async def test_a_server_without_prompts_is_not_asked_for_them_and_its_driver_works(here: ContractNode) -> None:
    await offered(here, "bare", prompts=[{"name": "greet", "integrate_as": "raw"}])
    assert warned(here) == ["prompts_unsupported"]
    assert await _asked(here, "bare", "prompts/list") == []
    assert await names(here, "prompts/list", "prompts", "name") == []
    assert (await here.call("notes__keep").result())["structuredContent"] == {"got": {}}


@pytest.mark.req("AIP-prompts-2", "AIP-prompts-3")
async def test_a_prompt_of_a_skill_is_a_block_of_that_skill(here: ContractNode) -> None:
    block = {
        "name": "greet",
        "integrate_as": "skill_block",
        "skill_ref": "./skills/summarize/SKILL.md",
        "description": "Says hello.",
    }
    await offered(here, "new", prompts=[block])
    items = (await here.ask("prompts/list", {}).result())["prompts"]
    (mine,) = [each for each in items if each["name"].startswith("notes")]
    assert (mine["name"], mine["description"]) == ("notes__summarize_greet", "Says hello.")
    result = await here.ask("prompts/get", {"name": "notes__summarize_greet", "arguments": {}}).result()
    assert result["messages"][0]["content"]["text"] == "Hello."


# Resources


@pytest.mark.req("AIP-resources-1", "AIP-resources-4")
@BOTH
async def test_resources_that_match_a_declared_template_are_offered_and_the_others_are_not(
    here: ContractNode, segment: str
) -> None:
    templates = ["raw://text", "raw://item/{id}"]
    lending = await offered(
        here, segment, resources=[{"uri_template": one, "integrate_as": "raw"} for one in templates]
    )
    assert warned(here) == []
    assert await names(here, "resources/list", "resources", "uri") == ["mcpax://notes/raw://text"]
    found = await names(here, "resources/templates/list", "resourceTemplates", "uriTemplate")
    assert found == ["mcpax://notes/raw://item/{id}"]
    for client in (here, LegacyClient(here.node)):
        read = await client.ask("resources/read", {"uri": "mcpax://notes/raw://text"}).result()
        assert read["contents"][0]["text"] == TEXT
        read = await client.ask("resources/read", {"uri": "mcpax://notes/raw://item/7"}).result()
        assert read["contents"][0]["text"] == "text of raw://item/7"
    before = len(await _asked(here, segment, "resources/read"))
    for uri in ("raw://blob", "raw://other/7", "file:///etc/passwd"):
        refused = await here.ask("resources/read", {"uri": f"mcpax://notes/{uri}"}).error()
        assert refused["data"]["reason"] == "resource_unavailable"
    assert len(await _asked(here, segment, "resources/read")) == before
    assert lending.lent == 0


@pytest.mark.req("AIP-resources-4")
async def test_the_last_expression_of_a_template_takes_slashes(here: ContractNode) -> None:
    await offered(here, "new", resources=[{"uri_template": "raw://{path}", "integrate_as": "raw"}])
    assert await names(here, "resources/list", "resources", "uri") == [
        "mcpax://notes/raw://blob",
        "mcpax://notes/raw://text",
    ]
    assert await names(here, "resources/templates/list", "resourceTemplates", "uriTemplate") == [
        "mcpax://notes/raw://item/{id}"
    ]
    blob = await here.ask("resources/read", {"uri": "mcpax://notes/raw://blob"}).result()
    assert blob["contents"][0]["blob"] == "AAEC"
    assert "x-took" in blob


@pytest.mark.req("AIP-resources-2")
@BOTH
async def test_a_reference_names_a_resource_of_its_driver(here: ContractNode, segment: str) -> None:
    kind = {"uri_template": "raw://{path}", "integrate_as": "ref_kind", "ref_kind_id": "notes"}
    await offered(here, segment, resources=[kind])
    for uri in ("mcp_notes:raw://text", "mcp_notes:raw%3A//text", "mcpax://notes/mcp_notes:raw://text"):
        read = await here.ask("resources/read", {"uri": uri}).result()
        assert read["contents"][0]["text"] == TEXT
    digest = hashlib.sha256(TEXT.encode()).hexdigest()
    read = await here.ask("resources/read", {"uri": f"mcp_notes:raw://text#sha256={digest}"}).result()
    assert read["contents"][0]["text"] == TEXT
    before = len(await _asked(here, segment, "resources/read"))
    for uri in ("mcp_other:raw://text", "mcp_notes:http://x/", "mcp_notes:", "mcp_mcp_notes:raw://text"):
        refused = await here.ask("resources/read", {"uri": uri}).error()
        assert (refused["code"], refused["data"]["reason"]) == (-32602, "ref_invalid")
    assert len(await _asked(here, segment, "resources/read")) == before
    wrong = await here.ask("resources/read", {"uri": f"mcp_notes:raw://text#sha256={'0' * 64}"}).error()
    assert wrong["data"]["reason"] == "ref_invalid"


@pytest.mark.req("AIP-resources-3")
async def test_a_kind_of_reference_belongs_to_one_driver_and_is_never_a_base_kind(here: ContractNode) -> None:
    made = {segment: contract(f"{segment}s.keep") for segment in ("new", "old", "bare")}
    kinds = {"new": "notes", "old": "notes", "bare": "git"}
    lending = []
    for segment, kind in kinds.items():
        named = {"uri_template": "raw://{path}", "integrate_as": "ref_kind", "ref_kind_id": kind}
        declared = driver(f"{segment}s-mcp", binding(f"{segment}s.keep", "keep"), resources=[named])
        lending.append(LendingProvider(here.node, segment, declared, [made[segment]]))
    await here.offer(made.values(), *lending)
    assert warned(here) == ["ref_kind_conflict", "ref_kind_conflict", "resources_unsupported"]
    before = len(await _asked(here, "new", "resources/read"))
    assert (await here.ask("resources/read", {"uri": "mcp_notes:raw://text"}).result())["contents"][0]["text"] == TEXT
    assert len(await _asked(here, "new", "resources/read")) == before + 1
    assert (await here.ask("resources/read", {"uri": "mcp_git:raw://text"}).error())["data"]["reason"] == "ref_invalid"
    for segment in kinds:
        assert (await here.call(f"{segment}s__keep").result())["structuredContent"] == {"got": {}}


@pytest.mark.req("AIP-resources-1")
async def test_a_server_without_resources_stays_ready_and_reading_through_it_ends_as_resource_unavailable(
    here: ContractNode,
) -> None:
    kind = {"uri_template": "raw://{path}", "integrate_as": "ref_kind", "ref_kind_id": "notes"}
    raw_too = {"uri_template": "raw://{path}", "integrate_as": "raw"}
    await offered(here, "bare", resources=[kind, raw_too])
    assert warned(here) == ["resources_unsupported"]
    refused = await here.ask("resources/read", {"uri": "mcp_notes:raw://text"}).error()
    assert refused["data"]["reason"] == "resource_unavailable"
    assert await _asked(here, "bare", "resources/read") == []
    assert (await here.call("notes__keep").result())["structuredContent"] == {"got": {}}


async def test_a_resource_of_a_driver_cannot_be_subscribed_to(here: ContractNode) -> None:
    await offered(here, "new", resources=[{"uri_template": "raw://{path}", "integrate_as": "raw"}])
    client = LegacyClient(here.node)
    refused = await client.subscribe("mcpax://notes/raw://text").error()
    assert refused["data"]["reason"] == "not_subscribable"


async def test_clients_learn_of_prompts_and_resources_where_a_driver_has_some(here: ContractNode) -> None:
    await offered(here, "new", prompts=[{"name": "greet", "integrate_as": "raw"}])
    link = here.node.get(DriverParts).contracts.get().links["notes"]
    assert link.facts is not None
    assert list(link.facts.capabilities) == ["prompts"]
