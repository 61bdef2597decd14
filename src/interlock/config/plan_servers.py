"""Sections of the plan about servers: [servers.SEGMENT], [drivers], [[tool]] and what they are compiled into.

A person writes the keys of `ServerTable`: one of command, npm, pypi, docker or url, and what goes with it. The reader
compiles them into a `ServerPlan`, whose `reach` is either a program that the node starts (`Spawn`) or a server that it
connects to (`Dial`). Drivers are compiled into the same two, so that links know only these.

A value of `env` or `headers` may still hold ${secrets.NAME}: a plan never contains a stored secret. What ${env:NAME}
put into a plan is remembered in `secrets` of the server, and masked wherever the plan is shown.
"""

from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import msgspec

from interlock.aql.protocol.classification import Trust
from interlock.aql.protocol.tool_operations import OperationRule
from interlock.ax.protocol.budget import LIMIT_MAX, BudgetLimits
from interlock.ax.protocol.capability import (
    PRIVATE_CLASS,
    TRANSPORT_CLASSES,
    AuthScope,
    Availability,
    Consistency,
    CostClass,
    LatencyClass,
)
from interlock.config.addresses import Protected, Url
from interlock.config.keys import Key, SecretPart, StructTable
from interlock.config.order import (
    ADDED_IS_LOOSER,
    ANY_CHANGE,
    FALSE_IS_LOOSER,
    FILE_CONTENT,
    FREE,
    LESS_IS_LOOSER,
    MORE_IS_LOOSER,
    REMOVED_IS_LOOSER,
    TRUE_IS_LOOSER,
    Order,
    fields,
    if_set,
    ranked,
    table,
)
from interlock.config.plan_agents import OPERATION
from interlock.config.problems import At
from interlock.config.value_types import Choice, CommandLine, Headers, Many, Seconds, Size, Table, Text, Version, Whole
from interlock.net.protocol.egress import ENTRY

MONTH_S: Final = 31 * 24 * 3600
MESSAGE_SIZE: Final = Size(1024, 1024**3)
OAUTH_SCOPE: Final = r"[\x21\x23-\x5b\x5d-\x7e]+"  # RFC 6749 3.3
# A leading "-" would be an option to the installer, so no package or image may start with one.
NPM_PACKAGE: Final = r"(?:@[a-z0-9~][a-z0-9._~-]*/)?[a-z0-9~][a-z0-9._~-]*(?:@[0-9A-Za-z^~][0-9A-Za-z.+_-]*)?"
PYPI_PACKAGE: Final = (
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:\[[A-Za-z0-9][A-Za-z0-9._,-]*\])?(?:==[0-9A-Za-z][0-9A-Za-z.!+_-]*)?"
)
DOCKER_IMAGE: Final = r"[A-Za-z0-9][A-Za-z0-9._/:-]*(?:@sha256:[0-9a-f]{64})?"
TEXT: Final = Text(references=True, empty=True)
ENVIRONMENT: Final = Table(  # of a program that the node starts
    names=r"[^=\x00]+",
    names_are="a name an environment variable can have",
    item=Text(references=True, empty=True, stored=True),
    reserved="INTERLOCK_",  # a node started as a server would read them as its own settings
)
AMOUNT: Final = Whole(0, LIMIT_MAX)
_CALLS: Final = fields(
    max_calls_per_minute=MORE_IS_LOOSER,
    max_mutable_calls_per_session=MORE_IS_LOOSER,
    max_cost_units_per_session=MORE_IS_LOOSER,
)


def _join_budgets(signed: BudgetLimits | None, written: BudgetLimits | None, whole: Any) -> BudgetLimits | None:
    """Return the smaller of the signed and the written limits. None means that there are no limits."""
    if signed is None:
        return written
    joined: BudgetLimits = _CALLS.join(signed, written or BudgetLimits(), whole)
    return joined


