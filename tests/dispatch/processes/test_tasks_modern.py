"""The extension io.modelcontextprotocol/tasks of 2026-07-28 through the node: made, polled, fed, cancelled, heard."""

import asyncio
import contextlib
import json
from typing import Any

import pytest
from tests.support.fleet import tool
from tests.support.peers import META, Ongoing, Peer
from tests.support.task_servers import (
    DECLARED,
    EXTENSION,
    MODERN_CELLS,
    SERVERS,
    UNKNOWN,
    ask_about_task,
    drive_task,
    label,
    made_by,
    make,
    node_of_tasks,
    read_tasks,
    start_tree,
    state,
    task_id_of,
)
from tests.support.two_era_node import ELICIT, FILLED, FORM, Tree

NEWS = "notifications/tasks"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
OUTCOME = {"content": [{"type": "text", "text": "é"}], "structuredContent": [1.0]}
NEEDED = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}


@pytest.fixture(scope="session")
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return start_tree(request, tmp_path_factory)


# One task


@pytest.mark.parametrize(("front", "link"), MODERN_CELLS)
async def test_a_task_passes_with_nothing_changed_but_its_id(tree: Tree, front: str, link: str) -> None:
    theirs = label()
    async with tree.peer(front, DECLARED) as peer:
        reply = await make(peer, link, id=theirs)
        ours = task_id_of(reply)
        assert ours.startswith(f"{link}.")
        assert theirs not in ours
        working = state(ours, "working", "modern")
        assert reply.result_text == f'{{"resultType":"task",{working}}}'
        assert (await ask_about_task(peer, "get", ours)).result_text == f'{{"resultType":"complete",{working}}}'
        await drive_task(peer, link, "end", task=theirs, outcome=OUTCOME)
        ended = await ask_about_task(peer, "get", ours)
        assert ended.result["result"] == OUTCOME
        completed = state(ours, "completed", "modern")
        assert ended.result_text.startswith(f'{{"resultType":"complete",{completed},"result":{{')
        assert (await ask_about_task(peer, "cancel", ours)).result_text == '{"resultType":"complete"}'


@pytest.mark.parametrize(("front", "link"), MODERN_CELLS)
async def test_a_task_is_cancelled(tree: Tree, front: str, link: str) -> None:
    theirs = label()
    async with tree.peer(front, DECLARED) as peer:
        ours = await made_by(peer, link, id=theirs)
        assert (await ask_about_task(peer, "cancel", ours)).result_text == '{"resultType":"complete"}'
        assert (await ask_about_task(peer, "get", ours)).result["status"] == "cancelled"
        assert (await read_tasks(peer, link))["tasks"][theirs]["status"] == "cancelled"


@pytest.mark.parametrize(("front", "link"), MODERN_CELLS)
async def test_a_task_is_given_what_it_asks_for(tree: Tree, front: str, link: str) -> None:
    theirs = label()
    request = {"method": ELICIT, "params": FORM}
    async with tree.peer(front, DECLARED) as peer:
        ours = await made_by(peer, link, id=theirs)
        await drive_task(peer, link, "question", task=theirs, key="k é", **request)
        asked = (await ask_about_task(peer, "get", ours)).result
        assert (asked["status"], asked["inputRequests"]) == ("input_required", {"k é": request})
        for responses in ({"unknown": {"x": 1}}, {"k é": FILLED}):
            fed = await ask_about_task(peer, "update", ours, inputResponses=responses)
            assert fed.result_text == '{"resultType":"complete"}'
        assert (await ask_about_task(peer, "get", ours)).result["status"] == "working"
        assert (await read_tasks(peer, link))["tasks"][theirs]["answers"] == [json.dumps(FILLED, ensure_ascii=False)]


