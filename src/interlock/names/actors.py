"""The actor that asks for a change, and the check that it acts for the change controller (REG-4.1-8)."""

import msgspec

from interlock.names.protocol.registry import Controller, Registry, Step
from interlock.names.protocol.statements import Statement, is_signed_by
from interlock.wire.refusal import Refused

UNNAMED = frozenset(("local", "anonymous"))  # any program on the machine: never the principal of a controller


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who asks for a change. `override`: the reason of an admin who acts in a controller's place, which is
    recorded.
    """

    principal: str
    statement: Statement | None = None
    override: str = ""
    is_operator: bool = False  # at the operator endpoint

    @property
    def shown(self) -> str:
        return f"controller:{self.statement.controller}" if self.statement is not None else self.principal


def check_controller(actor: Actor, controller: Controller, registry: Registry) -> None:
    """Raise Refused, unless the actor acts for the controller or overrides it on record."""
    statement = actor.statement
    if statement is not None:
        check_statement(statement, controller, registry)
        return
    if actor.principal in controller.principals or actor.override:
        return
    raise Refused("not_change_controller", f"{actor.principal} does not act for {controller.name}")


def check_statement(statement: Statement, controller: Controller, registry: Registry) -> None:
    from interlock.crypto.jwt_verification import check_signature  # only loaded where a statement comes

    if statement_id(statement) in registry.used_statements:
        raise Refused("statement_replayed", "the statement was used before; sign one for each change")
    if statement.controller != controller.name or not is_signed_by(statement, controller.keys, check_signature):
        raise Refused("not_change_controller", f"the statement is not signed by a key of {controller.name}")


def statement_id(statement: Statement) -> str:
    return f"{statement.controller}/{statement.jti}"


def step_by(actor: Actor, at: str, what: str, subject: str) -> Step:
    """Return a step of this actor that its caller completes."""
    return Step(
        at=at,
        by=actor.shown,
        what=what,
        subject=subject,
        is_override=bool(actor.override),
        reason=actor.override,
        statement=statement_id(actor.statement) if actor.statement is not None else "",
    )
