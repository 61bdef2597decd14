"""Can a server ask the client whose call it is serving, in the words of either era, and nobody else?"""

import asyncio
import json
from typing import Any

import pytest
from tests.servers.rawserver.text import members, prepend
from tests.support.fleet import (
    LEGACY_CELLS,
    LEGACY_FRONTS,
    LEGACY_LINKS,
    MODERN_CELLS,
    Fleet,
    tool,
)
from tests.support.peers import META, Peer, call_text

pytestmark = pytest.mark.asyncio(loop_scope="session")

SAMPLING = {
    "messages": [{"role": "user", "content": {"type": "text", "text": "why é?"}}],
    "maxTokens": 100,
    "x-vendor": {"n": 1208925819614629174706175},
}
SAMPLED = {
    "role": "assistant",
    "content": {"type": "text", "text": "because"},
    "model": "m",
    "x-cost": {"z": 1, "a": []},
}
FORM = {
    "mode": "form",
    "message": "Which?",
    "requestedSchema": {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]},
}
FILLED = {"action": "accept", "content": {"colour": "grün"}}
ROOTS = {"roots": [{"uri": "file:///srv/shop", "name": "shop"}]}
QUESTIONS = {
    "sampling/createMessage": (SAMPLING, SAMPLED),
    "elicitation/create": (FORM, FILLED),
    "roots/list": ({}, ROOTS),
}
ASKED_OF_CLIENTS = ("sampling/createMessage", "elicitation/create")


def question(method: str, rounds: int = 1) -> dict[str, Any]:
    return {"method": method, "params": QUESTIONS[method][0], "rounds": rounds}


async def next_question(peer: Peer) -> Any:
    return await peer.hear(*QUESTIONS)


# Legacy: the server's request travels to the client, the client's answer back


@pytest.mark.parametrize("method", ASKED_OF_CLIENTS)
@pytest.mark.parametrize(("front", "link"), LEGACY_CELLS)
async def test_a_question_reaches_the_client_and_its_answer_the_server(
    fleet: Fleet, front: str, link: str, method: str
) -> None:
    asked, answer = QUESTIONS[method]
    async with fleet.peer(front) as peer:
        peer.answers[method] = lambda params: answer
        reply = await peer.call(tool(link, "ask"), question(method, rounds=3))
        assert reply.result["structuredContent"]["answers"] == [answer] * 3
        assert [one["params"] for one in peer.asked] == [asked] * 3
        assert len({one["id"] for one in peer.asked}) == 3


@pytest.mark.parametrize("link", LEGACY_LINKS)
async def test_an_answer_keeps_its_bytes(fleet: Fleet, link: str) -> None:
    answer = '{ "x":[1.0,18446744073709551616,{}],"action":"accept", "content":{"colour":"\\u00e9\\/"} }'
    async with fleet.peer("http-legacy") as peer:
        call = peer.begin_call(tool(link, "ask"), question("elicitation/create"))
        asked = await next_question(peer)
        await peer.respond(asked["id"], answer)
        assert members((await call.reply()).result_text)["structuredContent"] == f'{{"answers":[{answer}]}}'


@pytest.mark.parametrize("front", LEGACY_FRONTS)
async def test_the_clients_refusal_reaches_the_server(fleet: Fleet, front: str) -> None:
    async with fleet.peer(front) as peer:
        for link in LEGACY_LINKS:
            call = peer.begin_call(tool(link, "ask"), question("sampling/createMessage"))
            await peer.refuse((await next_question(peer))["id"], -1, "User rejected sampling request")
            answer = (await call.reply()).result["structuredContent"]["answers"]
            assert answer == [{"code": -1, "message": "User rejected sampling request"}]


@pytest.mark.parametrize("front", LEGACY_FRONTS)
async def test_servers_that_ask_at_once_under_equal_ids_get_their_own_answers(fleet: Fleet, front: str) -> None:
    async with fleet.peer(front) as peer:
        calls = {}
        asked = {}
        for link in LEGACY_LINKS:
            form = {**FORM, "message": link}
            calls[link] = peer.begin_call(tool(link, "ask"), {"method": "elicitation/create", "params": form})
            message = await next_question(peer)
            asked[message["params"]["message"]] = message["id"]
        assert asked.keys() == calls.keys()
        for link in reversed(LEGACY_LINKS):
            await peer.respond(asked[link], {"action": "accept", "content": {"colour": link}})
        for link, call in calls.items():
            assert (await call.reply()).result["structuredContent"]["answers"][0]["content"] == {"colour": link}


@pytest.mark.parametrize("link", LEGACY_LINKS)
@pytest.mark.parametrize("front", ["http-legacy", "sse-legacy"])
async def test_a_client_without_the_capability_is_not_asked(fleet: Fleet, front: str, link: str) -> None:
    async with fleet.peer(front, {"elicitation": {"form": {}}}) as peer:
        method = "sampling/createMessage"
        reply = await peer.call(tool(link, "ask"), question(method))
        (answer,) = reply.result["structuredContent"]["answers"]
        assert answer["code"] == -32601
        assert method in answer["message"]
        assert peer.asked == []
        peer.answers["elicitation/create"] = lambda params: FILLED
        reply = await peer.call(tool(link, "ask"), question("elicitation/create"))
        assert reply.result["structuredContent"]["answers"] == [FILLED]


