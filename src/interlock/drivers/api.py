"""The operator API about drivers, and the skills that they bring."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, cast

from msgspec import UNSET, Meta, Struct, UnsetType

from interlock.approvals.api import PROOF_REQUIRED
from interlock.operator.operation import (
    CHANGED,
    NOT_FOUND,
    ErrorCase,
    FlagParameter,
    Operation,
    RequestBody,
    operations_in,
)


class Problem(Struct, frozen=True, kw_only=True):
    """A problem in a file, and what to do about it."""

    file: Annotated[str, Meta(description="Which file.")]
    line: Annotated[int | None, Meta(description="Where in it.")] = None
    field: Annotated[str, Meta(description="A JSON pointer; empty: the whole file.")] = ""
    code: Annotated[str, Meta(description="Its name, for programs.")]
    message: Annotated[str, Meta(description="What is wrong.")]
    hint: Annotated[str, Meta(description="What to do.")]
    severity: Annotated[str, Meta(description="error, warning or note.")] = "error"
    schema: Annotated[str | None, Meta(description="The specification that says so.")] = None


class DriverSummary(Struct, frozen=True, kw_only=True):
    """A driver as lists show it."""

    segment: Annotated[str, Meta(description="What its server is called: the segment of its tools.")]
    id: Annotated[str, Meta(description="Its id.")]
    key: Annotated[str, Meta(description="Its id and major version: ID@MAJOR.")]
    version: Annotated[str | None, Meta(description="Its version.")]
    name: Annotated[str | None, Meta(description="Its name for people.")]
    state: Annotated[
        str,
        Meta(description="ready, partial, untrusted, unauthed, unavailable, rejected, installing, checking, stopped"),
    ]
    reason: Annotated[str | None, Meta(description="Why it stands like this.")]
    trusted: Annotated[bool, Meta(description="Whether its files are accepted as they are now.")]
    server_kind: Annotated[
        str | None, Meta(description="What its server is: npm, pypi, binary, container, remote, ...")
    ]
    transport: Annotated[str | None, Meta(description="How its server is reached.")]
    sandboxed: Annotated[bool, Meta(description="Whether a sandbox is not switched off for it.")]
    contracts: Annotated[tuple[str, ...], Meta(description="The contracts it is bound to.")]
    root: Annotated[str, Meta(description="The kind of folder it was found in.")]
    folder: Annotated[str, Meta(description="Its folder.")]
    found: Annotated[tuple[Problem, ...], Meta(description="Problems that only its running server could show.")]
    warnings: Annotated[int, Meta(description="How many warnings there are.")]


class Draft(Struct, frozen=True, kw_only=True):
    """A driver that `interlock add` has not finished."""

    id: Annotated[str, Meta(description="Its id.")]
    folder: Annotated[str, Meta(description="Its folder.")]


class Drivers(Struct, frozen=True, kw_only=True):
    """Every driver of the workspace."""

    drivers: Annotated[tuple[DriverSummary, ...], Meta(description="The drivers.")]
    drafts: Annotated[tuple[Draft, ...], Meta(description="Drivers that are not finished.")]
    problems: Annotated[tuple[Problem, ...], Meta(description="Problems of no single driver.")]


class Binding(Struct, frozen=True, kw_only=True):
    """A tool of the server and the contract it implements."""

    tool_name: Annotated[str, Meta(description="The tool at the server.")]
    contract: Annotated[str, Meta(description="The contract.")]
    version: Annotated[str | None, Meta(description="Its version; null: the contract was not found.")]
    file: Annotated[str | None, Meta(description="The file of the contract.")]


class Acceptance(Struct, frozen=True, kw_only=True):
    """The acceptance of a driver by a person: when, and of which files."""

    digest: Annotated[str, Meta(description="The digest of the folder then.")]
    by: Annotated[str, Meta(description="Who accepted it.")]
    at: Annotated[str, Meta(description="When.")]
    policy_tags: Annotated[tuple[str, ...], Meta(description="The policy tags it had.")]


class RunningServer(Struct, frozen=True, kw_only=True):
    """The server of a driver as it runs now, in addition to what the file says."""

    protocol_version: Annotated[str | None, Meta(description="The version of MCP that is spoken.")]
    transport: Annotated[str | None, Meta(description="The transport in use.")]
    version: Annotated[str | None, Meta(description="The version that is installed.")]
    link: Annotated[str | UnsetType, Meta(description="How its link stands; absent: it is not running.")] = UNSET
    ended: Annotated[str | None, Meta(description="How it last ended unasked; null: it did not.")] = None
    last_words: Annotated[tuple[str, ...], Meta(description="The last lines it wrote to stderr.")]
    modes: Annotated[
        dict[str, str],
        Meta(description="By contract, how its tool's results are read: structured, text, json, lines, ..."),
    ] = {}


class DriverDetail(DriverSummary, frozen=True, kw_only=True):
    """A driver in full: everything that decides whether it is trusted, and what changed since it was.

    Of a driver whose file cannot be read, the fields that the file would give are absent.
    """

    digest: Annotated[str, Meta(description="The digest of its folder; trusting it takes this.")]
    accepted: Annotated[Acceptance | None, Meta(description="What was accepted; null: nothing yet.")]
    changed: Annotated[tuple[str, ...], Meta(description="Files that changed since.")]
    difference: Annotated[tuple[str, ...], Meta(description="The lines that changed, as a unified diff.")]
    files: Annotated[tuple[str, ...], Meta(description="The files of its folder.")]
    problems: Annotated[tuple[Problem, ...], Meta(description="Everything that is wrong with it.")]
    running: Annotated[RunningServer | None, Meta(description="Its server; null: nothing is started for it.")]
    description: Annotated[str, Meta(description="What it is for.")] = ""
    server: Annotated[dict[str, Any], Meta(description="The server, as the file declares it.")] = {}
    sandbox: Annotated[dict[str, Any] | None, Meta(description="The sandbox of the file, with real paths.")] = None
    egress: Annotated[tuple[str, ...], Meta(description="Hosts it may reach.")] = ()
    install: Annotated[tuple[str, ...], Meta(description="Ways to install it.")] = ()
    secrets: Annotated[
        dict[str, str | None], Meta(description="Secrets it is given, and where each one is; null: described nowhere.")
    ] = {}
    policy_tags: Annotated[tuple[str, ...], Meta(description="Its policy tags.")] = ()
    region: Annotated[tuple[str, ...], Meta(description="Where it may run.")] = ()
    protocol_version: Annotated[str | None, Meta(description="The version of MCP it declares.")] = None
    extension_keys: Annotated[tuple[str, ...], Meta(description="Extensions of its file.")] = ()
    expose: Annotated[str, Meta(description="What of its server is listed: bound, all, ...")] = "bound"
    isolation: Annotated[str, Meta(description="Who shares a process of it.")] = "driver"
    bindings: Annotated[tuple[Binding, ...], Meta(description="Tools and the contracts they implement.")] = ()


class UnreadableDriver(DriverDetail, frozen=True, kw_only=True, omit_defaults=True):
    """A driver whose file cannot be read."""


class RankedDriver(Struct, frozen=True, kw_only=True):
    """A driver that could serve a contract."""

    driver: Annotated[str, Meta(description="ID@MAJOR.")]
    cost_units: Annotated[float, Meta(description="What a call would cost.")]


class RejectedDriver(Struct, frozen=True, kw_only=True):
    """A driver that could not, and why."""

    driver: Annotated[str, Meta(description="ID@MAJOR.")]
    phase: Annotated[int, Meta(description="The phase of the selection that it left in.")]
    code: Annotated[str, Meta(description="Why, for programs.")]
    reason: Annotated[str, Meta(description="Why, for people.")]


class ServedContract(Struct, frozen=True, kw_only=True):
    """A contract, which driver serves it, and why not another."""

    contract: Annotated[str, Meta(description="Its id.")]
    version: Annotated[str, Meta(description="Its version.")]
    name: Annotated[str, Meta(description="The tool as which it is listed.")]
    file: Annotated[str, Meta(description="Its file.")]
    pinned: Annotated[str | None, Meta(description="The driver that drivers.pins names for it.")]
    decided_by: Annotated[str, Meta(description="What decided between drivers: pin, only, cost, ...")]
    ranked: Annotated[tuple[RankedDriver, ...], Meta(description="The drivers that could serve it, the first does.")]
    rejected: Annotated[tuple[RejectedDriver, ...], Meta(description="Those that could not.")]
    error: Annotated[str | None, Meta(description="Why no driver serves it.")]


class ExampleOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of one example of a contract."""

    contract: Annotated[str, Meta(description="Of which contract.")]
    example: Annotated[str, Meta(description="Its name.")]
    driver: Annotated[str, Meta(description="Through which driver.")]
    outcome: Annotated[str, Meta(description="passed, failed, held or skipped.")]
    difference: Annotated[tuple[str, ...], Meta(description="What differs from the expected result, or why.")]


