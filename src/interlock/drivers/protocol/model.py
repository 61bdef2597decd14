"""What a DRIVER.md, a TOOL.md and a SECRETS.md say, as values. The modules of `files` read them.

The fields have the names of the files, except: `Driver.connection` is connection_options, `Driver.cost`, `retry` and
`timeout_ms` are the *_override fields, and the content of metadata.interlock has fields of its own (`Driver.interlock`,
`ToolBinding.result_parse`, `Contract.listed_as`). Defaults are those of the specification, or of our decision where it
is silent. A field that was not written and has no default is None.

A value is valid in itself. Whether the contracts, secrets and programs that it names exist is not known here.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from interlock.drivers.protocol.kinds import ServerBlock, Transport
from interlock.drivers.protocol.problems import Places
from interlock.drivers.protocol.server_name import exposed_segment

JsonObject = Mapping[str, Any]

CostClass = Literal["trivial", "metered", "expensive"]
Isolation = Literal["driver", "tenant", "user"]

PROCESSES_MAX: Final = 16  # AIP-tenant-2


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a call, which decides between drivers of the same contract (AIP-30.resolve-5)."""

    cost_class: CostClass | None = None
    cost_units_per_call: float | None = None  # millicents
    currency: str | None = None


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of repeating failed calls."""

    max_attempts: int
    backoff: Literal["fixed", "exponential"] | None = None
    initial_ms: int | None = None


class Narrowing(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of the contract that a driver does not serve (AIP-30.implements-4)."""

    drop_inputs: tuple[str, ...] = ()
    drop_outputs: tuple[str, ...] = ()


