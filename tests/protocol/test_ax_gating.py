"""What a call has to wait for, from what is known of its tool and what the operator decided; and what is carried up."""

import itertools
import json
from typing import Any

import pytest
from msgspec import Raw

from interlock.protocol.ax.confirmation.held_call import Held
from interlock.protocol.ax.confirmation.policy import Hold, gate_of, hold_of, says_its_effect
from interlock.protocol.ax.confirmation.refusals import denied_result, open_result
from interlock.protocol.ax.confirmation.relay import BELOW, maybe_carried
from interlock.protocol.ax.confirmation.request_state import Visit, is_visit, seal, unseal_untrusted

MODES = ("gated", "defer", "open")
FLAGS = list(itertools.product((False, True), repeat=4))


@pytest.mark.req("AX-11.3-1")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("unannotated", ["classify", "allow"])
@pytest.mark.parametrize(("also", "irreversible", "is_open", "gated_below"), FLAGS)
def test_every_case(
    mode: Any, unannotated: Any, also: bool, irreversible: bool, is_open: bool, gated_below: bool
) -> None:
    found = hold_of(
        mode=mode,
        unannotated=unannotated,
        also=also,
        irreversible=irreversible,
        is_open=is_open,
        gated_below=gated_below,
    )
    if mode == "defer" and gated_below:
        assert found is None
    elif also:
        assert found is Hold.CALL
    elif mode == "open":
        assert found is None
    elif is_open:
        assert found is (Hold.DEFINITION if unannotated == "classify" else None)
    else:
        assert found is (Hold.CALL if irreversible else None)


def test_a_tool_that_meets_nothing_has_no_gate() -> None:
    assert gate_of(None, relays=False) is None
    assert gate_of(None, relays=True) is not None
    assert gate_of(Hold.CALL, relays=False) is not None


@pytest.mark.parametrize(
    ("declared", "annotations", "says"),
    [
        (None, None, False),
        (None, {}, False),
        (None, {"readOnlyHint": False}, True),
        (None, {"destructiveHint": True}, True),
        (None, {"idempotentHint": True, "openWorldHint": False, "title": "x"}, False),
        (None, {"readOnlyHint": "yes", "destructiveHint": None}, False),
        (None, ["readOnlyHint"], False),
        ({"latency_class": "fast"}, None, False),
        ({"mutable": True}, None, True),
        ({"reversible": False}, {}, True),
        ("mutable", None, False),
    ],
)
def test_only_a_word_on_the_effect_counts(declared: Any, annotations: Any, says: bool) -> None:
    assert says_its_effect(declared, annotations) is says


# What a hop below demands

DEMAND = {
    "status": "confirmation_required",
    "tool": "plant.fire",
    "route": ["plant", "fire"],
    "arguments": {"n": 1.0},
    "confirmation_id": "c1",
    "approval_url": "https://low.example/approvals/c1",
    "x-more": {"z": 1, "a": 2},
}


def result(demand: Any = DEMAND, **more: Any) -> Raw:
    made = {
        "isError": True,
        "content": [{"type": "text", "text": "Nothing was executed."}],
        "structuredContent": demand,
    }
    return Raw(
        json.dumps({**made, "_meta": {"x-mcpax-confirmation": demand, "vendor": 1}, "x-own": [1], **more}).encode()
    )


@pytest.mark.req("AX-11.3-16")
def test_only_tool_and_route_are_said_in_other_terms() -> None:
    carried = maybe_carried(result(), "low.plant.fire", ("low", "plant", "fire"))
    assert carried is not None
    assert (carried.status, carried.confirmation_id) == ("confirmation_required", "c1")
    told = f"Nothing was executed. {BELOW}"
    assert (carried.approval_url, carried.text) == (DEMAND["approval_url"], told)
    expected = json.loads(bytes(result()))
    expected["content"][0]["text"] = told
    ours = {**DEMAND, "tool": "low.plant.fire", "route": ["low", "plant", "fire"]}
    expected["_meta"]["x-mcpax-confirmation"] = expected["structuredContent"] = ours
    assert json.loads(carried.result) == expected
    assert b'"n": 1.0' in carried.result