class DriverExamples(Struct, frozen=True, kw_only=True):
    """The outcomes of the examples of a driver's contracts."""

    id: Annotated[str, Meta(description="Its id.")]
    key: Annotated[str, Meta(description="ID@MAJOR.")]
    ok: Annotated[bool, Meta(description="Whether nothing failed and nothing was held.")]
    examples: Annotated[tuple[ExampleOutcome, ...], Meta(description="In the order of the contracts.")]


class DriverUpdate(Struct, frozen=True, kw_only=True, rename={"before": "from"}):
    """The newest release of a driver's server, beside the one in use."""

    id: Annotated[str, Meta(description="The id of the driver.")]
    key: Annotated[str, Meta(description="ID@MAJOR.")]
    before: Annotated[str | None, Meta(description="The version in use.")]
    to: Annotated[str | None, Meta(description="The newest version.")]
    changes: Annotated[tuple[str, ...], Meta(description="What differs in what is installed.")]
    state: Annotated[str, Meta(description="How the newest came up.")]
    reason: Annotated[str | None, Meta(description="Why it did not.")]
    added: Annotated[tuple[str, ...], Meta(description="New tools.")]
    removed: Annotated[tuple[str, ...], Meta(description="Tools that are gone.")]
    changed: Annotated[tuple[str, ...], Meta(description="Tools whose definition differs.")]
    difference: Annotated[tuple[str, ...], Meta(description="How the definitions differ, as a unified diff.")]
    candidate: Annotated[str | None, Meta(description="What switching to it takes; null: it is in use already.")]


