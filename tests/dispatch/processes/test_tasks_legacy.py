"""Tasks of 2025-11-25 through the node: made, asked for, waited for, cancelled and listed by whoever made them."""

import asyncio
import contextlib
import json
from typing import Any

import pytest
from tests.support.fleet import tool
from tests.support.node_process import wait_for
from tests.support.peers import LEGACY, HttpPeer, Peer
from tests.support.task_servers import (
    FRONTS,
    LEGACY_CELLS,
    RELATED,
    SERVERS,
    UNKNOWN,
    ask_about_task,
    declared,
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

STATUS = "notifications/tasks/status"
PROGRESS = "notifications/progress"
LOGGED = "notifications/message"
OUTCOME = {"content": [{"type": "text", "text": "é"}], "structuredContent": {"n": 1.0}}


@pytest.fixture(scope="session")
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return start_tree(request, tmp_path_factory)


# One task


@pytest.mark.parametrize(("front", "link"), LEGACY_CELLS)
async def test_a_task_passes_with_nothing_changed_but_its_id(tree: Tree, front: str, link: str) -> None:
    theirs = label()
    async with tree.peer(front, declared(front)) as peer:
        reply = await make(peer, link, id=theirs, task={"ttl": 5, "x-own": 1})
        ours = task_id_of(reply)
        assert ours.startswith(f"{link}.")
        assert theirs not in ours
        working = state(ours, "working", "legacy")
        assert reply.result_text == f'{{"task":{{{working}}},"_meta":{{"com.example/k":{{ "z":1 }}}}}}'
        assert (await ask_about_task(peer, "get", ours)).result_text == f"{{{working}}}"
        waiting = peer.begin("tasks/result", {"taskId": ours})
        await drive_task(peer, link, "end", task=theirs, outcome=OUTCOME)
        result = await waiting.reply()
        assert result.result == {**OUTCOME, "_meta": {RELATED: {"taskId": ours, "x-own": [1]}}}
        assert '"x-own":[ 1 ]' in result.result_text
        assert (await ask_about_task(peer, "get", ours)).result_text == f"{{{state(ours, 'completed', 'legacy')}}}"
        assert (await ask_about_task(peer, "result", ours)).result_text == result.result_text
        refused = await ask_about_task(peer, "cancel", ours)
        assert refused.error == {
            "code": -32602,
            "message": "Cannot cancel task: already in terminal status 'completed'",
        }


@pytest.mark.parametrize(("front", "link"), LEGACY_CELLS)
async def test_a_task_is_cancelled_and_its_result_is_the_error_it_ended_with(tree: Tree, front: str, link: str) -> None:
    theirs = label()
    async with tree.peer(front, declared(front)) as peer:
        ours = await made_by(peer, link, id=theirs)
        waiting = peer.begin("tasks/result", {"taskId": ours})
        cancelled = await ask_about_task(peer, "cancel", ours)
        assert cancelled.result_text == f"{{{state(ours, 'cancelled', 'legacy')}}}"
        assert (await waiting.reply()).error == {"code": -32000, "message": "cancelled"}
        assert (await read_tasks(peer, link))["tasks"][theirs]["status"] == "cancelled"


@pytest.mark.parametrize("link", SERVERS["legacy"])
async def test_time_to_live_and_poll_interval_are_the_servers(tree: Tree, link: str) -> None:
    async with tree.peer("http-legacy") as peer:
        for ttl, poll in (("null", "1"), ("31536000000000", "86400000"), ("0", "0")):
            reply = await make(peer, link, id=label(), ttl=json.loads(ttl), poll=json.loads(poll))
            assert f"{{{state(task_id_of(reply), 'working', 'legacy', ttl, poll)}}}" in reply.result_text
            assert (await ask_about_task(peer, "get", task_id_of(reply))).result["ttl"] == json.loads(ttl)


async def test_a_tool_that_requires_a_task_runs_as_a_task_and_the_server_refuses_a_plain_call(tree: Tree) -> None:
    async with tree.peer("http-legacy") as peer:
        assert task_id_of(await make(peer, "old_stdio", "must", id=label()))
        refused = await peer.call(tool("old_stdio", "must"))
        assert refused.error == {"code": -32601, "message": "Task augmentation required"}


async def test_a_plain_call_to_a_tool_that_may_be_a_task_is_answered_plainly(tree: Tree) -> None:
    async with tree.peer("http-legacy") as peer:
        reply = await peer.call(tool("old_http", "job"), {"n": 1})
        assert reply.result["structuredContent"]["plain"]["arguments"] == {"n": 1}


async def test_a_server_without_tasks_ignores_the_request_for_a_task(tree: Tree) -> None:
    async with tree.peer("http-legacy") as peer:
        params = {"name": "plain_old__echo", "arguments": {"n": 1}, "task": {"ttl": 1}}
        assert (await peer.request("tools/call", params)).result["structuredContent"] == {"n": 1}


# Whose it is


async def test_equal_ids_of_two_servers_are_two_tasks(tree: Tree) -> None:
    theirs = label()
    async with tree.peer("http-legacy") as peer:
        ours = {link: await made_by(peer, link, id=theirs) for link in SERVERS["legacy"]}
        assert len(set(ours.values())) == 2
        await drive_task(peer, "old_http", "end", task=theirs)
        assert (await ask_about_task(peer, "get", ours["old_stdio"])).result["status"] == "working"
        assert (await ask_about_task(peer, "get", ours["old_http"])).result["status"] == "completed"


@pytest.mark.parametrize("link", SERVERS["legacy"])
async def test_a_task_of_another_principal_does_not_exist(tree: Tree, link: str) -> None:
    theirs = label()
    mine, others = tree.token("tasks-owner"), tree.token("tasks-other")
    async with tree.peer("http-legacy", token=mine) as owner, tree.peer("http-legacy", token=others) as other:
        ours = await made_by(owner, link, id=theirs)
        before = len((await read_tasks(owner, link))["calls"])
        for method in ("get", "result", "cancel"):
            assert (await ask_about_task(other, method, ours)).error == UNKNOWN
        assert (await other.request("tasks/list")).result == {"tasks": []}
        assert len((await read_tasks(owner, link))["calls"]) == before  # the server never heard of it
        assert (await ask_about_task(owner, "get", ours)).result["status"] == "working"


async def test_another_session_of_the_same_principal_has_the_task_too(tree: Tree) -> None:
    token = tree.token("tasks-twice")
    async with tree.peer("http-legacy", token=token) as one:
        ours = await made_by(one, "old_http", id=label())
    async with tree.peer("http-legacy", token=token) as two:
        assert (await ask_about_task(two, "get", ours)).result["status"] == "working"


async def test_a_task_is_seen_only_where_its_server_is(tree: Tree) -> None:
    async with tree.peer("http-legacy", path="/only/old_http") as here, tree.peer("http-legacy") as everywhere:
        ours = task_id_of(await here.request("tools/call", {"name": "job", "arguments": {"id": label()}, "task": {}}))
        elsewhere = await made_by(everywhere, "old_stdio", id=label())
        assert (await ask_about_task(here, "get", ours)).result["taskId"] == ours
        assert (await ask_about_task(everywhere, "get", ours)).result["taskId"] == ours
        assert (await ask_about_task(here, "get", elsewhere)).error == UNKNOWN
        listed = [task["taskId"] for task in (await here.request("tasks/list")).result["tasks"]]
        assert ours in listed
        assert elsewhere not in listed


# Lists


async def listed(peer: Peer) -> list[list[Any]]:
    """All pages."""
    pages, cursor = [], {}
    while True:
        result = (await peer.request("tasks/list", cursor)).result
        pages.append(result["tasks"])
        if "nextCursor" not in result:
            return pages
        cursor = {"cursor": result["nextCursor"]}


async def test_a_list_has_the_callers_tasks_of_all_servers_with_their_states(tree: Tree) -> None:
    async with contextlib.AsyncExitStack() as stack:
        tokens = [tree.token(name) for name in ("tasks-lister", "tasks-neighbour")]
        peer, other = [await stack.enter_async_context(tree.peer("http-legacy", token=token)) for token in tokens]
        names = {link: [label(), label()] for link in SERVERS["legacy"]}
        mine = [await made_by(peer, link, id=theirs) for link in names for theirs in names[link]]
        assert await made_by(other, "old_http", id=label()) not in mine
        await drive_task(peer, "old_http", "end", task=names["old_http"][0])
        async with asyncio.timeout(10):  # until the poll interval has passed
            while (tasks := (await listed(peer))[0])[2]["status"] != "completed":
                pass
        assert [task["taskId"] for task in tasks] == mine
        assert [task["status"] for task in tasks] == ["working", "working", "completed", "working"]
        assert tasks[0]["x-before"] == {"z": 1.0}
        assert "tasks/list" not in (await read_tasks(peer, "old_http"))["calls"]


async def test_a_long_list_comes_in_pages_under_a_cursor_of_the_nodes_own(tree: Tree) -> None:
    async with tree.peer("http-legacy", token=tree.token("tasks-many")) as peer:
        mine = [await made_by(peer, SERVERS["legacy"][number % 2], id=label(), poll=60_000) for number in range(51)]
        pages = await listed(peer)
        assert [len(page) for page in pages] == [50, 1]
        assert [task["taskId"] for page in pages for task in page] == mine
        for cursor in ("", "at-50", "aWwxOi0x", "é", 7, None):
            refused = await peer.request("tasks/list", {"cursor": cursor})
            assert refused.error["code"] == -32602, cursor


async def test_a_list_asks_no_server_more_often_than_it_wants_to_be_asked(tree: Tree) -> None:
    theirs = label()
    async with tree.peer("http-legacy", token=tree.token("tasks-patient")) as peer:
        ours = await made_by(peer, "old_http", id=theirs, poll=60_000)
        for _ in range(3):
            assert [task["taskId"] for task in (await listed(peer))[0]] == [ours]
        assert f"tasks/get {theirs}" not in (await read_tasks(peer, "old_http"))["calls"]


async def test_a_task_its_server_has_forgotten_is_not_listed(tree: Tree) -> None:
    theirs = label()
    async with tree.peer("http-legacy", token=tree.token("tasks-forgotten")) as peer:
        await made_by(peer, "old_stdio", id=theirs, poll=0, get={"taskId": "another"})
        assert len((await listed(peer))[0]) == 1  # an answer about another task tells nothing
        ours = await made_by(peer, "old_http", id=theirs, poll=0)
        async with tree.peer("http-legacy") as thief:
            await made_by(thief, "old_http", id=theirs)
        assert ours not in [task["taskId"] for task in (await listed(peer))[0]]


# What a task says by itself


async def without_stream(tree: Tree) -> HttpPeer:
    return await HttpPeer.legacy(f"{tree.node.url}/mcp", declared("http-legacy"))


@pytest.mark.parametrize(("front", "link"), LEGACY_CELLS)
async def test_updates_of_a_task_reach_exactly_the_session_that_created_it(tree: Tree, front: str, link: str) -> None:
    theirs = label()
    async with contextlib.AsyncExitStack() as stack:
        owner = await stack.enter_async_context(tree.peer(front, declared(front)))
        others = [await stack.enter_async_context(tree.peer("http-legacy")) for _ in range(2)]
        others.append(await stack.enter_async_context(tree.peer("http-legacy", token=tree.token("tasks-curious"))))
        for peer in (owner, *others):
            await peer.request("logging/setLevel", {"level": "debug"})
        ours = task_id_of(await make(owner, link, id=theirs, meta={"progressToken": "mine"}))
        for what in ("status", "progress", "log"):
            await drive_task(others[0], link, "news", task=theirs, what=what)
        told = await owner.hear(STATUS)
        assert json.dumps(told["params"], ensure_ascii=False) == json.dumps(
            json.loads(f"{{{state(ours, 'working', 'legacy')}}}"), ensure_ascii=False
        )
        progress = (await owner.hear(PROGRESS))["params"]
        assert progress == {"progressToken": "mine", "progress": 1, "_meta": {RELATED: {"taskId": ours, "x-own": [1]}}}
        logged = (await owner.hear(LOGGED))["params"]
        assert logged["_meta"] == {RELATED: {"taskId": ours, "x-own": [1]}}
        assert [peer.heard(STATUS, PROGRESS, LOGGED) for peer in others] == [[], [], []]


@pytest.mark.parametrize("link", SERVERS["legacy"])
async def test_a_client_without_a_stream_is_asked_where_it_waits_for_the_result(tree: Tree, link: str) -> None:
    theirs = label()
    async with tree.peer("stdio-legacy") as driver, await without_stream(tree) as peer:
        ours = await made_by(peer, link, id=theirs)
        waiting = peer.begin("tasks/result", {"taskId": ours})
        async with asyncio.timeout(10):
            while f"tasks/result {theirs}" not in (await read_tasks(driver, link))["calls"]:
                pass
        await drive_task(driver, link, "news", task=theirs, what="status")
        assert (await peer.hear(STATUS))["params"]["taskId"] == ours
        await drive_task(driver, link, "end", task=theirs)
        assert "result" in (await waiting.reply()).message


async def test_updates_of_unknown_tasks_are_dropped_and_counted(tree: Tree) -> None:
    theirs = label()
    async with tree.peer("http-legacy") as peer:
        ours = await made_by(peer, "old_stdio", id=theirs)
        before = tree.node.link("old_stdio")["stray"]
        for params in ({"taskId": "nobody's"}, {"taskId": 5}, {}, {"taskId": "n" * 5000}):
            await drive_task(peer, "old_stdio", "news", task=theirs, what="any", method=STATUS, params=params)
        odd = {"progressToken": 10**12, "progress": 1}
        await drive_task(peer, "old_stdio", "news", task=theirs, what="any", method=PROGRESS, params=odd)
        await drive_task(peer, "old_stdio", "news", task=theirs, what="status")
        assert (await peer.hear(STATUS))["params"]["taskId"] == ours
        assert peer.heard(STATUS, PROGRESS) == []
        assert tree.node.link("old_stdio")["stray"] == before + 5


# What a task asks


def answering(peer: Peer, ours: str) -> None:
    """Its answer says which task it belongs to, as 2025-11-25 asks."""
    peer.answers[ELICIT] = lambda params: {**FILLED, "_meta": {RELATED: {"taskId": ours}, "k": 1}}


async def answered(peer: Peer, link: str, theirs: str) -> Any:
    async with asyncio.timeout(10):
        while not (answers := (await read_tasks(peer, link))["tasks"][theirs]["answers"]):
            pass
    return json.loads(answers[0])


@pytest.mark.parametrize(("front", "link"), LEGACY_CELLS)
async def test_a_task_asks_its_own_client_while_others_have_calls_under_way(tree: Tree, front: str, link: str) -> None:
    theirs = label()
    async with tree.peer(front, declared(front)) as owner, tree.peer("http-legacy") as other:
        ours = await made_by(owner, link, id=theirs)
        others = await made_by(other, link, id=label())
        blocked = other.begin("tasks/result", {"taskId": others})
        answering(owner, ours)
        await drive_task(owner, link, "question", task=theirs, method=ELICIT, params=FORM)
        assert await answered(owner, link, theirs) == {**FILLED, "_meta": {RELATED: {"taskId": theirs}, "k": 1}}
        (asked,) = owner.asked
        assert asked["params"] == {**FORM, "_meta": {RELATED: {"taskId": ours, "x-own": [1]}}}
        assert other.asked == []
        await ask_about_task(other, "cancel", others)
        await blocked.reply()


@pytest.mark.parametrize("link", SERVERS["legacy"])
async def test_a_question_waits_for_a_client_that_cannot_be_reached_until_it_asks_for_the_result(
    tree: Tree, link: str
) -> None:
    theirs = label()
    async with tree.peer("stdio-legacy") as driver, await without_stream(tree) as peer:
        ours = await made_by(peer, link, id=theirs)
        await drive_task(driver, link, "question", task=theirs, method=ELICIT, params=FORM)
        async with asyncio.timeout(10):
            while (await ask_about_task(peer, "get", ours)).result["status"] != "input_required":
                pass
        answering(peer, ours)
        waiting = peer.begin("tasks/result", {"taskId": ours})
        assert (await answered(driver, link, theirs))["content"] == FILLED["content"]
        await drive_task(driver, link, "end", task=theirs)
        assert "result" in (await waiting.reply()).message
        assert len(peer.asked) == 1


@pytest.mark.parametrize("link", SERVERS["legacy"])
async def test_a_question_stays_open_when_its_client_stops_to_wait_for_the_result(tree: Tree, link: str) -> None:
    theirs = label()
    async with tree.peer("stdio-legacy") as driver, await without_stream(tree) as peer:
        ours = await made_by(peer, link, id=theirs)
        waiting = peer.begin("tasks/result", {"taskId": ours})
        await drive_task(driver, link, "question", task=theirs, method=ELICIT, params=FORM)
        asked = await peer.hear(ELICIT)
        await peer.hang_up(waiting)
        assert (await ask_about_task(peer, "get", ours)).result["status"] == "input_required"
        await peer.respond(asked["id"], FILLED)
        assert await answered(driver, link, theirs) == FILLED
        assert (await ask_about_task(peer, "get", ours)).result["status"] == "working"


async def test_a_question_is_taken_back_from_the_client_that_has_it(tree: Tree) -> None:
    theirs = label()
    async with tree.peer("http-legacy") as owner:
        await made_by(owner, "old_stdio", id=theirs)
        await drive_task(owner, "old_stdio", "question", task=theirs, method=ELICIT, params=FORM)
        asked = await owner.hear(ELICIT)
        await drive_task(owner, "old_stdio", "withdraw", task=theirs)
        taken_back = await owner.hear("notifications/cancelled")
        assert taken_back["params"] == {"requestId": asked["id"], "reason": "found it"}


async def test_a_question_without_a_task_reaches_no_client_while_tasks_of_several_clients_run(tree: Tree) -> None:
    theirs = label()
    tokens = [tree.token(name) for name in ("tasks-one", "tasks-two")]
    async with (
        tree.peer("http-legacy", token=tokens[0]) as one,
        tree.peer("http-legacy", token=tokens[1]) as two,
    ):
        await made_by(one, "old_stdio", id=theirs)
        await made_by(two, "old_stdio", id=label())
        await drive_task(two, "old_stdio", "question", task=theirs, method=ELICIT, params=FORM, unrelated=True)
        refused = await answered(two, "old_stdio", theirs)
        assert refused["code"] == -32601
        assert "cannot be told" in refused["message"]
        assert (one.asked, two.asked) == ([], [])


async def test_a_call_that_belongs_to_a_task_says_so_under_the_id_its_server_knows(tree: Tree) -> None:
    theirs = label()
    mark = {RELATED: {"taskId": "?", "x-own": {"n": 1}}, "com.example/k": 1}
    async with tree.peer("http-legacy") as peer:
        ours = await made_by(peer, "old_stdio", id=theirs)
        for named, expected in (
            (ours, {RELATED: {"taskId": theirs, "x-own": {"n": 1}}, "com.example/k": 1}),
            ("nobody's", {"com.example/k": 1}),
        ):
            mark[RELATED] = {"taskId": named, "x-own": {"n": 1}}
            reply = await peer.call(tool("old_stdio", "job"), meta=mark)
            assert reply.result["structuredContent"]["plain"]["_meta"] == expected
        mark[RELATED] = {"taskId": ours}
        reply = await peer.call(tool("old_http", "job"), meta=mark)  # another server's task is nothing to this one
        assert reply.result["structuredContent"]["plain"]["_meta"] == {"com.example/k": 1}


# Capabilities


async def test_tasks_are_offered_to_clients_of_that_revision_where_a_server_has_them(tree: Tree) -> None:
    offered = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    for path, version, expected in (
        ("", LEGACY, offered),
        ("/only/old_http", LEGACY, offered),
        ("/only/plain_old", LEGACY, None),
        ("/only/new_http", LEGACY, None),
        ("", "2025-06-18", None),
    ):
        async with tree.peer("http-legacy", {}, path=path, version=version) as peer:
            assert peer.greeting["capabilities"].get("tasks") == expected, (path, version)


async def test_the_methods_of_tasks_do_not_exist_if_no_server_has_tasks(tree: Tree) -> None:
    for path in ("/only/plain_old", "/only/new_http"):
        async with tree.peer("http-legacy", path=path) as peer:
            for method in ("get", "result", "cancel", "list"):
                assert (await ask_about_task(peer, method, "x")).error["code"] == -32601


async def test_the_task_support_of_a_tool_is_listed_as_its_server_declares_it(tree: Tree) -> None:
    async with tree.peer("http-legacy") as peer:
        tools = {one["name"]: one for one in (await peer.request("tools/list")).result["tools"]}
    assert tools["old_http__job"]["execution"] == {"taskSupport": "optional", "x-more": {"n": 1.0}}
    assert tools["old_stdio__must"]["execution"]["taskSupport"] == "required"
    assert "execution" not in tools["new_http__job"]


# Losses


async def test_a_task_reports_that_its_server_was_lost_also_after_a_restart(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("lost")
    with node_of_tasks(folder, "old_stdio") as node:
        tree = Tree(node)
        async with tree.peer("http-legacy") as peer:
            ours = await made_by(peer, "old_stdio", id=label())
            waiting = peer.begin("tasks/result", {"taskId": ours})
            pid = node.link("old_stdio")["pid"]
            died = peer.begin_call(tool("old_stdio", "die"))
            lost = (await waiting.reply()).error
            assert (lost["code"], lost["data"]["reason"]) == (-32002, "subserver_unreachable")
            await died.reply()
            refused = (await ask_about_task(peer, "get", ours)).error  # waits for the server to come back
            assert (refused["code"], refused["data"]) == (-32602, {"reason": "task_lost"})
            assert refused["message"].endswith("Task not found")
            assert wait_for(lambda: node.link("old_stdio")["pid"]) != pid
            again = await made_by(peer, "old_stdio", id=label())
            assert (await ask_about_task(peer, "get", again)).result["status"] == "working"
    with node_of_tasks(folder, "old_stdio") as node:
        async with Tree(node).peer("http-legacy") as peer:
            for method in ("get", "result", "cancel"):
                refused = (await ask_about_task(peer, method, again)).error
                assert (refused["code"], refused["data"]) == (-32602, {"reason": "task_forgotten"})
                assert "restarted" in refused["message"]
            assert (await peer.request("tasks/list")).result == {"tasks": []}


@pytest.mark.parametrize("front", FRONTS["legacy"])
async def test_a_node_that_stops_does_not_wait_with_a_client_for_a_result(
    tmp_path_factory: pytest.TempPathFactory, front: str
) -> None:
    with node_of_tasks(tmp_path_factory.mktemp("stops"), "old_http") as node:
        async with Tree(node).peer(front, declared(front)) as peer:
            waiting = peer.begin("tasks/result", {"taskId": await made_by(peer, "old_http", id=label())})
            async with asyncio.timeout(10):
                while not (await read_tasks(peer, "old_http"))["calls"]:
                    pass
            node.process.terminate()
            assert (await waiting.reply()).error["data"] == {"reason": "node_stopping"}
            assert await asyncio.to_thread(node.process.wait, 8) == 0
