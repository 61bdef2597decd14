"""Who is calling: the principal behind a credential, and the caller a request comes from."""

import copy
from fnmatch import fnmatchcase
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw

from interlock.ax.protocol.budget import Limits
from interlock.config.plan import AccessRule, NameForm, Scope, Surface
from interlock.core.audit_record import SessionVia
from interlock.core.calls.incoming_route import Hop
from interlock.mcp.meta import stamp_modern
from interlock.mcp.methods import Era
from interlock.wire.jsonrpc.codec import Request, encode_value


class Principal(msgspec.Struct, frozen=True):
    """One identity at the public endpoint. `rule` is the [[access]] entry that applies to it."""

    name: str  # "local", "client:NAME" or "client:ISS/SUB@CLIENT_ID"
    scope: Scope = "write"
    tools: tuple[str, ...] = ("*",)
    names: NameForm | None = None
    surface: Surface | None = None
    issuer: str | None = None  # the authorization server that vouches for it
    ceiling: Scope | None = None  # what another token of that server could raise `scope` to
    budget: Limits | None = None
    stranger: bool = False  # without a credential, from beyond this machine: no known identity


def principal_for(
    name: str, scope: Scope | None, rules: tuple[AccessRule, ...], roles: tuple[str, ...] = ()
) -> Principal:
    """Return the principal by the first [[access]] entry whose `who` matches; a token's scope can only lower its
    scope.
    """
    order = ("read", "write", "admin")
    for rule in rules:
        if any(fnmatchcase(known_as, pattern) for known_as in (name, *roles) for pattern in rule.who):
            granted: Scope = rule.scope if scope is None else min(rule.scope, scope, key=order.index)
            return Principal(name, granted, rule.tools, rule.names, rule.surface, budget=rule.budget)
    return Principal(name, scope or "write")


VIA_AX: Final = "ax"  # a parent, on the link that this node opened


class ViewKey(msgspec.Struct, frozen=True):
    """Key that decides which names a caller sees and in which form; equal keys share a view and its cached bytes.

    `who` is looked up once in each snapshot of the namespace: callers that see the same links share a view too.
    """

    dotted: bool = False
    only: str | None = None
    scope: Scope = "write"
    tools: tuple[str, ...] = ("*",)
    full: bool = True  # all that MCP-AX says of a tool; False: what differs from the defaults
    upward: bool = False  # a parent: it is told how many tools it is not shown
    who: str | None = ""  # the principal, for links that are shown to some; None: all are shown
    hidden: frozenset[str] = frozenset()  # of those links, by whom they are for, the ones `who` does not see


class Sink(Protocol):
    """Receiver of the answer to one request; `emit` may be called any number of times before the only `answer`."""

    def emit(self, message: bytes) -> None:
        """Send a message that belongs to the request but is not its answer."""

    def answer(self, message: bytes, status: int = 200) -> None: ...

    def drop(self) -> None:
        """End the request without an answer, because it was cancelled."""


class Asker(Protocol):
    """A client that a server may ask (legacy: its session)."""

    @property
    def reachable(self) -> bool:
        """Return whether the client can receive messages that belong to no call."""

    def tell(self, message: bytes) -> bool:
        """Send a message to the client and return whether it was sent."""

    def ask(self, link: "Asked", upstream_id: bytes, method: str, params: Raw, sink: Sink | None) -> None: ...

    def withdraw(self, link: "Asked", upstream_id: bytes, params: Raw) -> None:
        """Withdraw a question whose answer the server no longer wants."""


class Asked(Protocol):
    """A link that waits for a client's answer."""

    def respond(self, upstream_id: bytes, payload: bytes) -> None: ...


class Asking(Protocol):
    """Call under way, or task that continues without one, on whose behalf a server asks."""

    asking: int
    progressed: bool

    @property
    def caller(self) -> "Caller": ...

    def on_request(self, link: Asked, request: Request) -> None: ...


class Caller:
    """The client side of a call. A legacy caller lives as long as its session; a modern one is shared by requests."""

    __slots__ = (
        "_stamp",
        "_stamped_level",
        "aql",
        "asker",
        "calls",
        "capabilities",
        "client",
        "era",
        "front",
        "hop",
        "key",
        "log_level",
        "modern_capabilities",
        "principal",
        "seen",
        "version",
        "via",
        "view",
        "warned",
        "whole",
    )

    def __init__(self, principal: Principal, era: Era, via: str, key: ViewKey) -> None:
        self.principal = principal
        self.era = era
        self.via = via
        self.key = key
        self.hop: Hop | None = (
            None  # of a parent: what it says of routes is read, and refusals have the draft's numbers
        )
        self.asker: Asker | None = None
        self.calls: dict[bytes, Any] | None = None  # by the client's id, where a client can cancel by id
        self.client: Raw | None = None
        self.capabilities: dict[str, Raw] = {}  # of a legacy client
        self.modern_capabilities = Raw(b"{}")  # the same, as a 2026-07-28 server reads them
        self.log_level: str | None = None
        self.version = ""  # of a legacy client
        self.aql: str | None = None  # the id of its session at the AQL surfaces, once it has one
        self.warned: set[tuple[str, str]] = set()  # code and message of what that session was warned of
        self.front: Any = None  # the front of its era and surface, of a modern client
        self._stamp: Raw | None = None
        self._stamped_level: str | None = None
        self.seen: Any = None  # the namespace `view` belongs to
        self.view: Any = None
        self.whole: Caller | None = None  # of one that cannot be asked: the client that can

    def stamp(self, meta: dict[str, Raw]) -> None:
        """Add to `meta` what a 2026-07-28 server receives with each request of a legacy client."""
        level = None if self.log_level is None else Raw(encode_value(self.log_level))
        stamp_modern(meta, capabilities=self.modern_capabilities, client=self.client, log_level=level)

    def stamped(self) -> Raw:
        """Return the encoded `_meta` that contains only the stamp; it is cached until the client's log level
        changes.
        """
        if self._stamp is None or self._stamped_level is not self.log_level:
            meta: dict[str, Raw] = {}
            self.stamp(meta)
            self._stamp, self._stamped_level = Raw(encode_value(meta)), self.log_level
        return self._stamp

    def unasking(self) -> "Caller":
        """Return a copy of this client that cannot be asked anything."""
        caller = copy.copy(self)
        caller.whole = self
        caller.asker, caller.capabilities, caller.modern_capabilities = None, {}, Raw(b"{}")
        return caller

    def begin_aql_session(self, id: str) -> None:
        """Record what the client does under this session id from now on."""
        self.aql = id
        self.via = SessionVia(self.via, id)

    def act_as(self, principal: Principal) -> None:
        """Give the client the rights of another credential from now on."""
        self.principal = principal
        who, scope, tools = principal.name, principal.scope, principal.tools
        self.key = msgspec.structs.replace(self.key, scope=scope, tools=tools, who=who)
        self.seen = None


def view_key(
    principal: Principal, *, only: str | None, names: NameForm, declares_extension: bool, via: str = ""
) -> ViewKey:
    """Return the view key of a principal.

    `names` is the form that the request asked for; if it is "auto", the principal's setting decides, then what the
    client declares.
    """
    form = names if names != "auto" else (principal.names or "auto")
    dotted = form == "qualified" or (form == "auto" and declares_extension)
    upward = via == VIA_AX
    full = declares_extension or upward
    return ViewKey(dotted, only, principal.scope, principal.tools, full=full, upward=upward, who=principal.name)
