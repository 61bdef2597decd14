"""Changes of the configuration that loosen the guard: they wait until an approver has signed them.

The configuration belongs to the user who runs the node, and an agent with a shell can run as the same user. Refusing to
read what was edited would not help. Instead, once somebody may approve such changes, every key of the guard keeps the
value that was signed, as far as the value that is written now would let through more (`config.loosening`). A stricter
value counts at once. The difference is shown in the log, the audit log, the status and the inbox, and counts as soon as
an approver signs it.

As long as no one could sign, changes count at once and are recorded. Only verification codes are still kept from
channels that no one signed.

`find_plan_in_effect` computes what counts before a node is constructed, and `GuardChanges` while it runs.
"""

import logging
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.approvals.decisions import DecisionReceiver
from interlock.approvals.enrolments import BUCKET as ENROLLED
from interlock.approvals.enrolments import Enrolments
from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Kind, Source, Status, What
from interlock.approvals.protocol.digests import enrolment_digest
from interlock.config.loosening import (
    CHANNELS,
    SIGNED,
    describe_loosening,
    hold_back,
    join_bindings,
    join_signed,
    limit_lines,
    signed_values,
    withhold_secrets,
)
from interlock.config.order import fingerprint
from interlock.config.plan import Plan
from interlock.config.secret_uses import BINDINGS, read_bindings
from interlock.core.audit_record import AuditRecord
from interlock.core.clock import Clock
from interlock.core.feed import Feed
from interlock.core.recorder import Recorder
from interlock.store.ports import KeyValue, StoreError
from interlock.wire.refusal import Refusal

log = logging.getLogger("interlock.approvals")

BUCKET, KEY = SIGNED
TOOL: Final = "configuration.guard"
NODE: Final = "node"
LINES_MAX: Final = 1000  # shown and stored of one change
_REASON: Final = (
    "the configuration was changed and would let through more than before; the values that were signed stay in effect"
)


async def find_plan_in_effect(written: Plan, shared: KeyValue, local: KeyValue, now: float) -> Plan:
    """Return the plan with which a node starts: the written configuration without the values that loosen the guard and
    are not signed.
    """
    signed = await _read_signed(local, now)
    has_approver = bool(await shared.entries(ENROLLED, now))
    if signed is None:
        return written
    signed = join_bindings(signed, await _read_bindings(local, now))
    return hold_back(signed, written) if has_approver else withhold_secrets(signed, written)


async def find_unsigned(written: Plan, local: KeyValue, now: float) -> tuple[str, ...]:
    """Return a line for each value of the written plan that loosens the guard and is not signed."""
    signed = await _read_signed(local, now)
    return () if signed is None else describe_loosening(hold_back(signed, written), written)


async def sign_first(written: Plan, local: KeyValue, now: float) -> None:
    """Store the values of the written plan as signed if no values are signed yet. This is for an approver that was
    enrolled before the first start.
    """
    # AX-11.N-12
    if await _read_signed(local, now) is None:
        await local.put(BUCKET, KEY, msgspec.json.encode(signed_values(written)), now)


async def accept_written(
    written: Plan, local: KeyValue, recorder: Recorder, now: float, *, by: str, key_print: str
) -> None:
    """Store the values of the written plan as signed, after an audit record about it. `by` and `key_print` are the name
    and the thumbprint of the approver's key that a person has opened at a terminal. Raise StoreError if the store or
    the audit log fails.
    """
    lines = limit_lines(await find_unsigned(written, local, now), LINES_MAX)
    # AX-11.N-8: on record before it counts
    record = AuditRecord.event(
        now, by, "operator", "config/accept", verdict="signed", outcome="in effect", keys=[key_print], lines=lines
    )
    await recorder.append_now(record)
    values = join_signed(await _read_signed(local, now) or {}, written)
    await local.put(BUCKET, KEY, msgspec.json.encode(values), now)


async def _read_signed(local: KeyValue, now: float) -> dict[str, Any] | None:
    entry = await local.get(BUCKET, KEY, now)
    return None if entry is None else msgspec.json.decode(entry.value, type=dict[str, Any])


async def _read_bindings(local: KeyValue, now: float) -> dict[str, None]:
    return read_bindings(entry.value for entry in await local.entries(BINDINGS, now))


