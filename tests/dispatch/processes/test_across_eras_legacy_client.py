"""A legacy client and a 2026-07-28 server: is the client asked in its own way, and does the server get every answer?"""

import json
from typing import Any

import pytest
from tests.servers.rawserver.text import members
from tests.support.fleet import CAPABLE, LEGACY_FRONTS, MODERN_LINKS, tool, uri
from tests.support.node_process import wait_for
from tests.support.peers import META, HttpPeer, Ongoing, Peer
from tests.support.two_era_node import (
    ELICIT,
    FILLED,
    QUESTIONS,
    ROOTS,
    SAMPLE,
    Tree,
    answer_every_question,
    answers,
    asks,
    interview,
    label,
    open_gate,
    question,
    read_tally,
    start_tree,
    until,
)

CELLS = [(front, link) for front in LEGACY_FRONTS for link in MODERN_LINKS]
MODERN_ONLY = {"resultType", "ttlMs", "cacheScope"}


@pytest.fixture(scope="session")
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return start_tree(request, tmp_path_factory)


async def next_question(peer: Peer) -> Any:
    return await peer.hear(*QUESTIONS)


# Asking


@pytest.mark.parametrize(("front", "link"), CELLS)
async def test_every_kind_of_question_is_put_and_answered_in_rounds(tree: Tree, front: str, link: str) -> None:
    """The fixture refuses a requestState of which a byte was changed."""
    rounds = [asks(*(question(method) for method in QUESTIONS)), asks(question(ELICIT)), asks(question(ROOTS))]
    async with tree.peer(front) as peer:
        reply = await answer_every_question(peer).call(tool(link, "interview"), interview(*rounds))
        said = {f"q{number}": answer for number, (_, answer) in enumerate(QUESTIONS.values(), 1)}
        assert answers(reply) == [said, {"q1": FILLED}, {"q1": QUESTIONS[ROOTS][1]}]
        assert [one["method"] for one in peer.asked] == [*QUESTIONS, ELICIT, ROOTS]
        assert all(one["params"] == QUESTIONS[one["method"]][0] for one in peer.asked)
        assert len({one["id"] for one in peer.asked}) == 5
        assert not MODERN_ONLY & reply.result.keys()


@pytest.mark.parametrize("link", MODERN_LINKS)
async def test_an_answer_keeps_its_bytes(tree: Tree, link: str) -> None:
    answer = '{ "x":[1.0,18446744073709551616,{}],"action":"accept", "content":{"colour":"\\u00e9\\/"} }'
    async with tree.peer("http-legacy") as peer:
        call = peer.begin_call(tool(link, "interview"), interview(asks(question(ELICIT))))
        await peer.respond((await next_question(peer))["id"], answer)
        assert members((await call.reply()).result_text)["structuredContent"] == f'{{"answers":[{{"q1":{answer}}}]}}'


async def test_answers_in_any_order_find_their_questions(tree: Tree) -> None:
    asked = [question(ELICIT, message=f"number {number}") for number in range(5)]
    async with tree.peer("http-legacy") as peer:
        call = peer.begin_call(tool("new_http", "interview"), interview(asks(*asked)))
        heard = [await next_question(peer) for _ in asked]
        for one in reversed(heard):
            await peer.respond(one["id"], {"action": "accept", "content": {"colour": one["params"]["message"]}})
        (said,) = answers(await call.reply())
        assert {key: one["content"]["colour"] for key, one in said.items()} == {
            f"q{number}": f"number {number - 1}" for number in range(1, 6)
        }


class StreamPeer(HttpPeer):
    """Notes on which stream each message came: the id of its request, or None for the GET stream."""

    def _receive(self, text: str, stream: Ongoing | None, status: int | None = None) -> None:
        self.__dict__.setdefault("streams", []).append((stream.id if stream is not None else None, json.loads(text)))
        super()._receive(text, stream, status)


