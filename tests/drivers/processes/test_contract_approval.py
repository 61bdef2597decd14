"""A contract that wants a person's word before each call has it asked, whoever serves it (AIP-14.rules-1)."""

import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.drivers.contract_node import ANY, ContractNode, LendingProvider, binding, contract, contract_node, driver
from tests.gate.held_calls import ADA, GATED, MARK, anchor
from tests.gate.processes.test_gate_kept import Here

from interlock.approvals.grant_terms import grant_digest
from interlock.approvals.grants_api import DraftGrant, GrantRule, GrantTerms
from interlock.approvals.protocol.approval import Kind, Source
from interlock.approvals.standing_grants import StoredGrant
from interlock.drivers.driver_state import DriverState
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.gate.protocol.held_call import Presented
from interlock.wire.refusal import Refused

pytestmark = pytest.mark.asyncio(loop_scope="module")

PLAY = {
    "type": "object",
    "properties": {"act": ANY, "acts": {"type": "array", "items": ANY}, "label": {"type": "string"}},
}
BUSY = {"error": {"code": -32000, "message": "busy"}}
RETRY = {"max_attempts": 3, "backoff": "fixed", "initial_ms": 0}
WRITES = ["file:/workspace"]


class Holding(ContractNode):
    proof, confirm, approved = Here.proof, Here.confirm, Here.approved

    async def demand(self, arguments: Any, name: str = "test__play") -> Any:
        return (await self.call(name, arguments).result()).get("_meta", {}).get(MARK)

    async def played(self, label: str) -> int:
        return sum([await self._played(segment, label) for segment in ("new", "old")])

    async def _played(self, segment: str, label: str) -> int:
        return (await self.call(f"{segment}__played").result())["structuredContent"].get(label, 0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Holding]:
    extra = '[gate]\nmode = "open"\nalso = ["also.*"]\n' + anchor("ada", ADA, "*")
    folder = tmp_path_factory.mktemp("approval")
    async with contract_node(folder, {"new": "modern", "old": "legacy"}, extra) as made:
        yield Holding(made.node, made.clock)


def play(**changed: Any) -> Any:
    return contract("test.play", **{"inputs": PLAY, **changed})


@pytest.mark.req("AIP-14.rules-1", "AX-11.3-1")
@pytest.mark.parametrize(
    ("changed", "asks"),
    [
        ({"approval": "always"}, True),
        ({"approval": "on-mutate", "mutates": WRITES}, True),
        ({"approval": "policy:four-eyes"}, True),
        ({"approval": "on-mutate"}, False),
        ({"approval": "auto"}, False),
        ({"approval": "policy:gate", "mutates": WRITES, "risk_level": 1}, False),
        ({"approval": "policy:gate", "mutates": WRITES, "risk_level": 3}, False),  # gate.mode is open
    ],
)
async def test_the_contract_decides_whether_each_call_is_asked_about_in_every_gate_mode(
    here: Holding, changed: Any, asks: bool
) -> None:
    await here.serve("new", play(**changed), "play")
    label = f"asks {changed}"
    demand = await here.demand({"label": label})
    assert (demand is not None and demand["status"] == "confirmation_required") is asks
    assert await here.played(label) == (0 if asks else 1)


@pytest.mark.req("AIP-14.rules-1")
@pytest.mark.parametrize("segment", ["new", "old"])
async def test_a_confirmed_call_runs_once_and_the_next_needs_a_new_confirmation(here: Holding, segment: str) -> None:
    await here.serve(segment, play(approval="always"), "play")
    arguments = {"label": f"once {segment}"}
    demand = await here.demand(arguments)
    approval = here.node.approvals.inbox.get(demand["confirmation_id"])
    assert approval is not None
    assert (approval.kind, approval.source) == (Kind.CALL, Source.DRIVERS)
    assert approval.reason == "its contract asks for every call"
    assert "classified_here" in approval.factors  # what it does is the contract's word, not its server's
    await here.approved(demand)
    result = await here.call("test__play", arguments).result()
    assert result["structuredContent"]["done"] == arguments["label"]
    assert await here.played(arguments["label"]) == 1
    again = await here.demand(arguments)
    assert again["confirmation_id"] != demand["confirmation_id"]


