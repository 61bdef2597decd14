"""An inbox of fixed approvals behind the real operator door; it takes every decision and keeps what it was told."""

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from msgspec import Raw

from interlock.approvals.api import Approval, Approvals, ApprovalSummary
from interlock.approvals.protocol.approval import Kind, Status
from interlock.approvals.protocol.errors import UNKNOWN
from interlock.approvals.views import Ambiguous
from interlock.gate.protocol.held_call import Presented, call_digest
from interlock.wire.jsontext.canonical import tool_digest
from interlock.wire.refusal import Refusal

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

    def list_all(self, kind: Kind | None, statuses: frozenset[Status]) -> Approvals:
        found = [
            one for one in self.all if (kind is None or one["kind"] == kind.value) and Status(one["status"]) in statuses
        ]
        encoded = msgspec.json.encode({"approvals": found, "total": len(found)})
        return msgspec.json.decode(encoded, type=Approvals)

    def maybe_one(self, reference: str) -> Approval | None:
        one = self._maybe_find(reference)
        return None if one is None else msgspec.json.decode(msgspec.json.encode(one), type=Approval)

    def _maybe_find(self, reference: str) -> dict[str, Any] | None:
        found = [one for one in self.all if one["id"].startswith(reference)]
        if len(found) > 1:
            raise Ambiguous([one["id"] for one in found])
        return found[0] if found else None

    async def approve(
        self,
        reference: str,
        proof: Presented | None,
        *,
        by: str,
        reason: str | None,
        answer: str | None,
        code: str | None = None,
    ) -> Approval | Refusal:
        return self._decide(reference, "approved", by=by, reason=reason, answer=answer, proof=proof)

    async def deny(
        self, reference: str, *, by: str, reason: str | None, answer: str | None = None
    ) -> Approval | Refusal:
        return self._decide(reference, "denied", by=by, reason=reason)

    def _decide(self, reference: str, status: str, **decision: Any) -> Approval | Refusal:
        one = self._maybe_find(reference)
        if one is None:
            return UNKNOWN
        self.decided.append({"id": one["id"], "status": status, **decision})
        one |= {"status": status, "params": None, "left_s": 300 if status == "approved" else None}
        return msgspec.json.decode(msgspec.json.encode(one), type=Approval)

    async def changes(self) -> AsyncGenerator[ApprovalSummary, None]:
        for one in self.all:
            yield msgspec.json.decode(msgspec.json.encode(one), type=ApprovalSummary)
