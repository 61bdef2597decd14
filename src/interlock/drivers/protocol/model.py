"""The contents of a DRIVER.md, a TOOL.md and a SECRETS.md as values. The modules of `files` create them.

The fields have the names that they have in the files, except those that a class renames, and the content of
metadata.interlock, which has separate fields (`Driver.interlock`, `ToolBinding.result_parse`, `Contract.listed_as`).
Defaults are those of the specification, or Interlock's choice if it defines none. A field that is missing in the file
and has no default is None.

`files.schemas` makes the JSON Schemas of the files from these types. What a type does not say about a field stands
beside it as a `rule`, in the keywords of JSON Schema.

Each value is valid by itself. Whether the contracts, secrets and programs that it names exist is not checked here.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from interlock.drivers.protocol.kinds import ServerBlock, Transport, rule
from interlock.drivers.protocol.problems import Places
from interlock.drivers.protocol.server_name import exposed_segment

JsonObject = Mapping[str, Any]

SEMVER: Final = r"^[0-9]+\.[0-9]+\.[0-9]+(?:[-+][0-9A-Za-z_.-]+)?$"
DRIVER_ID: Final = r"^[a-z0-9][a-z0-9.-]{1,79}$"
KINDS: Final = ("cli", "http", "mcp", "sdk", "builtin")  # AIP-30.front-2
DURATION_S_MAX: Final = 366 * 86400.0

Milliseconds = Annotated[int, rule(minimum=100)]
Name = Annotated[str, rule(minLength=1, maxLength=80)]
Description = Annotated[str, rule(minLength=1, maxLength=2000)]
Version = Annotated[str, rule(pattern=SEMVER)]
DriverTags = Annotated[tuple[Annotated[str, rule(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")], ...], rule(uniqueItems=True)]
DriverKinds = Annotated[tuple[str, ...], rule(items={"enum": [*KINDS]}, uniqueItems=True)]
CostClass = Literal["trivial", "metered", "expensive"]
Isolation = Literal["driver", "tenant", "user"]

PROCESSES_MAX: Final = 16  # AIP-tenant-2


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a call. Of several drivers for a contract the cheapest is preferred (AIP-30.resolve-5)."""

    cost_class: CostClass | None = None
    cost_units_per_call: Annotated[float, rule(minimum=0)] | None = None  # millicents
    currency: Annotated[str, rule(pattern="^[A-Z]{3}$")] | None = None


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Rule for repeating failed calls."""

    max_attempts: Annotated[int, rule(minimum=1, maximum=10)]
    backoff: Literal["fixed", "exponential"] | None = None
    initial_ms: Annotated[int, rule(minimum=0)] | None = None


class Narrowing(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs and outputs of a contract that a driver does not support (AIP-30.implements-4)."""

    drop_inputs: tuple[str, ...] = ()
    drop_outputs: tuple[str, ...] = ()


