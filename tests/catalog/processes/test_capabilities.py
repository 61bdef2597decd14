"""Can a client judge a tool before it calls it: does it change anything, can that be undone, how long does it take?"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.support.fleet import LINKS, Fleet, stdio_table
from tests.support.node_process import KNOWS_AX, running_node
from tests.support.odd_server import DECLARED, command
from tests.support.peers import LEGACY, MODERN, HttpPeer

pytestmark = pytest.mark.asyncio(loop_scope="session")

NOTHING_KNOWN = {
    "latency_class": "standard",
    "consistency": "best_effort",
    "mutable": True,
    "reversible": False,
    "idempotent": False,
    "transport": "native",
    "auth_scope": "write",
    "cost_class": "free",
    "availability": "always",
    "schema_version": "0.0.0",
}
RULED = {
    "latency_class": "batch",
    "consistency": "strong",
    "mutable": False,
    "reversible": True,
    "idempotent": True,
    "transport": "mqtt_json",
    "auth_scope": "read",
    "cost_class": "expensive",
    "availability": "scheduled",
    "schema_version": "3.2.1-rc.1",
}
EXPECTED = {
    "bare": {},
    "liar": {},
    "iconic": {},
    "reader": {"mutable": False, "reversible": True, "auth_scope": "read"},
    "gentle": {"reversible": True, "idempotent": True},
    "declared": DECLARED,
    "ruled": RULED,
}
VERSIONS = {"legacy": LEGACY, "modern": MODERN}


def rule(match: str, keys: dict[str, Any]) -> str:
    lines = [f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for key, value in keys.items()]
    return "\n".join(["[[tool]]", f'match = "{match}"', *lines, ""])


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def tools(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[tuple[str, str], dict[str, Any]]]:
    """(era of the client, qualified name) -> the tool as listed."""
    servers = {
        "old": stdio_table(command("rich", "--era", "legacy")),
        "new": stdio_table(command("rich", "--era", "modern")),
        "classed": stdio_table(command("rich")) | {"tools": {"reader": "reversible", "declared": "irreversible"}},
    }
    found = {}
    with running_node(tmp_path_factory.mktemp("rich"), servers, rule("*.ruled", RULED)) as node:
        for era, version in VERSIONS.items():
            async with await HttpPeer(f"{node.url}/mcp?names=safe", version).greet(KNOWS_AX) as peer:
                for tool in (await peer.request("tools/list")).result["tools"]:
                    found[era, tool["_meta"]["x-mcpax-name"]] = tool
        found["withheld", "old"] = node.link("old")
        yield found


def capability(tool: dict[str, Any]) -> dict[str, Any]:
    return tool["_meta"]["x-mcpax-capability"]


@pytest.mark.req("AX-9.1-2", "AX-1.1-6")
@pytest.mark.parametrize("era", VERSIONS)
@pytest.mark.parametrize("segment", ["old", "new"])
async def test_undeclared_values_are_cautious_and_the_operator_has_the_last_word(
    tools: dict[tuple[str, str], dict[str, Any]], segment: str, era: str
) -> None:
    for name, expected in EXPECTED.items():
        assert capability(tools[era, f"{segment}.{name}"]) == {**NOTHING_KNOWN, **expected}, name
    assert all(RULED[key] != value for key, value in NOTHING_KNOWN.items())


async def test_a_class_in_the_configuration_overrides_what_the_server_says(
    tools: dict[tuple[str, str], dict[str, Any]],
) -> None:
    reader, declared = (capability(tools["modern", f"classed.{name}"]) for name in ("reader", "declared"))
    assert (reader["mutable"], reader["reversible"]) == (True, True)
    assert (declared["mutable"], declared["reversible"]) == (True, False)
    assert declared["latency_class"] == "fast"


@pytest.mark.parametrize("era", VERSIONS)
async def test_hints_are_filled_in_and_those_the_server_set_are_left_alone(
    tools: dict[tuple[str, str], dict[str, Any]], era: str
) -> None:
    for name, expected in {
        "bare": {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False},
        "reader": {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": False},
        "gentle": {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": True},
        "ruled": {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True},
    }.items():
        assert tools[era, f"old.{name}"]["annotations"] == expected, name


@pytest.mark.parametrize("era", VERSIONS)
async def test_claims_of_a_server_about_its_place_in_the_tree_are_ignored(
    tools: dict[tuple[str, str], dict[str, Any]], era: str
) -> None:
    assert {tool["_meta"]["x-mcpax-hops"] for (at, _), tool in tools.items() if at == era} == {1}
    assert (era, "old.liar") in tools
    assert not any(name == "admin.reset" for _, name in tools)


async def test_a_tool_whose_capability_cannot_be_read_is_withheld(
    tools: dict[tuple[str, str], dict[str, Any]],
) -> None:
    assert not any(name == "old.broken" for _, name in tools)
    (withheld,) = tools["withheld", "old"]["withheld"]
    assert withheld["name"] == "broken"
    assert "mutable" in withheld["reason"]


@pytest.mark.parametrize("front", ["http-legacy", "http-modern"])
async def test_every_listed_tool_can_be_judged_without_knowing_where_it_is(fleet: Fleet, front: str) -> None:
    async with fleet.peer(front, KNOWS_AX) as peer:
        listed = (await peer.request("tools/list")).result["tools"]
    assert {tool["name"].partition(".")[0] for tool in listed} == set(LINKS)
    for tool in listed:
        assert {"latency_class", "mutable", "reversible"} <= capability(tool).keys()
        assert {"readOnlyHint", "destructiveHint", "idempotentHint"} <= tool["annotations"].keys()
        assert isinstance(capability(tool)["mutable"], bool)
