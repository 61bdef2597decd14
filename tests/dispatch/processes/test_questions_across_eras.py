"""Can a server of one era ask a client of the other, each in its own words?"""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.dispatch.processes.test_questions import ASKED_OF_CLIENTS, FILLED, QUESTIONS, next_question, question
from tests.servers.rawserver.text import members, prepend
from tests.servers.start import raw, serving
from tests.support.fleet import (
    CAPABLE,
    LEGACY_FRONTS,
    LEGACY_LINKS,
    MODERN_FRONTS,
    MODERN_LINKS,
    Fleet,
    stdio_table,
    tool,
)
from tests.support.node_process import running_node
from tests.support.odd_server import command
from tests.support.peers import HttpPeer, Peer, Reply, call_text

pytestmark = pytest.mark.asyncio(loop_scope="session")

LEGACY_TO_MODERN = [(front, link) for front in LEGACY_FRONTS for link in MODERN_LINKS]
MODERN_TO_LEGACY = [(front, link) for front in MODERN_FRONTS for link in LEGACY_LINKS]


# A legacy client is asked; the request is sent to the modern server again with its answers


@pytest.mark.parametrize("method", QUESTIONS)
@pytest.mark.parametrize(("front", "link"), LEGACY_TO_MODERN)
async def test_a_legacy_client_is_asked_for_a_modern_server(fleet: Fleet, front: str, link: str, method: str) -> None:
    asked, answer = QUESTIONS[method]
    async with fleet.peer(front) as peer:
        peer.answers[method] = lambda params: answer
        reply = await peer.call(tool(link, "ask"), question(method, rounds=3))
        content = reply.result["structuredContent"]
        assert content == {"inputResponses": {"one": answer}, "requestState": "opaque é \\ state 3"}
        assert [one["params"] for one in peer.asked] == [asked] * 3
        assert "resultType" not in reply.result


@pytest.mark.parametrize("link", MODERN_LINKS)
async def test_the_clients_answer_reaches_the_modern_server_byte_for_byte(fleet: Fleet, link: str) -> None:
    answer = '{ "x":[1.0,18446744073709551616,{}],"action":"accept", "content":{"colour":"\\u00e9\\/"} }'
    async with fleet.peer("http-legacy") as peer:
        call = peer.begin_call(tool(link, "ask"), question("elicitation/create"))
        await peer.respond((await next_question(peer))["id"], answer)
        content = members(members((await call.reply()).result_text)["structuredContent"])
        assert members(content["inputResponses"])["one"] == answer


@pytest.mark.parametrize("front", LEGACY_FRONTS)
async def test_a_legacy_client_that_refuses_ends_its_call(fleet: Fleet, front: str) -> None:
    async with fleet.peer(front) as peer:
        for link in MODERN_LINKS:
            call = peer.begin_call(tool(link, "ask"), question("sampling/createMessage"))
            await peer.refuse((await next_question(peer))["id"], -1, "not today")
            error = (await call.reply()).error
            assert error["data"]["reason"] == "input_refused"
            assert "not today" in error["message"]


@pytest.mark.parametrize("link", MODERN_LINKS)
async def test_a_legacy_clients_own_capabilities_are_what_the_modern_server_sees(fleet: Fleet, link: str) -> None:
    async with fleet.peer("http-legacy", {"elicitation": {}, "roots": {"listChanged": True}}) as peer:
        reply = await peer.call(tool(link, "ask"), question("sampling/createMessage"))
        assert "error" in reply.message
        assert peer.asked == []
        seen = (await peer.call(tool(link, "seen"))).result["structuredContent"]["messages"]
        meta = next(one["meta"] for one in reversed(seen) if '"sampling/createMessage"' in one["text"])
        said = meta["io.modelcontextprotocol/clientCapabilities"]
        assert said == {"elicitation": {"form": {}}, "roots": {}}


async def test_a_modern_server_that_asks_without_end_is_stopped(fleet: Fleet) -> None:
    async with fleet.peer("http-legacy") as peer:
        peer.answers["elicitation/create"] = lambda params: FILLED
        error = (await peer.call(tool("new_stdio", "ask"), question("elicitation/create", rounds=1000))).error
        assert error["data"]["reason"] == "input_required"
        assert len(peer.asked) == 10


async def test_a_cancelled_legacy_call_takes_its_question_back(fleet: Fleet) -> None:
    async with fleet.peer("http-legacy") as peer:
        call = peer.begin_call(tool("new_stdio", "ask"), question("elicitation/create"))
        asked = await next_question(peer)
        await peer.cancel(call)
        with pytest.raises(AssertionError, match="400"):  # nobody waits for this answer any more
            await peer.respond(asked["id"], FILLED)


async def test_a_server_that_is_slow_to_end_its_stream_does_not_lose_the_retry(tmp_path: Path) -> None:
    with (
        serving(command("dawdling,asks", "--era", "modern")) as url,
        running_node(tmp_path, {"slow": {"url": url}}) as node,
    ):
        async with await HttpPeer.legacy(f"{node.url}/mcp", CAPABLE) as peer:
            peer.answers["elicitation/create"] = lambda params: FILLED
            reply = await peer.call("slow__ask", question("elicitation/create"))
            assert reply.result["structuredContent"]["inputResponses"] == {"one": FILLED}


