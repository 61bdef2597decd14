"""Who is calling: the principal behind a credential, the client of a request, and how the client is reached.

A `Caller` is the client side of calls. A legacy client has one for its session; a modern client, which has no session,
shares one between requests with the same credential and declarations. The `Principal` says who the client is and what
it may do, and the `ViewKey` which names it sees: callers with equal keys share one view of the namespace and its
encoded bytes.

A `Sink` receives the answer to one request. A `ClientChannel` reaches a legacy client outside its requests: there the
node sends it notifications, and passes on the questions of servers.

Only a parent has a `Hop`. A parent's request carries the route that it took (MCP-AX 7.2, 10.2); the hop follows the
route to the tool, prompt or resource that it leads to. What any other client says about routes is dropped.
"""

import asyncio
import copy
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw

from interlock.ax.protocol import route as ax_route
from interlock.ax.protocol.budget import BudgetLimits
from interlock.ax.protocol.route import CURSOR, ROUTE, Routed
from interlock.config.plan import AccessRule, NameForm, Scope, Surface
from interlock.core.audit_record import SessionVia
from interlock.mcp.meta import stamp_modern
from interlock.mcp.methods import ASKED_OF_CLIENT, CANCELLED, TASKS_CANCEL, TASKS_GET, TASKS_RESULT, Era
from interlock.mcp.results import with_note
from interlock.wire.jsonrpc import codec
from interlock.wire.jsonrpc.codec import Request, Response, decode_object, encode_value, find_string
from interlock.wire.refusal import METHOD_NOT_FOUND, SCOPE_DENIED, Refusal, ax_refusal


class Principal(msgspec.Struct, frozen=True):
    """An authenticated identity at the public endpoint, with the rights of the [[access]] entry that applies to it."""

    name: str  # "local", "client:NAME" or "client:ISS/SUB@CLIENT_ID"
    scope: Scope = "write"
    tools: tuple[str, ...] = ("*",)
    names: NameForm | None = None
    surface: Surface | None = None
    issuer: str | None = None  # the authorization server that vouches for it
    ceiling: Scope | None = None  # what another token of that server could raise `scope` to
    budget: BudgetLimits | None = None
    stranger: bool = False  # without a credential, from beyond this machine: no known identity


def principal_for(
    name: str, scope: Scope | None, rules: tuple[AccessRule, ...], roles: tuple[str, ...] = ()
) -> Principal:
    """Return the principal called `name`, with the rights of the first [[access]] entry whose `who` matches.

    A token's scope can only reduce these rights. If no entry matches, the scope decides; without a scope it is "write".
    """
    order = ("read", "write", "admin")
    for rule in rules:
        if any(fnmatchcase(known_as, pattern) for known_as in (name, *roles) for pattern in rule.who):
            granted: Scope = rule.scope if scope is None else min(rule.scope, scope, key=order.index)
            return Principal(name, granted, rule.tools, rule.names, rule.surface, budget=rule.budget)
    return Principal(name, scope or "write")


VIA_AX: Final = "ax"  # a parent, on the link that this node opened


