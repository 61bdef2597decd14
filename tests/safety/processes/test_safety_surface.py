"""The safety loop as clients meet it: on the AQL surfaces, on the flat one, alone; and every byte they get."""

import base64
import json
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.safety.agent_lines import PLACED, Lines
from tests.safety.agents import LOOK, AgentNode, agent_node
from tests.servers.start import raw

from interlock.aql.loop_operations import DECLARATIONS
from interlock.config.plan import SafetyPlan
from interlock.safety.codes import plain_code

pytestmark = pytest.mark.asyncio(loop_scope="module")

RAW = f"[servers.raw]\ncommand = {json.dumps(raw('resources,prompts'))}\n"
ON = '[gate]\nmode = "open"\n[safety]\nmode = "enforcing"\npreapproved = true\n'


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AgentNode]:
    async with agent_node(tmp_path_factory.mktemp("surface"), ON + RAW) as found:
        yield found


@pytest.fixture
def mode(here: AgentNode) -> Any:
    before = here.loop.plan
    yield here.loop.replan
    here.loop.replan(before)


@pytest.mark.req("AQL-8.5.4-2", "AQL-8.6.1-3", "AQL-8.7.4-2", "AQL-8.7.2-4", "AQL-8.7.1-3", "AQL-8.7.3-2")
@pytest.mark.req("AQL-C.intro-10", "AQL-8.7.2-15")
async def test_introspection_shows_the_loop_and_where_its_operations_belong(here: AgentNode) -> None:
    client = await Lines(here, "aql").greet()
    listed = await client.introspect(query="operations", first=100)
    assert listed["_protocol"]["capabilities"]["execution_safety_loop"] == "enforcing"
    assert listed["_protocol"]["safety"] == {
        "mode": "enforcing",
        "max_autonomous_steps": 25,
        "risk_tolerance": "moderate",
        "stages": ["limit", "outcome", "patterns", "risk", "tolerance"],
        "patterns": {"deny": 3, "requires_approval": 4, "auto_approve": 4},
    }
    assert "drop_" not in client.received.decode()
    for declaration in DECLARATIONS:
        details = (await client.introspect(query="operations", name=declaration.name))["operation"]
        assert details["endpoint"] == PLACED[declaration.name]
        assert details["semantic_category"] == PLACED[declaration.name].upper()
        other = "read" if PLACED[declaration.name] != "read" else "create"
        refused = await client.do(declaration.name, family=other)
        assert refused["error"]["code"] == "VALIDATION_ENDPOINT_MISMATCH"
    names = [one["name"] for one in (await client.introspect(query="types"))["types"]]
    assert {"SafetyTier", "NotificationType", "AutonomyDirective", "AgentNotification"} <= set(names)
    assert "after a failed step tell them before you try again" in client.greeting["instructions"]
    for name, values in (
        ("SafetyTier", ["advisory", "confirm", "verify", "danger_zone"]),
        ("NotificationType", ["permission_pending", "autonomy_pause", "danger_zone", "status", "error"]),
    ):
        assert (await client.introspect(query="types", name=name))["type"]["values"] == values


@pytest.mark.req("AQL-8.6.5-1")
async def test_the_rule_is_shown_to_agents(here: AgentNode) -> None:
    client = await Lines(here, "aql").greet()
    rule = "report every action before you take it"
    tools = {one["name"]: one for one in (await client.request("tools/list", {}))["result"]["tools"]}
    assert rule in client.greeting["instructions"] and rule in tools["mcp_aql_create"]["description"]
    assert "tell them before you try again" in client.greeting["instructions"]
    page = Path(__file__).parents[3] / "docs" / "safety-loop.md"
    assert "cannot be seen" in page.read_text()


