"""Types of the operator API about the node itself: status, configuration, live events, and the form of errors."""

from typing import Any, Final, Generic, TypeVar

from msgspec import UNSET, Struct, UnsetType

from interlock.approvals.api import ApprovalSummary, Approver
from interlock.drivers.api import IdleDriver
from interlock.guard.api import Budget
from interlock.links.api import Link, Parent
from interlock.operator.operation import ErrorCase, Operation, operations_in
from interlock.store.api import AuditRecord


class NodeFacts(Struct, frozen=True, kw_only=True):
    """Facts about the node: its identity, version and addresses.

    Members:
        name: Its name.
        version: The version of Interlock.
        pid: Its process.
        url: Its public URL.
        mcp_url: Where MCP clients connect.
        operator_url: Where operators connect.
        started_at: When it started.
        uptime_s: For how long it has been running.
        data: Its data folder.
        aggregator_id: Who it is in a tree of aggregators.
        tree: The name of its tree.
        audit_trouble: Why the audit log cannot be written.
        store_trouble: Why the store that replicas share cannot be used; what needs it is refused.
        replicas: How many processes are this node; null: its store is not shared.
        require_proof: When a subserver has to prove who it is: ax.require_proof.
    """

    name: str
    version: str
    pid: int
    url: str
    mcp_url: str
    operator_url: str
    started_at: str
    uptime_s: float
    data: str
    aggregator_id: str
    tree: str
    audit_trouble: str | None
    store_trouble: str | None = None
    replicas: int | None = None
    require_proof: str


class ConfigurationState(Struct, frozen=True, kw_only=True):
    """Result of the most recent change to the configuration files.

    Members:
        files: The files that were read.
        read_at: When they were last read without a problem.
        problem: Why the newest state of the files is not in effect.
        restart_for: Changed keys that take effect with the next start.
    """

    files: tuple[str, ...]
    read_at: str
    problem: str | None
    restart_for: tuple[str, ...]


class CatalogCounts(Struct, frozen=True, kw_only=True):
    """Numbers of listed items.

    Members:
        version: Rises with every change.
        tools: Tools.
        prompts: Prompts.
        resources: Resources.
        templates: Templates of resources.
    """

    version: int
    tools: int
    prompts: int
    resources: int
    templates: int


class ClientCounts(Struct, frozen=True, kw_only=True):
    """Numbers of connected clients.

    Members:
        sessions: Sessions of MCP clients.
        unplaced_logs: Log messages of servers that belong to no session.
        streams: Open streams.
        surfaces: Client: surface and why it got it -> how many sessions of it.
    """

    sessions: int
    unplaced_logs: int
    streams: int
    surfaces: dict[str, int]


class CallCounts(Struct, frozen=True, kw_only=True):
    """Numbers of calls.

    Members:
        total: Calls so far.
        failed: Those that failed.
        in_flight: Those on their way.
        parked: Those that wait for their clients.
    """

    total: int
    failed: int
    in_flight: int
    parked: int


class GateCounts(Struct, frozen=True, kw_only=True):
    """Mode of the gate, and numbers of tools whose calls the gate holds.

    Members:
        mode: gate.mode of the configuration.
        tools: Tools whose calls it holds.
        unclassified: Those of which it is not known what they do.
        without_approver: Those whose calls no configured key can approve.
    """

    mode: str
    tools: int
    unclassified: int
    without_approver: int


class ApprovalCounts(Struct, frozen=True, kw_only=True):
    """Number of pending approvals, and problems of the channels that notify operators.

    Members:
        waiting: Approvals that wait.
        channels: What is wrong with channels that notify operators.
    """

    waiting: int
    channels: dict[str, str]


class SafetyCounts(Struct, frozen=True, kw_only=True):
    """State of the safety loop.

    Members:
        mode: safety.mode of the configuration.
        running: Executions of agents under way.
        blocked: Blocked agents.
    """

    mode: str = "disabled"
    running: int = 0
    blocked: int = 0


class NameCounts(Struct, frozen=True, kw_only=True):
    """Numbers of entries in the registry of names that need an operator's attention.

    Members:
        overdue: Provisional entries whose review is late.
        unconfirmed: Public entries that were not confirmed for 90 days.
    """

    overdue: int = 0
    unconfirmed: int = 0