@pytest.mark.parametrize("link", LEGACY_LINKS)
async def test_a_question_never_goes_to_another_client(fleet: Fleet, link: str) -> None:
    """HTTP says whose call it belongs to. A shared pipe does not while two clients call: then nobody is asked."""
    async with fleet.peer("http-legacy") as busy, fleet.peer("http-legacy") as asking:
        asking.answers["elicitation/create"] = lambda params: FILLED
        held = busy.begin_call(tool(link, "wait"))
        async with asyncio.timeout(10):
            while not (await busy.call(tool(link, "waiting"))).result["structuredContent"]["ids"]:
                pass
        (answer,) = (await asking.call(tool(link, "ask"), question("elicitation/create"))).result["structuredContent"][
            "answers"
        ]
        assert answer == FILLED if link == "old_http" else answer["code"] == -32601
        assert busy.asked == []
        await busy.cancel(held)


@pytest.mark.parametrize("front", LEGACY_FRONTS)
async def test_an_answer_that_no_call_waits_for_does_no_harm(fleet: Fleet, front: str) -> None:
    async with fleet.peer(front) as peer:
        call = peer.begin_call(tool("old_http", "ask"), question("elicitation/create"))
        asked = await next_question(peer)
        await peer.respond(asked["id"], FILLED)
        assert (await call.reply()).result["structuredContent"]["answers"] == [FILLED]
        for stale in (asked["id"], "nobody asked this"):
            if front == "http-legacy":
                with pytest.raises(AssertionError, match="400"):
                    await peer.respond(stale, FILLED)
            else:
                await peer.respond(stale, FILLED)
        assert (await peer.call(tool("old_http", "echo"), {"a": 1})).result["structuredContent"] == {"a": 1}


# Modern: input_required and the retry pass untouched


@pytest.mark.parametrize("method", QUESTIONS)
@pytest.mark.parametrize(("front", "link"), MODERN_CELLS)
async def test_input_required_passes_and_the_retry_is_byte_exact(
    fleet: Fleet, front: str, link: str, method: str
) -> None:
    arguments = json.dumps({"method": method, "params": QUESTIONS[method][0], "rounds": 2}, ensure_ascii=False)
    params = call_text(tool(link, "ask"), arguments)
    async with fleet.peer(front) as peer:
        first = await peer.request("tools/call", params)
        for step in (1, 2):
            assert first.result["resultType"] == "input_required"
            asked = members(members(first.result_text)["inputRequests"])["one"]
            assert members(asked)["params"] == json.dumps(QUESTIONS[method][0], ensure_ascii=False)
            state = members(first.result_text)["requestState"]
            assert json.loads(state) == f"opaque é \\ state {step}"
            responses = '{"one":{ "z":18446744073709551616,"action":"accept","content":{"e":"\\u00e9","n":1.0} }}'
            retry = prepend([("inputResponses", responses), ("requestState", state)], params)
            first = await peer.request("tools/call", retry)
        content = members(members(first.result_text)["structuredContent"])
        assert content == {"inputResponses": responses, "requestState": state}


@pytest.mark.parametrize(("front", "link"), MODERN_CELLS)
async def test_a_state_that_the_client_rewrote_arrives_as_the_client_wrote_it(
    fleet: Fleet, front: str, link: str
) -> None:
    state = '"opaque \\u00e9 \\u005c state 1"'
    params = call_text(tool(link, "ask"), {"method": "roots/list"})
    retry = prepend([("requestState", state), ("inputResponses", "{}")], params)
    async with fleet.peer(front) as peer:
        content = members(members((await peer.request("tools/call", retry)).result_text)["structuredContent"])
        assert content == {"inputResponses": "{}", "requestState": state}


@pytest.mark.parametrize(("front", "link"), MODERN_CELLS)
async def test_each_requests_own_capabilities_and_client_reach_the_server(fleet: Fleet, front: str, link: str) -> None:
    async with fleet.peer(front) as peer:
        for said in ({}, {"sampling": {"context": {}}, "x-vendor": {"n": 1}}, {"elicitation": {"url": {}}}):
            await peer.call(tool(link, "echo"), {"probe": 1}, capabilities=said)
            seen = (await peer.call(tool(link, "seen"))).result["structuredContent"]["messages"]
            meta = next(one["meta"] for one in reversed(seen) if '"probe"' in one["text"])
            assert meta[META + "clientCapabilities"] == said
            assert meta[META + "clientInfo"] == {"name": "peer", "version": "1"}
            assert meta[META + "protocolVersion"] == "2026-07-28"
