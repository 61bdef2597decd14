"""Contracts of a real node, from files in its workspace to a client at its door: both eras, on both sides."""

import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.drivers import driver_texts
from tests.servers.start import raw
from tests.support.node_process import RunningNode, Wire, running_node, wait_for

ANY = {"type": "object"}
PLAY = {"type": "object", "properties": {"act": ANY, "label": {"type": "string"}}}
KEEP = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
SKILL = "---\nname: summarize\ndescription: Says less.\n---\nSay less.\n"
BLOCK = {
    "name": "plain",
    "integrate_as": "skill_block",
    "skill_ref": "./skills/summarize/SKILL.md",
    "description": "Says it plainly.",
}
DRIVERS = '[drivers]\ntrust_workspace = true\nsandbox = { new-mcp = "off", old-mcp = "off" }\n'


def write(workspace: Path, ident: str, era: str, contracts: dict[str, dict[str, Any]], **changed: Any) -> None:
    """`contracts`: the server's tool -> what its contract says."""
    folder = workspace / ".drivers" / ident
    bindings = []
    for tool, said in contracts.items():
        place = folder / "tools" / tool
        place.mkdir(parents=True, exist_ok=True)
        (place / "TOOL.md").write_bytes(driver_texts.text(driver_texts.contract(**{"outputs": ANY, **said})))
        bindings.append(driver_texts.binding(tool=f"./tools/{tool}/TOOL.md", metadata={"mcp": {"tool_name": tool}}))
    command = raw("driven,recorder,prompts,resources", "--era", era)
    server = {"kind": "binary", "path": sys.executable, "args": command[1:]}
    data = driver_texts.driver(id=ident, server=server, implements=bindings, **changed)
    (folder / "skills" / "summarize").mkdir(parents=True, exist_ok=True)
    (folder / "skills" / "summarize" / "SKILL.md").write_text(SKILL)
    (folder / "DRIVER.md").write_bytes(driver_texts.text(data))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    folder = tmp_path_factory.mktemp("served")
    workspace = folder / "workspace"
    for era in ("new", "old"):
        contracts = {
            "keep": {"id": f"{era}.keep", "inputs": KEEP, "description": "Keeps it."},
            "play": {"id": f"{era}.play", "inputs": PLAY, "timeout_ms": 3000},
        }
        prompts = [{"name": "greet", "integrate_as": "raw"}, BLOCK]
        kind = {"uri_template": "raw://{path}", "integrate_as": "ref_kind", "ref_kind_id": f"{era}_notes"}
        write(
            workspace,
            f"{era}-mcp",
            {"new": "modern", "old": "legacy"}[era],
            contracts,
            prompts=prompts,
            resources=[kind],
        )
    with running_node(folder, {}, DRIVERS) as node:
        wait_for(lambda: len(_names(node)) == 4, 30)
        yield node


def _names(node: RunningNode) -> list[str]:
    return [each["name"] for each in node.admin("/admin/tools")["tools"]]


@contextlib.contextmanager
def client(node: RunningNode, era: str) -> Iterator[Any]:
    with Wire(node) as wire:
        if era == "legacy":
            wire.initialize()
        yield wire.modern if era == "modern" else wire.legacy


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("side", ["new", "old"])
def test_a_contract_is_listed_and_called_across_the_eras(node: RunningNode, side: str, era: str) -> None:
    with client(node, era) as ask:
        tools = {each["name"]: each for each in ask("tools/list").message["result"]["tools"]}
        assert tools[f"{side}__keep"]["description"] == "Keeps it."
        assert tools[f"{side}__keep"]["_meta"]["dev.interlock/contract"] == f"{side}.keep@1.0.0"
        result = ask("tools/call", {"name": f"{side}__keep", "arguments": {"path": "/a"}}).message["result"]
        assert result["structuredContent"] == {"got": {"path": "/a"}}
        assert ("resultType" in result) is (era == "modern")
        wrong = ask("tools/call", {"name": f"{side}__keep", "arguments": {}}).message["result"]
        assert wrong["_meta"]["dev.interlock/error"]["code"] == "input_invalid"
        assert wrong["isError"] is True


