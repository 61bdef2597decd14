"""Tasks the other way round: a legacy server asks its client as a task, and the client keeps it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.fleet import tool
from tests.support.peers import Peer
from tests.support.task_servers import (
    DECLARED,
    FRONTS,
    LEGACY_CELLS,
    RELATED,
    SERVERS,
    ask_about_task,
    drive_task,
    label,
    made_by,
    node_of_tasks,
    read_tasks,
    state,
)
from tests.support.two_era_node import ELICIT, FILLED, FORM, SAMPLE, SAMPLING, Tree

KEEPS = {
    "sampling": {},
    "elicitation": {},
    "tasks": {"cancel": {}, "requests": {"sampling": {"createMessage": {}}, "elicitation": {"create": {}}}},
}
SAID = {"role": "assistant", "content": {"type": "text", "text": "é"}, "model": "m"}
OWN = "own task"  # what the client calls every task of its own


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    """A node of its own: on one pipe, a question is only put to a client when nobody else has tasks under way."""
    with node_of_tasks(tmp_path_factory.mktemp("asked"), *SERVERS["legacy"]) as node:
        yield Tree(node)


def task(task_id: str, status: str = "working") -> Any:
    return json.loads(f"{{{state(task_id, status, 'legacy')}}}")


def keeping(peer: Peer) -> None:
    """A client that makes a task of what it is asked."""
    peer.answers[SAMPLE] = peer.answers[ELICIT] = lambda params: {"task": task(OWN), "_meta": {"k": 1}}
    peer.answers["tasks/get"] = lambda params: task(params["taskId"])
    peer.answers["tasks/cancel"] = lambda params: task(params["taskId"], "cancelled")
    peer.answers["tasks/result"] = lambda params: {**SAID, "_meta": {RELATED: {"taskId": OWN}}}


async def asked(peer: Peer, link: str, *then: str, **more: Any) -> list[Any]:
    arguments = {"method": SAMPLE, "params": {**SAMPLING, "task": {"ttl": 5}}, "then": then, **more}
    return (await drive_task(peer, link, "client_task", **arguments))["answers"]


@pytest.mark.parametrize(("front", "link"), LEGACY_CELLS)
async def test_a_client_keeps_a_task_for_a_server_under_an_id_of_the_nodes(tree: Tree, front: str, link: str) -> None:
    async with tree.peer(front, KEEPS) as peer:
        keeping(peer)
        made, got, cancelled, result = await asked(peer, link, "tasks/get", "tasks/cancel", "tasks/result")
        server_side = made["task"]["taskId"]
        assert server_side != OWN
        assert made == {"task": task(server_side), "_meta": {"k": 1}}
        assert got == task(server_side)
        assert cancelled == task(server_side, "cancelled")
        assert result == {**SAID, "_meta": {RELATED: {"taskId": server_side}}}
        assert peer.asked[0]["params"] == {**SAMPLING, "task": {"ttl": 5}}
        assert [one["params"] for one in peer.asked[1:]] == [{"taskId": OWN}] * 3


async def test_equal_ids_of_two_clients_are_two_tasks_and_news_reach_the_server_that_asked(tree: Tree) -> None:
    async with tree.peer("http-legacy", KEEPS) as one, tree.peer("http-legacy", KEEPS) as two:
        ids = []
        for peer in (one, two):
            keeping(peer)
            (made,) = await asked(peer, "old_http")
            ids.append(made["task"]["taskId"])
        assert len(set(ids)) == 2
        await two.notify("notifications/tasks/status", task(OWN, "completed"))
        await two.notify("notifications/tasks/status", task("nobody's"))
        heard = [json.loads(text)["params"] for text in (await read_tasks(one, "old_http"))["heard"]]
        assert heard[-1] == task(ids[1], "completed")
        assert "nobody's" not in [one["taskId"] for one in heard]
        got = await asked(one, "old_http", "tasks/get", id=ids[1])  # whoever is asked, it is the other's task
        assert got[1] == task(ids[1])
        assert two.asked[-1]["method"] == "tasks/get"


async def test_only_the_server_that_asked_can_ask_about_the_task_and_only_while_its_client_is_there(tree: Tree) -> None:
    async with tree.peer("http-legacy", KEEPS) as other:
        keeping(other)
        async with tree.peer("http-legacy", KEEPS) as peer:
            keeping(peer)
            (made,) = await asked(peer, "old_http")
            server_side = made["task"]["taskId"]
            refused = (await asked(other, "old_stdio", "tasks/get", id=server_side))[1]
            assert (refused["code"], refused["data"]) == (-32602, {"reason": "task_unknown"})
            await peer.end()
        refused = (await asked(other, "old_http", "tasks/get", id=server_side))[1]
        assert (refused["code"], refused["data"]) == (-32602, {"reason": "task_unknown"})


@pytest.mark.parametrize("front", FRONTS["legacy"])
async def test_a_client_that_keeps_no_tasks_is_answered_for(tree: Tree, front: str) -> None:
    async with tree.peer(front, {"sampling": {}, "tasks": {"requests": {"elicitation": {"create": {}}}}}) as peer:
        (refused,) = await asked(peer, "old_http")
        assert refused == {"code": -32601, "message": f"the client does not take {SAMPLE} as a task"}
        assert peer.asked == []


@pytest.mark.parametrize("link", ["old_stdio", "old_http"])
async def test_a_modern_client_is_not_asked_for_a_task_of_the_other_era(tree: Tree, link: str) -> None:
    async with tree.peer("http-modern", {**DECLARED, "sampling": {}}) as peer:
        (refused,) = await asked(peer, link)
        assert refused["code"] == -32601
        assert "2025-11-25" in refused["message"]
        assert "2026-07-28" in refused["message"]


async def test_a_plain_answer_to_a_question_that_may_be_a_task_passes(tree: Tree) -> None:
    async with tree.peer("http-legacy", KEEPS) as peer:
        peer.answers[SAMPLE] = lambda params: {**SAID, "x-task": {"task": 1}}
        assert await asked(peer, "old_stdio") == [{**SAID, "x-task": {"task": 1}}]


async def test_a_task_of_the_server_that_needs_a_task_of_the_client_names_both_right(tree: Tree) -> None:
    theirs = label()
    async with tree.peer("http-legacy", KEEPS) as peer:
        ours = await made_by(peer, "old_stdio", id=theirs)
        peer.answers[ELICIT] = lambda params: {"task": task(OWN), "_meta": {RELATED: {"taskId": ours}}}
        params = {**FORM, "task": {}}
        await drive_task(peer, "old_stdio", "question", task=theirs, method=ELICIT, params=params)
        answers: list[str] = []
        while not answers:
            answers = (await read_tasks(peer, "old_stdio"))["tasks"][theirs]["answers"]
        made = json.loads(answers[0])
        assert made["_meta"] == {RELATED: {"taskId": theirs}}
        assert made["task"]["taskId"] not in (OWN, ours, theirs)
        assert peer.asked[0]["params"]["_meta"][RELATED]["taskId"] == ours
        assert (await ask_about_task(peer, "get", ours)).result["status"] == "working"


async def test_a_link_declares_to_a_legacy_server_what_a_client_may_keep(tree: Tree) -> None:
    async with tree.peer("http-legacy", KEEPS) as peer:
        peer.answers[ELICIT] = lambda params: FILLED
        reply = await peer.call(tool("old_stdio", "greeted"))
        said = reply.result["structuredContent"]["capabilities"]["tasks"]
        assert said == KEEPS["tasks"]
