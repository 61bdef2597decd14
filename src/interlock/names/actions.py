"""Actions on the registry of names, each by its name: the common part of the CLI, the operator API, HTTP and MCP.

An action takes the actor, the name or prefix that it is about, and a JSON body. It returns what changed, or raises
Refused. `NamesActions` is the table of actions; all ways in use it, so that all have the same rules and limits. A
change controller can deprecate, withdraw and transfer an entry, confirm that it stays public, and consent to the use of
a prefix.

`Publisher` publishes the registry, and imports registries that others publish. A published form is computed once for
each state, day and set of experts. An imported entry is read-only here and never replaces an entry of this registry or
of another source. Importing the same source again replaces its earlier entries. What an imported registry says is only
enforced once an operator trusts the source (REG-N-5).

`Sightings` remembers for 90 days which servers of this node offered a registered name, because a name with
implementations cannot be withdrawn (REG-7.3-4).
"""

import hashlib
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import astuple, replace

from interlock.core.clock import Clock
from interlock.names.api import NameCheck, NameVerification
from interlock.names.protocol.criteria import criteria_document, has_schema, judge_proposal, proposal_of
from interlock.names.protocol.entry import ENTRY_MOVES, NO_SCHEMA, PUBLIC, EntryMove, EntryStatus, RegistryEntry, is_day
from interlock.names.protocol.grammar import is_name
from interlock.names.protocol.judgement import VERIFIED, Specification, absent_verdict, judge, read_claim
from interlock.names.protocol.publication import BadDocument, Form, Publication, publish, read_published_untrusted
from interlock.names.protocol.registry import (
    TEXT_CHARS_MAX,
    Evidence,
    Implementation,
    NameProposal,
    NameRequest,
    NamesRegistry,
    PrefixConsent,
    RegistryStep,
    SourceRegistry,
    Transfer,
)
from interlock.names.requests import RequestService
from interlock.names.state import Actor, RegistryChange, RegistryState, changes_registry, check_controller, own_entry
from interlock.store.ports import KeyValue
from interlock.wire.jsonrpc.codec import decode_object
from interlock.wire.refusal import NotFound, Refused
from interlock.wire.schemas.budget import Effort, EffortSpent

SEEN_BUCKET: Final = "names-seen"
SEEN_DAYS: Final = 90  # for which a server that offered a name counts as its implementation
_DAY_S: Final = 86_400.0

Offered = Iterable[tuple[str, str]]  # the name as its server has it, and the segment of the server


class Sightings:
    """A record of which servers of this node offered a registered name, and on which day (REG-7.3-4). It contains no
    addresses of servers.
    """

    def __init__(self, state: RegistryState, kv: KeyValue, clock: Clock) -> None:
        self._state = state
        self._kv = kv
        self._clock = clock
        self._offered: Callable[[], Offered] = tuple

    def provide(self, offered: Callable[[], Offered]) -> None:
        """Set the function that returns the names that servers of this node now offer. Until this is called, no names
        are offered.
        """
        self._offered = offered

    async def note(self) -> None:
        """Record which servers offer a registered name now. Raise StoreError if the record cannot be written."""
        now, day = self._clock.wall(), msgspec.json.encode(self._state.today)
        for name, segment in sorted(set(self._offered())):
            if self._state.entry(name) is not None:
                await self._kv.put(SEEN_BUCKET, f"{name} {segment}", day, now, ttl_s=SEEN_DAYS * _DAY_S)

    async def of(self, name: str) -> list[str]:
        """Return the servers that offered a name in the last 90 days, each with the last day on which it did. Raise
        StoreError if the record cannot be read.
        """
        await self.note()
        entries = await self._kv.entries(SEEN_BUCKET, self._clock.wall())
        own = [entry for entry in entries if entry.key.startswith(f"{name} ")]
        return [f"{entry.key.removeprefix(f'{name} ')} ({msgspec.json.decode(entry.value)})" for entry in own]

    def under(self, prefix: str) -> dict[str, str]:
        """Return the names under a prefix that servers of this node offer now, registered or not. Each name is mapped
        to the segment of a server that offers it.
        """
        return {name: segment for name, segment in self._offered() if name.startswith(prefix)}


