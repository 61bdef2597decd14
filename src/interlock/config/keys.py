"""The one table of every key a person may write: its kind, its default, what it is for, and an example.

The loader, the JSON Schema and the hints of error messages are all made from it.
"""

from typing import Final, get_args

from interlock.ax.protocol.transport_classes import PRIVATE_CLASS
from interlock.config.addresses import Listen, MailServer, NatsUrls, Network, Origin, Url
from interlock.config.anchors import KEY_SOURCES, DnsName, KeySet, Passkey, PublicKey
from interlock.config.aql_keys import AQL, SAFETY
from interlock.config.drivers_keys import DRIVERS
from interlock.config.plan import (
    AccessRule,
    AnchorPlan,
    ApprovalsPlan,
    AuthPlan,
    AxPlan,
    BudgetPlan,
    Channel,
    DegradedPlan,
    DevicesPlan,
    GatePlan,
    LimitsPlan,
    McpPlan,
    NodePlan,
    StorePlan,
)
from interlock.config.record_types import (
    AMOUNT,
    AUTHORITY,
    BUDGET,
    CHILD,
    GLOB_URLS,
    ISSUER,
    PARENT,
    TREE,
    UNITS,
)
from interlock.config.registry_keys import REGISTRY
from interlock.config.rooms_keys import ROOM, ROOMS
from interlock.config.sections import Key, Section, keys_by_name, keys_of
from interlock.config.server_keys import MESSAGE_SIZE, MONTH_S, SERVERS, TEXT, TOOL
from interlock.config.value_types import (
    Choice,
    Command,
    FilePath,
    Many,
    Seconds,
    Segment,
    Text,
    Whole,
)

_GLOBS = Many(item=Text())
_MAIL_ADDRESS = Text(pattern=r"[^@\s<>,]{1,64}@[^@\s<>,]{1,255}", what="a mail address, such as ops@example.com")


