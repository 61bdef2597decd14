"""The operator API about drivers, and the skills that they bring."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, cast

from msgspec import UNSET, Meta, Struct, UnsetType

from interlock.approvals.api import PROOF_REQUIRED
from interlock.operator.operation import (
    CHANGED,
    ErrorCase,
    FlagParameter,
    Operation,
    RequestBody,
    operations_in,
)


class Problem(Struct, frozen=True, kw_only=True):
    """A problem in a file, and what to do about it.

    Members:
        file: Which file.
        line: Where in it.
        field: A JSON pointer; empty: the whole file.
        code: Its name, for programs.
        message: What is wrong.
        hint: What to do.
        severity: error, warning or note.
        schema: The specification that says so.
    """

    file: str
    line: int | None = None
    field: str = ""
    code: str
    message: str
    hint: str
    severity: str = "error"
    schema: str | None = None


class DriverSummary(Struct, frozen=True, kw_only=True):
    """A driver in the short form that lists show.

    Members:
        segment: What its server is called: the segment of its tools.
        id: Its id.
        key: Its id and major version: ID@MAJOR.
        version: Its version.
        name: Its name for people.
        state: ready, partial, untrusted, unauthed, unavailable, rejected, installing, checking, stopped
        reason: Why it stands like this.
        trusted: Whether its files are accepted as they are now.
        server_kind: What its server is: npm, pypi, binary, container, remote, ...
        transport: How its server is reached.
        sandboxed: Whether a sandbox is not switched off for it.
        contracts: The contracts it is bound to.
        root: The kind of folder it was found in.
        folder: Its folder.
        found: Problems that only its running server could show.
        warnings: How many warnings there are.
    """

    segment: str
    id: str
    key: str
    version: str | None
    name: str | None
    state: str
    reason: str | None
    trusted: bool
    server_kind: str | None
    transport: str | None
    sandboxed: bool
    contracts: tuple[str, ...]
    root: str
    folder: str
    found: tuple[Problem, ...]
    warnings: int


class Draft(Struct, frozen=True, kw_only=True):
    """A driver that `interlock add` has not finished.

    Members:
        id: Its id.
        folder: Its folder.
    """

    id: str
    folder: str


class Drivers(Struct, frozen=True, kw_only=True):
    """Every driver of the workspace.

    Members:
        drivers: The drivers.
        drafts: Drivers that are not finished.
        problems: Problems of no single driver.
    """

    drivers: tuple[DriverSummary, ...]
    drafts: tuple[Draft, ...]
    problems: tuple[Problem, ...]


class Binding(Struct, frozen=True, kw_only=True):
    """A tool of the server and the contract it implements.

    Members:
        tool_name: The tool at the server.
        contract: The contract.
        version: Its version; null: the contract was not found.
        file: The file of the contract.
    """

    tool_name: str
    contract: str
    version: str | None
    file: str | None


class Acceptance(Struct, frozen=True, kw_only=True):
    """The acceptance of a driver by a person: when, and of which files.

    Members:
        digest: The digest of the folder then.
        by: Who accepted it.
        at: When.
        policy_tags: The policy tags it had.
    """

    digest: str
    by: str
    at: str
    policy_tags: tuple[str, ...]


class RunningServer(Struct, frozen=True, kw_only=True):
    """The state of a driver's running server, beside what the driver's file declares.

    Members:
        protocol_version: The version of MCP that is spoken.
        transport: The transport in use.
        version: The version that is installed.
        link: How its link stands; absent: it is not running.
        ended: How it last ended unasked; null: it did not.
        last_words: The last lines it wrote to stderr.
        modes: By contract, how its tool's results are read: structured, text, json, lines, ...
    """

    protocol_version: str | None
    transport: str | None
    version: str | None
    link: str | UnsetType = UNSET
    ended: str | None = None
    last_words: tuple[str, ...]
    modes: dict[str, str] = {}


class DriverDetail(DriverSummary, frozen=True, kw_only=True):
    """A driver with all details: what a person reviews before trusting it, and what has changed since a person accepted
    it.

    Of a driver whose file cannot be read, the fields that the file would give are absent.

    Members:
        digest: The digest of its folder; trusting it takes this.
        accepted: What was accepted; null: nothing yet.
        changed: Files that changed since.
        difference: The lines that changed, as a unified diff.
        files: The files of its folder.
        problems: Everything that is wrong with it.
        running: Its server; null: nothing is started for it.
        description: What it is for.
        server: The server, as the file declares it.
        sandbox: The sandbox of the file, with real paths.
        egress: Hosts it may reach.
        install: Ways to install it.
        secrets: Secrets it is given, and where each one is; null: described nowhere.
        policy_tags: Its policy tags.
        region: Where it may run.
        protocol_version: The version of MCP it declares.
        extension_keys: Extensions of its file.
        expose: What of its server is listed: bound, all, ...
        isolation: Who shares a process of it.
        bindings: Tools and the contracts they implement.
    """

    digest: str
    accepted: Acceptance | None
    changed: tuple[str, ...]
    difference: tuple[str, ...]
    files: tuple[str, ...]
    problems: tuple[Problem, ...]
    running: RunningServer | None
    description: str = ""
    server: dict[str, Any] = {}
    sandbox: dict[str, Any] | None = None
    egress: tuple[str, ...] = ()
    install: tuple[str, ...] = ()
    secrets: dict[str, str | None] = {}
    policy_tags: tuple[str, ...] = ()
    region: tuple[str, ...] = ()
    protocol_version: str | None = None
    extension_keys: tuple[str, ...] = ()
    expose: str = "bound"
    isolation: str = "driver"
    bindings: tuple[Binding, ...] = ()


class UnreadableDriver(DriverDetail, frozen=True, kw_only=True, omit_defaults=True):
    """A driver whose file cannot be read."""


class RankedDriver(Struct, frozen=True, kw_only=True):
    """A driver that could serve a contract.

    Members:
        driver: ID@MAJOR.
        cost_units: What a call would cost.
    """

    driver: str
    cost_units: float


class RejectedDriver(Struct, frozen=True, kw_only=True):
    """A driver that cannot serve a contract, and why.

    Members:
        driver: ID@MAJOR.
        phase: The phase of the selection that it left in.
        code: Why, for programs.
        reason: Why, for people.
    """

    driver: str
    phase: int
    code: str
    reason: str


class ServedContract(Struct, frozen=True, kw_only=True):
    """A contract, the driver that serves it, and the reasons against other drivers.

    Members:
        contract: Its id.
        version: Its version.
        name: The tool as which it is listed.
        file: Its file.
        pinned: The driver that drivers.pins names for it.
        decided_by: What decided between drivers: pin, only, cost, ...
        ranked: The drivers that could serve it, the first does.
        rejected: Those that could not.
        error: Why no driver serves it.
    """

    contract: str
    version: str
    name: str
    file: str
    pinned: str | None
    decided_by: str
    ranked: tuple[RankedDriver, ...]
    rejected: tuple[RejectedDriver, ...]
    error: str | None


class ExampleOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of one example of a contract.

    Members:
        contract: Of which contract.
        example: Its name.
        driver: Through which driver.
        outcome: passed, failed, held or skipped.
        difference: What differs from the expected result, or why.
    """

    contract: str
    example: str
    driver: str
    outcome: str
    difference: tuple[str, ...]


