"""Can anybody but a person who saw the code let a blocked agent go on?"""

import asyncio
import base64
import hmac
import inspect
import json
import logging
import os
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import RFC_4122, UUID

import pytest
import pytest_asyncio
from msgspec import Raw
from tests.gate.held_calls import ADA, anchor
from tests.safety.agent_lines import Lines
from tests.safety.agents import ENFORCING, LOOK, Agent, AgentNode, agent_node, failed
from tests.servers.minting import mint
from tests.support.node_with_clock import AheadClock

from interlock.approvals import inbox as inbox_module
from interlock.approvals import notifier
from interlock.approvals.api import RevealCode
from interlock.approvals.notifier import DesktopChannel, Notice
from interlock.approvals.protocol.approval import Status
from interlock.approvals.protocol.digests import REVEAL, signed_digest
from interlock.config.plan import SafetyPlan
from interlock.gate.protocol.held_call import Presented
from interlock.safety import codes
from interlock.safety.agents import BUCKET
from interlock.safety.api import NameAgent
from interlock.safety.parts import AgentParts
from interlock.store.ports import Damaged
from interlock.wire.jsonrpc.codec import Notification
from interlock.wire.refusal import NotFound, Refused

pytestmark = pytest.mark.asyncio(loop_scope="module")

DENIED = "drop_table users"
RISKY = "purging the compost with plant.look"
WRONG = "0" * 26


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AgentNode]:
    extra = f"{ENFORCING}[safety.agents.declared]\nrisk_tolerance = 'moderate'\n"
    async with agent_node(tmp_path_factory.mktemp("agents"), extra) as found:
        yield found


async def blocked(here: AgentNode, client: str, name: str = "coder") -> tuple[Agent, str]:
    agent = here.agent(client, name)
    await agent.start()
    directive = await agent.directive(DENIED)
    assert directive["stopped"] is True
    (notice,) = [one for one in directive["notifications"] if one["metadata"].get("verificationId") is not None][-1:]
    return agent, notice["metadata"]["verificationId"]


def wall(here: AgentNode) -> float:
    return here.clock.wall()


async def prove(here: AgentNode, id: str, answer: str | None = None) -> Presented:
    approval = here.inbox.get(id)
    assert approval is not None
    now = wall(here)
    claims = {
        "iss": "ada",
        "aud": here.node.stores.identity.aggregator_id,
        "jti": str(random.random()),
        "iat": now,
        "exp": now + 300,
        "confirmation_id": id,
        "call_digest": signed_digest(approval, answer),
    }
    return Presented(type="operator_signature", token=mint(ADA, claims, typ="mcpax-confirm+jwt"))


@pytest.mark.req("AQL-8.8.2-5", "AQL-8.6.4-5", "AQL-8.8.3-2", "AQL-8.8-1", "AQL-8.8.3-4", "AQL-8.8.2-8")
async def test_a_blocked_agent_does_nothing_until_the_code_is_given(here: AgentNode) -> None:
    agent, id = await blocked(here, "client:v1")
    (execution,) = here.loop.executions.live_of(here.loop.blocks.of_principal("client:v1")[0].agent)
    state = execution.answer()
    for work in (agent.start(), agent.report(LOOK), agent.complete(), agent.abort()):
        refused = await failed(work)
        assert refused.code == "PERMISSION_DENIED" and refused.details is not None
        assert (refused.details["reason"], refused.details["element_name"]) == ("agent_blocked", "coder")
        assert refused.details["verification_id"] == id
    assert execution.answer() == state
    told = (await failed(agent.report(LOOK))).details
    assert told is not None and (told["autonomy"]["continue"], told["autonomy"]["stopped"]) == (False, True)
    error = await agent.call().error()
    assert (error["data"]["reason"], error["data"]["verification_id"]) == ("agent_blocked", id)
    assert error["data"]["element_name"] == "coder"
    written = here.shown(id).lower().replace("-", " ")
    answer = await agent.verify(id, written)
    assert answer == {"verified": True, "element_name": "coder", "status": "running"}
    assert (await failed(agent.verify(id, written))).code == "TOKEN_ALREADY_USED"
    assert "stopped" not in await agent.directive(LOOK)
    await agent.passes()
    assert await agent.refusal() == "unreported_action"  # as ever


async def test_nothing_of_a_blocked_agents_client_passes_beside_calls(here: AgentNode) -> None:
    await blocked(here, "client:n1")
    inside = here.agent("client:n2")
    await inside.start()
    for who in ("client:n1", "client:n2", "client:n3"):
        notified = Notification("notifications/com.example/did", Raw(b'{"by":"%b"}' % who.encode()))
        here.node.fronts.modern.pass_on(here.caller(who), notified)
    (passed,) = await here.audited("notifications/com.example/did")
    assert "client:n3" in json.dumps(passed)
    await inside.abort()