class SwitchedDriver(Struct, frozen=True, kw_only=True):
    """A driver whose server is started from the newest release."""

    id: Annotated[str, Meta(description="The id of the driver.")]
    key: Annotated[str, Meta(description="ID@MAJOR.")]
    to: Annotated[str | None, Meta(description="The version.")]


class AllowedHosts(Struct, frozen=True, kw_only=True):
    """Hosts that a driver may reach besides those of its file."""

    id: Annotated[str, Meta(description="The id of the driver.")]
    allowed: Annotated[tuple[str, ...], Meta(description="The hosts.")]


class RemovedDriver(Struct, frozen=True, kw_only=True):
    """A driver that was deleted, forgotten, or both."""

    removed: Annotated[str | None, Meta(description="The path that was deleted.")]
    forgotten: Annotated[tuple[str, ...], Meta(description="Keys of registered versions that were forgotten.")]


class IdleDriver(Struct, frozen=True, kw_only=True):
    """A driver that serves nothing yet: it waits for a person, or its files cannot be used."""

    id: Annotated[str, Meta(description="Which driver.")]
    state: Annotated[str, Meta(description="untrusted or rejected.")]
    reason: Annotated[str | None, Meta(description="Why.")]


class SkillBlock(Struct, frozen=True, kw_only=True):
    """A prompt of a driver that is a part of a skill."""

    block: Annotated[str, Meta(description="Its name in the skill.")]
    prompt: Annotated[str, Meta(description="The prompt as it is listed.")]
    driver: Annotated[str, Meta(description="Who serves it.")]
    server_prompt: Annotated[str, Meta(description="Its name at the server.")]
    description: Annotated[str, Meta(description="What it is for.")]


class Skill(Struct, frozen=True, kw_only=True):
    """A skill that drivers bring."""

    name: Annotated[str, Meta(description="Its name.")]
    blocks: Annotated[tuple[SkillBlock, ...], Meta(description="What it consists of.")]


class Skills(Struct, frozen=True, kw_only=True):
    """Every skill that has blocks."""

    skills: Annotated[tuple[Skill, ...], Meta(description="By name.")]


class AddedTool(Struct, frozen=True, kw_only=True, rename={"tool_class": "class"}):
    """A tool of a server that was added, with its contract."""

    tool: Annotated[str, Meta(description="The tool at the server.")]
    contract: Annotated[str, Meta(description="The id of its contract.")]
    tool_class: Annotated[str, Meta(description="read_only, reversible or irreversible.")]
    by: Annotated[str, Meta(description="Where the class comes from: annotations, name, schema, nothing, person, ...")]
    new: Annotated[bool, Meta(description="Whether the contract was written now.")]
    question: Annotated[str | None, Meta(description="What contradicts the class.")]