async def test_a_question_comes_on_the_stream_of_its_own_call(tree: Tree) -> None:
    async with await StreamPeer.legacy(f"{tree.node.url}/mcp", CAPABLE) as peer:
        await peer.listen()
        calls = {}
        for link in (*MODERN_LINKS, *MODERN_LINKS):
            name = label()
            step = asks(question(ELICIT, message=name))
            calls[name] = peer.begin_call(tool(link, "interview"), interview(step, name=name))
        for _ in calls:
            await next_question(peer)
        for one in list(peer.asked):
            await peer.respond(one["id"], FILLED)
        for call in calls.values():
            await call.reply()
        came_on = {
            message["params"]["message"]: stream
            for stream, message in peer.streams  # type: ignore[attr-defined]
            if message.get("method") == ELICIT
        }
        assert came_on == {name: call.id for name, call in calls.items()}


@pytest.mark.parametrize("link", MODERN_LINKS)
async def test_several_clients_asked_at_once_each_answer_their_own(tree: Tree, link: str) -> None:
    async with tree.peer("http-legacy") as one, tree.peer("sse-legacy") as two, tree.peer("http-legacy") as three:
        peers = {"one": one, "two": two, "three": three}
        calls = {}
        for who, peer in peers.items():
            calls[who] = peer.begin_call(tool(link, "interview"), interview(asks(question(ELICIT, message=who))))
        for who, peer in peers.items():
            asked = await next_question(peer)
            assert asked["params"]["message"] == who
            await peer.respond(asked["id"], {"action": "accept", "content": {"colour": who}})
        for who, call in calls.items():
            assert answers(await call.reply())[0]["q1"]["content"] == {"colour": who}


async def test_a_server_may_want_only_its_state_back_or_keep_none(tree: Tree) -> None:
    async with tree.peer("http-legacy") as peer:
        state_only = interview({"state": True}, asks(question(ELICIT)), {"state": True})
        assert answers(await answer_every_question(peer).call(tool("new_http", "interview"), state_only)) == [
            {"q1": FILLED}
        ]
        assert len(peer.asked) == 1
        stateless = interview(asks(question(ELICIT), state=False))
        assert answers(await peer.call(tool("new_http", "interview"), stateless)) == [{"q1": FILLED}]


async def test_a_stream_that_lingers_after_its_question_does_not_end_the_call(tree: Tree) -> None:
    async with tree.peer("http-legacy") as witness, tree.peer("http-legacy") as peer:
        given = interview({"linger": "stream"}, asks(question(ELICIT)), {"gate": "retry"})
        call = answer_every_question(peer).begin_call(tool("new_http", "interview"), given)
        await until(witness, "new_http", "begun", given["label"], 2)
        for gate in ("stream", "retry"):
            await open_gate(witness, "new_http", gate)
        assert answers(await call.reply()) == [{"q1": FILLED}]


@pytest.mark.parametrize(("front", "link"), [("http-legacy", "new_http"), ("sse-legacy", "new_stdio")])
async def test_prompts_and_resources_may_ask_too(tree: Tree, front: str, link: str) -> None:
    async with tree.peer(front) as peer:
        given = {"label": label(), "steps": json.dumps([asks(question(SAMPLE)), asks(question(ELICIT))])}
        reply = await answer_every_question(peer).request(
            "prompts/get", {"name": tool(link, "interview"), "arguments": given}
        )
        told = json.loads(reply.result["messages"][0]["content"]["text"])
        assert told == {"answers": [{"q1": QUESTIONS[SAMPLE][1]}, {"q1": FILLED}]}
        assert not MODERN_ONLY & reply.result.keys()
        reply = await peer.request("resources/read", {"uri": uri(link, f"ask://{label()}")})
        assert json.loads(reply.result["contents"][0]["text"]) == {"answers": [{"who": FILLED}]}
        assert not MODERN_ONLY & reply.result.keys()