@pytest.mark.req("AQL-8.8.2-6", "AQL-8.8-1")
async def test_a_wrong_code_makes_the_right_code_invalid(here: AgentNode) -> None:
    agent, id = await blocked(here, "client:v2")
    code = here.shown(id)
    wrong = await failed(agent.verify(id, WRONG))
    assert wrong.code == "TOKEN_INVALID" and WRONG not in str(wrong)
    assert (await failed(agent.verify(id, code))).code == "TOKEN_ALREADY_USED"
    refused = (await failed(agent.report(LOOK))).details
    assert refused is not None and refused["verification_id"] == id  # at most one in 60 s
    here.clock.ahead += 61
    refused = (await failed(agent.report(LOOK))).details
    assert refused is not None and (fresh := refused["verification_id"]) != id
    assert (await failed(agent.report(LOOK))).details is not None
    assert [one.id for one in here.waiting(agent.client)] == [fresh]
    assert (await agent.verify(fresh, here.shown(fresh)))["verified"] is True
    await here.agent("client:v2").directive(LOOK)


@pytest.mark.req("AQL-8.8.2-7", "AQL-8.8.2-8")
async def test_a_challenge_expires_and_counts_as_failed(here: AgentNode) -> None:
    agent, id = await blocked(here, "client:v3")
    code = here.shown(id)
    (approval,) = here.waiting(agent.client)
    assert approval.expires_at == pytest.approx(approval.created_at + here.inbox.rules.expiry_s, abs=1.0)
    assert here.inbox.rules.expiry_s == 300
    here.clock.ahead += 299
    assert here.loop.challenges.is_waiting(id)
    here.clock.ahead += 2
    expired = await failed(agent.verify(id, code))
    assert expired.code == "TOKEN_EXPIRED"
    assert expired.details is not None
    assert (expired.details["challenge_id"], set(expired.details)) == (
        id,
        {"challenge_id", "expired_at", "current_time"},
    )
    assert expired.details["expired_at"] < expired.details["current_time"]
    assert here.loop.blocks.of_principal(agent.client)
    records = [one for one in await here.audited("agents/verify") if one["who"] == agent.client]
    assert [(one["outcome"], one["reason"], one["approval"]) for one in records] == [("failed", "TOKEN_EXPIRED", id)]
    assert here.node.calls.safety.attempts.count(here.loop.blocks.of_principal(agent.client)[0].agent.stored) == 1


