"""The operator API about links to servers, devices, subservers and parents."""

from typing import Final

from msgspec import UNSET, Struct, UnsetType

from interlock.guard.api import Spent
from interlock.operator.operation import IntegerParameter, Operation, operations_in


class Server(Struct, frozen=True, kw_only=True):
    """Name and version that a server reports about itself.

    Members:
        name: The name.
        version: The version.
    """

    name: str
    version: str


class Withheld(Struct, frozen=True, kw_only=True):
    """Tool or prompt that the server offers and the node does not list, with the reason.

    Members:
        name: As its server names it.
        reason: Why it is not listed.
    """

    name: str
    reason: str


class NotedName(Struct, frozen=True, kw_only=True):
    """Listed tool, with a note for the operator about its name or its changed definition.

    Members:
        name: As its server names it.
        note: What the registry of names says of it, or how its definition changed.
    """

    name: str
    note: str


class Below(Struct, frozen=True, kw_only=True):
    """Summary of the tools behind a link to an aggregator. It covers the tools whose names begin with the segments in
    `path`.

    Members:
        path: The segments below the link, outermost first.
        tools: Tools of this segment and all segments below it.
        hops: Hops to the nearest of them.
        latency_class: That of the slowest tool.
        degraded: Tools that are degraded.
        irreversible: Tools whose effect cannot be undone.
        gated: Tools that are held for a decision further down.
    """

    path: tuple[str, ...]
    tools: int
    hops: int
    latency_class: str | None
    degraded: int
    irreversible: int
    gated: int


class Registration(Struct, frozen=True, kw_only=True):
    """Registration of a subserver that registered by itself (MCP-AX 6).

    Members:
        subserver_id: The id of the subserver.
        principal: The principal that its credential names.
        authority: The domain that it speaks for, such as dns:example.com.
        verified: Whether it has proved that.
        auth_scope: The widest scope of tools that it may offer: read, write or admin.
        transport_class: The transport class it declares.
        version: The version of MCP-AX it speaks, if it says so.
        heartbeat_interval_ms: The interval of its heartbeats; 0: none, its link shows whether it is there.
        registered_at: When it registered.
        session: Its session, masked.
        liveness: Whether its heartbeats arrive: live, suspect or lost.
        aggregators: Aggregators below it.
        secure_by: Why a link without TLS counts as secure.
        unwanted_notifications: Notifications that it sent although it registered without them.
        dropped_notifications: Notifications of it that were dropped because of their rate.
    """

    subserver_id: str
    principal: str
    authority: str | None
    verified: bool
    auth_scope: str
    transport_class: str
    version: str | None
    heartbeat_interval_ms: int
    registered_at: str
    session: str
    liveness: str | None
    aggregators: int
    secure_by: str | None
    unwanted_notifications: int
    dropped_notifications: int


class DeniedHost(Struct, frozen=True, kw_only=True):
    """Host that a sandboxed server tried to reach without permission.

    Members:
        place: The host, with its port where that is known.
        why: Why the server may not reach it.
        remedy: How an operator can permit it.
    """

    place: str
    why: str
    remedy: str


class HeldToken(Struct, frozen=True, kw_only=True):
    """Metadata of the token that the node sends to a server. The secret is not included.

    Members:
        expires_at: When it expires; null: not known.
    """

    expires_at: str | None


class OwnLink(Struct, frozen=True, kw_only=True):
    """Additional process or connection to a server, besides the one that clients share.

    It belongs to a principal, a session, or a group of clients with the same capabilities.

    Members:
        segment: Its server's segment, with a suffix.
        principal: The principal that uses it; empty: all clients with the same capabilities.
        per: session: of one session; principal: of all sessions of one; capabilities: of several clients.
        state: The state, as for a link.
        reason: Why it is in this state.
        since: When this state began.
        pid: Its process, if this node started it.
        in_flight: Calls under way.
        calls: Calls so far.
        idle_s: Seconds since the last call began, if none is under way.
    """

    segment: str
    principal: str
    per: str
    state: str
    reason: str | None
    since: str
    pid: int | None
    in_flight: int
    calls: int
    idle_s: int


