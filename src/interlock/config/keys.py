"""The one table of every key a person may write: its kind, its default, what it is for, and an example.

The loader, the JSON Schema and the hints of error messages are all made from it.
"""

import enum
from typing import Final

from interlock.config.addresses import Listen, Network, Origin, Url
from interlock.config.anchors import KEY_SOURCES, DnsName, KeySet, Passkey, PublicKey
from interlock.config.ax_types import AUTHORITY, CHILD, ENVIRONMENT, GLOB_URLS, PARENT, TREE
from interlock.config.budgets import AMOUNT, BUDGET, UNITS
from interlock.config.drivers_keys import DRIVERS, MONTH_S
from interlock.config.headers import Headers
from interlock.config.issuers import ISSUER
from interlock.config.sections import Key, Section, keyed
from interlock.config.server_auth import SERVER_AUTH
from interlock.config.value_types import (
    Choice,
    Command,
    FilePath,
    Flag,
    Many,
    Seconds,
    Segment,
    Size,
    Table,
    Text,
    Version,
    Whole,
)
from interlock.protocol.ax.capability import AuthScope, Availability, Consistency, CostClass, LatencyClass, Transport
from interlock.protocol.net.egress import ENTRY

# A leading "-" would be an option to the installer, so no package or image may start with one.
NPM_PACKAGE: Final = r"(?:@[a-z0-9~][a-z0-9._~-]*/)?[a-z0-9~][a-z0-9._~-]*(?:@[0-9A-Za-z^~][0-9A-Za-z.+_-]*)?"
PYPI_PACKAGE: Final = (
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:\[[A-Za-z0-9][A-Za-z0-9._,-]*\])?(?:==[0-9A-Za-z][0-9A-Za-z.!+_-]*)?"
)
DOCKER_IMAGE: Final = r"[A-Za-z0-9][A-Za-z0-9._/:-]*(?:@sha256:[0-9a-f]{64})?"


_GLOBS = Many(item=Text())
_TEXT = Text(references=True, empty=True)
_TOOL_CLASS = Choice(values=("read_only", "reversible", "irreversible"))
_NAME_FORM = Choice(values=("auto", "qualified", "safe"))


def _one_of(kind: type[enum.Enum]) -> Choice:
    return Choice(values=tuple(member.value for member in kind))


TOP: Final = keyed(
    Key(
        name="workspace",
        kind=FilePath(),
        default=".",
        example="~/projects/shop",
        help="The folder servers work in. Default: the folder of the configuration file.",
    ),
    Key(
        name="data",
        kind=FilePath(),
        example="~/.local/share/interlock",
        help="Where the node keeps its identity, tokens and audit log; outside the workspace."
        " Default: interlock in the user's data folder.",
    ),
)

_NODE = keyed(
    Key(
        name="name",
        kind=Text(pattern=r"[A-Za-z0-9_.-]{1,63}", what="1 to 63 of the characters A-Z a-z 0-9 _ . -"),
        default="default",
        example="office",
        help="The node's name; replicas of one node share it, and so its identity.",
    ),
    Key(
        name="listen",
        kind=Listen(),
        default="127.0.0.1:7411",
        example="127.0.0.1:7411",
        help="Where programs connect (the public door). Port 0: the system chooses.",
    ),
    Key(
        name="public_url",
        kind=Url(),
        example="https://mcp.example.com",
        help="How clients reach the public door, when that differs from `listen` (a proxy in front).",
    ),
    Key(
        name="operator_listen",
        kind=Listen(),
        default="127.0.0.1:7412",
        example="127.0.0.1:7412",
        help="Where people connect (the operator door). Never the address of the public door.",
    ),
    Key(
        name="operator_url",
        kind=Url(),
        example="https://operator.example.com",
        help="How people reach the operator door, when that differs from `operator_listen`.",
    ),
    Key(name="tls_cert", kind=FilePath(), example="tls/cert.pem", help="Certificate chain (PEM). Needs tls_key."),
    Key(name="tls_key", kind=FilePath(), example="tls/key.pem", help="Private key (PEM). Needs tls_cert."),
    Key(
        name="client_ca",
        kind=FilePath(),
        example="tls/ca.pem",
        help="CA certificates (PEM). A subserver's client certificate under them proves its authority.",
    ),
    Key(
        name="crl",
        kind=FilePath(),
        example="tls/crl.pem",
        help="Which certificates of client_ca are revoked (PEM); read again when it changes. Needs client_ca.",
    ),
    Key(
        name="origins",
        kind=Many(item=Origin()),
        default=[],
        example=["https://app.example.com"],
        help="Web pages that may call this node, besides those on this machine.",
    ),
    Key(
        name="trusted_proxies",
        kind=Many(item=Network()),
        default=[],
        example=["10.0.0.0/8"],
        help="Proxies whose word on the caller's address is believed (Forwarded, X-Forwarded-For).",
    ),
)