class Mapped(msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from"}):
    """An entry of the block `mapping` in its long form. The key of the entry is the new name of the input that `source`
    names.

    `source`, which is written `from` in the file, is the contract's name of the input.
    """

    source: str
    transform: str | None = None


class ResultParse(msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from", "form": "as"}):
    """The block result_parse of a binding: which part of a server's result is parsed, and in which form
    (AIP-extract-8).
    """

    source: Literal["auto", "structured", "text", "content", "result"] = "auto"
    form: Literal["text", "json", "python_literal", "lines", "records"] | None = None
    pattern: str | None = None
    into: str | None = None


OVERRIDES: Final = {"cost": "cost_override", "timeout_ms": "timeout_override_ms", "retry": "retry_override"}


class ToolBinding(msgspec.Struct, frozen=True, kw_only=True, rename=OVERRIDES):
    """An entry in the list `implements` of a DRIVER.md: a contract, and the tool of the driver's server that carries
    out its calls.
    """

    index: int  # its place in implements[]
    tool: str  # as written: a path, or a contract's id
    version: str  # an npm range the contract's version is in
    tool_name: str
    argument_mapping: Mapping[str, str] = {}
    result_extract: str = "$"
    schema_narrowing: Narrowing = Narrowing()
    mapping: Mapping[str, str | Mapped] = {}
    cost: Cost | None = None
    timeout_ms: Milliseconds | None = None
    retry: Retry | None = None
    result_parse: ResultParse | None = None
    result_wrap: str | None = None
    text_fallback: bool = True
    argument_defaults: JsonObject = {}
    context_arguments: Mapping[str, str] = {}
    metadata: JsonObject = {}

    @property
    def pointer(self) -> str:
        """Return the JSON Pointer of this entry in the file."""
        return f"/implements/{self.index}"


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt of the server that clients may use (AIP-front-5)."""

    name: str
    integrate_as: Literal["skill_block", "raw"]
    description: str | None = None
    skill_ref: str | None = None


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """Resources of the server that clients may read, given by a URI template (AIP-front-6)."""

    uri_template: str
    integrate_as: Literal["ref_kind", "raw"]
    description: str | None = None
    ref_kind_id: Annotated[str, rule(pattern="^[a-z][a-z0-9_]*$")] | None = None


class ServerConnection(msgspec.Struct, frozen=True, kw_only=True):
    """The block connection_options of a DRIVER.md: the time limit for connecting to the server, and how often a failed
    connection is tried again (AIP-front-7).
    """

    timeout_ms: Milliseconds = 30_000  # AIP-front-7
    max_retries: Annotated[int, rule(minimum=0, maximum=10)] = 3  # AIP-front-7
    keepalive: bool = False  # AIP-front-7


class NetworkAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts that a server may connect to (`egress`), and hosts that may connect to it (`ingress`)."""

    egress: tuple[str, ...] = ()
    ingress: tuple[str, ...] = ()


class FileAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of this machine that a server may use. `deny` excludes paths below the permitted ones."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class Programs(msgspec.Struct, frozen=True, kw_only=True):
    """Programs that a server may start."""

    allow: bool = False
    spawn: tuple[str, ...] = ()


class EnvironmentAccess(msgspec.Struct, frozen=True, kw_only=True, rename={"passed": "pass"}):
    """Environment variables for a server: variables passed on from the host, and variables with fixed values."""

    passed: tuple[str, ...] = ()  # written `pass`
    set: Mapping[str, str] = {}


class Terminal(msgspec.Struct, frozen=True, kw_only=True):
    """The block sandbox.tty of a DRIVER.md: whether the server needs a terminal."""

    required: bool = False


class SandboxBlock(msgspec.Struct, frozen=True, kw_only=True):
    """The block sandbox of a DRIVER.md (AIP-29): what the server may access. A section that is missing in the file is
    None, and a default applies.
    """

    network: NetworkAccess | None = None
    fs: FileAccess | None = None
    exec: Programs | None = None
    env: EnvironmentAccess | None = None
    tty: Terminal | None = None


class HttpProbe(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP request whose status shows whether a server or a login works."""

    method: Literal["GET", "POST", "HEAD"]
    url: str
    expect_status: Annotated[int, rule(minimum=100, maximum=599)] | None = None


class AuthState(msgspec.Struct, frozen=True, kw_only=True):
    """The places where a login of a driver keeps its state: paths of files, and names of secrets."""

    paths: tuple[str, ...] = ()
    env: tuple[str, ...] = ()


class CompletesWhen(msgspec.Struct, frozen=True, kw_only=True):
    """The condition under which a person's login is complete: the result of a command or of an HTTP request."""

    cmd: str | None = None
    exit_code: int | None = None
    http: HttpProbe | None = None


class LoginStep(msgspec.Struct, frozen=True, kw_only=True):
    """Description of how a person logs in: by a command or on a web page."""

    cmd: str | None = None
    url: str | None = None
    interactive: bool | None = None
    requires_callback_url: bool | None = None
    completes_when: CompletesWhen | None = None


_DURATION = re.compile(
    r"P(?:(?P<weeks>[0-9]{1,6})W|(?:(?P<days>[0-9]{1,6})D)?"
    r"(?:T(?=[0-9])(?:(?P<hours>[0-9]{1,6})H)?(?:(?P<minutes>[0-9]{1,6})M)?(?:(?P<seconds>[0-9]{1,6}(?:\.[0-9]{1,3})?)S)?)?)",
    re.ASCII,
)
_SECONDS = {"weeks": 604800.0, "days": 86400.0, "hours": 3600.0, "minutes": 60.0, "seconds": 1.0}


def duration_s(text: str) -> float | None:
    """Return a duration in seconds, or None if the text is not a duration between zero and one year.

    The text is an ISO 8601 duration of weeks or smaller units: P2W, P1D, PT5M, PT30S. Months and years are not
    accepted, because their length varies.
    """
    parts = _DURATION.fullmatch(text)
    if parts is None:
        return None
    total = sum(float(parts[unit]) * seconds for unit, seconds in _SECONDS.items() if parts[unit])
    return total if 0 < total <= DURATION_S_MAX else None


class Repeated(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the blocks of a DRIVER.md with an action that is repeated, each time after the duration `every`."""

    every: Annotated[str, rule(pattern=r"^PT?[^\s]+$")] | None = None

    @property
    def every_s(self) -> float | None:
        """Return the seconds between two repetitions, or None if the action is not repeated."""
        return None if self.every is None else duration_s(self.every)


class Refresh(Repeated, frozen=True, kw_only=True):
    """The block auth.refresh of a DRIVER.md: the command or request that renews a login, and how often it is used."""

    cmd: str | None = None
    url: str | None = None


class SecretExpiry(msgspec.Struct, frozen=True, kw_only=True):
    """The block auth.expiry of a DRIVER.md: the signs of an expired login."""

    detect: str | None = None


class Auth(msgspec.Struct, frozen=True, kw_only=True):
    """The block auth of a DRIVER.md (AIP-30): where its secrets are described, and how a person
    logs in to its server.
    """

    ref: str | None = None
    state: AuthState = AuthState()
    login: LoginStep | None = None
    refresh: Refresh | None = None
    expiry: SecretExpiry | None = None


class Install(msgspec.Struct, frozen=True, kw_only=True):
    """An entry in the list `install` of a DRIVER.md: one method of installing the server. The methods are tried in
    order.

    `options` are the keys that are specific to the method.
    """

    method: str
    options: JsonObject = {}


class VersionCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The block version_check of a DRIVER.md: a command that prints the installed version, and the versions that fit
    (AIP-30.version-1).

    `cmd` prints the version, `parse` is a regular expression that finds it in the output, and `range` is the npm range
    that it must be in.
    """

    cmd: str
    parse: str
    range: str
    timeout_ms: Milliseconds = 5_000


class HealthCheck(Repeated, frozen=True, kw_only=True):
    """The block health_check of a DRIVER.md: how the node finds out whether the server works (AIP-30.health-1)."""

    method: Literal["ping", "exec", "http", "noop"]
    cmd: str | None = None
    http: HttpProbe | None = None
    expect_exit: int = 0
    timeout_ms: Milliseconds = 5_000


Megabytes = Annotated[float, rule(type="integer", minimum=0)]


class MachineRequirements(msgspec.Struct, frozen=True, kw_only=True):
    """The block requires of a DRIVER.md: properties that the machine must have to run the server (AIP-30.front-5)."""

    os: tuple[Literal["darwin", "linux", "windows"], ...] = ()
    arch: tuple[Literal["x64", "arm64", "x86", "arm"], ...] = ()
    min_disk_mb: Megabytes | None = None
    min_memory_mb: Megabytes | None = None


class DriverExample(msgspec.Struct, frozen=True, kw_only=True):
    """An example of what the driver can be used for, in a user's words."""

    goal: str
    note: str | None = None
    cmd: str | None = None


class Extensions(msgspec.Struct, frozen=True, kw_only=True):
    """The block metadata.interlock of a DRIVER.md: Interlock's extensions to AIP-32."""

    idle_timeout_ms: Annotated[int, rule(minimum=1000)] | None = None  # None: the node's own
    isolation: Isolation = "driver"
    max_processes: Annotated[int, rule(minimum=1, maximum=1000)] = PROCESSES_MAX
    client_capabilities: Annotated[tuple[Literal["roots", "sampling", "elicitation"], ...], rule(uniqueItems=True)] = ()
    # Empty: any supported version.
    protocol_versions: Annotated[tuple[str, ...], rule(minItems=1, uniqueItems=True)] = ()
    expose: Literal["bound", "all"] = "bound"
    not_secret: tuple[str, ...] = ()
    redact_results: bool = True


class Driver(msgspec.Struct, frozen=True, kw_only=True, rename={"connection": "connection_options", **OVERRIDES}):
    """The content of a DRIVER.md of kind mcp, which declares an MCP server and the contracts that it serves."""

    name: Name  # AIP-30.front-1
    id: Annotated[str, rule(pattern=DRIVER_ID)]
    description: Description  # AIP-30.front-1
    version: Version
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
    policy_tags: DriverTags = ()
    cost: Cost | None = None
    timeout_ms: Milliseconds | None = None
    retry: Retry | None = None
    requires: MachineRequirements = MachineRequirements()
    examples: tuple[Annotated[DriverExample, rule(additionalProperties=True)], ...] = ()
    tags: DriverTags = ()
    interlock: Extensions = Extensions()
    metadata: JsonObject = {}
    secret_names: tuple[str, ...] = ()  # every NAME of a ${secrets.NAME} and of server.auth.secret, once, in order
    # The extensions of AIP-32 that the file uses, dotted: server.version, metadata.interlock.expose.
    extension_keys: tuple[str, ...] = ()
    places: Places

    @property
    def key(self) -> str:
        """Return the id and the major version of the driver, such as files-mcp@1, which identify it in records
        (AIP-30).
        """
        return f"{self.id}@{self.version.partition('.')[0]}"

    @property
    def segment(self) -> str:
        """Return the name under which people see the driver's server, such as files for files-mcp."""
        return exposed_segment(self.id)

    @property
    def exposes(self) -> bool:
        """Return whether the driver lists anything under its own segment besides contracts."""
        return self.interlock.expose == "all" or bool(self.prompts or self.resources)


class ContractRequires(msgspec.Struct, frozen=True, kw_only=True):
    """The block requires of a TOOL.md. It is read but not enforced."""

    network: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()


class DriverConstraints(msgspec.Struct, frozen=True, kw_only=True):
    """Kinds of drivers that must not serve a contract (`forbid`), or the only ones that may (`require_kind`)."""

    forbid: DriverKinds = ()
    require_kind: DriverKinds = ()


class ContractExample(msgspec.Struct, frozen=True, kw_only=True):
    """An example call of a contract. It can also be run to test a driver."""

    name: str
    input: Any
    output: Any = msgspec.UNSET  # UNSET: any valid output will do
    note: str | None = None


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a TOOL.md (AIP-14): a tool as clients see it, whichever driver serves its calls."""

    name: Name
    id: Annotated[str, rule(minLength=2, maxLength=80, pattern=r"^[a-z0-9][a-z0-9.-]*[a-z0-9]$")]
    description: Description
    version: Version
    inputs: JsonObject
    outputs: JsonObject
    idempotent: bool = False
    mutates: tuple[Annotated[str, rule(pattern=r"^[a-z]+:[^\s]+$")], ...] = ()
    requires: ContractRequires = ContractRequires()
    approval: Annotated[str, rule(pattern=r"^(?:auto|always|on-mutate|policy:[A-Za-z0-9_./-]+)$")] = "auto"
    risk_level: Annotated[int, rule(minimum=0, maximum=3)] = 0
    cost_class: CostClass = "trivial"
    timeout_ms: Annotated[int, rule(minimum=1)] = 30_000
    retry: Retry | None = None
    default_implementation: Annotated[str, rule(type=["string", "null"], pattern=DRIVER_ID)] | None = None
    driver_constraints: DriverConstraints = DriverConstraints()
    tags: Annotated[tuple[Annotated[str, rule(pattern="^[a-z0-9][a-z0-9-]*$")], ...], rule(uniqueItems=True)] = ()
    examples: tuple[ContractExample, ...] = ()
    listed_as: str | None = None  # metadata.interlock.name
    context_schema: JsonObject | None = None  # metadata.interlock.context_schema
    metadata: JsonObject = {}
    places: Places


class SecretGrant(msgspec.Struct, frozen=True, kw_only=True):
    """Permission to use a secret. `kind` and `value` say who has it, for example the tool files-mcp."""

    kind: str  # role, userId, cap, tool, workflow; others grant nothing
    value: str


class SecretAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Lists of those who may see the value of a secret (`reveal`), use it in a server (`bind`) or replace it
    (`rotate`).
    """

    reveal: tuple[SecretGrant, ...] = ()
    bind: tuple[SecretGrant, ...] = ()
    rotate: tuple[SecretGrant, ...] = ()


class SecretEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Description of one secret in a SECRETS.md. It never contains the value."""

    # AIP-19.file-1: the pattern wants two characters
    slug: Annotated[str, rule(maxLength=80, pattern="^([a-z][a-z0-9-]*[a-z0-9]/)?[a-z][a-z0-9-]*[a-z0-9]$")]
    name: Name
    description: Description
    kind: Literal["opaque", "oauth", "keypair", "json"] = "opaque"
    backend: Annotated[str, rule(pattern="^[a-z][a-z0-9-]*://")] | None = None
    access: SecretAccess | None = None
    audit: JsonObject | None = None
    tags: tuple[Annotated[str, rule(pattern="^[a-z][a-z0-9-]*$")], ...] = ()
    exposures: tuple[JsonObject, ...] = ()
    env: tuple[str, ...] = ()  # metadata.bindings.env: environment names that mean this secret
    metadata: JsonObject = {}


class SecretInventory(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a SECRETS.md (AIP-19)."""

    entries: tuple[SecretEntry, ...]
    places: Places