class ViewKey(msgspec.Struct, frozen=True):
    """The key of a view: which tools and other items a caller sees, and in which form it gets their names. Callers with
    equal keys share the view and its cached bytes.

    `who` is looked up once in each snapshot of the namespace, so callers that see the same links share a view too.
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
    """A receiver of the answer to one request. `emit` may be called any number of times, then `answer` exactly once."""

    def emit(self, message: bytes) -> None:
        """Send a message that belongs to the request but is not its answer."""

    def answer(self, message: bytes, status: int = 200) -> None:
        """Send the answer, which ends the request."""

    def drop(self) -> None:
        """End the request without an answer, because it was cancelled."""


class AwaitedAnswer:
    """The sink of a request that the node itself makes. It keeps only the answer, for code that waits for it."""

    def __init__(self) -> None:
        # None: the request has ended without an answer.
        self.message: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

    def emit(self, message: bytes) -> None:
        """Discard progress and log messages, because there is no client."""

    def answer(self, message: bytes | None, status: int = 200) -> None:
        if not self.message.done():
            self.message.set_result(message)

    def drop(self) -> None:
        self.answer(None)


class AnswerReceiver(Protocol):
    """A receiver of a client's answer to a question. It is the link to the server that asked, or an object that asks on
    the server's behalf.
    """

    def respond(self, upstream_id: bytes, payload: bytes) -> None:
        """Pass a client's answer to the server that asked. `payload` is the encoded member `result` or `error` of a
        JSON-RPC response, with its name.
        """


class QuestionOrigin(Protocol):
    """A call or a task on whose behalf a server may ask the client a question."""

    asking: int  # questions under way
    progressed: bool

    @property
    def caller(self) -> "Caller": ...

    def on_request(self, link: AnswerReceiver, request: Request) -> None:
        """Ask the client the question, and pass its answer to `link`."""


class ClientChannel:
    """The streams to a legacy client, and the open questions that servers ask it over them.

    Each server numbers its questions independently, so the node gives each question a new id for the client.
    """

    def __init__(self, caller: "Caller") -> None:
        self.caller = caller
        self.is_closed = False
        self.streams: list[Sink] = []  # for messages that belong to no call; the newest is used
        self._questions: dict[bytes, tuple[AnswerReceiver, bytes, Sink | None]] = {}  # by our id
        self._last_question = 0
        caller.channel = self

    def attach(self, stream: Sink) -> None:
        """Use `stream`, which the client has opened, for messages from now on."""
        self.streams.append(stream)

    def detach(self, stream: Sink) -> None:
        """Stop using a stream that has ended."""
        if stream in self.streams:
            self.streams.remove(stream)

    @property
    def reachable(self) -> bool:
        """Return whether the client can receive messages that belong to no call."""
        return bool(self.streams) and not self.is_closed

    def tell(self, message: bytes) -> bool:
        """Send a message to the client on its newest stream. Return False if the client cannot be reached."""
        if not self.reachable:
            return False
        self.streams[-1].emit(message)
        return True

    def ask(self, link: AnswerReceiver, upstream_id: bytes, method: str, params: Raw, sink: Sink | None) -> None:
        """Ask the client a question of a server.

        `sink` belongs to the call that caused the question; None means no call did.
        """
        needed = _ASKABLE.get(method)
        if needed is None or needed not in self.caller.capabilities:
            refuse_question(link, upstream_id, f"the client does not support {method}")
            return
        if (stream := self._stream_for(sink)) is None:
            refuse_question(link, upstream_id, "the client cannot be reached")
            return
        self._last_question += 1
        our_id = b'"il-%d"' % self._last_question
        self._questions[our_id] = (link, upstream_id, sink)
        stream.emit(codec.encode_request(our_id, method.encode(), bytes(params)))

    def withdraw(self, link: AnswerReceiver, upstream_id: bytes, params: Raw) -> None:
        """Withdraw a question that the server no longer wants answered."""
        for our_id, (asking_link, theirs, sink) in list(self._questions.items()):
            if asking_link is link and theirs == upstream_id:
                del self._questions[our_id]
                cancellation: dict[str, Raw] = decode_object(params) or {}
                cancellation["requestId"] = Raw(our_id)
                if (stream := self._stream_for(sink)) is not None:
                    stream.emit(codec.encode_notification(CANCELLED.encode(), encode_value(cancellation)))

    def take_answer(self, response: Response) -> bool:
        """Pass a client's answer to the server that asked. Return False if no open question has this id."""
        if (question := self._questions.pop(response.id, None)) is None:
            return False
        link, upstream_id, _ = question
        answer = b'"error":' + bytes(response.error) if response.error else b'"result":' + bytes(response.result)
        link.respond(upstream_id, answer)
        return True

    def close(self) -> None:
        """Answer the open questions with an error, because the client has disconnected."""
        self.is_closed = True
        questions, self._questions = self._questions, {}
        for link, upstream_id, _ in questions.values():
            refuse_question(link, upstream_id, "the client has gone")
        self.caller.channel = None  # no reference cycle: a session must not wait for the garbage collector

    def _stream_for(self, sink: Sink | None) -> Sink | None:
        return sink if sink is not None else (self.streams[-1] if self.streams else None)


def refuse_question(link: AnswerReceiver, upstream_id: bytes, why: str) -> None:
    """Answer a server's question with an error that says why no client can be asked."""
    link.respond(upstream_id, b'"error":' + codec.error_body(Refusal(METHOD_NOT_FOUND, why)))


# What a client can be asked, and the capability it needs. A client that keeps tasks for servers is asked about them.
_ASKABLE: Final = {**ASKED_OF_CLIENT, **dict.fromkeys((TASKS_GET, TASKS_RESULT, TASKS_CANCEL), "tasks")}