async def test_a_failed_task_has_its_error_in_it(tree: Tree) -> None:
    theirs = label()
    error = {"code": -32000, "message": "gone", "data": {"n": 1.0}}
    async with tree.peer("http-modern", DECLARED) as peer:
        ours = await made_by(peer, "new_http", id=theirs)
        await drive_task(peer, "new_http", "end", task=theirs, status="failed", outcome=error)
        ended = (await ask_about_task(peer, "get", ours)).result
        assert (ended["status"], ended["error"]) == ("failed", error)


async def test_the_older_wish_for_a_task_is_overlooked(tree: Tree) -> None:
    async with tree.peer("http-modern", DECLARED) as peer:
        params = {"name": "new_http__echo", "arguments": {"n": 1}, "task": {"ttl": 1}}
        assert (await peer.request("tools/call", params)).result["structuredContent"] == {"n": 1}


@pytest.mark.parametrize("method", ["tasks/result", "tasks/list"])
async def test_methods_that_the_tasks_extension_does_not_have_are_unknown(tree: Tree, method: str) -> None:
    async with tree.peer("http-modern", DECLARED) as peer:
        ours = await made_by(peer, "new_http", id=label())
        refused = await peer.request(method, {"taskId": ours})
        assert (refused.status, refused.error["code"]) == (404, -32601)


# Who takes tasks


@pytest.mark.parametrize("front", ["http-modern", "stdio-modern"])
async def test_a_client_without_the_extension_gets_no_task_and_no_mention_of_tasks(tree: Tree, front: str) -> None:
    async with tree.peer(front, DECLARED) as peer:
        ours = await made_by(peer, "new_stdio", id=label())
        for method in ("get", "update", "cancel"):
            for named in (ours, "nobody's"):
                refused = await peer.request(f"tasks/{method}", {"taskId": named}, capabilities={})
                assert refused.error["code"] == -32021
                assert refused.error["data"] == NEEDED
        plain = await peer.call(tool("new_stdio", "job"), {"n": 1}, capabilities={})
        assert plain.result["structuredContent"]["plain"]["arguments"] == {"n": 1}
        must = await peer.call(tool("new_stdio", "must"), capabilities={})
        assert (must.error["code"], must.error["data"]) == (-32021, NEEDED)


async def test_the_extension_is_offered_where_a_modern_server_has_it(tree: Tree) -> None:
    for path, expected in (("", True), ("/only/new_http", True), ("/only/plain_new", False), ("/only/old_http", False)):
        async with tree.peer("http-modern", DECLARED, path=path) as peer:
            capabilities = peer.greeting["capabilities"]
            assert (EXTENSION in capabilities["extensions"]) is expected, path
            assert "tasks" not in capabilities
            if not expected:
                refused = await ask_about_task(peer, "get", "x")
                assert (refused.status, refused.error["code"]) == (404, -32601)


# Whose it is


@pytest.mark.parametrize("link", SERVERS["modern"])
async def test_a_task_of_another_principal_does_not_exist(tree: Tree, link: str) -> None:
    tokens = [tree.token(name) for name in ("modern-owner", "modern-other")]
    async with (
        tree.peer("http-modern", DECLARED, token=tokens[0]) as owner,
        tree.peer("http-modern", DECLARED, token=tokens[1]) as other,
    ):
        ours = await made_by(owner, link, id=label())
        before = len((await read_tasks(owner, link))["calls"])
        for method in ("get", "update", "cancel"):
            refused = await ask_about_task(other, method, ours)
            assert (refused.status, refused.error) == (400, UNKNOWN)
        assert len((await read_tasks(owner, link))["calls"]) == before
        assert (await ask_about_task(owner, "get", ours)).result["status"] == "working"


async def test_equal_ids_of_two_servers_are_two_tasks(tree: Tree) -> None:
    theirs = label()
    async with tree.peer("http-modern", DECLARED) as peer:
        one, two = [await made_by(peer, link, id=theirs) for link in SERVERS["modern"]]
        await drive_task(peer, SERVERS["modern"][0], "end", task=theirs)
        assert (await ask_about_task(peer, "get", one)).result["status"] == "completed"
        assert (await ask_about_task(peer, "get", two)).result["status"] == "working"