CALLS: Final = Order("calls", _join_budgets)
# Where a limit that is not set leaves it to another one: setting it waits.
SET_CALLS: Final = fields(**dict.fromkeys(BudgetLimits.__struct_fields__, if_set(MORE_IS_LOOSER)))
# Keys of a [[tool]] entry that say what a tool does. A key that is missing leaves it to the server.
_CAPABILITY: Final = Order("capability", lambda signed, written, _: _join_capabilities(signed, written))
_EFFECTS: Final = {"mutable": ranked(True, None, False), "reversible": ranked(False, None, True)}


def _join_capabilities(signed: dict[str, str | bool], written: dict[str, str | bool]) -> dict[str, str | bool]:
    """Return the written capability of a tool. An effect, scope or cost that is looser than the signed one gets its
    signed value.
    """
    joined = {}
    for name in (*written, *(each for each in signed if each not in written)):
        order = _EFFECTS.get(name, ANY_CHANGE if name in ("auth_scope", "cost_class") else FREE)
        value = order.join(signed.get(name), written.get(name), None)
        if value is not None:
            joined[name] = value
    return joined


BUDGET: Final = StructTable(BudgetLimits, "a budget", example="budget = { max_calls_per_minute = 60 }", each=AMOUNT)

ToolClass = Literal["read_only", "reversible", "irreversible"]
Share = Literal["auto", "node", "principal", "session"]
DialTransport = Literal["auto", "http", "sse"]
DefinitionPolicy = Literal["accept", "notify", "follow"]
_POLICIES: Final = ranked(*get_args(DefinitionPolicy))

# How a server is reached


class SandboxPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The files, programs and hosts that a server in a sandbox may use.

    `deny` takes precedence over `read` and `write`.
    """

    home: Path  # its private home; made where it is missing
    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    deny: tuple[Path, ...] = ()
    accepted: dict[Path, Path] = {}  # what declared paths really were when somebody accepted them
    # Existing absolute paths among the arguments are read and written too (AIP-security-5).
    from_arguments: bool = False
    egress: tuple[str, ...] = ()  # host names, "*.NAME" and "*"; empty: no network at all
    programs: tuple[str, ...] = ()  # what it may start beside its own runtime
    any_program: bool = False  # it may start whatever it can read
    passed: tuple[str, ...] = ()  # variables of the node's own environment that it gets
    memory_mb: int | None = None
    cpu_ms: int | None = None


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """A package that contains the program of a server. The node installs it before it starts the program."""

    registry: Literal["npm", "pypi"]
    name: str  # with an optional version: "mcp-server-time==2026.10.19", "@scope/server@1.2.3"


class Spawn(msgspec.Struct, frozen=True, kw_only=True, tag="spawn"):
    """A server that the node starts as a child process and talks to over stdio.

    If `package` is set, it is installed first.
    """

    command: tuple[str, ...]  # a driver's may hold ${secrets.NAME}
    env: dict[str, str] = {}  # may hold ${secrets.NAME}
    cwd: Path | None = None
    package: Package | None = None
    sandbox: SandboxPlan | None = None  # None: it may do whatever the node may
    container: SandboxPlan | None = None  # what its container limits it to; its command begins with CONTAINER
    serves: str | None = None  # a URL of this machine where the child answers, in place of stdio: a container's port


# What starts a container, before the options of `container_limits`.
CONTAINER: Final = ("docker", "run", "-i", "--rm")


def container_limits(plan: SandboxPlan) -> tuple[str, ...]:
    """Return the options that limit a container to the files and the network of a plan."""
    network = () if plan.egress else ("--network", "none")
    return (*network, *(word for path in plan.write for word in ("-v", f"{path}:{path}")))


class OAuthPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for the OAuth tokens that the node gets for one server.

    Without them, the node follows the server's own metadata.
    """

    grant: Literal["authorization_code", "client_credentials"] = "authorization_code"
    # The only authorization server that may issue them.
    issuer: Annotated[str | None, Protected()] = None
    client_id: Annotated[str | None, Text(references=True)] = None
    client_secret: Annotated[str | None, Text(references=True, stored=True), SecretPart.VALUE] = None
    private_key: Path | None = None
    # Empty: the scopes that the server asks for.
    scopes: Annotated[tuple[str, ...], Many(Text(OAUTH_SCOPE, "an OAuth scope"))] = ()
    per: Literal["server", "user"] = "server"


