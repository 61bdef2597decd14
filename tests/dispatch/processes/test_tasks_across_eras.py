"""Tasks do not cross eras: is that said by name, wherever somebody tries?"""

from typing import Any

import pytest
from tests.support.fleet import tool
from tests.support.task_servers import (
    DECLARED,
    FRONTS,
    SERVERS,
    UNKNOWN,
    ask_about_task,
    declared,
    label,
    made_by,
    read_tasks,
    start_tree,
)
from tests.support.two_era_node import Tree

OTHER = {"legacy": "modern", "modern": "legacy"}
REVISIONS = ("2025-11-25", "2026-07-28")
CELLS = {(era, front, link) for era in FRONTS for front in FRONTS[era] for link in SERVERS[OTHER[era]]}


@pytest.fixture(scope="session")
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return start_tree(request, tmp_path_factory)


def assert_named(error: Any, code: int, client: str) -> None:
    assert error["code"] == code
    assert error["data"] == {"reason": "task_across_eras", "client_era": client, "server_era": OTHER[client]}
    assert all(revision in error["message"] for revision in REVISIONS)


@pytest.mark.parametrize(("era", "front", "link"), sorted(CELLS))
async def test_a_tool_that_runs_only_as_a_task_says_that_it_cannot_for_this_client(
    tree: Tree, era: str, front: str, link: str
) -> None:
    async with tree.peer(front, declared(front)) as peer:
        before = await read_tasks(peer, link)
        assert_named((await peer.call(tool(link, "must"), {"id": label()})).error, -32601, era)
        assert await read_tasks(peer, link) == before


@pytest.mark.parametrize(("era", "front", "link"), sorted(CELLS))
async def test_a_tool_that_may_be_a_task_is_called_plainly(tree: Tree, era: str, front: str, link: str) -> None:
    async with tree.peer(front, declared(front)) as peer:
        reply = await peer.call(tool(link, "job"), {"n": 1})
        assert reply.result["structuredContent"]["plain"]["arguments"] == {"n": 1}


@pytest.mark.parametrize("link", [*SERVERS["modern"], "plain_new"])
@pytest.mark.parametrize("front", FRONTS["legacy"])
async def test_a_legacy_client_that_asks_a_modern_server_for_a_task_is_refused_before_anything_is_done(
    tree: Tree, front: str, link: str
) -> None:
    name = "echo" if link.startswith("plain") else "job"
    async with tree.peer(front, declared(front)) as peer:
        calls = tree.node.link(link)["calls"]
        params = {"name": tool(link, name), "arguments": {"id": label()}, "task": {}}
        assert_named((await peer.request("tools/call", params)).error, -32601, "legacy")
        assert tree.node.link(link)["calls"] == calls


@pytest.mark.parametrize("link", SERVERS["legacy"])
@pytest.mark.parametrize("front", FRONTS["modern"])
async def test_the_older_wish_of_a_modern_client_does_not_reach_a_legacy_server(
    tree: Tree, front: str, link: str
) -> None:
    async with tree.peer(front, DECLARED) as peer:
        params = {"name": tool(link, "job"), "arguments": {"n": 1}, "task": {"ttl": 1}}
        reply = await peer.request("tools/call", params)
        assert "task" not in reply.result["structuredContent"]["plain"]


async def test_a_task_of_the_same_principal_is_not_used_with_a_client_of_the_other_era(tree: Tree) -> None:
    token = tree.token("both-eras")
    async with (
        tree.peer("http-legacy", token=token) as legacy,
        tree.peer("http-modern", DECLARED, token=token) as modern,
    ):
        old, new = await made_by(legacy, "old_http", id=label()), await made_by(modern, "new_http", id=label())
        for method in ("get", "result", "cancel"):
            assert_named((await ask_about_task(legacy, method, new)).error, -32602, "legacy")
        for method in ("get", "update", "cancel"):
            refused = await ask_about_task(modern, method, old)
            assert refused.status == 400
            assert_named(refused.error, -32602, "modern")
        assert [task["taskId"] for task in (await legacy.request("tasks/list")).result["tasks"]] == [old]
        modern.begin("subscriptions/listen", {"notifications": {"taskIds": [old, new]}})
        told = await modern.hear("notifications/subscriptions/acknowledged")
        assert told["params"]["notifications"] == {"taskIds": [new]}


async def test_to_another_principal_a_task_of_the_other_era_does_not_exist_either(tree: Tree) -> None:
    tokens = [tree.token(name) for name in ("one-era", "other-era")]
    async with (
        tree.peer("http-legacy", token=tokens[0]) as legacy,
        tree.peer("http-modern", DECLARED, token=tokens[1]) as modern,
    ):
        assert (await ask_about_task(modern, "get", await made_by(legacy, "old_http", id=label()))).error == UNKNOWN


async def test_methods_that_only_the_other_era_has_are_unknown(tree: Tree) -> None:
    async with tree.peer("http-legacy") as legacy, tree.peer("http-modern", DECLARED) as modern:
        assert (await ask_about_task(legacy, "update", "x")).error["code"] == -32601
        for method in ("result", "list"):
            refused = await ask_about_task(modern, method, "x")
            assert (refused.status, refused.error["code"]) == (404, -32601)