class DriverExamples(Struct, frozen=True, kw_only=True):
    """The outcomes of the examples of a driver's contracts.

    Members:
        id: Its id.
        key: ID@MAJOR.
        ok: Whether nothing failed and nothing was held.
        examples: In the order of the contracts.
    """

    id: str
    key: str
    ok: bool
    examples: tuple[ExampleOutcome, ...]


class DriverUpdate(Struct, frozen=True, kw_only=True, rename={"before": "from"}):
    """The newest release of a driver's server, compared with the release in use.

    Members:
        id: The id of the driver.
        key: ID@MAJOR.
        before: The version in use.
        to: The newest version.
        changes: What differs in what is installed.
        state: How the newest came up.
        reason: Why it did not.
        added: New tools.
        removed: Tools that are gone.
        changed: Tools whose definition differs.
        difference: How the definitions differ, as a unified diff.
        candidate: What switching to it takes; null: it is in use already.
    """

    id: str
    key: str
    before: str | None
    to: str | None
    changes: tuple[str, ...]
    state: str
    reason: str | None
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    difference: tuple[str, ...]
    candidate: str | None


class SwitchedDriver(Struct, frozen=True, kw_only=True):
    """A driver that was switched to the newest release of its server.

    Members:
        id: The id of the driver.
        key: ID@MAJOR.
        to: The version.
    """

    id: str
    key: str
    to: str | None


