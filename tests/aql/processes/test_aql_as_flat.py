"""Does everything that passes through a flat call pass through an AQL call: questions, progress, cancellation, and what
is no tool at all?"""

import asyncio
import json
from typing import Any

import pytest
from tests.dispatch.processes.test_questions import ASKED_OF_CLIENTS, QUESTIONS, question
from tests.servers.rawserver.text import members, prepend
from tests.support.fleet import Fleet, tool, uri
from tests.support.peers import Peer, Reply, call_text

pytestmark = pytest.mark.asyncio(loop_scope="session")

LINKS = ("old_stdio", "new_stdio")
FRONTS = ("http-legacy", "http-modern")
CELLS = [(front, link) for front in FRONTS for link in LINKS]
PATH = "/aql-single"


def one(link: str, name: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"operation": tool(link, name), "params": {} if arguments is None else {"arguments": arguments}}


def envelope(reply: Reply) -> Any:
    content = reply.result["structuredContent"]
    assert json.loads(reply.result["content"][0]["text"]) == content
    return content


async def data(peer: Peer, link: str, name: str, arguments: dict[str, Any] | None = None) -> Any:
    said = envelope(await peer.call("mcp_aql", one(link, name, arguments)))
    assert said["success"] is True, said
    return said["data"]


async def until(peer: Peer, link: str, which: str, waiting: Any, *, is_there: bool) -> None:
    async with asyncio.timeout(10):
        while (waiting in (await data(peer, link, which))["ids"]) is not is_there:
            pass


@pytest.mark.req("AQL-C.map-14")
@pytest.mark.parametrize("method", ASKED_OF_CLIENTS)
@pytest.mark.parametrize(("front", "link"), CELLS)
async def test_a_server_asks_through_the_operation_and_the_envelope_follows(
    fleet: Fleet, front: str, link: str, method: str
) -> None:
    asked, answer = QUESTIONS[method]
    params = call_text("mcp_aql", one(link, "ask", question(method, rounds=2)))
    async with fleet.peer(front, path=PATH) as peer:
        peer.answers[method] = lambda params: answer
        reply = await peer.request("tools/call", params)
        for _ in range(2 if peer.modern else 0):
            assert reply.result["resultType"] == "input_required"
            ((key, said),) = reply.result["inputRequests"].items()
            assert (said["method"], said.get("params", {})) == (method, asked)
            state = members(reply.result_text)["requestState"]
            again = prepend([("inputResponses", json.dumps({key: answer})), ("requestState", state)], params)
            reply = await peer.request("tools/call", again)
        if not peer.modern:
            assert [one["params"] for one in peer.asked] == [asked] * 2
        said = envelope(reply)
        assert said["success"] is True
        if link == "old_stdio":
            assert said["data"]["answers"] == [answer] * 2
        else:
            assert said["data"]["inputResponses"] == {"one": answer}


@pytest.mark.req("AQL-C.map-14")
@pytest.mark.parametrize(("front", "link"), CELLS)
async def test_in_a_batch_nobody_is_asked_and_the_item_says_so(fleet: Fleet, front: str, link: str) -> None:
    items = [one(link, "echo", None), one(link, "ask", question("elicitation/create")), one(link, "waiting")]
    async with fleet.peer(front, path=PATH) as peer:
        said = envelope(await peer.call("mcp_aql", {"operations": items}))
        assert peer.asked == []
        asked = said["results"][1]
        assert asked["operation"] == tool(link, "ask")
        if link == "new_stdio":
            error = asked["result"]["error"]
            assert (error["code"], error["details"]["reason"]) == ("INTERNAL_ERROR", "interaction_required")
        else:  # it takes the refusal for an answer, and ends well
            assert asked["result"]["data"]["answers"][0]["code"] == -32601
        assert said["results"][2]["result"]["success"] is True


@pytest.mark.req("AQL-C.map-14", "AQL-C.tool-8")
@pytest.mark.parametrize(("front", "link"), CELLS)
async def test_progress_comes_under_the_clients_own_token(fleet: Fleet, front: str, link: str) -> None:
    async with fleet.peer(front, path=PATH) as peer:
        for arguments in (one(link, "progress", {"steps": 3}), {"operations": [one(link, "progress", {"steps": 3})]}):
            peer.forget()
            reply = await peer.call("mcp_aql", arguments, meta={"progressToken": "schön"})
            told = [message["params"] for message in peer.before(reply, "notifications/progress")]
            assert [(each["progressToken"], each["progress"]) for each in told] == [("schön", n) for n in (1, 2, 3)]
            assert envelope(reply)["success"] is True


@pytest.mark.req("AQL-X-8")
@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize(("front", "link"), CELLS)
async def test_a_server_learns_of_a_cancelled_operation_and_the_rest_of_a_batch_does_not_run(
    fleet: Fleet, front: str, link: str, is_batch: bool
) -> None:
    probe = f"never-{front}-{link}"
    async with fleet.peer(front, path=PATH) as peer:
        standing = (await data(peer, link, "waiting"))["ids"]
        waits = one(link, "wait")
        ongoing = peer.begin_call(
            "mcp_aql", {"operations": [waits, one(link, "exact", {"probe": probe})]} if is_batch else waits
        )
        async with asyncio.timeout(10):
            while len(found := (await data(peer, link, "waiting"))["ids"]) == len(standing):
                pass
        (waiting,) = (each for each in found if each not in standing)
        await peer.cancel(ongoing)
        await until(peer, link, "cancelled", waiting, is_there=True)
        await until(peer, link, "waiting", waiting, is_there=False)
        assert probe not in json.dumps(await data(peer, link, "seen"))
        assert not any(message.get("id") == int(ongoing.id) and "result" in message for message in peer.log)


@pytest.mark.req("AQL-X-8")
@pytest.mark.parametrize("front", FRONTS)
async def test_resources_prompts_and_completion_pass_as_on_the_flat_endpoint(fleet: Fleet, front: str) -> None:
    said: dict[str, list[Any]] = {}
    for path in ("", "/aql", PATH):
        async with fleet.peer(front, path=path) as peer:
            answers = said[path] = []
            for method in ("resources/list", "resources/templates/list", "prompts/list"):
                answers.append((await peer.request(method)).result)
            resource, prompt = answers[0]["resources"][0], answers[2]["prompts"][0]
            answers.append((await peer.request("resources/read", {"uri": resource["uri"]})).result)
            filled = {each["name"]: "x" for each in prompt.get("arguments", ())}
            answers.append((await peer.request("prompts/get", {"name": prompt["name"], "arguments": filled})).result)
            completion = {
                "ref": {"type": "ref/prompt", "name": prompt["name"]},
                "argument": {"name": next(iter(filled), "x"), "value": "a"},
            }
            answers.append((await peer.request("completion/complete", completion)).result)
    assert said[""] == said["/aql"] == said[PATH]
    assert uri("old_stdio", "") in json.dumps(said[""])
