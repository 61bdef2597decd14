"""Types of the operator API about the node itself: status, configuration, live events, and the form of errors."""

from typing import Annotated, Any, Final, Generic, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from interlock.approvals.api import ApprovalSummary, Approver
from interlock.ax.api import Parent
from interlock.drivers.api import IdleDriver
from interlock.guard.api import Budget
from interlock.links.api import Link
from interlock.operator.operation import ErrorCase, Operation
from interlock.store.api import AuditRecord


class NodeFacts(Struct, frozen=True, kw_only=True):
    """Facts about the node: its identity, version and addresses."""

    name: Annotated[str, Meta(description="Its name.")]
    version: Annotated[str, Meta(description="The version of Interlock.")]
    pid: Annotated[int, Meta(description="Its process.")]
    url: Annotated[str, Meta(description="Its public URL.")]
    mcp_url: Annotated[str, Meta(description="Where MCP clients connect.")]
    operator_url: Annotated[str, Meta(description="Where operators connect.")]
    started_at: Annotated[str, Meta(description="When it started.")]
    uptime_s: Annotated[float, Meta(description="For how long it has been running.")]
    data: Annotated[str, Meta(description="Its data folder.")]
    aggregator_id: Annotated[str, Meta(description="Who it is in a tree of aggregators.")]
    tree: Annotated[str, Meta(description="The name of its tree.")]
    audit_trouble: Annotated[str | None, Meta(description="Why the audit log cannot be written.")]
    store_trouble: Annotated[
        str | None, Meta(description="Why the store that replicas share cannot be used; what needs it is refused.")
    ] = None
    replicas: Annotated[
        int | None, Meta(description="How many processes are this node; null: its store is not shared.")
    ] = None
    require_proof: Annotated[str, Meta(description="When a subserver has to prove who it is: ax.require_proof.")]


class ConfigurationState(Struct, frozen=True, kw_only=True):
    """Result of the most recent change to the configuration files."""

    files: Annotated[tuple[str, ...], Meta(description="The files that were read.")]
    read_at: Annotated[str, Meta(description="When they were last read without a problem.")]
    problem: Annotated[str | None, Meta(description="Why the newest state of the files is not in effect.")]
    restart_for: Annotated[tuple[str, ...], Meta(description="Changed keys that take effect with the next start.")]


class CatalogCounts(Struct, frozen=True, kw_only=True):
    """Numbers of listed items."""

    version: Annotated[int, Meta(description="Rises with every change.")]
    tools: Annotated[int, Meta(description="Tools.")]
    prompts: Annotated[int, Meta(description="Prompts.")]
    resources: Annotated[int, Meta(description="Resources.")]
    templates: Annotated[int, Meta(description="Templates of resources.")]


class ClientCounts(Struct, frozen=True, kw_only=True):
    """Numbers of connected clients."""

    sessions: Annotated[int, Meta(description="Sessions of MCP clients.")]
    unplaced_logs: Annotated[int, Meta(description="Log messages of servers that belong to no session.")]
    streams: Annotated[int, Meta(description="Open streams.")]
    surfaces: Annotated[
        dict[str, int], Meta(description="Client: surface and why it got it -> how many sessions of it.")
    ]


class CallCounts(Struct, frozen=True, kw_only=True):
    """Numbers of calls."""

    total: Annotated[int, Meta(description="Calls so far.")]
    failed: Annotated[int, Meta(description="Those that failed.")]
    in_flight: Annotated[int, Meta(description="Those on their way.")]
    parked: Annotated[int, Meta(description="Those that wait for their clients.")]


class GateCounts(Struct, frozen=True, kw_only=True):
    """Mode of the gate, and numbers of tools whose calls the gate holds."""

    mode: Annotated[str, Meta(description="gate.mode of the configuration.")]
    tools: Annotated[int, Meta(description="Tools whose calls it holds.")]
    unclassified: Annotated[int, Meta(description="Those of which it is not known what they do.")]
    without_approver: Annotated[int, Meta(description="Those whose calls no configured key can approve.")]


class ApprovalCounts(Struct, frozen=True, kw_only=True):
    """Number of pending approvals, and problems of the channels that notify operators."""

    waiting: Annotated[int, Meta(description="Approvals that wait.")]
    channels: Annotated[dict[str, str], Meta(description="What is wrong with channels that notify operators.")]


class SafetyCounts(Struct, frozen=True, kw_only=True):
    """State of the safety loop."""

    mode: Annotated[str, Meta(description="safety.mode of the configuration.")] = "disabled"
    running: Annotated[int, Meta(description="Executions of agents under way.")] = 0
    blocked: Annotated[int, Meta(description="Blocked agents.")] = 0


class NameCounts(Struct, frozen=True, kw_only=True):
    """Numbers of entries in the registry of names that need an operator's attention."""

    overdue: Annotated[int, Meta(description="Provisional entries whose review is late.")] = 0
    unconfirmed: Annotated[int, Meta(description="Public entries that were not confirmed for 90 days.")] = 0