class AllowedHosts(Struct, frozen=True, kw_only=True):
    """Hosts that a driver may reach in addition to those that its file names.

    Members:
        id: The id of the driver.
        allowed: The hosts.
    """

    id: str
    allowed: tuple[str, ...]


class RemovedDriver(Struct, frozen=True, kw_only=True):
    """A driver that was deleted, forgotten, or both.

    Members:
        removed: The path that was deleted.
        forgotten: Keys of registered versions that were forgotten.
    """

    removed: str | None
    forgotten: tuple[str, ...]


class IdleDriver(Struct, frozen=True, kw_only=True):
    """A driver that is not in use: it waits for a person's decision, or its files cannot be used.

    Members:
        id: Which driver.
        state: untrusted or rejected.
        reason: Why.
    """

    id: str
    state: str
    reason: str | None


class SkillBlock(Struct, frozen=True, kw_only=True):
    """A prompt of a driver that belongs to a skill.

    Members:
        block: Its name in the skill.
        prompt: The prompt as it is listed.
        driver: Who serves it.
        server_prompt: Its name at the server.
        description: What it is for.
    """

    block: str
    prompt: str
    driver: str
    server_prompt: str
    description: str


class Skill(Struct, frozen=True, kw_only=True):
    """A skill, with the prompts that drivers add to it.

    Members:
        name: Its name.
        blocks: What it consists of.
    """

    name: str
    blocks: tuple[SkillBlock, ...]


class Skills(Struct, frozen=True, kw_only=True):
    """The skills to which drivers add prompts.

    Members:
        skills: By name.
    """

    skills: tuple[Skill, ...]


class AddedTool(
    Struct,
    frozen=True,
    kw_only=True,
    rename={"tool_name": "tool", "contract_id": "contract", "tool_class": "class", "is_new": "new"},
):
    """A tool of a server that was added or tried out, with its contract.

    Members:
        tool_name: The tool at the server.
        contract_id: The id of its contract.
        tool_class: read_only, reversible or irreversible.
        by: Where the class comes from: annotations, name, schema, nothing, person, ...
        is_new: Whether the contract was written now, or would be.
        question: What contradicts the class.
    """

    tool_name: str
    contract_id: str
    tool_class: str
    by: str
    is_new: bool
    question: str | None


class Trial(Struct, frozen=True, kw_only=True):
    """A server that was tried out, and the driver that would be written for it. Nothing is written yet.

    Members:
        id: The id of the trial, with which the server is added.
        driver: The id of the driver that would be written.
        tools: The tools of the server, with the contracts and classes that are proposed for them.
        sandbox: What the server could read, write, reach and start.
        expires_at: When the trial ends. The server then has to be tried out again.
    """

    id: str
    driver: str
    tools: tuple[AddedTool, ...]
    sandbox: dict[str, Any]
    expires_at: str