# A modern client is answered `input_required` while the legacy server waits


async def asked_by(peer: Peer, link: str, method: str, **options: Any) -> tuple[str, Reply, dict[str, Any]]:
    """The params of a call, its first answer, and the questions in it."""
    params = call_text(tool(link, "ask"), question(method, options.pop("rounds", 1)))
    reply = await peer.request("tools/call", params, **options)
    assert reply.result["resultType"] == "input_required", reply.text
    return params, reply, reply.result["inputRequests"]


def retry(params: str, reply: Reply, responses: dict[str, Any] | str) -> str:
    text = responses if isinstance(responses, str) else json.dumps(responses)
    return prepend([("inputResponses", text), ("requestState", members(reply.result_text)["requestState"])], params)


@pytest.mark.parametrize("method", ASKED_OF_CLIENTS)
@pytest.mark.parametrize(("front", "link"), MODERN_TO_LEGACY)
async def test_a_modern_client_answers_a_legacy_server(fleet: Fleet, front: str, link: str, method: str) -> None:
    asked, answer = QUESTIONS[method]
    text = json.dumps(answer, indent=None, separators=(" , ", " : "))
    async with fleet.peer(front) as peer:
        params, reply, _ = await asked_by(peer, link, method, rounds=2)
        for _ in range(2):
            ((key, said),) = reply.result["inputRequests"].items()
            assert said["method"] == method
            assert said.get("params", {}) == asked
            reply = await peer.request("tools/call", retry(params, reply, f'{{"{key}":{text}}}'))
        assert reply.result["resultType"] == "complete"
        assert members(members(reply.result_text)["structuredContent"])["answers"] == f"[{text},{text}]"


@pytest.mark.parametrize(("front", "link"), MODERN_TO_LEGACY)
async def test_a_modern_client_without_the_capability_is_not_asked(fleet: Fleet, front: str, link: str) -> None:
    async with fleet.peer(front) as peer:
        for said in ({}, {"roots": {}}, {"elicitation": {"url": {}}}):
            reply = await peer.call(tool(link, "ask"), question("elicitation/create"), capabilities=said)
            (answer,) = reply.result["structuredContent"]["answers"]
            assert answer["code"] == -32601
            assert reply.result["resultType"] == "complete"


@pytest.mark.parametrize("link", LEGACY_LINKS)
async def test_a_state_is_good_once_for_its_own_request(fleet: Fleet, link: str) -> None:
    async with fleet.peer("http-modern") as peer:
        params, reply, questions = await asked_by(peer, link, "elicitation/create")
        (key,) = questions
        answers = {key: FILLED}
        good = retry(params, reply, answers)
        state = reply.result["requestState"]
        for wrong in (
            good.replace(tool(link, "ask"), tool(link, "echo")),
            good.replace('"rounds": 1', '"rounds": 2'),
            good.replace(state, state[:-2] + ("AA" if not state.endswith("AA") else "BB")),
            good.replace(state, state + "A"),
            good.replace(state, state[:20]),
        ):
            assert wrong != good
            assert (await peer.request("tools/call", wrong)).error["code"] == -32602
        assert (await peer.request("tools/call", good)).result["structuredContent"]["answers"] == [FILLED]
        assert (await peer.request("tools/call", good)).error["code"] == -32602


@pytest.mark.parametrize("link", LEGACY_LINKS)
async def test_a_retry_without_the_answer_is_asked_again(fleet: Fleet, link: str) -> None:
    async with fleet.peer("http-modern") as peer:
        params, reply, questions = await asked_by(peer, link, "elicitation/create")
        again = await peer.request("tools/call", retry(params, reply, {"unknown": {}}))
        assert list(again.result["inputRequests"].values()) == list(questions.values())
        (key,) = again.result["inputRequests"]
        done = await peer.request("tools/call", retry(params, again, {key: FILLED}))
        assert done.result["structuredContent"]["answers"] == [FILLED]


async def test_a_node_behind_a_node_can_still_ask(tmp_path: Path) -> None:
    """The state of the inner node is the outer one's passenger."""
    with (
        running_node(tmp_path / "inner", {"old": stdio_table(raw("all", "--era", "legacy"))}) as inner,
        running_node(tmp_path / "outer", {"inner": {"url": f"{inner.url}/mcp"}}) as outer,
    ):
        async with await HttpPeer.modern_(f"{outer.url}/mcp", CAPABLE) as peer:
            names = [one["name"] for one in (await peer.request("tools/list")).result["tools"]]
            (name,) = (name for name in names if name.endswith("__ask"))
            params = call_text(name, question("elicitation/create"))
            reply = await peer.request("tools/call", params)
            (key,) = reply.result["inputRequests"]
            done = await peer.request("tools/call", retry(params, reply, {key: FILLED}))
            assert done.result["structuredContent"]["answers"] == [FILLED]
