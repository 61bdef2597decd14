"""The checks of the guard that the catalog provides: route and scope (4), and arguments (7).

Check 4: is the tool listed for this caller, and may a person be asked to approve calls of this caller? A caller may
call exactly the names that it sees, so the view of the namespace decides.

Check 7: do the arguments match the contract of the tool, and can they be identified exactly if a person has to confirm
the call? A contract is checked before a driver is chosen. The schema of a held tool and the declared operations of an
AQL server are checked before a person is asked, so that no person approves a call that the server must refuse. The
arguments of all other tools are left to their servers.
"""

import logging
import secrets
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Raw

from interlock.catalog.api import CheckVerdict
from interlock.catalog.catalog import SCOPES, LiveNamespace
from interlock.catalog.routes import Route
from interlock.core.calls.call import Call, CallLink, CallRoute
from interlock.core.calls.caller import OUT_OF_SCOPE, Caller, Principal, ViewKey, view_key
from interlock.core.calls.check import NOT_FOUND, RELISTED, CheckNumber, CheckRefusal, not_found_refusal
from interlock.drivers.protocol.binding.results import error_result
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.mcp.meta import RAW_EMPTY
from interlock.mcp.methods import Era
from interlock.mcp.results import result_to_legacy
from interlock.wire.jsonrpc.codec import decode_value
from interlock.wire.refusal import INVALID_PARAMS, SCOPE_DENIED, Refusal, ax_refusal
from interlock.wire.schemas.validators import Compiled, compile_schema, read_schema, rewritten, without_format

_NO_PERSON_TO_ASK: Final = CheckRefusal(
    CheckNumber.ROUTE,
    ax_refusal(SCOPE_DENIED, "a person confirms calls of this tool; an unknown caller has no person to ask"),
)


class RouteCheck:
    """Check 4 of the guard: whether the tool is listed for the caller, and a person can be asked to approve calls of
    this caller.
    """

    number = CheckNumber.ROUTE
    name = "route and scope"
    is_common = False

    def __init__(self, live: LiveNamespace) -> None:
        self._live = live

    def applies_to(self, route: Route) -> bool:
        """Return whether calls of a tool need this check.

        The view already guarantees that the tool is listed, so only gated tools are checked, for unknown callers.
        """
        return route.gated

    def check(self, call: Call, link: CallLink) -> CheckRefusal | None:
        """Return a refusal if a call needs a person's approval but its caller is unknown, so that there is no person to
        ask.

        Return None otherwise.
        """
        return _NO_PERSON_TO_ASK if _has_no_person_to_ask(call.route, call.caller.principal) else None

    def find_route(self, key: ViewKey, name: str) -> Route | None:
        """Return the route to the tool with this name in a caller's view, or None."""
        return self._live.current.view(key).find_tool(name)

    def unlisted(self, caller: Caller, name: str) -> Refusal:
        """Return the refusal for a call of a tool that is not in the caller's view.

        For a parent, it distinguishes a missing tool from a tool beyond the parent's scope (MCP-AX 10.2).
        """
        namespace = self._live.current
        if caller.hop is None:
            return not_found_refusal(namespace.view(caller.key).near_names(name))
        beyond = any(name in items.out_of_scope for items in namespace.link_items)
        wider = msgspec.structs.replace(caller.key, scope="admin")
        return OUT_OF_SCOPE if beyond or self.find_route(wider, name) is not None else NOT_FOUND

    def find_relisted(self, call: Call) -> CheckRefusal | None:
        """Check again that a waiting call may be made after its server has listed its tools again. Return a refusal if
        the caller no longer sees the tool.

        Also refuse it if the tool was not held before and is held now, or if it was held before and its definition
        changed. Return None otherwise.
        """
        if (was := call.route) is None:
            return None
        route = self.find_route(call.caller.key, call.target)
        if route is not None and (route.offered_digest == was.offered_digest if was.is_held else not route.is_held):
            return None
        return CheckRefusal(CheckNumber.ROUTE, RELISTED)

    def explain(self, route: Route, caller: Principal) -> CheckVerdict:
        """Return the verdict of this check on a call by a principal, for `interlock tools show`."""
        key = view_key(caller, only=None, names="auto", declares_extension=False)
        namespace = self._live.current
        if self.find_route(key, route.qualified) is not None:
            if _has_no_person_to_ask(route, caller):
                return self._verdict("refuse", "scope_denied: an unknown caller has no person to ask")
            return self._verdict("pass", f"needs scope {route.scope}; {caller.name} has {caller.scope}")
        if route.qualified in namespace.clashing:
            return self._verdict("refuse", namespace.clashing[route.qualified].reason)
        if SCOPES.index(route.scope) > SCOPES.index(caller.scope):
            why = f"tool_not_found: needs scope {route.scope}; {caller.name} has {caller.scope}"
            return self._verdict("refuse", why)
        return self._verdict("refuse", f"tool_not_found: [[access]] of {caller.name} does not name it")

    def _verdict(self, verdict: str, reason: str) -> CheckVerdict:
        return CheckVerdict(number=self.number, name=self.name, verdict=verdict, reason=reason)


