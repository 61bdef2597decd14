"""An inbox of fixed approvals behind the real operator door; it takes every decision and records it."""

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from msgspec import Raw

from interlock.approvals.api import (
    AMBIGUOUS_ID,
    DECIDE_APPROVAL,
    FOLLOW_APPROVALS,
    GET_APPROVAL,
    LIST_APPROVALS,
    Approval,
    Approvals,
    ApprovalSummary,
    DecideApproval,
)
from interlock.approvals.operations.inbox import check_may_decide
from interlock.core.operator_errors import refused_as
from interlock.gate.protocol.held_call import call_digest, read_proof_untrusted
from interlock.operator.operation import handles
from interlock.wire.jsontext.canonical import tool_digest
from interlock.wire.refusal import NotFound

OWN_ID = "550e8400-e29b-41d4-a716-446655440000"
CALL_ID = "3f9c0a1b-0000-4000-8000-000000000001"
DEFINITION_ID = "7e57ab1e-0000-4000-8000-000000000002"
CHANGE_ID = "7e57c0de-0000-4000-8000-000000000003"
ARGUMENTS = Raw(b'{"path":"/srv/\\u202egpj.exe","text":"\xe2\x80\xaex\x7f","n":1.10,"deep":{"list":[1,2,[]]}}')
TOOL_DIGEST = "ab" * 32


def approval(id: str, kind: str = "call", **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "id": id,
        "kind": kind,
        "source": "ax",
        "status": "pending",
        "requested_by": "client:agent",
        "agent": "coder",
        "room": None,
        "tool": "files.delete",
        "reason": "it cannot be undone",
        "requires": "proof",
        "created_at": "2026-11-15T10:00:00Z",
        "expires_at": "2026-11-15T10:05:00Z",
        "redeem_by": None,
        "left_s": 245,
        "decision": None,
        "outcome": None,
        "url": f"http://127.0.0.1:7412/approvals/{id}",
        "proposal_id": None,
        "target": None,
        "method": "tools/call",
        "params": ARGUMENTS,
        "route": ["files", "delete"],
        "capability": {"mutable": True, "reversible": False},
        "tool_digest": TOOL_DIGEST,
        "nonce": "n",
        "factors": [],
        "gating_link": None,
        "answers": [],
        "approvers": ["ada", "change-desk"],
        "aggregator_id": OWN_ID,
        "passkey_origin": None,
    }
    made |= more
    made.setdefault("name", made["tool"])
    digest = call_digest(
        ARGUMENTS,
        aggregator_id=OWN_ID,
        tool=made["tool"],
        route=made["route"],
        caller=made["requested_by"],
        tool_digest=TOOL_DIGEST,
    )
    return {"digest": digest} | made


def digest_of(definition: dict[str, str]) -> str:
    item = {key: Raw(msgspec.json.encode(value)) for key, value in definition.items()}
    return tool_digest(item, downstream_name=definition["name"], declared=None)


class FakeApprovals:
    def __init__(self) -> None:
        tidy = {"name": "tidy", "description": "Tidies up."}
        reads, sends = ({"name": "read", "description": said} for said in ("Reads.", "Reads, and sends."))
        self.all = [
            approval(CALL_ID),
            approval(
                DEFINITION_ID,
                "definition",
                tool="notes.tidy",
                digest=digest_of(tidy),
                answers=["read_only", "reversible", "irreversible"],
                params={"definition": tidy},
                expires_at=None,
                left_s=None,
                capability=None,
            ),
            approval(
                CHANGE_ID,
                "definition",
                tool="notes.read",
                digest=digest_of(sends),
                answers=["accept"],
                params={"before": reads, "after": sends},
                expires_at=None,
                left_s=None,
                requested_by="node",
                agent=None,
            ),
        ]
        self.decided: list[dict[str, Any]] = []

    @handles(LIST_APPROVALS)
    def list_all(self, kind: str | None, status: str) -> Approvals:
        listed = [
            approval
            for approval in self.all
            if kind in (None, approval["kind"]) and status in ("all", approval["status"])
        ]
        encoded = msgspec.json.encode({"approvals": listed, "total": len(listed)})
        return msgspec.json.decode(encoded, type=Approvals)

    @handles(FOLLOW_APPROVALS)
    async def follow(self) -> AsyncGenerator[ApprovalSummary, None]:
        for approval in self.all:
            yield msgspec.json.decode(msgspec.json.encode(approval), type=ApprovalSummary)

    @handles(GET_APPROVAL)
    def get(self, id: str) -> Approval:
        return msgspec.json.decode(msgspec.json.encode(self._find(id)), type=Approval)

    @handles(DECIDE_APPROVAL)
    async def decide(self, id: str, body: DecideApproval, by: str, roles: frozenset[str]) -> Approval:
        check_may_decide(roles)
        approval = self._find(id)
        decision: dict[str, Any] = {"id": approval["id"], "status": "denied", "by": by, "reason": body.reason}
        if body.decision == "approve":
            proof = read_proof_untrusted(body.proof) if body.proof else None
            decision |= {"status": "approved", "answer": body.tool_class, "proof": proof}
        self.decided.append(decision)
        status = decision["status"]
        approval |= {"status": status, "params": None, "left_s": 300 if status == "approved" else None}
        return self.get(id)

    def _find(self, reference: str) -> dict[str, Any]:
        matches = [approval for approval in self.all if approval["id"].startswith(reference)]
        if not matches:
            raise NotFound("approval", reference)
        if len(matches) > 1:
            raise refused_as(AMBIGUOUS_ID, "several approvals have an id that begins like this; give more of it")
        return matches[0]
