"""How long does a held call wait, what is left of it, and what happens when store, link or client go in the middle?

A node in this process, its clock set by the test, real servers.
"""

import asyncio
import contextlib
import json
import os
import shlex
import time
import types
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.gate.held_calls import ADA, ANCHORED, BOB, GATED, MARK, ActuatorLog, actuator_table, anchor
from tests.servers.minting import mint
from tests.servers.start import serving
from tests.support.asking_server import command
from tests.support.node_process import _toml
from tests.support.node_with_clock import ELICIT, SECONDS, AheadClock, ClockedNode, filled_answers

from interlock.approvals.protocol.approval import Status
from interlock.approvals.trust.approval_proofs import ProofVerifier
from interlock.catalog.catalog import EVERYTHING
from interlock.catalog.checks import RouteCheck
from interlock.catalog.routes import Route
from interlock.config.load import load
from interlock.core.calls.caller import Principal
from interlock.core.calls.check import CONFIRMATION_REQUIRED, HELD, CheckNumber, CheckRefusal, Release
from interlock.gate.gate import CommitCheck
from interlock.gate.protocol.policy import GateRule
from interlock.gate.rounds import Relayed
from interlock.links.pipes import StdioPipe
from interlock.node.node import Node
from interlock.store.ports import Unavailable
from interlock.wire.refusal import Refusal

PAGES = {"elicitation": {"url": {}}}


class Here(ClockedNode):
    """A node with a gate in front of the actuator."""

    def __init__(self, node: Node, clock: AheadClock, diary: ActuatorLog) -> None:
        super().__init__(node, clock)
        self.diary = diary

    async def held(self, name: str = "plant.fire", arguments: Mapping[str, Any] | None = None, **options: Any) -> Any:  # type: ignore[override]
        demand = (await self.call(name, arguments, **options).result())["_meta"][MARK]
        assert demand["status"] == "confirmation_required"
        return demand

    def proof(self, demand: Mapping[str, Any], signer: Any = ADA, **changes: Any) -> str:
        now = time.time() + self.clock.ahead
        claims = {
            "iss": signer.kid,
            "aud": demand["aggregator_id"],
            "jti": str(uuid.uuid4()),
            "iat": now,
            "exp": now + 300,
            "confirmation_id": demand["confirmation_id"],
            "call_digest": demand["call_digest"],
        }
        return mint(signer, claims | changes, typ="mcpax-confirm+jwt")

    def confirm(self, demand: Mapping[str, Any], who: str = "client:desk", **changes: Any) -> Any:
        params = {"confirmation_id": demand["confirmation_id"], "proof": self.proof(demand, **changes)}
        return self.ask("mcpax/confirm", params, who=who)

    async def approved(self, demand: Mapping[str, Any]) -> None:
        assert (await self.confirm(demand).result())["status"] == "confirmed"

    def status(self, demand: Mapping[str, Any]) -> Status:
        approval = self.node.approvals.inbox.get(demand["confirmation_id"])
        assert approval is not None
        return approval.status

    async def becomes(self, demand: Mapping[str, Any], status: Status) -> None:
        await self.until(lambda: self.status(demand) is status)


@contextlib.asynccontextmanager
async def house(
    folder: Path,
    extra: str = "",
    era: str = "modern",
    anchored: str = ANCHORED,
    changed: str = "",
    turning: bool = False,
    **keys: Any,
) -> AsyncIterator[Here]:
    """`turning`: whenever the server is started, the file `changed` says what of it is another. `keys` are further keys
    of the server.
    """
    diary = ActuatorLog(folder / "diary.jsonl")
    config = folder / "interlock.toml"
    table = actuator_table(diary, era)
    table["args"] += ["--changed", changed] if changed else []
    if turning:
        words = shlex.join([table["command"], *table["args"]])
        (folder / "changed").touch()
        table = {"command": "/bin/sh", "args": ["-c", f'exec {words} --changed "$(cat {folder}/changed)"']}
    table |= keys
    config.write_text(f"{anchored}{extra}\n[servers.plant]\n{_toml(table)}")
    clock = AheadClock()
    plan = load(config, os.environ, {"data": str(folder / "data")}).plan
    node = Node(plan, lambda operations, authenticate: None, clock, listen=False)
    await node.open()
    try:
        await node.readiness.settle(SECONDS)
        yield Here(node, clock, diary)
    finally:
        await node.close()


