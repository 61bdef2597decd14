"""Actions on the registry of names, each by its name: what the CLI, the operator API, HTTP and MCP have in common.

An action takes the actor, the name or prefix it is about, and a JSON body. It returns what changed, or raises Refused.
A change controller can deprecate, withdraw and transfer an entry, confirm that it stays public, and consent to the use
of a prefix. `Sightings` remembers which servers of this node offer a name, because a name with implementations cannot
be withdrawn (REG-7.3-4).
"""

import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw
from msgspec.structs import asdict, replace

from interlock.core.clock import Clock
from interlock.names.actors import Actor, check_controller, step_by
from interlock.names.api import NameCheck, NameCriterion, NameFinding, NameVerification
from interlock.names.protocol.criteria import criteria_document, has_schema
from interlock.names.protocol.entry import (
    ENTRY_MOVES,
    NO_SCHEMA,
    PUBLIC,
    SEEN_DAYS,
    Entry,
    EntryMove,
    Status,
    is_day,
    withdrawable_on,
)
from interlock.names.protocol.grammar import is_name
from interlock.names.protocol.judgement import VERIFIED, Specification, absent_verdict, judge, read_claim
from interlock.names.protocol.registry import (
    TEXT_CHARS_MAX,
    Consent,
    Evidence,
    Finding,
    Implementation,
    Proposal,
    Registry,
    Request,
    Step,
    Transfer,
)
from interlock.names.requests import RequestService
from interlock.names.state import Change, RegistryState, own_entry
from interlock.store.ports import KeyValue
from interlock.wire.jsonrpc.codec import decode_object
from interlock.wire.refusal import NotFound, Refused
from interlock.wire.schemas.inclusion import Effort, EffortSpent

SEEN_BUCKET: Final = "names-seen"
_DAY_S: Final = 86_400.0

Offered = Iterable[tuple[str, str]]  # the name as its server has it, and the segment of the server


class Sightings:
    """A record of which servers of this node offered a registered name, and when (REG-7.3-4). No address is stored."""

    def __init__(self, state: RegistryState, kv: KeyValue, clock: Clock) -> None:
        self._state = state
        self._kv = kv
        self._clock = clock
        self._offered: Callable[[], Offered] = tuple

    def provide(self, offered: Callable[[], Offered]) -> None:
        """Set the function that returns what the servers of this node offer now, once there is a catalog."""
        self._offered = offered

    async def note(self) -> None:
        """Record which servers offer a registered name now. Raises StoreError."""
        now = self._clock.wall()
        for name, segments in self._registered_offers().items():
            for segment in segments:
                day = msgspec.json.encode(self._state.today)
                await self._kv.put(SEEN_BUCKET, f"{name} {segment}", day, now, ttl_s=SEEN_DAYS * _DAY_S)

    async def of(self, name: str) -> list[str]:
        """Return the servers that recently offered a name, each with the day. Raises StoreError."""
        await self.note()
        entries = await self._kv.entries(SEEN_BUCKET, self._clock.wall())
        own = [entry for entry in entries if entry.key.startswith(f"{name} ")]
        return [f"{entry.key.removeprefix(f'{name} ')} ({msgspec.json.decode(entry.value)})" for entry in own]

    def under(self, prefix: str) -> dict[str, str]:
        """Return the names under a prefix that servers offer now, registered or not, with one server each."""
        return {name: segment for name, segment in self._offered() if name.startswith(prefix)}

    def _registered_offers(self) -> dict[str, set[str]]:
        offers: dict[str, set[str]] = {}
        for name, segment in self._offered():
            if self._state.entry(name) is not None:
                offers.setdefault(name, set()).add(segment)
        return offers


REASON_CHARS_MAX: Final = TEXT_CHARS_MAX
_LOOKED: Final = "an operator of the node has looked at it"


