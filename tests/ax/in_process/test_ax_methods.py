"""Which requests of MCP-AX there are, and what a call costs in a large tree (MCP-AX 5.3, 14)."""

import json
import re
import sys
import uuid
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.support.frozen_node import (
    FrozenNode,
    MemoryNetwork,
    advance_time,
    frozen_node,
    in_frozen_time,
    node_chain,
    tool,
)
from tools.ax_reference import METHODS

from interlock.ax.protocol import messages
from interlock.ax.protocol.registration.codec import SUBTREE_IDS_MAX

SOURCE = Path(__file__).resolve().parents[3] / "src" / "interlock"
LISTED = {method.name for method in METHODS}
NOT_FOUND = -32601


# Methods


@pytest.mark.req("AX-14-1")
@in_frozen_time
async def test_the_requests_that_are_answered_are_those_of_the_reference_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = [*sorted(one for one in LISTED if not one.startswith("notifications/")), "mcpax/walk", "mcpax/"]
    wires = MemoryNetwork(monkeypatch)
    async with node_chain(tmp_path, wires, ["edge"]) as (root, edge):
        leaf = await edge.leaf("bench", heartbeat_interval_ms=0).joined()
        end = wires.ends["root"][0].other  # the root's end of its link to edge
        answered = set()
        for number, method in enumerate(tried):
            up = await leaf.request(method, {"session_id": "none of its own"})
            sent = len(end.other.carried)
            end.send(json.dumps({"jsonrpc": "2.0", "id": f"t{number}", "method": method, "params": {}}).encode())
            await edge.until(lambda: len(end.other.carried) > sent)  # noqa: B023 - within this turn
            down = json.loads(end.other.carried[-1])
            client = await root.client().request(method, {})
            for answer in (up, down, client):
                if answer.get("error", {}).get("code") != NOT_FOUND:
                    answered.add(method)
            if method != messages.CONFIRM:
                assert client["error"]["code"] == NOT_FOUND, method  # no client registers anything
        unknown = (await leaf.request("mcpax/" + "x" * 200, {}))["error"]
        assert (unknown["code"], unknown["data"]) == (NOT_FOUND, {"method": "mcpax/" + "x" * 94})
        assert answered <= LISTED
        assert {messages.REGISTER, messages.HEARTBEAT, messages.DEREGISTER, messages.PARENT} <= answered


@pytest.mark.req("AX-14-1")
def test_no_other_method_or_notification_is_spelled_anywhere_in_the_program() -> None:
    spelled = re.compile(r"""["'](?:notifications/)?mcpax/[a-z_]+["']""")
    found = {
        word.strip("\"'") for path in SOURCE.rglob("*.py") for word in spelled.findall(path.read_text(encoding="utf-8"))
    }
    assert found == LISTED


# What a call costs


async def _cost_of_a_call(node: FrozenNode, name: str) -> tuple[Counter[str], list[dict[str, Any]]]:
    """Which functions of ours a call runs, and how often."""
    client = node.client()
    assert "result" in await client.call(name)  # what is done once has been done
    ran: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and str(SOURCE) in code.co_filename:
            ran[f"{Path(code.co_filename).relative_to(SOURCE)}:{code.co_name}"] += 1

    sys.setprofile(note)
    try:
        answer = await client.call(name)
    finally:
        sys.setprofile(None)
    return ran, [answer]


@pytest.mark.req("AX-5.3-6")
@in_frozen_time
async def test_a_call_compares_no_ids_and_costs_the_same_however_many_aggregators_are_below(tmp_path: Path) -> None:
    costs = []
    for count in (1, SUBTREE_IDS_MAX - 1):
        folder = tmp_path / str(count)
        folder.mkdir()
        async with frozen_node(folder) as node:
            ids = [str(uuid.uuid4()) for _ in range(count)]
            below = node.leaf("sub", tools=[tool("x.read")], subserver_id=ids[0], heartbeat_interval_ms=0)
            below.register_params["x-mcpax-subtree-ids"] = ids
            await below.joined()
            ran, (answer,) = await _cost_of_a_call(node, "sub.x.read")
            assert "result" in answer
            # Definitions that were seen are settled in time of their own, and that may be now.
            beside = ("store/", "approvals/")
            costs.append({one: times for one, times in ran.items() if not one.startswith(beside)})
            (first, second) = [one for one in below.heard if one.get("method") == "tools/call"]
            for call in (first, second):
                assert "subtree" not in json.dumps(call)
                assert not any(one in json.dumps(call) for one in (ids[0], node.node.stores.identity.aggregator_id))
            assert not [one for one in ran if one.startswith(("ax/protocol/registration/", "ax/memb"))]
    assert costs[0] == costs[1]
    assert costs[0]


@pytest.mark.req("AX-5.3-6")
@in_frozen_time
async def test_no_id_of_an_aggregator_travels_with_a_call_through_the_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wires = MemoryNetwork(monkeypatch)
    async with node_chain(tmp_path, wires, ["edge", "gate"]) as (root, edge, gate):
        await gate.leaf("bench", tools=[tool("read")], heartbeat_interval_ms=0).joined()
        await advance_time(1.0)
        assert "result" in await root.client().call("edge.gate.bench.read")
        ids = [node.node.stores.identity.aggregator_id.encode() for node in (root, edge, gate)]
        calls = [
            message
            for ends in wires.ends.values()
            for end in ends
            for message in end.other.carried
            if b'"tools/call"' in message
        ]
        assert len(calls) == 2
        for message in calls:
            assert b"subtree" not in message
            assert not any(one in message for one in ids)