async def test_the_name_header_is_the_task_id_on_both_sides(tree: Tree) -> None:
    """The fixture refuses a request whose header does not repeat the body; so does the node."""
    async with tree.peer("http-modern", DECLARED) as peer:
        ours = await made_by(peer, "new_http", id=label())
        for headers in ({"mcp-name": "another"}, {"mcp-name": ours + " "}, {"mcp-method": "tasks/cancel"}):
            reply = await peer.request("tasks/get", {"taskId": ours}, headers=headers)
            refused = headers != {"mcp-name": ours + " "}
            assert ("error" in reply.message) is refused
            if refused:
                assert (reply.status, reply.error["code"]) == (400, -32020)


# Listening


async def listen(peer: Peer, *ids: Any, agreed: list[str]) -> Ongoing:
    ongoing = peer.begin("subscriptions/listen", {"notifications": {"taskIds": list(ids)}})
    told = (await peer.hear(ACKNOWLEDGED))["params"]["notifications"]
    assert sorted(told.get("taskIds", [])) == sorted(agreed)
    return ongoing


@pytest.mark.parametrize(("front", "link"), MODERN_CELLS)
async def test_news_reach_exactly_those_who_listen_for_a_task_of_theirs(tree: Tree, front: str, link: str) -> None:
    names = [label(), label()]
    async with contextlib.AsyncExitStack() as stack:
        owner = await stack.enter_async_context(tree.peer(front, DECLARED))
        same = await stack.enter_async_context(tree.peer("http-modern", DECLARED))
        token = tree.token("modern-curious")
        other = await stack.enter_async_context(tree.peer("http-modern", DECLARED, token=token))
        first, second = [await made_by(owner, link, id=theirs) for theirs in names]
        listening = await listen(owner, first, "nobody's", 7, agreed=[first])
        await listen(same, second, agreed=[second])
        await listen(other, first, second, agreed=[])
        for theirs in names:
            await drive_task(same, link, "end", task=theirs, outcome=OUTCOME)
            await drive_task(same, link, "news", task=theirs, what="status")
        told = (await owner.hear(NEWS))["params"]
        expected = json.loads(f"{{{state(first, 'completed', 'modern')}}}")
        assert told == {**expected, "result": OUTCOME, "_meta": {META + "subscriptionId": int(listening.id)}}
        assert (await same.hear(NEWS))["params"]["taskId"] == second
        assert [peer.heard(NEWS) for peer in (owner, same, other)] == [[], [], []]


async def test_a_listener_that_stops_receives_no_more_and_the_server_is_informed(tree: Tree) -> None:
    theirs = label()
    async with tree.peer("http-modern", DECLARED) as one, tree.peer("http-modern", DECLARED) as two:
        ours = await made_by(one, "new_stdio", id=theirs)
        listening = await listen(one, ours, agreed=[ours])
        await listen(two, ours, agreed=[ours])
        await one.cancel(listening)
        await drive_task(two, "new_stdio", "news", task=theirs, what="status")
        assert (await two.hear(NEWS))["params"]["taskId"] == ours
        assert one.heard(NEWS) == []


@pytest.mark.parametrize("link", SERVERS["modern"])
async def test_listeners_miss_no_task_update_while_others_join_and_leave(tree: Tree, link: str) -> None:
    theirs, hesitating = label(), label()
    async with tree.peer("http-modern", DECLARED) as first, tree.peer("http-modern", DECLARED) as other:
        ours = await made_by(first, link, id=theirs)
        more = await made_by(other, link, id=hesitating, hesitates=True)
        await listen(first, ours, agreed=[ours])
        coming = other.begin("subscriptions/listen", {"notifications": {"taskIds": [more]}})
        async with asyncio.timeout(10):
            while hesitating not in (await read_tasks(first, link))["hesitating"]:
                pass
        await drive_task(first, link, "news", task=theirs, what="status")  # before the server agrees to the newer
        assert (await first.hear(NEWS))["params"]["taskId"] == ours
        await drive_task(first, link, "agree", task=hesitating)
        await other.hear(ACKNOWLEDGED)
        await other.cancel(coming)
        await drive_task(first, link, "news", task=theirs, what="status")
        assert (await first.hear(NEWS))["params"]["taskId"] == ours
        assert other.heard(NEWS) == []


