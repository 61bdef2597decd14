"""A node whose registry is old and whose servers are not all honest: what operators and clients are told of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.gate.held_calls import ADA, GATED, Client, anchor, token
from tests.names.listed_server import served
from tests.names.old_registry import ARGUMENT, RETURN, before, register
from tests.support.node_process import RunningNode, running_node, wait_for

READS = {"readOnlyHint": True}
POOR = '[[access]]\nwho = ["client:poor"]\nbudget = { max_calls_per_minute = 1 }\n'
NARROW = '[[access]]\nwho = ["client:narrow"]\ntools = ["elsewhere.*"]\n'


def tool(name: str, argument: Any = ARGUMENT, **members: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": argument, "outputSchema": RETURN, "annotations": READS, **members}


OFFERED = (
    tool("acme_search"),
    tool("acme_read"),
    tool("acme_fire", annotations={"destructiveHint": True}),
    tool("relist"),
)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tools") / "tools.json"
    path.write_text(json.dumps(OFFERED))
    return path


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, tools: Path) -> Iterator[RunningNode]:
    folder = tmp_path_factory.mktemp("held")
    (folder / "data").mkdir(mode=0o700)
    register(folder / "data")
    more = '[auth]\nanonymous = "never"\n' + GATED + anchor("ada", ADA, "*") + POOR + NARROW
    # A changed definition is seen at once, so that it is compared with what is registered and pinned.
    with running_node(folder, {"shop": {**served(tools), "definitions": "notify"}}, more) as running:
        running.wait_link("shop", {"state": "ready"})
        yield running


def relisted(node: RunningNode, tools: Path, *offered: dict[str, Any]) -> None:
    tools.write_text(json.dumps(offered))
    with Client(node, token=token(node, "relister")) as client:
        client.call("shop.relist", {"q": "x"})


@pytest.mark.req("REG-5-13")
def test_a_late_review_is_reported_everywhere(node: RunningNode) -> None:
    listed = node.cli("names", "list")
    assert listed.returncode == 1 and "1 review of provisional names overdue" in listed.stderr
    (line,) = [line for line in listed.stdout.splitlines() if line.startswith("acme_draft")]
    assert "review overdue" in line
    assert "1 review of registered names overdue: interlock names list" in node.cli("status").stdout
    assert node.admin("/admin/status")["names"] == {"overdue": 1, "unconfirmed": 1}
    metrics = node.text("/metrics").splitlines()
    assert "interlock_names_reviews_overdue 1" in metrics
    assert 'interlock_names_entries{status="Provisional"} 1' in metrics
    told = node.cli("names", "show", "acme_draft", "--log").stdout
    assert "review_notice by registry" in told and f"was due on {before(35)}, and is overdue" in told
    assert [one["tool"] for one in node.admin("/approvals?kind=request")["approvals"]] == ["names.acme_draft"]


@pytest.mark.req("REG-8.4-1")
def test_a_public_name_loosens_nothing(node: RunningNode) -> None:
    with Client(node, token="ilc_wrong") as stranger:
        assert stranger.wire.modern("tools/list").status == 401
    with Client(node, token=token(node, "rich")) as client:
        surface = {one["name"]: one["_meta"] for one in client.ask("tools/list", {})["result"]["tools"]}
        assert surface["shop__acme_read"]["dev.interlock/surface"]["verdict"] == "identical"
        assert client.held("shop__acme_fire", {"q": "x"})["tool"] == "shop.acme_fire"
        assert client.call("shop__acme_read", {"q": "x"})["structuredContent"] == {"did": "acme_read"}
    with Client(node, token=token(node, "narrow")) as client:
        assert client.ask("tools/list", {})["result"]["tools"] == []
        assert client.refused("shop.acme_read", {"q": "x"})["code"] == -32601
    with Client(node, token=token(node, "poor")) as client:
        client.call("shop.acme_read", {"q": "x"})
        assert client.refused("shop.acme_read", {"q": "x"})["message"] == "budget_exceeded"


@pytest.mark.req("REG-8.4-2", "REG-7.1-2")
def test_public_names_are_audited_and_confirmed_with_one_action(node: RunningNode) -> None:
    listed = json.loads(node.cli("names", "list", "--public", "--json").stdout)
    found = {one["surface_name"]: one for one in listed["names"]}
    assert {name: (one["servers"], one["is_unconfirmed"]) for name, one in found.items()} == {
        "acme_fire": (["shop"], True),
        "acme_read": (["shop"], False),
    }
    for form in ("json", "xml", "csv", "txt"):  # who offers a name is not in the registry
        published = node.cli("names", "publish", "--form", form).stdout
        assert "acme_read" in published and "shop" not in published
    assert "shop" not in node.cli("names", "show", "acme_read", "--log", "--json").stdout
    with Client(node, token=token(node, "narrow")) as client:
        client.refused("shop.acme_read", {"q": "x"})
    with Client(node, token=token(node, "rich")) as client:
        client.call("shop.acme_read", {"q": "x"})
    again = json.loads(node.cli("names", "list", "--public", "--json").stdout)["names"]
    calls = {one["surface_name"]: one["calls"] for one in again}
    assert calls == {"acme_read": found["acme_read"]["calls"] + 1, "acme_fire": 0}
    drawn = node.cli("names", "list", "--public").stdout
    assert "confirm it" in drawn and before(10) in drawn and "shop" in drawn
    assert "1 public name to be confirmed" in node.cli("status").stdout
    assert "public_notice by registry" in node.cli("names", "show", "acme_fire", "--log").stdout
    assert node.cli("names", "confirm-public", "acme_fire").returncode == 0
    assert "confirm_public by" in node.cli("names", "show", "acme_fire", "--log").stdout
    assert "names/confirm_public" in node.cli("audit", "tail", "--json").stdout
    assert node.admin("/admin/status")["names"] == {"overdue": 1, "unconfirmed": 0}


TWICE = (tool("acme_read"), tool("acme_read", {"type": "object"}))
SIMILAR = ("acme_serch", "acme_searchh", "acme_saerch", "acme_sear4h", "асme_search")  # the last is not all ASCII


@pytest.mark.req("REG-7.1-3", "REG-4.2-5", "REG-3-2")
def test_names_that_are_doubled_or_close_to_registered_names_are_reported(node: RunningNode, tools: Path) -> None:
    others = (tool("acme_extra"), tool("lone_wolf"), *map(tool, SIMILAR))
    relisted(node, tools, tool("acme_search"), tool("relist"), *TWICE, *others)
    link = node.wait_link("shop", {"tools": 4 + len(SIMILAR)})
    (withheld,) = link["withheld"]
    assert withheld["name"] == "acme_read" and withheld["reason"].startswith("duplicate_in_manifest: ")
    with Client(node, token=token(node, "rich"), path="/mcp?names=qualified") as client:
        listed = {one["name"] for one in client.ask("tools/list", {})["result"]["tools"]}
        assert "shop.acme_read" not in listed
        assert client.call("shop.acme_extra", {"q": "x"})["structuredContent"] == {"did": "acme_extra"}
    shown = node.cli("tools", "show", "shop.acme_read")
    assert shown.returncode == 1 and "duplicate_in_manifest" in shown.stderr
    assert {one["name"] for one in link["noted"]} == set(SIMILAR)
    assert all("near_miss: its name looks like the registered acme_search" in one["note"] for one in link["noted"])
    told = " ".join(node.cli("status", "shop").stdout.split())
    assert "duplicate_in_manifest" in told and "acme_serch: near_miss" in told
    for name, said in (("acme_extra", "unregistered_sibling: Acme"), ("lone_wolf", "prefix_advice: names that Acme")):
        shown = node.cli("tools", "show", f"shop.{name}").stdout
        assert f"{name}: unregistered" in shown and said in " ".join(shown.split())
    relisted(node, tools, *OFFERED)
    node.wait_link("shop", {"tools": len(OFFERED)})


@pytest.mark.req("REG-4.2-8")
def test_a_surface_name_is_shown_unchanged_where_no_prefix_is_in_use(node: RunningNode) -> None:
    with Client(node, token=token(node, "rich"), path="/mcp/only/shop") as client:
        listed = {one["name"] for one in client.ask("tools/list", {})["result"]["tools"]}
        assert {"acme_search", "acme_read"} <= listed
        assert client.call("acme_read", {"q": "x"})["structuredContent"] == {"did": "acme_read"}
    with Client(node, token=token(node, "rich")) as client:
        aliases = {one["name"] for one in client.ask("tools/list", {})["result"]["tools"]}
        assert {alias.rpartition("__")[2] for alias in aliases} == listed


@pytest.mark.req("REG-8.2-3", "REG-9-5")
def test_a_tool_is_pinned_to_what_it_is_until_it_is_pinned_again(node: RunningNode, tools: Path) -> None:
    narrower = ARGUMENT | {"properties": {"q": {"type": "string", "maxLength": 3}}}
    relisted(node, tools, *OFFERED, tool("lone_wolf"))
    node.wait_link("shop", {"tools": len(OFFERED) + 1})
    pinned = node.cli("names", "repin", "lone_wolf")
    assert pinned.returncode == 0 and pinned.stdout.startswith("shop.lone_wolf is pinned (sha256:"), pinned.stderr
    relisted(node, tools, *OFFERED, tool("lone_wolf", narrower))
    wait_for(lambda: node.link("shop")["withheld"])
    with Client(node, token=token(node, "rich"), path="/mcp?names=qualified") as client:
        refused = client.refused("shop.lone_wolf", {"q": "x"})
        assert (refused["code"], refused["message"]) == (32141, "specification_drift")
        assert [one["path"] for one in refused["data"]["differences"]] == ["/q"]
        assert "interlock names repin lone_wolf" in refused["data"]["detail"]
        assert node.cli("names", "repin", "lone_wolf").returncode == 0
        assert client.call("shop.lone_wolf", {"q": "x"})["structuredContent"] == {"did": "lone_wolf"}
    relisted(node, tools, *OFFERED, tool("lone_wolf"))
    wait_for(lambda: node.link("shop")["noted"])  # wider than what is pinned: a warning
    assert "it is not what is pinned" in node.cli("tools", "show", "shop.lone_wolf").stdout
    unpinned = node.cli("names", "repin", "shop.lone_wolf", "--remove")
    assert "shop.lone_wolf is no longer pinned" in unpinned.stdout
    assert "pinned" not in node.cli("tools", "show", "shop.lone_wolf").stdout
    missing = node.cli("names", "repin", "acme_nothing")
    assert missing.returncode == 1 and "acme_nothing" in missing.stderr