def _check_oauth(plan: OAuthPlan, at: At) -> bool:
    """Report OAuth settings that contradict each other. Return True if there are none."""
    has_proof = plan.client_secret is not None or plan.private_key is not None
    if plan.client_secret is not None and plan.private_key is not None:
        at.wrong(f"{at.name} has client_secret and private_key", "keep one of them")
    elif plan.grant == "client_credentials" and (plan.client_id is None or not has_proof):
        hint = "client_secret, or private_key, is what the node proves itself with"
        at.wrong(f"{at.name} with client_credentials needs 'client_id' and a proof", hint)
    elif plan.grant == "client_credentials" and plan.per == "user":
        at.inside("per").wrong(f"{at.name} with client_credentials belongs to no single user", "leave 'per' out")
    else:
        return True
    return False


class Dial(msgspec.Struct, frozen=True, kw_only=True, tag="dial"):
    """A server that the node reaches over HTTP: its URL, and the headers and tokens to send."""

    url: str
    headers: dict[str, str] = {}  # may hold ${secrets.NAME}
    query: dict[str, str] = {}  # joins the url when it is dialled; may hold ${secrets.NAME}
    transport: DialTransport = "auto"
    auth: OAuthPlan | None = None
    egress: tuple[str, ...] | None = None  # hosts that may be asked for its sake, as in SandboxPlan; None: any


