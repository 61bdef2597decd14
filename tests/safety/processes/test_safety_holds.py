"""Dangerous operations inside an execution wait for a person, and what else can stop an agent."""

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.safety.agent_lines import Lines
from tests.safety.agents import LOOK, AgentNode, agent_node

from interlock.approvals.protocol.approval import What
from interlock.aql.operation_index import OperationContext
from interlock.aql.protocol.model import AqlOperation, AqlParameter, Category, Danger
from interlock.safety.agents import BUCKET, AgentKey
from interlock.safety.loop import Assessment
from interlock.safety.protocol.evaluation import Hint

pytestmark = pytest.mark.asyncio(loop_scope="module")

ON = '[gate]\nmode = "open"\n[safety]\nmode = "enforcing"\npreapproved = true\nstages = ["outcome"]\n'
THING = AqlParameter(name="thing", type="string", required=True)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AgentNode]:
    async with agent_node(tmp_path_factory.mktemp("holds"), ON) as found:

        async def work(context: OperationContext, params: dict[str, Any]) -> Any:
            return params["thing"]

        native = found.node.calls.native_operations
        for name, category in (("delete_thing", Category.DELETE), ("create_thing", Category.CREATE)):
            declared = AqlOperation(
                name=name, category=category, description="Works.", parameters=(THING,), danger=Danger.DESTRUCTIVE
            )
            native.add(declared, work)
        yield found


async def held_id(here: AgentNode, said: Any) -> str:
    """Of what waits, once the inbox has it."""
    id = str(said["error"]["details"]["confirmation_id"])
    await here.until(lambda: here.inbox.get(id) is not None)
    return id


def tokens(said: Any) -> list[str]:
    return [word for word in ("confirmation_token", "conf_") if word in json.dumps(said)]


@pytest.mark.req("AQL-8.7.3-3", "AQL-C.gate-1", "AQL-C.token-3")
@pytest.mark.parametrize("by", ["token", "decision"])
async def test_inside_an_execution_a_person_confirms_and_the_agent_gets_no_token(here: AgentNode, by: str) -> None:
    client = await Lines(here, "aql").greet()

    async def delete(thing: str = "a", **more: Any) -> Any:
        return await client.do("delete_thing", "delete", thing=thing, **more)

    outside = await delete()
    assert outside["error"]["details"]["confirmation_token"].startswith("conf_")
    own = outside["error"]["details"]["confirmation_token"]
    await client.do("execute_agent", element_name="coder")
    held = await delete()
    assert held["error"]["code"] == "CONFIRMATION_REQUIRED" and not tokens(held) and "confirmation" not in held
    id = await held_id(here, held)
    assert (await delete(_confirmation=own))["error"]["details"]["confirmation_id"] == id  # its own token opens nothing
    assert (await delete())["error"]["details"]["confirmation_id"] == id  # and nobody is asked twice
    (notice,) = [one for one in (await client.step(LOOK))["notifications"] if one["type"] == "permission_pending"]
    assert notice["metadata"]["operation"] == "delete_thing" and id in notice["message"]
    assert notice["metadata"]["level"] == "CONFIRM_SINGLE_USE"
    approval = here.inbox.get(id)
    assert approval is not None and json.loads(bytes(approval.params or b""))["params"] == {"thing": "a"}
    if by == "token":
        said = await client.do("confirm_operation", confirmation_token=here.shown(id))
        assert (said["data"]["operation"], said["data"]["confirmed"]) == ("delete_thing", True)
    else:
        decided = await here.loop.challenges.decide(id, What.APPROVED, by="ada", reason="")
        await here.loop.settle(decided)  # type: ignore[arg-type]
    notices = (await client.step(LOOK)).get("notifications", [])
    assert "permission_pending" not in [one["type"] for one in notices]
    assert "delete_thing was confirmed" in json.dumps(notices)
    assert (await delete("b"))["error"]["details"]["confirmation_id"] != id  # another call is another question
    assert (await delete())["data"] == "a"
    assert (await delete())["success"] is False
    denied = await held_id(here, await delete("b"))
    await client.do("confirm_operation", confirmation_token=here.shown(denied), decision="deny")
    assert (await delete("b"))["error"]["details"]["confirmation_id"] != denied
    await client.do("complete_execution", element_name="coder")
    await here.until(lambda: not here.waiting("local"))
    assert tokens(await delete())  # outside it confirms itself again
    records = [one["reason"] for one in await here.audited("aql/danger")]
    assert {one.rpartition(": ")[2] for one in records} >= {"denied, held", "confirmed by a person"}


