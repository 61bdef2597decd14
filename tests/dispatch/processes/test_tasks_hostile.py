"""Ids nobody gave out, servers that answer nonsense about tasks, and servers that give one id twice."""

import json
from typing import Any

import pytest
from tests.support.fleet import tool
from tests.support.task_servers import (
    DECLARED,
    SERVERS,
    UNKNOWN,
    ask_about_task,
    declared,
    drive_task,
    label,
    made_by,
    make,
    read_tasks,
    start_tree,
    state,
)
from tests.support.two_era_node import ELICIT, FORM, Tree

ERAS = {"legacy": "http-legacy", "modern": "http-modern"}
METHODS = {"legacy": ("get", "result", "cancel"), "modern": ("get", "update", "cancel")}
LINKS = [(era, link) for era in ERAS for link in SERVERS[era]]


@pytest.fixture(scope="session")
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return start_tree(request, tmp_path_factory)


# Ids


def tampered(ours: str, theirs: str) -> list[str]:
    segment, _, rest = ours.partition(".")
    return [
        "",
        " ",
        theirs,
        f"{segment}.{theirs}",
        segment,
        f"{segment}.",
        rest,
        ours + " ",
        ours.upper(),
        ours[:-1],
        ours + "A",
        ours[:-1] + ("A" if ours[-1] != "A" else "B"),
        f"new_stdio.{rest}" if segment != "new_stdio" else f"old_stdio.{rest}",
        f"../{ours}",
        f"{ours}\u0000",
        "é" * 300,
        "'; drop table tasks; --",
    ]


@pytest.mark.parametrize(("era", "link"), LINKS)
async def test_an_id_that_was_not_given_out_is_unknown_and_reaches_no_server(tree: Tree, era: str, link: str) -> None:
    theirs = label()
    async with tree.peer(ERAS[era], declared(ERAS[era])) as peer:
        ours = await made_by(peer, link, id=theirs)
        before = (await read_tasks(peer, link))["calls"]
        for wrong in tampered(ours, theirs):
            for method in METHODS[era]:
                refused = await ask_about_task(peer, method, wrong)
                assert refused.error == UNKNOWN, wrong
        assert (await read_tasks(peer, link))["calls"] == before
        assert (await ask_about_task(peer, "get", ours)).result["status"] == "working"


@pytest.mark.parametrize("era", ERAS)
async def test_an_id_of_another_run_says_so_whether_it_was_ever_given_out_or_not(tree: Tree, era: str) -> None:
    async with tree.peer(ERAS[era], declared(ERAS[era])) as peer:
        ours = await made_by(peer, SERVERS[era][0], id=label())
        segment, _, rest = ours.partition(".")
        run = "00000000" if not rest.startswith("00000000") else "11111111"
        for segment_ in (segment, "no-such-server"):
            refused = await ask_about_task(peer, "get", f"{segment_}.{run}{rest[8:]}")
            assert refused.error["data"] == {"reason": "task_forgotten"}


@pytest.mark.parametrize("front", ["http-legacy", "stdio-legacy", "stdio-modern"])  # a header holds texts only
async def test_an_id_that_is_no_text_is_a_bad_parameter(tree: Tree, front: str) -> None:
    async with tree.peer(front, declared(front)) as peer:
        for odd in (None, 7, 1.5, True, [], {}, ["x"], {"taskId": "x"}):
            for method in METHODS["modern" if peer.modern else "legacy"]:
                assert (await ask_about_task(peer, method, odd)).error["code"] == -32602
        assert (await peer.request("tasks/get")).error["code"] == -32602


async def test_a_huge_id_is_refused_and_costs_nothing(tree: Tree) -> None:
    async with tree.peer("stdio-legacy") as legacy, tree.peer("stdio-modern", DECLARED) as modern:
        for peer in (legacy, modern):
            assert (await ask_about_task(peer, "get", "x" * 100_000)).error == UNKNOWN
            assert (await ask_about_task(peer, "get", "x" * 2_000_000)).error["code"] == -32602
        big = "x" * 9_000  # does not fit a header
        assert (await ask_about_task(legacy, "cancel", big)).error == UNKNOWN


async def test_ids_are_long_and_all_different(tree: Tree) -> None:
    async with tree.peer("http-legacy") as peer:
        ids = [await made_by(peer, "old_stdio", id=label()) for _ in range(5)]
    tails = {one.partition(".")[2] for one in ids}
    assert len(tails) == 5
    assert all(len(tail) == 32 for tail in tails)
    assert len({tail[8:14] for tail in tails}) == 5  # chance, not a count


# Nonsense


