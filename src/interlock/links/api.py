"""The operator API about links to servers, devices and subservers."""

from typing import Annotated, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from interlock.guard.api import Spent
from interlock.operator.operation import NOT_FOUND, IntegerParameter, Operation, operations_in


class Server(Struct, frozen=True, kw_only=True):
    """Name and version that a server reports about itself."""

    name: Annotated[str, Meta(description="The name.")]
    version: Annotated[str, Meta(description="The version.")]


class Withheld(Struct, frozen=True, kw_only=True):
    """Tool or prompt that the server offers and the node does not list, with the reason."""

    name: Annotated[str, Meta(description="As its server names it.")]
    reason: Annotated[str, Meta(description="Why it is not listed.")]


class NotedName(Struct, frozen=True, kw_only=True):
    """Listed tool with a remark about its name for the operator."""

    name: Annotated[str, Meta(description="As its server names it.")]
    note: Annotated[str, Meta(description="What the registry of names says.")]


class Below(Struct, frozen=True, kw_only=True):
    """Segment below a link to an aggregator, with the segments below it."""

    path: Annotated[tuple[str, ...], Meta(description="The segments below the link, outermost first.")]
    tools: Annotated[int, Meta(description="Tools of this segment and all segments below it.")]
    hops: Annotated[int, Meta(description="Hops to the nearest of them.")]
    latency_class: Annotated[str | None, Meta(description="That of the slowest tool.")]
    degraded: Annotated[int, Meta(description="Tools that are degraded.")]
    irreversible: Annotated[int, Meta(description="Tools whose effect cannot be undone.")]
    gated: Annotated[int, Meta(description="Tools that are held for a decision further down.")]


class Registration(Struct, frozen=True, kw_only=True):
    """Registration of a subserver that registered by itself (MCP-AX 6)."""

    subserver_id: Annotated[str, Meta(description="The id of the subserver.")]
    principal: Annotated[str, Meta(description="The principal that its credential names.")]
    authority: Annotated[str | None, Meta(description="The domain that it speaks for, such as dns:example.com.")]
    verified: Annotated[bool, Meta(description="Whether it has proved that.")]
    auth_scope: Annotated[str, Meta(description="The widest scope of tools that it may offer: read, write or admin.")]
    transport_class: Annotated[str, Meta(description="The transport class it declares.")]
    version: Annotated[str | None, Meta(description="The version of MCP-AX it speaks, if it says so.")]
    heartbeat_interval_ms: Annotated[
        int, Meta(description="The interval of its heartbeats; 0: none, its link shows whether it is there.")
    ]
    registered_at: Annotated[str, Meta(description="When it registered.")]
    session: Annotated[str, Meta(description="Its session, masked.")]
    liveness: Annotated[str | None, Meta(description="Whether its heartbeats arrive: live, suspect or lost.")]
    aggregators: Annotated[int, Meta(description="Aggregators below it.")]
    secure_by: Annotated[str | None, Meta(description="Why a link without TLS counts as secure.")]
    unwanted_notifications: Annotated[
        int, Meta(description="Notifications that it sent although it registered without them.")
    ]
    dropped_notifications: Annotated[
        int, Meta(description="Notifications of it that were dropped because of their rate.")
    ]


class DeniedHost(Struct, frozen=True, kw_only=True):
    """Host that a sandboxed server tried to reach without permission."""

    place: Annotated[str, Meta(description="The host, with its port where that is known.")]
    why: Annotated[str, Meta(description="Why the server may not reach it.")]
    remedy: Annotated[str, Meta(description="How an operator can permit it.")]


class HeldToken(Struct, frozen=True, kw_only=True):
    """Metadata of the token that the node sends to a server. The secret is not included."""

    expires_at: Annotated[str | None, Meta(description="When it expires; null: not known.")]


class OwnLink(Struct, frozen=True, kw_only=True):
    """Process or connection to a server besides the shared one.

    It belongs to a principal, a session, or a group of clients with the same capabilities.
    """

    segment: Annotated[str, Meta(description="Its server's segment, with a suffix.")]
    principal: Annotated[
        str, Meta(description="The principal that uses it; empty: all clients with the same capabilities.")
    ]
    per: Annotated[
        str,
        Meta(
            description="session: of one session; principal: of all sessions of one; capabilities: of several clients."
        ),
    ]
    state: Annotated[str, Meta(description="The state, as for a link.")]
    reason: Annotated[str | None, Meta(description="Why it is in this state.")]
    since: Annotated[str, Meta(description="When this state began.")]
    pid: Annotated[int | None, Meta(description="Its process, if this node started it.")]
    in_flight: Annotated[int, Meta(description="Calls under way.")]
    calls: Annotated[int, Meta(description="Calls so far.")]
    idle_s: Annotated[int, Meta(description="Seconds since the last call began, if none is under way.")]