@pytest.mark.req("AQL-C.gate-1")
async def test_a_created_element_is_approved_once_with_its_parameters_and_a_denial_overrides_a_token(
    here: AgentNode,
) -> None:
    client = await Lines(here, "aql").greet()
    await client.do("execute_agent", element_name="maker")
    held = await client.do("create_thing", "create", thing="a")
    id = await held_id(here, held)
    pending = await client.do("record_execution_step", element_name="maker", nextActionHint=LOOK)
    (notice,) = pending["data"]["autonomy"]["notifications"]
    assert notice["metadata"]["level"] == "CONFIRM_SESSION"
    approval = here.inbox.get(id)
    assert approval is not None and "as often as the agent makes it" in approval.reason
    await client.do("confirm_operation", confirmation_token=here.shown(id))
    for _ in range(2):
        assert (await client.do("create_thing", "create", thing="a"))["data"] == "a"
    other = await held_id(here, await client.do("create_thing", "create", thing="b"))
    shown = here.inbox.get(other)
    assert other != id and shown is not None and json.loads(bytes(shown.params or b""))["params"] == {"thing": "b"}
    await client.do("complete_execution", element_name="maker")
    asked = await client.do("delete_thing", "delete", thing="a")
    token = asked["error"]["details"]["confirmation_token"]
    native = here.node.calls.native_operations
    before = native.by_name.pop("delete_thing")
    native.version += 1
    gone = await client.do("delete_thing", "delete", thing="a", _confirmation=token)
    assert gone["error"]["code"] == "NOT_FOUND_OPERATION"  # route comes first
    native.add(before.declaration, before.handler)
    entry = here.node.calls.aql.index(client._front._session.caller).by_name["delete_thing"]  # type: ignore[union-attr]
    entry.__dict__["treatment"] = "deny"  # as a rule about it has it
    denied = await client.do("delete_thing", "delete", thing="a", _confirmation=token)
    assert denied["error"]["code"] == "PERMISSION_DANGER_LEVEL_DENIED"
    last = (await here.audited("aql/danger"))[-1]
    assert last["reason"].endswith(": denied") and last["verdict"] == "refused"


@pytest.mark.req("AQL-C.gate-1")
async def test_each_layer_is_on_record_by_the_code_that_only_it_answers(here: AgentNode) -> None:
    """Route, category, policy, confirmation: the first that refuses is the one that is named."""
    client = await Lines(here, "aql").greet()

    async def refusal(operation: str, family: str, **params: Any) -> tuple[str, str]:
        code = (await client.do(operation, family, **params))["error"]["code"]
        row = (await here.audited("tools/call"))[-1]
        assert row["verdict"] == "refused"
        return code, row["reason"]

    wrong = {"thing": "a", "_confirmation": "conf_no"}
    assert await refusal("remove_thing", "read", **wrong) == ("NOT_FOUND_OPERATION",) * 2
    entry = here.node.calls.aql.index(client._front._session.caller).by_name["create_thing"]  # type: ignore[union-attr]
    was = entry.treatment
    entry.__dict__["treatment"] = "deny"
    assert await refusal("create_thing", "read", **wrong) == ("VALIDATION_ENDPOINT_MISMATCH",) * 2
    assert await refusal("create_thing", "create", **wrong) == ("PERMISSION_DANGER_LEVEL_DENIED",) * 2
    entry.__dict__["treatment"] = was
    assert await refusal("create_thing", "create", **wrong) == ("TOKEN_INVALID",) * 2
    assert await refusal("create_thing", "create", thing="a") == ("CONFIRMATION_REQUIRED",) * 2
    said = [one["reason"].rpartition(": ")[2] for one in (await here.audited("aql/danger"))[-3:]]
    assert said == ["denied", "denied, TOKEN_INVALID", "denied, CONFIRMATION_REQUIRED"]


@pytest.mark.req("AQL-8.8.3-1", "AQL-8.7.2-10")
async def test_another_trigger_stops_blocks_and_raises_the_risk_like_our_own(
    here: AgentNode, caplog: pytest.LogCaptureFixture
) -> None:
    said: dict[str, Assessment | None] = {
        "moonlight": Assessment(is_stopped=True, reason="Not by night."),
        "broken": None,
    }

    def trigger(agent: AgentKey, hint: Hint) -> Assessment:
        for word, one in said.items():
            if word in hint.text:
                if one is None:
                    raise RuntimeError("no idea")
                return one
        return Assessment()

    here.loop.add_trigger(trigger)
    caplog.set_level(logging.WARNING)
    other = here.agent("client:other")
    await other.start()
    for word, reason in (("moonlight", "Not by night."), ("broken", "assessment of this action failed")):
        agent = here.agent(f"client:{word}")
        await agent.start()
        assert (await agent.directive(LOOK))["continue"] is True
        directive = await agent.directive(f"looking at the roses by {word}")
        assert (directive["continue"], directive["stopped"]) == (False, True) and reason in directive["reason"]
        (block,) = here.loop.blocks.of_principal(agent.client)
        assert here.loop.challenges.is_waiting(block.challenge_id)
        stored = await here.node.stores.store.kv.get(BUCKET, block.agent.stored, here.clock.wall())
        assert stored is not None and block.challenge_id.encode() in stored.value
        heard = (await other.directive(LOOK))["notifications"]
        assert block.challenge_id in json.dumps(heard)
        assert (await agent.verify(block.challenge_id, here.shown(block.challenge_id)))["verified"] is True
    assert "a risk score of the agent" not in caplog.text
    here.loop._triggers.clear()


@pytest.mark.req("AQL-8.7.2-10")
async def test_a_score_out_of_range_is_clamped_and_logged(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    config = '[safety]\nmode = "enforcing"\npreapproved = true\n'
    async with agent_node(tmp_path_factory.mktemp("scores"), config) as here:
        here.loop.add_trigger(lambda agent, hint: Assessment(score=250 if "match" in hint.text else 30.5))
        agent = here.agent("client:score")
        await agent.start()
        assert (await agent.directive("looking at the roses"))["nextStepRisk"] == "confirm"
        await here.loop.settle(
            await here.loop.challenges.decide(here.waiting(agent.client)[0].id, What.APPROVED, by="ada", reason="")
        )  # type: ignore[arg-type]
        directive = await agent.directive("looking at the score of the match")
        assert (directive["nextStepRisk"], directive["stopped"]) == ("danger_zone", True)
        assert "a risk score of the agent 'coder' is out of range" in caplog.text
