"""The table of capabilities: what each package adds to the configuration, the operator API, the commands and a node.

Configuration, command line, operator API and node go through this table and know no capability by name. The order is
the order in which a node constructs and opens them. Every command reads the table to start, so it names what is heavy
as "module:attribute".
"""

from typing import Final

from interlock.core.capability import Capability, Command

CAPABILITIES: Final = (
    # The node itself: start, configuration, health.
    Capability(
        name="node",
        sections=("node", "mcp", "limits"),
        operations=("interlock.operator.api:OPERATIONS",),
        commands={
            "init": Command("interlock.node.cli.init:app"),
            "serve": Command("interlock.node.cli.serve:app"),
            "check": Command("interlock.node.cli.check:app"),
            "status": Command("interlock.node.cli.status:app"),
            "open": Command("interlock.node.cli.status:open_app"),
            "doctor": Command("interlock.node.cli.doctor:app"),
            "explain": Command("interlock.cli.explain:app"),
            "packages": Command("interlock.node.cli.packages:app", "package"),
            "version": Command("interlock.cli.version:app"),
        },
    ),
    # What the node remembers, and its audit log.
    Capability(
        name="store",
        sections=("store",),
        operations=("interlock.store.api:OPERATIONS",),
        commands={"audit": Command("interlock.store.cli:app", "audits")},
    ),
    # Who may call: tokens, OAuth access tokens, logins.
    Capability(
        name="access",
        sections=("auth", "access"),
        operations=("interlock.access.api:OPERATIONS",),
        commands={"access": Command("interlock.access.cli:app", "accesses")},
    ),
    # Links to configured servers.
    Capability(
        name="links",
        sections=("servers",),
        operations=("interlock.links.api:OPERATIONS",),
        commands={"links": Command("interlock.links.cli:app", "link")},
    ),
    # Credentials for servers: OAuth tokens and secrets.
    Capability(
        name="credentials",
        operations=("interlock.credentials.api:OPERATIONS",),
        commands={"secrets": Command("interlock.credentials.cli:app", "secret")},
    ),
    # The namespace of tools, prompts and resources.
    Capability(
        name="catalog",
        sections=("tool",),
        operations=("interlock.catalog.api:OPERATIONS",),
        commands={"tools": Command("interlock.catalog.cli.tools:app", "tool")},
    ),
    # The inbox: approvals of every kind, and the people who may decide about them.
    Capability(
        name="approvals",
        sections=("anchor", "gate", "approvals"),
        operations=("interlock.approvals.api:OPERATIONS", "interlock.approvals.grants_api:OPERATIONS"),
        commands={
            "approvals": Command("interlock.approvals.cli.inbox:app", "approval"),
            "approve": Command("interlock.approvals.cli.inbox:approve_app"),
            "deny": Command("interlock.approvals.cli.inbox:deny_app"),
            "grants": Command("interlock.approvals.cli.grants:app", "grant"),
        },
    ),
    # The execution safety loop (MCP-AQL 8.6 to 8.8).
    Capability(
        name="safety",
        sections=("safety",),
        operations=("interlock.safety.api:OPERATIONS",),
        commands={"agents": Command("interlock.safety.cli:app", "agent")},
        parts="interlock.safety.parts:AgentParts",
    ),
    # The tree of aggregators (MCP-AX): subservers, children and parents.
    Capability(name="ax", sections=("ax", "degraded", "budget"), parts="interlock.ax.parts:AxParts"),
    # Operations behind a few endpoints (MCP-AQL).
    Capability(name="aql", sections=("aql",), parts="interlock.aql.parts:AqlParts"),
    # Rooms of agents, people and robots (MCPx).
    Capability(
        name="rooms",
        sections=("rooms", "room"),
        operations=("interlock.rooms.api:OPERATIONS",),
        commands={"rooms": Command("interlock.rooms.cli:app", "room")},
        parts="interlock.rooms.parts:RoomParts",
    ),
    # The registry of tool surface names.
    Capability(
        name="names",
        sections=("registry",),
        operations=("interlock.names.api:OPERATIONS",),
        commands={"names": Command("interlock.names.cli:app", "name")},
        parts="interlock.names.parts:RegistryParts",
    ),
    # Microcontrollers and PLCs (MCP-AX 8).
    Capability(
        name="devices",
        sections=("devices",),
        commands={"device": Command("interlock.devices.cli:app", "devices")},
        parts="interlock.devices.parts:DeviceParts",
    ),
    # Drivers: servers that are declared as files (AIP-32).
    Capability(
        name="drivers",
        sections=("drivers",),
        operations=("interlock.drivers.api:OPERATIONS",),
        commands={
            "add": Command("interlock.drivers.cli.add:app"),
            "discover": Command("interlock.drivers.cli.discover:app"),
            "drivers": Command("interlock.drivers.cli.drivers:app", "driver"),
            "skills": Command("interlock.drivers.cli.drivers:skills_app", "skill"),
        },
        parts="interlock.drivers.parts:DriverParts",
    ),
    # Import and export: exchange of MCP servers with other clients.
    Capability(
        name="interop",
        commands={
            "export": Command("interlock.interop.cli.export:app"),
            "import": Command("interlock.interop.cli.import_:app"),
        },
    ),
    # The console: its pages for operators, and the live events that they show.
    Capability(
        name="console",
        operations=("interlock.operator.open_pages:CONSOLE_PAGES", "interlock.operator.api:CONSOLE_OPERATIONS"),
    ),
)