@pytest.mark.req("AIP-14.rules-1")
async def test_no_standing_grant_replaces_the_approval_that_a_contract_wants_each_time(here: Holding) -> None:
    await here.serve("new", play(approval="always"), "play")
    demand = await here.demand({"label": "granted"})
    with pytest.raises(Refused, match=r"the contract of test\.play asks before each call"):
        here.node.operations.grants.draft(DraftGrant(approval=demand["confirmation_id"]))
    # Even one that somebody signed without asking the node for a draft.
    now = int(time.time() + here.clock.ahead)
    grant = GrantTerms(
        id=str(uuid.uuid4()),
        aggregator_id=demand["aggregator_id"],
        tool=demand["tool"],
        tool_digest=demand["tool_digest"],
        who=demand["caller"],
        rules=(GrantRule(at="", kind="any"),),
        calls=5,
        until=None,
        issued_at=now,
    )
    token = here.proof({**demand, "confirmation_id": grant.id, "call_digest": grant_digest(grant)})
    signed = await here.node.approvals.grants.sign(grant, Presented(token=token), by="local")
    assert isinstance(signed, StoredGrant)
    assert (await here.demand({"label": "granted"}))["status"] == "confirmation_required"
    assert await here.played("granted") == 0


@pytest.mark.req("AIP-14.rules-1")
async def test_a_person_is_asked_whichever_driver_is_chosen(here: Holding) -> None:
    made = play(approval="always")
    declared = [driver(f"{segment}-mcp", binding("test.play", "play")) for segment in ("new", "old")]
    lending = [LendingProvider(here.node, one.id.removesuffix("-mcp"), one, [made]) for one in declared]
    await here.offer([made], *lending)
    for at in range(2):
        assert (await here.demand({"label": f"whoever {at}"}))["status"] == "confirmation_required"
        lending[0].refusal = DriverRefusal(code="tool_unavailable", message="gone", retryable=True)
    assert await here.played("whoever 0") == await here.played("whoever 1") == 0


@pytest.mark.req("AIP-14.rules-1")
async def test_a_stricter_policy_of_the_operator_wins(here: Holding) -> None:
    made = contract("also.play", inputs=PLAY, approval="auto")
    await here.serve("new", made, "play")
    assert (await here.demand({"label": "also"}, "also__play"))["status"] == "confirmation_required"


@pytest.mark.req("AIP-14.rules-1")
async def test_input_that_is_wrong_is_refused_before_anybody_is_asked(here: Holding) -> None:
    await here.serve("new", play(approval="always"), "play")
    before = len(here.node.approvals.inbox.waiting())
    result = await here.call("test__play", {"label": 7}).result()
    assert result["_meta"]["dev.interlock/error"]["code"] == "input_invalid"
    assert len(here.node.approvals.inbox.waiting()) == before


@pytest.mark.parametrize("approval", ["always", "auto"])
async def test_no_approval_is_requested_for_a_call_that_no_driver_can_serve(here: Holding, approval: str) -> None:
    """The operator is told the same beforehand, and the log has one row of the choice that failed."""
    lending = await here.serve("new", play(approval=approval), "play")
    lending.state, lending.reason = DriverState.UNAVAILABLE, "it does not start"
    before, rows = len(here.node.approvals.inbox.waiting()), len(await here.rows())
    shown = here.node.operations.tools.get("test.play").checks
    assert next(one.number for one in shown if one.verdict in ("refuse", "hold")) == 8
    result = await here.call("test__play", {"label": f"unserved {approval}"}).result()
    assert result["_meta"]["dev.interlock/error"]["code"] == "no_route"
    assert len(here.node.approvals.inbox.waiting()) == before
    added = [one for one in (await here.rows())[rows:] if one["method"] in ("driver.resolved", "tools/call")]
    assert [(one["method"], one["outcome"]) for one in added] == [
        ("driver.resolved", "no_route"),
        ("tools/call", "refused"),
    ]