class Status(Struct, frozen=True, kw_only=True):
    """Status of the node and of all its capabilities.

    Members:
        node: The node itself.
        configuration: null: it is not read from files.
        parents: In the order of the configuration.
        budgets: Of callers and tools; the last used first.
        links: Every link.
        idle_drivers: Drivers that have no link yet.
        catalog: How much is listed.
        clients: Who is connected.
        calls: What was called.
        gate: What the gate holds.
        approvals: What waits for a decision.
        safety: Agents inside the safety loop.
        names: The registry of tool surface names.
        loosened: Configured values that would let through more than an approver signed for. They are not in effect once
            there is an approver.
        open_rooms: Rooms in open mode, where everyone who may join is full.
        approvers: Whose signature may approve, or would if enrolled.
    """

    node: NodeFacts
    configuration: ConfigurationState | None
    parents: tuple[Parent, ...]
    budgets: tuple[Budget, ...]
    links: tuple[Link, ...]
    idle_drivers: tuple[IdleDriver, ...] = ()
    catalog: CatalogCounts
    clients: ClientCounts
    calls: CallCounts
    gate: GateCounts
    approvals: ApprovalCounts
    safety: SafetyCounts = SafetyCounts()
    names: NameCounts = NameCounts()
    loosened: tuple[str, ...] = ()
    open_rooms: tuple[str, ...] = ()
    approvers: tuple[Approver, ...] = ()


EffectiveConfiguration = dict[str, Any]  # the tables of interlock.toml, every key with its value, no secret among them
Record = TypeVar("Record")


class NodeEvent(Struct, Generic[Record], frozen=True, kw_only=True):
    """A live event of a node. The member that is set contains what has changed. An event without such a member only
    shows that the node still runs.

    Members:
        at: The time of the node.
        status: The node as a whole, once it differs.
        approval: An approval as it now stands.
        records: New records of the audit log, oldest first; of many the newest.
    """

    at: str
    status: Status | UnsetType = UNSET
    approval: ApprovalSummary | UnsetType = UNSET
    records: tuple[Record, ...] | UnsetType = UNSET


class ErrorAnswer(Struct, frozen=True, kw_only=True):
    """Body of every reply with a status from 400 on: the reason why the request was refused.

    Members:
        error: A name that a program can act on, for instance not_found.
        message: The reason, for people.
        details: What the message is about, for programs; often empty.
    """

    error: str
    message: str
    details: dict[str, Any] = {}


# Errors

UNKNOWN_FILE: Final = ErrorCase("unknown_path", 404, "there is no such file")


# Operations

GET_STATUS: Final = Operation("GET /admin/status", "The node as a whole, and the state of every link.", output=Status)
GET_METRICS: Final[Operation[None]] = Operation(
    "GET /metrics",
    "The metrics of rooms and of the registry of names, in the text format of monitoring programs.",
    files=("text/plain",),
)
GET_CONFIGURATION: Final = Operation(
    "GET /admin/config",
    "The configuration in effect: every key with its value, and no secret.",
    output=EffectiveConfiguration,
)
GET_OPENAPI: Final = Operation("GET /admin/openapi.json", "This API as an OpenAPI 3.1 document.", output=dict[str, Any])
GET_CONSOLE_FILE: Final[Operation[None]] = Operation(
    "GET /console/{file}",
    "A script, the style or the icon of the console.",
    noun="console",
    role="anyone",
    takes_any_query=True,
    files=("text/css", "text/javascript", "image/svg+xml"),
    errors=(UNKNOWN_FILE,),
)
FOLLOW_NODE: Final = Operation(
    "GET /admin/events",
    "The status now, then every change of it, of approvals and of the audit log, and signs of life.",
    noun="console",
    output=NodeEvent[AuditRecord],
    is_stream=True,
)

_DECLARED: Final = operations_in(globals(), "node")
OPERATIONS: Final = _DECLARED[:3]
CONSOLE_OPERATIONS: Final = _DECLARED[3:]  # those of the console are the last of the API