_AUTH = keyed(
    Key(
        name="anonymous",
        kind=Choice(values=("loopback", "never", "any")),
        default="loopback",
        example="never",
        help="Who may call without a token: programs on this machine, nobody, or anybody who can connect.",
    ),
    Key(
        name="issuers",
        kind=Many(item=ISSUER),
        default=[],
        example=[{"name": "corp", "url": "https://login.example.com", "scopes": {"mcp.use": "write"}}],
        help="Authorization servers whose access tokens open the public door, as client:NAME/SUBJECT@CLIENT_ID.",
    ),
    Key(
        name="token_days",
        kind=Whole(low=1, high=3650),
        default=30,
        example=90,
        help="How long a new token is valid, in days.",
    ),
)

_ACCESS = keyed(
    Key(
        name="who",
        kind=Many(item=Text(), least=1),
        required=True,
        example=[
            "client:ci",
            "client:team-*",
            "client:corp/*@build",
            "role:corp/reader",
            "certificate:edge.example.com",
        ],
        help="Principals (globs) the entry is for; the first entry that holds the caller applies.",
    ),
    Key(
        name="scope",
        kind=Choice(values=("read", "write", "admin")),
        default="write",
        example="read",
        help="The most a caller may do.",
    ),
    Key(name="tools", kind=_GLOBS, default=["*"], example=["files.read_*"], help="Tools (globs) the caller may use."),
    Key(name="names", kind=_NAME_FORM, example="qualified", help="Form of the tool names for these callers."),
    Key(
        name="authority",
        kind=AUTHORITY,
        example="dns:edge01.example.com",
        help="What these subservers speak for when they register from this machine, without further proof.",
    ),
    Key(
        name="secure_by",
        kind=Text(),
        example="WireGuard",
        help="What protects the links of these subservers, where it is not TLS 1.3.",
    ),
    Key(
        name="link_latency_ms",
        kind=Whole(low=0, high=3_600_000),
        default=0,
        example=700,
        help="What the way to these subservers takes; raises the latency class of their tools.",
    ),
    Key(
        name="budget",
        kind=BUDGET,
        example={"max_calls_per_minute": 60},
        help="How much each of these callers may use; for subservers: instead of what [budget] says.",
    ),
)

_ANCHOR = keyed(
    Key(
        name="name",
        kind=ISSUER.fields["name"],
        required=True,
        example="plant",
        help="What the anchor is called in the log and in the audit.",
    ),
    Key(
        name="key",
        kind=PublicKey(),
        example="ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=",
        help="Its public key: ed25519:BASE64, a JWK, PEM, or the file that holds one of them.",
    ),
    Key(
        name="jwks",
        kind=KeySet(),
        example="https://login.example.com/jwks",
        help="Its key set: a URL (https, or http on this machine), or a file.",
    ),
    Key(
        name="passkey",
        kind=Passkey(),
        example="ed25519:AbCdEf0123456789:11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
        help="A person's passkey, as `interlock access passkey NAME` prints it.",
    ),
    Key(
        name="approves",
        kind=_GLOBS,
        default=[],
        example=["files.*"],
        help="Tools (globs over qualified names) whose calls it may approve.",
    ),
    Key(
        name="speaks_for",
        kind=Many(item=DnsName()),
        default=[],
        example=["edge01.example.com"],
        help="DNS names it may prove for subservers that register (their `authority`).",
    ),
)

_MCP = keyed(
    Key(
        name="surface",
        kind=Choice(values=("flat",)),
        default="flat",
        example="flat",
        help="What /mcp shows: flat lists every tool.",
    ),
    Key(
        name="names",
        kind=_NAME_FORM,
        default="auto",
        example="safe",
        help="Form of tool names: with dots, safe for clients that refuse dots, or by client.",
    ),
    Key(
        name="meta_pass",
        kind=Choice(values=("vendor", "none")),
        default="vendor",
        example="none",
        help="Whether servers' own _meta keys reach the client.",
    ),
    Key(
        name="latency_meta",
        kind=Flag(),
        default=False,
        example=True,
        help="Whether results say how long the call took.",
    ),
    Key(
        name="session_idle_s",
        kind=Seconds(low=1, high=MONTH_S),
        default=1800,
        example=3600,
        help="After how many idle seconds a client's session ends.",
    ),
)

