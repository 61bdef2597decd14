"""The shipped drivers on a node, in their sandboxes: every tool of those that need no internet, in both eras.

The servers come from .cache with what was recorded of them, so nothing is asked of a registry.
"""

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance import toolbox
from tests.conformance.driver_places import HOME, STORE, installed, tools_of_node
from tests.conformance.shipping import DRIVERS, PLACE, SHIPPED
from tests.conformance.test_shipped_servers import declared
from tests.support.node_process import RunningNode, running_node, wait_for

from interlock.core.clock import Clock
from interlock.drivers.install.installation import Locked, Locks
from interlock.store.sqlite.secrets import SealedSecrets
from interlock.store.sqlite.store import SqliteStore
from mcp import Client

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]
OFFLINE = [shipped for shipped in DRIVERS if shipped.id != "fetch-mcp"]
MARKER = "marker-2b9e44c01d-marker"
ENTITY = {"name": "Ada", "entityType": "person", "observations": ["counts"]}
RELATION = {"from": "Ada", "to": "Ada", "relationType": "is"}
THOUGHT = {"thought": "x", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}


def calls(place: Path, era: str) -> list[tuple[str, dict[str, Any], str]]:
    """Tool, arguments, and words of the answer."""
    repo = {"repo_path": str(place)}
    file, made = str(place / "hello.txt"), place / f"made-{era}"
    text = str(made / "a.txt")
    return [
        ("filesystem.read_file", {"path": file}, "Hello"),
        ("filesystem.read_text_file", {"path": file}, "Hello"),
        ("filesystem.read_media_file", {"path": str(place / "dot.png")}, "image"),
        ("filesystem.read_multiple_files", {"paths": [file]}, "Hello"),
        ("filesystem.create_directory", {"path": str(made)}, "created"),
        ("filesystem.write_file", {"path": text, "content": "one"}, "wrote"),
        ("filesystem.edit_file", {"path": text, "edits": [{"oldText": "one", "newText": "two"}]}, "two"),
        ("filesystem.list_directory", {"path": str(made)}, "a.txt"),
        ("filesystem.list_directory_with_sizes", {"path": str(made)}, "a.txt"),
        ("filesystem.directory_tree", {"path": str(made)}, "a.txt"),
        ("filesystem.move_file", {"source": text, "destination": str(made / "b.txt")}, "moved"),
        ("filesystem.search_files", {"path": str(made), "pattern": "*.txt"}, "b.txt"),
        ("filesystem.get_file_info", {"path": file}, "size"),
        ("filesystem.list_allowed_directories", {}, str(place)),
        ("memory.create_entities", {"entities": [ENTITY]}, ""),
        ("memory.create_relations", {"relations": [RELATION]}, ""),
        ("memory.add_observations", {"observations": [{"entityName": "Ada", "contents": [era]}]}, era),
        ("memory.read_graph", {}, "Ada"),
        ("memory.search_nodes", {"query": "Ada"}, "Ada"),
        ("memory.open_nodes", {"names": ["Ada"]}, "counts"),
        ("memory.delete_observations", {"deletions": [{"entityName": "Ada", "observations": [era]}]}, ""),
        ("memory.delete_relations", {"relations": [RELATION]}, ""),
        ("memory.delete_entities", {"entityNames": ["Ada"]}, ""),
        ("everything.echo", {"message": "hi"}, "hi"),
        ("everything.get-annotated-message", {"messageType": "debug", "includeImage": True}, "image"),
        ("everything.get-env", {}, "PATH"),
        ("everything.get-resource-links", {"count": 2}, "resource_link"),
        ("everything.get-resource-reference", {"resourceType": "Text", "resourceId": 1}, "resource"),
        ("everything.get-structured-content", {"location": "New York"}, "temperature"),
        ("everything.get-sum", {"a": 1, "b": 2}, "3"),
        ("everything.get-tiny-image", {}, "image/png"),
        ("everything.toggle-simulated-logging", {}, ""),
        ("everything.toggle-subscriber-updates", {}, ""),
        ("everything.trigger-long-running-operation", {"duration": 1, "steps": 1}, "ompleted"),
        ("sequential-thinking.sequentialthinking", THOUGHT, "thoughtNumber"),
        ("git.git_status", repo, "On branch"),
        ("git.git_add", repo | {"files": ["hello.txt"]}, "staged"),
        ("git.git_diff_staged", repo, "hello.txt"),
        ("git.git_reset", repo, "reset"),
        ("git.git_diff_unstaged", repo, ""),
        ("git.git_add", repo | {"files": ["hello.txt"]}, "staged"),
        ("git.git_commit", repo | {"message": "changed"}, "committed"),
        ("git.git_log", repo, "changed"),
        ("git.git_show", repo | {"revision": "HEAD"}, "hello.txt"),
        ("git.git_create_branch", repo | {"branch_name": f"branch-{era}"}, "Created"),
        ("git.git_branch", repo | {"branch_type": "local"}, f"branch-{era}"),
        ("git.git_checkout", repo | {"branch_name": f"branch-{era}"}, "Switched"),
        ("git.git_diff", repo | {"target": "HEAD"}, ""),
        ("time.get_current_time", {"timezone": "Europe/Berlin"}, "Europe/Berlin"),
        (
            "time.convert_time",
            {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"},
            "Asia/Tokyo",
        ),
        ("sqlite.create_table", {"query": "create table if not exists t (a int)"}, "created"),
        ("sqlite.write_query", {"query": "insert into t values (1)"}, "affected_rows"),
        ("sqlite.read_query", {"query": "select distinct a from t"}, '{"rows": [{"a": 1}]}'),
        ("sqlite.list_tables", {}, '{"rows": [{"name": "t"}]}'),
        ("sqlite.describe_table", {"table_name": "t"}, '"name": "a"'),
        ("sqlite.append_insight", {"insight": "one"}, "added"),
    ]


# The first answers within a task only, the second fetches a URL, and there is no network.
OTHERS = {"everything.simulate-research-query", "everything.gzip-file-as-resource"}


async def prepare(folder: Path, place: Path) -> None:
    """The drivers in their folders, their servers installed, and the records of that in the node's store."""
    data = folder / "data"
    data.mkdir(mode=0o700)
    store = SqliteStore(data)
    await store.open()
    try:
        for shipped in OFFLINE:
            driver = declared(shipped)
            lock: Locked = (await installed(driver)).lock
            await Locks(store.kv, Clock()).put(driver.key, lock)
            source, target = (base / "packages" / "drivers" / driver.key for base in (HOME, data))
            shutil.copytree(source, target, symlinks=True, copy_function=os.link)
            kept = folder / "workspace" / ".drivers" / shipped.id
            shutil.copytree(SHIPPED / shipped.id, kept)
            text = (kept / "DRIVER.md").read_text()
            (kept / "DRIVER.md").write_text(text.replace(PLACE, str(place)))
        await confide(folder / "workspace" / ".drivers" / "everything-mcp", data)
    finally:
        await store.close()


async def confide(folder: Path, data: Path) -> None:
    """A secret for the server that tells its environment to everybody."""
    text = (folder / "DRIVER.md").read_text()
    given = 'args: [stdio]\n  env: {MARKED: "${secrets.MARKED}"}\nauth: {ref: ./SECRETS.md}\n'
    (folder / "DRIVER.md").write_text(text.replace("args: [stdio]\n", given))
    entry = "{slug: everything-mcp/marked, name: Marked, description: Told to nobody.}"
    (folder / "SECRETS.md").write_text(f"---\nsecrets:\n  - {entry}\n---\n")
    secrets = SealedSecrets(data)
    await secrets.put("secret", "everything-mcp/marked", MARKER.encode(), Clock.wall())
    await secrets.close()


class Served:
    def __init__(self, node: RunningNode, place: Path) -> None:
        self.node = node
        self.place = place


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    HOME.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HOME) as name:  # on the disk of the packages, which are linked
        folder = Path(name).resolve()
        place = folder / "place"
        place.mkdir()
        toolbox.run(["git", "init", "--quiet", str(place)], cwd=place)
        commit = ["commit", "--quiet", "--allow-empty", "--message", "first"]
        toolbox.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.com", *commit], cwd=place)
        (place / "dot.png").write_bytes(b"\x89PNG\r\n")
        asyncio.run(prepare(folder, place))
        path = {"PATH": f"{tools_of_node()}:{os.environ['PATH']}"}
        closed = {"npm_config_registry": "http://127.0.0.1:9", "PIP_INDEX_URL": "http://127.0.0.1:9"}
        with running_node(
            folder,
            {},
            "[drivers]\ntrust_workspace = true\n",
            env=path | closed | {"INTERLOCK_PACKAGES": str(STORE)},
            announced=False,
        ) as node:

            def ready() -> bool:
                states = {one["id"]: one["state"] for one in node.admin("/admin/drivers")["drivers"]}
                return len(states) == len(OFFLINE) and set(states.values()) == {"ready"}

            wait_for(ready, 120)
            wanted = {name for name, _, _ in calls(place, "legacy")} | OTHERS  # listed up to a second later
            wait_for(lambda: wanted <= {tool["name"] for tool in node.admin("/admin/tools")["tools"]}, 20)
            yield Served(node, place)


