"""Step grants: the names that an agent may call after it reported a step, each once.

A hint is prose, so only the names in it can be enforced. A grant contains those names in the hint that can be called. A
call matches if any name of its tool is granted (alias, qualified, local, original or operation name), or if every
operation in it is granted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from posixpath import normpath
from typing import Final, NamedTuple
from urllib.parse import unquote

from msgspec import Raw

from interlock.catalog.catalog import LiveNamespace, Namespace
from interlock.catalog.routes import Route
from interlock.core.calls.call import Call
from interlock.core.calls.caller import Caller, ViewKey
from interlock.mcp.meta import RAW_EMPTY
from interlock.mcp.methods import PROMPTS_GET, RESOURCES_READ, TOOLS_CALL
from interlock.safety.protocol.hint import Hint, normalise
from interlock.wire.jsonrpc.codec import decode_array, decode_object, find_string

VIEWS_MAX: Final = 16
WATCHED: Final = frozenset((TOOLS_CALL, RESOURCES_READ, PROMPTS_GET))  # AQL-8.6.3-1: completion acts on nothing
_NONE: Final = Raw(b"[]")

CallIdentity = tuple[bytes, float]
OperationName = Callable[[Route], str | None]
LiftedNames = Callable[[Route], Mapping[str, str]]


def identity_of(call: Call) -> CallIdentity:
    """Return a value that identifies a call. It stays the same each time the guard checks the call."""
    return call.client_id, call.started


class CallNames(NamedTuple):
    """The names that refer to the target of one call."""

    of_tool: frozenset[str]
    of_items: tuple[frozenset[str], ...] = ()  # of each operation in it: all have to be granted

    @property
    def all(self) -> frozenset[str]:
        return self.of_tool.union(*self.of_items)


class StepGrant:
    """Permission of a reported step: each name in the hint may be called once."""

    __slots__ = ("_used", "is_approved", "names")

    def __init__(self, names: frozenset[str], *, is_approved: bool = False) -> None:
        """Create a grant for `names`. `is_approved` means that a person saw the hint and approved it."""
        self.names = names
        self.is_approved = is_approved
        self._used: set[CallIdentity] = set()

    def may(self, call: Call, names: "CallNames") -> bool:
        if identity_of(call) in self._used or not self.names.isdisjoint(names.of_tool):
            return True
        left = self.names
        for item in names.of_items:
            if left.isdisjoint(item):
                return False
            left -= item  # once each, also within one call
        return bool(names.of_items)

    def use(self, call: Call, names: "CallNames") -> None:
        """Use up the grant for a call. Using it again for the same call changes nothing."""
        if identity_of(call) not in self._used:
            self._used.add(identity_of(call))  # AQL-8.6.2-1
            self.names -= names.all  # AQL-8.6.2-1


@dataclass(eq=False)
class CallableNames:
    """The names that a caller can use in calls. They are computed once per namespace and kind of caller.

    `operation` returns the name of a tool's operation on the AQL surfaces. `lifted` returns the names of the
    operations behind a tool of an AQL server, keyed by the names that the server uses.
    """

    live: LiveNamespace
    operation: OperationName
    lifted: LiftedNames
    _known: dict[ViewKey, tuple[Namespace, frozenset[str]]] = field(default_factory=dict, init=False)

    def forget(self) -> None:
        """Clear the cache, because the operations of an upstream server have changed."""
        self._known.clear()

    def of(self, caller: Caller) -> frozenset[str]:
        namespace = self.live.current
        view = namespace.view(caller.key)
        cached = self._known.get(view.key)
        if cached is not None and cached[0] is namespace:
            return cached[1]
        names: set[str] = set()
        for route in {id(route): route for table in (view.tools, view.prompts) for route in table.values()}.values():
            names |= self.of_route(route)
            for pair in self.lifted(route).items():
                names.update(map(normalise, pair))
        if len(self._known) >= VIEWS_MAX:
            self._known.clear()
        self._known[view.key] = namespace, frozenset(names)
        return self._known[view.key][1]

    def of_route(self, route: Route) -> frozenset[str]:
        operation = self.operation(route)
        spelled = (route.qualified, route.alias, route.local, route.original, *((operation,) if operation else ()))
        return frozenset(normalise(name) for name in spelled)

    def of_call(self, call: Call) -> CallNames:
        if isinstance(call.route, Route):
            return CallNames(self.of_route(call.route), self._of_lifted(call, call.route))
        route = None
        if call.method == PROMPTS_GET:
            route = self.live.current.view(call.caller.key).find_prompt(call.target)
        if route is not None:
            return CallNames(self.of_route(route))
        return CallNames(frozenset((normalise(call.target), normalise(plain_uri(call.target)))))

    def _of_lifted(self, call: Call, route: Route) -> tuple[frozenset[str], ...]:
        """Return the names of the operations that a call of an AQL server's tool carries out, because the call runs
        these operations.
        """
        lifted = self.lifted(route)
        if not lifted:
            return ()
        arguments = decode_object(call.params.get("arguments", RAW_EMPTY)) or {}
        several = decode_array(arguments.get("operations", _NONE)) or ()
        items = [arguments, *(decode_object(item) or {} for item in several)]
        called = [name for item in items if (name := find_string(item.get("operation"))) is not None]
        return tuple(frozenset(map(normalise, (each, lifted.get(each, each)))) for each in called)

    def named_by(self, hint: Hint, caller: Caller) -> frozenset[str]:
        """Return the names in a hint that the caller can call, and all URIs in it, because a URI
        may name a resource.
        """
        return (hint.names & self.of(caller)) | frozenset(name for name in hint.names if "://" in name)


def plain_uri(uri: str) -> str:
    """Return a URI without percent-encoding and dot segments, so that patterns match it."""
    scheme, mark, rest = uri.partition("://")
    if not mark:
        return uri
    plain = unquote(unquote(rest))
    host, slash, path = plain.partition("/")
    return f"{scheme}{mark}{host}{normpath(slash + path) if slash else ''}"