class Device(Struct, frozen=True, kw_only=True):
    """Counters of a device's connection."""

    profile: Annotated[str, Meta(description="a, b, json or modbus.")]
    port: Annotated[str | None, Meta(description="Its port, address, channel or broker, as described.")] = None
    sent: Annotated[int, Meta(description="Messages to it, heartbeats and repetitions included.")]
    received: Annotated[int, Meta(description="Messages from it.")]
    retries: Annotated[int, Meta(description="Calls that were sent again.")]
    discarded: Annotated[dict[str, int], Meta(description="Messages that were dropped, by reason.")]
    unplugged: Annotated[int, Meta(description="How often it disappeared.")]
    waiting: Annotated[int, Meta(description="Calls that wait until the device is free.")]
    seen: Annotated[str | None, Meta(description="When its last message arrived.")]
    missing: Annotated[tuple[str, ...], Meta(description="Described tools that it does not announce.")]


class Frame(Struct, frozen=True, kw_only=True):
    """Message between the node and a device."""

    number: Annotated[int, Meta(description="The number of the message; each message has the next one.")]
    at: Annotated[str, Meta(description="When it was sent or received.")]
    is_sent: Annotated[bool, Meta(description="Whether the node sent it.")]
    hex: Annotated[str, Meta(description="Its bytes; of a long message the first ones.")]
    text: Annotated[str, Meta(description="Its meaning, in the names of the device description.")]
    discarded: Annotated[str | None, Meta(description="Why it was dropped; null: it was not.")]


class Frames(Struct, frozen=True, kw_only=True):
    """Messages between the node and a device. They are recorded only while somebody requests them."""

    segment: Annotated[str, Meta(description="The device.")]
    last: Annotated[int, Meta(description="The number of the newest message.")]
    frames: Annotated[tuple[Frame, ...], Meta(description="The messages after the given number.")]


class Link(Struct, frozen=True, kw_only=True):
    """Link with its state. For a child that has not registered yet, only the fields without a default are set."""

    segment: Annotated[str, Meta(description="The name of the link, which is its place in the namespace.")]
    driver: Annotated[str | None, Meta(description="Of a driver's server: the driver, ID@MAJOR.")] = None
    kind: Annotated[
        str,
        Meta(description="spawned, dialled, leaf, aggregator, participant, device; child: not registered yet."),
    ]
    transport: Annotated[str, Meta(description="stdio, http, sse, websocket, ...")]
    era: Annotated[str | None, Meta(description="legacy or modern; null before the first contact.")] = None
    protocol_version: Annotated[str | None, Meta(description="The version of MCP that is spoken.")] = None
    state: Annotated[str, Meta(description="ready, connecting, slow, asleep, degraded, unauthorised, failed, stopped.")]
    reason: Annotated[str | None, Meta(description="Why it is in this state.")]
    since: Annotated[str, Meta(description="When this state began.")]
    server: Annotated[Server | None, Meta(description="The name and version that the server states.")] = None
    tools: Annotated[int, Meta(description="Tools that are listed.")] = 0
    contracts: Annotated[int | None, Meta(description="Contracts that a driver serves; null for other links.")] = None
    prompts: Annotated[int, Meta(description="Prompts that are listed.")] = 0
    resources: Annotated[int, Meta(description="Resources that are listed.")] = 0
    withheld: Annotated[
        tuple[Withheld, ...], Meta(description="Tools and prompts that are offered and not listed.")
    ] = ()
    not_listed_because: Annotated[
        dict[str, int] | None,
        Meta(description="Of a node below: how many tools it does not offer to this node, by reason; null: not known."),
    ] = None
    noted: Annotated[tuple[NotedName, ...], Meta(description="Remarks of the registry of names on listed tools.")] = ()
    in_flight: Annotated[int, Meta(description="Calls of clients under way.")] = 0
    parked: Annotated[int, Meta(description="Calls that wait for their clients.")] = 0
    calls: Annotated[int, Meta(description="Calls so far.")] = 0
    errors: Annotated[int, Meta(description="Calls that failed.")] = 0
    restarts: Annotated[int, Meta(description="How often it was started or dialled again.")] = 0
    stray: Annotated[int, Meta(description="Answers that no request waited for.")] = 0
    stdout_noise: Annotated[int, Meta(description="Messages of the server that are not JSON-RPC.")] = 0
    unsent: Annotated[
        int, Meta(description="Answers, cancellations and notifications of the node that did not arrive.")
    ] = 0
    pid: Annotated[int | None, Meta(description="Its process, if this node started it.")] = None
    sandbox: Annotated[bool | None, Meta(description="Whether it runs in a sandbox; null: not started here.")] = None
    denied: Annotated[tuple[DeniedHost, ...], Meta(description="Hosts that its sandbox kept it from.")] = ()
    stderr_lines: Annotated[int, Meta(description="Lines that it wrote to stderr.")] = 0
    last_words: Annotated[str | None, Meta(description="The last line on its stderr, if it is gone.")] = None
    hops: Annotated[int, Meta(description="Hops to its farthest tool.")] = 1
    below: Annotated[tuple[Below, ...], Meta(description="The segments below it, if it is an aggregator.")] = ()
    budget: Annotated[dict[str, Spent] | None, Meta(description="Its budget, by the name of the limit.")] = None
    registration: Annotated[Registration | UnsetType, Meta(description="Only of a link that registered by itself.")] = (
        UNSET
    )
    latency_ms: Annotated[float | None, Meta(description="The median of its last calls.")] = None
    token: Annotated[HeldToken | None, Meta(description="The token the node has for it.")] = None
    consent: Annotated[bool, Meta(description="Whether it waits for a person to agree to a token.")] = False
    own: Annotated[
        tuple[OwnLink, ...], Meta(description="Links of principals and sessions beside the shared one.")
    ] = ()
    device: Annotated[Device | None, Meta(description="The counters, if it is a device.")] = None
    own_because: Annotated[
        str | None, Meta(description="Why clients have links of their own, if the node decided it.")
    ] = None
    users: Annotated[int | None, Meta(description="Users with a connection of their own; null: all share one.")] = None