PROGRAMS: Final = ("command", "npm", "pypi")
REACHES: Final = (*PROGRAMS, "docker", "url")  # the keys of which a server has exactly one


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a server that do not depend on how the node reaches the server.

    Keys:
        roots: The folders it is told as roots, whatever clients say. Default: files, else the folders in args.
        timeout_s: How long a call may be silent whose tool declares no latency class. Progress starts it anew.
        share: Who uses one process or connection: all (node), a principal, a session. auto: all, until it matters.
        max_processes: How many processes principals or sessions may have of their own.
        idle_timeout_s: How long the process or connection of a principal or session may be idle until it ends.
        result_bytes: The largest answer taken from it; a larger one fails its call alone. Default:
            limits.message_bytes.
        definitions: When its tools, prompts, templates or instructions change or are added. accept: clients see what a
            person last accepted. notify: they see the change at once, and it waits in the inbox. follow: no one is
            asked, unless the change loosens what is held.
    """

    roots: Annotated[tuple[Path, ...] | None, Key(["~/notes"], goes_with=REACHES)] = None
    timeout_s: Annotated[float, Seconds(1, MONTH_S), Key(900, goes_with=REACHES)] = 300
    share: Annotated[Share, Key("session", goes_with=REACHES)] = "auto"
    max_processes: Annotated[int, Whole(1, 10_000), Key(4, goes_with=(*PROGRAMS, "docker"))] = 16
    idle_timeout_s: Annotated[float, Seconds(1, MONTH_S), Key(300, goes_with=REACHES)] = 1800
    result_bytes: Annotated[int | None, MESSAGE_SIZE, Key("64Mi", goes_with=REACHES)] = None
    definitions: Annotated[DefinitionPolicy, Key("notify", goes_with=REACHES)] = "accept"


class ServerTable(ServerSettings, frozen=True, kw_only=True):
    """The keys of [servers.SEGMENT] as a person writes them. The reader compiles them into a ServerPlan.

    Keys:
        command: A program to start: one string, split like a shell does it, or a list.
        npm: An npm package to install and start.
        pypi: A PyPI package to install and start.
        docker: A container image to start with docker run.
        url: A server that is already running.
        args: Arguments of the program. ${env:NAME} is replaced.
        env: Environment variables of the program. ${env:NAME} and ${secrets.NAME} are replaced.
        cwd: The folder the program starts in. Default: workspace.
        headers: Headers sent with every request. ${env:NAME} and ${secrets.NAME} are replaced.
        auth: How OAuth tokens for the server are had. Default: a person agrees on the page the server names.
        egress: Start it in a sandbox, from which it reaches these hosts and no other. Empty: none.
        files: Start it in a sandbox, in which it reads and writes these files and folders beside its own.
        transport: With url: http (streamable), sse (2024-11-05) or auto. A program speaks stdio.
        tools: What a tool's effect is, by the name the server gives it.
    """

    command: Annotated[tuple[str, ...] | None, CommandLine(), Key("python -m my_server")] = None
    npm: Annotated[
        str | None,
        Text(NPM_PACKAGE, "an npm package", hint='write "@scope/name" or "name@1.2.3"'),
        Key("@modelcontextprotocol/server-memory"),
    ] = None
    pypi: Annotated[
        str | None, Text(PYPI_PACKAGE, "a PyPI package", hint='write "name" or "name==1.2.3"'), Key("mcp-server-time")
    ] = None
    docker: Annotated[
        str | None, Text(DOCKER_IMAGE, "a container image", hint='write "owner/image:tag"'), Key("mcp/fetch")
    ] = None
    url: Annotated[str | None, Url(outward=True), Key("https://mcp.example.com/mcp")] = None
    args: Annotated[
        tuple[str, ...], Many(TEXT), Key(["--local-timezone", "Europe/Berlin"], goes_with=(*PROGRAMS, "docker"))
    ] = ()
    env: Annotated[
        dict[str, str], ENVIRONMENT, Key({"LOG_LEVEL": "info"}, goes_with=(*PROGRAMS, "docker")), SecretPart.VALUE
    ] = {}
    cwd: Annotated[Path | None, Key("servers", goes_with=PROGRAMS)] = None
    headers: Annotated[dict[str, str], Headers(), Key({"X-Team": "blue"}, goes_with=("url",)), SecretPart.VALUE] = {}
    auth: Annotated[
        OAuthPlan | None,
        StructTable(
            OAuthPlan,
            "'auth'",
            where="[servers.SEGMENT.auth]",
            needs={"client_secret": ("client_id",), "private_key": ("client_id",)},
            check=_check_oauth,
        ),
        Key(
            {"grant": "client_credentials", "client_id": "node", "client_secret": "${secrets.CRM}"}, goes_with=("url",)
        ),
    ] = None
    egress: Annotated[
        tuple[str, ...] | None,
        Many(
            Text(
                ENTRY.pattern,
                "the name of a host, *.NAME or *, with :PORT or without",
                hint="without path or network mask",
            )
        ),
        Key(["api.example.com"], goes_with=(*PROGRAMS, "docker")),
    ] = None
    files: Annotated[tuple[Path, ...] | None, Key(["~/notes"], goes_with=(*PROGRAMS, "docker"))] = None
    transport: Annotated[Literal["auto", "http", "sse", "stdio"], Key("auto", goes_with=REACHES)] = "auto"
    tools: Annotated[
        dict[str, ToolClass],
        Table(names=r"[^\x00]+", names_are="a tool's name", item=Choice(get_args(ToolClass))),
        Key({"delete_file": "irreversible"}, goes_with=REACHES),
    ] = {}


class ServerPlan(ServerSettings, frozen=True, kw_only=True):
    """The settings of a server, compiled from its table: its segment in the namespace, how it is reached, and how it is
    used.
    """

    segment: str
    reach: Spawn | Dial
    classes: dict[str, ToolClass] = {}  # by the name under which the server lists the tool
    secrets: tuple[str, ...] = ()  # what ${env:NAME} put into `reach`; never shown
    unset: tuple[str, ...] = ()  # missing environment variables; the server is not started


# A tool without a class says itself what it does, or is classified.
_CLASSES: Final = table(ranked("irreversible", None, "reversible", "read_only"), None)
_SHARES: Final = ranked("session", "principal", "auto", "node")


class _SignedServer(msgspec.Struct, frozen=True, kw_only=True):
    """Stored settings of a server in the configuration that a person signed: the settings that restrict the server,
    without secrets.
    """

    classes: dict[str, ToolClass]
    share: Share
    sandbox: dict[str, Any] | None
    egress: tuple[str, ...] | None
    container: dict[str, Any] | None = None
    definitions: DefinitionPolicy = "accept"


def _remember_servers(servers: tuple[ServerPlan, ...], _: object) -> dict[str, _SignedServer]:
    return {each.segment: _signed_server(each) for each in servers}


def _signed_server(server: ServerPlan) -> _SignedServer:
    sandboxes = (server.reach.sandbox, server.reach.container) if isinstance(server.reach, Spawn) else (None, None)
    sandbox, container = (None if each is None else msgspec.to_builtins(each, enc_hook=str) for each in sandboxes)
    return _SignedServer(
        classes=server.classes,
        share=server.share,
        sandbox=sandbox,
        container=container,
        egress=server.reach.egress if isinstance(server.reach, Dial) else None,
        definitions=server.definitions,
    )


def _join_servers(signed: dict[str, Any], written: tuple[ServerPlan, ...], _: object) -> tuple[ServerPlan, ...]:
    """Return the written servers. Tool classes, sandboxes and hosts that are looser than the signed ones get their
    signed values.

    A server that was not signed may have any sandbox, because it may have none.
    """
    return tuple(_join_server(signed.get(each.segment), each) for each in written)


def _join_server(stored: Any, written: ServerPlan) -> ServerPlan:
    reach = written.reach
    if stored is None:
        signed = _SignedServer(classes={}, share=written.share, sandbox=None, egress=None)
    else:
        signed = msgspec.convert(stored, _SignedServer, from_attributes=True)
    if isinstance(reach, Spawn):
        for limits in (signed.sandbox, signed.container):
            reach = reach if limits is None else _join_limits(limits, reach)
    elif isinstance(reach, Dial) and signed.egress is not None:
        allowed = signed.egress
        hosts = allowed if reach.egress is None else tuple(each for each in reach.egress if each in allowed)
        reach = msgspec.structs.replace(reach, egress=hosts)
    return msgspec.structs.replace(
        written,
        reach=reach,
        classes=_CLASSES.join(signed.classes, written.classes, written),
        share=_SHARES.join(signed.share, written.share, written),
        definitions=_POLICIES.join(signed.definitions, written.definitions, written),
    )


def _join_limits(stored: dict[str, Any], reach: Spawn) -> Spawn:
    """Return a program whose sandbox or container permits no more than the one that was signed."""
    signed = msgspec.convert(stored, SandboxPlan, dec_hook=lambda wanted, value: wanted(value))
    written = reach.container
    joined = _join_sandboxes(signed, reach.sandbox if written is None else written)
    if written is None:
        return msgspec.structs.replace(reach, sandbox=joined)
    rest = reach.command[len(CONTAINER) + len(container_limits(written)) :]
    return msgspec.structs.replace(reach, container=joined, command=(*CONTAINER, *container_limits(joined), *rest))


def _join_sandboxes(signed: SandboxPlan, written: SandboxPlan | None) -> SandboxPlan:
    return signed if written is None else _SANDBOX.join(signed, written, None)


_SANDBOX: Final = fields(
    home=FREE,
    read=ADDED_IS_LOOSER,
    write=ADDED_IS_LOOSER,
    deny=REMOVED_IS_LOOSER,
    accepted=ANY_CHANGE,
    from_arguments=TRUE_IS_LOOSER,
    egress=ADDED_IS_LOOSER,
    programs=ADDED_IS_LOOSER,
    any_program=TRUE_IS_LOOSER,
    passed=ADDED_IS_LOOSER,
    memory_mb=MORE_IS_LOOSER,
    cpu_ms=MORE_IS_LOOSER,
)
SERVERS: Final = Order("servers", _join_servers, _remember_servers)

# [drivers]

_ID: Final = r"[a-z0-9][a-z0-9.-]{1,79}"  # AIP-30 and AIP-14 give drivers and contracts the same form
_HOST: Final = Text(
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\]",
    "a host's name or address",
    hint="without scheme, port and path, for instance mcp.lan",
)
_TAGS: Final = Many(Text(r"[a-z0-9][a-z0-9-]{0,63}", "a policy tag", hint="in lower case, for instance self-hosted"))
_REGION: Final = Text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "a region", hint='for instance "EU"')
_SANDBOXES: Final = Table(names=_ID, names_are="a driver's id", item=Choice(("off",)))
_RESULT_SIZES: Final = Table(names=_ID, names_are="a driver's id", item=MESSAGE_SIZE)
_DEFINITIONS: Final = Table(names=_ID, names_are="a driver's id", item=Choice(get_args(DefinitionPolicy)))
_PINS: Final = Table(
    names=_ID,
    names_are="a contract's id",
    item=Text(rf"{_ID}(?:@[0-9]{{1,9}})?", "a driver's id", hint="for instance filesystem-mcp"),
)


class PolicyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The policy that decides by tags which drivers may be used (AIP-30).

    If `allow` is not empty, a driver needs one of its tags. A driver with a tag in `deny` is never used.
    """

    allow: Annotated[tuple[str, ...], _TAGS] = ()
    deny: Annotated[tuple[str, ...], _TAGS] = ()


class DriversPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of drivers, which are servers declared in files (AIP-32): their folders and the operator's additions.

    Keys:
        paths: Further folders of drivers, searched after .drivers in the workspace and the person's own.
        registration: Whether a driver's server is started and checked at once, or when it is first called.
        idle_timeout_s: After how many seconds without a call a driver's server is stopped.
        on_mismatch: When a server's tool does not fit its contract: the whole driver is rejected, or only that tool.
        sandbox: Drivers that run without a sandbox. It is shown in lists and written to the audit log.
        result_bytes: The largest answer taken from a driver's server; a larger one fails its call alone.
        definitions: When the tools of a driver's server change that no contract describes: as in [servers.SEGMENT].
        insecure_hosts: Hosts of remote drivers that may be reached over plain http.
        ca_file: Further CA certificates (PEM) for remote drivers.
        region: Where this node runs: what the region self-hosted of a driver means.
        policy: Which drivers may serve, by their policy tags: only those with one of allow, none with one of deny.
        pins: The driver that serves a contract, where several could.
        trust_workspace: Whether drivers of the workspace need no `interlock drivers trust NAME`.
        allow_unverified_install: Whether a download without a checksum may be installed, and a Python package without a
            wheel be built.
        npx: Whether npm packages are run with npx instead of being installed.
        dev: Whether a change that needs a new major version of a driver is only warned of.
    """

    paths: Annotated[tuple[Path, ...], Key(["/srv/drivers"]), FREE] = ()
    # Computed: <config>/interlock/drivers, which holds the person's drivers for every workspace.
    own: Annotated[Path | None, FREE] = None
    registration: Annotated[Literal["eager", "lazy"], Key("lazy"), FREE] = "eager"
    idle_timeout_s: Annotated[float, Seconds(1, MONTH_S), Key(60), FREE] = 300
    on_mismatch: Annotated[Literal["reject", "drop_binding"], Key("drop_binding"), ranked("reject", "drop_binding")] = (
        "reject"
    )
    sandbox: Annotated[dict[str, Literal["off"]], _SANDBOXES, Key({"legacy-mcp": "off"}), ADDED_IS_LOOSER] = {}
    result_bytes: Annotated[dict[str, int], _RESULT_SIZES, Key({"files-mcp": "64Mi"}), FREE] = {}
    definitions: Annotated[
        dict[str, DefinitionPolicy], _DEFINITIONS, Key({"files-mcp": "notify"}), table(_POLICIES, "accept")
    ] = {}
    insecure_hosts: Annotated[tuple[str, ...], Many(_HOST), Key(["mcp.lan"]), ADDED_IS_LOOSER] = ()
    ca_file: Annotated[Path | None, Key("tls/company-ca.pem"), FILE_CONTENT] = None
    region: Annotated[str | None, _REGION, Key("EU"), ANY_CHANGE] = None
    policy: Annotated[
        PolicyPlan,
        StructTable(PolicyPlan, "the policy on drivers", example='policy = { deny = ["third-party-api"] }'),
        Key({"deny": ["third-party-api"]}),
        fields(allow=ANY_CHANGE, deny=REMOVED_IS_LOOSER),
    ] = PolicyPlan()
    pins: Annotated[dict[str, str], _PINS, Key({"fs.read": "filesystem-mcp"}), ANY_CHANGE] = {}
    trust_workspace: Annotated[bool, Key(True), TRUE_IS_LOOSER] = False
    allow_unverified_install: Annotated[bool, Key(True), TRUE_IS_LOOSER] = False
    npx: Annotated[bool, Key(True), TRUE_IS_LOOSER] = False
    dev: Annotated[bool, Key(True), TRUE_IS_LOOSER] = False


# [[tool]]

_TRANSPORT: Final = "|".join((*(each.id for each in TRANSPORT_CLASSES), PRIVATE_CLASS))


class ToolCapability(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a tool, such as `mutable`, that a [[tool]] entry sets. They override what the server of the
    tool says (MCP-AX 9.1).

    Keys:
        latency_class: How long a call usually takes.
        consistency: What a read after a write sees.
        mutable: Whether a call changes anything.
        reversible: Whether what a call changed can be undone.
        idempotent: Whether a repeated call changes nothing more.
        transport: How the tool is reached.
        auth_scope: The scope a caller needs.
        cost_class: What a call costs.
        availability: When the tool can be called.
        schema_version: Version of the tool's definition.
    """

    latency_class: Annotated[LatencyClass | None, Key("slow")] = None
    consistency: Annotated[Consistency | None, Key("eventual")] = None
    mutable: Annotated[bool | None, Key(False)] = None
    reversible: Annotated[bool | None, Key(True)] = None
    idempotent: Annotated[bool | None, Key(True)] = None
    transport: Annotated[
        str | None,
        Text(_TRANSPORT, "a transport class", hint="such as native, or a private one as x-lora"),
        Key("native"),
    ] = None
    auth_scope: Annotated[AuthScope | None, Key("admin")] = None
    cost_class: Annotated[CostClass | None, Key("metered")] = None
    availability: Annotated[Availability | None, Key("best_effort")] = None
    schema_version: Annotated[str | None, Version(), Key("1.2.0")] = None


