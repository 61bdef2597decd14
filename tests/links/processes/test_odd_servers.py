"""Does what only some servers offer, or only one revision has, reach clients whole, translated or refused by name?"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.servers.rawserver.text import members, prepend
from tests.servers.start import serving
from tests.support.fleet import bridge, stdio_front, stdio_table
from tests.support.json_cutting import elements
from tests.support.node_process import RunningNode, running_node, write_config
from tests.support.odd_server import ICONS, STATE, command
from tests.support.peers import LEGACY, MODERN, HttpPeer, Peer, SsePeer, StdioPeer

pytestmark = pytest.mark.asyncio(loop_scope="session")

ERAS = {"old": "legacy", "new": "modern"}


@pytest.fixture(scope="module")
def pretty() -> Iterator[dict[str, str]]:
    """The URLs of two servers that write for people."""
    with contextlib.ExitStack() as stack:
        yield {age: stack.enter_context(serving(command("pretty,half", "--era", era))) for age, era in ERAS.items()}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, pretty: dict[str, str]) -> Iterator[RunningNode]:
    servers = {
        f"{offer}_{age}": stdio_table(command(offer, "--era", era))
        for offer in ("rich", "shapes", "stubborn", "half")
        for age, era in ERAS.items()
    }
    servers |= {f"pretty_{age}": {"url": url} for age, url in pretty.items()}
    servers["asking"] = stdio_table(command("asking"))
    with running_node(tmp_path_factory.mktemp("odd"), servers) as running:
        yield running


@contextlib.asynccontextmanager
async def client(node: RunningNode, era: str, *, judged: bool = True) -> AsyncIterator[Peer]:
    version = LEGACY if era == "legacy" else MODERN
    async with await HttpPeer(f"{node.url}/mcp", version, judged=judged).greet({"roots": {}}) as peer:
        yield peer


async def items(peer: Peer, method: str, member: str) -> list[dict[str, str]]:
    return [members(text) for text in elements(members((await peer.request(method)).result_text)[member])]


LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}


@pytest.mark.parametrize("method", LISTS)
@pytest.mark.parametrize("era", ERAS.values())
async def test_icons_titles_and_notes_are_kept(node: RunningNode, era: str, method: str) -> None:
    async with client(node, era) as peer:
        found = [item for item in await items(peer, method, LISTS[method]) if "icons" in item]
    assert len(found) == 2
    for item in found:
        assert item["icons"] == ICONS
        assert item["title"] == '"Iconic"'
        assert members(item["_meta"])["com.example/k"] == '{"z":1}'


@pytest.mark.parametrize("era", ERAS.values())
async def test_members_that_a_revision_forbids_are_left_out_for_that_revision_only(node: RunningNode, era: str) -> None:
    async with client(node, era) as peer:
        tools = {json.loads(item["name"]): item for item in await items(peer, "tools/list", "tools")}
        answer = (await peer.call("shapes_new__array")).result
    output = "outputSchema" in tools["shapes_new__array"]
    assert all("outputSchema" in tools[f"shapes_{age}__tasks"] for age in ERAS)
    execution = "execution" in tools["shapes_old__tasks"]
    assert answer["content"] == [{"type": "text", "text": "[1]"}]
    assert answer["x-kept"] == {}
    if era == "modern":
        assert (output, execution, answer["structuredContent"]) == (True, False, [1])
    else:
        assert (output, execution) == (False, True)
        assert "structuredContent" not in answer


@pytest.mark.parametrize(
    ("method", "params"),
    [("prompts/get", {"name": "asking__asking"}), ("resources/read", {"uri": "mcpax://asking/r://asking"})],
)
async def test_prompts_and_resources_may_need_input_too(node: RunningNode, method: str, params: dict[str, str]) -> None:
    responses = '{"r":{"roots":[],"n":18446744073709551616}}'
    async with client(node, "modern", judged=False) as peer:
        first = await peer.request(method, params)
        said = members(first.result_text)
        assert said["resultType"] == '"input_required"'
        assert said["inputRequests"] == '{"r":{"method":"roots/list"}}'
        assert said["requestState"] == STATE
        given = [("inputResponses", responses), ("requestState", said["requestState"])]
        second = await peer.request(method, prepend(given, json.dumps(params)))
        assert json.loads(members(second.result_text)["resultType"]) == "complete"
        assert members(members(second.result_text)["x-given"]) == dict(given)


async def test_a_subscription_the_server_refuses_is_refused_to_the_client(node: RunningNode) -> None:
    async with client(node, "legacy") as peer:
        reply = await peer.request("resources/subscribe", {"uri": "mcpax://stubborn_old/r://shy"})
        assert reply.error == {"code": -32602, "message": "not this one", "data": {"why": "shy"}}


async def test_a_server_without_subscriptions_is_not_reported_to_have_a_subscription(node: RunningNode) -> None:
    async with client(node, "legacy") as peer:
        reply = await peer.request("resources/subscribe", {"uri": "mcpax://rich_old/r://iconic"})
        assert reply.error["code"] == -32601


@pytest.mark.parametrize("server", ["half_old", "half_new", "pretty_old", "pretty_new"])
async def test_a_result_with_half_a_surrogate_pair_is_answered_at_once(node: RunningNode, server: str) -> None:
    """JSON's grammar allows it, many readers do not. Passed on or refused by name: nobody may be left waiting."""
    async with client(node, "modern", judged=False) as peer:
        reply = await peer.begin_call(f"{server}__half").reply(seconds=5)
        if "error" in reply.message:
            assert reply.error["data"]["reason"] == "malformed_answer"
        else:
            assert '"cut \\ud83d"' in members(reply.result_text)["content"]
        assert "result" in (await peer.call(f"{server}__whole")).message


@pytest.mark.parametrize("age", ERAS)
async def test_an_answer_written_over_several_lines_stays_one_message_on_every_front(
    node: RunningNode, pretty: dict[str, str], tmp_path: Path, age: str
) -> None:
    expected = {"content": [{"type": "text", "text": "whole"}]}
    name = f"pretty_{age}__whole"
    async with contextlib.AsyncExitStack() as stack:
        peers = [
            await stack.enter_async_context(client(node, "legacy")),
            await stack.enter_async_context(client(node, "modern")),
            await stack.enter_async_context(await SsePeer.legacy(f"{node.url}/sse")),
        ]
        streaming = await stack.enter_async_context(client(node, ERAS[age]))
        streaming.base["accept"] = "text/event-stream"  # type: ignore[attr-defined]
        peers.append(streaming)
        only = ("--only", f"pretty_{age}")
        alone = write_config(tmp_path, {f"pretty_{age}": {"url": pretty[age]}})
        for front, version in (
            (bridge(node, *only), LEGACY),
            (bridge(node, *only), MODERN),
            (stdio_front(alone, tmp_path / "data", *only), LEGACY if age == "old" else MODERN),
        ):
            peers.append(await stack.enter_async_context(await StdioPeer.start(front, version)))
        for peer in peers:
            reply = await peer.call("whole" if isinstance(peer, StdioPeer) else name)
            assert reply.result["content"] == expected["content"]
            assert (await peer.request("tools/list")).result["tools"]


@pytest.mark.parametrize("era", ERAS.values())
async def test_a_list_the_server_does_not_have_is_empty(node: RunningNode, era: str) -> None:
    async with client(node, era) as peer:
        async with asyncio.timeout(10):
            listed = await items(peer, "prompts/list", "prompts")
    assert {json.loads(item["name"]).partition("__")[0] for item in listed} == {"rich_old", "rich_new", "asking"}