class Device(Struct, frozen=True, kw_only=True):
    """Counters of a device's connection.

    Members:
        profile: a, b, json or modbus.
        port: Its port, address, channel or broker, as described.
        sent: Messages to it, heartbeats and repetitions included.
        received: Messages from it.
        retries: Calls that were sent again.
        discarded: Messages that were dropped, by reason.
        unplugged: How often it disappeared.
        waiting: Calls that wait until the device is free.
        seen: When its last message arrived.
        missing: Described tools that it does not announce.
    """

    profile: str
    port: str | None = None
    sent: int
    received: int
    retries: int
    discarded: dict[str, int]
    unplugged: int
    waiting: int
    seen: str | None
    missing: tuple[str, ...]


class Frame(Struct, frozen=True, kw_only=True):
    """Message between the node and a device.

    Members:
        number: The number of the message; each message has the next one.
        at: When it was sent or received.
        is_sent: Whether the node sent it.
        hex: Its bytes; of a long message the first ones.
        text: Its meaning, in the names of the device description.
        discarded: Why it was dropped; null: it was not.
    """

    number: int
    at: str
    is_sent: bool
    hex: str
    text: str
    discarded: str | None


class Frames(Struct, frozen=True, kw_only=True):
    """Messages between the node and a device. They are recorded only while somebody requests them.

    Members:
        segment: The device.
        last: The number of the newest message.
        frames: The messages after the given number.
    """

    segment: str
    last: int
    frames: tuple[Frame, ...]


class Link(Struct, frozen=True, kw_only=True):
    """Link with its state. For a child that has not registered yet, only the fields without a default are set.

    Members:
        segment: The name of the link, which is its place in the namespace.
        driver: Of a driver's server: the driver, ID@MAJOR.
        kind: spawned, dialled, leaf, aggregator, participant, device; child: not registered yet.
        transport: stdio, http, sse, websocket, ...
        era: legacy or modern; null before the first contact.
        protocol_version: The version of MCP that is spoken.
        state: ready, connecting, slow, asleep, degraded, unauthorised, failed, stopped.
        reason: Why it is in this state.
        since: When this state began.
        server: The name and version that the server states.
        tools: Tools that are listed.
        contracts: Contracts that a driver serves; null for other links.
        prompts: Prompts that are listed.
        resources: Resources that are listed.
        withheld: Tools, prompts, templates (prompts/NAME, ...) and instructions that are offered and not listed.
        changed: Listed tools and other items whose definition the server changed or added and no one accepted yet.
        not_listed_because: Of a node below: how many tools it does not offer to this node, by reason; null: not known.
        noted: Remarks of the registry of names on listed tools.
        in_flight: Calls of clients under way.
        parked: Calls that wait for their clients.
        calls: Calls so far.
        errors: Calls that failed.
        restarts: How often it was started or dialled again.
        stray: Answers that no request waited for.
        stdout_noise: Messages of the server that are not JSON-RPC.
        unsent: Answers, cancellations and notifications of the node that did not arrive.
        pid: Its process, if this node started it.
        sandbox: Whether it runs in a sandbox; null: not started here.
        denied: Hosts that its sandbox kept it from.
        stderr_lines: Lines that it wrote to stderr.
        last_words: The last line on its stderr, if it is gone.
        hops: Hops to its farthest tool.
        below: The segments below it, if it is an aggregator.
        budget: Its budget, by the name of the limit.
        registration: Only of a link that registered by itself.
        latency_ms: The median of its last calls.
        token: The token the node has for it.
        consent: Whether it waits for a person to agree to a token.
        own: Links of principals and sessions beside the shared one.
        device: The counters, if it is a device.
        own_because: Why clients have links of their own, if the node decided it.
        users: Users with a connection of their own; null: all share one.
    """

    segment: str
    driver: str | None = None
    kind: str
    transport: str
    era: str | None = None
    protocol_version: str | None = None
    state: str
    reason: str | None
    since: str
    server: Server | None = None
    tools: int = 0
    contracts: int | None = None
    prompts: int = 0
    resources: int = 0
    withheld: tuple[Withheld, ...] = ()
    changed: tuple[NotedName, ...] = ()
    not_listed_because: dict[str, int] | None = None
    noted: tuple[NotedName, ...] = ()
    in_flight: int = 0
    parked: int = 0
    calls: int = 0
    errors: int = 0
    restarts: int = 0
    stray: int = 0
    stdout_noise: int = 0
    unsent: int = 0
    pid: int | None = None
    sandbox: bool | None = None
    denied: tuple[DeniedHost, ...] = ()
    stderr_lines: int = 0
    last_words: str | None = None
    hops: int = 1
    below: tuple[Below, ...] = ()
    budget: dict[str, Spent] | None = None
    registration: Registration | UnsetType = UNSET
    latency_ms: float | None = None
    token: HeldToken | None = None
    consent: bool = False
    own: tuple[OwnLink, ...] = ()
    device: Device | None = None
    own_because: str | None = None
    users: int | None = None