@pytest.mark.req("AQL-8.8.2-8")
async def test_a_challenge_that_ended_and_was_forgotten_unblocks_nobody(
    here: AgentNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, id = await blocked(here, "client:v3f")
    code = here.shown(id)
    here.clock.ahead += 301
    monkeypatch.setattr(inbox_module, "ENDED_MAX", 0)  # as when very many ended since
    await here.inbox.sweep()
    assert here.inbox.get(id) is None
    assert (await failed(agent.verify(id, code))).code == "TOKEN_ALREADY_USED"
    (block,) = here.loop.blocks.of_principal(agent.client)
    assert here.node.calls.safety.attempts.count(block.agent.stored) == 1


@pytest.mark.req("AQL-8.8.2-5")
async def test_a_code_is_compared_in_constant_time_however_a_person_writes_it(
    here: AgentNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, id = await blocked(here, "client:v3t")
    compared: list[tuple[str, str]] = []
    compare = hmac.compare_digest

    def note(one: str, other: str) -> bool:
        compared.append((one, other))
        return compare(one, other)

    monkeypatch.setattr(codes.hmac, "compare_digest", note)
    evaluated = here.loop.evaluations
    code = here.shown(id)
    assert "-" in code
    assert (await agent.verify(id, f" {code[:3].lower()}-{code[3:]}\t"))["verified"] is True
    ((given, kept),) = compared
    assert given == kept and len(given) == 64 and codes.plain_code(code) not in given  # hashes, all of one length
    await agent.directive(LOOK)
    assert here.loop.evaluations == evaluated + 1


@pytest.mark.req("AQL-8.8.3-6", "AQL-8.7.3-6", "AQL-8.8.1-3", "AQL-8.8.2-4", "AQL-8.6.4-3", "AQL-8.8.3-4")
async def test_a_verify_pause_names_its_challenge_and_creates_no_second_challenge(here: AgentNode) -> None:
    agent = here.agent("client:v4")
    other = here.agent("client:v4", "declared")
    await agent.start()
    await other.start()
    paused = await agent.directive(RISKY)
    assert paused["continue"] is False and "stopped" not in paused
    (notice,) = paused["notifications"]
    id = notice["metadata"]["verificationId"]
    assert (notice["type"], [one.id for one in here.waiting(agent.client)]) == ("autonomy_pause", [id])
    again = await agent.directive(LOOK)
    assert id in again["reason"] and len(here.waiting(agent.client)) == 1
    assert "notifications" not in await other.directive("calling plant.nudge with care")
    assert await agent.refusal() == "unreported_action"  # the other agent is not paused
    await agent.verify(id, here.shown(id))
    await agent.passes()  # what was reported and verified
    assert "autonomy_pause" not in [one["type"] for one in (await agent.directive(LOOK)).get("notifications", [])]


@pytest.mark.req("AQL-8.8.3-8", "AQL-8.8.3-7", "AQL-8.7.3-6", "AQL-8.6.4-3")
async def test_a_verify_pause_ends_with_its_challenge(here: AgentNode) -> None:
    agent = here.agent("client:v5")
    await agent.start()
    first = (await agent.directive(RISKY))["notifications"][0]["metadata"]["verificationId"]
    here.clock.ahead += 301
    again = await agent.directive(RISKY)
    pauses = [one for one in again["notifications"] if one["type"] == "autonomy_pause"]
    assert len(pauses) == 1 and pauses[0]["metadata"]["verificationId"] != first
    here.clock.ahead += 301
    assert (await agent.directive(LOOK))["continue"] is True
    await agent.passes()
    again = (await agent.directive(RISKY))["notifications"][-1]["metadata"]["verificationId"]
    await failed(agent.verify(again, WRONG))  # its challenge is over, and the pause is not
    assert (await agent.directive(LOOK))["continue"] is False
    assert await agent.refusal() == "paused"
    assert (await agent.start())["status"] == "running"  # a pause does not stop a new execution


@pytest.mark.req("AQL-8.8.3-5")
async def test_another_name_is_no_way_around_a_block(here: AgentNode) -> None:
    agent, id = await blocked(here, "client:v6")
    for name in ("coder", "CODER", "c\u043eder", "somebody else"):
        refused = await failed(here.agent(agent.client, name).start())
        assert refused.code == "PERMISSION_DENIED" and refused.details is not None
        assert (refused.details["reason"], refused.details["verification_id"]) == ("agent_blocked", id)
    assert (await failed(here.agent(agent.client, "co\u200bder").start())).code == "VALIDATION_INVALID_VALUE"
    declared = here.agent(agent.client, "declared")
    await declared.start()
    await declared.directive(LOOK)
    await declared.passes()
    assert await agent.refusal() == "agent_blocked"
    await here.agent("client:v6-other", "coder").start()


@pytest.mark.req("AQL-8.8.3-5")
async def test_an_agent_that_was_started_before_the_block_is_no_way_around_it(here: AgentNode) -> None:
    earlier, declared = here.agent("client:v6b", "helper"), here.agent("client:v6b", "declared")
    other = here.agent("client:v6b-other", "helper")
    for agent, tool in ((earlier, "plant.look"), (declared, "plant.nudge"), (other, "plant.look")):
        await agent.start()
        await agent.directive(f"calling {tool} with care")
    _, id = await blocked(here, "client:v6b")
    assert await earlier.refusal() == "agent_blocked"  # although it was reported before
    for work in (earlier.report(LOOK), earlier.complete(), earlier.abort()):
        refused = await failed(work)
        assert refused.details is not None
        assert (refused.details["reason"], refused.details["verification_id"]) == ("agent_blocked", id)
    await declared.passes("plant.nudge")
    await other.passes()
    assert (await earlier.verify(id, here.shown(id)))["verified"] is True
    await earlier.passes()


@pytest.mark.req("AQL-8.7.3-7", "AQL-8.8.1-2", "AQL-8.7.3-8", "AQL-8.8.2-4")
async def test_every_running_agent_learns_of_a_block_and_of_nothing_else(
    here: AgentNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [here.agent("client:v7-b"), here.agent("client:v7-a", "declared")]
    at = here.clock.wall()
    with monkeypatch.context() as still:  # also of one at the very time of their start
        still.setattr(here.clock, "wall", lambda: at)
        for other in others:
            await other.start()
        agent, id = await blocked(here, "client:v7-a")
    foreign, own = [(await other.directive(LOOK))["notifications"][-1] for other in others]
    for notice in (foreign, own):
        assert (notice["type"], notice["metadata"]["verificationId"]) == ("danger_zone", id)
    assert foreign["message"] == "An agent is blocked." and set(foreign["metadata"]) == {"verificationId"}
    await agent.verify(id, here.shown(id))
    for other in others:
        notices = (await other.directive(LOOK)).get("notifications", [])
        assert id not in [one["metadata"].get("verificationId") for one in notices if one["type"] == "danger_zone"]


@pytest.mark.req("AQL-8.8.5-1", "AQL-8.8.5-2", "AQL-8.8.5-4")
async def test_codes_cannot_be_guessed_in_numbers(here: AgentNode) -> None:
    agent, id = await blocked(here, "client:v8")
    code = here.shown(id)
    for number in range(10):
        refused = await failed(agent.verify(id, f"{number:026}" if number else WRONG))
        assert refused.code == ("TOKEN_ALREADY_USED" if number else "TOKEN_INVALID")
    limited = await failed(agent.verify(id, code))
    assert limited.code == "RATE_LIMIT_EXCEEDED" and limited.details is not None
    assert (limited.details["limit"], limited.details["window"]) == (10, "minute")
    assert 1 <= limited.details["retry_after_seconds"] <= 61
    here.clock.ahead += 61
    fresh = (await failed(agent.report(LOOK))).details
    assert fresh is not None
    for length in (120, 240):  # each violation within an hour doubles the window
        wrong = [(await failed(agent.verify(fresh["verification_id"], WRONG))).code for _ in range(10)]
        assert wrong == ["TOKEN_INVALID"] + ["TOKEN_ALREADY_USED"] * 9
        again = await failed(agent.verify(fresh["verification_id"], code))
        assert again.details is not None and length - 5 < again.details["retry_after_seconds"] <= length + 1
        here.clock.ahead += length + 1
        fresh = (await failed(agent.report(LOOK))).details
        assert fresh is not None
    records = [one for one in await here.audited("agents/verify") if one["who"] == agent.client]
    assert [one["outcome"] for one in records] == (["failed"] * 10 + ["limited"]) * 3
    assert {one["agent"] for one in records} == {"coder"} and {one["approval"] for one in records[:11]} == {id}
    assert (await agent.verify(fresh["verification_id"], here.shown(fresh["verification_id"])))["verified"] is True
    assert not any(text in json.dumps(records) for text in (code, WRONG, f"{1:026}"))


@pytest.mark.req("AQL-8.8-1")
async def test_unknown_and_foreign_challenges_count_for_who_tried(here: AgentNode) -> None:
    agent, id = await blocked(here, "client:v9")
    other = here.agent("client:v9-other")
    for number in range(10):
        tried = id if number % 2 else "none"
        refused = await failed(other.verify(tried, here.shown(id)))
        assert (refused.code, refused.details) == ("TOKEN_INVALID", {"challenge_id": tried})
    assert (await failed(other.verify("none", WRONG))).code == "RATE_LIMIT_EXCEEDED"
    assert (await agent.verify(id, here.shown(id)))["verified"] is True


@pytest.mark.req("AQL-8.7.3-9", "AQL-8.7.3-4")
async def test_an_agent_confirms_nothing_with_what_it_knows(here: AgentNode) -> None:
    agent, other = here.agent("client:t1"), here.agent("client:t1-other")
    await agent.start()
    await agent.directive("git push origin main")
    (approval,) = here.waiting(agent.client)
    for known in (approval.id, "yes", ""):
        refused = await failed(agent.confirm(known, confirmation_id=approval.id))
        assert refused.code == "PERMISSION_DENIED" and refused.details is not None
        assert refused.details["reason"] == "self_approval"
    assert (await failed(agent.confirm("conf_guess", confirmation_id=approval.id))).code == "TOKEN_INVALID"
    guesser = here.agent("client:t1-guesser")
    guesses = [(await failed(guesser.confirm("conf_guess"))).code for _ in range(11)]
    assert guesses == ["TOKEN_INVALID"] * 10 + ["RATE_LIMIT_EXCEEDED"]
    token = here.shown(approval.id)
    assert (await failed(other.confirm(token))).code == "TOKEN_INVALID"
    assert (await failed(agent.confirm(token, confirmation_id="another"))).code == "TOKEN_SCOPE_MISMATCH"
    assert [one["type"] for one in (await agent.directive(LOOK))["notifications"]] == ["autonomy_pause"]
    assert (await agent.confirm(token, confirmation_id=approval.id))["confirmed"] is True
    assert (await failed(agent.confirm(token))).code == "TOKEN_ALREADY_USED"
    records = [one for one in await here.audited("agents/confirm") if one["who"] == agent.client]
    assert [one["outcome"] for one in records] == ["failed"] * 5 + ["approved", "failed"]
    assert {one["approval"] for one in records[:4]} == {approval.id}
    await agent.directive("git push origin main")
    (late,) = here.waiting(agent.client)
    token = here.shown(late.id)
    here.clock.ahead += 301
    assert (await failed(agent.confirm(token))).code == "TOKEN_EXPIRED"
    again = await agent.directive("git push origin main")  # nobody decided in time: they are asked again
    assert again["continue"] is False and [one.id for one in here.waiting(agent.client)] != [late.id]


@pytest.mark.req("AQL-8.8.3-4", "AQL-8.8.3-4")
async def test_an_operator_unblocks_with_a_proof_and_is_named(here: AgentNode) -> None:
    agent, id = await blocked(here, "client:op")
    deciding = here.node.calls.deciding
    assert (await deciding.approve(id, None, by="local")).message == "proof_invalid"  # type: ignore[union-attr]
    assert here.loop.blocks.of_principal(agent.client)
    approved = await deciding.approve(id, await prove(here, id), by="local")
    assert approved.status is Status.DONE  # type: ignore[union-attr]
    assert not here.loop.blocks.of_principal(agent.client)
    records = [one for one in await here.audited("agents/unblock") if one["who"] == agent.client]
    assert [(one["by"], one["outcome"]) for one in records] == [("local", "unblocked")]
    decided = [one for one in await here.audited("approvals/approve") if one["approval"] == id]
    assert [one["anchor"] for one in decided] == ["ada"]
    assert "status" in [one["type"] for one in (await agent.directive(LOOK))["notifications"]]


@pytest.mark.req("AQL-8.8.3-4")
async def test_an_operator_denies_a_challenge_and_the_block_stays(here: AgentNode) -> None:
    agent, id = await blocked(here, "client:op2")
    code = here.shown(id)
    await here.node.calls.deciding.deny(id, by="operator:ada", reason="no")
    assert here.loop.blocks.of_principal(agent.client)
    assert (await failed(agent.verify(id, code))).code == "TOKEN_ALREADY_USED"


@pytest.mark.req("AQL-8.8.3-4", "AQL-8.6.4-5", "AQL-8.8.3-2", "AQL-8.7.3-7", "AQL-8.8.3-5", "AQL-X-9")
async def test_neither_time_nor_mode_lifts_a_block(here: AgentNode) -> None:
    agent, _ = await blocked(here, "client:long")
    before = here.loop.plan
    here.clock.ahead += 90_000
    assert (await failed(agent.start())).code == "PERMISSION_DENIED"
    for mode in ("monitoring", "disabled"):
        here.loop.replan(SafetyPlan(mode=mode, preapproved=True))  # type: ignore[arg-type]
        await agent.passes()  # kept, and not enforced
        await agent.complete()
        await agent.start()
        told = await agent.directive(LOOK)
        assert told["continue"] is True and "danger_zone" in [one["type"] for one in told["notifications"]]
        assert here.loop.blocks.of_principal(agent.client)
    here.loop.replan(before)
    assert (await failed(agent.start())).code == "PERMISSION_DENIED"
    assert await agent.refusal() == "agent_blocked"
    for is_graceful in (True, False):
        here.loop.end_session(agent.caller, is_graceful=is_graceful)
        assert (await failed(agent.start())).code == "PERMISSION_DENIED"


@pytest.mark.req("AQL-8.8.2-1", "AQL-8.8.2-2", "AQL-8.8.4-3")
async def test_codes_are_unpredictable(here: AgentNode) -> None:
    make = inspect.unwrap(codes.new_code)  # these are nobody's, and are not looked for in what agents heard
    made = {make() for _ in range(100_000)}
    assert len(made) == 100_000 and all(
        len(code) == 26 and set(code) <= set(codes.ALPHABET) for code in list(made)[:99]
    )
    assert len(codes.ALPHABET) ** codes.CODE_CHARS >= 2**128
    _, id = await blocked(here, "client:entropy")
    assert (UUID(id).version, UUID(id).variant, str(UUID(id))) == (4, RFC_4122, id)
    random.seed(7)
    first = codes.new_code()
    random.seed(7)
    assert codes.new_code() != first


@pytest.mark.req("AQL-8.8.2-2")
async def test_the_id_of_a_challenge_does_not_depend_on_its_code(
    here: AgentNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = codes.new_code()
    monkeypatch.setattr(codes, "new_code", lambda: same)
    ids = [(await blocked(here, f"client:same-{number}"))[1] for number in range(2)]
    assert {here.shown(id) for id in ids} == {codes.grouped(same)}
    assert len(set(ids)) == 2 and all(UUID(id).version == 4 for id in ids)


@pytest.mark.req("AQL-8.8-1")
async def test_no_sequence_of_calls_without_a_code_leads_to_a_grant(here: AgentNode) -> None:
    choice = random.Random(15)
    for number in range(3):
        agent, id = await blocked(here, f"client:walk-{number}")
        for _ in range(20):
            step: Any = choice.choice(
                (
                    lambda agent=agent: agent.report(LOOK),
                    lambda agent=agent: agent.start(),
                    lambda agent=agent: here.agent(agent.client, "new").start(),
                    lambda agent=agent: agent.complete(),
                    lambda agent=agent: agent.abort(),
                    lambda agent=agent, id=id: agent.confirm(id),
                    lambda agent=agent: agent.confirm("conf_x"),
                    lambda agent=agent, id=id: agent.verify(id, WRONG),
                )
            )
            await failed(step())
            assert await agent.refusal() == "agent_blocked"
            here.clock.ahead += choice.choice((0, 1, 61))


@pytest.mark.req("AQL-8.8.4-1", "AQL-8.8.4-2", "AQL-8.8.3-3", "AQL-8.8.5-3", "AQL-X-10")
async def test_no_code_is_written_anywhere_and_a_restart_forgives_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    clock, heard = AheadClock(), []
    async with agent_node(tmp_path, ENFORCING, clock) as here:
        agent, id = await blocked(here, "client:k1")
        guesser, lost = await blocked(here, "client:k2")
        secrets = [here.shown(id), here.shown(lost)]
        for _ in range(10):
            heard.append(str(await failed(guesser.verify(lost, WRONG))))
        heard.append(str(await failed(agent.report(LOOK))))
        heard.append(str(await agent.call().message()))
        paused = here.agent("client:k3")
        await paused.start()
        heard.append(str(await paused.report(RISKY)))
        secrets += [here.shown(one.id) for one in here.waiting("client:k3")]
    async with agent_node(tmp_path, ENFORCING, clock) as here:
        agent, guesser = here.agent("client:k1"), here.agent("client:k2")
        assert here.codes.find_code(id) is None  # a hash cannot be shown
        heard.append(str(await failed(agent.start())))
        assert (await failed(guesser.verify(lost, secrets[1]))).code == "RATE_LIMIT_EXCEEDED"
        assert (await failed(here.agent("client:k3").report(LOOK))).code == "NOT_FOUND_RESOURCE"
        assert (await here.agent("client:k3").start())["status"] == "running"  # a pause does not survive
        ordered = await here.loop.order_challenge(here.loop.blocks.of_principal("client:k1")[0].agent)
        assert ordered is not None
        assert (await failed(agent.verify(id, secrets[0]))).code == "TOKEN_ALREADY_USED"
        secrets.append(here.shown(ordered.challenge_id))
        assert (await agent.verify(ordered.challenge_id, secrets[-1]))["verified"] is True
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    written += "\n".join([*heard, caplog.text]).encode()
    assert WRONG.encode() not in written
    for secret in secrets:
        plain = codes.plain_code(secret)
        for form in (secret, plain, plain.lower(), plain.encode().hex(), base64.b64encode(plain.encode()).decode()):
            assert form.encode() not in written


@pytest.mark.req("AQL-8.8.3-3", "AQL-8.7.1-2", "AQL-8.6.3-3", "AQL-8.8.3-4", "AQL-8.8.2-7")
@pytest.mark.req("AQL-2.3.4-1", "AQL-8.4.3-1", "AQL-X-4")
async def test_a_challenge_is_answered_after_a_restart_while_it_lasts(tmp_path: Path) -> None:
    config = f"[approvals]\nexpiry_s = 7200\n{ENFORCING}"
    async with agent_node(tmp_path, config) as here:
        _, id = await blocked(here, "client:r1")
        code = here.shown(id)
        (challenge,) = here.waiting("client:r1")
        assert 3590 < challenge.expires_at - wall(here) <= 3600  # of challenges it is an hour at most
        done = here.agent("client:r2")
        await done.start()
        ended = await done.complete(summary="weeded")
        recorded = await here.audited("agents/step")
    async with agent_node(tmp_path, config) as here:
        assert recorded and (await here.audited("agents/step"))[: len(recorded)] == recorded
        own, other = [await Lines(here, "aql", client).greet() for client in ("client:r2", "client:r1")]
        asked = {"execution_id": ended["execution_id"]}
        assert (await own.do("get_execution", **asked))["data"] == {"element_name": "coder", **ended}
        assert (await other.do("get_execution", **asked))["error"]["code"] == "NOT_FOUND_RESOURCE"
        told = (await failed(here.agent("client:r1").report(LOOK))).details
        assert told is not None and told["autonomy"]["stopped"] is True and told["autonomy"]["factors"]
        assert (await here.agent("client:r1").verify(id, code))["verified"] is True
        here.clock.ahead += 86_401  # aql.execution_keep_s
        assert (await own.do("get_execution", **asked))["error"]["code"] == "NOT_FOUND_RESOURCE"


@pytest.mark.req("AQL-8.8.3-3")
async def test_a_block_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    async with agent_node(tmp_path) as here:
        await blocked(here, "client:torn")
        (entry,) = await here.node.stores.store.kv.entries(BUCKET, 0.0)
        await here.node.stores.store.kv.put(BUCKET, entry.key, entry.value[:20], 0.0)
    with pytest.raises(Damaged, match="block of an agent"):
        async with agent_node(tmp_path):
            pass


@pytest.mark.req("AQL-X-16")
async def test_without_a_channel_for_codes_no_agent_starts(tmp_path: Path) -> None:
    async with agent_node(tmp_path, ENFORCING, anchored=anchor("ada", ADA, "files.*", "agent.known")) as here:
        assert (await here.agent("client:x", "known").start())["status"] == "running"
        await here.agent("client:x", "known").complete()
        refused = await failed(here.agent("client:x").start())
        assert refused.details is not None and refused.details["reason"] == "no_verification_channel"
        await here.agent("client:x").passes()


@pytest.mark.req("AQL-8.6.1-1")
async def test_disabled_costs_nothing(tmp_path: Path) -> None:
    async with agent_node(tmp_path, "") as here:
        guard = here.node.calls.dispatch.guard
        assert 5 not in [check.number for check in guard.checks]
        entered: set[str] = set()  # files whose code a call runs: what is not run takes no time

        def note(frame: Any, event: str, arg: Any) -> None:
            entered.add(frame.f_code.co_filename)

        sys.setprofile(note)
        try:
            await here.agent("client:x").passes()
        finally:
            sys.setprofile(None)
        assert any("/interlock/dispatch/" in one for one in entered)
        assert [one for one in entered if "/interlock/safety/" in one] == []
        assert here.loop.evaluations == 0 and here.node.calls.safety.watch.is_needed is False


async def _functions_of_a_call(here: AgentNode) -> int:
    """How many functions one call runs, the fewest of several: nothing of it is the machine's, as a time would be."""
    counts = []
    for _ in range(40):
        entered = 0

        def note(frame: Any, event: str, arg: Any) -> None:
            nonlocal entered
            entered += event in ("call", "c_call")

        call = here.agent("client:counted")
        sys.setprofile(note)
        try:
            await call.passes()
        finally:
            sys.setprofile(None)
        counts.append(entered)
    return min(counts)


@pytest.mark.req("AQL-8.6.1-1")
async def test_a_call_takes_as_long_with_the_loop_off_as_before_it_was_ever_on(tmp_path: Path) -> None:
    """Told by what a call runs: exactly as much, so what a benchmark could measure is its own noise."""
    async with agent_node(tmp_path, "") as here:
        never = await _functions_of_a_call(here)
        here.loop.replan(SafetyPlan(mode="enforcing", preapproved=True, require=("client:other",)))
        other = here.agent("client:other")
        await other.start()
        await other.directive(LOOK)
        on = await _functions_of_a_call(here)  # of one who needs no execution, and is looked at all the same
        await other.complete()
        evaluated = here.loop.evaluations
        here.loop.replan(SafetyPlan())
        assert await _functions_of_a_call(here) == never < on
        assert here.loop.evaluations == evaluated > 0


async def test_of_five_uses_of_a_code_at_once_one_succeeds(here: AgentNode) -> None:
    agent, id = await blocked(here, "client:race")
    answers = await asyncio.gather(*(agent.verify(id, here.shown(id)) for _ in range(5)), return_exceptions=True)
    assert sum(isinstance(one, dict) for one in answers) == 1


@pytest.mark.req("AQL-X-1")
async def test_an_operator_sees_a_code_only_upon_a_proof(here: AgentNode) -> None:
    agent, id = await blocked(here, "client:shown")
    inbox = here.node.calls.approvals
    # The proof of an approval shows nothing either.
    for token in ("no", (await prove(here, id)).token):
        with pytest.raises(Refused) as refused:
            await inbox.reveal_code(id, RevealCode(proof=token), by="local")
        assert refused.value.code == "proof_invalid"
    whole = inbox.get(id)
    assert here.shown(id) not in str(whole) and here.shown(id) not in str(
        here.node.get(AgentParts).operations.list_all()
    )
    proof = await prove(here, id, REVEAL)
    shown = await inbox.reveal_code(id, RevealCode(proof=proof.token), by="local")
    assert shown.code == here.shown(id)
    records = [one for one in await here.audited("approvals/reveal") if one["approval"] == id]
    assert [(one["who"], one["anchor"]) for one in records] == [("local", "ada")]
    assert (await agent.verify(id, shown.code))["verified"] is True


async def test_operators_list_order_and_abort(here: AgentNode) -> None:
    agent, id = await blocked(here, "client:ops", "gardener")
    operations = here.node.get(AgentParts).operations
    (one,) = [one for one in operations.list_all().agents if one.principal == agent.client]
    assert (one.name, one.is_blocked, one.status, one.approval_id) == ("gardener", True, "running", id)
    fresh = await operations.order_challenge(NameAgent(principal="client:ops", name="gardener"))
    assert fresh.approval_id != id and [one.id for one in here.waiting(agent.client)] == [fresh.approval_id]
    with pytest.raises(NotFound):
        await operations.order_challenge(NameAgent(principal="client:ops", name="nobody"))
    gardener = NameAgent(principal="client:ops", name="gardener")
    assert (await operations.abort(gardener, "operator:ada")).status == "cancelled"
    assert here.loop.blocks.of_principal("client:ops")  # a block stays
    with pytest.raises(NotFound):
        await operations.abort(gardener, "operator:ada")


async def test_channels_bring_the_code_to_operators_and_not_in_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, argv = tmp_path / "said", tmp_path / "argv"
    script = tmp_path / "tell"
    script.write_text(f'#!/bin/sh\necho "$@" > {argv}\ncat > {said}\n')
    script.chmod(0o700)
    channel = f'[approvals]\nchannels = ["command"]\ncommand = ["{script}"]\n'
    monkeypatch.setattr(notifier, "PROGRAM_FOLDERS", (str(tmp_path),))
    monkeypatch.setattr(notifier, "SYSTEM_OWNERS", (0, os.getuid()))
    async with agent_node(tmp_path, channel + ENFORCING, anchored="") as here:
        agent, id = await blocked(here, "client:channel")
        await here.until(lambda: said.exists() and said.read_text().endswith("\n"))
        notice = json.loads(said.read_text())
        assert (notice["id"], notice["kind"], notice["code"]) == (id, "verify", here.shown(id))
        assert notice["code"] not in argv.read_text()
        assert (await agent.verify(id, notice["code"]))["verified"] is True
    notice_with_code = Notice(
        event="x", id=id, kind="verify", tool="agent.x", name="agent.x", requested_by="y", created_at="",
        expires_at=None, url="", node="", code="12345-67890",
    )  # fmt: skip
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for platform, program in (("linux", "zenity"), ("darwin", "osascript")):
        script.rename(tmp_path / program)
        script = tmp_path / program
        await DesktopChannel(platform).send(notice_with_code)
        assert "12345" not in argv.read_text() and "12345-67890" in said.read_text()


@pytest.mark.req("AQL-8.7.2-6")
@pytest.mark.parametrize(
    "hint", ["drop_table users", "executing shell command: rm -rf /var", "DELETE_ALL records", "dr\u043ep_table users"]
)
async def test_a_denied_action_blocks_and_starts_verification(here: AgentNode, hint: str) -> None:
    agent = here.agent(f"client:deny-{hint}")
    await agent.start()
    directive = await agent.directive(hint)
    assert (directive["continue"], directive["stopped"]) == (False, True)
    (block,) = here.loop.blocks.of_principal(agent.client)
    assert here.loop.challenges.is_waiting(block.challenge_id)
    stored = await here.node.stores.store.kv.get(BUCKET, block.agent.stored, wall(here))
    assert stored is not None and block.challenge_id.encode() in stored.value


@pytest.mark.req("AQL-8.7.3-3")
async def test_a_call_held_by_the_gate_is_reported_and_keeps_its_grant(here: AgentNode) -> None:
    agent = here.agent("client:held")
    await agent.start()
    await agent.directive("calling plant.fire at noon")
    demand = (await agent.call("plant.fire").result())["_meta"]["x-mcpax-confirmation"]
    assert (await agent.call("plant.fire").result())["_meta"]["x-mcpax-confirmation"] == demand  # nothing was used
    id = demand["confirmation_id"]
    approved = await here.node.calls.deciding.approve(id, await prove(here, id), by="local")
    assert approved.status is Status.APPROVED  # type: ignore[union-attr]
    assert (await agent.call("plant.fire").result())["structuredContent"] == {"did": "fire"}
    assert await agent.refusal("plant.fire") == "unreported_action"
    await agent.directive("calling plant.fire at night")
    held = (await agent.call("plant.fire", at="night").result())["_meta"]["x-mcpax-confirmation"]
    notices = (await agent.directive(LOOK))["notifications"]
    (notice,) = [one for one in notices if one["type"] == "permission_pending"]
    assert (notice["metadata"]["operation"], notice["metadata"]["level"]) == ("plant.fire", "CONFIRM_SINGLE_USE")
    id = held["confirmation_id"]
    await here.node.calls.deciding.approve(id, await prove(here, id), by="local")
    notices = (await agent.directive(LOOK)).get("notifications", [])
    assert "permission_pending" not in [one["type"] for one in notices]