class GuardChanges(DecisionReceiver):
    """The service that compares the written configuration with the values that approvers have signed. Values that
    weaken the guard take effect only after an approver has signed them.

    The signed values are those of the first start, all that an approver signed or that tightened the guard since, and
    what was written while no one could sign.
    """

    def __init__(
        self, written: Plan, kv: KeyValue, inbox: Inbox, enrolments: Enrolments, recorder: Recorder, clock: Clock
    ) -> None:
        self._written = written
        self._signed = signed_values(written)
        self._kv = kv
        self._inbox = inbox
        self._enrolments = enrolments
        self._recorder = recorder
        self._clock = clock
        self._stored: dict[str, Any] | None = None
        self._reported = b""
        self._bindings: dict[str, None] = {}
        # Published when an approver has signed the written configuration, or a secret may go elsewhere. The
        # configuration has to be applied then.
        self.signed = Feed[None]()

    async def open(self) -> None:
        """Load the signed values, and apply approvals that are not stored yet. Raise
        StoreError if the store fails.
        """
        signed = await _read_signed(self._kv, self._clock.wall())
        if signed is None:
            await self._keep(self._signed)
        else:
            self._signed = self._stored = signed
        for approval in self._inbox.listed((Status.APPROVED,), Kind.CONFIGURATION):
            if not self._inbox.is_elsewhere(approval.id):
                await self.settle(approval)
        await self.hold_back(self._written)

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""

    async def hold_back(self, written: Plan) -> Plan:
        """Return the plan that takes effect when `written` is the configuration: without values that loosen the guard
        and are not signed. Report these values once. Raise StoreError if the store fails.
        """
        self._written = written
        await self._read()
        confirmed = self._confirmed
        held = hold_back(confirmed, written)
        lines = describe_loosening(held, written)
        # AX-11.N-1: an approver that was removed from the configuration counts as well
        if self._enrolments.has_approver:
            await self._keep(join_signed(self._signed, hold_back(self._signed, written)))
            await self._report(lines, "waits")
            return held
        await self._report(lines, "in effect")
        # No one could sign: everything counts, but new channels get no codes and new places no stored secrets.
        unsigned = withhold_secrets(self._signed, written)
        await self._keep({**join_signed(self._signed, unsigned), CHANNELS: signed_values(held)[CHANNELS]})
        return withhold_secrets(confirmed, written)

    @property
    def loosened(self) -> tuple[str, ...]:
        """Return a line for each value that loosens the guard and that no approver has signed yet."""
        return describe_loosening(hold_back(self._confirmed, self._written), self._written)

    @property
    def written(self) -> Plan:
        """Return the plan as the files have it."""
        return self._written

    @property
    def _confirmed(self) -> dict[str, Any]:
        """Return the signed values together with the uses that people confirmed when they set a secret."""
        return join_bindings(self._signed, self._bindings)

    @property
    def may_send_codes(self) -> bool:
        """Return whether every channel that shows verification codes has been signed or existed at the first start, so
        that it may get codes.
        """
        return hold_back(self._signed, self._written).approvals.channels == self._written.approvals.channels

    async def settle(self, approval: Approval) -> Approval | Refusal:
        decision = approval.decision
        if decision is None or decision.what is not What.APPROVED or approval.params is None:
            return approval
        try:
            await self._read()
            # Nothing is awaited between these two: the files may change at any time, and what counts from now on must
            # be what was signed.
            is_current = approval.digest == enrolment_digest(self._params())
            signed = join_signed(self._signed, self._signable)
            if is_current:
                await self._keep(signed)
        except StoreError as refused:
            log.error("that the configuration was signed cannot be written down: %s", refused)
            return approval
        if is_current:
            self._reported = b""
        settled = await self._inbox.carry_out(approval.id)
        if is_current:
            self.signed.publish(None)
        return settled

    @property
    def _signable(self) -> Plan:
        """Return the plan that approvers are asked to sign. It leaves out the uses of secrets that people have already
        confirmed.
        """
        withheld = frozenset(hold_back(self._confirmed, self._written).withheld_secrets)
        unsigned = hold_back(self._signed, self._written).withheld_secrets
        return msgspec.structs.replace(
            self._written, withheld_secrets=tuple(use for use in unsigned if use not in withheld)
        )

    async def _report(self, lines: tuple[str, ...], outcome: str) -> None:
        """Write an audit record about the values that loosen the guard, and ask the approvers to sign them. Do nothing
        if that was done for the same values.
        """
        params = self._params()
        if params == self._reported:
            return
        self._reported = params
        digest = enrolment_digest(params) or ""
        await self._inbox.void_where(
            "the configuration is another by now",
            lambda approval: (
                approval.kind is Kind.CONFIGURATION
                and approval.digest != digest
                and not self._inbox.is_elsewhere(approval.id)
            ),
        )
        if not lines:
            return
        log.warning("the configuration would let through more than was signed for: %s", "; ".join(lines[:20]))
        now, shown = self._clock.wall(), limit_lines(lines, LINES_MAX)
        record = AuditRecord.event(
            now, NODE, "operator", "config/loosen", verdict="loosened", outcome=outcome, lines=shown
        )
        await self._recorder.append_now(record)
        if not self._enrolments.has_approver:
            return
        kind, source = Kind.CONFIGURATION, Source.NODE
        members = {"params": Raw(params), "reason": _REASON, "method": "config/change"}
        draft = self._inbox.draft(kind, source, requested_by=NODE, tool=TOOL, digest=digest, **members)
        await self._inbox.raise_(draft)

    def _params(self) -> bytes:
        """Return the encoded content of the approval to sign: a line for each value that loosens the guard, and a
        digest of all values of the configuration.
        """
        values = fingerprint(signed_values(self._written))
        return msgspec.json.encode(
            {"loosened": limit_lines(self.loosened, LINES_MAX), "configuration": f"sha256:{values}"}
        )

    async def _read(self) -> None:
        """Read the signed values, and the destinations that people have confirmed for secrets, from the store."""
        self._bindings = await _read_bindings(self._kv, self._clock.wall())
        signed = await _read_signed(self._kv, self._clock.wall())
        if signed is not None:
            self._signed = self._stored = signed

    async def _keep(self, signed: dict[str, Any]) -> None:
        if signed != self._stored:
            await self._kv.put(BUCKET, KEY, msgspec.json.encode(signed), self._clock.wall())
        self._signed = self._stored = signed