class AddedDriver(Struct, frozen=True, kw_only=True):
    """A driver that was written for a server."""

    id: Annotated[str, Meta(description="Its id.")]
    key: Annotated[str, Meta(description="ID@MAJOR.")]
    folder: Annotated[str, Meta(description="Its folder.")]
    files: Annotated[tuple[str, ...], Meta(description="The files that were written; empty: all of them existed.")]
    tools: Annotated[tuple[AddedTool, ...], Meta(description="The tools of the server.")]
    version: Annotated[str | None, Meta(description="The version of the server that was installed.")]
    protocol_version: Annotated[str | None, Meta(description="The version of MCP that the server speaks.")]
    problems: Annotated[tuple[Problem, ...], Meta(description="Warnings and notes about its files.")]
    reviews: Annotated[tuple[str, ...], Meta(description="What a person should look at.")]
    sandbox: Annotated[dict[str, Any], Meta(description="What the server can read, write, reach and start.")]
    trusted: Annotated[bool, Meta(description="Whether its files are accepted.")]
    state: Annotated[str, Meta(description="As in the list of drivers.")]


_DRIVER_ID: Final = "^[a-z0-9][a-z0-9.-]{1,79}$"
_SHA256: Final = "^[0-9a-f]{64}$"
HOST_CHARS_MAX: Final = 253  # RFC 1035 2.3.4, as text


class AddDriver(RequestBody, frozen=True, kw_only=True, rename={"packages": "with"}):
    """A server to be added: what it is, and what it may do."""

    reference: Annotated[
        str,
        Meta(description="npm:PACKAGE, pypi:PACKAGE, docker:IMAGE, https://..., or the name of a draft.", min_length=1),
    ]
    args: Annotated[tuple[str, ...], Meta(description="Arguments that the server is started with.")] = ()
    id: Annotated[
        Annotated[str, Meta(pattern=_DRIVER_ID)] | None,
        Meta(description="The id of the driver; null: it follows from the reference."),
    ] = None
    tools: Annotated[
        Mapping[str, str | None] | None,
        Meta(description="Only these tools, each with the id of its contract, or null; null: all tools."),
    ] = None
    classes: Annotated[
        Mapping[str, Literal["read_only", "reversible", "irreversible"]], Meta(description="The classes of tools.")
    ] = {}
    accept: Annotated[
        bool, Meta(description="Accept the classes that only names suggest. Otherwise the first call of each waits.")
    ] = False
    env: Annotated[Mapping[str, str], Meta(description="Variables that the server is started with.")] = {}
    secrets: Annotated[
        tuple[str, ...], Meta(description="Variables, or for an address the bearer token, that are stored as secrets.")
    ] = ()
    headers: Annotated[Mapping[str, str], Meta(description="Headers that are sent to an address.")] = {}
    egress: Annotated[tuple[str, ...], Meta(description="Hosts that the server may reach.")] = ()
    programs: Annotated[tuple[str, ...], Meta(description="Programs that the server may start, such as git.")] = ()
    packages: Annotated[tuple[str, ...], Meta(description="Packages to install beside a pypi package.")] = ()
    replace: Annotated[bool, Meta(description="Overwrite a driver of this id.")] = False


class TrustDriver(RequestBody, frozen=True, kw_only=True):
    """The acceptance of a driver's files."""

    digest: Annotated[str, Meta(description="The digest of the folder as it was shown.", pattern=_SHA256)]


class AllowHost(RequestBody, frozen=True, kw_only=True):
    """A host that a driver may reach besides those of its file."""

    host: Annotated[str, Meta(description="api.example.com or *.example.com", min_length=1, max_length=HOST_CHARS_MAX)]
    revoke: Annotated[bool, Meta(description="Take it back.")] = False


class RunExamples(RequestBody, frozen=True, kw_only=True):
    """A run of the examples of a driver's contracts."""

    allow_mutation: Annotated[bool, Meta(description="Also examples that change something.")] = False


class UpdateDriver(RequestBody, frozen=True, kw_only=True):
    """A look at the newest release of a driver's server, or the switch to it."""

    candidate: Annotated[
        Annotated[str, Meta(pattern=_SHA256)] | None, Meta(description="What the look named; null: only look.")
    ] = None


# Errors

