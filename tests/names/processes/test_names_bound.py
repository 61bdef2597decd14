"""Is a server held to the registry from its first list on: a driver's when it starts, and a call that came before?"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.drivers.driver_node import INPUTS, SERVER, Workspace, wait_states
from tests.drivers.driver_texts import contract, text
from tests.gate.held_calls import Client
from tests.names.old_registry import ARGUMENT, RETURN, entry, register
from tests.support.node_process import RunningNode, running_node, wait_for

QUALIFIED = "/mcp?names=qualified"
NAMES = ("acme_search", "acme_read", "echo")
OTHER = {"type": "object", "properties": {"q": {"type": "integer"}}, "required": ["q"]}
HELD = (
    "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)\nos.execv(sys.argv[2], sys.argv[2:])"
)


@pytest.mark.req("REG-8.1-1", "REG-8.1-2")
def test_a_driver_is_judged_when_it_starts(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    register(data, entry("acme_search"), entry("acme_read", argument=INPUTS, returned={"type": "object"}))
    workspace = Workspace(tmp_path)
    tools = workspace.tools(*NAMES)
    folder = workspace.add("shop-mcp", *tools, tools={name: name.replace("_", "-") for name in NAMES})
    for name in NAMES:
        id = name.replace("_", "-")
        listed_as = {"interlock": {"name": f"demo.{name}"}}
        said = contract(id=id, inputs=INPUTS, outputs={"type": "object"}, metadata=listed_as)
        (folder / "tools" / id / "TOOL.md").write_bytes(text(said))
    with workspace.node() as node:
        wait_states(node, "ready", "shop-mcp")
        with Client(node, path=QUALIFIED) as client:
            listed = {one["name"]: one for one in client.ask("tools/list", {})["result"]["tools"]}
            assert listed.keys() == {"demo.acme_read", "demo.echo"}
            assert listed["demo.acme_read"]["_meta"]["dev.interlock/surface"]["verdict"] == "identical"
            refused = client.refused("demo.acme_search", {"n": 1})
            assert (refused["code"], refused["message"]) == (32140, "surface_mismatch")
            assert client.call("demo.acme_read", {"n": 1})["structuredContent"]["n"] == 1
        assert called(workspace.log("shop-mcp")) == ["acme_read"]


@pytest.mark.req("REG-8.2-3")
def test_a_drivers_contract_is_pinned_until_it_is_pinned_again(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    folder = workspace.add("shop-mcp", *workspace.tools("echo"), tools={"echo": "demo.echo"})
    with workspace.node() as node:
        wait_states(node, "ready", "shop-mcp")
        pinned = node.cli("names", "repin", "demo.echo")
        assert pinned.returncode == 0 and pinned.stdout.startswith("demo.echo is pinned"), pinned.stderr
        narrower = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 5}}}
        said = contract(id="demo.echo", inputs=narrower, outputs={"type": "object"})
        (folder / "tools" / "demo.echo" / "TOOL.md").write_bytes(text(said))

        def refusal() -> Any:
            with Client(node, path=QUALIFIED) as client:
                return client.ask("tools/call", {"name": "demo.echo", "arguments": {"n": 1}}).get("error")

        refused = wait_for(lambda: (told := refusal()) and told["code"] == 32141 and told, 20)
        assert refused["message"] == "specification_drift"
        assert [one["path"] for one in refused["data"]["differences"]] == ["/n", "/until"]
        assert node.cli("names", "repin", "demo.echo").returncode == 0
        assert refusal() is None


def called(log: Path) -> list[str]:
    got = [json.loads(line).get("got", {}) for line in log.read_text().splitlines()]
    return [one["params"]["name"] for one in got if one.get("method") == "tools/call"]


@pytest.mark.req("REG-8.1-1", "REG-8.1-2")
def test_a_call_that_comes_before_the_verdict_waits_for_it(tmp_path: Path) -> None:
    data, log, come, listed = (tmp_path / name for name in ("data", "server.log", "come", "tools.json"))
    data.mkdir(mode=0o700)
    register(data)
    reads = {"outputSchema": RETURN, "annotations": {"readOnlyHint": True}}
    tools = [{"name": "acme_search", "inputSchema": OTHER, **reads}, {"name": "free", "inputSchema": ARGUMENT, **reads}]
    listed.write_text(json.dumps(tools))
    server = [sys.executable, str(SERVER), "--log", str(log), "--tools", str(listed)]
    shop = {"command": [sys.executable, "-S", "-c", HELD, str(come), *server]}

    def call(name: str) -> Any:
        with Client(node, path=QUALIFIED) as client:
            return client.ask("tools/call", {"name": name, "arguments": {"q": "x"}})

    with running_node(tmp_path, {"shop": shop}, announced=False) as node, ThreadPoolExecutor() as pool:
        assert state_of(node) == "connecting"
        early = [pool.submit(call, name) for name in ("shop.acme_search", "shop.free")]
        assert not log.exists()
        come.touch()
        refused, done = (each.result(20) for each in early)
        assert (refused["error"]["code"], refused["error"]["message"]) == (32140, "surface_mismatch")
        assert done["result"]["structuredContent"]["q"] == "x"
        assert called(log) == ["free"]  # nothing of the other reached it


def state_of(node: RunningNode) -> Any:
    return node.link("shop")["state"]
