"""Does the filesystem example of the specification work as it is printed, and the driver that comes with Interlock?"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.conformance.driver_places import STORE
from tests.drivers.reference_node import (
    READY_S,
    TRUSTING,
    as_read,
    furnish,
    make_place,
    path_of_programs,
    state,
)
from tests.support.node_process import RunningNode, Wire, running_node, wait_for

EXAMPLE = Path(__file__).parents[1] / "aip32_examples" / "specification.md"
STRING = {"type": "string"}
CONTRACTS: dict[str, dict[str, Any]] = {
    "fs-read": {"inputs": {"path": STRING}, "outputs": STRING},
    "fs-write": {
        "inputs": {"path": STRING, "content": STRING},
        "outputs": {"type": "object", "properties": {"content": STRING}, "required": ["content"]},
        "mutates": ["workspace:files"],
        "approval": "policy:gate",
    },
    "fs-list": {"inputs": {"path": STRING}, "outputs": STRING},
}

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    folder = tmp_path_factory.mktemp("example")
    make_place(folder / "place")
    own = folder / "workspace" / ".drivers" / "filesystem-mcp"
    for name, said in CONTRACTS.items():
        contract = {"name": name, "id": name, "description": f"The contract {name}.", "version": "1.0.0", **said}
        contract["inputs"] = {"type": "object", "properties": said["inputs"], "required": list(said["inputs"])}
        (own / "tools" / name).mkdir(parents=True)
        (own / "tools" / name / "TOOL.md").write_text(f"---\n{yaml.safe_dump(contract, sort_keys=False)}---\n")
    printed = EXAMPLE.read_text()
    assert printed.count('args: ["/workspace"]') == 1
    (own / "DRIVER.md").write_text(printed.replace('args: ["/workspace"]', f'args: ["{folder / "place"}"]'))
    furnish(folder / "data", [as_read(own / "DRIVER.md")], record="published-example")
    with running_node(folder, {}, TRUSTING, env={"PATH": path_of_programs(), "INTERLOCK_PACKAGES": str(STORE)}) as node:
        wait_for(lambda: state(node, "filesystem-mcp")["state"] not in ("installing", "checking"), READY_S)
        wait_for(lambda: node.admin("/admin/tools")["tools"])
        yield node


@pytest.mark.req("AIP-extract-9")
def test_the_example_is_ready_with_exactly_its_warnings(example: RunningNode) -> None:
    shown = state(example, "filesystem-mcp")
    assert (shown["state"], shown["reason"]) == ("ready", None)
    said = sorted((each["severity"], each["code"]) for each in shown["problems"])
    assert said == [
        ("note", "version_from_package"),
        ("warning", "extract_text_fallback"),
        ("warning", "extract_text_fallback"),
        ("warning", "protocol_version_partial"),
        ("warning", "resources_unsupported"),
    ]


@pytest.mark.req("AIP-extract-9")
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_each_contract_of_the_example_answers_a_call(example: RunningNode, era: str) -> None:
    place = example.data.parent / "place"

    def called(name: str, **arguments: str) -> Any:
        result = ask("tools/call", {"name": f"tools__{name}", "arguments": arguments}).message["result"]
        assert not result.get("isError"), result
        return result

    with Wire(example) as wire:
        if era == "legacy":
            wire.initialize()
        ask = wire.modern if era == "modern" else wire.legacy
        assert called("fs-read", path=f"{place}/hello.txt")["content"][0]["text"] == "hello\nthere\n"
        called("fs-write", path=f"{place}/made-{era}.txt", content="made")
        assert (place / f"made-{era}.txt").read_text() == "made"
        assert f"made-{era}.txt" in called("fs-list", path=str(place))["content"][0]["text"]


@pytest.mark.req("AIP-extract-9")
def test_the_filesystem_driver_that_comes_along_gives_typed_results_without_a_warning(reference: RunningNode) -> None:
    shown = state(reference, "filesystem-mcp")
    assert [each for each in shown["problems"] if each["severity"] != "note"] == []
    place = reference.data.parent / "place"
    with Wire(reference) as wire:
        call = {"name": "filesystem__read_text_file", "arguments": {"path": f"{place}/hello.txt"}}
        read = wire.modern("tools/call", call).message["result"]
        call = {"name": "filesystem__list_directory", "arguments": {"path": str(place)}}
        listed = wire.modern("tools/call", call).message["result"]
    assert read["structuredContent"] == {"content": "hello\nthere\n"}
    assert set(listed["structuredContent"]["entries"]) >= {"[FILE] hello.txt", "[DIR] kept"}