_AX = keyed(
    Key(
        name="tree",
        kind=TREE,
        default="default",
        example="plant",
        help="Which tree the node belongs to; within one tree a subserver has one parent.",
    ),
    Key(
        name="parents",
        kind=Many(item=PARENT),
        default=[],
        example=[{"url": "wss://hub.example.com/ax", "segment": "edge"}],
        help="Aggregators to register with: the first of each tree, and the others as its backups.",
    ),
    Key(
        name="children",
        kind=Many(item=CHILD),
        default=[],
        example=[{"command": "python greenhouse.py", "segment": "greenhouse"}],
        help="Subservers to start as children, which register over their stdio.",
    ),
    Key(
        name="dial_back",
        kind=GLOB_URLS,
        default=[],
        example=["https://*.example.com/*"],
        help="Where the node may connect to when a subserver registers by POST and names its endpoint.",
    ),
    Key(
        name="require_proof",
        kind=Choice(values=("mutable", "always", "never")),
        default="mutable",
        example="always",
        help="For which subservers a claim of authority must be proved: those with mutable tools, all, or none.",
    ),
    Key(
        name="heartbeat_min_ms",
        kind=Whole(low=10, high=3_600_000),
        default=100,
        example=1000,
        help="The shortest heartbeat interval a subserver may promise, in milliseconds.",
    ),
    Key(
        name="max_hops",
        kind=Whole(low=1, high=255),
        default=32,
        example=8,
        help="Tools that are more aggregators away are withheld.",
    ),
    Key(
        name="notify_per_s",
        kind=Whole(low=1, high=1_000_000),
        default=100,
        example=500,
        help="How many notifications a second are passed on for one subserver.",
    ),
    Key(
        name="notify_buffer",
        kind=Whole(low=1, high=1_000_000),
        default=1000,
        example=5000,
        help="How many more wait, before the oldest are dropped and counted.",
    ),
    Key(
        name="root_segment",
        kind=Segment(),
        example="home",
        help="First segment of every qualified name; changing it renames every tool.",
    ),
    Key(
        name="list_ttl_s",
        kind=Seconds(low=0, high=MONTH_S),
        default=60,
        example=300,
        help="How many seconds the tool list of a server that announces no changes stays valid.",
    ),
)

_DEGRADED = keyed(
    Key(
        name="enabled",
        kind=Flag(),
        default=True,
        example=False,
        help="Whether the tools of a lost subserver stay listed, as degraded, for a while.",
    ),
    Key(
        name="grace_s",
        kind=Seconds(low=0, high=MONTH_S),
        default=300,
        example=60,
        help="How long they stay.",
    ),
)

_GATE = keyed(
    Key(
        name="mode",
        kind=Choice(values=("gated", "defer", "open")),
        default="gated",
        example="defer",
        help="Whether calls that cannot be undone wait for a person: all, those no node below holds, or none.",
    ),
    Key(
        name="also",
        kind=_GLOBS,
        default=[],
        example=["mail.send_*"],
        help="Further tools (globs) whose calls wait for a person, whatever they say of themselves.",
    ),
    Key(
        name="unannotated",
        kind=Choice(values=("classify", "allow")),
        default="classify",
        example="allow",
        help="Tools that do not say what they do: wait until an operator has said it once, or are called at once.",
    ),
)

_APPROVALS = keyed(
    Key(
        name="expiry_s",
        kind=Seconds(low=30, high=86_400),
        default=300,
        example=900,
        help="How long a held call waits for a decision.",
    ),
    Key(
        name="redeem_s",
        kind=Seconds(low=30, high=86_400),
        default=300,
        example=60,
        help="How long an approved call may then be made; never longer than its proof is good.",
    ),
    Key(
        name="max_pending",
        kind=Whole(low=1, high=10_000),
        default=100,
        example=20,
        help="How many calls of one caller may wait at once.",
    ),
    Key(
        name="channels",
        kind=Many(item=Choice(values=("console", "cli", "os_dialog", "command", "webhook"))),
        default=["console", "cli"],
        example=["cli", "os_dialog"],
        help="Where operators hear that something waits: the page, `interlock approvals --watch`,"
        " a notification on this machine's desktop, a command, a webhook.",
    ),
    Key(
        name="command",
        kind=Command(),
        example="notify-team",
        help="For the channel command: a program to start; it is told what waits in a line of JSON on stdin.",
    ),
    Key(
        name="webhook_url",
        kind=Url(outward=True),
        example="https://hooks.example.com/interlock",
        help="For the channel webhook: where to post it.",
    ),
    Key(
        name="webhook_secret",
        kind=_TEXT,
        example="a-long-random-text",
        help="The key under which the receiver checks that it comes from here (HMAC-SHA256). ${env:NAME} is replaced.",
    ),
)