@pytest.mark.req("AQL-8.6.3-3", "AQL-8.6.3-4", "AQL-8.6.3-5", "AQL-8.6.3-6", "AQL-8.6.3-7", "AQL-4.3-1")
async def test_reports_have_the_parameters_of_the_table(here: AgentNode) -> None:
    client = await Lines(here, "aql").greet()
    await client.do("execute_agent", element_name="coder")
    said = {"element_name": "coder", "nextActionHint": LOOK}
    assert (await client.step(stepDescription="I looked", outcome="skipped", findings="roses"))["continue"] is True
    missing = (await client.do("record_execution_step"))["error"]
    assert missing["code"] == "VALIDATION_MISSING_PARAM"
    assert missing["details"]["missing_params"] == ["element_name", "nextActionHint"]
    unknown = (await client.do("record_execution_step", **said, step_description="x"))["error"]
    assert unknown["code"] == "VALIDATION_UNKNOWN_PARAM"
    assert unknown["details"]["did_you_mean"] == {"step_description": "stepDescription"}
    wrong = (await client.do("record_execution_step", **said, outcome="maybe"))["error"]
    assert wrong["code"] == "VALIDATION_INVALID_VALUE"
    assert all(word in json.dumps(wrong) for word in ("success", "failure", "skipped"))
    typed = (await client.do("record_execution_step", **said, findings={"a": 1}))["error"]
    assert typed["code"] == "VALIDATION_INVALID_TYPE"
    details = (await client.introspect(query="operations", name="record_execution_step"))["operation"]
    (outcome,) = [one for one in details["parameters"] if one["name"] == "outcome"]
    assert outcome["enum"] == ["success", "failure", "skipped"]
    for one in (await client.introspect(query="operations", first=100))["operations"]:
        shown = (await client.introspect(query="operations", name=one["name"]))["operation"]
        names = {parameter["name"] for parameter in shown["parameters"]} - {"stepDescription", "nextActionHint"}
        assert all(re.fullmatch("[a-z][a-z0-9_]*", name) for name in names), (one["name"], names)
    code = (await client.introspect(query="operations", name="verify_challenge"))["operation"]["parameters"][1]
    assert code["sensitive"] is True
    records = [one for one in await here.audited("agents/step") if one.get("findings") == "roses"]
    assert [(one["description"], one["step_outcome"]) for one in records] == [("I looked", "skipped")]


@pytest.mark.req("AQL-8.6.2-1", "AQL-8.6.2-4", "AQL-X-12")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_operations_pass_once_each_as_they_were_reported(here: AgentNode, era: str) -> None:
    client = Lines(here, "aql")
    if era == "legacy":
        await client.greet()
    await client.do("execute_agent", element_name="coder")
    refused = (await client.do("plant__look"))["error"]
    assert (refused["code"], refused["details"]["reason"]) == ("PERMISSION_DENIED", "unreported_action")
    assert (await client.introspect(query="types"))["types"]  # which acts on nothing
    assert (await client.step("calling plant__look at the roses"))["continue"] is True  # the operation's name
    assert (await client.do("plant__look"))["success"] is True
    assert (await client.do("plant__look"))["success"] is False
    await client.step("calling plant__look and plant__nudge in one batch")
    batch = {"operations": [{"operation": "plant__look"}, {"operation": "plant__nudge"}, {"operation": "plant__look"}]}
    answer = await client.send("mcp_aql_execute", batch)
    assert [one["result"]["success"] for one in answer["results"]] in ([True, True, False], [False, True, False])
    await client.do("complete_execution", element_name="coder")
    assert (await client.do("plant__look"))["success"] is True


@pytest.mark.req("AQL-8.6.7-1", "AQL-8.6.5-1", "AQL-8.6.1-1")
async def test_a_loop_that_is_off_is_unavailable_and_says_so(tmp_path: Path) -> None:
    async with agent_node(tmp_path, '[gate]\nmode = "open"\n') as here:
        client = await Lines(here, "aql").greet()
        listed = await client.introspect(query="operations", first=100)
        assert listed["_protocol"]["capabilities"]["execution_safety_loop"] == "disabled"
        assert "safety" not in listed["_protocol"]
        assert "report every action" not in str([client.greeting, await client.request("tools/list", {})])
        assert not {one["name"] for one in listed["operations"]} & set(PLACED)
        for name in PLACED:
            refused = (await client.do(name))["error"]
            assert refused["code"] == "NOT_FOUND_OPERATION" and "disabled" in refused["message"]
        assert (await client.do("plant__look"))["success"] is True
        assert here.loop.evaluations == 0


