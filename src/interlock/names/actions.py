"""Every action on the registry by its name: what the CLI, the operator API, HTTP and MCP have in common.

In: who acts, the action, the name or prefix it is about, and its body as JSON. Out: what it came to, or Refused.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from interlock.core.operator_errors import Refused
from interlock.names.actors import Actor
from interlock.names.changes import ControllerChanges
from interlock.names.protocol.criteria import criteria_document
from interlock.names.protocol.model import NO_SCHEMA, PUBLIC, Entry
from interlock.names.protocol.records import Consent, Evidence, Implementation, Proposal, Request
from interlock.names.protocol.specification import has_schema
from interlock.names.requests import RequestService
from interlock.names.state import RegistryState, own_entry

ACTIONS_PER_DAY_MAX: Final = 200  # of one client

Result = Request | Entry | Consent | Implementation
T = TypeVar("T")


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Amendment(_Body, frozen=True, kw_only=True):
    """What is to change of the specification; what is not said stays."""

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
        """Raises Refused, NotFound, StoreError."""
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
        """The log only grows, so what one client may add to it in a day is bounded."""
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
        given = _decoded(body, ConsentTo)
        return await self._changes.consent(actor, prefix, given.controller, given.until)

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
    """What an action came to, for every surface alike."""
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