UNKNOWN_REFERENCE: Final = ErrorCase("unknown_reference", 409, "the reference names no package, address or draft")
DRIVER_EXISTS: Final = ErrorCase("exists", 409, "there is a driver of this id with other content")
NOT_ADDED: Final = ErrorCase(
    "install_failed", 409, "or unavailable, no_tools, rejected, ...: the server cannot be used; nothing was written"
)
AMBIGUOUS: Final = ErrorCase("ambiguous", 409, "several have this name; details names them")
BAD_HOST: Final = ErrorCase("bad_host", 409, "not the name of a host")
NOT_LOOKED_AT: Final = ErrorCase("not_looked_at", 409, "the candidate was not looked at before")
NOT_RUNNING: Final = ErrorCase("not_running", 409, "the driver's server does not run")
NOTHING_TO_UPDATE: Final = ErrorCase("nothing_to_update", 409, "the server is not installed from anywhere")
REJECTED: Final = ErrorCase("rejected", 409, "the driver's files cannot be used")
TOO_MANY_HOSTS: Final = ErrorCase("too_many_hosts", 409, "the driver may reach as many hosts as there can be")
UPDATE_FAILED: Final = ErrorCase("update_failed", 409, "the newest release does not start")


# Query parameters

FORGET: Final = FlagParameter(
    name="forget",
    description="Also what the next version of this driver would be compared with.",
    choices=("true", "false"),
    default="false",
)


# Operations

LIST_DRIVERS: Final = Operation(
    "list_drivers", "drivers", "GET /admin/drivers", "Every driver of the workspace.", output=Drivers
)
ADD_DRIVER: Final = Operation(
    "add_driver",
    "drivers",
    "POST /admin/drivers",
    "Install a server, start it once in its sandbox to list its tools, and write a driver for it.",
    role="admin",
    input=AddDriver,
    output=AddedDriver,
    errors=(PROOF_REQUIRED, UNKNOWN_REFERENCE, DRIVER_EXISTS, NOT_ADDED),
)
GET_DRIVER: Final = Operation(
    "get_driver",
    "drivers",
    "GET /admin/drivers/{name}",
    "One driver, by its id, ID@MAJOR or folder; or a contract, and which driver serves it.",
    output=cast("type[DriverDetail | ServedContract]", DriverDetail | ServedContract),
    errors=(NOT_FOUND, AMBIGUOUS),
)
REMOVE_DRIVER: Final = Operation(
    "remove_driver",
    "drivers",
    "DELETE /admin/drivers/{name}",
    "Delete a driver's folder and stop its server.",
    role="admin",
    output=RemovedDriver,
    query=(FORGET,),
    errors=(NOT_FOUND, AMBIGUOUS),
)
TRUST_DRIVER: Final = Operation(
    "trust_driver",
    "drivers",
    "POST /admin/drivers/{name}/trust",
    "Accept a driver's files as they were shown, where no approver could: its server is then started.",
    role="admin",
    input=TrustDriver,
    output=DriverSummary,
    errors=(PROOF_REQUIRED, NOT_FOUND, AMBIGUOUS, REJECTED, CHANGED),
)
ALLOW_HOST: Final = Operation(
    "allow_host",
    "drivers",
    "POST /admin/drivers/{name}/allow",
    "Let a driver reach a host that its file does not name.",
    role="admin",
    input=AllowHost,
    output=AllowedHosts,
    errors=(NOT_FOUND, AMBIGUOUS, REJECTED, BAD_HOST, TOO_MANY_HOSTS),
)
RUN_EXAMPLES: Final = Operation(
    "run_examples",
    "drivers",
    "POST /admin/drivers/{name}/test",
    "Run the examples of a driver's contracts through it.",
    role="admin",
    input=RunExamples,
    output=DriverExamples,
    errors=(NOT_FOUND, AMBIGUOUS, NOT_RUNNING),
)
UPDATE_DRIVER: Final = Operation(
    "update_driver",
    "drivers",
    "POST /admin/drivers/{name}/update",
    "Look at the newest release of a driver's server; with the candidate that this names, switch to it.",
    role="admin",
    input=UpdateDriver,
    output=cast("type[DriverUpdate | SwitchedDriver]", DriverUpdate | SwitchedDriver),
    errors=(NOT_FOUND, AMBIGUOUS, NOT_RUNNING, UPDATE_FAILED, NOTHING_TO_UPDATE, NOT_LOOKED_AT),
)

OPERATIONS: Final = operations_in(globals())