class WaitingChild(Link, frozen=True, kw_only=True, omit_defaults=True):
    """A child process of the node that has not registered yet."""


class Links(Struct, frozen=True, kw_only=True):
    """List of every link of the node."""

    links: Annotated[tuple[Link, ...], Meta(description="Configured ones in the order of the configuration.")]


class LogLine(Struct, frozen=True, kw_only=True):
    """Line that a program wrote to stderr."""

    at: Annotated[str, Meta(description="When it was read.")]
    text: Annotated[str, Meta(description="The line.")]


class LinkLog(Struct, frozen=True, kw_only=True):
    """Newest lines that the program of a link wrote to stderr."""

    segment: Annotated[str, Meta(description="The link.")]
    lines: Annotated[tuple[LogLine, ...], Meta(description="Oldest first.")]


class RestartedLink(Struct, frozen=True, kw_only=True):
    """Result of restarting a link: its old connection or process has ended."""

    segment: Annotated[str, Meta(description="The link.")]
    state: Annotated[str, Meta(description="Its state now.")]
    reason: Annotated[str | None, Meta(description="Why it is in this state.")] = None
    disconnected: Annotated[
        bool | UnsetType,
        Meta(description="Only of a subserver that dialled in: whether it was connected. It returns by itself."),
    ] = UNSET


class ReleasedSegment(Struct, frozen=True, kw_only=True):
    """Segment that no longer has an owner."""

    segment: Annotated[str, Meta(description="The segment.")]
    held: Annotated[bool, Meta(description="Whether a subserver is still connected at it.")]


# Query parameters

LINES: Final = IntegerParameter(
    name="lines", description="How many of the newest lines.", default=200, minimum=1, maximum=10_000
)
AFTER: Final = IntegerParameter(
    name="after", description="The number of the last message that is known.", default=0, minimum=0, maximum=2**53
)


# Operations

LIST_LINKS: Final = Operation("list_links", "links", "GET /admin/links", "Every link with its state.", output=Links)
GET_LINK: Final = Operation(
    "get_link", "links", "GET /admin/links/{segment}", "One link.", output=Link, errors=(NOT_FOUND,)
)
GET_FRAMES: Final = Operation(
    "get_frames",
    "links",
    "GET /admin/links/{segment}/frames",
    "Messages between the node and a device, recorded from the first request on.",
    role="admin",
    output=Frames,
    query=(AFTER,),
    errors=(NOT_FOUND,),
)
GET_LINK_LOG: Final = Operation(
    "get_link_log",
    "links",
    "GET /admin/links/{segment}/logs",
    "What the program of a link wrote to stderr.",
    output=LinkLog,
    query=(LINES,),
    errors=(NOT_FOUND,),
)
RESTART_LINK: Final = Operation(
    "restart_link",
    "links",
    "POST /admin/links/{segment}/restart",
    "End a process or connection and start it afresh. Answers when the old one is gone.",
    role="admin",
    output=RestartedLink,
    errors=(NOT_FOUND,),
)
RELEASE_LINK: Final = Operation(
    "release_link",
    "links",
    "POST /admin/links/{segment}/release",
    "Forget who owns a segment, and what is kept for a subserver that is lost.",
    role="admin",
    output=ReleasedSegment,
    errors=(NOT_FOUND,),
)

OPERATIONS: Final = operations_in(globals())
