"""Does every tool of the reference servers answer through its contract, to clients of both eras?"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from tests.interaction.drivers.reference import names_of
from tests.interaction.harness import RunningNode, Wire

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

Call = tuple[str, dict[str, Any], str]  # the tool, its arguments, what its answer says


def place_of(node: RunningNode) -> Path:
    return node.data.parent / "place"


def filesystem(place: Path) -> list[Call]:
    hello = {"path": f"{place}/hello.txt"}
    return [
        ("read_file", hello, "hello"),
        ("read_text_file", {**hello, "head": 1}, "^hello$"),
        ("read_media_file", {"path": f"{place}/small.png"}, "image/png"),
        ("read_multiple_files", {"paths": [hello["path"]]}, "hello.txt:\nhello"),
        ("write_file", {"path": f"{place}/made.txt", "content": "one\n"}, "Successfully wrote"),
        ("edit_file", {"path": f"{place}/made.txt", "edits": [{"oldText": "one", "newText": "two"}]}, r"\+two"),
        ("create_directory", {"path": f"{place}/made"}, "Successfully created"),
        ("list_directory", {"path": str(place)}, r"\[FILE\] hello.txt"),
        ("list_directory_with_sizes", {"path": str(place)}, "Total: "),
        ("directory_tree", {"path": f"{place}/kept"}, r"\[\]"),
        ("move_file", {"source": f"{place}/made.txt", "destination": f"{place}/moved.txt"}, "Successfully moved"),
        ("search_files", {"path": str(place), "pattern": "moved*"}, "moved.txt"),
        ("get_file_info", hello, "size: 12"),
        ("list_allowed_directories", {}, re.escape(str(place))),
    ]


def memory(place: Path) -> list[Call]:
    ada = {"name": "Ada", "entityType": "person", "observations": ["counts"]}
    tie = {"from": "Ada", "to": "Bob", "relationType": "knows"}
    bob = {"name": "Bob", "entityType": "person", "observations": []}
    return [
        ("create_entities", {"entities": [ada, bob]}, "counts"),
        ("create_relations", {"relations": [tie]}, "knows"),
        ("add_observations", {"observations": [{"entityName": "Bob", "contents": ["sings"]}]}, "sings"),
        ("read_graph", {}, "sings"),
        ("search_nodes", {"query": "sings"}, "Bob"),
        ("open_nodes", {"names": ["Ada"]}, "counts"),
        ("delete_observations", {"deletions": [{"entityName": "Bob", "observations": ["sings"]}]}, "success"),
        ("delete_relations", {"relations": [tie]}, "success"),
        ("delete_entities", {"entityNames": ["Ada", "Bob"]}, "success"),
    ]


def everything(place: Path) -> list[Call]:
    return [
        ("echo", {"message": "hi"}, "Echo: hi"),
        ("get-annotated-message", {"messageType": "error", "includeImage": False}, "Error"),
        ("get-env", {}, "PATH"),
        ("get-resource-links", {"count": 2}, "resource"),
        ("get-resource-reference", {"resourceType": "Text", "resourceId": 1}, "resource"),
        ("get-structured-content", {"location": "Chicago"}, "humidity"),
        ("get-sum", {"a": 2, "b": 3}, "5"),
        ("get-tiny-image", {}, "image"),
        (
            "gzip-file-as-resource",
            {"name": "a.gz", "data": "data:text/plain;base64,aGk=", "outputType": "resource"},
            "gz",
        ),
        ("toggle-simulated-logging", {}, "logging"),
        ("toggle-subscriber-updates", {}, "updates"),
        ("trigger-long-running-operation", {"duration": 1, "steps": 2}, "completed"),
    ]


def git(place: Path) -> list[Call]:
    here = {"repo_path": str(place)}
    return [
        ("git_status", here, "On branch"),
        ("git_add", {**here, "files": ["small.png"]}, "staged"),
        ("git_diff_staged", here, "small.png"),
        ("git_reset", here, "reset"),
        ("git_diff_unstaged", here, ""),
        ("git_diff", {**here, "target": "main"}, ""),
        ("git_add", {**here, "files": ["kept", "small.png"]}, "staged"),
        ("git_commit", {**here, "message": "second"}, "committed"),
        ("git_log", {**here, "max_count": 1}, "second"),
        ("git_show", {**here, "revision": "main"}, "second"),
        ("git_branch", {**here, "branch_type": "local"}, "main"),
        ("git_create_branch", {**here, "branch_name": "side"}, "side"),
        ("git_checkout", {**here, "branch_name": "main"}, "main"),
    ]


def clock(place: Path) -> list[Call]:
    noon = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    return [
        ("get_current_time", {"timezone": "UTC"}, "is_dst"),
        ("convert_time", noon, "21:00"),
    ]


def sqlite(place: Path) -> list[Call]:
    return [
        ("create_table", {"query": "CREATE TABLE notes (text TEXT)"}, "created"),
        ("write_query", {"query": "INSERT INTO notes VALUES ('hello')"}, "affected_rows"),
        ("read_query", {"query": "SELECT text FROM notes"}, "hello"),
        ("list_tables", {}, "notes"),
        ("describe_table", {"table_name": "notes"}, "text"),
        ("append_insight", {"insight": "notes say hello"}, "Insight"),
        ("write_query", {"query": "DROP TABLE notes"}, "affected_rows"),
    ]


CALLS = {
    "filesystem": filesystem,
    "memory": memory,
    "everything": everything,
    "git": git,
    "time": clock,
    "sqlite": sqlite,
}
# A task of its own kind, which the server offers as one: it is called where tasks are shown.
ELSEWHERE = {"everything.simulate-research-query"}


def words_of(result: dict[str, Any]) -> str:
    return "\n".join([*(str(each.get("text", each)) for each in result["content"]), str(result["structuredContent"])])


@contextlib.contextmanager
def asking(node: RunningNode, era: str) -> Iterator[Any]:
    with Wire(node) as wire:
        if era == "legacy":
            wire.initialize()
        yield wire.modern if era == "modern" else wire.legacy


def tidy(node: RunningNode) -> None:
    """What one era made would be in the way of the other."""
    import shutil
    import subprocess

    place = place_of(node)
    (place / "moved.txt").unlink(missing_ok=True)
    shutil.rmtree(place / "made", ignore_errors=True)
    for words in (("checkout", "-q", "main"), ("branch", "-D", "side"), ("reset", "-q", "--hard", "HEAD~1")):
        subprocess.run(["git", *words], cwd=place, capture_output=True, check=False)
    (place / "small.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")


@pytest.mark.req("AIP-compat-3", "AIP-server-10")
@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("server", CALLS)
def test_every_tool_answers_through_its_contract(reference: RunningNode, server: str, era: str) -> None:
    calls = CALLS[server](place_of(reference))
    listed = {name for name in names_of(reference) if name.startswith(f"{server}.")}
    assert {f"{server}.{tool}" for tool, _, _ in calls} == listed - ELSEWHERE
    try:
        with asking(reference, era) as ask:
            for tool, arguments, expected in calls:
                name = f"{server}__{tool}"
                message = ask("tools/call", {"name": name, "arguments": arguments}).message
                assert "result" in message, (tool, message)
                result = message["result"]
                assert not result.get("isError"), (tool, result["content"])
                assert re.search(expected, words_of(result), re.M | re.S), (tool, result)
    finally:
        if server in ("filesystem", "git"):
            tidy(reference)


@pytest.mark.req("AIP-compat-3")
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_client_that_somebody_else_wrote_lists_and_calls_contracts(reference: RunningNode, mode: str) -> None:
    async with Client(f"{reference.url}/mcp", mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["time__convert_time"].output_schema is not None
        noon = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        answer = await client.call_tool("time__convert_time", noon)
        assert answer.structured_content is not None
        assert answer.structured_content["time_difference"] == "+9.0h"
        graph = await client.call_tool("memory__read_graph", {})
        assert graph.structured_content == {"entities": [], "relations": []}


@pytest.mark.req("AIP-transport-14")
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_progress_reaches_the_caller_who_asked_for_it_and_nobody_else(reference: RunningNode, mode: str) -> None:
    heard: list[tuple[float, float | None]] = []
    others: list[Any] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total))

    async def on_message(message: Any) -> None:
        others.append(message)

    slow = {"duration": 1, "steps": 3}
    name = "everything__trigger-long-running-operation"
    async with (
        Client(f"{reference.url}/mcp", mode=mode) as client,
        Client(f"{reference.url}/mcp", mode=mode, message_handler=on_message) as other,
    ):
        await other.call_tool("everything__echo", {"message": "hi"})
        told = await client.call_tool(name, slow, progress_callback=on_progress)
        untold = await client.call_tool(name, slow)
    assert heard == [(1, 3), (2, 3), (3, 3)]
    assert told.content == untold.content
    assert [each for each in others if "progress" in str(each)] == []