def test_what_a_model_is_told_names_the_tool_as_its_caller_knows_it_and_the_node_below_once() -> None:
    said = [{"type": "text", "text": f"Nothing was executed. {DEMAND['tool']} waits."}]
    once = maybe_carried(result(content=said), "mid.plant.fire", ("mid", "plant", "fire"))
    assert once is not None
    assert once.text == f"Nothing was executed. mid.plant.fire waits. {BELOW}"
    twice = maybe_carried(Raw(once.result), "top.mid.plant.fire", ("top", "mid", "plant", "fire"))
    assert twice is not None
    assert twice.text == f"Nothing was executed. top.mid.plant.fire waits. {BELOW}"


def test_a_result_without_structured_content_or_with_another_keeps_it_so() -> None:
    other = maybe_carried(result(structuredContent={"did": "it"}), "t", ("t",))
    assert other is not None
    assert json.loads(other.result)["structuredContent"] == {"did": "it"}


@pytest.mark.parametrize(
    "bad",
    [
        Raw(b"{}"),
        Raw(b"[]"),
        Raw(b'{"_meta":7}'),
        Raw(b'{"_meta":{"x-mcpax-confirmation":"yes"}}'),
        result({**DEMAND, "status": "confirmed"}),
        result({**DEMAND, "status": None}),
        result({**DEMAND, "confirmation_id": ""}),
        result({**DEMAND, "confirmation_id": "c" * 1000}),
        result({**DEMAND, "confirmation_id": 7}),
    ],
)
def test_what_demands_nothing_is_not_carried(bad: Raw) -> None:
    assert maybe_carried(bad, "t", ("t",)) is None


@pytest.mark.parametrize("url", [None, 7, "javascript:alert(1)", "file:///etc/passwd", "https://x/" + "a" * 5000])
def test_a_page_that_is_none_is_not_shown(url: Any) -> None:
    carried = maybe_carried(result({**DEMAND, "approval_url": url}), "t", ("t",))
    assert carried is not None
    assert carried.approval_url is None


# States

VISIT = Visit("c1", "d1", "client:a", 12.5)


def test_a_state_comes_back_as_it_was_sealed_and_only_under_its_key() -> None:
    state = seal(VISIT, b"k" * 32)
    assert is_visit(state)
    assert unseal_untrusted(state, b"k" * 32) == VISIT
    assert unseal_untrusted(state, b"q" * 32) is None


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_a_changed_state_is_nobodys(cut: int) -> None:
    state = seal(VISIT, b"k" * 32)
    at = 5 + cut
    changed = state[:at] + ("A" if state[at] != "A" else "B") + state[at + 1 :]
    assert unseal_untrusted(changed, b"k" * 32) is None
    assert unseal_untrusted(state[:at], b"k" * 32) is None
    assert unseal_untrusted(state[:at] + "é!", b"k" * 32) is None


# The other answers

HELD = Held(
    tool="plant.fire",
    arguments=Raw(b'{"n":1}'),
    capability={"mutable": True},
    route=("plant", "fire"),
    confirmation_id="c1",
    expires_at=None,
    approval_url="https://x/approvals/c1",
    nonce="n",
    call_digest="d",
    aggregator_id="a",
)


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize("has_output_schema", [True, False])
def test_all_answers_have_one_form(modern: bool, has_output_schema: bool) -> None:
    form = {"modern": modern, "has_output_schema": has_output_schema}
    for made, status in (
        (denied_result(HELD, "not today", **form), "confirmation_denied"),
        (open_result(HELD, **form), "confirmation_required"),
    ):
        read = json.loads(made)
        assert read["isError"] is True
        assert read["_meta"]["x-mcpax-confirmation"]["status"] == status
        assert ("structuredContent" in read) is not has_output_schema
        assert ("resultType" in read) is modern
        assert "Nothing was executed" in read["content"][0]["text"]
    assert "not today" in json.loads(denied_result(HELD, "not today", **form))["content"][0]["text"]
