"""Changes of the configuration that loosen the guard. They take effect at once, are recorded, and are shown until an
approver signs them.

The configuration file belongs to the user who runs the node, and an agent with a shell can run as the same user, so
refusing such changes would not help. Instead, a change of the gate, of the classes of tools or of the safety loop is
made visible: in the log, in the audit log, in the status and in the inbox, where an approver confirms that the change
was theirs. Only one kind of change waits for that signature: a new channel that would send codes of agents to other
machines.
"""

import logging
from typing import Final

import msgspec
from msgspec import Raw

from interlock.approvals.decisions import DecisionReceiver
from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Kind, Source, Status, What
from interlock.approvals.protocol.digests import enrolment_digest
from interlock.approvals.trust.anchors import Anchors
from interlock.config.difference import GuardLines, code_channels, guard_lines
from interlock.config.plan import Plan
from interlock.core.audit_record import AuditRecord
from interlock.core.clock import Clock
from interlock.core.recorder import Recorder
from interlock.store.ports import KeyValue, StoreError
from interlock.wire.refusal import Refusal

log = logging.getLogger("interlock.approvals")

BUCKET: Final = "guard-lines"
KEY: Final = "signed"
TOOL: Final = "configuration.guard"
NODE: Final = "node"
LINES_MAX: Final = 1000  # shown and stored of one change
_REASON: Final = "the configuration was changed and lets through more than before; it is in effect"


class GuardChanges(DecisionReceiver):
    """The watch over configuration changes that loosen the guard. It compares the present settings with those that
    count as signed.

    These are the settings of the first start, all that an approver signed or that tightened the guard since, and
    loosened settings that no approver could sign, except channels that send codes.
    """

    def __init__(
        self, plan: Plan, kv: KeyValue, inbox: Inbox, anchors: Anchors, recorder: Recorder, clock: Clock
    ) -> None:
        self._now = guard_lines(plan)
        self._signed = self._now
        self._kv = kv
        self._inbox = inbox
        self._anchors = anchors
        self._recorder = recorder
        self._clock = clock
        self._told: tuple[str, ...] = ()

    async def open(self) -> None:
        """Load the signed configuration, and apply approvals that are not stored yet. Raise
        StoreError if the store fails.
        """
        entry = await self._kv.get(BUCKET, KEY, self._clock.wall())
        if entry is None:
            await self._keep(self._now)
        else:
            self._signed = msgspec.json.decode(entry.value, type=GuardLines)
        for approval in self._inbox.listed((Status.APPROVED,), Kind.CONFIGURATION):
            if not self._inbox.is_elsewhere(approval.id):
                await self.settle(approval)
        await self._look()

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""

    async def replan(self, plan: Plan) -> None:
        self._now = guard_lines(plan)
        await self._look()

    @property
    def loosened(self) -> tuple[str, ...]:
        """Return the settings that make the guard less strict than an approver has signed."""
        return self._now.loosened_since(self._signed)

    @property
    def may_send_codes(self) -> bool:
        """Return whether codes may be sent to other machines: no channel for them still waits for the signature of an
        approver.
        """
        return not code_channels(self.loosened)

    async def settle(self, approval: Approval) -> Approval | Refusal:
        decision = approval.decision
        if decision is None or decision.what is not What.APPROVED or approval.params is None:
            return approval
        if approval.digest == enrolment_digest(self._params()):
            try:
                await self._keep(self._now)
            except StoreError as refused:
                log.error("that the configuration was signed cannot be written down: %s", refused)
                return approval
            self._told = ()
        return await self._inbox.carry_out(approval.id)

    async def _look(self) -> None:
        tightened = self._signed.tightened_by(self._now)
        if tightened != self._signed:
            await self._keep(tightened)
        loosened = self.loosened
        if loosened == self._told:
            return
        self._told = loosened
        digest = enrolment_digest(self._params()) or ""
        await self._inbox.void_where(
            "the configuration is another by now",
            lambda approval: (
                approval.kind is Kind.CONFIGURATION
                and approval.digest != digest
                and not self._inbox.is_elsewhere(approval.id)
            ),
        )
        if not loosened:
            return
        log.warning("the configuration lets through more than was signed for: %s", "; ".join(loosened[:20]))
        now, lines = self._clock.wall(), loosened[:LINES_MAX]
        verdict, outcome, method = "loosened", "in effect", "config/loosen"
        record = AuditRecord.event(now, NODE, "operator", method, verdict=verdict, outcome=outcome, lines=lines)
        await self._recorder.append_now(record)
        if not self._anchors.approver_names(TOOL):
            unsigned = code_channels(loosened)  # no one could sign: the rest is on record
            await self._keep(GuardLines(loose=self._now.loose - set(unsigned), strict=self._now.strict))
            return
        shown = {"params": Raw(self._params()), "reason": _REASON, "method": "config/change"}
        kind, source = Kind.CONFIGURATION, Source.NODE
        draft = self._inbox.draft(kind, source, requested_by=NODE, tool=TOOL, digest=digest, **shown)
        await self._inbox.raise_(draft)

    def _params(self) -> bytes:
        return msgspec.json.encode({"loosened": self.loosened[:LINES_MAX]})

    async def _keep(self, lines: GuardLines) -> None:
        ordered = {"loose": sorted(lines.loose), "strict": sorted(lines.strict)}
        await self._kv.put(BUCKET, KEY, msgspec.json.encode(ordered), self._clock.wall())
        self._signed = lines
