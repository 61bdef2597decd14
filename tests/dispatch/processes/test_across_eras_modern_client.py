"""A 2026-07-28 client and a legacy server: does a question in mid-call become `input_required`, and does the retry take
up that very call?

How long a parked call lives, and that nothing is kept of it, is shown in tests/dispatch/in_process, with its own clock.
"""

import json
from typing import Any

import pytest
from tests.servers.rawserver.text import members
from tests.support.asking_server import PAGE
from tests.support.fleet import CAPABLE, LEGACY_LINKS, MODERN_FRONTS, tool, uri
from tests.support.node_process import wait_for
from tests.support.peers import HttpPeer, Ongoing, Peer, Reply
from tests.support.two_era_node import (
    ELICIT,
    FILLED,
    QUESTIONS,
    SAMPLE,
    Tree,
    answers,
    asks,
    call_again,
    filled_answers,
    interview,
    label,
    open_gate,
    question,
    read_tally,
    start_tree,
    until,
)

CELLS = [(front, link) for front in MODERN_FRONTS for link in LEGACY_LINKS]
URL = {**CAPABLE, "elicitation": {"form": {}, "url": {}}}


@pytest.fixture(scope="session")
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return start_tree(request, tmp_path_factory)


async def parked(peer: Peer, link: str, *steps: dict[str, Any], **options: Any) -> tuple[dict[str, Any], Reply]:
    """A call that waits for its client: its arguments, and what the client was told."""
    given = interview(*(steps or (asks(question(ELICIT)),)))
    asked = await peer.call(tool(link, "interview"), given, **options)
    assert asked.result["resultType"] == "input_required", asked.text
    return given, asked


# Asking


@pytest.mark.parametrize(("front", "link"), CELLS)
async def test_every_kind_of_question_parks_the_call_and_its_answers_take_it_up(
    tree: Tree, front: str, link: str
) -> None:
    rounds = [asks(*(question(method) for method in QUESTIONS)), asks(question(ELICIT)), asks(question(SAMPLE))]
    async with tree.peer(front) as peer:
        given, reply = await parked(peer, link, *rounds)
        states = set()
        for methods in ([ELICIT, SAMPLE], [ELICIT], [SAMPLE]):  # roots are the operator's
            requests = reply.result["inputRequests"].values()
            assert [one["method"] for one in requests] == methods
            assert all(one.get("params", {}) == QUESTIONS[one["method"]][0] for one in requests)
            states.add(reply.result["requestState"])
            reply = await call_again(peer, tool(link, "interview"), given, reply, filled_answers(reply))
        said = {f"q{number}": answer for number, (_, answer) in enumerate(QUESTIONS.values(), 1)}
        assert answers(reply) == [said, {"q1": FILLED}, {"q1": QUESTIONS[SAMPLE][1]}]
        assert reply.result["resultType"] == "complete"
        assert len(states) == 3
        counts = await read_tally(peer, link)
        assert (counts["begun"][given["label"]], counts["finished"][given["label"]]) == (1, 1)
        assert peer.asked == []


@pytest.mark.parametrize("link", LEGACY_LINKS)
async def test_questions_and_answers_keep_their_bytes(tree: Tree, link: str) -> None:
    params = (
        '{ "mode":"form","message":"\\u00e9\\/","requestedSchema":{"type":"object","properties":{}},"x":[1.0,1E5] }'
    )
    answer = '{ "x":[1.0,18446744073709551616,{}],"action":"accept", "content":{"colour":"\\u00e9\\/"} }'
    arguments = f'{{"label":"{label()}","steps":[{{"ask":{{"q":{{"method":"{ELICIT}","params":{params}}}}}}}]}}'
    async with tree.peer("http-modern") as peer:
        call = f'"name":"{tool(link, "interview")}","arguments":{arguments}'
        asked = await peer.request("tools/call", f"{{{call}}}")
        assert members(members(members(asked.result_text)["inputRequests"])["1"])["params"] == params
        state = members(asked.result_text)["requestState"]
        reply = await peer.request("tools/call", f'{{"inputResponses":{{"1":{answer}}},{call},"requestState":{state}}}')
        assert members(reply.result_text)["structuredContent"] == f'{{"answers":[{{"q":{answer}}}]}}'


