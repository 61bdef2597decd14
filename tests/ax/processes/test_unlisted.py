"""What a child does not list for its parent: do both say how many and why, and does no name leave the child?"""

import json
from asyncio import to_thread
from pathlib import Path
from typing import Any

import pytest
from tests.ax.bare_subserver import bare_subserver, tool
from tests.ax.link_tap import link_tap
from tests.ax.processes.test_walkthrough import beside
from tests.ax.tree import ax_url, wait_parent
from tests.operator.processes.console.conftest import browser, log_in  # noqa: F401
from tests.servers.start import raw
from tests.support.node_process import RunningNode, Wire, running_node, wait_for, write_config

KEY = "dev.interlock/unlisted"
BENCH = {"bench": {"command": raw("all")}}
TWO = BENCH | {"more": {"command": raw("all")}}
JOINS = '[[ax.parents]]\nurl = "{}"\nsegment = "edge"\n'
SCOPE = "they need more than scope read, which local has; an [[access]] entry may widen it"
OWN_SCOPE = "an [[access]] entry of its own node lets us use scope read"
OWN_TOOLS = "an [[access]] entry of its own node leaves them out"


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def changing(node: RunningNode) -> list[str]:
    """The tools of a node that a parent with scope read may not have."""
    return [one["name"] for one in node.admin("/admin/tools")["tools"] if one["capability"]["auth_scope"] != "read"]


def told(root: RunningNode, wanted: dict[str, int] | None) -> None:
    wait_for(lambda: root.link("edge").get("not_listed_because", "none") == wanted, 20)


@pytest.mark.req("AX-10.2-2")
async def test_a_child_counts_what_it_does_not_list_and_names_none_of_it(tmp_path: Path) -> None:
    async with (
        beside(running_node(tmp_path / "root", {})) as root,
        link_tap(ax_url(root)) as link,
        beside(running_node(tmp_path / "edge", BENCH, JOINS.format(link.url))) as edge,
    ):
        edge.wait_link("bench", {"state": "ready"})
        left_out = changing(edge)
        assert len(left_out) > 10
        wait_parent(edge, {"state": "registered"})

        def last() -> dict[str, Any]:
            asked = {one["id"] for one in list(link.down) if one.get("method") == "tools/list"}
            lists = [one["result"] for one in list(link.up) if one.get("id") in asked and "result" in one]
            return lists[-1] if lists else {}

        await to_thread(wait_for, lambda: last().get("tools") and last()["_meta"][KEY]["beyond_scope"], 20)
        assert last()["_meta"][KEY] == {"scope": "read", "beyond_scope": len(left_out), "beyond_access": 0}
        said = json.dumps(link.up)
        assert not [name for name in left_out if f'"{name}"' in said]
        with Wire(edge) as client:  # a client of the child is not told, even if it knows the tree
            known = {"extensions": {"dev.interlock/ax": {}}}
            assert KEY not in client.modern("tools/list", capabilities=known).message["result"].get("_meta", {})


@pytest.mark.req("AX-10.2-2")
def test_a_parent_says_how_many_tools_of_a_child_it_does_not_list_and_the_number_follows(tmp_path: Path) -> None:
    above, below = tmp_path / "root", tmp_path / "edge"
    with running_node(above, {}) as root, running_node(below, BENCH, JOINS.format(ax_url(root))) as edge:
        edge.wait_link("bench", {"state": "ready"})
        number = len(changing(edge))
        told(root, {SCOPE: number})
        says = unwrapped(root.cli("status").stdout)
        assert f"does not offer {number} tools here: {SCOPE}" in says
        assert "offers only tools that read" not in says
        assert f"not offered {number} tools: {SCOPE}" in unwrapped(root.cli("status", "edge").stdout)

        # Tools that the parent does not see come and go
        write_config(below, TWO, JOINS.format(ax_url(root)))
        told(root, {SCOPE: 2 * number})
        write_config(below, BENCH, JOINS.format(ax_url(root)))
        told(root, {SCOPE: number})
        # one of them is said to read
        reads = '[[tool]]\nmatch = "bench.fail"\nmutable = false\nauth_scope = "read"\n'
        write_config(below, BENCH, JOINS.format(ax_url(root)) + reads)
        told(root, {SCOPE: number - 1})

        # The child's own entry: fewer tools, then less than the parent grants
        own = '[[access]]\nwho = ["parent:*"]\ntools = ["nothing.*"]\n'
        listed = root.link("edge")["tools"]
        write_config(below, BENCH, JOINS.format(ax_url(root)) + own)
        told(root, {SCOPE: number, OWN_TOOLS: listed - 1})
        write_config(above, {}, '[[access]]\nwho = ["local"]\nscope = "admin"\n')
        write_config(below, BENCH, JOINS.format(ax_url(root)) + '[[access]]\nwho = ["parent:*"]\nscope = "read"\n')
        told(root, {OWN_SCOPE: number})
        found = wait_parent(edge, {"scope": "admin"})
        assert found["not_listed"] == number
        assert found["not_listed_because"] == {"an [[access]] entry of this node lets it use scope read": number}
        # and nothing is left out
        write_config(below, BENCH, JOINS.format(ax_url(root)) + '[[access]]\nwho = ["parent:*"]\nscope = "admin"\n')
        told(root, {})


async def test_a_child_that_tells_no_number_is_listed_as_before(tmp_path: Path) -> None:
    """One that says nothing, and one that says nonsense."""
    async with beside(running_node(tmp_path / "root", {})) as root:
        nonsense = ("many", {"scope": "read", "beyond_scope": -1}, {"beyond_scope": 10**30})
        for number, meta in enumerate((None, *({KEY: one} for one in nonsense))):
            async with bare_subserver(root, f"edge{number}", tools=[tool("look")], list_meta=meta):
                link = await to_thread(root.wait_link, f"edge{number}", {"tools": 1})
                assert link["not_listed_because"] is None
                said = await to_thread(root.cli, "status", "--json")
                assert '"not_listed_because": {' not in said.stdout
        assert "offers only tools that read" in unwrapped((await to_thread(root.cli, "status")).stdout)


@pytest.mark.timeout(120)  # a browser starts slowly beside others
def test_the_console_shows_what_is_not_listed_on_both_sides(tmp_path: Path, browser: Any) -> None:  # noqa: F811
    above, below = tmp_path / "root", tmp_path / "edge"
    with running_node(above, {}) as root, running_node(below, BENCH, JOINS.format(ax_url(root))) as edge:
        edge.wait_link("bench", {"state": "ready"})
        number = len(changing(edge))
        told(root, {SCOPE: number})
        for node, where, why in ((root, "edge", SCOPE), (edge, ax_url(root), "it grants us the scope read")):
            context = browser.new_context()
            page = log_in(node, context)
            row = page.locator(".row", has_text=where).filter(has_text=why)
            row.wait_for()
            assert f"{number} tools" in row.inner_text()
            context.close()
        context = browser.new_context()
        page = log_in(root, context)
        page.goto(page.url + "servers?server=edge")
        page.get_by_text(f"{number} tools: {SCOPE}").wait_for()
        context.close()
