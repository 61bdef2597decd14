"""Contracts, prompts and resources of the reference servers, through a real node: what the specification's own servers
say reaches clients as the ledger has it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.conformance.driver_places import installed
from tests.drivers import driver_texts
from tests.support.node_process import RunningNode, Wire, running_node, wait_for

SCOPE = "@modelcontextprotocol"
OFF = '[drivers]\ntrust_workspace = true\nsandbox = { everything-mcp = "off", filesystem-mcp = "off" }\n'
DYNAMIC = "demo://resource/dynamic/text/{id}"
STATIC = "demo://resource/static/document/{path}"
MESSAGE = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
LONG = {"type": "object", "properties": {"duration": {"type": "number"}, "steps": {"type": "number"}}}
PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
SAID = {"type": "object", "properties": {"content": {"type": "string"}}, "required": ["content"]}

pytestmark = pytest.mark.timeout(300)


def write(workspace: Path, ident: str, command: tuple[str, ...], contracts: dict[str, Any], **changed: Any) -> None:
    folder = workspace / ".drivers" / ident
    bindings = []
    for tool, said in contracts.items():
        (folder / "tools" / tool).mkdir(parents=True)
        (folder / "tools" / tool / "TOOL.md").write_bytes(driver_texts.text(driver_texts.contract(**said)))
        bindings.append(driver_texts.binding(tool=f"./tools/{tool}/TOOL.md", metadata={"mcp": {"tool_name": tool}}))
    server = {"kind": "binary", "path": command[0], "args": list(command[1:])}
    data = driver_texts.driver(id=ident, server=server, implements=bindings, **changed)
    (folder / "DRIVER.md").write_bytes(driver_texts.text(data))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def commands() -> dict[str, tuple[str, ...]]:
    made = {}
    for name in ("everything", "filesystem"):
        server = {"kind": "npm", "package": f"{SCOPE}/server-{name}@2026.8.31"}
        reading = driver_texts.as_driver(driver_texts.driver(id=f"{name}-mcp", server=server))
        assert reading.value is not None
        made[name] = (await installed(reading.value)).command
    return made


@pytest.fixture(scope="module")
def node(commands: dict[str, tuple[str, ...]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    folder = tmp_path_factory.mktemp("reference")
    workspace, files = folder / "workspace", folder / "files"
    files.mkdir()
    (files / "a.txt").write_text("what a says")
    write(
        workspace,
        "everything-mcp",
        commands["everything"],
        {
            "echo": {"id": "demo.echo", "inputs": MESSAGE, "outputs": SAID},
            "trigger-long-running-operation": {"id": "demo.long", "inputs": LONG, "outputs": SAID},
        },
        prompts=[{"name": "simple-prompt", "integrate_as": "raw"}, {"name": "args-prompt", "integrate_as": "raw"}],
        resources=[
            {"uri_template": DYNAMIC, "integrate_as": "raw"},
            {"uri_template": STATIC, "integrate_as": "ref_kind", "ref_kind_id": "documents"},
        ],
    )
    write(
        workspace,
        "filesystem-mcp",
        (*commands["filesystem"], str(files)),
        {"read_text_file": {"id": "files.read", "inputs": PATH, "outputs": SAID}},
        resources=[{"uri_template": "file://{path}", "integrate_as": "ref_kind", "ref_kind_id": "filesystem"}],
    )
    with running_node(folder, {}, OFF) as node:
        wait_for(lambda: len(node.admin("/admin/tools")["tools"]) == 3, 60)
        yield node


@pytest.fixture
def wire(node: RunningNode) -> Iterator[Wire]:
    with Wire(node) as wire:
        yield wire


def called(wire: Wire, name: str, arguments: Any, **options: Any) -> Any:
    return wire.modern("tools/call", {"name": name, "arguments": arguments}, **options)


@pytest.mark.req("AIP-tools-13")
def test_a_file_outside_is_upstream_error_in_the_servers_words(node: RunningNode, wire: Wire) -> None:
    files = node.data.parent / "files"
    result = called(wire, "files__read", {"path": str(files / "a.txt")}).message["result"]
    assert result["structuredContent"] == {"content": "what a says"}
    denied = called(wire, "files__read", {"path": "/etc/passwd"}).message["result"]
    assert denied["isError"] is True
    assert denied["content"][0]["text"].startswith("upstream_error: Access denied")
    assert len(denied["content"]) == 1


@pytest.mark.req("AIP-transport-14")
def test_progress_of_a_long_operation_reaches_its_caller_alone(wire: Wire) -> None:
    arguments = {"duration": 0.6, "steps": 3}
    answer = called(wire, "demo__long", arguments, meta={"progressToken": "mine"})
    told = [each["params"] for each in answer.events if each.get("method") == "notifications/progress"]
    assert [each["progressToken"] for each in told] == ["mine"] * 3
    silent = called(wire, "demo__long", arguments)
    assert len(silent.events) == 1
    assert silent.message["result"]["structuredContent"] == answer.message["result"]["structuredContent"]


@pytest.mark.req("AIP-prompts-2")
def test_declared_prompts_are_the_servers_own(wire: Wire) -> None:
    prompts = {each["name"]: each for each in wire.modern("prompts/list").message["result"]["prompts"]}
    assert sorted(prompts) == ["everything__args-prompt", "everything__simple-prompt"]
    assert "arguments" not in prompts["everything__simple-prompt"]
    assert [each["name"] for each in prompts["everything__args-prompt"]["arguments"]] == ["city", "state"]
    got = wire.modern("prompts/get", {"name": "everything__simple-prompt"})
    text = {"type": "text", "text": "This is a simple prompt without arguments."}
    assert got.message["result"]["messages"] == [{"role": "user", "content": text}]
    filled = wire.modern("prompts/get", {"name": "everything__args-prompt", "arguments": {"city": "Bern"}})
    assert "Bern" in filled.message["result"]["messages"][0]["content"]["text"]


@pytest.mark.req("AIP-resources-4")
def test_resources_of_a_declared_template_are_listed_and_no_others(wire: Wire) -> None:
    templates = wire.modern("resources/templates/list").message["result"]["resourceTemplates"]
    shown = sorted(each["uriTemplate"] for each in templates)
    assert [each for each in shown if "demo" in each] == [
        "mcpax://everything/demo://resource/dynamic/text/{resourceId}"
    ]
    assert wire.modern("resources/list").message["result"]["resources"] == []
    uri = "demo://resource/dynamic/text/7"
    assert wire.modern("resources/read", {"uri": uri}).message["result"]["contents"][0]["uri"] == uri
    refused = wire.modern("resources/read", {"uri": "mcpax://everything/demo://resource/dynamic/blob/7"})
    assert refused.message["error"]["data"]["reason"] == "resource_unavailable"


@pytest.mark.req("AIP-resources-1", "AIP-resources-2")
def test_references_are_read_through_their_server_where_it_has_resources(node: RunningNode, wire: Wire) -> None:
    uri = "demo://resource/static/document/features.md"
    read = wire.modern("resources/read", {"uri": f"mcp_documents:{uri}"}).message["result"]
    assert read["contents"][0]["uri"] == uri
    file = f"mcp_filesystem:file://{node.data.parent}/files/a.txt"
    refused = wire.modern("resources/read", {"uri": file}).message["error"]
    assert refused["data"]["reason"] == "resource_unavailable"
    states = {each["id"]: each["state"] for each in node.admin("/admin/drivers")["drivers"]}
    assert states == {"everything-mcp": "ready", "filesystem-mcp": "ready"}