class Mapped(msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from"}):
    """The object form of `mapping`: the key is the new name, `source` (written `from`) the contract's input."""

    source: str
    transform: str | None = None


class ResultParse(msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from", "form": "as"}):
    """The block result_parse: which part of a result is text to read, and how (AIP-extract-8)."""

    source: Literal["auto", "structured", "text", "content", "result"] = "auto"
    form: Literal["text", "json", "python_literal", "lines", "records"] | None = None
    pattern: str | None = None
    into: str | None = None


class ToolBinding(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of implements[]: a contract, and the server's tool that serves it."""

    index: int  # its place in implements[]
    tool: str  # as written: a path, or a contract's id
    version: str  # an npm range the contract's version is in
    tool_name: str
    argument_mapping: Mapping[str, str] = {}
    result_extract: str = "$"
    schema_narrowing: Narrowing = Narrowing()
    mapping: Mapping[str, str | Mapped] = {}
    cost: Cost | None = None
    timeout_ms: int | None = None
    retry: Retry | None = None
    result_parse: ResultParse | None = None
    result_wrap: str | None = None
    text_fallback: bool = True
    argument_defaults: JsonObject = {}
    context_arguments: Mapping[str, str] = {}
    metadata: JsonObject = {}

    @property
    def pointer(self) -> str:
        return f"/implements/{self.index}"


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt of the server that the node offers (AIP-front-5)."""

    name: str
    integrate_as: Literal["skill_block", "raw"]
    description: str | None = None
    skill_ref: str | None = None


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """A resource of the server that the node offers (AIP-front-6)."""

    uri_template: str
    integrate_as: Literal["ref_kind", "raw"]
    description: str | None = None
    ref_kind_id: str | None = None


class ServerConnection(msgspec.Struct, frozen=True, kw_only=True):
    """The block connection_options (AIP-front-7)."""

    timeout_ms: int = 30_000
    max_retries: int = 3
    keepalive: bool = False


class NetworkAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts that a server may reach, and that may reach it."""

    egress: tuple[str, ...] = ()
    ingress: tuple[str, ...] = ()


class FileAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of this machine that a server may use. `deny` closes paths below the others."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class Programs(msgspec.Struct, frozen=True, kw_only=True):
    """Programs that a server may start."""

    allow: bool = False
    spawn: tuple[str, ...] = ()


class EnvironmentAccess(msgspec.Struct, frozen=True, kw_only=True, rename={"passed": "pass"}):
    """Environment variables that a server gets: those of the host, and fixed ones."""

    passed: tuple[str, ...] = ()  # written `pass`
    set: Mapping[str, str] = {}


class Terminal(msgspec.Struct, frozen=True, kw_only=True):
    """Need for a terminal."""

    required: bool = False


class SandboxBlock(msgspec.Struct, frozen=True, kw_only=True):
    """The block sandbox of AIP-29. A part that is None is not written: the host's default applies."""

    network: NetworkAccess | None = None
    fs: FileAccess | None = None
    exec: Programs | None = None
    env: EnvironmentAccess | None = None
    tty: Terminal | None = None


class HttpProbe(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP request whose status shows that a server or a login is in order."""

    method: Literal["GET", "POST", "HEAD"]
    url: str
    expect_status: int | None = None


class AuthState(msgspec.Struct, frozen=True, kw_only=True):
    """Places in which a login keeps its state."""

    paths: tuple[str, ...] = ()
    env: tuple[str, ...] = ()


class CompletesWhen(msgspec.Struct, frozen=True, kw_only=True):
    """The sign that a login is complete."""

    cmd: str | None = None
    exit_code: int | None = None
    http: HttpProbe | None = None


class LoginStep(msgspec.Struct, frozen=True, kw_only=True):
    """The way to log in: a command or a page."""

    cmd: str | None = None
    url: str | None = None
    interactive: bool | None = None
    requires_callback_url: bool | None = None
    completes_when: CompletesWhen | None = None


class Refresh(msgspec.Struct, frozen=True, kw_only=True):
    """The way to renew a login, and how often."""

    cmd: str | None = None
    url: str | None = None
    every_s: float | None = None  # written `every`, an ISO 8601 duration


class SecretExpiry(msgspec.Struct, frozen=True, kw_only=True):
    """The sign of an expired login. `secret_use.Detector` reads it."""

    detect: str


class Auth(msgspec.Struct, frozen=True, kw_only=True):
    """The block auth of AIP-30: the driver's inventory of secrets, and logins."""

    ref: str | None = None
    state: AuthState = AuthState()
    login: LoginStep | None = None
    refresh: Refresh | None = None
    expiry: SecretExpiry | None = None


class Install(msgspec.Struct, frozen=True, kw_only=True):
    """A method of installation. Methods are tried in the order written. `options` are the method's own keys."""

    method: str
    options: JsonObject = {}


class VersionCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The check that the installed version is one that the driver supports (AIP-30.version-1)."""

    cmd: str
    parse: str
    range: str
    timeout_ms: int = 5_000


class HealthCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The check that the server works (AIP-30.health-1)."""

    method: Literal["ping", "exec", "http", "noop"]
    cmd: str | None = None
    http: HttpProbe | None = None
    expect_exit: int = 0
    every_s: float | None = None  # written `every`, an ISO 8601 duration
    timeout_ms: int = 5_000


class MachineRequirements(msgspec.Struct, frozen=True, kw_only=True):
    """Properties that a machine must have to run the server (AIP-30.front-5)."""

    os: tuple[Literal["darwin", "linux", "windows"], ...] = ()
    arch: tuple[Literal["x64", "arm64", "x86", "arm"], ...] = ()
    min_disk_mb: float | None = None
    min_memory_mb: float | None = None


class DriverExample(msgspec.Struct, frozen=True, kw_only=True):
    """An example in the words of a user."""

    goal: str
    note: str | None = None
    cmd: str | None = None


class Extensions(msgspec.Struct, frozen=True, kw_only=True):
    """The block metadata.interlock of a driver."""

    idle_timeout_ms: int | None = None  # None: the node's own
    isolation: Isolation = "driver"
    max_processes: int = PROCESSES_MAX
    client_capabilities: tuple[Literal["roots", "sampling", "elicitation"], ...] = ()
    protocol_versions: tuple[str, ...] = ()  # empty: any supported one
    expose: Literal["bound", "all"] = "bound"
    not_secret: tuple[str, ...] = ()
    redact_results: bool = True


class Driver(msgspec.Struct, frozen=True, kw_only=True):
    """A DRIVER.md of kind mcp."""

    name: str
    id: str
    description: str
    version: str
    server: ServerBlock
    transport: Transport
    implements: tuple[ToolBinding, ...]
    protocol_version: str | None = None  # a supported version; None: the latest
    prompts: tuple[Prompt, ...] = ()
    resources: tuple[Resource, ...] = ()
    connection: ServerConnection = ServerConnection()
    network: NetworkAccess | None = None  # None: not written, which is no network for a program we start
    sandbox: SandboxBlock | None = None
    auth: Auth | None = None
    install: tuple[Install, ...] = ()
    version_check: VersionCheck | None = None
    health_check: HealthCheck | None = None
    runner: str | JsonObject | None = None
    region: tuple[str, ...] = ("global",)
    policy_tags: tuple[str, ...] = ()
    cost: Cost | None = None
    timeout_ms: int | None = None
    retry: Retry | None = None
    requires: MachineRequirements = MachineRequirements()
    examples: tuple[DriverExample, ...] = ()
    tags: tuple[str, ...] = ()
    interlock: Extensions = Extensions()
    metadata: JsonObject = {}
    secret_names: tuple[str, ...] = ()  # every NAME of a ${secrets.NAME} and of server.auth.secret, once, in order
    # The extensions of AIP-32 that the file uses, dotted: server.version, metadata.interlock.expose.
    extension_keys: tuple[str, ...] = ()
    places: Places

    @property
    def key(self) -> str:
        """Return the key of the driver in caches, audit and registration: id@major (AIP-30)."""
        return f"{self.id}@{self.version.partition('.')[0]}"

    @property
    def segment(self) -> str:
        """Return the name of the driver's server that people see."""
        return exposed_segment(self.id)


class ContractRequires(msgspec.Struct, frozen=True, kw_only=True):
    """Needs of a contract. They are read and not enforced."""

    network: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()


class DriverConstraints(msgspec.Struct, frozen=True, kw_only=True):
    """Kinds of drivers that may, or may not, serve a contract."""

    forbid: tuple[str, ...] = ()
    require_kind: tuple[str, ...] = ()


class ContractExample(msgspec.Struct, frozen=True, kw_only=True):
    """An example call, which can be run as a test of a driver."""

    name: str
    input: Any
    output: Any = msgspec.UNSET  # UNSET: any valid output will do
    note: str | None = None


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """A TOOL.md (AIP-14): a tool as clients see it, whichever driver serves it."""

    name: str
    id: str
    description: str
    version: str
    inputs: JsonObject
    outputs: JsonObject
    idempotent: bool = False
    mutates: tuple[str, ...] = ()
    requires: ContractRequires = ContractRequires()
    approval: str = "auto"  # auto, always, on-mutate, policy:<ref>
    risk_level: int = 0
    cost_class: CostClass = "trivial"
    timeout_ms: int = 30_000
    retry: Retry | None = None
    default_implementation: str | None = None
    driver_constraints: DriverConstraints = DriverConstraints()
    tags: tuple[str, ...] = ()
    examples: tuple[ContractExample, ...] = ()
    listed_as: str | None = None  # metadata.interlock.name
    context_schema: JsonObject | None = None  # metadata.interlock.context_schema
    metadata: JsonObject = {}
    places: Places


class SecretGrant(msgspec.Struct, frozen=True, kw_only=True):
    """A right to use a secret, for the holders that kind and value name."""

    kind: str  # role, userId, cap, tool, workflow; others grant nothing
    value: str


class SecretAccess(msgspec.Struct, frozen=True, kw_only=True):
    """The grants of a secret, by use."""

    reveal: tuple[SecretGrant, ...] = ()
    bind: tuple[SecretGrant, ...] = ()
    rotate: tuple[SecretGrant, ...] = ()


class SecretEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of an inventory. It describes a secret and never holds its value."""

    slug: str
    name: str
    description: str
    kind: Literal["opaque", "oauth", "keypair", "json"] = "opaque"
    backend: str | None = None
    access: SecretAccess | None = None
    audit: JsonObject | None = None
    tags: tuple[str, ...] = ()
    exposures: tuple[JsonObject, ...] = ()
    env: tuple[str, ...] = ()  # metadata.bindings.env: environment names that mean this secret
    metadata: JsonObject = {}


class SecretInventory(msgspec.Struct, frozen=True, kw_only=True):
    """A SECRETS.md (AIP-19)."""

    entries: tuple[SecretEntry, ...]
    places: Places
