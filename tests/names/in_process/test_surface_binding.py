"""Does a whole node hold its servers to its registry, and follow when the registry or an operator changes?"""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.aql.aql_node import aql_node
from tests.names.pure.test_surface_judgement import ARGUMENT, INTEGER, RETURN, STRING, entry, revision, with_property
from tests.support.frozen_node import FrozenNode, Leaf, advance_time, frozen_node, in_frozen_time, run_until_idle, tool

from interlock.names.api import PinName
from interlock.names.parts import RegistryParts
from interlock.names.protocol.publication import Publication, publish
from interlock.names.protocol.registry import RegistryStep
from interlock.names.state import RegistryChange
from interlock.store.sqlite.store import NAMES_FILE
from interlock.wire.refusal import NotFound

BAD = with_property(ARGUMENT, query=INTEGER)
READS = {"annotations": {"readOnlyHint": True}}
LIST_LIFE_S = 60.0  # ax.list_ttl_s


def offered(argument: Any = ARGUMENT, returned: Any = RETURN, name: str = "search") -> dict[str, Any]:
    return {**tool(name), "inputSchema": argument, "outputSchema": returned, **READS}


async def register(node: FrozenNode, made: Any) -> None:
    state = node.node.approvals.names.state
    step = RegistryStep(at=state.now, by="operator:ada", what="registered", subject=made.surface_name, entry=made)
    await state.change(lambda registry: RegistryChange((step,), None))
    await node.node.get(RegistryParts).rejudgement.settle()


async def bound(node: FrozenNode, *tools: dict[str, Any], segment: str = "shop", again: Leaf | None = None) -> Leaf:
    known = None if again is None else again.subserver_id
    leaf = node.leaf(segment, tools=tools, heartbeat_interval_ms=0, subserver_id=known)
    await leaf.joined()
    return leaf