@pytest.mark.req("AQL-8.6.1-4", "AQL-8.6.7-2")
async def test_the_capability_follows_the_mode(here: AgentNode, mode: Any) -> None:
    client = await Lines(here, "aql").greet()
    for word in ("monitoring", "logging", "disabled", "enforcing"):
        mode(SafetyPlan(mode=word))
        listed = await client.introspect(query="operations", first=1)
        assert listed["_protocol"]["capabilities"]["execution_safety_loop"] == word


@pytest.mark.req("AQL-8.6.6-1", "AQL-8.7.3-8")
async def test_the_loop_alone_serves_seven_operations_and_judges_foreign_actions(here: AgentNode) -> None:
    client = await Lines(here, "safety").greet()
    tools = [one["name"] for one in (await client.request("tools/list", {}))["result"]["tools"]]
    assert tools == ["mcp_aql_create", "mcp_aql_read", "mcp_aql_execute"]
    listed = (await client.introspect(query="operations"))["operations"]
    assert {one["name"] for one in listed} == {"introspect", *PLACED} - {"get_execution"} and len(listed) == 7
    assert (await client.do("plant__look"))["error"]["code"] == "NOT_FOUND_OPERATION"
    await client.do("execute_agent", element_name="coder")
    assert (await client.step("executing shell command: npm install express"))["continue"] is True
    assert (await client.step("executing shell command: rm -rf /var"))["stopped"] is True
    (block,) = [one for one in here.loop.blocks.of_principal("local") if one.name == "coder"]
    code = here.shown(block.challenge_id)
    assert (await client.do("verify_challenge", challenge_id=block.challenge_id, code=code))["data"]["verified"] is True
    assert b'"method"' not in client.received  # nothing of it is pushed


@pytest.mark.req("AQL-X-2")
async def test_an_agent_of_the_loop_alone_learns_of_its_approval_by_reporting(here: AgentNode, mode: Any) -> None:
    client = await Lines(here, "safety").greet()
    mode(SafetyPlan(mode="enforcing"))
    for decision in ("approve", "deny"):
        started = (await client.do("execute_agent", element_name="coder"))["data"]
        assert started["status"] == "pending"
        said = (await client.do("record_execution_step", element_name="coder", nextActionHint=LOOK))["data"]
        assert (said["status"], said["autonomy"]["continue"], "step" in said) == ("pending", False, False)
        token = here.shown(started["confirmation_id"])
        await client.do("confirm_operation", confirmation_token=token, decision=decision)
        said = (await client.do("record_execution_step", element_name="coder", nextActionHint=LOOK))["data"]
        if decision == "approve":
            assert (said["status"], said["step"], said["autonomy"]["continue"]) == ("running", 1, True)
            await client.do("complete_execution", element_name="coder")
        else:
            assert (said["status"], said["autonomy"]["continue"]) == ("cancelled", False)
            assert "denied" in said["autonomy"]["reason"]
    for word in ("monitoring", "logging"):
        mode(SafetyPlan(mode=word))
        assert (await client.do("execute_agent", element_name=word))["data"]["status"] == "running"


@pytest.mark.req("AQL-X-3")
async def test_executions_belong_to_a_session_and_end_with_it(here: AgentNode) -> None:
    one, two = await Lines(here, "aql").greet(), await Lines(here, "aql").greet()
    for client in (one, two):
        assert (await client.do("execute_agent", element_name="coder"))["data"]["status"] == "running"
    again = (await two.do("execute_agent", element_name="coder"))["error"]
    assert again["code"] == "CONFLICT_INVALID_STATE"
    await one.step("calling plant__look at the roses")
    assert (await two.do("plant__look"))["error"]["details"]["reason"] == "unreported_action"
    assert (await one.do("plant__look"))["success"] is True
    mine = [execution for execution in here.loop.executions.live() if execution.agent.principal == "local"]
    one.leave()
    (ended,) = [execution for execution in mine if not execution.is_live]
    assert (ended.status.value, ended.answer()["finished_at"] != "") == ("cancelled", True)
    assert "error" not in ended.answer()
    lost = await Lines(here, "aql").greet()
    await lost.do("execute_agent", element_name="coder")
    session = next(reversed(here.node.fronts.sessions.by_id.values()))
    here.node.fronts.sessions.close(session, "idle")
    failed = here.loop.executions.all()[-1].answer()
    assert (failed["status"], failed["error"]["code"]) == ("failed", "INTERNAL_ERROR")