@pytest.mark.req("AIP-compat-3")
@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
async def test_every_tool_is_called_through_its_shipped_contract(served: Served, era: str) -> None:
    (served.place / "hello.txt").write_text(f"Hello from a file, {era}.")
    async with Client(f"{served.node.url}/mcp?names=qualified", mode=era) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        asked = calls(served.place, era)
        assert listed == {name for name, _, _ in asked} | OTHERS
        wrong = []
        for name, arguments, words in asked:
            result = await client.call_tool(name, arguments)
            blocks = json.dumps([block.model_dump(mode="json") for block in result.content])
            said = json.dumps(result.structured_content) + blocks
            if result.is_error or words not in said:
                wrong.append((name, said[:300]))
        assert wrong == []
        refused = await client.call_tool("everything.gzip-file-as-resource", {"data": "https://example.com/a"})
        assert refused.is_error
        assert "resource_uri_denied" in str(refused.content)


@pytest.mark.req("AIP-19.plain-1")
@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
async def test_a_server_that_tells_its_environment_tells_no_secret(served: Served, era: str) -> None:
    async with Client(f"{served.node.url}/mcp?names=qualified", mode=era) as client:
        result = await client.call_tool("everything.get-env", {})
        said = json.dumps([block.model_dump(mode="json") for block in result.content])
        said += json.dumps(result.structured_content)
    assert "[secret:everything-mcp/marked]" in said
    assert MARKER not in said