class ToolRule(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of [[tool]]: settings for the tools whose names match a glob.

    Only the first entry whose glob matches the qualified name of a tool applies to the tool.

    Keys:
        match: Qualified tool name (glob); the first entry that matches applies.
        hide: Whether clients do not see the tool.
        pin: Whether the tool, once its definition changes, is withheld until an operator accepts the change.
        cost_units: How many units a call costs. Default: what units in [budget] says of its cost_class.
        budget: How much of each of these tools may be used, by all callers together.
        trust: How far the tool's server is trusted (MCP-AQL); a low trust denies dangerous operations.
        aql: What is known of the tool's operation (MCP-AQL): name, category, family, danger and more.
    """

    match: Annotated[str, Key("files.write_*"), ANY_CHANGE]
    capability: Annotated[dict[str, str | bool], _CAPABILITY] = {}  # what is written of the keys of `ToolCapability`
    hide: Annotated[bool, Key(True), FALSE_IS_LOOSER] = False
    pin: Annotated[bool, Key(True), FALSE_IS_LOOSER] = False
    cost_units: Annotated[int | None, AMOUNT, Key(5), LESS_IS_LOOSER] = None
    budget: Annotated[BudgetLimits | None, BUDGET, Key({"max_calls_per_minute": 10}), CALLS] = None
    # None: decided by where the tool comes from
    trust: Annotated[Trust | None, Key("certified"), ANY_CHANGE] = None
    aql: Annotated[OperationRule | None, OPERATION, Key({"category": "READ"}), ANY_CHANGE] = None
