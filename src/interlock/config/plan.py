"""The Plan: what a person wrote, compiled into one frozen value that the runtime builds a node from.

Nothing here reads a file or knows TOML; `load` makes a Plan, everything above only reads it.
"""

from pathlib import Path
from typing import Any, Literal

import msgspec

from interlock.aql.protocol.classification import Trust
from interlock.aql.protocol.families import Mode as AqlMode
from interlock.aql.protocol.limits import Limits as AqlLimits
from interlock.aql.protocol.tool_operations import OperationRule
from interlock.ax.protocol.budget import KEYS, Limits
from interlock.devices.protocol.description import DeviceDescription
from interlock.rooms.protocol.participants import Privilege
from interlock.rooms.protocol.settings import RoomSettings
from interlock.safety.protocol.policy import (
    AUTO_APPROVE,
    DENY,
    REQUIRES_APPROVAL,
    STEPS_DEFAULT,
    Mode,
    Tolerance,
)


class Address(msgspec.Struct, frozen=True):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    name: str = "default"
    listen: Address = Address("127.0.0.1", 7411)
    public_url: str | None = None
    operator_listen: Address = Address("127.0.0.1", 7412)
    operator_url: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    client_ca: Path | None = None  # whose certificates prove the authority of subservers
    crl: Path | None = None
    origins: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()


Scope = Literal["read", "write", "admin"]
NameForm = Literal["auto", "qualified", "safe"]
Surface = Literal["flat", "auto", "aql", "aql-single", "safety"]


class IssuerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One authorization server whose access tokens the public endpoint accepts."""

    name: str  # ISS in client:ISS/SUB@CLIENT_ID
    url: str  # the issuer identifier, to the letter
    audience: str | None = None  # None: the node's own resource identifier
    jwks_url: str | None = None  # None: from the metadata of the authorization server
    introspection_url: str | None = None
    client_id: str | None = None
    client_secret: str | None = None  # never shown
    scopes: dict[str, Scope] | None = None  # None: the usual names; empty: [[access]] alone decides


class AuthPlan(msgspec.Struct, frozen=True, kw_only=True):
    anonymous: Literal["loopback", "never", "any"] = "loopback"
    issuers: tuple[IssuerPlan, ...] = ()
    token_days: int = 30


class AccessRule(msgspec.Struct, frozen=True, kw_only=True):
    """One [[access]] entry; the first whose `who` holds the principal (globs) applies."""

    who: tuple[str, ...]
    scope: Scope = "write"
    tools: tuple[str, ...] = ("*",)
    names: NameForm | None = None
    surface: Surface | None = None  # of /mcp, for these callers
    authority: str | None = None  # what a registrant on this machine is known to speak for
    secure_by: str | None = None
    link_latency_ms: int = 0
    budget: Limits | None = None  # of each caller; of a subserver: of its registration, instead of [budget]


class AnchorPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One [[anchor]] entry: whose signature is believed. One of `key`, `jwks` and `passkey` is given."""

    name: str
    key: str | Path | None = None  # a public key, or the file that holds it
    jwks: str | Path | None = None  # a key set: its URL, or the file that holds it
    passkey: str | None = None  # ALGORITHM:CREDENTIAL:KEY (`protocol.webauthn.passkeys`)
    approves: tuple[str, ...] = ()  # tools (globs) whose calls it may approve
    speaks_for: tuple[str, ...] = ()  # DNS names it may prove, as they are compared (`protocol.ax.authority`)


class McpPlan(msgspec.Struct, frozen=True, kw_only=True):
    surface: Surface = "flat"
    names: NameForm = "auto"
    meta_pass: Literal["vendor", "none"] = "vendor"  # noqa: S105
    latency_meta: bool = False
    session_idle_s: float = 1800
    list_wait_s: float = 10


class ParentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An aggregator this node registers with; the first of its tree that answers, and the next when it is lost (MCP-AX
    13.3)."""

    url: str
    segment: str
    tree: str | None = None  # where it is not the node's own
    secret: str | None = None  # the subserver token; never shown
    authority: str | None = None
    secure_by: str | None = None  # what protects a link without TLS
    ca_file: Path | None = None  # whose certificates the parent may have; None: the system's
    tls_cert: Path | None = None  # what we show it
    tls_key: Path | None = None


class ChildPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A subserver that is started as a child and registers over its stdio."""

    command: tuple[str, ...]
    segment: str
    env: dict[str, str] = {}