@pytest.mark.parametrize(("front", "link"), [("http-modern", "old_http"), ("stdio-modern", "old_stdio")])
async def test_prompts_and_resources_may_ask_too(tree: Tree, front: str, link: str) -> None:
    async with tree.peer(front) as peer:
        name = label()
        given = {"label": name, "steps": json.dumps([asks(question(SAMPLE)), asks(question(ELICIT))])}
        params: dict[str, Any] = {"name": tool(link, "interview"), "arguments": given}
        reply = await peer.request("prompts/get", params)
        for _ in range(2):
            more = {"requestState": reply.result["requestState"], "inputResponses": filled_answers(reply)}
            reply = await peer.request("prompts/get", {**params, **more})
        told = json.loads(reply.result["messages"][0]["content"]["text"])
        assert told == {"answers": [{"q1": QUESTIONS[SAMPLE][1]}, {"q1": FILLED}]}
        params = {"uri": uri(link, f"ask://{name}")}
        reply = await peer.request("resources/read", params)
        more = {"requestState": reply.result["requestState"], "inputResponses": filled_answers(reply)}
        reply = await peer.request("resources/read", {**params, **more})
        assert json.loads(reply.result["contents"][0]["text"]) == {"answers": [{"who": FILLED}]}
        assert (reply.result["ttlMs"], reply.result["cacheScope"]) == (0, "private")
        assert (await read_tally(peer, link))["begun"][name] == 2


@pytest.mark.parametrize(("front", "link"), CELLS[:4])
async def test_unanswered_questions_are_asked_again(tree: Tree, front: str, link: str) -> None:
    async with tree.peer(front) as peer:
        given, first = await parked(peer, link, asks(question(ELICIT), question(SAMPLE)))
        one, other = first.result["inputRequests"]
        second = await call_again(peer, tool(link, "interview"), given, first, {one: FILLED})
        assert list(second.result["inputRequests"]) == [other]
        third = await call_again(peer, tool(link, "interview"), given, second)
        assert third.result["inputRequests"] == second.result["inputRequests"]
        last = await call_again(peer, tool(link, "interview"), given, third, filled_answers(third))
        assert answers(last) == [{"q1": FILLED, "q2": QUESTIONS[SAMPLE][1]}]
        assert (await read_tally(peer, link))["begun"][given["label"]] == 1


class StreamPeer(HttpPeer):
    """Notes on which stream each message came: the id of its request."""

    def _receive(self, text: str, stream: Ongoing | None, status: int | None = None) -> None:
        self.__dict__.setdefault("streams", []).append((stream.id if stream is not None else None, json.loads(text)))
        super()._receive(text, stream, status)


@pytest.mark.parametrize("link", LEGACY_LINKS)
async def test_notices_after_the_answer_belong_to_the_retry(tree: Tree, link: str) -> None:
    steps = [{"progress": 1}, {"log": "error"}, asks(question(ELICIT)), {"progress": 2}, {"log": "warning"}]
    async with await StreamPeer.modern_(f"{tree.node.url}/mcp", CAPABLE) as peer:
        peer.log_level = "info"
        await peer.call(tool(link, "log"), {"level": "info"})  # the server has heard of the level
        given, asked = await parked(peer, link, *steps, meta={"progressToken": "first"})
        reply = await call_again(
            peer, tool(link, "interview"), given, asked, filled_answers(asked), meta={"progressToken": "second"}
        )
        seen = [
            (stream, message["params"].get("progressToken"), message["params"].get("progress"))
            for stream, message in peer.streams  # type: ignore[attr-defined]
            if message.get("method") == "notifications/progress"
        ]
        first, second = str(asked.message["id"]), str(reply.message["id"])
        assert seen == [(first, "first", 1), (second, "second", 2)]
        logged = [
            (stream, message["params"]["level"])
            for stream, message in peer.streams  # type: ignore[attr-defined]
            if message.get("method") == "notifications/message" and message["params"]["data"] == "in mid-call"
        ]
        assert logged == [(first, "error"), (second, "warning")]


# States


async def test_a_state_belongs_to_its_principal(tree: Tree) -> None:
    mine, theirs = tree.token("mine"), tree.token("theirs")
    async with (
        tree.peer("http-modern", token=mine) as owner,
        tree.peer("http-modern", token=theirs) as thief,
        tree.peer("http-modern") as local,
    ):
        given, asked = await parked(owner, "old_http")
        for other in (thief, local):
            refused = await call_again(other, tool("old_http", "interview"), given, asked, filled_answers(asked))
            assert (refused.status, refused.error["code"]) == (400, -32602)
            assert refused.error["data"]["reason"] == "state_foreign"
        reply = await call_again(owner, tool("old_http", "interview"), given, asked, filled_answers(asked))
        assert answers(reply) == [{"q1": FILLED}]
        assert (await read_tally(owner, "old_http"))["begun"][given["label"]] == 1