async def test_a_page_to_visit_gets_the_id_that_2025_11_25_wants(tree: Tree) -> None:
    page = {"mode": "url", "message": "Sign in", "url": "https://example.com/x"}
    async with tree.peer("http-legacy", {"elicitation": {"url": {}}}) as peer:
        peer.answers[ELICIT] = lambda params: {"action": "accept"}
        step = asks({"method": ELICIT, "params": page}, {"method": ELICIT, "params": page})
        assert answers(await peer.call(tool("new_http", "interview"), interview(step)))[0]["q2"] == {"action": "accept"}
        assert [{**page, "elicitationId": one["params"]["elicitationId"]} for one in peer.asked] == [
            one["params"] for one in peer.asked
        ]
        assert len({one["params"]["elicitationId"] for one in peer.asked}) == 2


async def test_notices_of_every_round_reach_the_client_under_its_token(tree: Tree) -> None:
    steps = [{"progress": 1}, asks(question(ELICIT)), {"progress": 2}, {"log": "warning"}, asks(question(ELICIT))]
    async with tree.peer("http-legacy") as peer:
        await peer.request("logging/setLevel", {"level": "info"})
        call = interview(*steps, {"progress": 3})
        reply = await answer_every_question(peer).call(
            tool("new_http", "interview"), call, meta={"progressToken": "mine"}
        )
        notices = [one["params"] for one in peer.before(reply, "notifications/progress")]
        assert notices == [{"progressToken": "mine", "progress": step} for step in (1, 2, 3)]
        (logged,) = peer.before(reply, "notifications/message")
        assert logged["params"]["data"] == "in mid-call"


# Bounds and refusals


@pytest.mark.parametrize(("rounds", "begun"), [(10, 11), (11, 11), (12, 11)])
async def test_a_server_may_ask_ten_times(tree: Tree, rounds: int, begun: int) -> None:
    steps = [asks(question(ELICIT)) for _ in range(rounds)]
    async with tree.peer("http-legacy") as peer:
        given = interview(*steps)
        reply = await answer_every_question(peer).call(tool("new_stdio", "interview"), given)
        if rounds <= 10:
            assert len(answers(reply)) == rounds
        else:
            assert reply.error["data"]["reason"] == "input_required"
        assert len(peer.asked) == 10
        assert (await read_tally(peer, "new_stdio"))["begun"][given["label"]] == begun


CANNOT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, question(ELICIT)),
    ({"elicitation": {"form": {}}}, question(SAMPLE)),
    ({"elicitation": {}, "sampling": {}}, question(ROOTS)),
    (
        {"elicitation": {"form": {}}},
        {"method": ELICIT, "params": {"mode": "url", "message": "m", "url": "https://a.b"}},
    ),
    ({"elicitation": {"url": {}}}, question(ELICIT)),
    (CAPABLE, {"method": "tools/list", "params": {}}),
]


@pytest.mark.parametrize(("capabilities", "asked"), CANNOT)
async def test_a_client_is_not_asked_what_it_cannot_answer(
    tree: Tree, capabilities: dict[str, Any], asked: dict[str, Any]
) -> None:
    async with tree.peer("http-legacy", capabilities) as peer:
        able = [one for one in (question(ELICIT),) if capabilities is CAPABLE]
        given = interview(asks(*able, asked))
        reply = await peer.call(tool("new_http", "interview"), given)
        assert reply.error["data"]["reason"] == "input_refused"
        assert asked["method"] in reply.error["message"]
        assert peer.asked == []
        assert (await read_tally(peer, "new_http"))["begun"][given["label"]] == 1


