"""Check 4: is the tool listed for this caller, and may this caller have somebody asked about it?

The names a caller sees are the names it may call: the view of the namespace is the one predicate.
"""

from typing import Final

import msgspec

from interlock.catalog.api import CheckVerdict
from interlock.catalog.catalog import SCOPES, LiveNamespace
from interlock.catalog.routes import Route
from interlock.core.calls.call import Call, CallLink, CallRoute
from interlock.core.calls.caller import OUT_OF_SCOPE, Caller, Principal, ViewKey, view_key
from interlock.core.calls.check import NOT_FOUND, RELISTED, CheckNumber, Refused, not_found_refusal
from interlock.wire.refusal import SCOPE_DENIED, Refusal, ax_refusal

_NO_PERSON_TO_ASK: Final = Refused(
    CheckNumber.ROUTE,
    ax_refusal(SCOPE_DENIED, "a person confirms calls of this tool; an unknown caller has no person to ask"),
)


class RouteCheck:
    number = CheckNumber.ROUTE
    name = "route and scope"
    is_common = False

    def __init__(self, live: LiveNamespace) -> None:
        self._live = live

    def applies_to(self, route: Route) -> bool:
        """Being listed is decided by the caller's view, before there is a call. What is left: unknown callers."""
        return route.gated

    def check(self, call: Call, link: CallLink) -> Refused | None:
        """Refuse a call that would make a gate here, or of a hop below, take this node for the caller."""
        return _NO_PERSON_TO_ASK if _has_no_person_to_ask(call.route, call.caller.principal) else None

    def maybe_route(self, key: ViewKey, name: str) -> Route | None:
        return self._live.current.view(key).find_tool(name)

    def unlisted(self, caller: Caller, name: str) -> Refusal:
        """Return the refusal of an unknown name. For a parent it tells a missing tool from one beyond its scope
        (MCP-AX 10.2).
        """
        namespace = self._live.current
        if caller.hop is None:
            return not_found_refusal(namespace.view(caller.key).near_names(name))
        beyond = any(name in items.out_of_scope for items in namespace.link_items)
        wider = msgspec.structs.replace(caller.key, scope="admin")
        return OUT_OF_SCOPE if beyond or self.maybe_route(wider, name) is not None else NOT_FOUND

    def find_relisted(self, call: Call) -> Refused | None:
        """Refuse a call whose tool is held, withheld or gone by now, because its server came back with other tools."""
        was = call.route
        if was is None:
            return None
        route = self.maybe_route(call.caller.key, call.target)
        if route is not None and (route.digest == was.digest if was.is_held else not route.is_held):
            return None
        return Refused(CheckNumber.ROUTE, RELISTED)

    def explain(self, route: Route, caller: Principal) -> CheckVerdict:
        key = view_key(caller, only=None, names="auto", declares_extension=False)
        namespace = self._live.current
        if self.maybe_route(key, route.qualified) is not None:
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