@pytest.mark.parametrize(("front", "link"), CELLS[2:4])
async def test_a_state_that_is_changed_used_or_anothers_is_refused_by_name(tree: Tree, front: str, link: str) -> None:
    async with tree.peer(front) as peer:
        given, asked = await parked(peer, link)
        name, state = tool(link, "interview"), asked.result["requestState"]
        params = {"name": name, "arguments": given, "inputResponses": filled_answers(asked)}
        for changed in (state[:-6] + "AAAAAA", "x" + state, "somebody else's"):
            refused = await peer.request("tools/call", {**params, "requestState": changed})
            assert refused.error["data"]["reason"] == "state_invalid"
        other = {**params, "arguments": {**given, "label": "other"}, "requestState": state}
        assert (await peer.request("tools/call", other)).error["data"]["reason"] == "state_foreign"
        assert answers(await call_again(peer, name, given, asked, filled_answers(asked))) == [{"q1": FILLED}]
        refused = await call_again(peer, name, given, asked, filled_answers(asked))
        assert refused.error["data"]["reason"] == "state_used"
        counts = await read_tally(peer, link)
        assert counts["begun"][given["label"]] == 1
        assert "other" not in counts["begun"]


async def test_a_server_tells_one_clients_question_from_anothers(tree: Tree) -> None:
    """On HTTP always; on a shared pipe as long as the other's call waits for its client already."""
    async with tree.peer("http-modern") as one, tree.peer("http-modern") as two:
        for link in LEGACY_LINKS:
            waiting = []
            for peer in (one, two):
                who = label()
                step = asks(question(ELICIT, message=who))
                given, asked = await parked(peer, link, step, step)
                assert [q["params"]["message"] for q in asked.result["inputRequests"].values()] == [who]
                waiting.append((peer, who, given, asked))
            for peer, who, given, asked in waiting:
                asked = await call_again(peer, tool(link, "interview"), given, asked, filled_answers(asked))
                assert [q["params"]["message"] for q in asked.result["inputRequests"].values()] == [who]
                reply = await call_again(peer, tool(link, "interview"), given, asked, filled_answers(asked))
                assert answers(reply) == [{"q1": FILLED}, {"q1": FILLED}]


# What a client cannot answer


@pytest.mark.parametrize("link", LEGACY_LINKS)
async def test_a_client_is_not_asked_what_it_cannot_answer(tree: Tree, link: str) -> None:
    page = {"method": ELICIT, "params": PAGE}
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, question(ELICIT)),
        ({"elicitation": {"form": {}}}, question(SAMPLE)),
        ({"elicitation": {}}, page),
        ({"elicitation": {"url": {}}}, question(ELICIT)),
        (URL, {"method": "tools/list", "params": {}}),
    ]
    async with tree.peer("http-modern") as peer:
        for capabilities, asked in cases:
            reply = await peer.call(tool(link, "interview"), interview(asks(asked)), capabilities=capabilities)
            (said,) = answers(reply)
            assert said["q1"]["code"] == -32601
            assert asked["method"] in said["q1"]["message"]


@pytest.mark.parametrize(("method", "needed"), [("test_sampling", "sampling"), ("test_elicitation", "elicitation")])
async def test_a_server_that_fails_for_it_is_understood_as_a_missing_capability(
    tree: Tree, method: str, needed: str
) -> None:
    async with tree.peer("http-modern") as peer:
        given = {"prompt": "p", "message": "m"}
        refused = await peer.call(tool("sdk_old", method), given, capabilities={})
        assert (refused.status, refused.error["code"]) == (400, -32021)
        assert refused.error["data"]["requiredCapabilities"] == {needed: {}}
        assert "does not support" in refused.error["message"]  # the server's own words


FULL = {"code": -32050, "message": "disk full", "data": {"z": 1, "a": [18446744073709551616]}}