class TrialEvent(Struct, frozen=True, kw_only=True):
    """An event in the stream of a trial: a step, or the result, which ends the stream.

    Members:
        step: What is done now, or a note about the server.
        trial: The result.
    """

    step: str | UnsetType = UNSET
    trial: Trial | UnsetType = UNSET


class AddedDriver(Struct, frozen=True, kw_only=True):
    """A driver that was written for a server.

    Members:
        id: Its id.
        key: ID@MAJOR.
        folder: Its folder.
        files: The files that were written; empty: all of them existed.
        tools: The tools of the server.
        version: The version of the server that was installed.
        protocol_version: The version of MCP that the server speaks.
        problems: Warnings and notes about its files.
        reviews: What a person should look at.
        sandbox: What the server can read, write, reach and start.
        trusted: Whether its files are accepted.
        state: As in the list of drivers.
    """

    id: str
    key: str
    folder: str
    files: tuple[str, ...]
    tools: tuple[AddedTool, ...]
    version: str | None
    protocol_version: str | None
    problems: tuple[Problem, ...]
    reviews: tuple[str, ...]
    sandbox: dict[str, Any]
    trusted: bool
    state: str


_DRIVER_ID: Final = "^[a-z0-9][a-z0-9.-]{1,79}$"
_SHA256: Final = "^[0-9a-f]{64}$"
HOST_CHARS_MAX: Final = 253  # RFC 1035 2.3.4, as text


class TryServer(RequestBody, frozen=True, kw_only=True, rename={"packages": "with"}):
    """A request to try a server out: which server it is, and what it may do. Paths are absolute.

    Members:
        reference: npm:PACKAGE, pypi:PACKAGE, docker:IMAGE, https://..., or the name of a draft. Absent: args are a
            command, which only the local user may name.
        args: Arguments that the server is started with.
        id: The id of the driver; null: it follows from the reference.
        tools: Only these tools, each with the id of its contract, or null; null: all tools.
        classes: The classes of tools.
        env: Variables that the server is started with.
        secrets: Variables, or for an address the bearer token, that are stored as secrets.
        headers: Headers that are sent to an address.
        egress: Hosts that the server may reach.
        programs: Programs that the server may start, such as git.
        packages: Packages to install beside a pypi package.
        replace: Overwrite a driver of this id.
        passed: Variables of the node's environment that the server is given. Only for the local user.
        writes: Folders that the server may write in. Only for the local user.
        environment: Values of variables that the request refers to and the trial uses. Only for the local user.
    """

    reference: str = ""
    args: tuple[str, ...] = ()
    id: Annotated[str, Meta(pattern=_DRIVER_ID)] | None = None
    tools: Mapping[str, str | None] | None = None
    classes: Mapping[str, Literal["read_only", "reversible", "irreversible"]] = {}
    env: Mapping[str, str] = {}
    secrets: tuple[str, ...] = ()
    headers: Mapping[str, str] = {}
    egress: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    replace: bool = False
    passed: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}


class AddDriver(TryServer, frozen=True, kw_only=True):
    """A request to add a server that was tried out, or to try a server out and add it at once.

    Members:
        trial: The id of the trial. Only classes and accept are given with it.
        accept: Accept the classes that only names suggest. Otherwise the first call of each waits.
    """

    trial: str | None = None
    accept: bool = False


class TrustDriver(RequestBody, frozen=True, kw_only=True):
    """A request to accept a driver's files.

    Members:
        digest: The digest of the folder as it was shown.
    """

    digest: Annotated[str, Meta(pattern=_SHA256)]


class AllowHost(RequestBody, frozen=True, kw_only=True):
    """A request to let a driver reach a host that its file does not name.

    Members:
        host: api.example.com or *.example.com
        revoke: Take it back.
    """

    host: Annotated[str, Meta(min_length=1, max_length=HOST_CHARS_MAX)]
    revoke: bool = False