def nonsense(era: str) -> list[Any]:
    odd: list[Any] = [
        {"taskId": 7},
        {"taskId": None},
        {"taskId": ""},
        {"taskId": ["x"]},
        {"taskId": "x" * 2000},
        {"status": "working"},
        {},
    ]
    return [{"task": one} for one in (*odd, 5, None, [], "x")] if era == "legacy" else odd


@pytest.mark.parametrize(("era", "link"), LINKS)
async def test_a_task_nobody_could_ask_for_is_the_servers_fault(tree: Tree, era: str, link: str) -> None:
    async with tree.peer(ERAS[era], declared(ERAS[era])) as peer:
        for answer in nonsense(era):
            refused = (await make(peer, link, answer=answer)).error
            assert (refused["code"], refused["data"]) == (-32603, {"reason": "malformed_answer"}), answer
        assert (await peer.call(tool(link, "echo"), {"n": 1})).result["structuredContent"] == {"n": 1}


@pytest.mark.parametrize(("era", "link"), LINKS)
async def test_an_answer_about_another_task_is_shown_to_nobody(tree: Tree, era: str, link: str) -> None:
    async with tree.peer(ERAS[era], declared(ERAS[era])) as peer:
        for answer in ({"taskId": "another", "status": "completed"}, {"taskId": 5}, {"status": "working"}):
            ours = await made_by(peer, link, id=label(), get=answer)
            refused = (await ask_about_task(peer, "get", ours)).error
            assert (refused["code"], refused["data"]) == (-32603, {"reason": "malformed_answer"})


@pytest.mark.parametrize("link", SERVERS["legacy"])
async def test_a_result_that_is_no_task_though_a_task_was_requested_passes_unchanged(tree: Tree, link: str) -> None:
    answer = {"content": [], "x-kept": {"n": 1.0}}
    async with tree.peer("http-legacy") as peer:
        assert (await make(peer, link, answer=answer)).result_text == json.dumps(answer)


async def test_odd_times_and_states_of_a_task_pass_and_break_nothing(tree: Tree) -> None:
    async with tree.peer("http-legacy") as peer:
        peer.judged = False
        for ttl, poll in ((-1, -1), ("x", "y"), (1e300, 1e300), (True, []), (10**30, 10**30), ({}, None)):
            ours = await made_by(peer, "old_stdio", id=label(), ttl=ttl, poll=poll)
            assert (await ask_about_task(peer, "get", ours)).result["ttl"] == ttl
        assert len((await peer.request("tasks/list")).result["tasks"]) >= 6


async def test_a_question_that_names_a_task_nobody_has_is_refused(tree: Tree) -> None:
    theirs = label()
    mark = {"io.modelcontextprotocol/related-task": {"taskId": "nobody's"}}
    async with tree.peer("http-legacy") as peer:
        await made_by(peer, "old_stdio", id=theirs)
        asked = {**FORM, "_meta": mark}
        await drive_task(peer, "old_stdio", "question", task=theirs, method=ELICIT, params=asked, unrelated=True)
        (answer,) = (await read_tasks(peer, "old_stdio"))["tasks"][theirs]["answers"]
        assert json.loads(answer)["message"] == "the task this belongs to is not known"
        assert peer.asked == []


# The same id twice


@pytest.mark.parametrize(("era", "link"), LINKS)
async def test_an_id_that_a_server_gives_to_another_principals_task_leaves_its_first_owner(
    tree: Tree, era: str, link: str
) -> None:
    theirs = label()
    tokens = [tree.token(f"{name}-{era}") for name in ("first", "second")]
    front, said = ERAS[era], declared(ERAS[era])
    async with tree.peer(front, said, token=tokens[0]) as first, tree.peer(front, said, token=tokens[1]) as second:
        old = await made_by(first, link, id=theirs)
        new = await made_by(second, link, id=theirs)
        assert old != new
        for method in METHODS[era]:
            refused = await ask_about_task(first, method, old)
            assert (refused.error["code"], refused.error["data"]) == (-32602, {"reason": "task_lost"})
            assert "newer task" in refused.error["message"]
        assert (await ask_about_task(first, "get", new)).error == UNKNOWN
        assert (await ask_about_task(second, "get", new)).result["taskId"] == new


@pytest.mark.parametrize(("era", "link"), LINKS)
async def test_an_id_that_a_server_gives_to_the_same_principal_again_is_one_id_here_too(
    tree: Tree, era: str, link: str
) -> None:
    theirs = label()
    async with tree.peer(ERAS[era], declared(ERAS[era])) as peer:
        ours = await made_by(peer, link, id=theirs)
        assert await made_by(peer, link, id=theirs) == ours
        expected = state(ours, "working", era)
        assert expected in (await ask_about_task(peer, "get", ours)).result_text
