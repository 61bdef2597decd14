"""Published servers: which MCP they are met with, and what they are offered of their callers' abilities."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.driver_places import STORE
from tests.drivers.reference_node import TRUSTING, copy_shipped, furnish, make_place, path_of_programs, state
from tests.support.node_process import RunningNode, running_node, wait_for
from tests.support.peers import LEGACY, HttpPeer

pytestmark = pytest.mark.timeout(300)
ABLE = "metadata: { interlock: { client_capabilities: [sampling, elicitation], expose: all } }\n"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """git, and everything with a driver that lets it ask."""
    folder = tmp_path_factory.mktemp("published")
    workspace, place = folder / "workspace", folder / "place"
    workspace.mkdir()
    make_place(place)
    drivers = [copy_shipped(workspace, name, place) for name in ("git", "everything")]
    able = workspace / ".drivers" / "everything-mcp" / "DRIVER.md"
    able.write_text(able.read_text().replace("transport: stdio\n", f"transport: stdio\n{ABLE}", 1))
    furnish(folder / "data", drivers)
    with running_node(folder, {}, TRUSTING, env={"PATH": path_of_programs(), "INTERLOCK_PACKAGES": str(STORE)}) as node:
        for driver in drivers:
            wait_for(lambda key=driver.key: state(node, key)["state"] == "ready", 90)
        yield node


def versions(node: RunningNode) -> dict[str, str]:
    return {link["segment"]: link["protocol_version"] for link in node.admin("/admin/links")["links"]}


def tools(node: RunningNode, segment: str) -> list[str]:
    listed = [tool["name"] for tool in node.admin("/admin/tools")["tools"]]
    return [name for name in listed if name.startswith(f"{segment}.")]


@pytest.mark.req("AIP-proto-1")
def test_published_servers_end_on_the_newest_version_of_their_era(
    reference: RunningNode, published: RunningNode
) -> None:
    assert versions(reference)["filesystem"] == "2025-11-25"
    assert versions(published)["git"] == "2026-07-28"


@pytest.mark.req("AIP-proto-6")
async def test_a_clients_roots_do_not_take_the_place_of_the_servers_folders(reference: RunningNode) -> None:
    place = reference.data.parent / "place"
    async with await HttpPeer(f"{reference.url}/mcp", LEGACY).greet({"roots": {"listChanged": True}}) as peer:
        said = (await peer.call("filesystem__list_allowed_directories", {})).result
        assert said["content"][0]["text"].splitlines()[1:] == [str(Path(place).resolve())]
        assert peer.heard("roots/list") == []


@pytest.mark.req("AIP-proto-6")
def test_a_server_lists_more_to_a_driver_that_lets_it_ask(reference: RunningNode, published: RunningNode) -> None:
    assert len(tools(reference, "everything")) == 13
    wait_for(lambda: len(tools(published, "everything")) > 13)
    assert {"everything.trigger-sampling-request", "everything.trigger-elicitation-request"} <= set(
        tools(published, "everything")
    )
