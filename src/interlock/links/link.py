"""A link: one segment of the namespace, or several joined by dots, and whatever answers its calls.

Theory of operation. Everything a client can call stands behind a link, which is one of six kinds:

    ServerLink       a server that the node starts or dials (configured, of a driver, or a user's own)
    RegisteredLink   a subserver that came to the node and registered (MCP-AX)
    ParticipantLink  a participant of a room that serves MCP (MCPx)
    DeviceLink       a device: its commands are tools (MCP-AX 8)
    ContractLink     the contracts of drivers: a call is admitted here and goes over a ServerLink lent to it
    LocalLink        the node itself: tools and resources that its packages declare

The first three are `ConnectedLink`s: messages of MCP go over a pipe. A keeper owns each of the first four, connects it
and lists what is there. This base class has what all others need, from the catalog to the operator: its segment, its
state, what it offers, how busy it is, and `send`, which takes only what the guard admitted.

To the catalog, the guard and clients, a `LocalLink` is a link like any other. A package declares its tools and
resources as values with a handler each; `catalog.local_items` turns the declarations into routes. There is no
connection behind it: it is ready as soon as it exists, and every admitted call runs its handler in a background task.

A link names the type of the calls made for it (`call_type`), so that a call is made once and never replaced. It counts
calls but does not keep them: what is under way is kept where it can be answered, in `ConnectedLink.in_flight`.
"""

from collections.abc import Awaitable, Callable, Mapping, Set
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from msgspec import Raw

from interlock.ax.protocol.capability import AuthScope, Capability, CostClass, LatencyClass
from interlock.ax.protocol.hop_metadata import ADOPTED, Offer
from interlock.config.plan import ToolClass
from interlock.config.plan_servers import DefinitionPolicy
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import AccessList, Call, CallFactory, CallLink, Outcome, Pending, answer_failures
from interlock.core.calls.caller import Caller, QuestionOrigin
from interlock.core.calls.check import Admitted
from interlock.core.clock import Clock
from interlock.core.link_state import RETRY_AFTER_MS, UNREACHABLE, LinkState, Outlook, Standing
from interlock.drivers.protocol.server_name import server_name
from interlock.links.pipes import Undelivered
from interlock.mcp.meta import HeldRoots
from interlock.mcp.methods import LATEST_MODERN, RESOURCES_READ, TOOLS_CALL, Era
from interlock.mcp.tasks import offers_tasks
from interlock.process.sandbox.mounts import EgressDenial
from interlock.store.ports import StoreError
from interlock.wire.jsonrpc.codec import ABSENT, Notification, Request, Response, decode_value, encode_value
from interlock.wire.refusal import INVALID_PARAMS, UNAVAILABLE, Refusal

if TYPE_CHECKING:
    from interlock.links.connected_link import ConnectedLink
    from interlock.links.own_links import OwnLinks


class TaskEvents:
    """Events and questions about tasks, which a link reports to the node. The defaults are for a node without tasks."""

    call_type: CallFactory = Call  # of a tools/call that may become a task
    per_user_call_type: CallFactory = Call  # of one over a link with its user's token, which may not

    def on_link_ended(self, link: "ConnectedLink") -> None:
        """Mark the tasks of a link as ended, because the link will not return."""

    def on_task_status(self, link: "ConnectedLink", params: Raw) -> None: ...

    def on_task_progress(self, link: "ConnectedLink", progress_id: int, params: dict[str, Raw]) -> None:
        """Deliver a progress notification that belongs to no open call, because it may belong to a task."""

    def on_task_log(self, link: "ConnectedLink", params: Raw) -> bool:
        """Pass on a log message about a task. Return False if the message is not about a task."""
        return False

    def on_task_request(self, link: "ConnectedLink", request: Request, origin: Pending | None) -> bool:
        """Answer a server's request about a task. Return False if the request is not about a task."""
        return False

    def on_task_answer(self, link: "ConnectedLink", upstream_id: bytes, payload: bytes) -> bytes:
        """Return a client's answer with its task ids replaced by the ids that the server uses."""
        return payload

    def find_related_task(self, link: "ConnectedLink", caller: Caller, related: Raw) -> Any:
        """Return a reference to the task to which a client's request is related, with the id that the server uses.
        Return None if the request is related to no task.
        """
        return None

    def of_others(self, link: "ConnectedLink", principals: set[str]) -> bool:
        """Return whether tasks of principals other than these may still run at this server."""
        return False