@in_frozen_time
@pytest.mark.req("REG-8.1-1", "REG-8.1-2", "REG-2-1", "REG-7.1-1")
async def test_a_mismatch_reaches_no_server_and_follows_the_registry(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        leaf = await bound(node, offered(BAD), offered(name="other"))
        client = await node.client().greet()
        assert (await client.tools()).keys() >= {"shop.search", "shop.other"}
        await register(node, entry(revision()))
        assert (await client.tools()).keys() & {"shop.search", "shop.other"} == {"shop.other"}
        heard = len(leaf.heard)
        refused = (await client.call("shop.search", {"query": "x"}))["error"]
        assert (refused["code"], refused["message"]) == (32140, "surface_mismatch")
        assert [one["path"] for one in refused["data"]["differences"]] == ["/query"]
        assert "result" in await client.call("shop.other", {"query": "x"})
        assert not [one for one in leaf.heard[heard:] if "x" in str(one) and "search" in str(one)]
        shown = node.node.operations.tools.get("shop.search")
        assert shown.withheld is not None and "`query` is" in shown.withheld
        assert (shown.surface.verdict, shown.surface.refused) == ("mismatch", True)
        assert [(one.name, one.verdict) for one in shown.checks if one.number == 6] == [("names", "refuse")]
        (link,) = [one for one in node.node.operations.links.list_all().links if one.segment == "shop"]
        assert [one.name for one in link.withheld] == ["search"] and link.tools == 1
        await register(node, entry(revision(), revision(2, argument=BAD)))
        listed = (await client.tools())["shop.search"]
        assert listed["_meta"]["dev.interlock/surface"]["verdict"] == "identical"
        assert "result" in await client.call("shop.search", {"query": 1})


@in_frozen_time
@pytest.mark.req("REG-4.2-9", "REG-4.2-8")
async def test_operations_carry_the_verdict_of_their_tool_and_follow_it(tmp_path: Path) -> None:
    async with aql_node(tmp_path) as here:
        node = here.house
        await register(node, entry(revision()))
        leaf = await bound(node, offered(), offered(BAD, name="list_2fa"), offered(name="a__b"))
        client = here.modern()
        listed = await client.introspect(query="operations")
        names = {one["name"] for one in listed["operations"]}
        assert {"shop__search", "shop__list_2fa", "shop__a__b"} <= names
        leaf.answer = lambda params: {"structuredContent": {"got": params["arguments"]}, "content": []}
        assert (await client.do("shop__list_2fa", {"query": 1}))["success"] is True
        endpoints = await client.tools()
        assert "mcp_aql_read" in endpoints
        assert not [one for one in endpoints.values() if "dev.interlock/surface" in one.get("_meta", {})]
        assert listed["_protocol"]["surfaces"].keys() == {"shop__search"}
        assert listed["_protocol"]["surfaces"]["shop__search"]["verdict"] == "identical"
        await register(node, entry(revision(argument=BAD)))
        listed = await client.introspect(query="operations")
        assert "shop__search" not in {one["name"] for one in listed["operations"]}
        assert "surfaces" not in listed["_protocol"]


@in_frozen_time
@pytest.mark.req("REG-8.1-1")
async def test_a_list_is_judged_when_it_changes_and_when_its_server_comes_again(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        await register(node, entry(revision()))
        client = await node.client().greet()
        leaf = await bound(node, offered())
        assert (await client.tools())["shop.search"]["_meta"]["dev.interlock/surface"]["verdict"] == "identical"
        leaf.tools = [offered(BAD)]
        leaf.notify("notifications/tools/list_changed")
        await node.until(lambda: node.node.operations.tools.get("shop.search").withheld is not None)
        assert "shop.search" not in await client.tools()
        leaf.tools = [offered()]  # unannounced: seen when the list is old
        assert "shop.search" not in await client.tools()
        await advance_time(LIST_LIFE_S)
        assert "shop.search" in await client.tools()
        leaf.close()
        await node.until(lambda: node.state("shop") != "ready")
        again = await bound(node, offered(with_property(ARGUMENT, extra=STRING)), again=leaf)
        assert (await client.tools())["shop.search"]["_meta"]["dev.interlock/surface"]["verdict"] == "compatible"
        assert "result" in await client.call("shop.search", {"query": "x"})
        again.close()
        await node.until(lambda: node.state("shop") != "ready")
        await bound(node, offered(BAD), again=leaf)
        assert (await client.call("shop.search", {"query": "x"}))["error"]["message"] == "surface_mismatch"


@in_frozen_time
@pytest.mark.req("REG-8.1-1")
async def test_a_list_is_judged_again_when_its_own_ttl_is_over(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        await register(node, entry(revision()))
        client = await node.client().greet()
        timing = {"heartbeat_interval_ms": 0, "list_changed": False, "ttl_ms": 10_000}
        # The authority is proved, so that a changed definition is listed at once and judged.
        leaf = node.leaf("shop", tools=[offered()], authority="dns:shop.example", **timing)
        await leaf.joined()
        assert "shop.search" in await client.tools()
        leaf.tools = [offered(BAD)]
        await advance_time(9.0)
        assert "shop.search" in await client.tools()
        await advance_time(1.0)
        listed = client.begin("tools/list")
        await node.until(listed.done)
        assert "shop.search" not in [tool["name"] for tool in listed.result()["result"]["tools"]]
        assert (await client.call("shop.search", {"query": "x"}))["error"]["message"] == "surface_mismatch"
        assert leaf.asked("tools/call") == 0


@in_frozen_time
@pytest.mark.req("REG-8.1-1", "REG-8.1-2")
async def test_no_call_reaches_a_subserver_before_its_list_is_judged(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        await register(node, entry(revision()))
        client = await node.client().greet()
        leaf = node.leaf("shop", tools=[offered(BAD)], heartbeat_interval_ms=0)
        leaf.mute.add("tools/list")  # it registers, and its list is late
        leaf.say({"jsonrpc": "2.0", "id": 1, "method": "mcpax/register", "params": leaf.register_params})
        await node.until(lambda: leaf.asked("tools/list"))
        early = client.begin("tools/call", {"name": "shop.search", "arguments": {"query": "x"}})
        await run_until_idle()
        assert leaf.asked("tools/call") == 0
        (asked,) = [one for one in leaf.heard if one.get("method") == "tools/list"]
        leaf.mute.clear()
        result = {"resultType": "complete", "tools": leaf.tools, "ttlMs": 60_000, "cacheScope": "private"}
        leaf.say({"jsonrpc": "2.0", "id": asked["id"], "result": result})
        await node.until(early.done)
        assert early.result()["error"]["message"] == "surface_mismatch"
        assert leaf.asked("tools/call") == 0


@in_frozen_time
@pytest.mark.req("REG-8.1-6")
async def test_arguments_are_the_servers_own_and_not_the_specifications(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        await register(node, entry(revision(argument={**ARGUMENT, "additionalProperties": False})))
        wider = {**with_property(ARGUMENT, extra=STRING), "description": "what the server says"}
        leaf = await bound(node, offered(wider))
        client = await node.client().greet()
        listed = (await client.tools())["shop.search"]
        assert (listed["inputSchema"], listed["outputSchema"]) == (wider, RETURN)
        assert "result" in await client.call("shop.search", {"query": "x", "extra": "beyond the specification"})
        assert [one for one in leaf.heard if "beyond the specification" in str(one)]


@in_frozen_time
@pytest.mark.req("REG-7.1-1")
async def test_a_registry_that_cannot_be_read_takes_no_tool_away(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / NAMES_FILE).write_bytes(b"no database at all" * 1000)
    async with frozen_node(tmp_path) as node:
        assert node.node.approvals.names.state.trouble
        await bound(node, offered(), offered(name="other"))
        client = await node.client().greet()
        assert {"shop.search", "shop.other"} <= (await client.tools()).keys()
        assert "result" in await client.call("shop.other", {"query": "x"})


@in_frozen_time
@pytest.mark.req("REG-8.1-2")
async def test_the_configuration_says_what_follows(tmp_path: Path) -> None:
    async with frozen_node(tmp_path, '[registry]\nenforce = "warn"\n') as node:
        await register(node, entry(revision()))
        await bound(node, offered(BAD))
        client = await node.client().greet()
        assert (await client.tools())["shop.search"]["_meta"]["dev.interlock/surface"]["verdict"] == "mismatch"
        assert "result" in await client.call("shop.search", {"query": 1})


@in_frozen_time
@pytest.mark.req("REG-N-5", "REG-9-4")
async def test_an_imported_registry_removes_no_tool_until_its_source_is_trusted(tmp_path: Path) -> None:
    source = "https://names.example"
    document = publish(Publication(entries=(entry(revision()),), updated="2026-11-17", today="2026-11-17"), "json")
    async with frozen_node(tmp_path) as node:
        publisher, state = node.node.approvals.names.publisher, node.node.approvals.names.state
        await bound(node, offered(BAD))
        client = await node.client().greet()

        async def listed() -> Any:
            await node.node.get(RegistryParts).rejudgement.settle()
            return (await client.tools()).get("shop.search")

        await publisher.import_("operator:ada", document, source, is_trusted=False)
        assert (await listed())["_meta"]["dev.interlock/surface"]["verdict"] == "mismatch"
        assert "result" in await client.call("shop.search", {"query": 1})
        await publisher.trust("operator:ada", source, is_trusted=True)
        assert await listed() is None
        assert (await client.call("shop.search", {"query": 1}))["error"]["message"] == "surface_mismatch"
        await publisher.trust("operator:ada", source, is_trusted=False)
        assert await listed() is not None
        unknown = msgspec.structs.replace(entry(revision()), source="https://other.example")
        assert not state.is_trusted(unknown) and state.is_trusted(entry(revision()))


ROUTES = '[registry]\nroutes = { search = ["nowhere", "wrong", "half", "first", "second"] }\n'


@in_frozen_time
@pytest.mark.req("REG-8.1-7")
async def test_servers_that_keep_to_a_name_can_replace_one_another(tmp_path: Path) -> None:
    async with frozen_node(tmp_path, ROUTES) as node:
        await register(node, entry(revision()))
        client = await node.client().greet()
        wrong = await bound(node, offered(BAD), segment="wrong")
        silent = offered()
        del silent["outputSchema"]
        half = await bound(node, silent, segment="half")
        listed = await client.tools()
        assert listed["half.search"]["_meta"]["dev.interlock/surface"]["verdict"] == "input_only"
        assert "search" not in listed
        second = await bound(node, offered(), segment="second")
        first = await bound(node, offered(with_property(ARGUMENT, extra=STRING)), segment="first")
        listed = await client.tools()
        assert {"search", "first.search", "second.search"} <= listed.keys()
        assert listed["search"]["_meta"]["x-mcpax-name"] == "first.search"
        assert "result" in await client.call("search", {"query": "one"})
        first.close()
        await node.until(lambda: node.state("first") != "ready")
        assert "result" in await client.call("search", {"query": "two"})
        called = [[str(one) for one in leaf.heard if "tools/call" in str(one)] for leaf in (first, second, wrong, half)]
        assert [len(one) for one in called] == [1, 1, 0, 0]
        assert "two" in called[1][0]


@in_frozen_time
@pytest.mark.req("REG-8.1-7")
async def test_without_the_setting_no_name_is_bare(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        await register(node, entry(revision()))
        await bound(node, offered())
        client = await node.client().greet()
        assert "search" not in await client.tools()
        assert (await client.call("search", {"query": "x"}))["error"]["code"] == -32601


@in_frozen_time
@pytest.mark.req("REG-8.2-3")
async def test_a_pin_refuses_drift_until_it_is_set_again(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        leaf = await bound(node, offered(name="free"))
        client, surfaces = await node.client().greet(), node.node.get(RegistryParts).operations
        (pinned,) = (await surfaces.repin(PinName(name="free"))).tools
        assert pinned.tool == "shop.free"
        leaf.tools = [offered(BAD, name="free")]
        leaf.notify("notifications/tools/list_changed")
        await node.until(lambda: node.node.operations.tools.get("shop.free").withheld is not None)
        refused = (await client.call("shop.free", {"query": "x"}))["error"]
        assert (refused["code"], refused["message"]) == (32141, "specification_drift")
        assert refused["data"]["pinned"] == pinned.digest
        await surfaces.repin(PinName(name="shop.free"))
        assert "result" in await client.call("shop.free", {"query": 1})
        await surfaces.repin(PinName(name="free", remove=True))
        with pytest.raises(NotFound):
            await surfaces.repin(PinName(name="free", remove=True))


@in_frozen_time
@pytest.mark.req("REG-8.1-4")
async def test_an_undecided_pair_is_asked_about_in_the_inbox(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        await register(node, entry(revision()))
        await bound(node, offered(with_property(ARGUMENT, query={**STRING, "pattern": "^a"})))
        await node.until(lambda: node.node.approvals.inbox.waiting_definitions())
        (asked,) = node.node.approvals.inbox.waiting_definitions()
        assert (asked.tool, asked.factors) == ("shop.search", ("surface_undecided",))
        client = await node.client().greet()
        assert (await client.call("shop.search", {"query": "a"}))["error"]["data"]["verdict"] == "undecided"