_PAST: Final = {EntryMove.DEPRECATE: "deprecated", EntryMove.REINSTATE: "reinstated", EntryMove.WITHDRAW: "withdrawn"}


ACTIONS_PER_DAY_MAX: Final = 200  # of one client

Result = NameRequest | RegistryEntry | PrefixConsent | Implementation


class Amendment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of the action `amend`, which changes the registered specification of a name. Members that are absent
    keep their values.
    """

    specification_reference: str | None = None
    authentication_scope: str | None = None
    argument_schema: Raw = NO_SCHEMA
    return_schema: Raw = NO_SCHEMA
    semantics: str | None = None
    breaking: bool = False
    no_authentication_planned: bool = False


def _body(*members: tuple[str, Any] | tuple[str, Any, Any]) -> type[msgspec.Struct]:
    """Return the type of an action's JSON body. A member has a name, a type, and perhaps a default value."""
    return msgspec.defstruct("Body", members, forbid_unknown_fields=True)


class NamesActions:
    """The actions on the registry by their names, with a limit on the number of actions of each client.

    The methods of actions take the actor, the name or prefix, and what the action needs. They raise NotFound for an
    unknown name, Refused if the action is not allowed, and StoreError if it cannot be stored.
    """

    def __init__(self, state: RegistryState, requests: RequestService, sightings: Sightings) -> None:
        self._state = state
        self._requests = requests
        self._sightings = sightings
        self._day = ""
        self._counts: dict[str, int] = {}
        # The type of the body, or None if the body is ignored, and the method, which takes its members as arguments.
        self._by_name: Mapping[str, tuple[type[msgspec.Struct] | None, Callable[..., Awaitable[Result]]]] = {
            "request": (NameProposal, self._request),
            "amend": (Amendment, self._amend),
            "cancel": (None, requests.cancel),
            "deprecate": (_body(("successor", str, "")), self.deprecate),
            "reinstate": (None, self.reinstate),
            "withdraw": (None, self.withdraw),
            "transfer": (_body(("to", str)), self.transfer),
            "confirm-public": (None, self.confirm_public),
            "declare": (_body(("who", str)), self.declare),
            "end": (_body(("who", str), ("evidence", str)), self.end_implementation),
            "consent": (_body(("controller", str), ("until", str)), self.consent),
            "dispute": (_body(("controller", str), ("evidence", tuple[Evidence, ...])), requests.dispute),
        }

    async def act(self, actor: Actor, action: str, subject: str, body: Raw) -> Result:
        """Perform an action on a name, a prefix or a request. Raise Refused or NotFound if it is not possible, and
        StoreError if it cannot be stored.
        """
        if action not in self._by_name:
            raise Refused("unknown_action", f"actions are {', '.join(self._by_name)}")
        shape, perform = self._by_name[action]
        statement = actor.statement
        if statement is not None and (statement.action, statement.subject) != (action, subject):
            raise Refused("statement_invalid", f"the statement is about {statement.action} {statement.subject[:100]}")
        self._count(actor)
        await self._state.refresh()
        if shape is None:
            return await perform(actor, subject)
        if statement is not None:
            body = statement.body
        try:
            # A missing body counts as empty.
            decoded = msgspec.json.decode(b"{}" if bytes(body) in (b"", b"null") else body, type=shape)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refused("invalid_body", str(error)) from None
        # Requests and amendments are values of their own; the members of other bodies are arguments.
        is_value = isinstance(decoded, NameProposal | Amendment)
        return await (perform(actor, subject, decoded) if is_value else perform(actor, subject, *astuple(decoded)))

    def _count(self, actor: Actor) -> None:
        """Count an action of a client. Raise Refused if the client has used up its actions of the day, because records
        are never removed from the log. Operators have no limit.
        """
        if actor.is_operator:
            return
        today = self._state.today
        if self._day != today:
            self._day, self._counts = today, {}
        done = self._counts.get(actor.principal, 0)
        if done >= ACTIONS_PER_DAY_MAX:
            raise Refused("too_many_actions", f"at most {ACTIONS_PER_DAY_MAX} actions of one client in a day")
        self._counts[actor.principal] = done + 1

    async def _request(self, actor: Actor, name: str, proposal: NameProposal) -> NameRequest:
        if proposal.surface_name != name:
            raise Refused("invalid_body", f"the request is for {proposal.surface_name[:100]}")
        return await self._requests.file(actor, proposal)

    async def _amend(self, actor: Actor, name: str, change: Amendment) -> NameRequest:
        """Fill in the current values of the entry where an amendment has none, and submit it as a request."""
        entry = own_entry(self._state.registry, name)
        current = proposal_of(entry)
        scope = change.authentication_scope or entry.authentication_scope
        stays_public = entry.authentication_scope == scope == PUBLIC
        schemas = {"argument_schema": change.argument_schema, "return_schema": change.return_schema}
        new_schemas = {member: schema for member, schema in schemas.items() if has_schema(schema)}
        amended = replace(
            current,
            schema_source="registrant",
            specification_reference=change.specification_reference or entry.specification_reference,
            authentication_scope=scope,
            semantics=change.semantics or current.semantics,
            breaking=change.breaking,
            no_authentication_planned=change.no_authentication_planned or stays_public,
            **new_schemas,
        )
        return await self._requests.file(actor, amended, amends=entry)

    # Changes by the change controller of an entry, or by the holder of a prefix

    @changes_registry
    def deprecate(
        self, registry: NamesRegistry, actor: Actor, name: str, successor: str = ""
    ) -> RegistryChange[RegistryEntry]:
        """Mark a name as deprecated. `successor` is the name that clients should use instead."""
        if successor and not is_name(successor):
            raise Refused("name_syntax", "the successor is no surface name")
        dates = {"deprecated_on": self._state.today, "successor": successor or None, "review_due": None}
        return self._move(registry, actor, name, EntryMove.DEPRECATE, dates)

    @changes_registry
    def reinstate(self, registry: NamesRegistry, actor: Actor, name: str) -> RegistryChange[RegistryEntry]:
        """Make a deprecated name active again. A later withdrawal needs a new period of deprecation."""
        return self._move(registry, actor, name, EntryMove.REINSTATE, {"deprecated_on": None, "successor": None})

    async def withdraw(self, actor: Actor, name: str) -> RegistryEntry:
        """Withdraw a name that has been deprecated for twelve months and has no known implementation.

        An admin's override does not shorten the period.
        """
        seen, today = await self._sightings.of(name), self._state.today

        def check(entry: RegistryEntry) -> None:
            day = entry.withdrawable_on(today)
            if entry.status is not EntryStatus.DEPRECATED or today < day:  # REG-7.3-3
                raise Refused("deprecation_too_short", f"{name} can be withdrawn on {day} at the earliest")
            left = [implementation.who for implementation in self._state.registry.remaining_implementations(name)]
            left += seen
            if left:  # REG-7.3-4
                raise Refused("implementations_remain", f"{name} is implemented by {', '.join(left)}", {"by": left})

        return await self._state.change(
            lambda registry: self._move(registry, actor, name, EntryMove.WITHDRAW, {"withdrawn_on": today}, check)
        )

    @changes_registry
    def transfer(self, registry: NamesRegistry, actor: Actor, name: str, to: str) -> RegistryChange[RegistryEntry]:
        """Offer an entry to another controller, or accept such an offer. The transfer takes place when both controllers
        have requested it.
        """
        entry = own_entry(registry, name)
        if not to.strip() or to == entry.change_controller:
            raise Refused("bad_controller", "say to which other controller")
        step = actor.step(self._state.now, "transfer", name)
        if registry.transfers.get(name) == Transfer(surface_name=name, to=to):
            check_controller(actor, registry.controller(to), registry)
            entry = replace(entry, change_controller=to)
            return RegistryChange((replace(step, entry=entry),), entry)
        check_controller(actor, registry.controller(entry.change_controller), registry)
        if not registry.controller(to).is_proven:
            raise Refused("unknown_controller", f"no one acts for {to} yet; it has to have an entry of its own first")
        offered = replace(step, what="offer_transfer", transfer=Transfer(surface_name=name, to=to))
        return RegistryChange((offered,), entry)

    @changes_registry
    def confirm_public(self, registry: NamesRegistry, actor: Actor, name: str) -> RegistryChange[RegistryEntry]:
        """Confirm that a name is still meant to be public (REG-8.4-2). The controller or an operator of this node can
        do that.
        """
        entry = own_entry(registry, name)
        if entry.authentication_scope != PUBLIC:
            raise Refused("not_public", f"{name} asks for {entry.authentication_scope}")
        controller, by = registry.controller(entry.change_controller), actor
        if actor.is_operator and not actor.override and actor.principal not in controller.principals:
            # An operator may confirm in the controller's place: that changes nothing but a date, and is recorded.
            by = replace(actor, override="an operator of the node has looked at it")
        check_controller(by, controller, registry)
        entry = replace(entry, public_confirmed_on=self._state.today)
        return RegistryChange((by.step(self._state.now, "confirm_public", name, entry=entry),), entry)

    @changes_registry
    def consent(
        self, registry: NamesRegistry, actor: Actor, prefix: str, controller: str, until: str
    ) -> RegistryChange[PrefixConsent]:
        """Allow another controller to register names under a prefix until a given day, on behalf of the prefix's holder
        (REG-7.2-2).
        """
        if not is_day(until) or until < self._state.today:
            raise Refused("bad_date", "until is a day to come, as YYYY-MM-DD")
        if not controller.strip():
            raise Refused("bad_controller", "say which controller may register under the prefix")
        holder = registry.holders.get(prefix)
        if holder is None:
            raise NotFound("prefix", prefix, list(registry.holders))
        check_controller(actor, registry.controller(holder.controller), registry)
        granted = PrefixConsent(prefix=prefix, controller=controller, until=until)
        return RegistryChange((actor.step(self._state.now, "consent", prefix, consent=granted),), granted)

    @changes_registry
    def declare(self, registry: NamesRegistry, actor: Actor, name: str, who: str) -> RegistryChange[Implementation]:
        """Record that `who` implements a surface, which bars its withdrawal.

        The controller of the surface may declare that. So may the implementer itself, if it is a controller of this
        registry and proves that it is.
        """
        if not who.strip() or len(who) > 200 or not who.isprintable():
            raise Refused("bad_implementation", "say who implements it, in 1 to 200 printable characters")
        entry, statement, implementer = own_entry(registry, name), actor.statement, registry.controller(who)
        is_own = statement.controller == who if statement is not None else actor.principal in implementer.principals
        # REG-N-3: by whoever answers for the surface or for the implementation
        check_controller(actor, implementer if is_own else registry.controller(entry.change_controller), registry)
        if any(implementation.who == who for implementation in registry.remaining_implementations(name)):
            raise Refused("exists", f"{who} is declared to implement {name}")
        id, now = str(uuid.uuid4()), self._state.now
        declared = Implementation(id=id, surface_name=name, who=who, declared_on=now[:10])
        return RegistryChange((actor.step(now, "declare_implementation", name, implementation=declared),), declared)

    @changes_registry
    def end_implementation(
        self, registry: NamesRegistry, actor: Actor, name: str, who: str, evidence: str
    ) -> RegistryChange[Implementation]:
        """Record that an implementation has ended. This always needs evidence (REG-N-4)."""
        if not evidence.strip() or len(evidence) > TEXT_CHARS_MAX:
            raise Refused("evidence_required", "say what shows that the implementation has ended")
        entry = own_entry(registry, name)
        implementations = {each.who: each for each in registry.remaining_implementations(name)}
        if who not in implementations:
            raise NotFound("implementation", who, list(implementations))
        check_controller(actor, registry.controller(entry.change_controller), registry)
        ended = replace(implementations[who], ended_on=self._state.today, evidence=evidence)
        step = actor.step(self._state.now, "end_implementation", name, implementation=ended)
        return RegistryChange((replace(step, reason=evidence),), ended)

    def _move(
        self,
        registry: NamesRegistry,
        actor: Actor,
        name: str,
        move: EntryMove,
        dates: Mapping[str, str | None],
        check: Callable[[RegistryEntry], None] = lambda entry: None,
    ) -> RegistryChange[RegistryEntry]:
        """Change the status of an entry, and set its fields in `dates`, for example the day on which it was deprecated.
        Raise Refused if the table of moves or `check` does not allow the change.
        """
        entry = own_entry(registry, name)
        check_controller(actor, registry.controller(entry.change_controller), registry)
        if move is EntryMove.WITHDRAW and entry.status in (EntryStatus.ACTIVE, EntryStatus.PROVISIONAL):
            check(entry)  # raises Refused, with the earliest day if the name were deprecated today
        if (entry.status, move) not in ENTRY_MOVES:  # REG-7.3-1
            raise Refused("illegal_transition", f"what is {entry.status.value} cannot be {_PAST[move]}")
        check(entry)
        moved = replace(entry, status=ENTRY_MOVES[entry.status, move] or entry.status, **dates)
        return RegistryChange((actor.step(self._state.now, move.value, name, entry=moved),), moved)


