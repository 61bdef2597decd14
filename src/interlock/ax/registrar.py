"""The aggregator's side of MCP-AX: subservers that register become links of the node, for as long as they live.

It takes messages that fronts have read, with their senders, and returns answers. What a registration may be is decided
by `Registrations`, with what the store remembers; what then happens is done by `Members`.
"""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from interlock.approvals.trust.registrant import AuthorityProofs
from interlock.ax.memberships import NAME as OWN_TOOL
from interlock.ax.memberships import Members, MembershipParts, RegistrationSource
from interlock.ax.ownership import Owners
from interlock.ax.protocol.messages import (
    CLAIM,
    DEREGISTER,
    HEARTBEAT,
    REGISTER,
    VERSION,
    Claims,
    Parent,
    Register,
    Registered,
)
from interlock.ax.protocol.registration.codec import (
    DEREGISTERED,
    encode_heartbeat_answer,
    encode_held,
    read_claims_untrusted,
    read_deregister_untrusted,
    read_heartbeat_untrusted,
)
from interlock.ax.protocol.registration.leases import asks_parent, check_parent, split_brain
from interlock.ax.protocol.registration.registrations import (
    Event,
    Joined,
    Owner,
    Peer,
)
from interlock.ax.protocol.transport_classes import TRANSPORT_CLASSES
from interlock.config.plan import Plan
from interlock.links.registered import RegisteredLink
from interlock.store.ports import StoreError
from interlock.wire.jsonrpc.codec import Notification, Request, encode_refusal, encode_result
from interlock.wire.refusal import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    LINK_INSECURE,
    METHOD_NOT_FOUND,
    NAMESPACE_CONFLICT,
    UNAVAILABLE,
    Refusal,
    ax_refusal,
)

log = logging.getLogger("interlock.ax")

SESSION_ID_BYTES: Final = 24  # MCP-AX 6.2: at least 128 random bits
CLAIMING_MAX: Final = 100  # of one registrant at once
VERSIONS_NOTED_MAX: Final = 100  # strange versions that are told apart in the log


