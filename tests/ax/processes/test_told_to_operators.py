"""What `interlock` tells of subservers that came by themselves."""

import asyncio
import contextlib
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ax.bare_subserver import BareSubserver, Refused, bare_subserver, connect, tool
from tests.ax.blocking_client import call, ready
from tests.ax.tree import ax_url
from tests.support.node_process import RunningNode, running_node

ACCESS = '[[access]]\nwho = ["subserver:bench"]\nscope = "admin"\n'
SAYS_ENV = """
import json, os, sys
print(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "mcpax/register",
    "params": {"subserver_id": "550e8400-e29b-41d4-a716-446655440000", "segment": "kid", "parent_id": None}}))
for line in sys.stdin:
    asked = json.loads(line)
    result = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "ttlMs": 0, "cacheScope": "private"}
    if asked.get("method") == "tools/list":
        tools = [{"name": "env", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
                 {"name": "die", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}]
        result = {"tools": tools, "ttlMs": 0, "cacheScope": "private"}
    elif asked.get("method") == "tools/call":
        if asked["params"]["name"] == "die":
            os.kill(os.getpid(), 9)
        result = {"content": [{"type": "text", "text": os.environ.get("GREETING", "none")}]}
    if "id" in asked and "method" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {"resultType": "complete", **result}}))
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("told"), {}, ACCESS) as started:
        yield started


async def cli(node: RunningNode, *words: str, **env: str) -> str:
    done = await asyncio.to_thread(node.cli, *words, env={**os.environ, "COLUMNS": "200", **env})
    return done.stdout + done.stderr


async def test_a_node_without_servers_says_where_subservers_register(node: RunningNode) -> None:
    assert "let subservers register" in await cli(node, "links", "list")
    said = await cli(node, "status")
    assert "no servers yet" in said
    assert ax_url(node) in said
    async with bare_subserver(node, "only", tools=[tool("read")]):
        await ready(node, "only", tools=1)
        for words in (("status",), ("links", "list")):
            said = await cli(node, *words)
            assert "no servers yet" not in said
            assert "only" in said


async def test_requests_of_the_node_itself_do_not_count_as_calls_in_flight(node: RunningNode) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def held(params: dict[str, Any]) -> Any:
        begun.set()
        await may_end.wait()
        return {"content": []}

    async with bare_subserver(node, "idle", tools=[tool("wait")], call=held) as leaf:
        await ready(node, "idle", tools=1)
        await leaf.hear("subscriptions/listen")
        assert (await asyncio.to_thread(node.link, "idle"))["in_flight"] == 0
        assert "0, 0 failed, 0 in flight" in await cli(node, "status", "idle")
        calling = asyncio.create_task(call(node, "idle__wait"))
        await asyncio.wait_for(begun.wait(), 10)
        assert (await asyncio.to_thread(node.link, "idle"))["in_flight"] == 1
        may_end.set()
        await calling
        assert (await asyncio.to_thread(node.link, "idle"))["in_flight"] == 0


async def test_a_registrant_that_dialled_in_is_shown_as_disconnected_and_not_restarted(node: RunningNode) -> None:
    async with bare_subserver(node, "guest", tools=[tool("read")]) as leaf:
        await ready(node, "guest", tools=1)
        said = await cli(node, "links", "restart", "guest")
        assert "guest was disconnected, now degraded" in said
        assert "only it can dial again" in said
        assert "interlock links release guest" in said
        assert "restarted" not in said
        await leaf.closed()
        assert "guest is not connected, now degraded" in await cli(node, "links", "restart", "guest")
        assert "guest is free" in await cli(node, "links", "release", "guest")


async def test_joining_and_leaving_do_not_read_like_calls(node: RunningNode) -> None:
    async with bare_subserver(node, "diary", tools=[tool("read")]) as leaf:
        await ready(node, "diary", tools=1)
        await call(node, "diary__read")
        second = BareSubserver(await connect(node), "diary")
        with pytest.raises(Refused):
            await second.register()
        await second.stop()
        await leaf.request("mcpax/deregister", {"session_id": leaf.session["session_id"]})
    lines = [line for line in (await cli(node, "audit", "tail")).splitlines() if "diary" in line]
    whats = [re.split(r" {2,}", line)[2] for line in lines]
    assert whats == ["mcpax/register diary", "diary.read", "mcpax/register diary", "mcpax/deregister diary"]


async def test_a_subservers_token_is_listed_with_what_it_may_do_and_when_it_was_used(node: RunningNode) -> None:
    tokens = {}
    for name in ("bench", "other"):
        tokens[name] = json.loads(await cli(node, "access", "token", "--for", "subserver", "--name", name, "--json"))

    async def shown(name: str) -> dict[str, Any]:
        listed = json.loads(await cli(node, "access", "list", "--json"))["tokens"]
        (found,) = [one for one in listed if one["name"] == name]
        return found

    assert ((await shown("bench"))["scope"], (await shown("other"))["scope"]) == ("admin", "read")
    assert (await shown("bench"))["last_used_at"] is None
    began = time.time()
    async with bare_subserver(node, "bench", token=tokens["bench"]["token"]) as leaf:
        assert leaf.session["auth_scope"] == "admin"
        used = (await shown("bench"))["last_used_at"]
        assert used is not None
        assert time.strftime("%Y-%m-%dT%H:%M", time.gmtime(began)) <= used
    assert (await shown("other"))["last_used_at"] is None


@contextlib.asynccontextmanager
async def with_child(folder: Path, env: str) -> AsyncIterator[RunningNode]:
    script = folder / "kid.py"
    script.write_text(SAYS_ENV)
    child = f"[[ax.children]]\ncommand = {json.dumps([sys.executable, str(script)])}\nsegment = 'kid'\n{env}"
    entered = running_node(folder, {}, child, env={"WHO": "world"})
    node = await asyncio.to_thread(entered.__enter__)
    try:
        await ready(node, "kid", tools=2)  # it never flushes what it prints
        yield node
    finally:
        await asyncio.to_thread(entered.__exit__, None, None, None)


async def test_a_child_has_the_environment_it_is_given_and_needs_not_flush(tmp_path: Path) -> None:
    async with with_child(tmp_path, 'env = { GREETING = "hello ${env:WHO}" }\n') as node:
        assert (await call(node, "kid__env"))["result"]["content"][0]["text"] == "hello world"
        shown = await cli(node, "check", "--effective", WHO="world")
        assert '"GREETING": "***"' in shown
        assert "hello" not in shown


async def test_a_call_during_which_a_child_is_killed_says_that_its_outcome_is_not_known(tmp_path: Path) -> None:
    async with with_child(tmp_path, "") as node:
        said = await cli(node, "tools", "call", "kid.die")
        assert "tool_degraded (subserver_unreachable)" in said
        assert "it was sent, and whether it was carried out is not known" in said


async def test_the_code_of_a_superseded_leaf_can_be_explained(node: RunningNode) -> None:
    for reason in ("superseded", "heartbeat_timeout", "connection_lost"):
        said = await cli(node, "explain", reason)
        assert reason in said
    assert "subserver_id" in await cli(node, "explain", "superseded")
