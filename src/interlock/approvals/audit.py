"""Audit records of approvals. A decision is recorded before it takes effect, every other change of status soon after
it.

`subject_name` returns the familiar name of what an approval is about. `Approval.tool` is the signed subject, which may
differ: `drivers.filesystem-mcp@1` for the server named `filesystem`.
"""

from dataclasses import dataclass
from typing import Any, Final

from interlock.approvals.protocol.approval import Approval, Decision, Kind, Source, Status, What
from interlock.core.audit_record import AuditRecord, digest_of
from interlock.core.recorder import Recorder
from interlock.drivers.protocol.server_name import server_name

_NODE: Final = "node"
_METHODS: Final = {What.APPROVED: "approvals/approve", What.DENIED: "approvals/deny"}


@dataclass(eq=False)
class ApprovalAudit:
    """The writer of audit records about approvals."""

    recorder: Recorder

    async def record_decision(self, approval: Approval, decision: Decision, outcome: str = "decided") -> None:
        """Record a decision. The record is on disk when this returns. Raise StoreError if nothing could be recorded."""
        facts = decision.proof.facts if decision.proof is not None else {}
        more = {**facts, "answer": decision.answer, "reason": decision.reason}
        at, who, what = decision.at, decision.by, decision.what
        line = _line(approval, at=at, who=who, method=_METHODS[what], verdict=what.value, outcome=outcome, **more)
        await self.recorder.append_now(line)

    def record_reveal(self, approval: Approval, *, at: float, by: str, anchor: str) -> None:
        """Record that an operator saw the code of an approval. The code itself is never recorded."""
        method, shown = "approvals/reveal", "shown"
        self.recorder.add_line(
            _line(approval, at=at, who=by, method=method, verdict=shown, outcome=shown, anchor=anchor)
        )

    def record_move(self, approval: Approval, at: float, before: Approval | None) -> None:
        """Record that the status of an approval changed. `before` is the approval before the change, or None for a new
        approval; it still has the arguments, which the change may erase.
        """
        verdict = approval.status.value
        who = approval.requested_by if before is None or approval.status is Status.WITHDRAWN else _NODE
        method, reason = ("approvals/raise", approval.reason) if before is None else ("approvals/move", None)
        outcome, subject = approval.outcome or verdict, before or approval
        line = _line(subject, at=at, who=who, method=method, verdict=verdict, outcome=outcome, reason=reason)
        self.recorder.add_line(line)


def _line(approval: Approval, *, at: float, who: str, method: str, verdict: str, outcome: str, **more: Any) -> bytes:
    subject = {"approval": approval.id, "kind": approval.kind.value, "requested_by": approval.requested_by}
    details: dict[str, Any] = {**subject, "digest": approval.digest, "tool_digest": approval.tool_digest}
    more |= {"room": approval.room, "proposal": approval.proposal_id}
    details |= {key: value for key, value in more.items() if value is not None}
    if approval.params is not None:
        details["args_sha256"] = str(digest_of(approval.params))
    name = subject_name(approval)
    return AuditRecord.event(at, who, "approvals", method, name, verdict=verdict, outcome=outcome, **details)


def subject_name(approval: Approval) -> str:
    """Return the name that people use for the subject of an approval: a server, an approver, a registered name or a
    tool.
    """
    if approval.is_about_driver:
        return server_name(approval.tool.removeprefix("drivers."))
    if approval.kind is Kind.ENROLMENT:
        return approval.tool.removeprefix("approvers.")
    return approval.tool.removeprefix("names.") if approval.source is Source.NAMES else approval.tool
