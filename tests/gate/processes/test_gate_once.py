"""Does one approval pass a call once to an aggregator below, and may that show what is not its own (MCP-AX 11.3)?"""

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ax.bare_subserver import BareSubserver, connect, tool
from tests.ax.tree import ACCESS
from tests.gate.held_calls import ADA, MARK, Client, anchor, approve, token
from tests.support.node_process import RunningNode, running_node

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(90)]

CLOSED = '[gate]\nmode = "gated"\nunannotated = "allow"\n' + anchor("ada", ADA, "*")
FIRE = "low.plant.fire"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("once"), {}, ACCESS + CLOSED) as made:
        yield made


class Holding(BareSubserver):
    """An aggregator that has a confirmation of its own for every call, and says what it likes to who comes back."""

    answer: Callable[[str], dict[str, Any]]

    async def _serve(self, request: dict[str, Any]) -> None:
        if request["method"] != "mcpax/confirm":
            await super()._serve(request)
            return
        await self.send({"jsonrpc": "2.0", "id": request["id"], **self.answer(request["params"]["confirmation_id"])})

    def sent(self, method: str) -> list[dict[str, Any]]:
        return [one["params"] for one in self.heard if one.get("method") == method]


def demand(confirmation_id: str) -> dict[str, Any]:
    shown = {"status": "confirmation_required", "confirmation_id": confirmation_id, "tool": "plant.fire"}
    return {"resultType": "complete", "content": [], "isError": True, "_meta": {MARK: shown}}


@contextlib.asynccontextmanager
async def holding(node: RunningNode, answer: Callable[[str], dict[str, Any]]) -> AsyncIterator[Holding]:
    gated = tool("plant.fire", annotations={"destructiveHint": True}, _meta={"x-mcpax-gated": True})
    above = {"x-mcpax-subtree-ids": [str(uuid.uuid4())], "authority": "dns:all.example"}
    low = Holding(await connect(node), "low", tools=[gated], call=lambda _: demand(str(uuid.uuid4())), **above)
    low.answer = answer
    try:
        await low.register()
        await asyncio.to_thread(node.wait_link, "low", {"state": "ready", "tools": 1})
        yield low
    finally:
        await low.stop()


ANSWERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "the same demand": lambda id: {"result": demand(id)},
    "another demand": lambda _: {"result": demand(str(uuid.uuid4()))},
    "confirmed": lambda _: {"result": {"resultType": "complete", "status": "confirmed"}},
    "a result": lambda _: {"result": {"resultType": "complete", "content": []}},
    "an error": lambda _: {"error": {"code": 32121, "message": "confirmation_expired"}},
    "an unknown method": lambda _: {"error": {"code": -32601, "message": "Method not found"}},
}


@pytest.mark.req("AX-11.3-11")
@pytest.mark.req("AX-11.3-16")
@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_one_approval_sends_the_call_once(node: RunningNode, answer: str, era: str) -> None:
    arguments = {"n": f"{answer} {era}"}

    def approve_once() -> None:
        with Client(node, era) as client:
            outer = client.held(FIRE, arguments)
            approve(node, outer)
            for _ in range(7):
                said = client.ask("tools/call", {"name": FIRE, "arguments": arguments})
                held = said.get("result", {}).get("_meta", {}).get(MARK, {})
                if held and "held_by" not in held:  # the root asks anew: the approval is used up
                    assert held["confirmation_id"] != outer["confirmation_id"]

    async with holding(node, ANSWERS[answer]) as low:
        await asyncio.to_thread(approve_once)
        (call,) = low.sent("tools/call")
        assert call["arguments"] == arguments
        redeemed = low.sent("mcpax/confirm")
        assert redeemed
        for one in redeemed:
            assert one.keys() == {"confirmation_id", "redeem", "_meta"}
            assert one["_meta"]["x-mcpax-caller"] == call["_meta"]["x-mcpax-caller"]
        if "demand" in answer:
            assert len(redeemed) == 6
        for before, after in itertools.pairwise(redeemed):
            assert (before["confirmation_id"] == after["confirmation_id"]) is (answer == "the same demand")


def said(node: RunningNode, arguments: dict[str, Any]) -> Any:
    with Client(node) as client:
        approve(node, client.held(FIRE, arguments))
        return client.call(FIRE, arguments)


@pytest.mark.req("AX-11.3-10")
@pytest.mark.parametrize("copied", ["confirmation_id", "aggregator_id"])
async def test_a_proved_aggregator_shows_no_call_that_is_held_elsewhere(node: RunningNode, copied: str) -> None:
    def hold(name: str) -> Any:
        with Client(node, token=token(node, name)) as other:
            return other.held(FIRE, {"n": 666})

    async with holding(node, ANSWERS["an error"]) as low:
        held = await asyncio.to_thread(hold, f"mallory-{copied}")
        shown = {**held, "tool": "plant.look", "arguments": {}}
        if copied == "aggregator_id":
            shown["confirmation_id"] = str(uuid.uuid4())
        low.call = lambda _: {**demand(""), "_meta": {MARK: shown}, "structuredContent": shown}
        result = await asyncio.to_thread(said, node, {"n": copied})
        assert (result.get("_meta"), result.get("structuredContent")) == (None, None)
        assert result["isError"] is True


@pytest.mark.req("AX-11.3-10")
async def test_an_aggregator_whose_authority_is_not_proved_shows_none(tmp_path: Path) -> None:
    opened = '[[access]]\nwho = ["local"]\nscope = "admin"\n[ax]\nrequire_proof = "never"\n'
    node_below = running_node(tmp_path, {}, opened + CLOSED)
    node = await asyncio.to_thread(node_below.__enter__)
    try:
        async with holding(node, ANSWERS["an error"]) as low:
            shown = demand("c1")
            low.call = lambda _: {**shown, "structuredContent": {**shown["_meta"][MARK], "call_digest": "d"}}
            result = await asyncio.to_thread(said, node, {"n": 1})
            assert result["isError"] is True
            # AX-11.3-19: what is held there is shown as its word, without anything that could be signed or opened.
            word = result["_meta"].pop(MARK)
            assert result["_meta"] == {} and word["word_of"] == "low"
            for shown_word in (word, result["structuredContent"]):
                assert not {"confirmation_id", "call_digest", "aggregator_id", "url", "proof_types"} & set(shown_word)
    finally:
        await asyncio.to_thread(node_below.__exit__, None, None, None)