_SERVERS = keyed(
    Key(
        name="command",
        kind=Command(),
        example="python -m my_server",
        help="A program to start: one string, split like a shell does it, or a list.",
    ),
    Key(
        name="npm",
        kind=Text(pattern=NPM_PACKAGE, what="an npm package", hint='write "@scope/name" or "name@1.2.3"'),
        example="@modelcontextprotocol/server-memory",
        help="An npm package to install and start.",
    ),
    Key(
        name="pypi",
        kind=Text(pattern=PYPI_PACKAGE, what="a PyPI package", hint='write "name" or "name==1.2.3"'),
        example="mcp-server-time",
        help="A PyPI package to install and start.",
    ),
    Key(
        name="docker",
        kind=Text(pattern=DOCKER_IMAGE, what="a container image", hint='write "owner/image:tag"'),
        example="mcp/fetch",
        help="A container image to start with docker run.",
    ),
    Key(
        name="url",
        kind=Url(outward=True),
        example="https://mcp.example.com/mcp",
        help="A server that is already running.",
    ),
    Key(
        name="args",
        kind=Many(item=_TEXT),
        default=[],
        example=["--local-timezone", "Europe/Berlin"],
        help="Arguments of the program. ${env:NAME} is replaced.",
    ),
    Key(
        name="env",
        kind=ENVIRONMENT,
        default={},
        example={"LOG_LEVEL": "info"},
        help="Environment variables of the program. ${env:NAME} and ${secrets.NAME} are replaced.",
    ),
    Key(name="cwd", kind=FilePath(), example="servers", help="The folder the program starts in. Default: workspace."),
    Key(
        name="headers",
        kind=Headers(),
        default={},
        example={"X-Team": "blue"},
        help="Headers sent with every request. ${env:NAME} and ${secrets.NAME} are replaced.",
    ),
    Key(
        name="auth",
        kind=SERVER_AUTH,
        example={"grant": "client_credentials", "client_id": "node", "client_secret": "${secrets.CRM}"},
        help="How OAuth tokens for the server are had. Default: a person agrees on the page the server names.",
    ),
    Key(
        name="egress",
        kind=Many(
            item=Text(
                pattern=ENTRY.pattern,
                what="the name of a host, *.NAME or *",
                hint="without port, path or network mask",
            )
        ),
        example=["api.example.com"],
        help="Start it in a sandbox, from which it reaches these hosts and no other. Empty: none.",
    ),
    Key(
        name="files",
        kind=Many(item=FilePath()),
        example=["~/notes"],
        help="Start it in a sandbox, in which it reads and writes these files and folders beside its own.",
    ),
    Key(
        name="transport",
        kind=Choice(values=("auto", "http", "sse", "stdio")),
        default="auto",
        example="auto",
        help="With url: http (streamable), sse (2024-11-05) or auto. A program speaks stdio.",
    ),
    Key(
        name="tools",
        kind=Table(names=r"[^\x00]+", names_are="a tool's name", item=_TOOL_CLASS),
        default={},
        example={"delete_file": "irreversible"},
        help="What a tool's effect is, by the name the server gives it.",
    ),
)

CAPABILITY: Final = keyed(  # MCP-AX 9.1
    Key(
        name="latency_class",
        kind=_one_of(LatencyClass),
        example="slow",
        help="How long a call usually takes.",
    ),
    Key(
        name="consistency",
        kind=_one_of(Consistency),
        example="eventual",
        help="What a read after a write sees.",
    ),
    Key(name="mutable", kind=Flag(), example=False, help="Whether a call changes anything."),
    Key(name="reversible", kind=Flag(), example=True, help="Whether what a call changed can be undone."),
    Key(name="idempotent", kind=Flag(), example=True, help="Whether a repeated call changes nothing more."),
    Key(
        name="transport",
        kind=_one_of(Transport),
        example="native",
        help="How the tool is reached.",
    ),
    Key(
        name="auth_scope",
        kind=_one_of(AuthScope),
        example="admin",
        help="The scope a caller needs.",
    ),
    Key(
        name="cost_class",
        kind=_one_of(CostClass),
        example="metered",
        help="What a call costs.",
    ),
    Key(
        name="availability",
        kind=_one_of(Availability),
        example="best_effort",
        help="When the tool can be called.",
    ),
    Key(
        name="schema_version",
        kind=Version(),
        example="1.2.0",
        help="Version of the tool's definition.",
    ),
)