class RunExamples(RequestBody, frozen=True, kw_only=True):
    """A request to run the examples of a driver's contracts.

    Members:
        allow_mutation: Also examples that change something.
    """

    allow_mutation: bool = False


class UpdateDriver(RequestBody, frozen=True, kw_only=True):
    """A request to look at the newest release of a driver's server, or to switch to it.

    Members:
        candidate: What the look named; null: only look.
    """

    candidate: Annotated[str, Meta(pattern=_SHA256)] | None = None


# Errors

UNKNOWN_REFERENCE: Final = ErrorCase("unknown_reference", 409, "the reference names no package, address or draft")
ONLY_LOCAL: Final = ErrorCase(
    "only_local", 403, "only the command on the node's machine may name variables and folders of that machine"
)
UNKNOWN_TRIAL: Final = ErrorCase("unknown_trial", 409, "the caller has no trial of this id, or it has ended")
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
    "forget",
    "Also forget what the next version of this driver would be compared with.",
    choices=("true", "false"),
    default="false",
)


# Operations

LIST_DRIVERS: Final = Operation("GET /admin/drivers", "Every driver of the workspace.", output=Drivers)
ADD_DRIVER: Final = Operation(
    "POST /admin/drivers",
    "Write a driver for a server that was tried out; or install it, start it once to list its tools, and write one.",
    input=AddDriver,
    output=AddedDriver,
    errors=(PROOF_REQUIRED, ONLY_LOCAL, UNKNOWN_REFERENCE, UNKNOWN_TRIAL, DRIVER_EXISTS, NOT_ADDED),
)
TRY_SERVER: Final = Operation(
    "POST /admin/drivers/trials",
    "Install a server and start it once in its sandbox to list its tools. To close the connection stops it.",
    input=TryServer,
    output=TrialEvent,
    is_stream=True,
    errors=(PROOF_REQUIRED, ONLY_LOCAL, UNKNOWN_REFERENCE),
)
GET_DRIVER: Final = Operation(
    "GET /admin/drivers/{name}",
    "One driver, by its id, ID@MAJOR or folder; or a contract, and which driver serves it.",
    output=cast("type[DriverDetail | ServedContract]", DriverDetail | ServedContract),
    errors=(AMBIGUOUS,),
)
REMOVE_DRIVER: Final = Operation(
    "DELETE /admin/drivers/{name}",
    "Delete a driver's folder and stop its server.",
    output=RemovedDriver,
    query=(FORGET,),
    errors=(AMBIGUOUS,),
)
TRUST_DRIVER: Final = Operation(
    "POST /admin/drivers/{name}/trust",
    "Accept a driver's files as they were shown, where no approver could: its server is then started.",
    input=TrustDriver,
    output=DriverSummary,
    errors=(PROOF_REQUIRED, AMBIGUOUS, REJECTED, CHANGED),
)
ALLOW_HOST: Final = Operation(
    "POST /admin/drivers/{name}/allow",
    "Let a driver reach a host that its file does not name.",
    input=AllowHost,
    output=AllowedHosts,
    errors=(AMBIGUOUS, REJECTED, BAD_HOST, TOO_MANY_HOSTS),
)
RUN_EXAMPLES: Final = Operation(
    "POST /admin/drivers/{name}/test",
    "Run the examples of a driver's contracts through it.",
    input=RunExamples,
    output=DriverExamples,
    errors=(AMBIGUOUS, NOT_RUNNING),
)
UPDATE_DRIVER: Final = Operation(
    "POST /admin/drivers/{name}/update",
    "Look at the newest release of a driver's server; with the candidate that this names, switch to it.",
    input=UpdateDriver,
    output=cast("type[DriverUpdate | SwitchedDriver]", DriverUpdate | SwitchedDriver),
    errors=(AMBIGUOUS, NOT_RUNNING, UPDATE_FAILED, NOTHING_TO_UPDATE, NOT_LOOKED_AT),
)

OPERATIONS: Final = operations_in(globals(), "drivers")