class Status(Struct, frozen=True, kw_only=True):
    """Status of the node and of all its capabilities."""

    node: Annotated[NodeFacts, Meta(description="The node itself.")]
    configuration: Annotated[ConfigurationState | None, Meta(description="null: it is not read from files.")]
    parents: Annotated[tuple[Parent, ...], Meta(description="In the order of the configuration.")]
    budgets: Annotated[tuple[Budget, ...], Meta(description="Of callers and tools; the last used first.")]
    links: Annotated[tuple[Link, ...], Meta(description="Every link.")]
    idle_drivers: Annotated[tuple[IdleDriver, ...], Meta(description="Drivers that have no link yet.")] = ()
    catalog: Annotated[CatalogCounts, Meta(description="How much is listed.")]
    clients: Annotated[ClientCounts, Meta(description="Who is connected.")]
    calls: Annotated[CallCounts, Meta(description="What was called.")]
    gate: Annotated[GateCounts, Meta(description="What the gate holds.")]
    approvals: Annotated[ApprovalCounts, Meta(description="What waits for a decision.")]
    safety: Annotated[SafetyCounts, Meta(description="Agents inside the safety loop.")] = SafetyCounts()
    names: Annotated[NameCounts, Meta(description="The registry of tool surface names.")] = NameCounts()
    loosened: Annotated[
        tuple[str, ...], Meta(description="What the configuration loosens and no approver has signed for.")
    ] = ()
    open_rooms: Annotated[
        tuple[str, ...], Meta(description="Rooms in open mode, where everyone who may join is full.")
    ] = ()
    approvers: Annotated[
        tuple[Approver, ...], Meta(description="Whose signature may approve, or would if enrolled.")
    ] = ()


EffectiveConfiguration = dict[str, Any]  # the tables of interlock.toml, every key with its value, no secret among them
Record = TypeVar("Record")


class NodeEvent(Struct, Generic[Record], frozen=True, kw_only=True):
    """A live event. At most one member is set, which names the change; an event without members shows that the node
    still runs.
    """

    at: Annotated[str, Meta(description="The time of the node.")]
    status: Annotated[Status | UnsetType, Meta(description="The node as a whole, once it differs.")] = UNSET
    approval: Annotated[ApprovalSummary | UnsetType, Meta(description="An approval as it now stands.")] = UNSET
    records: Annotated[
        tuple[Record, ...] | UnsetType,
        Meta(description="New records of the audit log, oldest first; of many the newest."),
    ] = UNSET


class ErrorAnswer(Struct, frozen=True, kw_only=True):
    """Body of every reply with a status from 400 on: the reason why the request was refused."""

    error: Annotated[str, Meta(description="A name that a program can act on, for instance not_found.")]
    message: Annotated[str, Meta(description="The reason, for people.")]
    details: Annotated[dict[str, Any], Meta(description="What the message is about, for programs; often empty.")] = {}


# Errors

UNKNOWN_FILE: Final = ErrorCase("unknown_path", 404, "there is no such file")


# Operations

GET_STATUS: Final = Operation(
    "get_status", "node", "GET /admin/status", "The node as a whole, and how every link stands.", output=Status
)
GET_METRICS: Final[Operation[None]] = Operation(
    "get_metrics",
    "node",
    "GET /metrics",
    "The metrics of rooms and of the registry of names, in the text format of monitoring programs.",
    files=("text/plain",),
)
GET_CONFIGURATION: Final = Operation(
    "get_configuration",
    "node",
    "GET /admin/config",
    "The configuration in effect: every key with its value, and no secret.",
    output=EffectiveConfiguration,
)
GET_OPENAPI: Final = Operation(
    "get_openapi", "node", "GET /admin/openapi.json", "This API as an OpenAPI 3.1 document.", output=dict[str, Any]
)
GET_CONSOLE_FILE: Final[Operation[None]] = Operation(
    "get_console_file",
    "console",
    "GET /console/{file}",
    "A script, the style or the icon of the console.",
    role="anyone",
    takes_any_query=True,
    files=("text/css", "text/javascript", "image/svg+xml"),
    errors=(UNKNOWN_FILE,),
)
FOLLOW_NODE: Final = Operation(
    "follow_node",
    "console",
    "GET /admin/events",
    "The status now, then every change of it, of approvals and of the audit log, and signs of life.",
    output=NodeEvent[AuditRecord],
    is_stream=True,
)

OPERATIONS: Final[tuple[Operation[Any], ...]] = (GET_STATUS, GET_METRICS, GET_CONFIGURATION)
CONSOLE_OPERATIONS: Final[tuple[Operation[Any], ...]] = (GET_OPENAPI, GET_CONSOLE_FILE, FOLLOW_NODE)