class ControllerChanges:
    """The changes that a change controller can make. All raise NotFound, Refused and StoreError."""

    def __init__(self, state: RegistryState, sightings: Sightings) -> None:
        self._state = state
        self._sightings = sightings

    async def deprecate(self, actor: Actor, name: str, successor: str = "") -> Entry:
        if successor and not is_name(successor):
            raise Refused("name_syntax", "the successor is no surface name")
        today = self._state.today
        return await self._move(
            actor,
            name,
            EntryMove.DEPRECATE,
            lambda entry: replace(entry, deprecated_on=today, successor=successor or None, review_due=None),
        )

    async def reinstate(self, actor: Actor, name: str) -> Entry:
        """Back to Active, which clears the period of deprecation."""
        return await self._move(
            actor, name, EntryMove.REINSTATE, lambda entry: replace(entry, deprecated_on=None, successor=None)
        )

    async def withdraw(self, actor: Actor, name: str) -> Entry:
        """Withdraw a name after twelve months of deprecation, if it has no known implementation. Nobody can shorten
        that.
        """
        today = self._state.today
        seen = await self._sightings.of(name)

        def check(entry: Entry) -> Entry:
            day = withdrawable_on(entry.deprecated_on or today)
            if entry.status is not Status.DEPRECATED or today < day:  # REG-7.3-3
                raise Refused("deprecation_too_short", f"{name} can be withdrawn on {day} at the earliest")
            left = [implementation.who for implementation in self._state.registry.remaining_implementations(name)]
            left += seen
            if left:  # REG-7.3-4
                raise Refused("implementations_remain", f"{name} is implemented by {', '.join(left)}", {"by": left})
            return replace(entry, withdrawn_on=today)

        return await self._move(actor, name, EntryMove.WITHDRAW, check)

    async def transfer(self, actor: Actor, name: str, to: str) -> Entry:
        """Offered by the controller, done when the other side asks for the same: both have to agree."""
        state = self._state

        def decide(registry: Registry) -> Change:
            entry = own_entry(registry, name)
            if not to.strip() or to == entry.change_controller:
                raise Refused("bad_controller", "say to which other controller")
            step = step_by(actor, state.now, "transfer", name)
            if registry.transfers.get(name) == Transfer(surface_name=name, to=to):
                check_controller(actor, registry.controller(to), registry)
                entry = replace(entry, change_controller=to)
                return Change((replace(step, entry=entry),), entry)
            check_controller(actor, registry.controller(entry.change_controller), registry)
            if not registry.controller(to).is_proven:
                raise Refused(
                    "unknown_controller", f"no one acts for {to} yet; it has to have an entry of its own first"
                )
            offered = replace(step, what="offer_transfer", transfer=Transfer(surface_name=name, to=to))
            return Change((offered,), entry)

        entry: Entry = await state.change(decide)
        return entry

    async def confirm_public(self, actor: Actor, name: str) -> Entry:
        """Confirm, for the controller or as an operator of this node, that a name is still meant to be public
        (REG-8.4-2).
        """
        state = self._state

        def decide(registry: Registry) -> Change:
            entry = own_entry(registry, name)
            if entry.authentication_scope != PUBLIC:
                raise Refused("not_public", f"{name} asks for {entry.authentication_scope}")
            controller, by = registry.controller(entry.change_controller), actor
            if actor.is_operator and not actor.override and actor.principal not in controller.principals:
                by = replace(actor, override=_LOOKED)  # on record as that: it changes nothing but a date
            check_controller(by, controller, registry)
            entry = replace(entry, public_confirmed_on=state.today)
            return Change((replace(step_by(by, state.now, "confirm_public", name), entry=entry),), entry)

        entry: Entry = await state.change(decide)
        return entry

    async def consent(self, actor: Actor, prefix: str, controller: str, until: str) -> Consent:
        """Let another controller register names under a prefix, on behalf of its holder (REG-7.2-2)."""
        state = self._state
        if not is_day(until) or until < state.today:
            raise Refused("bad_date", "until is a day to come, as YYYY-MM-DD")
        if not controller.strip():
            raise Refused("bad_controller", "say which controller may register under the prefix")

        def decide(registry: Registry) -> Change:
            holder = registry.holders.get(prefix)
            if holder is None:
                raise NotFound("prefix", prefix, list(registry.holders))
            check_controller(actor, registry.controller(holder.controller), registry)
            granted = Consent(prefix=prefix, controller=controller, until=until)
            return Change((replace(step_by(actor, state.now, "consent", prefix), consent=granted),), granted)

        consent: Consent = await state.change(decide)
        return consent

    async def declare(self, actor: Actor, name: str, who: str) -> Implementation:
        """Declare that somebody implements a surface. Everybody may do that."""
        state, id = self._state, str(uuid.uuid4())
        if not who.strip() or len(who) > 200 or not who.isprintable():
            raise Refused("bad_implementation", "say who implements it, in 1 to 200 printable characters")

        def decide(registry: Registry) -> Change:
            own_entry(registry, name)
            if any(implementation.who == who for implementation in registry.remaining_implementations(name)):
                raise Refused("exists", f"{who} is declared to implement {name}")
            declared = Implementation(id=id, surface_name=name, who=who, declared_on=state.today)
            step = replace(step_by(actor, state.now, "declare_implementation", name), implementation=declared)
            return Change((step,), declared)

        declared: Implementation = await state.change(decide)
        return declared

    async def end_implementation(self, actor: Actor, name: str, who: str, evidence: str) -> Implementation:
        """Record, with evidence, that an implementation has ended. It is never overridden without evidence
        (REG-N-4).
        """
        state = self._state
        if not evidence.strip() or len(evidence) > REASON_CHARS_MAX:
            raise Refused("evidence_required", "say what shows that the implementation has ended")

        def decide(registry: Registry) -> Change:
            entry = own_entry(registry, name)
            implementations = {
                implementation.who: implementation for implementation in registry.remaining_implementations(name)
            }
            if who not in implementations:
                raise NotFound("implementation", who, list(implementations))
            check_controller(actor, registry.controller(entry.change_controller), registry)
            ended = replace(implementations[who], ended_on=state.today, evidence=evidence)
            step = replace(step_by(actor, state.now, "end_implementation", name), implementation=ended, reason=evidence)
            return Change((step,), ended)

        ended: Implementation = await state.change(decide)
        return ended

    async def _move(self, actor: Actor, name: str, move: EntryMove, fill: Callable[[Entry], Entry]) -> Entry:
        state = self._state

        def decide(registry: Registry) -> Change:
            entry = own_entry(registry, name)
            check_controller(actor, registry.controller(entry.change_controller), registry)
            if move is EntryMove.WITHDRAW and entry.status in (Status.ACTIVE, Status.PROVISIONAL):
                fill(entry)  # says on which day at the earliest, had it been deprecated today
            if (entry.status, move) not in ENTRY_MOVES:  # REG-7.3-1
                raise Refused("illegal_transition", f"what is {entry.status.value} cannot be {_PAST[move]}")
            after = ENTRY_MOVES[entry.status, move]
            moved = replace(fill(entry), status=after or entry.status)
            step: Step = replace(step_by(actor, state.now, move.value, name), entry=moved)
            return Change((step,), moved)

        entry: Entry = await state.change(decide)
        return entry