@pytest.mark.parametrize(
    ("version", "declared", "seen"),
    [
        ("2025-11-25", {}, {}),
        ("2025-11-25", CAPABLE, {"sampling": {}, "elicitation": {"form": {}}, "roots": {}}),
        ("2025-11-25", {"elicitation": {"url": {}}, "tasks": {"list": {}}}, {"elicitation": {"url": {}}}),
        ("2025-06-18", {"elicitation": {}, "experimental": {"x": {"y": 1}}}, {"elicitation": {"form": {}}}),
        ("2024-11-05", {"sampling": {}, "roots": {"listChanged": True}}, {"sampling": {}, "roots": {}}),
    ],
)
async def test_the_server_sees_the_clients_own_capabilities(
    tree: Tree, version: str, declared: dict[str, Any], seen: dict[str, Any]
) -> None:
    async with tree.peer("http-legacy", declared, version=version) as peer:
        for link in MODERN_LINKS:
            reply = await peer.call(tool(link, "own_params"))
            meta = reply.result["structuredContent"]["params"]["_meta"]
            experimental = {key: declared[key] for key in ("experimental",) if key in declared}
            assert meta[META + "clientCapabilities"] == {**seen, **experimental}
            assert meta[META + "protocolVersion"] == "2026-07-28"
            assert meta[META + "clientInfo"] == {"name": "peer", "version": "1"}


async def test_an_sdk_server_that_asks_only_what_the_client_has_is_content(tree: Tree) -> None:
    name = tool("sdk_new", "test_input_required_result_capabilities")
    for capabilities, methods in (({}, []), ({"sampling": {}}, [SAMPLE]), (CAPABLE, [ELICIT, SAMPLE])):
        async with tree.peer("http-legacy", capabilities) as peer:
            reply = await answer_every_question(peer).call(name)
            assert reply.result["content"][0]["text"] == "Nothing more to ask."
            assert [one["method"] for one in peer.asked] == methods


@pytest.mark.parametrize(("front", "link"), CELLS[:4])
async def test_a_client_that_refuses_ends_its_call(tree: Tree, front: str, link: str) -> None:
    async with tree.peer(front) as peer:
        given = interview(asks(question(ELICIT), question(SAMPLE)))
        call = peer.begin_call(tool(link, "interview"), given)
        first, second = await next_question(peer), await next_question(peer)
        await peer.refuse(second["id"], -1, "User rejected sampling request")
        error = (await call.reply()).error
        assert error["data"]["reason"] == "input_refused"
        assert "User rejected sampling request" in error["message"]
        withdrawn = await peer.hear("notifications/cancelled")
        assert withdrawn["params"]["requestId"] == first["id"]
        assert (await read_tally(peer, link))["begun"][given["label"]] == 1


@pytest.mark.parametrize("link", MODERN_LINKS)
async def test_a_question_nobody_could_put_is_an_error_of_the_server(tree: Tree, link: str) -> None:
    async with tree.peer("http-legacy") as peer:
        for step in ({"ask": {}, "state": False}, {"ask": {"q": {"params": {}}}}, {"ask": {"q": 7}}):
            error = (await answer_every_question(peer).call(tool(link, "interview"), interview(step))).error
            assert error["code"] == -32603
            assert "malformed" in error["message"]
        assert peer.asked == []


async def test_only_calls_prompts_and_resources_may_ask(tree: Tree) -> None:
    async with tree.peer("http-legacy") as peer:
        ref = {"type": "ref/prompt", "name": tool("new_http", "interview")}
        params = {"ref": ref, "argument": {"name": "label", "value": "ask"}}
        reply = await answer_every_question(peer).request("completion/complete", params)
        assert reply.error["data"]["reason"] == "input_required_across_eras"
        assert peer.asked == []


# Endings


@pytest.mark.parametrize(("front", "link"), CELLS)
async def test_a_call_cancelled_while_its_client_is_asked_takes_its_questions_back(
    tree: Tree, front: str, link: str
) -> None:
    async with tree.peer(front) as peer:
        given = interview(asks(question(ELICIT), question(SAMPLE)))
        call = peer.begin_call(tool(link, "interview"), given)
        asked = {(await next_question(peer))["id"] for _ in range(2)}
        await peer.cancel(call)
        withdrawn = [await peer.hear("notifications/cancelled") for _ in range(2)]
        assert {one["params"]["requestId"] for one in withdrawn} == asked
        assert answers(
            await answer_every_question(peer).call(tool(link, "interview"), interview(asks(question(ELICIT))))
        )
        assert (await read_tally(peer, link))["begun"][given["label"]] == 1
        assert not any(message.get("id") == int(call.id) for message in peer.log if "method" not in message)