class WaitingChild(Link, frozen=True, kw_only=True, omit_defaults=True):
    """A child process of the node that has not registered yet."""


class Links(Struct, frozen=True, kw_only=True):
    """List of every link of the node.

    Members:
        links: Configured ones in the order of the configuration.
    """

    links: tuple[Link, ...]


class LogLine(Struct, frozen=True, kw_only=True):
    """Line that a program wrote to stderr.

    Members:
        at: When it was read.
        text: The line.
    """

    at: str
    text: str


class LinkLog(Struct, frozen=True, kw_only=True):
    """Newest lines that the program of a link wrote to stderr.

    Members:
        segment: The link.
        lines: Oldest first.
    """

    segment: str
    lines: tuple[LogLine, ...]


class RestartedLink(Struct, frozen=True, kw_only=True):
    """Result of restarting a link: its old connection or process has ended.

    Members:
        segment: The link.
        state: Its state now.
        reason: Why it is in this state.
        disconnected: Only of a subserver that dialled in: whether it was connected. It returns by itself.
    """

    segment: str
    state: str
    reason: str | None = None
    disconnected: bool | UnsetType = UNSET


class ReleasedSegment(Struct, frozen=True, kw_only=True):
    """Segment that no longer has an owner.

    Members:
        segment: The segment.
        held: Whether a subserver is still connected at it.
    """

    segment: str
    held: bool


class Parent(Struct, frozen=True, kw_only=True):
    """An aggregator that this node registers with.

    Members:
        url: Its address.
        segment: The segment that this node asks for.
        tree: The tree in which it is a parent.
        state: registered, connecting, waiting, standby or stopped.
        since: When this state began.
        assigned_segment: The segment that it assigned to this node.
        aggregator_id: Its aggregator_id.
        scope: The scope that it grants to this node.
        secure_by: Why a link without TLS counts as secure, if the configuration says so.
        not_listed: Tools of this node that it does not list.
        not_listed_because: Its reasons, each with the number of tools.
        reason: Why this node is not registered there.
        next_step: What an operator can do about the reason.
        budget: The budget that it grants to this node, by the name of the limit.
    """

    url: str
    segment: str
    tree: str
    state: str
    since: str
    assigned_segment: str | None
    aggregator_id: str | None
    scope: str | None
    secure_by: str | None
    not_listed: int
    not_listed_because: dict[str, int] = {}
    reason: str | None
    next_step: str | None
    budget: dict[str, Spent] | None


# Query parameters

LINES: Final = IntegerParameter("lines", "How many of the newest lines.", default=200, minimum=1, maximum=10_000)
AFTER: Final = IntegerParameter(
    "after", "The number of the last message that is known.", default=0, minimum=0, maximum=2**53
)


# Operations

LIST_LINKS: Final = Operation("GET /admin/links", "Every link with its state.", output=Links)
GET_LINK: Final = Operation("GET /admin/links/{segment}", "One link.", output=Link)
GET_FRAMES: Final = Operation(
    "GET /admin/links/{segment}/frames",
    "Messages between the node and a device, recorded from the first request on.",
    role="admin",
    output=Frames,
    query=(AFTER,),
)
GET_LINK_LOG: Final = Operation(
    "GET /admin/links/{segment}/logs", "What the program of a link wrote to stderr.", output=LinkLog, query=(LINES,)
)
RESTART_LINK: Final = Operation(
    "POST /admin/links/{segment}/restart",
    "End a process or connection and start it afresh. Answers when the old one is gone.",
    output=RestartedLink,
)
RELEASE_LINK: Final = Operation(
    "POST /admin/links/{segment}/release",
    "Forget who owns a segment, and what is kept for a subserver that is lost.",
    output=ReleasedSegment,
)

OPERATIONS: Final = operations_in(globals(), "links")