def _has_no_person_to_ask(route: CallRoute | None, principal: Principal) -> bool:
    return principal.stranger and route is not None and route.gated


log = logging.getLogger("interlock.calls")

INPUT_INVALID: Final = "input_invalid"
WRONG_INPUT: Final = Refusal(INVALID_PARAMS, INPUT_INVALID, {"reason": INPUT_INVALID})

# Returns what an AQL server below would refuse, if that is known.
OperationRefusal = Callable[[Call, Route], CheckRefusal | None]


class ArgumentsCheck:
    """Check 7 of the guard: whether the arguments keep to the tool's contract and are unambiguous."""

    number = CheckNumber.ARGUMENTS
    name = "arguments"
    is_common = False

    def __init__(self, operation_refusal: OperationRefusal = lambda call, route: None) -> None:
        self._operation_refusal = operation_refusal

    def applies_to(self, route: Route) -> bool:
        return route.gate is not None or route.link.checks_input

    def check(self, call: Call, link: CallLink) -> CheckRefusal | None:
        if (refusal := call.argument_refusal()) is None and call.hold is not None:
            refusal = call.hold.identify(call)
            route = call.route
            if refusal is None and isinstance(route, Route) and route.is_held and not route.link.checks_input:
                # The arguments were parsed and found unambiguous when the tool was looked up.
                compiled = _compiled(bytes(route.item.get("inputSchema", b"")))
                arguments = decode_value(call.params.get("arguments") or RAW_EMPTY) if compiled else None
                fault = compiled.find_fault(arguments) if compiled else None
                if fault is None:
                    return self._operation_refusal(call, route)
                ref = secrets.token_hex(6)
                log.debug("%s (ref %s): %s: %s", call.target, ref, INPUT_INVALID, fault)
                message = f"{fault}; no person was asked to approve the call"
                result = error_result(DriverRefusal(code=INPUT_INVALID, message=message), ref)
                if call.caller.era is not Era.MODERN:
                    translated = result_to_legacy(Raw(result))
                    result = result if isinstance(translated, Refusal) else translated
                return refuse_input(call, result)
        return None if refusal is None else CheckRefusal(self.number, refusal)

    def explain(self, route: Route, caller: Principal) -> CheckVerdict:
        """Return what this check will do with the arguments of calls over a route: let them pass, or check them when
        the call is made.
        """
        # Every held call must be identified exactly (`Hold.identify`).
        strict = route.is_held
        has_contract = route.link.find_outlook(route.original) is not None
        reason = "the server's"
        if strict:
            reason = "checked when you call: they must match the schema and be unambiguous JSON"
        if has_contract:
            reason = "checked against the contract" + (f"; {reason}" if strict else "")
        return CheckVerdict(
            number=self.number, name=self.name, verdict="later" if strict or has_contract else "pass", reason=reason
        )


def refuse_input(call: Call, result: bytes) -> CheckRefusal:
    """Return the refusal of a call. `result` is the tool result that explains to the client what is wrong with the
    arguments.
    """
    call.reason = INPUT_INVALID
    return CheckRefusal(CheckNumber.ARGUMENTS, WRONG_INPUT, result)


@lru_cache(maxsize=256)
def _compiled(schema: bytes) -> Compiled | None:
    """Compile a schema. Return None if it cannot be applied. The schema's `format` keywords are not enforced."""
    return compile_schema(rewritten(read_schema(schema), without_format)) if schema else None