_TOOL = (
    keyed(
        Key(
            name="match",
            kind=Text(),
            required=True,
            example="files.write_*",
            help="Qualified tool name (glob); the first entry that matches applies.",
        ),
        Key(name="hide", kind=Flag(), default=False, example=True, help="Whether clients do not see the tool."),
        Key(
            name="cost_units",
            kind=AMOUNT,
            example=5,
            help="How many units a call costs. Default: what units in [budget] says of its cost_class.",
        ),
        Key(
            name="budget",
            kind=BUDGET,
            example={"max_calls_per_minute": 10},
            help="How much of each of these tools may be used, by all callers together.",
        ),
        Key(
            name="pin",
            kind=Flag(),
            default=False,
            example=True,
            help="Whether the tool, once its definition changes, is withheld until an operator accepts the change.",
        ),
    )
    | CAPABILITY
)

_BUDGET = keyed(
    Key(
        name="max_calls_per_minute",
        kind=AMOUNT,
        example=60,
        help="How many calls a subserver may get, and requests it may send, within any minute. Default: no limit.",
    ),
    Key(
        name="max_mutable_calls_per_session",
        kind=AMOUNT,
        example=10,
        help="How many of its calls may change something until it registers anew. Default: no limit.",
    ),
    Key(
        name="max_cost_units_per_session",
        kind=AMOUNT,
        example=1000,
        help="How many units its calls may cost until it registers anew. Default: no limit.",
    ),
    Key(
        name="units",
        kind=UNITS,
        default={"free": 0, "metered": 1, "expensive": 10},
        example={"metered": 2, "expensive": 50},
        help="How many units a call costs, by the cost_class of its tool.",
    ),
)

_LIMITS = keyed(
    Key(
        name="message_bytes",
        kind=Size(low=1024, high=1024**3),
        default="16Mi",
        example="64Mi",
        help="The largest message taken from anybody: a body, a line, a frame.",
    ),
    Key(
        name="calls_in_flight",
        kind=Whole(low=1, high=1_000_000),
        default=1024,
        example=256,
        help="How many calls may wait for servers at once.",
    ),
)

_STORE = keyed(
    Key(name="backend", kind=Choice(values=("sqlite",)), default="sqlite", example="sqlite", help="What remembers."),
    Key(
        name="audit_days",
        kind=Whole(low=0, high=36500),
        default=0,
        example=365,
        help="How long audit records are kept, in days; 0 keeps them for ever.",
    ),
    Key(
        name="shared",
        kind=FilePath(),
        example="/srv/interlock-tree",
        help="A folder that the aggregators of one tree on this machine share: a subserver is with one of them only.",
    ),
)

SECTIONS: Final = {
    section.name: section
    for section in (
        Section(name="node", shape="table", keys=_NODE, help="The node and its two doors."),
        Section(name="auth", shape="table", keys=_AUTH, help="Who may come in."),
        Section(name="access", shape="list", keys=_ACCESS, help="What a caller may do; without an entry: write."),
        Section(
            name="anchor",
            shape="list",
            keys=_ANCHOR,
            one_of=KEY_SOURCES,
            help="Whose signatures are believed, and for what.",
        ),
        Section(name="mcp", shape="table", keys=_MCP, help="What MCP clients see."),
        Section(name="ax", shape="table", keys=_AX, help="The tree."),
        Section(name="degraded", shape="table", keys=_DEGRADED, help="What happens to the tools of a lost subserver."),
        Section(name="gate", shape="table", keys=_GATE, help="What waits until a person agrees."),
        Section(
            name="approvals", shape="table", keys=_APPROVALS, help="What waits for a decision, and who hears of it."
        ),
        Section(name="servers", shape="segments", keys=_SERVERS, help="The MCP servers, by segment."),
        Section(name="drivers", shape="table", keys=DRIVERS, help="Servers that are declared as files."),
        Section(name="tool", shape="list", keys=_TOOL, help="What is known better than a server says about its tools."),
        Section(name="budget", shape="table", keys=_BUDGET, help="What a registered subserver may use."),
        Section(name="limits", shape="table", keys=_LIMITS, help="What is too much."),
        Section(name="store", shape="table", keys=_STORE, help="Where the node remembers."),
    )
}