def outcome_document(result: Result) -> dict[str, Any]:
    """Return the outcome of an action in the form that the operator API, HTTP and MCP share."""
    if isinstance(result, NameRequest):
        shown = msgspec.to_builtins(replace(result, proposal=None))
        judged = {} if result.proposal is None else {"criteria": criteria_document(result.findings)}  # REG-5-2
        return {"kind": "request", "state": result.state.value, **judged, "request": shown}
    if isinstance(result, RegistryEntry):
        shown = msgspec.to_builtins(replace(result, revisions=()))
        return {"kind": "entry", "state": result.status.value, "entry": shown}
    kind = "consent" if isinstance(result, PrefixConsent) else "implementation"
    return {"kind": kind, "state": "recorded", kind: msgspec.to_builtins(result)}


def name_check(state: RegistryState, proposal: NameProposal) -> NameCheck:
    """Run the machine checks on a proposal, without filing it and without fetching its document. Return the findings in
    the form of the operator API.
    """
    findings = judge_proposal(proposal, state.registry, state.today, None)
    document = {"surface_name": proposal.surface_name, "criteria": criteria_document(findings), "findings": findings}
    return msgspec.convert(document, NameCheck, from_attributes=True)


def name_verification(entry: RegistryEntry | None, name: str, tool: Mapping[str, Raw]) -> NameVerification:
    """Compare the definition of a tool with the registered entry of its name. Unreadable schemas are a mismatch.
    Raise Refused if the schemas are too large to be compared.
    """
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