TOP: Final = keys_by_name(
    Key(
        name="workspace",
        kind=FilePath(),
        default=".",
        example="~/projects/garden",
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

_NODE = keys_of(
    NodePlan,
    Key(
        name="name",
        kind=Text(pattern=r"[A-Za-z0-9_.-]{1,63}", what="1 to 63 of the characters A-Z a-z 0-9 _ . -"),
        example="office",
        help="The node's name; replicas of one node share it, and so its identity.",
    ),
    Key(
        name="listen",
        kind=Listen(),
        example="127.0.0.1:7411",
        help="Where programs connect (the public endpoint). Port 0: the system chooses.",
    ),
    Key(
        name="public_url",
        kind=Url(),
        example="https://mcp.example.com",
        help="How clients reach the public endpoint, when that differs from `listen` (a proxy in front).",
    ),
    Key(
        name="operator_listen",
        kind=Listen(),
        example="127.0.0.1:7412",
        help="Where people connect (the operator endpoint). Never the address of the public endpoint.",
    ),
    Key(
        name="operator_url",
        kind=Url(),
        example="https://operator.example.com",
        help="How people reach the operator endpoint, when that differs from `operator_listen`.",
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
        example=["https://app.example.com"],
        help="Web pages that may call this node, besides those on this machine.",
    ),
    Key(
        name="trusted_proxies",
        kind=Many(item=Network()),
        example=["10.0.0.0/8"],
        help="Proxies whose word on the caller's address is believed (Forwarded, X-Forwarded-For).",
    ),
)

_AUTH = keys_of(
    AuthPlan,
    Key(
        name="anonymous",
        example="never",
        help="Which programs may call without a token: those on this machine, none, or all that can connect.",
    ),
    Key(
        name="issuers",
        kind=Many(item=ISSUER),
        example=[{"name": "corp", "url": "https://login.example.com", "scopes": {"mcp.use": "write"}}],
        help="Authorization servers whose access tokens the public endpoint accepts, as client:NAME/SUBJECT@CLIENT_ID.",
    ),
    Key(name="token_days", kind=Whole(low=1, high=3650), example=90, help="How long a new token is valid, in days."),
)

_ACCESS = keys_of(
    AccessRule,
    Key(
        name="who",
        kind=Many(item=Text(), least=1),
        example=[
            "client:ci",
            "client:team-*",
            "client:corp/*@build",
            "role:corp/reader",
            "certificate:edge.example.com",
            "uid:1000",
        ],
        help="Principals (globs) the entry is for; the first entry that holds the caller applies.",
    ),
    Key(name="scope", example="read", help="The most a caller may do."),
    Key(name="tools", kind=_GLOBS, example=["files.read_*"], help="Tools (globs) the caller may use."),
    Key(name="names", example="qualified", help="Form of the tool names for these callers."),
    Key(name="surface", example="aql", help="What /mcp shows these callers."),
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

_ANCHOR = keys_of(
    AnchorPlan,
    Key(
        name="name",
        kind=ISSUER.fields["name"],
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
        example=["files.*"],
        help="Tools (globs over qualified names) whose calls it may approve.",
    ),
    Key(
        name="speaks_for",
        kind=Many(item=DnsName()),
        example=["edge01.example.com"],
        help="DNS names it may prove for subservers that register (their `authority`).",
    ),
)

_MCP = keys_of(
    McpPlan,
    Key(
        name="surface",
        example="auto",
        help="What /mcp shows: every tool (flat), a few AQL endpoints (aql), one (aql-single), or by size (auto).",
    ),
    Key(
        name="names",
        example="safe",
        help="Form of tool names: with dots, safe for clients that refuse dots, or by client.",
    ),
    Key(name="meta_pass", example="none", help="Whether servers' own _meta keys reach the client."),
    Key(name="latency_meta", example=True, help="Whether results say how long the call took."),
    Key(
        name="session_idle_s",
        kind=Seconds(low=1, high=MONTH_S),
        example=3600,
        help="After how many idle seconds a client's session ends.",
    ),
    Key(
        name="list_wait_s",
        kind=Seconds(low=0, high=600),
        example=30,
        help="How long lists wait for servers that were just started; then they name what is missing.",
    ),
)

_AX = keys_of(
    AxPlan,
    Key(
        name="tree",
        kind=TREE,
        example="plant",
        help="Which tree the node belongs to; within one tree a subserver has one parent.",
    ),
    Key(
        name="parents",
        kind=Many(item=PARENT),
        example=[{"url": "wss://hub.example.com/ax", "segment": "edge"}],
        help="Aggregators to register with: the first of each tree, and the others as its backups.",
    ),
    Key(
        name="children",
        kind=Many(item=CHILD),
        example=[{"command": "python greenhouse.py", "segment": "greenhouse"}],
        help="Subservers to start as children, which register over their stdio.",
    ),
    Key(
        name="dial_back",
        kind=GLOB_URLS,
        example=["https://*.example.com/*"],
        help="Where the node may connect to when a subserver registers by POST and names its endpoint.",
    ),
    Key(
        name="socket",
        kind=FilePath(),
        example="/run/interlock/ax.sock",
        help="A Unix socket for subservers of this machine; [[access]] says which users may register (uid:1000).",
    ),
    Key(
        name="require_proof",
        example="always",
        help="For which subservers a claim of authority must be proved: those with mutable tools, all, or none.",
    ),
    Key(
        name="heartbeat_min_ms",
        kind=Whole(low=10, high=3_600_000),
        example=1000,
        help="The shortest heartbeat interval a subserver may promise, in milliseconds.",
    ),
    Key(
        name="max_hops",
        kind=Whole(low=1, high=255),
        example=8,
        help="Tools that are more aggregators away are withheld.",
    ),
    Key(
        name="notify_per_s",
        kind=Whole(low=1, high=1_000_000),
        example=500,
        help="How many notifications a second are passed on for one subserver.",
    ),
    Key(
        name="notify_buffer",
        kind=Whole(low=1, high=1_000_000),
        example=5000,
        help="How many more wait, before the oldest are dropped and counted.",
    ),
    Key(
        name="transport_classes",
        kind=Many(item=Text(pattern=PRIVATE_CLASS, what='a private class, "x-" and a-z, 0-9, _ and -')),
        example=["x-lora"],
        help="Private transport classes that subservers and tools may name.",
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
        example=300,
        help="How many seconds the tool list of a server that announces no changes stays valid.",
    ),
)

_DEGRADED = keys_of(
    DegradedPlan,
    Key(
        name="enabled",
        example=False,
        help="Whether the tools of a lost subserver stay listed, as degraded, for a while.",
    ),
    Key(name="grace_s", kind=Seconds(low=0, high=MONTH_S), example=60, help="How long they stay."),
)

_DEVICES = keys_of(
    DevicesPlan,
    Key(
        name="mode",
        example="on_behalf",
        help="Where devices are registered: here, as servers of this node (aggregate), or each of them at the parents"
        " of this node, which speaks and beats for it (on_behalf).",
    ),
    unwritten=("described",),
)

_GATE = keys_of(
    GatePlan,
    Key(
        name="mode",
        example="defer",
        help="Whether calls that cannot be undone wait for a person: all, those no node below holds, or none.",
    ),
    Key(
        name="also",
        kind=_GLOBS,
        example=["mail.send_*"],
        help="Further tools (globs) whose calls wait for a person, whatever they say of themselves.",
    ),
    Key(
        name="unannotated",
        example="allow",
        help="Tools that do not say what they do: wait until an operator has said it once, or are called at once.",
    ),
    Key(
        name="show_holder",
        example=True,
        help="Whether clients are shown the id and the page of a node below that holds their call.",
    ),
)

_APPROVALS = keys_of(
    ApprovalsPlan,
    Key(
        name="expiry_s",
        kind=Seconds(low=30, high=86_400),
        example=900,
        help="How long a held call waits for a decision.",
    ),
    Key(
        name="redeem_s",
        kind=Seconds(low=30, high=86_400),
        example=60,
        help="How long an approved call may then be made; never longer than its proof is good.",
    ),
    Key(
        name="max_pending",
        kind=Whole(low=1, high=10_000),
        example=20,
        help="How many calls of one caller may wait at once.",
    ),
    Key(
        name="channels",
        kind=Many(item=Choice(values=get_args(Channel))),
        example=["cli", "os_dialog"],
        help="Where operators hear that something waits: the page, `interlock approvals --watch`,"
        " a notification on this machine's desktop, a command, a webhook, a mail.",
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
        kind=TEXT,
        example="a-long-random-text",
        help="The key under which the receiver checks that it comes from here (HMAC-SHA256). ${env:NAME} is replaced.",
    ),
    Key(
        name="smtp_url",
        kind=MailServer(references=True),
        example="smtps://interlock:${env:MAIL_PASSWORD}@mail.example.com",
        help="For the channel smtp: the mail server. To another machine always over TLS. ${env:NAME} is replaced.",
    ),
    Key(
        name="smtp_from",
        kind=_MAIL_ADDRESS,
        example="interlock@example.com",
        help="For the channel smtp: who the mails are from.",
    ),
    Key(
        name="smtp_to",
        kind=Many(item=_MAIL_ADDRESS),
        example=["ops@example.com"],
        help="For the channel smtp: who they go to.",
    ),
)

_BUDGET = keys_of(
    BudgetPlan,
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
        example={"metered": 2, "expensive": 50},
        help="How many units a call costs, by the cost_class of its tool.",
    ),
)

_LIMITS = keys_of(
    LimitsPlan,
    Key(
        name="message_bytes",
        kind=MESSAGE_SIZE,
        example="64Mi",
        help="The largest message taken from anybody: a body, a line, a frame.",
    ),
    Key(
        name="calls_in_flight",
        kind=Whole(low=1, high=1_000_000),
        example=256,
        help="How many calls may wait for servers at once.",
    ),
    Key(
        name="own_processes",
        kind=Whole(low=1, high=100_000),
        example=32,
        help="How many processes principals, sessions and tenants may have of their own, at all servers together.",
    ),
    Key(
        name="sandbox_memory_mb",
        kind=Whole(low=16, high=1024**2),
        example=1024,
        help="How much memory all processes in one sandbox may use, unless a driver's runner says it.",
    ),
    Key(
        name="sandbox_processes",
        kind=Whole(low=16, high=1_000_000),
        example=256,
        help="How many processes and threads may run in one sandbox.",
    ),
    Key(
        name="sandbox_disk_mb",
        kind=Whole(low=16, high=1024**2),
        example=512,
        help="How much a sandboxed server may keep in its own home, temporary files included.",
    ),
)

_STORE = keys_of(
    StorePlan,
    Key(
        name="backend",
        example="sqlite",
        help="What remembers: a file in the data folder, or NATS JetStream, which replicas of this node share.",
    ),
    Key(
        name="nats_url",
        kind=NatsUrls(),
        example=["tls://nats-1.example.com:4222", "tls://nats-2.example.com:4222"],
        help="For the backend nats: its servers, nats:// or tls://, in a list or with commas between.",
    ),
    Key(
        name="nats_secret",
        kind=Text(references=True, stored=True),
        example="${secrets.nats}",
        help="For the backend nats: user:password, a token, an nkey seed or the text of a credentials file."
        " ${env:NAME} and ${secrets.NAME} are replaced.",
    ),
    Key(
        name="nats_ca_file",
        kind=FilePath(),
        example="/etc/interlock/nats-ca.pem",
        help="For the backend nats: who may vouch for its servers, where the system's own authorities do not.",
    ),
    Key(
        name="nats_replicas",
        kind=Whole(low=1, high=5),
        example=3,
        help="For the backend nats: on how many servers of the cluster each thing is kept.",
    ),
    Key(
        name="audit_days",
        kind=Whole(low=0, high=36500),
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
        Section(name="node", shape="table", keys=_NODE, help="The node and its two endpoints."),
        Section(name="auth", shape="table", keys=_AUTH, help="Who may come in."),
        Section(name="access", shape="list", keys=_ACCESS, help="What a caller may do; without an entry: write."),
        Section(
            name="anchor",
            field="anchors",
            shape="list",
            keys=_ANCHOR,
            one_of=KEY_SOURCES,
            help="Whose signatures are believed, and for what.",
        ),
        Section(name="mcp", shape="table", keys=_MCP, help="What MCP clients see."),
        Section(name="aql", shape="table", keys=AQL, help="Operations behind a few endpoints (MCP-AQL)."),
        Section(name="ax", shape="table", keys=_AX, help="The tree."),
        Section(name="degraded", shape="table", keys=_DEGRADED, help="What happens to the tools of a lost subserver."),
        Section(name="gate", shape="table", keys=_GATE, help="What waits until a person agrees."),
        Section(
            name="approvals", shape="table", keys=_APPROVALS, help="What waits for a decision, and who hears of it."
        ),
        Section(name="servers", shape="segments", keys=SERVERS, help="The MCP servers, by segment."),
        Section(name="drivers", shape="table", keys=DRIVERS, help="Servers that are declared as files."),
        Section(
            name="tool",
            field="tools",
            shape="list",
            keys=TOOL,
            help="What is known better than a server says about its tools.",
        ),
        Section(name="safety", shape="table", keys=SAFETY, help="Agents whose steps are reported and judged."),
        Section(name="rooms", shape="table", keys=ROOMS, help="What holds for every room (MCPx)."),
        Section(name="room", shape="list", keys=ROOM, help="A room: a topic that agents, people and robots share."),
        Section(name="devices", shape="table", keys=_DEVICES, help="Microcontrollers and PLCs."),
        Section(name="registry", shape="table", keys=REGISTRY, help="The registry of tool surface names."),
        Section(name="budget", shape="table", keys=_BUDGET, help="What a registered subserver may use."),
        Section(name="limits", shape="table", keys=_LIMITS, help="What is too much."),
        Section(name="store", shape="table", keys=_STORE, help="Where the node remembers."),
    )
}