class Registrar(Members):
    def __init__(
        self, plan: Plan, aggregator_id: str, parts: MembershipParts, owners: Owners, proofs: AuthorityProofs
    ) -> None:
        super().__init__(plan, aggregator_id, parts)
        self.owners = owners
        self._proofs = proofs
        self._versions_noted: set[str | None] = {VERSION}
        self._children: dict[str, str] = {}
        self._of_contracts: tuple[str, ...] = ()
        self._claiming: Counter[str] = Counter()  # requests of registrants that wait for our parent
        self.keep_segments(plan)

    async def open(self) -> None:
        """Do nothing: subservers connect by themselves."""

    def keep_segments(self, plan: Plan) -> None:
        """Reserve the segments of the configuration, so that they cannot be registered."""
        devices = (device.segment for device in plan.devices.described)
        self._configured = (*(server.segment for server in plan.servers), *devices)
        self._keep()
        self._children = {child.segment: f"child:{child.segment}" for child in plan.ax.children}

    def keep_contracts(self, segments: Iterable[str]) -> None:
        """Reserve the segments of drivers' contracts, so that they cannot be registered."""
        self._of_contracts = tuple(segments)
        self._keep()

    def _keep(self) -> None:
        self.engine.keep((OWN_TOOL, *self._configured, *self._of_contracts))

    # Registering

    async def register(self, request: Register, link_id: str, source: RegistrationSource) -> Registered | Refusal:
        """Return the answer to a registration. After it was sent, `welcome` starts to use the link."""
        began = self._clock.now()
        try:
            answer = await self._register(request, link_id, source)
        except StoreError as away:
            log.warning("registration of %s: the store cannot answer: %s", request.segment, away)
            answer = Refusal(UNAVAILABLE, "unavailable", {"reason": "store"})
        refusal = answer if isinstance(answer, Refusal) else None
        self._record(source.guest.principal, REGISTER, request.segment, refusal, self._clock.now() - began)
        if refusal is None and request.version not in self._versions_noted:
            self._note_version(request)
        return answer

    def _note_version(self, request: Register) -> None:
        """Log another version of MCP-AX once. The registration is accepted all the same (6.1)."""
        if len(self._versions_noted) <= VERSIONS_NOTED_MAX:
            self._versions_noted.add(request.version)
            description = "names no version" if request.version is None else f"names the version {request.version!a}"
            log.info("link %s: its registration %s of MCP-AX; we speak %s", request.segment, description, VERSION)

    async def _register(self, request: Register, link_id: str, source: RegistrationSource) -> Registered | Refusal:
        guest = source.guest
        if refusal := self._check_class(request.transport_class):
            return refusal
        if not guest.encrypted:  # AX-10.4-1
            return ax_refusal(LINK_INSECURE, "from beyond this machine a subserver registers over TLS")
        if self._children.get(request.segment, guest.principal) != guest.principal:
            why = "the segment is taken by this aggregator's configuration; choose another"
            return ax_refusal(NAMESPACE_CONFLICT, why, segment=request.segment)
        if guest.segment is not None and request.segment != guest.segment:
            why = f"the configuration gives this child the segment {guest.segment}"
            return ax_refusal(NAMESPACE_CONFLICT, why, segment=request.segment)
        proved = await self._proofs.judge(request)
        if isinstance(proved, Refusal):
            return proved
        if isinstance(guest.certificate, Refusal):  # whatever it claims: its key may be in other hands
            return guest.certificate
        shown = proved is None and guest.shows(request)
        if isinstance(shown, Refusal):
            return shown
        peer = guest.peer(request, link_id, proved=proved is not None or shown)
        owner = await self.owners.maybe_owner(request.segment)
        if refusal := self.engine.check(request, peer, owner):
            return refusal
        if proved is not None and (refusal := await self._proofs.spend(proved)):  # AX-4.2-8: seen before
            return refusal
        session_id = secrets.token_urlsafe(SESSION_ID_BYTES)
        if refusal := await self._check_holder(request, session_id, source):
            return refusal
        answer = await self._seat(request, peer, owner, session_id, source)
        if isinstance(answer, Refusal):
            if self._leases is not None:
                await self._give_up(self._leases, request, session_id)
            self.claims.release_own(request.subserver_id, session_id)
        return answer

    def _check_class(self, transport_class: str) -> Refusal | None:
        classes = [*(standard.id for standard in TRANSPORT_CLASSES), *self._plan.ax.transport_classes]
        if transport_class in classes:  # AX-6.1-6
            return None
        why = f"transport_class must be one of {', '.join(classes)}; ax.transport_classes names private ones"
        return Refusal(INVALID_PARAMS, why, {"member": "transport_class", "known": classes})

    async def _seat(
        self, request: Register, peer: Peer, owner: Owner | None, session_id: str, source: RegistrationSource
    ) -> Registered | Refusal:
        if self._stopping:
            return Refusal(UNAVAILABLE, "unavailable", {"reason": "stopping"})
        if not source.is_open:
            return Refusal(UNAVAILABLE, "unavailable", {"reason": "gone"})
        peer = self._with_budget(peer, source)
        step = self.engine.register(request, peer, session_id=session_id, owner=owner, now=self._clock.now())
        self.happened(step.events, source=source)
        joined = next((event for event in step.events if isinstance(event, Joined)), None)
        if joined is not None and joined.owner is not None:
            try:
                await self.owners.keep(joined.owner)
            except StoreError:
                # In a turn of its own: it closes the link, behind the answer.
                asyncio.get_running_loop().call_soon(self._remove, session_id)
                raise
        return step.answer

    def _with_budget(self, peer: Peer, source: RegistrationSource) -> Peer:
        """Add the budget of a registration, which holds as long as its session (11.4)."""
        rule = source.guest.rule
        limits = self._budgets.for_registration(rule.budget if rule is not None else None)
        return msgspec.structs.replace(peer, budget=limits.as_object())

    def _remove(self, session_id: str) -> None:
        self.happened(self.engine.end(session_id, "removed", now=self._clock.now()))

    async def _check_holder(self, request: Register, session_id: str, source: RegistrationSource) -> Refusal | None:
        """Refuse a subserver that another aggregator has (13.4), by the shared store or by asking the subserver and
        our parent.
        """
        if self._leases is not None:
            return await self._leases.claim(request, session_id)
        answer: Parent | Refusal | None = None
        if asks_parent(request, has_store=False):
            answer = await source.ask_parent()
        if isinstance(answer, Refusal):
            return answer
        if refusal := check_parent(request, answer, self.engine.aggregator_id):  # AX-13.4-2, AX-13.4-4
            return refusal
        holder = await self.claims.claim_own(request.subserver_id, session_id, request.released_session)
        return None if holder is None else split_brain(holder)  # AX-13.4-2

    # What it says on its link

    def on_ax_request(self, link: RegisteredLink, request: Request) -> None:
        pipe = link.pipe
        if request.method == CLAIM and link.offer.is_aggregator:
            self._tasks.begin(self._answer_claims(link, request))
            return
        answer, events = self.answer(request, link.registration.peer, link.registration.session_id)
        if pipe is not None:
            pipe.send(answer, b"", None)
        self.happened(events)  # which may close the link, behind the answer

    def on_ax_notification(self, link: RegisteredLink, message: Notification) -> None:
        """Handle a message of MCP-AX that came as a notification, and send no answer (6.3)."""
        request, session = Request(b"0", message.method, message.params), link.registration
        self.happened(self.answer(request, session.peer, session.session_id)[1])

    def answer(self, request: Request, peer: Peer, own: str | None = None) -> tuple[bytes, tuple[Event, ...]]:
        """Return the answer to a request of MCP-AX other than a first mcpax/register, and the events to handle once it
        is sent.

        `own` is the session of the link it came on, if it came on one.
        """
        if request.method == HEARTBEAT:
            return self._answer_beat(request, peer, own)
        if request.method == DEREGISTER:
            leaving = read_deregister_untrusted(request.params, own)
            if isinstance(leaving, Refusal):
                return encode_refusal(request.id, leaving), ()
            step = self.engine.deregister(leaving, peer, now=self._clock.now())
            if isinstance(step.answer, Refusal):
                return encode_refusal(request.id, step.answer), step.events
            return encode_result(request.id, DEREGISTERED), step.events
        refusal = Refusal(METHOD_NOT_FOUND, "Method not found", {"method": request.method[:100]})  # AX-1-1, AX-14-1
        if request.method == REGISTER:
            refusal = Refusal(INVALID_REQUEST, "this link has its registration; open another for another")
        return encode_refusal(request.id, refusal), ()

    def _answer_beat(self, request: Request, peer: Peer, own: str | None) -> tuple[bytes, tuple[Event, ...]]:
        beat = read_heartbeat_untrusted(request.params, own)
        if isinstance(beat, Refusal):
            return encode_refusal(request.id, beat), ()
        step = self.engine.heartbeat(beat, peer, now=self._clock.now())
        if isinstance(step.answer, Refusal):
            return encode_refusal(request.id, step.answer), step.events
        self._renew(beat.session_id)
        return encode_result(request.id, encode_heartbeat_answer(step.answer)), step.events

    async def _answer_claims(self, link: RegisteredLink, request: Request) -> None:
        session_id = link.registration.session_id
        read = read_claims_untrusted(request.params)
        is_busy = self._claiming[session_id] >= CLAIMING_MAX
        if is_busy or (isinstance(read, Claims) and not self.claims.holders.has_room(session_id, len(read.claims))):
            read = Refusal(UNAVAILABLE, "unavailable", {"reason": "too_many_claims"})
        if isinstance(read, Refusal):
            message = encode_refusal(request.id, read)
        else:
            self.claims.release(read.released, session_id)
            self._claiming[session_id] += 1
            held = await self.claims.claim(read.claims, session_id, read.released_session)
            self._claiming -= Counter((session_id,))  # which leaves nothing behind at zero
            if not self.engine.has_session(session_id):  # it left meanwhile, and its claims went before these came
                self.claims.end(link.registration)
            message = encode_result(request.id, encode_held(held))
        if link.pipe is not None:
            link.pipe.send(message, b"", None)

    # The operator

    async def release(self, segment: str) -> bool:
        """Forget who owns a segment, and what is kept of one that is lost. False: there was nothing to forget."""
        standing = self.engine.maybe_standing(segment)
        forgotten = await self.owners.release(segment)
        self.happened(self.engine.release(segment, now=self._clock.now()))
        return forgotten or (standing is not None and self.engine.maybe_standing(segment) is None)