_PAST: Final = {
    EntryMove.DEPRECATE: "deprecated",
    EntryMove.REINSTATE: "reinstated",
    EntryMove.WITHDRAW: "withdrawn",
}


ACTIONS_PER_DAY_MAX: Final = 200  # of one client

Result = Request | Entry | Consent | Implementation
T = TypeVar("T")


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Amendment(_Body, frozen=True, kw_only=True):
    """Changes of a specification. A member that is absent stays as it is."""

    specification_reference: str | None = None
    authentication_scope: str | None = None
    argument_schema: Raw = NO_SCHEMA
    return_schema: Raw = NO_SCHEMA
    semantics: str | None = None
    breaking: bool = False
    no_authentication_planned: bool = False


class Deprecation(_Body, frozen=True, kw_only=True):
    successor: str = ""


class TransferTo(_Body, frozen=True, kw_only=True):
    to: str


class Declaration(_Body, frozen=True, kw_only=True):
    who: str


class EndedImplementation(_Body, frozen=True, kw_only=True):
    who: str
    evidence: str


class ConsentTo(_Body, frozen=True, kw_only=True):
    controller: str
    until: str


class Claim(_Body, frozen=True, kw_only=True):
    controller: str
    evidence: tuple[Evidence, ...]


class NamesActions:
    """The actions by name."""

    def __init__(self, state: RegistryState, requests: RequestService, changes: ControllerChanges) -> None:
        self._state = state
        self._requests = requests
        self._changes = changes
        self._day = ""
        self._counts: dict[str, int] = {}
        self._by_name: Mapping[str, Callable[[Actor, str, Raw], Awaitable[Result]]] = {
            "request": self._request,
            "amend": self._amend,
            "cancel": lambda actor, id, body: requests.cancel(actor, id),
            "deprecate": lambda actor, name, body: changes.deprecate(
                actor, name, _decoded(body, Deprecation).successor
            ),
            "reinstate": lambda actor, name, body: changes.reinstate(actor, name),
            "withdraw": lambda actor, name, body: changes.withdraw(actor, name),
            "transfer": lambda actor, name, body: changes.transfer(actor, name, _decoded(body, TransferTo).to),
            "confirm-public": lambda actor, name, body: changes.confirm_public(actor, name),
            "declare": lambda actor, name, body: changes.declare(actor, name, _decoded(body, Declaration).who),
            "end": self._end,
            "consent": self._consent,
            "dispute": self._dispute,
        }

    async def act(self, actor: Actor, action: str, subject: str, body: Raw) -> Result:
        """Perform an action. Raises Refused, NotFound, StoreError."""
        perform = self._by_name.get(action)
        if perform is None:
            raise Refused("unknown_action", f"actions are {', '.join(self._by_name)}")
        statement = actor.statement
        if statement is not None and (statement.action, statement.subject) != (action, subject):
            raise Refused("statement_invalid", f"the statement is about {statement.action} {statement.subject[:100]}")
        self._count(actor)
        await self._state.refresh()
        return await perform(actor, subject, statement.body if statement is not None else body)

    def _count(self, actor: Actor) -> None:
        """Limit how much a client can add to the log in a day, because the log only grows."""
        if actor.is_operator:
            return
        today = self._state.today
        if self._day != today:
            self._day, self._counts = today, {}
        done = self._counts.get(actor.principal, 0)
        if done >= ACTIONS_PER_DAY_MAX:
            raise Refused("too_many_actions", f"at most {ACTIONS_PER_DAY_MAX} actions of one client in a day")
        self._counts[actor.principal] = done + 1

    async def _request(self, actor: Actor, name: str, body: Raw) -> Request:
        proposal = _decoded(body, Proposal)
        if proposal.surface_name != name:
            raise Refused("invalid_body", f"the request is for {proposal.surface_name[:100]}")
        return await self._requests.file(actor, proposal)

    async def _amend(self, actor: Actor, name: str, body: Raw) -> Request:
        change = _decoded(body, Amendment)
        entry = own_entry(self._state.registry, name)
        current = entry.specification
        scope = change.authentication_scope or entry.authentication_scope
        stays_public = entry.authentication_scope == scope == PUBLIC
        return await self._requests.amend(
            actor,
            Proposal(
                surface_name=name,
                change_controller=entry.change_controller,
                specification_reference=change.specification_reference or entry.specification_reference,
                authentication_scope=scope,
                vendor_prefix=entry.vendor_prefix,
                argument_schema=_either(change.argument_schema, current.argument_schema),
                return_schema=_either(change.return_schema, current.return_schema),
                semantics=change.semantics or current.semantics,
                breaking=change.breaking,
                no_authentication_planned=change.no_authentication_planned or stays_public,
            ),
        )

    async def _end(self, actor: Actor, name: str, body: Raw) -> Implementation:
        ended = _decoded(body, EndedImplementation)
        return await self._changes.end_implementation(actor, name, ended.who, ended.evidence)

    async def _consent(self, actor: Actor, prefix: str, body: Raw) -> Consent:
        consent = _decoded(body, ConsentTo)
        return await self._changes.consent(actor, prefix, consent.controller, consent.until)

    async def _dispute(self, actor: Actor, prefix: str, body: Raw) -> Request:
        claim = _decoded(body, Claim)
        return await self._requests.dispute(actor, prefix, claim.controller, claim.evidence)