@pytest.mark.parametrize("link", LEGACY_LINKS)
async def test_the_servers_description_of_its_failure_is_kept(tree: Tree, link: str) -> None:
    """Whether it failed for want of the capability or for something else, nobody but the server knows."""
    async with tree.peer("http-modern", {}) as peer:
        refused = await peer.call(tool(link, "interview"), interview(asks(question(SAMPLE)), {"fail": FULL}))
        assert (refused.status, refused.error["code"]) == (400, -32021)
        assert "disk full" in refused.error["message"]
        assert refused.error["data"] == {"requiredCapabilities": {"sampling": {}}, "error": FULL}


@pytest.mark.parametrize("link", LEGACY_LINKS)
async def test_a_tool_that_reports_failure_is_understood_as_a_missing_capability_too(tree: Tree, link: str) -> None:
    """As the SDKs of servers write it, which make a result of what a tool throws."""
    words = "Client does not support sampling"
    async with tree.peer("http-modern", {}) as peer:
        refused = await peer.call(tool(link, "interview"), interview(asks(question(SAMPLE)), {"spoil": words}))
        assert (refused.status, refused.error["code"]) == (400, -32021)
        assert words in refused.error["message"]
        data = refused.error["data"]
        assert data["requiredCapabilities"] == {"sampling": {}}
        assert data["result"]["content"] == [{"type": "text", "text": words}]
        unasked = await peer.call(tool(link, "interview"), interview({"spoil": words}))  # it looked, and did not ask
        assert (unasked.status, unasked.error["code"]) == (400, -32021)
        assert unasked.error["data"] == data
        plain = await peer.call(tool(link, "interview"), interview({"spoil": f"The {words} of ours is empty"}))
        assert plain.result["isError"]
    async with tree.peer("http-modern", {"sampling": {}}) as peer:
        able = await peer.call(tool(link, "interview"), interview({"spoil": words}))
        assert able.result["isError"]
    async with tree.peer("http-modern", {"elicitation": {}}) as peer:
        given = interview(asks(question(SAMPLE)), asks(question(ELICIT)), {"spoil": "out of paper"})
        asked = await peer.call(tool(link, "interview"), given)
        failed = await call_again(peer, tool(link, "interview"), given, asked, filled_answers(asked))
        assert failed.result["isError"]  # it went on with another question


@pytest.mark.parametrize("link", LEGACY_LINKS)
async def test_a_legacy_server_learns_what_the_asking_client_can_do(tree: Tree, link: str) -> None:
    """The link is shared and was opened with what any client may have; a server that looks asks only for the rest."""
    key = "io.modelcontextprotocol/clientCapabilities"
    async with tree.peer("http-modern") as peer:
        for capabilities in ({"sampling": {}}, {"elicitation": {"form": {}}, "experimental": {"a/b": {"n": 1}}}):
            mark = label()
            await peer.call(tool(link, "echo"), {"mark": mark}, capabilities=capabilities)
            seen = (await peer.call(tool(link, "seen"), capabilities={})).result["structuredContent"]["messages"]
            (call,) = [one for one in seen if f'"{mark}"' in one["text"]]
            assert call["meta"] == {key: capabilities}
        assert seen[-1]["meta"] is None  # one that can do nothing costs nothing


@pytest.mark.parametrize("link", LEGACY_LINKS)
async def test_a_server_that_went_on_with_another_question_did_not_fail_for_the_first(tree: Tree, link: str) -> None:
    async with tree.peer("http-modern", {"elicitation": {}}) as peer:
        given = interview(asks(question(SAMPLE)), asks(question(ELICIT)), {"fail": FULL})
        asked = await peer.call(tool(link, "interview"), given)
        failed = await call_again(peer, tool(link, "interview"), given, asked, filled_answers(asked))
        assert failed.error == FULL


@pytest.mark.parametrize("link", LEGACY_LINKS)
async def test_a_page_that_must_be_visited_first_is_asked_for(tree: Tree, link: str) -> None:
    """-32042 of 2025-11-25: nothing is parked, the call is simply made again."""
    async with tree.peer("http-modern", URL) as peer:
        given = {"label": label()}
        asked = await peer.call(tool(link, "visit"), given)
        assert list(asked.result["inputRequests"].values()) == [{"method": ELICIT, "params": PAGE}]
        refused = await call_again(peer, tool(link, "visit"), {**given, "more": 1}, asked, {"1": {"action": "accept"}})
        assert refused.error["data"]["reason"] == "state_foreign"
        reply = await call_again(peer, tool(link, "visit"), given, asked, {"1": {"action": "accept"}})
        assert set(reply.result["structuredContent"]["params"]) <= {"name", "arguments", "_meta"}
        assert (await read_tally(peer, link))["begun"][given["label"]] == 2