@pytest.mark.parametrize("link", MODERN_LINKS)
@pytest.mark.parametrize("how", ["cancels", "ends its session"])
async def test_a_retry_under_way_is_cancelled_at_the_server(tree: Tree, link: str, how: str) -> None:
    async with tree.peer("http-legacy") as witness, tree.peer("http-legacy") as peer:
        given = interview(asks(question(ELICIT)), {"gate": "never"})
        call = answer_every_question(peer).begin_call(tool(link, "interview"), given)
        await until(witness, link, "begun", given["label"], 2)
        if how == "cancels":
            await peer.cancel(call)
        else:
            assert await peer.end() in (200, 204)
        await until(witness, link, "cancelled", given["label"], 1)


async def test_a_client_that_loses_its_connection_while_it_is_asked_may_still_answer(tree: Tree) -> None:
    async with tree.peer("http-legacy") as peer:
        before = tree.calls_in_flight()
        given = interview(asks(question(ELICIT)))
        call = peer.begin_call(tool("new_http", "interview"), given)
        asked = await next_question(peer)
        assert tree.calls_in_flight() == before + 1
        await peer.hang_up(call)
        await peer.respond(asked["id"], FILLED)
        await until(peer, "new_http", "begun", given["label"], 2)
        wait_for(lambda: tree.calls_in_flight() == before)
        assert answers(
            await answer_every_question(peer).call(tool("new_http", "interview"), interview(asks(question(ELICIT))))
        )


# What is brought down


@pytest.mark.parametrize("link", MODERN_LINKS)
async def test_an_output_that_is_no_object_is_brought_down_and_its_text_kept(tree: Tree, link: str) -> None:
    async with tree.peer("http-legacy") as legacy, tree.peer("http-modern") as modern:
        for peer in (legacy, modern):
            listed = {one["name"]: one for one in (await peer.request("tools/list")).result["tools"]}
            schema = listed[tool(link, "numbers")].get("outputSchema")
            result = (await peer.call(tool(link, "numbers"))).result
            assert result["content"] == [{"type": "text", "text": "[1, 2, 3]"}]
            if peer is legacy:
                assert schema is None
                assert "structuredContent" not in result
            else:
                assert schema == {"type": "array", "items": {"type": "integer"}}
                assert result["structuredContent"] == [1, 2, 3]


@pytest.mark.parametrize("link", MODERN_LINKS)
async def test_error_codes_are_brought_down(tree: Tree, link: str) -> None:
    async with tree.peer("http-legacy") as peer:
        for code, shown in ((-32021, -32600), (-32022, -32600), (-32602, -32602), (-32000, -32000), (7, 7)):
            data = {"requiredCapabilities": {"sampling": {}}}
            reply = await peer.call(tool(link, "refuse"), {"code": code, "message": "no é", "data": data})
            assert reply.error == {"code": shown, "message": "no é", "data": data}
        missing = await peer.request("resources/read", {"uri": uri(link, "raw://item2/missing")})
        assert missing.error["code"] == -32002


async def test_lists_and_reads_lose_the_cache_hints(tree: Tree) -> None:
    async with tree.peer("http-legacy") as peer:
        for method in ("tools/list", "prompts/list", "resources/list", "resources/templates/list"):
            assert not MODERN_ONLY & (await peer.request(method)).result.keys()
        reply = await peer.request("resources/read", {"uri": uri("new_http", "raw://blob")})
        assert not MODERN_ONLY & reply.result.keys()
        assert reply.result["x-took"] == {}