_NOTHING: Final = (b"", b"null")


def _decoded(body: Raw, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(b"{}" if bytes(body) in _NOTHING else body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused("invalid_body", str(error)) from None


def _either(new: Raw, old: Raw) -> Raw:
    return new if has_schema(new) else old


def outcome_document(result: Result) -> dict[str, Any]:
    """Return the outcome of an action in the form that every surface uses."""
    if isinstance(result, Request):
        shown = msgspec.to_builtins(replace(result, proposal=None))
        judged = {} if result.proposal is None else {"criteria": criteria_document(result.findings)}  # REG-5-2
        return {"kind": "request", "state": result.state.value, **judged, "request": shown}
    if isinstance(result, Entry):
        return {
            "kind": "entry",
            "state": result.status.value,
            "entry": msgspec.to_builtins(replace(result, revisions=())),
        }
    kind = "consent" if isinstance(result, Consent) else "implementation"
    return {"kind": kind, "state": "recorded", kind: msgspec.to_builtins(result)}


def name_check(name: str, findings: tuple[Finding, ...]) -> NameCheck:
    return NameCheck(
        surface_name=name,
        criteria=tuple(msgspec.convert(criteria_document(findings), list[NameCriterion])),
        findings=tuple(NameFinding(**asdict(finding)) for finding in findings),
    )


def name_verification(entry: Entry | None, name: str, tool: Mapping[str, Raw]) -> NameVerification:
    if entry is None:
        word = absent_verdict(name).value
        return NameVerification(surface_name=name, verdict=word, is_verified=False, differences=(), notes=())
    specifications = tuple(Specification(revision) for revision in entry.revisions)
    meta = tool.get("_meta")
    claim = read_claim(decode_object(meta) if meta is not None else None)
    try:
        judged = judge(entry, specifications, tool.get("inputSchema"), tool.get("outputSchema"), claim, Effort())
    except EffortSpent:
        raise Refused("too_large", "the schemas are too large to be compared") from None
    return NameVerification(
        surface_name=name,
        verdict=judged.verdict.value,
        is_verified=judged.verdict in VERIFIED,
        differences=tuple(map(str, judged.differences)),
        notes=judged.notes,
    )