async def test_without_the_capability_a_page_that_must_be_visited_is_a_named_error(tree: Tree) -> None:
    async with tree.peer("http-modern") as peer:
        for capabilities in ({}, {"elicitation": {}}, {"elicitation": {"form": {}}}):
            refused = await peer.call(tool("old_http", "visit"), {"label": label()}, capabilities=capabilities)
            assert (refused.status, refused.error["code"]) == (400, -32021)
            assert refused.error["data"]["requiredCapabilities"] == {"elicitation": {"url": {}}}


async def test_only_calls_prompts_and_resources_may_ask(tree: Tree) -> None:
    async with tree.peer("http-modern") as peer:
        for link in LEGACY_LINKS:
            ref = {"type": "ref/prompt", "name": tool(link, "interview")}
            params = {"ref": ref, "argument": {"name": "label", "value": "ask"}}
            (said,) = (await peer.request("completion/complete", params)).result["completion"]["values"]
            assert json.loads(said)["code"] == -32601


# Endings


@pytest.mark.parametrize(("front", "link"), CELLS)
async def test_a_retry_that_is_cancelled_cancels_the_call_at_the_server(tree: Tree, front: str, link: str) -> None:
    async with tree.peer("http-modern") as witness, tree.peer(front) as peer:
        token = {"progressToken": "mine"}
        given, asked = await parked(peer, link, asks(question(ELICIT)), {"progress": 1}, {"gate": label()}, meta=token)
        more = {"requestState": asked.result["requestState"], "inputResponses": filled_answers(asked)}
        retry = peer.begin("tools/call", {"name": tool(link, "interview"), "arguments": given, **more}, meta=token)
        await peer.hear("notifications/progress")
        await peer.cancel(retry)
        await until(witness, link, "cancelled", given["label"], 1)
        assert given["label"] not in (await read_tally(witness, link))["finished"]


@pytest.mark.parametrize("link", LEGACY_LINKS)
async def test_a_parked_call_outlives_the_connection_it_began_on(tree: Tree, link: str) -> None:
    async with tree.peer("http-modern") as peer:
        given, asked = await parked(peer, link)
    async with tree.peer("http-modern") as peer:
        reply = await call_again(peer, tool(link, "interview"), given, asked, filled_answers(asked))
        assert answers(reply) == [{"q1": FILLED}]
        assert (await read_tally(peer, link))["begun"][given["label"]] == 1


@pytest.mark.parametrize("link", LEGACY_LINKS)
async def test_the_end_of_a_client_on_stdio_cancels_what_it_left_parked(tree: Tree, link: str) -> None:
    async with tree.peer("http-modern") as witness:
        async with tree.peer("stdio-modern") as peer:
            given, _ = await parked(peer, link)
        await until(witness, link, "cancelled", given["label"], 1)


async def test_a_server_that_dies_while_its_call_waits_is_reported_to_the_client(tree: Tree) -> None:
    async with tree.peer("http-modern") as peer:
        given, asked = await parked(peer, "mortal")
        assert (await peer.call(tool("mortal", "die"))).error["data"]["outcome"] == "unknown"
        refused = await call_again(peer, tool("mortal", "interview"), given, asked, filled_answers(asked))
        assert refused.error["message"] == "tool_degraded"
        assert refused.error["data"]["outcome"] == "unknown"
        tree.node.wait_link("mortal", {"state": "ready"})
        given, asked = await parked(peer, "mortal")
        assert answers(await call_again(peer, tool("mortal", "interview"), given, asked, filled_answers(asked)))


@pytest.mark.parametrize("link", LEGACY_LINKS)
async def test_a_server_that_answers_while_its_client_thinks_is_read_in_the_end(tree: Tree, link: str) -> None:
    async with tree.peer("http-modern") as witness, tree.peer("http-modern") as peer:
        before, gate = tree.calls_parked(link), label()
        given, asked = await parked(peer, link, {"send": {"q": question(ELICIT)}}, {"gate": gate})
        assert tree.calls_parked(link) == before + 1
        await open_gate(witness, link, gate)
        wait_for(lambda: tree.calls_parked(link) == before)
        reply = await call_again(peer, tool(link, "interview"), given, asked, filled_answers(asked))
        assert (reply.result["resultType"], answers(reply)) == ("complete", [])
