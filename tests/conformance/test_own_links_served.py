"""Servers that keep state or ask, as they are published: does each of several clients have one to itself?"""

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.conformance.toolbox import ToolMissing, npm_server
from tests.support.node_process import RunningNode, running_node
from tests.support.peers import HttpPeer

pytestmark = pytest.mark.timeout(300)

CAPABLE = {"sampling": {}, "elicitation": {"form": {}}}
ERAS = ("legacy", "modern")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    try:
        names = {"everything": "everything", "thinking": "sequential-thinking"}
        servers: dict[str, Any] = {segment: {"command": npm_server(name)} for segment, name in names.items()}
    except (ToolMissing, subprocess.SubprocessError) as missing:
        pytest.skip(str(missing))
    with running_node(tmp_path_factory.mktemp("own"), servers) as node:
        for segment in servers:
            node.wait_link(segment, {"state": "ready"}, seconds=60)
        yield node


@contextlib.asynccontextmanager
async def clients(node: RunningNode, era: str, count: int) -> AsyncIterator[list[HttpPeer]]:
    peers = []
    for number in range(count):
        connect = HttpPeer.legacy if era == "legacy" else HttpPeer.modern_
        peer = await connect(f"{node.url}/mcp", CAPABLE)
        answer = {"action": "accept", "content": {"name": f"client {number}"}}
        sampled = {"role": "assistant", "model": "m", "content": {"type": "text", "text": f"client {number}"}}
        peer.answers |= {
            "elicitation/create": lambda _, answer=answer: answer,
            "sampling/createMessage": lambda _, sampled=sampled: sampled,
        }
        peers.append(peer)
    try:
        yield peers
    finally:
        for peer in peers:
            if era == "legacy":
                await peer.end()
            await peer.close()


async def outcome(peer: HttpPeer, tool: str, arguments: dict[str, Any]) -> str:
    """The result as text; a client without a session answers by another request."""
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    result = (await peer.begin("tools/call", params).reply(60)).result
    while result.get("resultType") == "input_required":
        asked = result["inputRequests"]
        params["inputResponses"] = {key: peer.answers[one["method"]](None) for key, one in asked.items()}
        params["requestState"] = result["requestState"]
        result = (await peer.begin("tools/call", params).reply(60)).result
    return json.dumps(result)


@pytest.mark.parametrize("era", ERAS)
async def test_eight_clients_that_are_asked_at_once_each_answer_for_themselves(node: RunningNode, era: str) -> None:
    async with clients(node, era, 8) as peers:
        calls = []
        for number, peer in enumerate(peers):
            if number % 2:
                calls.append(outcome(peer, "everything__trigger-sampling-request", {"prompt": f"prompt {number}"}))
            else:
                calls.append(outcome(peer, "everything__trigger-elicitation-request", {}))
        said = await asyncio.gather(*calls)
        assert [f"client {number}" in text for number, text in enumerate(said)] == [True] * 8, said


async def test_the_thoughts_of_one_conversation_are_not_those_of_another(node: RunningNode) -> None:
    async with clients(node, "legacy", 3) as peers:
        for number in (1, 2):
            thought = {"thought": "so", "thoughtNumber": number, "totalThoughts": 2, "nextThoughtNeeded": number < 2}
            for peer in peers:
                text = await outcome(peer, "thinking__sequentialthinking", thought)
                assert f'thoughtHistoryLength\\": {number}' in text.replace("\\\\", "\\"), text
    link = await asyncio.to_thread(node.link, "thinking")
    assert link["own_because"] == "it counts the thoughts of one conversation"
