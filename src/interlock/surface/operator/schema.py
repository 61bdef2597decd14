"""What the operator door answers, as far as commands read it. Keys they do not read are ignored."""

from typing import Any

import msgspec

from interlock.surface.cli.terminal.text import mcp_url


class Server(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    version: str = ""


class Withheld(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    reason: str


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """Of a subserver that came by itself (MCP-AX 6)."""

    principal: str
    authority: str | None = None
    verified: bool = False
    auth_scope: str = ""
    transport_class: str = ""
    version: str | None = None
    heartbeat_interval_ms: int = 0
    registered_at: str | None = None
    session: str = ""
    aggregators: int = 0
    secure_by: str | None = None


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    principal: str | None = None
    authority: str | None = None
    verified: bool = False


class Below(msgspec.Struct, frozen=True, kw_only=True):
    """A segment below an aggregator, with everything below it."""

    path: tuple[str, ...]
    tools: int = 0
    hops: int = 1
    latency_class: str | None = None
    degraded: int = 0
    gated: int = 0


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    limit: int
    used: int


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller or a tool may use, by the name of the limit (MCP-AX 11.4)."""

    scope: str
    name: str
    limits: dict[str, Spent] = {}


class Link(msgspec.Struct, frozen=True, kw_only=True):
    segment: str
    kind: str
    transport: str
    era: str | None = None
    protocol_version: str | None = None
    state: str
    reason: str | None = None
    since: str | None = None
    server: Server | None = None
    tools: int = 0
    contracts: int | None = None  # of a driver, whose tools are listed as the contracts it serves
    prompts: int = 0
    resources: int = 0
    withheld: tuple[Withheld, ...] = ()
    in_flight: int = 0
    parked: int = 0
    calls: int = 0
    errors: int = 0
    restarts: int = 0
    pid: int | None = None
    sandbox: bool | None = None  # None: it is not this node that started it
    stderr_lines: int = 0
    latency_ms: float | None = None
    hops: int = 1
    below: tuple[Below, ...] = ()
    registration: Registration | None = None
    budget: dict[str, Spent] | None = None
    token: "HeldToken | None" = None
    users: int | None = None


class Consent(msgspec.Struct, frozen=True, kw_only=True):
    """The page where a person agrees to a token."""

    url: str
    issuer: str
    scopes: tuple[str, ...] = ()
    expires_at: str


class Secret(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    name: str


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    secrets: tuple[Secret, ...]


class HeldToken(msgspec.Struct, frozen=True, kw_only=True):
    expires_at: str | None = None


class Links(msgspec.Struct, frozen=True, kw_only=True):
    links: tuple[Link, ...]


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    version: str
    url: str
    mcp_url: str | None = None
    uptime_s: float = 0
    audit_trouble: str | None = None
    require_proof: str | None = None

    @property
    def endpoint(self) -> str:
        """Where MCP clients connect."""
        return self.mcp_url or mcp_url(self.url)


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the last change to the files."""

    problem: str | None = None
    restart_for: tuple[str, ...] = ()


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    version: int = 0
    tools: int = 0
    prompts: int = 0
    resources: int = 0


class Clients(msgspec.Struct, frozen=True, kw_only=True):
    sessions: int = 0


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    total: int = 0
    failed: int = 0
    in_flight: int = 0
    parked: int = 0


class Parent(msgspec.Struct, frozen=True, kw_only=True):
    """An aggregator this node registers with."""

    url: str
    state: str
    tree: str = ""
    since: str | None = None
    assigned_segment: str | None = None
    reason: str | None = None
    next_step: str | None = None
    not_listed: int = 0
    secure_by: str | None = None
    budget: dict[str, Spent] | None = None


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    mode: str = ""
    tools: int = 0
    unclassified: int = 0
    without_approver: int = 0


class Approvals(msgspec.Struct, frozen=True, kw_only=True):
    waiting: int = 0
    channels: dict[str, str] = {}  # what is wrong with them


class Status(msgspec.Struct, frozen=True, kw_only=True):
    node: NodeFacts
    configuration: Configuration | None = None
    parents: tuple[Parent, ...] = ()
    budgets: tuple[Budget, ...] = ()
    links: tuple[Link, ...] = ()
    catalog: Catalog = Catalog()
    clients: Clients = Clients()
    calls: Calls = Calls()
    gate: Gate = Gate()
    approvals: Approvals = Approvals()


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    alias: str | None = None
    segment: str
    original: str
    title: str | None = None
    description: str | None = None
    state: str = ""
    capability: dict[str, Any] = {}
    hops: int = 0
    withheld: str | None = None
    unclassified: bool = False


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    tools: tuple[Tool, ...]


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    rung: int
    name: str
    verdict: str
    reason: str | None = None


class ToolDetail(Tool, frozen=True, kw_only=True):
    definition: dict[str, Any] = {}
    route: tuple[str, ...] = ()
    era: str | None = None
    owner: Owner | None = None
    rungs: tuple[Rung, ...] = ()
    caller: str = "local"  # whose call the rungs are told for


class Route(msgspec.Struct, frozen=True, kw_only=True):
    downstream_session: str
    downstream_name: str
    capability: dict[str, Any] | None = None
    registered_at: str | None = None


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    at: str
    text: str


class Logs(msgspec.Struct, frozen=True, kw_only=True):
    segment: str
    lines: tuple[LogLine, ...]


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    seq: int
    at: str = ""
    who: str = ""
    method: str = ""
    tool: str | None = None
    outcome: str = ""
    reason: str | None = None
    ms: float | None = None


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    records: tuple[AuditRecord, ...]
    last: int


class Block(msgspec.Struct, frozen=True, kw_only=True):
    block: str
    prompt: str
    driver: str
    server_prompt: str
    description: str = ""


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    blocks: tuple[Block, ...] = ()


class Skills(msgspec.Struct, frozen=True, kw_only=True):
    skills: tuple[Skill, ...] = ()


class Token(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    door: str
    scope: str | None = None
    created_at: str | None = None
    expires_at: str | None = None
    last_used_at: str | None = None


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    tokens: tuple[Token, ...]


class IssuedToken(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    id: str
    name: str
    door: str = msgspec.field(name="for")
    expires_at: str | None = None
