"""Can a server lift the gate from its own tools by saying something else of them? Only with a person's word.

A node in this process, and a real server that lists its tools anew.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.catalog.in_process.test_link_items import House, listing, tool
from tests.gate.held_calls import ADA, MARK
from tests.gate.processes.test_gate_kept import Here, find_tool, house

from interlock.approvals.protocol.approval import Approval, Kind
from interlock.approvals.protocol.digests import signed_digest
from interlock.ax.protocol.hop_metadata import ADOPTED, Offer
from interlock.catalog.routes import DefinitionSnapshot, DefinitionState, Rulings
from interlock.config.plan import GatePlan
from interlock.gate.protocol.held_call import Presented
from interlock.gate.protocol.policy import ToolClaims
from interlock.mcp.items import find_value
from interlock.wire.refusal import Refusal


async def relist(here: Here, what: str, tool: str | None = None) -> None:
    name = f"plant.{tool or 'fire'}"
    was = find_tool(here, name)
    assert was is not None
    await here.call("plant.change", {"what": what} | ({} if tool is None else {"tool": tool})).result()
    await here.until(lambda: find_tool(here, name) not in (None, was))


async def question(here: Here, tool: str = "fire") -> Approval:
    def asked() -> list[Approval]:
        return [one for one in here.node.approvals.inbox.waiting(Kind.DEFINITION) if one.tool == f"plant.{tool}"]

    await here.until(lambda: bool(asked()))
    (one,) = asked()
    return one


async def decide(here: Here, asked: Approval, answer: str) -> None:
    demand = {
        "aggregator_id": here.node.calls.gate.aggregator_id,
        "confirmation_id": asked.id,
        "call_digest": signed_digest(asked, answer),
    }
    proof = Presented(token=here.proof(demand, ADA))
    decided = await here.node.calls.deciding.approve(asked.id, proof, by="operator:ada", answer=answer)
    assert not isinstance(decided, Refusal), decided


async def is_held(here: Here, tool: str = "fire") -> Any:
    return MARK in (await here.call(f"plant.{tool}").result()).get("_meta", {})


@pytest.mark.req("AX-11.3-14")
@pytest.mark.parametrize("definitions", ["accept", "notify", "follow"])
@pytest.mark.parametrize("what", ["read_only", "undoable", "immutable", "partly"])
async def test_a_tool_that_says_it_is_harmless_by_now_is_held_until_a_person_accepts_that(
    tmp_path: Path, what: str, definitions: str
) -> None:
    async with house(tmp_path, definitions=definitions) as here:
        assert await is_held(here)
        await relist(here, what)
        route = find_tool(here, "plant.fire")
        assert route is not None
        assert (route.is_held, route.irreversible, route.scope) == (True, True, "write")
        assert {**find_value(route.item, "annotations"), **route.hints}["destructiveHint"] is True
        assert await is_held(here)
        assert not here.diary.read()
        asked = await question(here)
        assert asked.digest == route.offered_digest
        assert (asked.digest == route.digest) is (definitions != "accept")
        assert "claims less" in (asked.reason or "")
        await decide(here, asked, "accept")
        await here.until(lambda: not getattr(find_tool(here, "plant.fire"), "is_held", True))
        assert not await is_held(here)
        assert len(here.diary) == 1


async def test_the_question_stays_when_the_server_goes_back_and_is_the_same_when_it_tries_again(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        await relist(here, "read_only")
        asked = await question(here)
        await relist(here, "as it was")
        assert await is_held(here)
        assert await question(here) == asked
        await relist(here, "read_only")
        assert await question(here) == asked
        assert await is_held(here)
    async with house(tmp_path) as here:  # the server starts as it first was
        assert await question(here) == asked
    async with house(tmp_path, changed="read_only") as here:
        assert await is_held(here)
        assert await question(here) == asked
        assert not here.diary.read()


@pytest.mark.parametrize("answer", ["accept", "irreversible"])
async def test_a_tool_that_declared_nothing_does_not_classify_itself(tmp_path: Path, answer: str) -> None:
    async with house(tmp_path, definitions="notify") as here:
        assert await is_held(here, "silent")
        before = await question(here, "silent")
        await relist(here, "read_only", "silent")
        await here.until(lambda: before.id not in {one.id for one in here.node.approvals.inbox.waiting()})
        if answer == "irreversible":  # a call asks before the list does
            await here.node.approvals.inbox.void((await question(here, "silent")).id, "to be asked by a call")
        assert await is_held(here, "silent")
        assert not here.diary.read()
        await decide(here, await question(here, "silent"), answer)
        await here.until(lambda: not getattr(find_tool(here, "plant.silent"), "is_open", True))
        assert await is_held(here, "silent") is (answer == "irreversible")


async def test_the_class_of_the_accepted_definition_counts_until_the_change_claims_more(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        assert await is_held(here, "silent")
        asked = await question(here, "silent")
        await here.call("plant.change", {"what": "described", "tool": "silent"}).result()
        await here.until(lambda: getattr(find_tool(here, "plant.silent"), "offered", None) is not None)
        # What the tool does is asked of the definition that clients see, and the change waits beside it.
        await here.node.approvals.definitions.wait_until_processed()
        assert len(here.node.approvals.inbox.waiting(Kind.DEFINITION)) == 2
        await decide(here, asked, "read_only")
        await here.until(lambda: not getattr(find_tool(here, "plant.silent"), "is_held", True))
        assert not await is_held(here, "silent")
        await relist(here, "annotations", "silent")
        assert await is_held(here, "silent")
        route = find_tool(here, "plant.silent")
        assert route is not None and route.irreversible and not route.is_unaccepted
        assert len(here.diary) == 1


async def test_a_flag_that_goes_away_leaves_the_gate_where_it_was(tmp_path: Path) -> None:
    async with house(tmp_path, definitions="follow") as here:
        await here.call("plant.change", {"what": "flagged", "tool": "fresh"}).result()
        await here.until(lambda: find_tool(here, "plant.fresh") is not None)
        assert await is_held(here, "fresh")
        await here.node.approvals.definitions.wait_until_processed()
        await relist(here, "read_only", "fresh")
        assert await is_held(here, "fresh")
        assert not here.diary.read()


async def test_a_stricter_word_counts_at_once_and_going_back_to_what_was_accepted_too(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        assert not await is_held(here, "look")
        await relist(here, "fire", "look")
        assert await is_held(here, "look")
        await relist(here, "read_only", "look")
        assert not await is_held(here, "look")


async def test_the_operators_own_decision_wins_over_both(tmp_path: Path) -> None:
    rule = '[[tool]]\nmatch = "plant.fire"\nmutable = false\n'
    async with house(tmp_path, rule) as here:
        await relist(here, "undoable")
        assert not await is_held(here)


class Changed(Rulings):
    """Every definition has changed; what was accepted of it could not be undone."""

    def look(self, segment: str, snapshot: DefinitionSnapshot) -> DefinitionState:
        return DefinitionState.CHANGED

    def find_accepted(self, segment: str, tool: str) -> ToolClaims | None:
        return ToolClaims(is_open=False)


@pytest.mark.parametrize(
    ("mode", "offer", "held"),
    [
        ("gated", ADOPTED, True),
        ("gated", Offer(kind="aggregator"), True),
        ("defer", Offer(kind="aggregator"), False),
        ("defer", Offer(kind="leaf"), True),
        ("defer", ADOPTED, True),
        ("open", ADOPTED, False),
    ],
)
async def test_a_looser_claim_counts_at_once_only_from_a_node_that_is_left_to_decide(
    mode: Any, offer: Offer, held: bool
) -> None:
    made = House(gate=GatePlan(mode=mode))
    made.catalog.rulings = Changed()
    harmless = tool("act", {"mutable": False, "reversible": True})
    link = made.link("s", offer)
    link.plan = msgspec.structs.replace(link.plan, definitions="notify")
    await made.catalog.stock(link, listing(harmless))
    route = made.routes()["s.act"]
    assert route.is_held is held
    assert route.is_unaccepted is (mode == "open" or held)