@pytest.mark.req("AIP-14.rules-2")
@pytest.mark.parametrize("segment", ["new", "old"])
async def test_a_call_that_was_released_is_never_repeated_once_it_has_left(here: Holding, segment: str) -> None:
    made = play(approval="always", idempotent=True, retry=RETRY)
    first = driver("one-mcp", binding("test.play", "play", cost_override={"cost_units_per_call": 1}))
    other = driver("two-mcp", binding("test.play", "play", cost_override={"cost_units_per_call": 2}))
    elsewhere = "old" if segment == "new" else "new"
    lending = LendingProvider(here.node, segment, first, [made]), LendingProvider(here.node, elsewhere, other, [made])
    await here.offer([made], *lending)
    arguments = {"act": BUSY, "label": f"released {segment}"}
    await here.approved(await here.demand(arguments))
    assert (await here.call("test__play", arguments).result())["isError"] is True
    assert await here.played(arguments["label"]) == 1


@pytest.mark.req("AIP-14.rules-2", "AIP-30.resolve-7")
async def test_a_released_call_whose_first_driver_cannot_be_reached_goes_to_the_next(here: Holding) -> None:
    made = play(approval="always")
    first = driver("one-mcp", binding("test.play", "play", cost_override={"cost_units_per_call": 1}))
    other = driver("two-mcp", binding("test.play", "play", cost_override={"cost_units_per_call": 2}))
    lending = LendingProvider(here.node, "new", first, [made]), LendingProvider(here.node, "old", other, [made])
    await here.offer([made], *lending)
    lending[0].refusal = DriverRefusal(code="tool_unavailable", message="gone", retryable=True)
    arguments = {"label": "elsewhere"}
    await here.approved(await here.demand(arguments))
    assert (await here.call("test__play", arguments).result())["structuredContent"]["done"] == "elsewhere"
    assert await here.played("elsewhere") == 1


@pytest.mark.req("AIP-14.rules-2", "AIP-30.resolve-7")
@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_released_call_whose_link_went_away_before_it_left_goes_to_the_next(
    here: Holding, monkeypatch: pytest.MonkeyPatch, idempotent: bool
) -> None:
    made, label = play(approval="always", idempotent=idempotent), f"never left {idempotent}"
    first = driver("one-mcp", binding("test.play", "play", cost_override={"cost_units_per_call": 1}))
    other = driver("two-mcp", binding("test.play", "play", cost_override={"cost_units_per_call": 2}))
    lending = LendingProvider(here.node, "new", first, [made]), LendingProvider(here.node, "old", other, [made])
    await here.offer([made], *lending)
    arguments = {"label": label}
    await here.approved(await here.demand(arguments))
    with monkeypatch.context() as away:
        away.setattr(lending[0].link, "pipe", None)
        result = await here.call("test__play", arguments).result()
    assert result["structuredContent"]["done"] == label
    assert await here.played(label) == 1
    assert (lending[0].lent, lending[1].lent) == (0, 0)


@pytest.mark.req("AIP-14.rules-1")
async def test_where_the_contract_leaves_it_to_the_gate_its_class_decides(tmp_path: Path) -> None:
    async with contract_node(tmp_path, {"new": "modern"}, GATED + anchor("ada", ADA, "*")) as made:
        here = Holding(made.node, made.clock)
        for changed, kind in [
            ({"approval": "policy:gate", "mutates": WRITES, "risk_level": 1}, None),
            ({"approval": "policy:gate", "mutates": WRITES, "risk_level": 3}, Kind.CALL),
            ({"approval": "policy:unannotated", "mutates": WRITES, "risk_level": 2}, Kind.DEFINITION),
        ]:
            ident = f"test.{kind.value if kind else 'free'}"
            await here.serve("new", contract(ident, inputs=PLAY, **changed), "play")
            result = await here.call(ident.replace(".", "__"), {"label": ident}).result()
            waiting = [each for each in here.node.approvals.inbox.waiting() if each.tool == ident]
            assert [each.kind for each in waiting] == ([] if kind is None else [kind])
            assert ("structuredContent" in result and "done" in result["structuredContent"]) is (kind is None)
