"""What an approval can become, and how each refusal is named."""

import itertools
import re
from pathlib import Path

import pytest

from interlock.approvals.protocol.approval import (
    ENDS,
    LIVE,
    TABLE,
    Approval,
    Decision,
    Kind,
    Move,
    Source,
    Status,
    What,
    find_next_status,
    refusal_of,
)
from interlock.wire.refusal import (
    CONFIRMATION_DENIED,
    CONFIRMATION_EXPIRED,
    CONFIRMATION_UNKNOWN,
    CONFIRMATION_USED,
    CONFIRMATION_VOID,
)

# SURFACE 7, written a second time by hand.
ROWS = {
    "pending": {
        "approve": "approved",
        "deny": "denied",
        "withdraw": "withdrawn",
        "expire": "expired",
        "void": "void",
    },
    "approved": {"use": "used", "deny": "denied", "expire": "expired", "void": "void"},
    "used": {"succeed": "done", "fail": "failed", "lose": "unknown"},
}


def approval(**members: object) -> Approval:
    given = {
        "id": "c0ffee00-0000-4000-8000-000000000001",
        "kind": Kind.CALL,
        "source": Source.AX,
        "requested_by": "client:alice",
        "tool": "files.delete",
        "digest": "d" * 64,
        "created_at": 1.0,
        **members,
    }
    return Approval(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("status", "move"), list(itertools.product(Status, Move)))
def test_every_state_and_move_does_what_the_table_of_the_surface_says(status: Status, move: Move) -> None:
    after = find_next_status(status, move)
    assert (after.value if after else None) == ROWS.get(status.value, {}).get(move.value)


def test_the_diagram_in_the_documentation_is_the_table() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "approvals.md").read_text("utf-8")
    drawn = re.findall(r"^    (\w+) --> (\w+)$", page, re.MULTILINE)
    assert sorted(drawn) == sorted((before.value, after.value) for (before, _), after in TABLE.items())


def test_the_ends_are_the_states_that_nothing_leaves_and_live_states_are_no_ends() -> None:
    assert {status.value for status in ENDS} == {status.value for status in Status} - ROWS.keys()
    assert {status.value for status in LIVE} == {"pending", "approved"}


def test_only_an_approved_call_can_be_used_and_only_once() -> None:
    assert [status for status in Status if find_next_status(status, Move.USE)] == [Status.APPROVED]
    assert find_next_status(Status.USED, Move.USE) is None


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (Status.PENDING, CONFIRMATION_UNKNOWN),
        (Status.APPROVED, CONFIRMATION_USED),
        (Status.USED, CONFIRMATION_USED),
        (Status.DONE, CONFIRMATION_USED),
        (Status.FAILED, CONFIRMATION_USED),
        (Status.UNKNOWN, CONFIRMATION_USED),
        (Status.EXPIRED, CONFIRMATION_EXPIRED),
        (Status.VOID, CONFIRMATION_VOID),
        (Status.WITHDRAWN, CONFIRMATION_VOID),
        (Status.DENIED, CONFIRMATION_DENIED),
    ],
)
def test_every_state_has_a_refusal_with_its_number_and_name(status: Status, code: str) -> None:
    fault = refusal_of(approval(status=status))
    assert (fault.code, fault.message) == (code, code)
    assert fault.details is not None
    assert fault.details["detail"]


@pytest.mark.req("X-4.2.1-5", "X-7.3-4")
@pytest.mark.parametrize("status", Status)
def test_a_claimed_or_late_proposal_has_its_own_messages_and_calls_keep_theirs(status: Status) -> None:
    told, usual = (refusal_of(approval(status=status, kind=kind)) for kind in (Kind.PROPOSAL, Kind.CALL))
    words = {CONFIRMATION_USED: "already_claimed", CONFIRMATION_EXPIRED: "proposal_expired"}
    assert (told.code, usual.message) == (usual.code, usual.code)
    assert told.message == words.get(usual.code, usual.message)
    assert told.details is not None and usual.details is not None
    assert (told.details["reason"], told.details["confirmation_id"]) == (
        usual.details["reason"],
        usual.details["confirmation_id"],
    )
    assert told.details["detail"]


def test_a_refusal_repeats_the_operators_reason_and_the_outcome() -> None:
    said = Decision(what=What.DENIED, by="operator:bob", at=2.0, reason="not on a Friday")
    denied = refusal_of(approval(status=Status.DENIED, decision=said)).details
    assert denied is not None
    assert denied["said"] == "not on a Friday"
    void = refusal_of(approval(status=Status.VOID, outcome="definition_changed")).details
    assert void is not None
    assert void["outcome"] == "definition_changed"


def test_a_deadline_is_expiry_while_pending_and_redemption_once_approved() -> None:
    pending = approval(expires_at=301.0, redeem_by=None)
    assert pending.deadline == 301.0
    assert approval(status=Status.APPROVED, expires_at=301.0, redeem_by=500.0).deadline == 500.0
    assert all(approval(status=end, expires_at=301.0, redeem_by=500.0).deadline is None for end in ENDS | {Status.USED})