@pytest.mark.req("AQL-8.6.3-1", "AQL-8.6.2-1")
async def test_every_way_to_act_is_reported(here: AgentNode) -> None:
    agent = here.agent("client:ways")
    (uri, *_) = [one["uri"] for one in (await here.ask("resources/list", {}, who=agent.client).result())["resources"]]
    await agent.start()
    asked = (
        ("tools/call", {"name": "plant.look", "arguments": {}}, "calling plant.look at the roses"),
        ("resources/read", {"uri": uri}, f"reading the resource {uri} once"),
        (
            "prompts/get",
            {"name": "raw.greet", "arguments": {"who": "you"}},
            "fetching the prompt raw.greet now",
        ),
    )
    for method, params, hint in asked:
        error = await here.ask(method, params, who=agent.client).error()
        assert (error["code"], error["data"]["reason"]) == (32150, "unreported_action"), method
        assert (await agent.directive(hint))["continue"] is True
        await here.ask(method, params, who=agent.client).result()
        assert await here.ask(method, params, who=agent.client).reason() == "unreported_action"
    ref = {"ref": {"type": "ref/prompt", "name": "raw.greet"}, "argument": {"name": "who", "value": "y"}}
    completed = await here.ask("completion/complete", ref, who=agent.client).message()  # which acts on nothing
    assert completed.get("error", {}).get("code") != 32150
    foreign = await agent.directive("executing shell command: rm -rf /var on the laptop")
    assert foreign["stopped"] is True  # judged alike, though nobody here can see it happen


@pytest.mark.req("AQL-8.8.4-1")
async def test_no_byte_that_an_agent_gets_and_no_log_holds_a_code(
    here: AgentNode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secrets: list[str] = []
    clients = [await Lines(here, surface).greet() for surface in ("aql", "safety")]
    clients += [Lines(here, "aql")]
    for number, client in enumerate(clients):
        name = f"leaky{number}"

        async def step(hint: str, client: Lines = client, name: str = name) -> Any:
            return await client.do("record_execution_step", element_name=name, nextActionHint=hint)

        await client.do("execute_agent", element_name=name)
        await step("git push origin main")
        secrets += [here.shown(one.id) for one in here.waiting("local")]
        (approval,) = [one for one in here.waiting("local") if one.agent == name]
        await client.do("confirm_operation", confirmation_token=approval.id)
        await client.do("confirm_operation", confirmation_token=here.shown(approval.id))
        await step("purging the compost heap")
        (approval,) = [one for one in here.waiting("local") if one.agent == name]
        secrets.append(here.shown(approval.id))
        await client.do("verify_challenge", challenge_id=approval.id, code=secrets[-1])
        await step("drop_table users")
        (block,) = [one for one in here.loop.blocks.all() if one.name == name]
        secrets.append(here.shown(block.challenge_id))
        await client.do("verify_challenge", challenge_id=block.challenge_id, code="WRONG")
        await client.do("verify_challenge", challenge_id=block.challenge_id, code=secrets[-1])
        fresh = await here.loop.order_challenge(block.agent)
        assert fresh is not None
        secrets.append(here.shown(fresh.challenge_id))
        answer = await client.do("verify_challenge", challenge_id=fresh.challenge_id, code=secrets[-1])
        assert answer["data"]["verified"] is True
        await step(LOOK)
        await client.request("tools/list", {})
    await here.node.stores.recorder.flush()
    audit = b"".join(record.data for record in await here.node.stores.audit.read(0, 100_000))
    everything = b"".join(client.received for client in clients) + caplog.text.encode() + audit
    assert len(secrets) >= 9
    for secret in secrets:
        plain = plain_code(secret)
        for form in (secret, plain, plain.lower(), plain.encode().hex(), base64.b64encode(plain.encode()).decode()):
            assert form.encode() not in everything