SOURCE_CHARS_MAX: Final = 500


COMPARED: Final = "a registry that is only compared judges no tool, so it cannot be trusted"


class Publisher:
    """The service that writes the registry in its published forms, and imports the registries that others publish."""

    def __init__(self, state: RegistryState, experts: Callable[[], tuple[str, ...]]) -> None:
        """Create the publisher. `experts` returns the names of the people who decide on requests. The names are
        published.
        """
        self._state = state
        self._experts = experts
        self._published: dict[Form, tuple[tuple[str, ...], bytes]] = {}

    def published(self, form: Form) -> bytes:
        """Return the registry in a published form. It is computed again only after a change."""
        experts = self._experts()
        key = (self._state.version, self._state.today, *experts)
        cached = self._published.get(form)
        if cached is None or cached[0] != key:
            registry, today = self._state.registry, self._state.today
            entries = tuple(registry.in_order())
            publication = Publication(entries=entries, updated=registry.updated, today=today, experts=experts)
            cached = self._published[form] = key, publish(publication, form)
        return cached[1]

    async def import_(
        self,
        by: str,
        data: bytes,
        source: str,
        *,
        is_trusted: bool,
        is_beside: bool = False,
        pin: str = "",
    ) -> tuple[int, SourceRegistry]:
        """Import the entries of another registry. They are read-only and replace earlier entries of the same source.

        `is_trusted` says whether tools that differ from these entries may be refused. With `is_beside`, the entries are
        kept for comparison only: they are no entries of this registry, so no name can be taken. `pin` is the digest
        that the document must have, or empty. Return the number of entries, and the source. Raise Refused if the
        document is not accepted, and StoreError if the entries cannot be stored.
        """
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if pin and pin != digest:
            raise Refused("wrong_digest", f"the document has the digest {digest}, not the pinned one")
        if not source or len(source) > SOURCE_CHARS_MAX or not source.isprintable():
            raise Refused("bad_source", "say where it comes from, in printable characters")
        try:
            entries = read_published_untrusted(data)
        except BadDocument as bad:
            raise Refused("bad_document", str(bad)) from None
        if is_beside and is_trusted:
            raise Refused("not_trusted", COMPARED)
        state = self._state
        own_names = {each.surface_name for each in entries}

        def decide_beside(registry: NamesRegistry) -> RegistryChange[SourceRegistry]:
            imported = SourceRegistry(url=source, digest=digest, imported_on=state.today, is_beside=True)
            step = partial(RegistryStep, at=state.now, by=by, what="import", reason=f"compared with {source}")
            steps = [step(subject=source, source=imported)]
            for old in registry.entries.values():
                if old.source == source:
                    steps.append(step(subject=old.surface_name, entry=old, is_removed=True))
            others = registry.beside.get(source, {})
            for name in sorted(others.keys() - own_names):
                steps.append(step(subject=name, beside=others[name], is_removed=True))
            for entry in entries:
                new = replace(entry, source=source)
                if others.get(entry.surface_name) != new:
                    steps.append(step(subject=entry.surface_name, beside=new))
            return RegistryChange(tuple(steps), imported)

        def decide(registry: NamesRegistry) -> RegistryChange[SourceRegistry]:
            # A name is taken if it is registered here or was imported from another source. An equal entry that is
            # registered here does not count.
            taken = [
                each.surface_name
                for each in entries
                if (current := registry.entries.get(each.surface_name)) is not None
                and current.source != source
                and current != replace(each, source="")
            ]
            if taken:
                shown = ", ".join(taken[:5])
                raise Refused("name_taken", f"{shown}: registered here or by another source", {"names": taken[:100]})
            imported = SourceRegistry(url=source, digest=digest, imported_on=state.today, is_trusted=is_trusted)
            step = partial(RegistryStep, at=state.now, by=by, what="import")
            steps = [step(subject=source, source=imported)]
            for old in registry.entries.values():
                if old.source == source and old.surface_name not in own_names:
                    steps.append(step(subject=old.surface_name, entry=old, is_removed=True))
            for entry in entries:
                new = replace(entry, source=source)  # REG-9-4
                # Every registry has the initial entries. An equal one that is registered here stays as it is.
                if registry.entries.get(entry.surface_name) not in (new, replace(entry, source="")):
                    steps.append(step(subject=entry.surface_name, entry=new))
            return RegistryChange(tuple(steps), imported)

        return len(entries), await state.change(decide_beside if is_beside else decide)

    @changes_registry
    def trust(
        self, registry: NamesRegistry, by: str, source: str, *, is_trusted: bool
    ) -> RegistryChange[SourceRegistry]:
        """Set whether the entries of an imported registry are enforced (REG-N-5)."""
        current = registry.sources.get(source)
        if current is None:
            raise NotFound("source", source, list(registry.sources))
        if current.is_beside and is_trusted:
            raise Refused("not_trusted", COMPARED)
        changed = replace(current, is_trusted=is_trusted)
        what = "trust" if is_trusted else "distrust"
        step = RegistryStep(at=self._state.now, by=by, what=what, subject=source, source=changed)
        return RegistryChange((step,), changed)