async def test_only_a_client_that_takes_tasks_can_listen_for_them(tree: Tree) -> None:
    async with tree.peer("http-modern", DECLARED) as peer:
        ours = await made_by(peer, "new_stdio", id=label())
        wanted = {"notifications": {"taskIds": [ours]}}
        refused = await peer.request("subscriptions/listen", wanted, capabilities={})
        assert (refused.status, refused.error["code"], refused.error["data"]) == (400, -32021, NEEDED)
        for odd in ({"taskIds": "x"}, {"taskIds": {}}, {"taskIds": ["x"] * 1001}):
            refused = await peer.request("subscriptions/listen", {"notifications": odd})
            assert (refused.status, refused.error["code"]) == (400, -32602)


async def test_a_server_that_does_not_agree_to_tell_is_not_promised_to(tree: Tree) -> None:
    async with tree.peer("http-modern", DECLARED) as peer:
        ours = await made_by(peer, "new_http", id=label(), untold=True)
        await listen(peer, ours, agreed=[])


async def test_a_server_that_refuses_a_task_subscription_still_reports_its_lists(tree: Tree) -> None:
    async with tree.peer("http-modern", DECLARED) as peer:
        ours = await made_by(peer, "new_http", id=label(), unlistenable=True)
        peer.begin("subscriptions/listen", {"notifications": {"taskIds": [ours], "toolsListChanged": True}})
        told = await peer.hear(ACKNOWLEDGED)
        assert told["params"]["notifications"] == {"toolsListChanged": True}
        for _ in range(2):  # it comes, it goes
            await peer.call(tool("new_http", "change"), {"kind": "tools", "name": "passing"})
            await peer.hear("notifications/tools/list_changed")


# Losses


async def test_a_task_reports_that_its_server_was_lost_also_after_a_restart(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("lost")
    with node_of_tasks(folder, "new_stdio") as node:
        async with Tree(node).peer("http-modern", DECLARED) as peer:
            ours = await made_by(peer, "new_stdio", id=label())
            lost = (await peer.call(tool("new_stdio", "die"))).error
            assert (lost["code"], lost["data"]["reason"]) == (32002, "subserver_unreachable")
            refused = await ask_about_task(peer, "get", ours)
            assert (refused.status, refused.error["data"]) == (400, {"reason": "task_lost"})
            assert refused.error["code"] == -32602
            again = await made_by(peer, "new_stdio", id=label())
    with node_of_tasks(folder, "new_stdio") as node:
        async with Tree(node).peer("http-modern", DECLARED) as peer:
            for method in ("get", "update", "cancel"):
                refused = await ask_about_task(peer, method, again)
                assert (refused.status, refused.error["data"]) == (400, {"reason": "task_forgotten"})


async def test_a_listener_receives_a_task_again_once_its_server_is_back(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with node_of_tasks(tmp_path_factory.mktemp("back"), "new_stdio") as node:
        async with Tree(node).peer("http-modern", DECLARED) as peer:
            theirs = label()
            ours = await made_by(peer, "new_stdio", id=theirs)
            await listen(peer, ours, agreed=[ours])
            await peer.call(tool("new_stdio", "die"))
            same = await made_by(peer, "new_stdio", id=theirs)  # it gives the same id to its next task
            assert same == ours
            async with asyncio.timeout(15):
                while not peer.heard(NEWS):
                    await drive_task(peer, "new_stdio", "news", task=theirs, what="status")
            assert (await peer.hear(NEWS))["params"]["taskId"] == ours
