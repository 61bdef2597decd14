"""Check 7: are the arguments what the tool's contract wants, and can they be named exactly where a person confirms?

A contract is asked before any driver is chosen, and before anybody is asked to agree to what cannot be sent; likewise
the schema of a tool whose calls wait for a person, and the declared operations of an AQL server. What a plain tool is
sent is its server's to judge.
"""

import logging
import secrets
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from msgspec import Raw

from interlock.catalog.api import CheckVerdict
from interlock.catalog.routes import Route
from interlock.core.calls.call import Call, CallLink
from interlock.core.calls.caller import Principal
from interlock.core.calls.check import CheckNumber, Refused
from interlock.drivers.protocol.binding.results import error_result
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.mcp.meta import RAW_EMPTY
from interlock.mcp.methods import Era
from interlock.mcp.results import result_to_legacy
from interlock.wire.jsonrpc.codec import decode_value
from interlock.wire.refusal import INVALID_PARAMS, Refusal
from interlock.wire.schemas.validators import Compiled, compile_schema, rewritten, without_format

log = logging.getLogger("interlock.calls")

INPUT_INVALID: Final = "input_invalid"
WRONG_INPUT: Final = Refusal(INVALID_PARAMS, INPUT_INVALID, {"reason": INPUT_INVALID})

OperationRefusal = Callable[[Call, Route], Refused | None]  # what an AQL server below would refuse, where that is known


class ArgumentsCheck:
    number = CheckNumber.ARGUMENTS
    name = "arguments"
    is_common = False

    def __init__(self, operation_refusal: OperationRefusal = lambda call, route: None) -> None:
        self._operation_refusal = operation_refusal

    def applies_to(self, route: Route) -> bool:
        return route.gate is not None or route.link.checks_input

    def check(self, call: Call, link: CallLink) -> Refused | None:
        refusal = call.argument_refusal()
        if refusal is None and call.hold is not None:
            refusal = call.hold.identify(call)
            route = call.route
            if refusal is None and isinstance(route, Route) and route.is_held and not route.link.checks_input:
                return _schema_refusal(call, route) or self._operation_refusal(call, route)
        return None if refusal is None else Refused(self.number, refusal)

    def explain(self, route: Route, caller: Principal) -> CheckVerdict:
        strict = route.is_held  # for `Hold.identify` names the call, whatever it waits for
        has_contract = route.link.find_outlook(route.original) is not None
        reason = "the server's"
        if strict:
            reason = "checked when you call: they must match the schema and be unambiguous JSON"
        if has_contract:
            reason = "checked against the contract" + (f"; {reason}" if strict else "")
        return CheckVerdict(
            number=self.number, name=self.name, verdict="later" if strict or has_contract else "pass", reason=reason
        )


def _schema_refusal(call: Call, route: Route) -> Refused | None:
    """Return the refusal of arguments that the schema of the tool does not allow, or None.

    The arguments were read, and found to be unambiguous, when the call was named.
    """
    compiled = _compiled(bytes(route.item.get("inputSchema", b"")))
    refusal = compiled.maybe_fault(decode_value(call.params.get("arguments") or RAW_EMPTY)) if compiled else None
    if refusal is None:
        return None
    ref = secrets.token_hex(6)
    log.debug("%s (ref %s): %s: %s", call.target, ref, INPUT_INVALID, refusal)
    error = DriverRefusal(code=INPUT_INVALID, message=f"{refusal}; no person was asked to approve the call")
    result = error_result(error, ref)
    if call.caller.era is not Era.MODERN:
        brought = result_to_legacy(Raw(result))
        result = result if isinstance(brought, Refusal) else brought
    return refuse_input(call, result)


def refuse_input(call: Call, result: bytes) -> Refused:
    """Refuse a call. `result`: says what is wrong with the arguments."""
    call.reason = INPUT_INVALID
    return Refused(CheckNumber.ARGUMENTS, WRONG_INPUT, result)


@lru_cache(maxsize=256)
def _compiled(schema: bytes) -> Compiled | None:
    """Compile a schema, or return None if it cannot be applied. Formats of servers are annotations."""
    return compile_schema(rewritten(decode_value(schema), without_format)) if schema else None