NO_TASKS = TaskEvents()


class LinkEvents:
    """Receiver of a link's events. The methods do nothing; a subclass overrides those that it needs.

    A link reports to its keeper. The keeper handles the events that concern its connection and passes all others on to
    the node's `LinkEvents`, which informs clients, the catalog and the budgets.
    """

    # What the node passes on to clients

    @property
    def tasks(self) -> TaskEvents:
        return NO_TASKS

    def on_standing(self, link: "Link") -> None:
        """React to a changed state of the link, which is in `link.standing`."""

    def on_resource_updated(self, link: "ConnectedLink", params: Raw) -> None: ...

    def on_log(self, link: "Link", params: Raw) -> None:
        """Pass on a log message that belongs to no known call."""

    def on_question(self, link: "ConnectedLink", asking: QuestionOrigin) -> Refusal | None:
        """Return a refusal if the server may not ask the client of this call or task, otherwise None."""
        return None

    def on_orphan_request(self, link: "ConnectedLink", request: Request) -> bool:
        """Answer a server's request that belongs to no call. Return False if the request will not be answered."""
        return False

    def on_client_roots(self, link: "ConnectedLink", caller: Caller, held: HeldRoots) -> None:
        """Record which of a client's roots were passed to the server and which were withheld."""

    def on_elicitation_complete(self, link: "ConnectedLink", params: Raw) -> None: ...

    def on_vendor_notification(self, link: "ConnectedLink", notification: Notification) -> None:
        """Pass on a vendor-specific notification that belongs to no known call."""

    def on_announced(self, link: "Link", kind: str, since: float) -> None:
        """Notify clients that a server's list of `kind` changed. The new list has been read already.

        `since` is the time at which the server reported the change, in the event loop's time.
        """

    def on_own_changed(self, link: "ConnectedLink", kind: str) -> None:
        """Notify the owner of a link that the server's list of `kind` changed."""

    # What the keeper acts on

    def on_changed(self, link: "ConnectedLink", kind: str) -> None:
        """Read the list of `kind` again, because the server says that it changed."""

    def on_pipe_lost(self, link: "ConnectedLink", reason: str) -> None: ...

    def on_session_lost(self, link: "ConnectedLink") -> None: ...

    def on_unauthorised(self, link: "ConnectedLink", what: Undelivered) -> None:
        """React to a request for which the server refused the node's credential.

        Calls that can be sent again with another credential wait in `link.failed.refused`.
        """

    def on_unreachable(self, link: "ConnectedLink") -> None:
        """React to a request that could not be sent."""


class PassedOnEvents(LinkEvents):
    """Base class of a keeper's event receiver. It passes the events of a link that concern clients to the node."""

    def __init__(self, events: LinkEvents) -> None:
        self._events = events

    @property
    def tasks(self) -> TaskEvents:
        return self._events.tasks

    def on_standing(self, link: "Link") -> None:
        self._events.on_standing(link)

    def on_resource_updated(self, link: "ConnectedLink", params: Raw) -> None:
        self._events.on_resource_updated(link, params)

    def on_log(self, link: "Link", params: Raw) -> None:
        self._events.on_log(link, params)

    def on_question(self, link: "ConnectedLink", asking: QuestionOrigin) -> Refusal | None:
        return self._events.on_question(link, asking)

    def on_orphan_request(self, link: "ConnectedLink", request: Request) -> bool:
        return self._events.on_orphan_request(link, request)

    def on_client_roots(self, link: "ConnectedLink", caller: Caller, held: HeldRoots) -> None:
        self._events.on_client_roots(link, caller, held)

    def on_elicitation_complete(self, link: "ConnectedLink", params: Raw) -> None:
        self._events.on_elicitation_complete(link, params)

    def on_vendor_notification(self, link: "ConnectedLink", notification: Notification) -> None:
        self._events.on_vendor_notification(link, notification)


