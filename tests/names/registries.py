"""A registry of names on a real store and inbox, with a clock that stands until it is moved, and experts who decide."""

import contextlib
import datetime
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from msgspec import Raw
from tests.approvals.inboxes import ManualClock, StoredInbox, stored_inbox

from interlock.approvals.decisions import DecisionService
from interlock.approvals.protocol.approval import Approval, Kind, Status
from interlock.gate.protocol.held_call import Presented
from interlock.gate.protocol.proofs import ProofQuestion, Verified
from interlock.names.actions import NamesActions, Sightings
from interlock.names.documents import DocumentWatch
from interlock.names.protocol.criteria import judge_proposal
from interlock.names.protocol.entry import RegistryEntry
from interlock.names.protocol.registry import CheckFinding, NameProposal, NameRequest, Retrieval
from interlock.names.registry_parts import Reminders
from interlock.names.requests import RequestDecisions, RequestService
from interlock.names.state import Actor, RegistryState, own_entry
from interlock.store.sqlite.store import SqliteNamesLog
from interlock.wire.refusal import Refusal

ACME = Actor(principal="client:acme")
ZEBRA = Actor(principal="client:zebra")
ARGUMENTS = Raw(b'{"type":"object","properties":{"q":{"type":"string"}},"required":["q"]}')
RETURNS = Raw(b'{"type":"object","properties":{"hits":{"type":"integer"}},"required":["hits"]}')


def proposal(name: str = "acme_search", **members: Any) -> NameProposal:
    given: dict[str, Any] = {
        "surface_name": name,
        "change_controller": "Acme",
        "specification_reference": "draft-acme-search-03",
        "authentication_scope": "member-recognition",
        "vendor_prefix": "acme_",
        "argument_schema": ARGUMENTS,
        "return_schema": RETURNS,
        "semantics": "section 2",
        **members,
    }
    return NameProposal(**given)


class Signatures:
    """Believes every proof: the token is the expert's name."""

    async def judge(self, asked: ProofQuestion, proof: Presented) -> Verified | Refusal:
        return Verified(
            type="operator_signature",
            anchor=proof.token,
            issuer=proof.token,
            jti=asked.confirmation_id,
            key=f"key of {proof.token}",
            expires_at=1e12,
        )


class NamesNode:
    def __init__(self, desk: StoredInbox, folder: Path) -> None:
        self.clock, self.inbox = desk.clock, desk.inbox
        self.desk = desk
        self.experts: tuple[str, ...] = ("eve", "acme")
        self.may_self_review = False
        self.document = Retrieval(outcome="retrieved", at="2026-11-17", digest="sha256:00")
        self.state = RegistryState(SqliteNamesLog(folder), desk.recorder, desk.clock)
        self.sightings = Sightings(self.state, desk.store.kv, desk.clock)
        self.offered: list[tuple[str, str]] = []
        self.sightings.provide(lambda: self.offered)
        decisions = RequestDecisions(self.state, desk.inbox, lambda _: self.experts, lambda: self.may_self_review)
        self.requests = RequestService(self.state, desk.inbox, self._fetch, decisions, self.sightings.under)
        self.watch = DocumentWatch(self.state, self._fetch, desk.store.kv, desk.clock)
        self.reminders = Reminders(self.state, self.requests.remind)
        self.actions = NamesActions(self.state, self.requests, self.sightings)
        self.deciding = DecisionService(
            desk.inbox, desk.clock, "node", judge=Signatures(), receivers={Kind.REQUEST: decisions}
        )

    def check(self, proposal: NameProposal) -> tuple[CheckFinding, ...]:
        return judge_proposal(proposal, self.state.registry, self.state.today, None)

    async def _fetch(self, reference: str) -> Retrieval:
        return self.document

    def set_day(self, day: str) -> None:
        self.clock.wall_at = datetime.datetime.fromisoformat(f"{day}T12:00:00+00:00").timestamp()

    async def amend(self, actor: Actor, amended: NameProposal) -> NameRequest:
        """File a new revision of the entry that has the proposed name."""
        entry = own_entry(self.state.registry, amended.surface_name)
        return await self.requests.file(actor, amended, amends=entry)

    def entry(self, name: str = "acme_search") -> RegistryEntry:
        entry = self.state.entry(name)
        assert entry is not None, name
        return entry

    def waiting(self, request: NameRequest) -> Approval:
        (found,) = [one for one in self.inbox.listed() if one.target == request.id]
        return found

    async def accept(
        self, request: NameRequest, by: str = "eve", reason: str | None = "looked at", answer: str | None = None
    ) -> Approval | Refusal:
        return await self.deciding.approve(
            self.waiting(request).id, Presented(token=by), by=f"operator:{by}", reason=reason, answer=answer
        )

    async def deny(
        self, request: NameRequest, reason: str | None = "no", answer: str | None = None
    ) -> Approval | Refusal:
        return await self.deciding.deny(self.waiting(request).id, by="operator:eve", reason=reason, answer=answer)

    async def registered(self, name: str = "acme_search", actor: Actor = ACME, **members: Any) -> RegistryEntry:
        done = await self.accept(await self.requests.file(actor, proposal(name, **members)))
        assert isinstance(done, Approval), done
        assert done.status is Status.DONE, done.outcome
        return self.entry(name)


@contextlib.asynccontextmanager
async def names_at(folder: Path, clock: ManualClock | None = None) -> AsyncIterator[NamesNode]:
    async with stored_inbox(folder, clock) as desk:
        here = NamesNode(desk, folder)
        if clock is None:
            here.set_day("2026-11-17")
        await here.state.open()
        await here.requests.open()
        try:
            yield here
        finally:
            await here.state.close()