class AxPlan(msgspec.Struct, frozen=True, kw_only=True):
    tree: str = "default"
    parents: tuple[ParentPlan, ...] = ()
    children: tuple[ChildPlan, ...] = ()
    dial_back: tuple[str, ...] = ()
    socket: Path | None = None
    require_proof: Literal["mutable", "always", "never"] = "mutable"
    heartbeat_min_ms: int = 100
    max_hops: int = 32
    notify_per_s: int = 100
    notify_buffer: int = 1000
    transport_classes: tuple[str, ...] = ()  # private ones
    root_segment: str | None = None
    list_ttl_s: float = 60  # AX-5.1-3


class DegradedPlan(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool = True
    grace_s: float = 300


class GatePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is held until a person agrees (MCP-AX 11.3)."""

    mode: Literal["gated", "defer", "open"] = "gated"  # defer: what a hop below gates is left to it
    also: tuple[str, ...] = ()  # further tools (globs), in every mode
    unannotated: Literal["classify", "allow"] = "classify"  # tools that do not say whether they can be undone
    show_holder: bool = False  # clients are shown the id and the page of the node below that holds their call


Channel = Literal["console", "cli", "os_dialog", "command", "webhook", "smtp"]


class ApprovalsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How long a decision is waited for, and how operators hear that one is wanted."""

    expiry_s: float = 300  # AX-11.3-4
    redeem_s: float = 300
    max_pending: int = 100  # per principal
    channels: tuple[Channel, ...] = ("console", "cli")
    command: tuple[str, ...] = ()
    webhook_url: str | None = None
    webhook_secret: str | None = None  # never shown
    smtp_url: str | None = None
    smtp_from: str | None = None
    smtp_to: tuple[str, ...] = ()


Stage = Literal["outcome", "patterns", "risk", "tolerance"]


class AgentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of one agent; None: as for all."""

    max_autonomous_steps: int | None = None
    risk_tolerance: Tolerance | None = None
    deny: tuple[str, ...] = ()  # besides those for all
    requires_approval: tuple[str, ...] = ()  # besides those for all
    auto_approve: tuple[str, ...] | None = None
    stages: tuple[Stage, ...] | None = None
    tolerance_relaxes_confirm: bool | None = None
    preapproved: bool | None = None


class SafetyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The execution safety loop (MCP-AQL 8.6 to 8.8)."""

    mode: Mode = "disabled"
    require: tuple[str, ...] = ()  # principals
    max_autonomous_steps: int = STEPS_DEFAULT
    risk_tolerance: Tolerance = "moderate"
    deny: tuple[str, ...] = DENY
    requires_approval: tuple[str, ...] = REQUIRES_APPROVAL
    auto_approve: tuple[str, ...] = AUTO_APPROVE
    stages: tuple[Stage, ...] = ("outcome", "patterns", "risk", "tolerance")
    progressive_lockout: bool = True
    tolerance_relaxes_confirm: bool = False
    preapproved: bool = False
    agents: dict[str, AgentPlan] = {}


class SandboxPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a spawned server may touch beside its runtime and its package. `deny` goes before `read` and `write`."""

    home: Path  # its private home; made where it is missing
    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    deny: tuple[Path, ...] = ()
    accepted: dict[Path, Path] = {}  # what declared paths really were when somebody accepted them
    from_arguments: bool = (
        False  # existing absolute paths among the arguments are read and written too (AIP-security-5)
    )
    egress: tuple[str, ...] = ()  # host names, "*.NAME" and "*"; empty: no network at all
    programs: tuple[str, ...] = ()  # what it may start beside its own runtime
    any_program: bool = False  # it may start whatever it can read
    passed: tuple[str, ...] = ()  # variables of the node's own environment that it gets
    memory_mb: int | None = None
    cpu_ms: int | None = None


class Spawn(msgspec.Struct, frozen=True, kw_only=True, tag="spawn"):
    """A server that is a child process speaking over stdio. `package` is installed first when given."""

    command: tuple[str, ...]  # a driver's may hold ${secrets.NAME}
    env: dict[str, str] = {}  # may hold ${secrets.NAME}
    cwd: Path | None = None
    package: "Package | None" = None
    sandbox: SandboxPlan | None = None  # None: it may do whatever the node may
    serves: str | None = None  # a URL of this machine where the child answers, in place of stdio: a container's port


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """Where a spawned server's program comes from; its `command` then holds only the arguments."""

    registry: Literal["npm", "pypi"]
    name: str  # with an optional version: "mcp-server-time==2026.10.19", "@scope/server@1.2.3"


class OAuthPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens for one server are had; without one, as the server's own answers say."""

    grant: Literal["authorization_code", "client_credentials"] = "authorization_code"
    issuer: str | None = None  # the one authorization server that may give them
    client_id: str | None = None
    client_secret: str | None = None  # may hold ${secrets.NAME}; never shown
    private_key: Path | None = None
    scopes: tuple[str, ...] = ()  # empty: what the server asks for
    per: Literal["server", "user"] = "server"


class Dial(msgspec.Struct, frozen=True, kw_only=True, tag="dial"):
    """A server reached over HTTP."""

    url: str
    headers: dict[str, str] = {}  # may hold ${secrets.NAME}
    query: dict[str, str] = {}  # joins the url when it is dialled; may hold ${secrets.NAME}
    transport: Literal["auto", "http", "sse"] = "auto"
    auth: OAuthPlan | None = None
    egress: tuple[str, ...] | None = None  # hosts that may be asked for its sake, as in SandboxPlan; None: any


ToolClass = Literal["read_only", "reversible", "irreversible"]
Share = Literal["auto", "node", "principal", "session"]


class ServerPlan(msgspec.Struct, frozen=True, kw_only=True):
    segment: str
    reach: Spawn | Dial
    classes: dict[str, ToolClass] = {}  # tools = {NAME = class}, NAME as the server itself lists it
    secrets: tuple[str, ...] = ()  # what ${env:NAME} put into `reach`; never shown
    unset: tuple[str, ...] = ()  # the NAMEs that the environment lacks: it is not started
    timeout_s: float = 300  # of a call whose tool declares no latency class; progress sets the clock anew
    result_bytes: int | None = None  # of one answer; None: as limits.message_bytes says
    roots: tuple[Path, ...] | None = None  # the folders it may hear of; None: those among its arguments
    share: Share = "auto"  # who uses one process or connection of it
    max_processes: int = 16  # of clients' own
    idle_timeout_s: float = 1800  # after which a client's own ends


class PolicyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which drivers may serve, by their policy tags (AIP-30): one of `allow` when it names any, none of `deny`."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class DriversPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Servers that are declared as files (AIP-32): where the files lie, and what the operator says beside them."""

    paths: tuple[Path, ...] = ()  # searched after <workspace>/.drivers and `own`
    own: Path | None = None  # <config>/interlock/drivers, the person's own for every workspace; not written by anybody
    registration: Literal["eager", "lazy"] = "eager"
    idle_timeout_s: float = 300
    on_mismatch: Literal["reject", "drop_binding"] = "reject"
    sandbox: dict[str, Literal["off"]] = {}  # by the driver's id
    result_bytes: dict[str, int] = {}  # of one answer, by the driver's id; else as limits.message_bytes says
    insecure_hosts: tuple[str, ...] = ()  # reached over plain http although they are not this machine
    ca_file: Path | None = None
    region: str | None = None  # where this node runs, and what "self-hosted" means
    policy: PolicyPlan = PolicyPlan()
    pins: dict[str, str] = {}  # contract id -> driver id
    trust_workspace: bool = False
    allow_unverified_install: bool = False
    npx: bool = False
    dev: bool = False  # a change that needs a new major version is a warning


class ToolRule(msgspec.Struct, frozen=True, kw_only=True):
    """One [[tool]] entry; the first whose glob matches the qualified name applies."""

    match: str
    capability: dict[str, str | bool] = {}
    hide: bool = False
    pin: bool = False  # a changed definition is withheld until an operator accepts it
    cost_units: int | None = None  # None: by its cost_class
    budget: Limits | None = None  # of each tool, over all callers
    trust: Trust | None = None  # in what its server does (MCP-AQL); None: by where it comes from
    aql: OperationRule | None = None


class AqlTokenPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How long a confirmation token is good, in seconds, by the danger of its operation."""

    destructive: int = 300
    dangerous: int = 300
    forbidden: int = 120


class AqlDangerPlan(msgspec.Struct, frozen=True, kw_only=True):
    enforce: bool = True
    skew_s: int = 0
    token_s: AqlTokenPlan = AqlTokenPlan()


class AqlPlan(msgspec.Struct, frozen=True, kw_only=True):
    """MCP-AQL: operations behind a few endpoints."""

    mode: AqlMode = "semantic"
    auto_tokens: int = 4000  # bench.tokens: a flat list above it costs more than search, details and call, kept or not
    profile: str = "crude"
    families: dict[str, tuple[str, ...]] = {}
    tool_prefix: str = ""
    execution_idle_s: float = 1800
    execution_keep_s: float = 86_400
    limits: AqlLimits = AqlLimits()
    danger: AqlDangerPlan = AqlDangerPlan()
    strict_mode: bool = True  # AQL-4.6.2-2
    batch: bool = True
    field_selection: bool = True
    response_meta: bool = False


class RoomsPlan(RoomSettings, frozen=True, kw_only=True):
    """[rooms]: what holds for each room unless its entry says otherwise."""

    auto_create: bool = False


Enforcement = Literal["reject", "session", "warn", "off"]


class DevicePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One `.devices/SEGMENT.toml`."""

    segment: str
    description: DeviceDescription
    fault: str | None = None  # why the file cannot be used, and where: the device is not opened


class DevicesPlan(msgspec.Struct, frozen=True, kw_only=True):
    mode: Literal["aggregate", "on_behalf"] = "aggregate"
    described: tuple[DevicePlan, ...] = ()  # in the workspace


class RegistryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """[registry]: the registry of tool surface names, and what follows when a server does not keep to it."""

    enforce: Enforcement = "reject"
    per_name: dict[str, Enforcement] = {}
    routes: dict[str, tuple[str, ...]] = {}
    strict: bool = False
    public_read: bool = False
    tools: bool = False


class RoomPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One [[room]] entry: a topic, and what was written for it."""

    topic: str
    written: dict[str, Any] = {}

    def settings(self, rooms: RoomsPlan) -> RoomSettings:
        return room_settings(rooms, self.written)


def room_settings(rooms: RoomsPlan, written: dict[str, Any]) -> RoomSettings:
    """Of a room for which no more is written than this."""
    fields = {field.name: getattr(rooms, field.name) for field in msgspec.structs.fields(RoomSettings)}
    fields |= written
    fields["extra_kinds"] = {kind: Privilege(least) for kind, least in fields["extra_kinds"].items()}
    return RoomSettings(**fields)


class UnitsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a call counts for, by its cost_class."""

    free: int = 0
    metered: int = 1
    expensive: int = 10


class BudgetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Of every registration session (MCP-AX 11.4)."""

    max_calls_per_minute: int | None = None
    max_mutable_calls_per_session: int | None = None
    max_cost_units_per_session: int | None = None
    units: UnitsPlan = UnitsPlan()

    @property
    def limits(self) -> Limits:
        return Limits(**{name: getattr(self, name) for name in KEYS})


class LimitsPlan(msgspec.Struct, frozen=True, kw_only=True):
    message_bytes: int = 16 * 1024 * 1024
    calls_in_flight: int = 1024
    own_processes: int = 64  # of clients' own, of all servers
    # Of each sandbox, unless a driver's runner says how much memory it needs:
    sandbox_memory_mb: int = 4096
    sandbox_processes: int = 2048  # and threads
    sandbox_disk_mb: int = 4096  # in its own home


class StorePlan(msgspec.Struct, frozen=True, kw_only=True):
    backend: Literal["sqlite", "nats"] = "sqlite"
    nats_url: tuple[str, ...] = ()
    nats_secret: str | None = None  # may hold ${secrets.NAME}; never shown
    nats_ca_file: Path | None = None
    nats_replicas: int = 1  # on how many servers of a cluster each thing is kept
    audit_days: int = 0  # how long records are kept; 0: for ever
    shared: Path | None = None  # a folder that the aggregators of one tree on this machine share (MCP-AX 13.4)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    workspace: Path
    data: Path
    node: NodePlan = NodePlan()
    auth: AuthPlan = AuthPlan()
    access: tuple[AccessRule, ...] = ()
    anchors: tuple[AnchorPlan, ...] = ()
    mcp: McpPlan = McpPlan()
    aql: AqlPlan = AqlPlan()
    ax: AxPlan = AxPlan()
    degraded: DegradedPlan = DegradedPlan()
    gate: GatePlan = GatePlan()
    approvals: ApprovalsPlan = ApprovalsPlan()
    servers: tuple[ServerPlan, ...] = ()
    drivers: DriversPlan = DriversPlan()
    tools: tuple[ToolRule, ...] = ()
    safety: SafetyPlan = SafetyPlan()
    rooms: RoomsPlan = RoomsPlan()
    room: tuple[RoomPlan, ...] = ()
    devices: DevicesPlan = DevicesPlan()
    registry: RegistryPlan = RegistryPlan()
    budget: BudgetPlan = BudgetPlan()
    limits: LimitsPlan = LimitsPlan()
    store: StorePlan = StorePlan()