TIMEOUT_S = 300.0  # as of [servers.SEGMENT] timeout_s


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that a server reported about itself in the handshake."""

    era: Era
    version: str
    name: str = ""
    server_version: str = ""
    capabilities: dict[str, Raw] = {}
    instructions: str | None = None
    greeted: bool = True  # False: it answers no greeting, and serves all the same


class Link(CallLink):
    """Segment of the namespace, with the server or function that answers its calls. Base class of all links."""

    call_type: CallFactory = Call  # of a tools/call
    task_call_type: CallFactory = Call  # of a tools/call whose client asks for a task
    checks_input = False  # whether arguments of a tool are compared with a contract
    is_checked = True  # whether a wrong byte on the way is found out
    retry_after_ms = RETRY_AFTER_MS
    gone = UNREACHABLE  # the reason that a caller gets while its server is away
    timeout_s = TIMEOUT_S  # of a call whose tool declares no latency class, and of other requests
    classes: Mapping[str, ToolClass] = {}  # classes that the configuration gives to tools, by their own names
    asks: frozenset[str] = frozenset()  # tools of which a person confirms every call, by their own names
    is_asked_about_added = False  # whether a person decides about what it lists after it was accepted
    tells_updates = False  # whether it reports updates of its resources without a subscription
    owner: str | None = None  # the only principal that may use it; None: it is shared
    client: Caller | None = None  # the only session that may use it
    pid: int | None = None  # of a process that the node started
    restarts = 0
    stray = 0  # answers that no call waits for
    denied: Mapping[str, EgressDenial] = {}  # hosts that a sandboxed server wanted to reach and may not

    def __init__(
        self, segment: str, events: LinkEvents, clock: Clock, *, kind: str, transport: str, offer: Offer = ADOPTED
    ) -> None:
        super().__init__(segment, offer, Standing(LinkState.CONNECTING, None, clock.wall()))
        self.path: tuple[str, ...] = (segment,)  # of which `segment` is joined
        self.kind = kind
        self.transport = transport
        self.events = events  # its keeper, for as long as there is one
        self.facts: ServerFacts | None = None
        self.era = Era.LEGACY
        self.modern = False
        self.tasks = False  # it makes tasks of calls
        self.calls = 0
        self.own: OwnLinks | None = None  # links that clients have to the same server besides this one
        # The same, for legacy clients at a modern server that may speak their era.
        self.own_of_legacy: OwnLinks | None = None
        self.shared: Link | None = None  # of a link beside it: the one that the catalog shows
        self._clock = clock

    @property
    def name(self) -> str:
        """Return the name to show to people: the segment, without the version if it belongs to a driver."""
        return server_name(self.segment)

    def send(self, admitted: Admitted[Call]) -> None:
        raise NotImplementedError

    @property
    def offers_tasks(self) -> bool:
        """Return whether the server can run calls as tasks."""
        return self.facts is not None and offers_tasks(self.facts.capabilities, self.facts.era)

    @property
    def served(self) -> int:
        """Return how many calls were answered or are under way."""
        return self.calls - self.errors

    @property
    def active_principals(self) -> Set[str]:
        """Return the names of the principals with an open call."""
        return frozenset()

    @property
    def is_connected(self) -> bool:
        """Return whether a message could be sent now. This changes as soon as the connection does; `standing` follows a
        little later.
        """
        return True

    def find_outlook(self, tool: str) -> Outlook | None:
        """Return the availability of a tool that another party controls, such as the room in which its server takes
        part. Return None if the state of the link alone decides.
        """
        return None

    def definition_policy(self, name: str, kind: str) -> DefinitionPolicy:
        """Return the policy that says what clients see of an item of this kind, such as a tool, after its definition
        has changed. `name` is the server's own name of the item.
        """
        return "accept"

    def new_request(self, what: str, *fields: Any) -> Call:
        """Create a request for a prompt or a resource. `what` is its name or URI at this node.

        If `done` is already set on the result, the request has been answered.
        """
        return Call(*fields)

    def greeted(self, facts: ServerFacts) -> None:
        self.facts = facts
        self.era = facts.era
        self.modern = facts.era is Era.MODERN

    def set_state(self, state: LinkState, reason: str | None) -> None:
        if self.standing.state is not state or self.standing.reason != reason:
            since = self._clock.wall() if self.standing.state is not state else self.standing.since_wall
            self.standing = Standing(state, reason, since, self.retry_after_ms, self.gone)
            self.events.on_standing(self)


_RESOURCE_CAPABILITIES: Final = {"resources": Raw(b'{"listChanged":true,"subscribe":true}')}
_STORE_UNAVAILABLE: Final = Refusal(UNAVAILABLE, "unavailable", {"reason": "store"})
_RESOURCE_METHODS: Final = Refusal(INVALID_PARAMS, "this resource can only be read and subscribed to")


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a local tool. It is sent both as structured content and as text."""

    content: object
    is_error: bool = False
    text: str | None = None  # None: `content` as JSON

    def encode(self) -> bytes:
        """Return the result in the format of MCP 2026-07-28."""
        structured = encode_value(self.content)
        text = self.text if self.text is not None else structured.decode()
        result = {"resultType": "complete", "content": [{"type": "text", "text": text}]}
        return encode_value({**result, "structuredContent": Raw(structured), "isError": self.is_error})