class Caller(msgspec.Struct, eq=False):
    """A client on whose behalf calls are made. A legacy client has one `Caller` per session; modern clients share one
    between requests.
    """

    principal: Principal
    era: Era
    via: str
    key: ViewKey
    hop: "Hop | None" = None  # of a parent: what it says of routes is read, and refusals have the draft's numbers
    channel: ClientChannel | None = None  # of a legacy client: where servers may ask it
    calls: dict[bytes, Any] | None = None  # by the client's id, where a client can cancel by id
    client: Raw | None = None
    capabilities: dict[str, Raw] = {}  # of a legacy client
    modern_capabilities: Raw = Raw(b"{}")  # the same, as a 2026-07-28 server reads them
    log_level: str | None = None
    version: str = ""  # of a legacy client
    aql: str | None = None  # the id of its session at the AQL surfaces, once it has one
    warned: set[tuple[str, str]] = set()  # code and message of what that session was warned of
    front: Any = None  # the front of its era and surface, of a modern client
    seen: Any = None  # the namespace `view` belongs to
    view: Any = None
    whole: "Caller | None" = None  # of one that cannot be asked: the client that can
    _stamp: Raw | None = None
    _stamped_level: str | None = None

    def stamp(self, meta: dict[str, Raw]) -> None:
        """Add to `meta` the members that a 2026-07-28 server expects in each request, on behalf of a legacy client."""
        level = None if self.log_level is None else Raw(encode_value(self.log_level))
        stamp_modern(meta, capabilities=self.modern_capabilities, client=self.client, log_level=level)

    def stamped(self) -> Raw:
        """Return the encoded `_meta` that a 2026-07-28 server expects in each request of this legacy client.

        It is cached until the client's log level changes.
        """
        if self._stamp is None or self._stamped_level is not self.log_level:
            meta: dict[str, Raw] = {}
            self.stamp(meta)
            self._stamp, self._stamped_level = Raw(encode_value(meta)), self.log_level
        return self._stamp

    def without_questions(self) -> "Caller":
        """Return a copy of this caller to which servers cannot send questions."""
        caller = copy.copy(self)
        caller.whole = self
        caller.channel, caller.capabilities, caller.modern_capabilities = None, {}, Raw(b"{}")
        return caller

    def begin_aql_session(self, id: str) -> None:
        """Begin an MCP-AQL session of the client. From now on, the audit log records its calls with this session id."""
        self.aql = id
        self.via = SessionVia(self.via, id)

    def act_as(self, principal: Principal) -> None:
        """Give this client the name and the rights of another principal, because its credential or the access rules
        have changed.
        """
        self.principal = principal
        who, scope, tools = principal.name, principal.scope, principal.tools
        self.key = msgspec.structs.replace(self.key, scope=scope, tools=tools, who=who)
        self.seen = None


def view_key(
    principal: Principal, *, only: str | None, names: NameForm, declares_extension: bool, via: str = ""
) -> ViewKey:
    """Return the key of a client's view: which tools the client may see, and in which form it gets their names.

    `names` is the form that the request asked for; if it is "auto", the principal's setting decides, then what the
    client declares.
    """
    form = names if names != "auto" else (principal.names or "auto")
    dotted = form == "qualified" or (form == "auto" and declares_extension)
    upward = via == VIA_AX
    full = declares_extension or upward
    return ViewKey(dotted, only, principal.scope, principal.tools, full=full, upward=upward, who=principal.name)


class ClientRequest(msgspec.Struct, frozen=True):
    """A client's request in the form in which the node handles it, whatever transport it came by.

    The members of `params` are raw JSON. The dispatcher changes `params` in place, so a front must not use it again.
    """

    caller: Caller
    client_id: bytes  # the JSON-RPC id, as the client wrote it
    method: str
    params: dict[str, Any]
    meta: dict[str, Raw]  # the members of `_meta`
    sink: Sink
    headers: Mapping[bytes, bytes] | None = None  # of an HTTP request


NOTES_MAX = 3  # in one answer; `interlock links logs` has all


class NotedSink(msgspec.Struct):
    """A sink that passes everything on to another sink, and adds notes of the node to the answer."""

    _sink: Sink
    _notes: dict[str, None] = {}

    def add(self, note: str) -> None:
        """Add a note to the answer that will be sent through this sink. Further notes beyond a limit are dropped."""
        if len(self._notes) < NOTES_MAX:
            self._notes[note] = None

    def emit(self, message: bytes) -> None:
        self._sink.emit(message)

    def answer(self, message: bytes, status: int = 200) -> None:
        self._sink.answer(with_note(message, "\n".join(self._notes)), status)

    def drop(self) -> None:
        self._sink.drop()