def find_tool(here: Here, name: str) -> Route | None:
    return here.node.calls.catalog.namespace.view(EVERYTHING).find_tool(name)


@pytest.mark.req("AX-11.3-4")
async def test_a_confirmation_counts_until_its_time_is_over_and_the_arguments_go_with_it(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        early, late = await here.held(arguments={"n": 1}), await here.held(arguments={"n": 2})
        here.clock.ahead += 299
        assert (await here.confirm(early, who="local").result())["structuredContent"] == {"did": "fire"}
        here.clock.ahead += 1.5
        error = await here.confirm(late).error()
        assert (error["code"], error["message"]) == (32121, "confirmation_expired")
        await here.node.approvals.inbox.sweep()
        kept = here.node.approvals.inbox.get(late["confirmation_id"])
        assert kept is not None
        assert kept.params is None
        assert (await here.held(arguments={"n": 2}))["confirmation_id"] != late["confirmation_id"]
        assert len(here.diary) == 1


@pytest.mark.req("AX-11.3-4")
async def test_the_settings_say_how_long(tmp_path: Path) -> None:
    async with house(tmp_path, "[approvals]\nexpiry_s = 30\nredeem_s = 40\nmax_pending = 2\n") as here:
        first = await here.held(arguments={"n": 1})
        here.clock.ahead += 29
        await here.approved(first)
        here.clock.ahead += 39
        assert (await here.call("plant.fire", {"n": 1}).result())["structuredContent"] == {"did": "fire"}

        second = await here.held(arguments={"n": 2})
        await here.approved(second)
        here.clock.ahead += 41
        assert (await here.held(arguments={"n": 2}))["confirmation_id"] != second["confirmation_id"]
        assert here.status(second) is Status.EXPIRED

        await here.held(arguments={"n": 3})
        error = await here.call("plant.fire", {"n": 4}).error()
        assert (error["message"], error["data"]["budget"]) == ("budget_exceeded", "max_pending_confirmations")
        assert len(here.diary) == 1


@pytest.mark.req("AX-11.N-10")
async def test_a_call_whose_approval_expired_says_so_when_it_is_held_again(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        late = await here.held(arguments={"n": 1})
        here.clock.ahead += 301
        error = await here.confirm(late).error()
        assert "it expired" in error["data"]["detail"] and "asks again" in error["data"]["detail"]
        again = await here.call("plant.fire", {"n": 1}).result()
        assert "An earlier request for this call expired" in again["content"][0]["text"]
        other = await here.call("plant.fire", {"n": 2}).result()
        assert "expired" not in other["content"][0]["text"]


@pytest.mark.req("AX-11.3-12")
async def test_a_state_runs_out(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        asked = await here.call("plant.fire", capabilities=PAGES).result()
        here.clock.ahead += 601
        error = await here.again("plant.fire", {}, asked, capabilities=PAGES).error()
        assert (error["code"], error["data"]["reason"]) == (-32602, "state_expired")


async def test_a_state_is_good_after_a_restart(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        asked = await here.call("plant.fire", capabilities=PAGES).result()
    async with house(tmp_path) as here:
        again = await here.again("plant.fire", {}, asked, capabilities=PAGES).result()
        assert again["inputRequests"] == asked["inputRequests"]


@pytest.mark.req("AX-11.3-11")
async def test_without_the_store_nothing_is_sent_and_the_approval_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(tmp_path) as here:
        demand = await here.held()
        await here.approved(demand)
        kv = here.node.stores.store.kv

        async def away(*_: Any, **__: Any) -> Any:
            raise Unavailable("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(type(kv), "update", away)
            patch.setattr(type(kv), "create", away)
            error = await here.call("plant.fire").error()
            assert (error["code"], error["message"]) == (32131, "unavailable")
            assert (await here.call("plant.fire", {"n": 2}).error())["code"] == 32131
        assert not here.diary.read()
        assert here.status(demand) is Status.APPROVED
        assert (await here.call("plant.fire").result())["structuredContent"] == {"did": "fire"}
        await here.becomes(demand, Status.DONE)


async def test_an_approval_waits_for_a_link_that_is_away(tmp_path: Path) -> None:
    """Availability is asked before the commit: an approval is not used up on a server that cannot be reached."""
    async with house(tmp_path) as here:
        demand = await here.held()
        await here.approved(demand)
        keeper = here.node.calls.keepers["plant"]
        await keeper.stop()
        assert (await here.call("plant.fire").error())["message"] == "tool_degraded"
        assert here.status(demand) is Status.APPROVED
        assert not here.diary.read()


async def test_a_call_that_was_not_sent_fails_and_is_never_reported_as_lost(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        demand = await here.held()
        await here.approved(demand)
        here.node.calls.keepers["plant"].link.pipe = None  # which its keeper does not know yet
        assert (await here.call("plant.fire").error())["data"]["outcome"] == "not_sent"
        await here.becomes(demand, Status.FAILED)
        await here.node.stores.recorder.flush()
        records = [json.loads(one.data) for one in await here.node.stores.audit.read()]
    calls = [(one["verdict"], one["outcome"], one.get("reason")) for one in records if one["method"] == "tools/call"]
    assert calls[-1] == ("admitted", "not_sent", "subserver_unreachable")


async def test_a_server_that_is_killed_in_the_middle_gets_the_call_at_most_once(tmp_path: Path) -> None:
    """However far the call had come: not used, used and not sent, or sent. The record says which."""
    async with house(tmp_path) as here:
        demand = await here.held()
        await here.approved(demand)
        keeper = here.node.calls.keepers["plant"]
        assert keeper.link.pid is not None
        os.kill(keeper.link.pid, 9)
        answer = await here.call("plant.fire").message()
        if "result" in answer:
            await here.becomes(demand, Status.DONE)
        else:
            await here.until(lambda: here.status(demand) is not Status.USED)
        ended = here.status(demand)
        assert len(here.diary) == (ended is Status.DONE)
        await here.until(lambda: keeper.link.standing.state.value == "ready")
        again = await here.call("plant.fire").result()
        assert (again.get("isError") is not True) is (ended is Status.APPROVED)
        assert len(here.diary) == (ended in (Status.DONE, Status.APPROVED))


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_an_answer_that_never_comes_is_an_unknown_outcome(tmp_path: Path, era: str) -> None:
    rule = '[[tool]]\nmatch = "plant.hold"\nlatency_class = "realtime"\n'
    async with house(tmp_path, rule, era) as here:
        arguments = {"until": str(tmp_path / "never")}
        demand = await here.held("plant.hold", arguments)
        await here.approved(demand)
        assert (await here.call("plant.hold", arguments).error())["message"] == "call_timeout"
        await here.becomes(demand, Status.UNKNOWN)
        await here.held("plant.hold", arguments)
        assert len(here.diary) == 1


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_an_answer_that_is_too_large_is_an_unknown_outcome(tmp_path: Path, era: str) -> None:
    async with house(tmp_path, era=era) as here:
        demand = await here.held()
        await here.approved(demand)
        pipe = here.node.calls.keepers["plant"].link.pipe
        assert isinstance(pipe, StdioPipe) and pipe.child is not None
        pipe.child._splitter._max_bytes = 20
        assert (await here.call("plant.fire").error())["message"] == "result_too_large"
        await here.becomes(demand, Status.UNKNOWN)
        assert len(here.diary) == 1


async def test_a_caller_that_leaves_after_the_call_was_sent_leaves_its_outcome_unknown(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        arguments = {"until": str(tmp_path / "never")}
        demand = await here.held("plant.hold", arguments)
        await here.approved(demand)
        asked = here.call("plant.hold", arguments)
        await here.until(lambda: len(here.diary) == 1)
        asked.running.cancel("gone")
        await here.becomes(demand, Status.UNKNOWN)
        assert not here.node.calls.dispatch.under_way.calls


async def test_a_confirmation_that_is_cancelled_cancels_the_call_it_made(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        arguments = {"until": str(tmp_path / "never")}
        demand = await here.held("plant.hold", arguments)
        asked = here.confirm(demand, who="local")
        await here.until(lambda: len(here.diary) == 1)
        asked.running.cancel("gone")
        await here.becomes(demand, Status.UNKNOWN)
        assert not here.node.calls.dispatch.under_way.calls


async def test_a_held_call_costs_nothing_until_it_is_sent_and_budget_comes_before_the_gate(tmp_path: Path) -> None:
    budget = '[[access]]\nwho = ["*"]\nscope = "write"\nbudget = { max_mutable_calls_per_session = 1 }\n'
    async with house(tmp_path, budget) as here:
        here.principals["client:agent"] = Principal(
            "client:agent", budget=here.node.stores.current.plan.access[0].budget
        )
        who = {"who": "client:agent"}
        demand = await here.held(arguments={"n": 1}, **who)
        for _ in range(3):
            await here.held(arguments={"n": 1}, **who)
        await here.approved(demand)
        assert (await here.call("plant.fire", {"n": 1}, **who).result())["structuredContent"] == {"did": "fire"}
        error = await here.call("plant.fire", {"n": 2}, **who).error()
        assert (error["message"], error["data"]["budget"]) == ("budget_exceeded", "max_mutable_calls_per_session")
        assert [one.tool for one in here.node.approvals.inbox.waiting()] == []
        assert len(here.diary) == 1


@pytest.mark.req("AX-11.3-15")
async def test_many_confirmations_at_once_release_one_call(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        demand = await here.held()
        answers = await asyncio.gather(*(here.confirm(demand, who="local").message() for _ in range(20)))
        made = [one for one in answers if "result" in one]
        assert len(made) == 1
        assert {one["error"]["code"] for one in answers if "error" in one} == {32122}
        assert len(here.diary) == 1


async def test_the_guard_lets_no_held_call_through_without_an_approval_it_saw_used(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        asked = here.call("plant.fire")
        await asked.result()
        guard, link, call = here.node.calls.dispatch.guard, here.node.calls.keepers["plant"].link, asked.running
        route, commit = (
            find_tool(here, "plant.fire"),
            CommitCheck(here.node.calls.budgets, here.node.calls.safety.watch.use),
        )
        assert route is not None
        assert call.hold.is_waiting
        for carried in (msgspec.structs.replace(route, checks=()), None, route):
            call.route = carried
            verdict = guard.admit(call, link)
            assert verdict is HELD or (isinstance(verdict, CheckRefusal) and verdict.check is CheckNumber.GATE)
        used = await commit.check(call, link, Release("never used", is_used=True))
        assert used == CheckRefusal(CheckNumber.COMMIT, CONFIRMATION_REQUIRED.refusal)
        refused = await commit.check(call, link, Release(str(uuid.uuid4())))
        assert refused is not None
        assert (refused.check, refused.refusal.message) == (CheckNumber.COMMIT, "confirmation_unknown")
        (waiting,) = here.node.approvals.inbox.waiting()
        assert await commit.check(call, link, Release(waiting.id)) is not None
        assert isinstance(await guard.release(call, link), CheckRefusal)
        assert not here.diary.read()


async def test_a_name_without_end_is_not_kept_with_what_waits(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        demand = await here.held(client="agent " * 1000)
        kept = here.node.approvals.inbox.get(demand["confirmation_id"])
        assert kept is not None
        assert kept.agent is not None
        assert kept.agent.startswith("agent ")
        assert len(kept.agent) == 100


async def test_a_hop_cannot_have_the_proofs_that_another_hop_asked_for(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        asked = find_tool(here, "plant.fire")
        assert asked is not None
        link = types.SimpleNamespace(segment="mallory")
        other = msgspec.structs.replace(asked, link=link, qualified="mallory.fire")
        rounds = here.node.calls.gate.rounds
        rounds.remember_relayed("c1", Relayed(route=asked, requester="local", digest="d"))
        rounds.remember_relayed("c1", Relayed(route=other, requester="local", digest="d"))
        found = rounds.find_relayed("c1")
        assert found is not None
        assert found.route is asked


@pytest.mark.req("AX-11.3-1")
async def test_an_unknown_caller_asks_nobody_by_way_of_a_hop_below_either(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        here.principals["anybody"] = Principal("local", stranger=True)
        asked = here.call("plant.look", who="anybody")
        await asked.result()
        route = find_tool(here, "plant.fire")
        assert route is not None
        below = msgspec.structs.replace(route, gate=GateRule(hold=None, relays=True), gated=True)
        check = RouteCheck(here.node.calls.catalog.live)
        assert check.applies_to(below)
        asked.running.route = below
        refused = check.check(asked.running, route.link)
        assert refused is not None
        assert refused.refusal.message == "scope_denied"


async def test_held_calls_leave_nothing_in_memory(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        for n in range(5):
            demand = await here.held(arguments={"n": n})
            await here.approved(demand)
            await here.call("plant.fire", {"n": n}).result()
            await here.becomes(demand, Status.DONE)
        gate = here.node.calls.gate
        await here.until(lambda: not gate._work)  # the end of the last one is still being written
        assert (gate.rounds._open, gate.rounds._relayed, gate.used_approvals) == ({}, {}, set())
        assert here.node.calls.keepers["plant"].link.booked == 0
        assert not here.node.calls.dispatch.under_way.calls


async def test_a_question_nobody_answers_ends_the_call_it_was_for(tmp_path: Path) -> None:
    async with house(tmp_path, "[approvals]\nredeem_s = 30\n") as here:
        demand = await here.held("plant.ask_first")
        await here.approved(demand)
        asked = await here.call("plant.ask_first").result()
        assert asked["resultType"] == "input_required"
        assert here.status(demand) is Status.USED
        here.clock.ahead += 31
        assert (await here.again("plant.ask_first", {}, asked, {"r": {"roots": []}}).result())["isError"] is True
        assert not here.diary.read()


async def test_a_call_that_was_parked_for_its_clients_answer_ends_as_it_ended(tmp_path: Path) -> None:
    """A legacy server asks in mid-call: the call is under way all the time, and its approval ends with it."""
    config = tmp_path / "interlock.toml"
    rules = f'[gate]\nmode = "open"\nalso = ["web.interview"]\n{anchor("ada", ADA, "*")}'
    arguments = {"label": "parked", "steps": [{"ask": {"q": ELICIT}}]}
    with serving(command("legacy")) as url:
        config.write_text(f'{rules}[servers.web]\nurl = "{url}"\n')
        clock = AheadClock()
        plan = load(config, os.environ, {"data": str(tmp_path / "data")}).plan
        node = Node(plan, lambda operations, authenticate: None, clock, listen=False)
        await node.open()
        try:
            await node.readiness.settle(SECONDS)
            here = Here(node, clock, ActuatorLog(tmp_path / "diary.jsonl"))
            demand = await here.held("web.interview", arguments)
            await here.approved(demand)
            asked = await here.call("web.interview", arguments).result()
            assert asked["resultType"] == "input_required"
            assert here.status(demand) is Status.USED
            answered = here.again("web.interview", arguments, asked, filled_answers(asked))
            assert (await answered.result())["resultType"] == "complete"
            await here.becomes(demand, Status.DONE)
        finally:
            await node.close()


@pytest.mark.req("AX-11.3-14")
@pytest.mark.parametrize(
    "what", ["description", "inputSchema", "outputSchema", "annotations", "capability", "downstream_name"]
)
async def test_a_definition_that_changes_in_any_member_voids_what_was_asked_of_it(tmp_path: Path, what: str) -> None:
    async with house(tmp_path) as here:
        pending, approved = await here.held(arguments={"n": 1}), await here.held(arguments={"n": 2})
        await here.approved(approved)
        await here.call("plant.change", {"what": what}).result()
        await here.becomes(pending, Status.VOID)
        await here.becomes(approved, Status.VOID)
        error = await here.confirm(pending, who="local").error()
        assert (error["code"], error["message"]) == (32124, "confirmation_void")
        if what == "downstream_name":  # withheld: no accepted definition of this name at the server
            assert "is withheld" in (await here.call("plant.fire", {"n": 2}).error())["message"]
        else:
            assert (await here.held(arguments={"n": 2}))["call_digest"] != approved["call_digest"]
        assert not here.diary.read("fire")


@pytest.mark.req("AX-11.3-14")
async def test_a_server_that_comes_back_with_the_same_definition_keeps_what_was_approved(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        demand = await here.held()
        await here.approved(demand)
        keeper = here.node.calls.keepers["plant"]
        await keeper.restart()
        await here.until(lambda: keeper.link.restarts > 0 and keeper.link.standing.state.value == "ready")
        assert (await here.call("plant.fire").result())["structuredContent"] == {"did": "fire"}


@pytest.mark.req("AX-11.3-14")
@pytest.mark.parametrize(("tool", "changed"), [("plant.look", "look"), ("plant.fire", "description")])
async def test_a_call_that_waits_for_a_server_is_not_made_where_it_comes_back_with_another_tool(
    tmp_path: Path, tool: str, changed: str
) -> None:
    """It was let through, or approved, as what the tool was when the call came."""
    async with house(tmp_path, turning=True) as here:
        if tool == "plant.fire":
            await here.approved(await here.held())
        keeper = here.node.calls.keepers["plant"]
        (tmp_path / "changed").write_text(changed)
        pid = keeper.link.pid
        assert pid is not None
        os.kill(pid, 9)
        await here.until(lambda: keeper.link.pid is None)
        error = await here.call(tool).error()
        assert (error["message"], error["data"]["reason"]) == ("tool_degraded", "relisting")
        assert not here.diary.read()
        await here.held(tool)


@pytest.mark.req("AX-11.3-14")
async def test_a_definition_that_changed_while_the_node_was_away_is_found_when_the_proof_comes(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        demand = await here.held()
    overlay = '[[tool]]\nmatch = "*"\nlatency_class = "slow"\n'
    async with house(tmp_path, overlay) as here:  # what the operator lays over it is no word of its owner's
        assert (await here.held())["confirmation_id"] == demand["confirmation_id"]
    async with house(tmp_path, changed="description") as here:
        assert here.status(demand) is Status.PENDING
        assert (await here.confirm(demand, who="local").error())["code"] == 32124
        assert here.status(demand) is Status.VOID
        assert not here.diary.read()


@pytest.mark.req("AX-11.3-9")
async def test_an_anchor_that_is_gone_after_a_restart_has_released_nothing(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        demand = await here.held()
        await here.approved(demand)
    without = '[gate]\nmode = "gated"\n' + anchor("bob", BOB, "*")
    async with house(tmp_path, anchored=without) as here:
        again = await here.held()
        assert again["confirmation_id"] != demand["confirmation_id"]
        assert here.status(demand) is Status.VOID
        assert not here.diary.read()


@pytest.mark.req("AX-11.3-9")
async def test_an_anchor_with_another_key_does_not_vouch_for_what_the_old_key_signed(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        demand = await here.held()
        await here.approved(demand)
    async with house(tmp_path) as here:
        assert here.status(demand) is Status.APPROVED
    async with house(tmp_path, anchored=GATED + anchor("ada", BOB, "*")) as here:
        assert (await here.held())["confirmation_id"] != demand["confirmation_id"]
        assert here.status(demand) is Status.VOID
        assert not here.diary.read()


@pytest.mark.req("AX-11.3-9")
async def test_an_approval_is_judged_again_at_the_moment_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(tmp_path) as here:
        demand = await here.held()
        await here.approved(demand)
        monkeypatch.setattr(ProofVerifier, "stands", lambda judge, approval: False)
        assert (await here.held())["confirmation_id"] != demand["confirmation_id"]
        assert here.status(demand) is Status.VOID
        assert not here.diary.read()


async def test_the_record_names_the_hold_and_the_decision(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        demand = await here.held(arguments={"secret": "s3cr3t"})
        await here.approved(demand)
        await here.call("plant.fire", {"secret": "s3cr3t"}).result()
        await here.becomes(demand, Status.DONE)
        await here.node.stores.recorder.flush()
        records = [json.loads(one.data) for one in await here.node.stores.audit.read()]
    calls = [(one["verdict"], one["outcome"], one.get("reason")) for one in records if one["method"] == "tools/call"]
    assert calls == [("refused", "refused", "confirmation_required"), ("admitted", "ok", None)]
    (decided,) = [one for one in records if one["method"] == "approvals/approve"]
    assert (decided["anchor"], decided["digest"]) == ("ada", demand["call_digest"])
    assert "s3cr3t" not in json.dumps(records)


async def test_no_second_approval_is_requested_for_a_tool_decided_before_it_was_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(tmp_path) as here:
        gate = here.node.calls.gate
        monkeypatch.setattr(gate, "find_ruling", lambda tool, digest: "read_only" if tool == "plant.silent" else None)
        answer = await here.call("plant.silent").error()
        assert (answer["message"], answer["data"]["reason"]) == ("unavailable", "relisting")
        assert here.node.approvals.inbox.waiting() == []
        monkeypatch.setattr(gate, "find_ruling", lambda tool, digest: None)
        await here.held("plant.silent")
        assert len(here.node.approvals.inbox.waiting()) == 1


async def test_an_approval_shown_for_another_definition_is_void(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        demand = await here.held()
        approval = here.node.approvals.inbox.get(demand["confirmation_id"])
        assert approval is not None
        assert here.node.calls.deciding.is_current(approval)
        assert not here.node.calls.deciding.is_current(msgspec.structs.replace(approval, tool_digest="0" * 64))
        here.node.calls.deciding.is_call_current = lambda approval: False
        refused = await here.node.calls.deciding.approve(approval.id, None, by="operator:ada")
        assert isinstance(refused, Refusal)
        assert (refused.number, here.status(demand)) == (32124, Status.VOID)
        assert here.diary.read("fire") == []
