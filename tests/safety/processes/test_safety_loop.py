"""Does an agent inside the safety loop do what it reported, and nothing else?

One node for all tests; each has a client of its own.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
import pytest_asyncio
from msgspec import Raw
from tests.gate.held_calls import proof
from tests.safety.agents import ENFORCING, LOOK, AgentNode, agent_node, failed

from interlock.approvals.grants_api import DraftGrant, Grant, SignGrant
from interlock.aql.loop_operations import INSTRUCTIONS
from interlock.config.plan import SafetyPlan
from interlock.safety.agents import agent_key
from interlock.safety.protocol.evaluation import LIMIT_REASON

pytestmark = pytest.mark.asyncio(loop_scope="module")

TIERS = ["advisory", "confirm", "verify", "danger_zone"]
NOTIFICATION = {
    "type": "object",
    "additionalProperties": False,
    "required": ["type", "message", "timestamp"],
    "properties": {
        "type": {"enum": ["permission_pending", "autonomy_pause", "danger_zone", "status", "error"]},
        "message": {"type": "string", "minLength": 1},
        "timestamp": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"},
        "metadata": {
            "type": "object",
            "additionalProperties": False,
            "properties": {key: {"type": "string"} for key in ("operation", "reason", "level", "verificationId")},
        },
    },
}
DIRECTIVE = jsonschema_rs.validator_for(
    {
        "type": "object",
        "additionalProperties": False,
        "required": ["continue", "factors"],
        "properties": {
            "continue": {"type": "boolean"},
            "factors": {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
            "stopped": {"const": True},
            "reason": {"type": "string"},
            "stepsRemaining": {"type": "integer", "minimum": 0},
            "nextStepRisk": {"enum": TIERS},
            "notifications": {"type": "array", "items": NOTIFICATION},
        },
    }
)
AGENTS = """
[safety]
mode = "enforcing"
preapproved = true
require = ["client:required"]
[safety.agents.careful]
preapproved = false
[safety.agents.short]
max_autonomous_steps = 3
[safety.agents.other]
deny = ["look_*"]
requires_approval = ["prune_*"]
auto_approve = []
risk_tolerance = "aggressive"
"""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AgentNode]:
    async with agent_node(tmp_path_factory.mktemp("agents"), AGENTS) as found:
        yield found


def types(directive: Any) -> list[str]:
    DIRECTIVE.validate(directive)
    return [one["type"] for one in directive.get("notifications", [])]


@pytest.mark.req("AQL-8.6.2-4", "AQL-8.6.4-2", "AQL-8.6.2-1", "AQL-8.6.2-1")
async def test_only_what_was_reported_passes_and_only_once(here: AgentNode) -> None:
    agent = here.agent("client:a1")
    await agent.passes()  # outside the loop it is a client like any other
    started = await agent.start()
    assert started["status"] == "running" and len(started["execution_id"]) == 37
    assert await agent.refusal() == "unreported_action"
    directive = await agent.directive(LOOK)
    assert directive["continue"] is True
    assert await agent.refusal("plant.nudge") == "unreported_action"
    await agent.passes()
    assert await agent.refusal() == "unreported_action"
    await agent.directive(LOOK)
    await agent.directive("reading the notes of yesterday")  # a grant that was not used ends with the next report
    assert await agent.refusal() == "unreported_action"


@pytest.mark.req("AQL-8.6.2-4")
async def test_a_standing_grant_replaces_no_report(here: AgentNode) -> None:
    agent = here.agent("client:granted")
    grants = here.node.operations.grants
    draft = grants.draft(DraftGrant(tool="plant.fire", who=agent.client, rules=(), calls=5))
    demand = {
        "confirmation_id": draft.terms.id,
        "call_digest": draft.digest,
        "aggregator_id": draft.terms.aggregator_id,
    }
    signed = await grants.sign(SignGrant(terms=draft.terms, proof=Raw(msgspec.json.encode(proof(demand)))), by="local")
    assert isinstance(signed, Grant)
    await agent.passes("plant.fire")
    await agent.start()
    assert await agent.refusal("plant.fire") == "unreported_action"
    assert grants.get(draft.terms.id).used == 1


@pytest.mark.req("AQL-8.6.3-2", "AQL-8.6.2-1", "AQL-8.6.2-1")
async def test_a_call_without_a_report_is_recorded_and_reported(here: AgentNode) -> None:
    agent = here.agent("client:a2")
    started = await agent.start()
    await agent.refusal()
    (record,) = [one for one in await here.audited("agents/PROTOCOL_VIOLATION") if one["who"] == "client:a2"]
    assert (record["agent"], record["execution"], record["operation"]) == (
        "coder",
        started["execution_id"],
        "plant.look",
    )
    directive = await agent.directive(LOOK)
    assert types(directive) == ["error"]
    assert directive["notifications"][0]["metadata"]["operation"] == "plant.look"
    assert "notifications" not in await agent.directive(LOOK)  # told once


@pytest.mark.req("AQL-X-12", "AQL-8.6.2-1")
@pytest.mark.parametrize(
    ("hint", "passes"),
    [
        ("calling plant.look at the roses", True),  # qualified
        ("calling plant__look at the roses", True),  # alias
        ("calling look at the roses", True),  # local
        ("calling LOOK at the roses", True),
        ('calling "look" at the roses', True),
        ("calling `look`, as planned", True),
        ("looking at the roses", False),
        ("calling plant.look_again at the roses", False),
    ],
)
async def test_a_grant_is_for_what_the_hint_names(here: AgentNode, hint: str, passes: bool) -> None:
    agent = here.agent(f"client:name-{hint}")
    await agent.start()
    directive = await agent.directive(hint)
    assert directive["continue"] is True
    assert any("names nothing" in factor for factor in directive["factors"]) is not passes
    if passes:
        await agent.passes()
    else:
        assert await agent.refusal() == "unreported_action"


@pytest.mark.req("AQL-8.6.2-1")
async def test_one_report_may_name_several_calls_each_once(here: AgentNode) -> None:
    agent = here.agent("client:several")
    await agent.start()
    await agent.directive("calling plant.look and then plant.nudge with care")
    await agent.passes("plant.nudge")
    await agent.passes("plant.look")
    assert await agent.refusal("plant.look") == "unreported_action"
    assert await agent.refusal("plant.nudge") == "unreported_action"


@pytest.mark.req("AQL-8.6.3-1")
async def test_resources_and_prompts_are_reported_too(here: AgentNode) -> None:
    agent = here.agent("client:kinds")
    await agent.start()
    for method, params in (("resources/read", {"uri": "plant://x"}), ("prompts/get", {"name": "x"})):
        error = await here.ask(method, params, who=agent.client).error()
        assert error["code"] in (32150, -32602)  # what is not there stays unknown


@pytest.mark.req("AQL-8.6.2-2", "AQL-8.6.2-4")
async def test_an_agent_starts_when_another_entity_agrees_each_time(here: AgentNode) -> None:
    agent = here.agent("client:starts", "careful")
    for _ in range(2):
        started = await agent.start(parameters={"goal": "weeds"})
        assert started["status"] == "pending"
        assert [one["type"] for one in started["notifications"]] == ["permission_pending"]
        (approval,) = here.waiting(agent.client)
        assert (approval.kind.value, approval.source.value, approval.id) == ("start", "aql", started["confirmation_id"])
        assert json.loads(bytes(approval.params or b"{}"))["parameters"] == {"goal": "weeds"}
        waiting = await agent.report(LOOK)
        assert waiting["status"] == "pending" and waiting["autonomy"]["continue"] is False
        assert types(waiting["autonomy"]) == ["permission_pending"] and "step" not in waiting
        assert await agent.refusal() == "paused"
        assert (await agent.confirm(here.shown(approval.id)))["confirmed"] is True
        running = await agent.report(LOOK)
        assert (running["status"], running["step"], types(running["autonomy"])) == ("running", 1, ["status"])
        await agent.complete()


@pytest.mark.req("AQL-8.6.2-3")
async def test_an_approved_start_approves_no_step(here: AgentNode) -> None:
    agent = here.agent("client:trusted", "careful")
    started = await agent.start()
    await agent.confirm(here.shown(started["confirmation_id"]))
    assert (await agent.directive("drop_table users"))["stopped"] is True


async def test_a_start_that_is_denied_or_left_alone_is_cancelled_and_says_why(here: AgentNode) -> None:
    agent = here.agent("client:denied", "careful")
    started = await agent.start()
    await here.node.calls.deciding.deny(started["confirmation_id"], by="operator:ada", reason="not on a Sunday")
    told = await agent.report(LOOK)
    assert told["status"] == "cancelled" and "not on a Sunday" in told["autonomy"]["reason"]
    await agent.passes()
    await agent.start()
    here.clock.ahead += 301
    told = await agent.report(LOOK)
    assert told["status"] == "cancelled" and "in time" in told["autonomy"]["reason"]


@pytest.mark.req("AQL-8.6.2-5", "AQL-8.4.2-2")
async def test_an_execution_ends_once(here: AgentNode) -> None:
    agent = here.agent("client:ends")
    await agent.start()
    done = await agent.complete(summary="weeded")
    assert (done["status"], done["result"]) == ("completed", {"summary": "weeded"})
    assert set(done) == {"execution_id", "status", "started_at", "finished_at", "result"}
    asked = ((agent.report(LOOK), "running"), (agent.complete(), "completed"), (agent.abort(), "cancelled"))
    for work, requested in asked:
        refused = await failed(work)
        assert refused.code == "CONFLICT_INVALID_STATE"
        told = {"execution_id": done["execution_id"], "status": "completed", "requested": requested}
        assert refused.details == told
    ended = here.loop.executions.find_last(("client:ends", 0), agent_key("client:ends", "coder"))
    assert ended is not None and ended.answer() == done  # nothing of it changed
    await agent.start()
    racing = await asyncio.gather(agent.complete(), agent.abort(), agent.complete(), return_exceptions=True)
    assert sum(isinstance(one, dict) for one in racing) == 1
    await agent.start()
    assert (await agent.abort(reason="rain"))["status"] == "cancelled"
    careful = here.agent("client:ends", "careful")
    started = await careful.start()
    assert (await careful.abort())["status"] == "cancelled"
    assert (await failed(careful.confirm("conf_unknown"))).code == "TOKEN_INVALID"
    await here.until(lambda: not here.waiting("client:ends"))
    assert here.codes.find_code(started["confirmation_id"]) is None
    await here.agent("client:ends").passes()


@pytest.mark.req("AQL-8.6.3-3")
async def test_a_report_belongs_to_a_running_execution_of_its_caller(here: AgentNode) -> None:
    agent, other = here.agent("client:mine"), here.agent("client:yours")
    await agent.start()
    refused = await failed(other.report(LOOK))
    assert (refused.code, refused.details) == (
        "NOT_FOUND_RESOURCE",
        {"resource_type": "execution", "resource_id": "coder"},
    )
    await other.passes()


ENOUGH = (  # the three printed examples, and the shortest
    "calling write_file on project/config.json to update database URL",
    "executing shell command: npm install express",
    "sending message to #general channel via Slack MCP server",
    "dig soon",
)


@pytest.mark.req("AQL-8.6.3-6")
@pytest.mark.parametrize("hint", ["", "   ", "look", "go on", "dig now", "weeding", "gardening", *ENOUGH])
async def test_a_hint_says_enough_to_be_judged(here: AgentNode, hint: str) -> None:
    agent = here.agent("client:hints")
    if here.loop.executions.by_owner.get(("client:hints", 0)) is None:
        await agent.start()
    if hint == "look" or hint in ENOUGH:  # the name of something to call will do
        assert "factors" in await agent.directive(hint)
        return
    refused = await failed(agent.report(hint))
    assert refused.code == "VALIDATION_INVALID_VALUE"
    assert refused.details is not None and "calling write_file" in refused.details["example"]
    long = await failed(agent.report("weed " * 3000))
    assert long.code == "VALIDATION_PAYLOAD_TOO_LARGE"


@pytest.mark.req("AQL-8.6.4-1")
async def test_concurrent_reports_are_judged_one_after_the_other(here: AgentNode) -> None:
    agent = here.agent("client:both", "short")
    await agent.start()
    answers = await asyncio.gather(*(agent.report(f"writing note number {at}") for at in range(3)))
    assert sorted(one["step"] for one in answers) == [1, 2, 3]
    assert sorted(one["autonomy"]["stepsRemaining"] for one in answers) == [0, 1, 2]


@pytest.mark.req("AQL-8.7.2-3", "AQL-8.7.2-2", "AQL-X-9", "AQL-X-12")
async def test_beyond_the_step_limit_a_person_lets_the_counter_begin_again(here: AgentNode) -> None:
    agent = here.agent("client:limit", "short")
    await agent.start()
    assert [(await agent.directive("writing a note"))["stepsRemaining"] for _ in range(3)] == [2, 1, 0]
    assert (await agent.directive("read_file notes.txt"))["continue"] is True  # a read does not count
    paused = await agent.directive("writing a note")
    assert (paused["continue"], paused["reason"], types(paused)) == (False, LIMIT_REASON, ["autonomy_pause"])
    assert await agent.refusal() == "paused"
    (approval,) = here.waiting(agent.client)
    assert approval.kind.value == "step"
    await agent.confirm(here.shown(approval.id))
    again = await agent.directive("writing a note")
    assert (again["continue"], again["stepsRemaining"], types(again)) == (True, 2, ["status", "status"])
    assert types(await agent.directive("writing a note")) == []  # told once


@pytest.mark.req("AQL-8.7.2-5", "AQL-8.7.2-15")
async def test_after_a_failed_step_a_person_is_asked(here: AgentNode) -> None:
    agent = here.agent("client:failed")
    await agent.start()
    for outcome in ("success", "skipped"):
        assert (await agent.directive(LOOK, outcome=outcome))["continue"] is True
    paused = await agent.directive(LOOK, outcome="failure")
    assert paused["continue"] is False
    assert paused["reason"].startswith("The previous step failed; tell your user")
    assert "after a failed step tell them before you try again" in INSTRUCTIONS  # what agents are told to keep to
    (approval,) = here.waiting(agent.client)
    await agent.confirm(here.shown(approval.id))
    await agent.passes()
    assert await agent.refusal() == "unreported_action"
    assert (await agent.directive(LOOK))["continue"] is True


async def test_steps_after_an_approved_failure_are_still_judged_by_their_real_names(here: AgentNode) -> None:
    agent = here.agent("client:judged")
    before = here.loop.plan
    here.loop.replan(SafetyPlan(mode="enforcing", preapproved=True, requires_approval=("plant.look",)))
    try:
        await agent.start()
        await agent.directive(LOOK, outcome="failure")
        (approval,) = here.waiting(agent.client)
        await agent.confirm(here.shown(approval.id))
        assert await agent.refusal() == "paused"
    finally:
        here.loop.replan(before)


@pytest.mark.req("AQL-8.6.4-3", "AQL-8.6.4-4", "AQL-8.7.2-7", "AQL-8.7.3-5", "AQL-8.7.2-2")
async def test_a_pause_is_cleared_by_a_person_and_grants_what_was_reported(here: AgentNode) -> None:
    agent = here.agent("client:paused")
    await agent.start()
    said = await agent.report("calling delete_user by way of plant.look")
    paused = said["autonomy"]
    assert (paused["continue"], "stopped" in paused, types(paused)) == (False, False, ["autonomy_pause"])
    (approval,) = here.waiting(agent.client)
    assert said["confirmation_id"] == approval.id and approval.id in paused["notifications"][0]["message"]
    assert paused["reason"].endswith(".") and paused["notifications"][0]["metadata"]["reason"] == paused["reason"]
    for hint in ("calling delete_user by way of plant.look", LOOK, "git push origin main"):
        again = await agent.directive(hint)
        assert again["continue"] is False and types(again) == ["autonomy_pause"]
        assert await agent.refusal() == "paused"
    assert here.waiting(agent.client) == [approval]
    await agent.confirm(here.shown(approval.id))
    await agent.passes()
    assert await agent.refusal() == "unreported_action"
    assert "autonomy_pause" not in types(await agent.directive(LOOK))


@pytest.mark.req("AQL-X-17")
async def test_a_person_who_is_asked_again_is_shown_the_first_report_and_decides_about_it(here: AgentNode) -> None:
    agent = here.agent("client:again")
    await agent.start()
    await agent.directive("git push origin main with plant.nudge")
    here.clock.ahead += 301
    await agent.directive("git push origin main with plant.look")
    (approval,) = here.waiting(agent.client)
    assert json.loads(bytes(approval.params or b"{}")) == {
        "element_name": "coder",
        "step": 1,
        "nextActionHint": "git push origin main with plant.nudge",
        "calls": ["plant.nudge"],
    }
    await agent.confirm(here.shown(approval.id))
    assert await agent.refusal() == "unreported_action"
    await agent.passes("plant.nudge")


@pytest.mark.req("AQL-X-17")
async def test_a_person_decides_about_the_call_itself_when_its_arguments_are_judged_more_strictly(
    here: AgentNode,
) -> None:
    agent = here.agent("client:arguments")
    await agent.start()

    async def question(**arguments: Any) -> Any:
        """What a person is asked after this call was refused."""
        assert await agent.refusal(**arguments) == "paused"
        await here.until(lambda: bool(here.waiting(agent.client)))
        (approval,) = here.waiting(agent.client)
        shown = json.loads(bytes(approval.params or b"{}"))
        assert (shown["calls"], shown["arguments"]) == (["plant.look"], arguments)
        return approval

    await agent.directive(LOOK)
    push = await question(command="git push", args=["origin", "main"])
    await agent.confirm(here.shown(push.id))
    assert await agent.refusal(command="git push", args=["origin", "other"]) == "unreported_action"
    await agent.passes(args=["origin", "main"], command="git push")  # the same call, in another order
    assert await agent.refusal(command="git push", args=["origin", "main"]) == "unreported_action"

    await agent.directive("git push origin main by plant.look")
    (asked,) = here.waiting(agent.client)
    await agent.confirm(here.shown(asked.id))
    await agent.passes(command="git push", args=["origin", "main"])  # the person has read what it runs
    await agent.directive("git push origin main by plant.look")
    (asked,) = here.waiting(agent.client)
    await agent.confirm(here.shown(asked.id))
    await agent.confirm(here.shown((await question(command="git push --all")).id))
    await agent.directive(LOOK)
    await agent.confirm(here.shown((await question(command="a" * 10_001)).id))  # too long to be judged
    await agent.directive(LOOK)
    await agent.passes(note="git push", lines=["drop_table users"])  # content, which nothing runs


@pytest.mark.req("AQL-8.6.4-3")
async def test_a_denied_step_gives_no_grant_and_the_agent_may_think_again(here: AgentNode) -> None:
    agent = here.agent("client:no")
    await agent.start()
    await agent.directive("git push origin main with plant.look")
    (approval,) = here.waiting(agent.client)
    assert (await agent.confirm(here.shown(approval.id), decision="deny"))["confirmed"] is False
    assert await agent.refusal() == "unreported_action"
    assert sorted(types(await agent.directive(LOOK))) == ["error", "status"]
    await agent.passes()


@pytest.mark.req("AQL-8.7.2-11", "AQL-8.7.1-1", "AQL-8.7.1-2", "AQL-8.7.1-3", "AQL-8.7.3-1", "AQL-8.7.3-2")
@pytest.mark.req("AQL-8.8.1-2")
async def test_each_tier_has_its_behaviour(here: AgentNode) -> None:
    expected = {
        "calling plant.look at the roses": ("advisory", True, None, [], []),
        "removing the dead roses": ("confirm", False, None, ["autonomy_pause"], ["step"]),
        "purging the compost heap": ("verify", False, None, ["autonomy_pause"], ["verify"]),
        "wiping the whole garden": ("danger_zone", False, True, ["danger_zone"], ["verify"]),
    }
    for number, (hint, (tier, goes_on, stopped, told, asked)) in enumerate(expected.items()):
        agent = here.agent(f"client:tier-{number}")
        await agent.start()
        directive = await agent.directive(hint)
        assert directive["nextStepRisk"] == tier and directive["factors"]
        assert (directive["continue"], directive.get("stopped"), types(directive)) == (goes_on, stopped, told)
        assert [one.kind.value for one in here.waiting(agent.client)] == asked


@pytest.mark.req("AQL-8.7.4-1", "AQL-8.7.2-2")
async def test_an_agent_has_its_own_policy_and_never_a_shorter_list_of_denials(here: AgentNode) -> None:
    agent = here.agent("client:policy", "other")
    await agent.start()
    assert "nextStepRisk" in await agent.directive("read_file notes.txt")  # its own autoApprove is empty
    for number, hint in enumerate(("prune_roses now", "git push origin main")):  # its own, and that of all
        asked = here.agent(f"client:policy-{number}", "other")
        await asked.start()
        paused = await asked.directive(hint)
        assert (paused["continue"], types(paused)) == (False, ["autonomy_pause"]) and "stopped" not in paused
    free = here.agent("client:policy3")
    await free.start()
    assert (await free.directive("prune_roses now"))["continue"] is True
    assert (await agent.directive("look_around here"))["stopped"] is True
    twin = here.agent("client:policy2", "other")
    await twin.start()
    assert (await twin.directive("drop_table users"))["stopped"] is True
    tolerances = [
        here.loop.policies.of(agent_key("client:policy", name)).policy.risk_tolerance for name in ("other", "coder")
    ]
    assert tolerances == ["aggressive", "moderate"]


@pytest.mark.req("AQL-X-3")
async def test_one_live_execution_per_agent(here: AgentNode) -> None:
    agent = here.agent("client:one")
    first = await agent.start()
    refused = await failed(agent.start())
    assert refused.code == "CONFLICT_INVALID_STATE" and refused.details is not None
    assert refused.details["execution_id"] == first["execution_id"]
    assert (await failed(here.agent("client:one", "CODER").start())).code == "CONFLICT_INVALID_STATE"
    await agent.directive("purging the compost heap")
    second = await agent.start()  # one that only waits for a code gives way
    assert second["status"] == "running" and second["execution_id"] != first["execution_id"]


@pytest.mark.req("AQL-X-3", "AQL-8.6.2-1")
async def test_agents_never_use_each_others_grants(here: AgentNode) -> None:
    one, two = here.agent("client:pair", "other"), here.agent("client:pair", "two")
    await one.start()
    await two.start()
    await one.directive(LOOK)
    await two.directive("calling plant.nudge with care")
    await one.passes()
    assert await two.refusal() == "unreported_action"
    await two.passes("plant.nudge")
    assert (await two.directive("drop_table users"))["stopped"] is True
    assert "danger_zone" in types(await one.directive(LOOK))
    await one.passes()  # the block stops no agent that the operator has declared
    assert await two.refusal() == "agent_blocked"


@pytest.mark.req("AQL-8.6.1-2")
async def test_a_required_client_acts_only_inside_an_execution(here: AgentNode) -> None:
    agent = here.agent("client:required")
    assert await agent.refusal() == "execution_required"
    await agent.start()
    await agent.directive(LOOK)
    await agent.passes()
    await here.agent("client:free").passes()
    assert not here.loop.executions.by_owner.get(("client:free", 0))


@pytest.mark.req("AQL-8.6.4-3", "AQL-8.6.4-6", "AQL-8.7.1-2", "AQL-X-9")
async def test_monitoring_judges_and_stops_nothing(here: AgentNode) -> None:
    agent = here.agent("client:monitored", "short")
    before = here.loop.plan
    here.loop.replan(SafetyPlan(mode="monitoring", agents=before.agents))
    try:
        await agent.start()
        seen = here.loop.evaluations
        for hint, more in (
            ("drop_table users", {}),
            ("wiping the whole garden", {}),
            ("purging the compost", {}),
            (LOOK, {"outcome": "failure"}),
            ("writing a note", {}),
        ):
            directive = await agent.directive(hint, **more)
            assert (directive["continue"], "stopped" in directive, types(directive)) == (True, False, [])
            assert any("would have" in factor for factor in directive["factors"])
        assert here.loop.evaluations == seen + 5
        await agent.passes()
        assert here.waiting(agent.client) == [] and here.loop.blocks.of_principal(agent.client) == []
        assert here.node.calls.safety.watch.is_needed is False
        held = await agent.call("plant.fire").result()  # the other checks of the guard judge as ever
        assert held["structuredContent"]["status"] == "confirmation_required"
    finally:
        here.loop.replan(before)
    assert "status" in types(await agent.directive(LOOK))  # the mode is another
    assert "status" not in types(await agent.directive(LOOK))
    paused = here.agent("client:monitored-later")
    await paused.start()
    assert (await paused.directive("git push origin main"))["continue"] is False
    assert await paused.refusal() == "paused"
    here.loop.replan(SafetyPlan(mode="monitoring", agents=before.agents))
    try:
        assert (await paused.directive(LOOK))["continue"] is True
        await paused.passes()
    finally:
        here.loop.replan(before)
    stopped = here.agent("client:monitored-no-more")
    await stopped.start()
    assert (await stopped.directive("drop_table users"))["stopped"] is True
    assert await stopped.refusal() == "agent_blocked"


@pytest.mark.req("AQL-8.6.4-7", "AQL-8.7.1-2")
async def test_logging_records_and_judges_nothing(here: AgentNode) -> None:
    agent = here.agent("client:logged")
    before = here.loop.plan
    here.loop.replan(SafetyPlan(mode="logging"))
    try:
        await agent.start()
        seen = here.loop.evaluations
        directive = await agent.directive("drop_table users", stepDescription="I looked", findings="a table")
        assert json.loads(json.dumps(directive)) == {"continue": True, "factors": ["Logging mode: not evaluated"]}
        assert here.loop.evaluations == seen
        await agent.passes()
    finally:
        here.loop.replan(before)
    (record,) = [one for one in await here.audited("agents/step") if one["who"] == agent.client]
    assert (record["hint"], record["description"], record["findings"]) == ("drop_table users", "I looked", "a table")


@pytest.mark.req("AQL-X-3")
async def test_clients_that_cannot_be_distinguished_are_asked_for_a_token(here: AgentNode) -> None:
    refused = await failed(here.agent("local").start())
    assert refused.code == "PERMISSION_DENIED" and refused.details is not None
    assert refused.details["reason"] == "named_credential_required"


async def test_a_silent_agent_has_failed_after_a_while(here: AgentNode) -> None:
    agent = here.agent("client:silent")
    await agent.start()
    here.clock.ahead += 1801
    here.loop.fail_idle()
    execution = here.loop.executions.find_last(("client:silent", 0), here.loop.executions.all()[-1].agent)
    assert execution is not None
    answer = execution.answer()
    assert answer["status"] == "failed" and answer["error"]["code"] == "INTERNAL_ERROR"


async def test_the_configuration_says_when_executions_have_failed_and_are_forgotten(tmp_path: Path) -> None:
    async with agent_node(tmp_path, f"[aql]\nexecution_idle_s = 60\nexecution_keep_s = 120\n{ENFORCING}") as here:
        agent = here.agent("client:silent")
        await agent.start()
        (execution,) = here.loop.executions.live()
        here.clock.ahead += 61
        here.loop.fail_idle()
        assert execution.answer()["status"] == "failed"
        assert here.loop.executions.find(execution.id) is execution
        here.clock.ahead += 121
        assert here.loop.executions.find(execution.id) is None


async def test_the_state_of_the_check_is_explained(here: AgentNode, tmp_path: Path) -> None:
    guard = here.node.calls.dispatch.guard
    (check,) = [check for check in guard.checks if check.number == 5]
    route = here.node.calls.catalog.namespace.link_items[0].tools[0]
    verdict = check.explain(route, here.caller("client:required").principal)
    assert verdict.verdict in ("refuse", "later")
    here.loop.replan(here.loop.plan)
