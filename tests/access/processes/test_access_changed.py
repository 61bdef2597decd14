"""An [[access]] entry changes while those it is about are connected: does it hold at once, and are they told?"""

import json
import sys
from pathlib import Path

import pytest
from tests.ax.tree import ax_url, wait_parent
from tests.servers.start import raw
from tests.support.node_process import running_node, wait_for, write_config
from tests.support.peers import LEGACY, MODERN, HttpPeer, Peer, StdioPeer

BENCH = {"bench": {"command": raw("all")}}
ECHO_ONLY = '[[access]]\nwho = ["local"]\ntools = ["bench.echo"]\n'
CHANGED = "notifications/tools/list_changed"


async def listed(peer: Peer) -> set[str]:
    return {tool["name"] for tool in (await peer.request("tools/list")).result["tools"]}


async def narrows_and_widens(peer: Peer, folder: Path) -> None:
    assert len(await listed(peer)) > 1
    write_config(folder, BENCH, ECHO_ONLY)
    await peer.hear(CHANGED, seconds=20)
    assert await listed(peer) == {"bench__echo"}
    refused = await peer.call("bench__fail")
    assert refused.error["data"]["reason"] == "tool_not_found"
    peer.forget()
    write_config(folder, BENCH)
    await peer.hear(CHANGED, seconds=20)
    assert len(await listed(peer)) > 1


async def test_open_clients_over_http_are_informed_and_see_what_they_may_now(tmp_path: Path) -> None:
    with running_node(tmp_path, BENCH) as node:
        node.wait_link("bench", {"state": "ready"})
        url = f"http://{node.host}:{node.port}/mcp"
        async with await HttpPeer.legacy(url) as peer:
            await peer.listen()
            await narrows_and_widens(peer, tmp_path)
        async with await HttpPeer.modern_(url) as peer:
            peer.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            await peer.hear("notifications/subscriptions/acknowledged")
            await narrows_and_widens(peer, tmp_path)


@pytest.mark.parametrize("era", [LEGACY, MODERN])
async def test_an_open_client_on_stdio_is_informed_and_sees_what_it_may_now(tmp_path: Path, era: str) -> None:
    config = write_config(tmp_path, BENCH)
    command = ["serve", "--stdio", "--config", str(config), "--data", str(tmp_path / "data")]
    async with await StdioPeer.start([sys.executable, "-m", "interlock", *command], era) as peer:
        if era == MODERN:
            peer.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            await peer.hear("notifications/subscriptions/acknowledged")
        await narrows_and_widens(peer, tmp_path)


@pytest.mark.req("AX-10.2-2")
def test_a_registrant_gets_the_scope_of_its_new_entry_and_both_sides_show_what_is_not_listed(tmp_path: Path) -> None:
    """One line per reason at the parent and at the child; neither is started again."""
    above, below = tmp_path / "root", tmp_path / "edge"
    joins = '[[ax.parents]]\nurl = "{}"\nsegment = "edge"\n'
    with running_node(above, {}) as root, running_node(below, BENCH, joins.format(ax_url(root))) as edge:
        edge.wait_link("bench", {"state": "ready"})
        found = wait_for(lambda: (one := wait_parent(edge, {"state": "registered"}))["not_listed"] and one, 20)
        ((reason, number),) = found["not_listed_because"].items()
        assert number == found["not_listed"] > 10
        assert "scope read" in reason
        assert edge.cli("status").stdout.count("it does not list") == 1
        said = f"does not offer {number} tools here: they need more than scope read, which local has"
        assert said in unwrapped(root.cli("status").stdout)

        write_config(above, {}, '[[access]]\nwho = ["local"]\nscope = "admin"\n')
        found = wait_for(lambda: (one := wait_parent(edge, {"scope": "admin"}))["not_listed"] and one, 20)
        wait_for(lambda: root.link("edge")["withheld"], 20)
        ((reason, number),) = found["not_listed_because"].items()
        assert "authority of this registrant is not proved" in reason
        says = unwrapped(root.cli("status").stdout)
        assert says.count("withheld") == 1
        assert f"withheld {number} tools (bench." in says
        assert edge.process.poll() is None


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def test_a_child_gets_the_scope_of_its_new_entry(tmp_path: Path) -> None:
    leaf = Path(__file__).parents[2] / "ax" / "leaf.py"
    child = f'[[ax.children]]\nsegment = "kid"\ncommand = {json.dumps([sys.executable, str(leaf), "kid"])}\n'
    with running_node(tmp_path, {}, child) as node:
        node.wait_link("kid", {"state": "ready"})
        assert node.link("kid")["registration"]["auth_scope"] == "admin"
        write_config(tmp_path, {}, f'{child}[[access]]\nwho = ["child:*"]\nscope = "read"\n')
        wait_for(lambda: node.link("kid").get("registration", {}).get("auth_scope") == "read", 30)