@pytest.mark.parametrize("side", ["new", "old"])
def test_prompts_and_references_of_a_driver_reach_its_server(node: RunningNode, side: str) -> None:
    with client(node, "modern") as ask:
        got = ask("prompts/get", {"name": f"{side}__greet", "arguments": {"who": "Ada"}}).message["result"]
        assert got["x-arguments"] == {"who": "Ada"}
        read = ask("resources/read", {"uri": f"mcp_{side}_notes:raw://text"}).message["result"]
        assert read["contents"][0]["text"] == "text of raw://text"
        refused = ask("resources/read", {"uri": f"mcp_{side}_notes:http://elsewhere/"}).message["error"]
        assert refused["data"]["reason"] == "ref_invalid"


@pytest.mark.req("AIP-prompts-3")
def test_a_prompt_becomes_a_block_of_the_skill_it_names(node: RunningNode) -> None:
    with client(node, "modern") as ask:
        prompts = {each["name"]: each for each in ask("prompts/list").message["result"]["prompts"]}
        assert prompts["new__summarize_plain"]["description"] == "Says it plainly."
        got = ask("prompts/get", {"name": "new__summarize_plain"}).message["result"]
        assert got["messages"][0]["content"]["text"] == "Hello."
    shown = json.loads(node.cli("skills", "show", "summarize", "--json").stdout)
    assert [(each["block"], each["driver"]) for each in shown["blocks"]] == [
        ("summarize_plain", "new-mcp@1"),
        ("summarize_plain", "old-mcp@1"),
    ]
    assert "Says it plainly." in node.cli("skills", "show", "summarize").stdout
    assert "summarize 2 blocks" in [" ".join(line.split()) for line in node.cli("skills", "list").stdout.splitlines()]
    assert node.cli("skill", "show", "other").returncode == 1
    skill = node.config.parent / ".drivers/new-mcp/skills/summarize/SKILL.md"
    assert skill.read_text() == SKILL


@pytest.mark.req("AIP-transport-13", "AIP-extract-5")
@pytest.mark.parametrize("side", ["new", "old"])
def test_a_server_that_dies_fails_its_open_calls_and_the_next_call_runs_on_a_new_process(
    node: RunningNode, side: str
) -> None:
    key = side
    before = node.link(key)["pid"]
    answers: list[Any] = []

    def wait() -> None:
        with client(node, "modern") as ask:
            answers.append(ask("tools/call", {"name": f"{side}__play", "arguments": {"act": {"wait": True}}}).message)

    waiting = [threading.Thread(target=wait) for _ in range(3)]
    for each in waiting:
        each.start()
    wait_for(lambda: node.admin("/admin/status")["calls"]["in_flight"] >= 3)
    with client(node, "modern") as ask:
        lost = ask("tools/call", {"name": f"{side}__play", "arguments": {"act": {"exit": 7}}}).message["error"]
        for each in waiting:
            each.join(timeout=2)
        for error in (lost, *(answer["error"] for answer in answers)):
            assert (error["message"], error["data"]["outcome"]) == ("tool_degraded", "unknown")
        again = ask("tools/call", {"name": f"{side}__play", "arguments": {"label": "again"}}).message["result"]
        assert again["structuredContent"]["done"] == "again"
    assert len(answers) == 3
    assert node.link(key)["pid"] != before
    shown = node.cli("drivers", "show", key).stdout
    assert "ended        exited with code 7" in shown
    assert f"{side}.play@1.0.0 by play, results read as text" in shown
    log = (node.data.parent / "stderr.txt").read_text()
    for answer in answers:
        (line,) = [each for each in log.splitlines() if answer["error"]["data"]["ref"] in each]
        assert "7" in line


def test_the_log_of_decisions_holds_every_call(node: RunningNode) -> None:
    with client(node, "modern") as ask:
        ask("tools/call", {"name": "new__keep", "arguments": {"path": "/marked-path"}})

    def rows() -> list[Any]:
        found = node.admin("/admin/audit?limit=1000")["records"]
        return [each for each in found if each["method"].startswith("driver.") and each["tool"] == "new.keep"]

    wait_for(lambda: len(rows()) >= 2)
    assert [each["method"] for each in rows()[-2:]] == ["driver.resolved", "driver.invoked"]
    assert "/marked-path" not in json.dumps(rows())
    assert "driver.invoked new.keep" in node.cli("audit", "tail").stdout
