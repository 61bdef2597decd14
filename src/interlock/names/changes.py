"""What a change controller does with an entry or a prefix, each on record: deprecate, withdraw, transfer, consent."""

import uuid
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from interlock.core.operator_errors import NotFound, Refused
from interlock.names.actors import Actor, check_controller, step_by
from interlock.names.protocol.grammar import is_name
from interlock.names.protocol.life import ENTRY_MOVES, EntryMove, is_day, withdrawable_on
from interlock.names.protocol.model import PUBLIC, Entry, Status
from interlock.names.protocol.records import TEXT_CHARS_MAX, Consent, Implementation, Step, Transfer
from interlock.names.protocol.registry import Registry
from interlock.names.sightings import Sightings
from interlock.names.state import Change, RegistryState, own_entry

REASON_CHARS_MAX: Final = TEXT_CHARS_MAX
_LOOKED: Final = "an operator of the node has looked at it"


class ControllerChanges:
    """All raise NotFound, Refused and StoreError."""

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
        """After twelve months of deprecation, and without a known implementation. No one can shorten that."""
        today = self._state.today
        seen = await self._sightings.of(name)

        def check(entry: Entry) -> Entry:
            day = withdrawable_on(entry.deprecated_on or today)
            if entry.status is not Status.DEPRECATED or today < day:  # REG-7.3-3
                raise Refused("deprecation_too_short", f"{name} can be withdrawn on {day} at the earliest")
            left = [one.who for one in self._state.registry.remaining_implementations(name)]
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
        """The controller, or an operator of this node, has looked and wants it public still (REG-8.4-2)."""
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
        """The holder of a prefix lets another controller register under it (REG-7.2-2)."""
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
            given = Consent(prefix=prefix, controller=controller, until=until)
            return Change((replace(step_by(actor, state.now, "consent", prefix), consent=given),), given)

        consent: Consent = await state.change(decide)
        return consent

    async def declare(self, actor: Actor, name: str, who: str) -> Implementation:
        """Anyone may say that they implement a surface."""
        state, id = self._state, str(uuid.uuid4())
        if not who.strip() or len(who) > 200 or not who.isprintable():
            raise Refused("bad_implementation", "say who implements it, in 1 to 200 printable characters")

        def decide(registry: Registry) -> Change:
            own_entry(registry, name)
            if any(one.who == who for one in registry.remaining_implementations(name)):
                raise Refused("exists", f"{who} is declared to implement {name}")
            made = Implementation(id=id, surface_name=name, who=who, declared_on=state.today)
            step = replace(step_by(actor, state.now, "declare_implementation", name), implementation=made)
            return Change((step,), made)

        made: Implementation = await state.change(decide)
        return made

    async def end_implementation(self, actor: Actor, name: str, who: str, evidence: str) -> Implementation:
        """Corrected by evidence, never overridden (REG-N-4)."""
        state = self._state
        if not evidence.strip() or len(evidence) > REASON_CHARS_MAX:
            raise Refused("evidence_required", "say what shows that the implementation has ended")

        def decide(registry: Registry) -> Change:
            entry = own_entry(registry, name)
            known = {one.who: one for one in registry.remaining_implementations(name)}
            if who not in known:
                raise NotFound("implementation", who, list(known))
            check_controller(actor, registry.controller(entry.change_controller), registry)
            ended = replace(known[who], ended_on=state.today, evidence=evidence)
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