def add_note(sink: Sink, note: str) -> Sink:
    """Return a sink that passes everything on to `sink` and adds a note, a text of this node, to the answer."""
    noted = sink if isinstance(sink, NotedSink) else NotedSink(sink)
    noted.add(note)
    return noted


KNOWN_MAX: Final = 4096  # routes remembered; each is one tool's
KNOWN_BYTES_MAX: Final = 512  # of a route, and of a name, that is worth remembering


class Followed(msgspec.Struct, frozen=True):
    """The tool, prompt or resource to which the route in a parent's request leads, under its name at this node."""

    name: str  # of the tool or prompt as our own table has it; the URI of a resource
    raw: Raw  # the same as JSON
    onward: dict[str, Raw]  # the route one further, for an AX peer below
    received: dict[str, Raw]  # the route as it came, as `_meta` has it


class Hop(msgspec.Struct, eq=False):
    """The link from a parent aggregator, as the reader of the routes in the parent's requests. `segment` is the name
    that the parent gave to this node.
    """

    segment: str
    _known: dict[tuple[bytes, bytes, bytes], Followed] = {}

    def follow(self, params: dict[str, Any], meta: dict[str, Raw], name: Raw | None) -> Followed | Refusal | None:
        """Return the tool or prompt to which the route in a parent's request leads, with its name at this node. `name`
        is the name in the request. Return a refusal if the route is wrong.

        Return None if the request has no route or no name.
        """
        if name is None:
            return None
        if ROUTE not in meta or CURSOR not in meta or ROUTE in params or CURSOR in params:
            return self._follow(params, meta, name)
        key = bytes(meta[ROUTE]), bytes(meta[CURSOR]), bytes(name)
        if (cached := self._known.get(key)) is not None:  # a parent says the same of a tool with every call
            return cached
        followed = self._follow(params, meta, name)
        if isinstance(followed, Followed) and max(map(len, key)) <= KNOWN_BYTES_MAX:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[key] = followed
        return followed

    def _follow(self, params: dict[str, Any], meta: dict[str, Raw], name: Raw) -> Followed | Refusal | None:
        text = find_string(name)
        if text is None:
            return None
        routed = _take_route(params, meta)
        if not isinstance(routed, Routed):
            return routed
        local_name = ax_route.follow_name(routed, segment=self.segment, name=text)
        return local_name if isinstance(local_name, Refusal) else _followed(local_name, routed)

    def follow_uri(self, params: dict[str, Any], meta: dict[str, Raw], uri: str) -> Followed | Refusal | None:
        """Return the resource to which the route in a parent's request leads, with its URI at this node. Return None if
        the request has no route, or a refusal if the route is wrong.
        """
        routed = _take_route(params, meta)
        if not isinstance(routed, Routed):
            return routed
        local_uri = ax_route.follow_uri(routed, segment=self.segment, uri=uri)
        return local_uri if isinstance(local_uri, Refusal) else _followed(local_uri, routed)

    def check(self, params: dict[str, Any], meta: dict[str, Raw], rest: Sequence[str]) -> Followed | Refusal | None:
        """Check that the route in a parent's request leads to a given item. Return that item, or a refusal.

        `rest` contains the segments below this node, followed by the item's local name.
        """
        routed = _take_route(params, meta)
        if not isinstance(routed, Routed):
            return routed
        return ax_route.check(routed, segment=self.segment, rest=rest) or _followed(".".join(rest), routed)


def _take_route(params: dict[str, Any], meta: dict[str, Raw]) -> Routed | Refusal | None:
    """Remove the MCP-AX route from a request and return it. The route may be in the params or in `_meta`. Return None
    if there is none.
    """
    routed = ax_route.read_untrusted(params, meta)
    params.pop(ROUTE, None)
    params.pop(CURSOR, None)
    return routed


def _followed(name: str, routed: Routed) -> Followed:
    return Followed(name, Raw(encode_value(name)), ax_route.as_meta(ax_route.advance(routed)), ax_route.as_meta(routed))


OUT_OF_SCOPE: Final = ax_refusal(SCOPE_DENIED, "the tool is there, and needs a wider scope than this registration has")