# Takes the name of the principal and the arguments as JSON. A Refusal becomes a JSON-RPC error. May raise StoreError.
ToolHandler = Callable[[str, bytes], Awaitable[ToolResult | Refusal]]
# Takes the name of the principal and returns the text of the resource. StoreError may be raised.
ResourceHandler = Callable[[str], Awaitable[str | Refusal]]


class LocalTool(msgspec.Struct, frozen=True, kw_only=True):
    """Tool of the node: its definition and the function that runs it."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    handler: ToolHandler
    output_schema: Mapping[str, Any] | None = None
    has_effect: bool = False  # every effect of a local tool can be undone
    latency_class: LatencyClass = LatencyClass.FAST
    timeout_s: float | None = None
    scope: Literal["read", "write"] = "read"  # that a caller needs

    @property
    def capability(self) -> Capability:
        return Capability(
            mutable=self.has_effect,
            reversible=True,
            idempotent=not self.has_effect,
            latency_class=self.latency_class,
            cost_class=CostClass.FREE,
            auth_scope=AuthScope.WRITE if self.has_effect else AuthScope.READ,
        )


class LocalResource(msgspec.Struct, frozen=True, kw_only=True):
    """Resource of the node, which clients can read and subscribe to.

    The package that declares the resource also publishes its updates.
    """

    uri: str
    name: str
    description: str
    mime_type: str
    handler: ResourceHandler

    @property
    def definition(self) -> dict[str, str]:
        """Return the definition in the format of MCP."""
        return {"uri": self.uri, "name": self.name, "description": self.description, "mimeType": self.mime_type}


class LocalLink(Link):
    """Link whose tools and resources are functions of this node."""

    def __init__(
        self,
        path: tuple[str, ...],
        events: LinkEvents,
        clock: Clock,
        *,
        tools: tuple[LocalTool, ...] = (),
        resources: tuple[LocalResource, ...] = (),
        members: AccessList | None = None,
        is_root: bool = False,
    ) -> None:
        """Create a link whose calls are answered by functions of this node.

        If `is_root` is true, its tools have names without a segment, directly at the root of the tree.
        """
        super().__init__(".".join(path), events, clock, kind="own", transport="memory")
        self.path = path
        self.is_root = is_root
        self.members = members
        self.tools = {tool.name: tool for tool in tools}
        self.resources = {resource.uri: resource for resource in resources}
        self.tells_updates = bool(resources)
        self._running = BackgroundTasks()
        capabilities = _RESOURCE_CAPABILITIES if resources else {}
        self.greeted(ServerFacts(era=Era.MODERN, version=LATEST_MODERN, capabilities=capabilities))
        self.set_state(LinkState.READY, None)

    def send(self, admitted: Admitted[Call]) -> None:
        """Run the handler of the call. The answer arrives later, as on every other link."""
        call = admitted.command
        call.link = self
        self.calls += 1
        self._running.begin(answer_failures(call, self._answer(call)), name=self.segment)

    async def close(self) -> None:
        """Cancel the running handlers."""
        await self._running.close()

    async def _answer(self, call: Call) -> None:
        try:
            result = await self._run_handler(call)
        except StoreError:
            result = _STORE_UNAVAILABLE
        if isinstance(result, Refusal):
            call.on_failed(result, Outcome.REFUSED)
        else:
            call.on_response(Response(b"0", Raw(result), ABSENT), Era.MODERN)

    async def _run_handler(self, call: Call) -> bytes | Refusal:
        principal = call.caller.principal.name
        if call.method == TOOLS_CALL:
            tool = self.tools[decode_value(call.params["name"])]
            outcome = await tool.handler(principal, bytes(call.params.get("arguments") or b"{}"))
            return outcome.encode() if isinstance(outcome, ToolResult) else outcome
        if call.method != RESOURCES_READ:
            return _RESOURCE_METHODS
        resource = self.resources[decode_value(call.params["uri"])]
        if isinstance(text := await resource.handler(principal), Refusal):
            return text
        content = {"uri": resource.uri, "mimeType": resource.mime_type, "text": text}
        return encode_value({"resultType": "complete", "contents": [content], "ttlMs": 0, "cacheScope": "private"})
