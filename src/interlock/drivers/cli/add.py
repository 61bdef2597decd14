"""interlock add"""

import logging
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import UNSET

from interlock.approvals.cli.keys import can_ask, require_terminal
from interlock.catalog.cli.classify import CLASSES, ask_classes, classes_of, reason
from interlock.cli.command import Invocation, option, verb, verb_app
from interlock.cli.terminal.errors import BadUsage, Unreachable
from interlock.cli.terminal.output import confirm, prompt
from interlock.drivers.protocol.server_name import server_name
from interlock.wire.refusal import Refused

if TYPE_CHECKING:
    from interlock.ax.protocol.capability import ToolClass
    from interlock.cli.client.offline import OfflineNode
    from interlock.cli.client.operator import Answer, OperatorClient
    from interlock.drivers.add import ServerAdder
    from interlock.drivers.api import AddedTool, DriverSummary, Trial, TryServer
    from interlock.drivers.cli.discover import Discovery

SETTLE_S = 30.0
WRITE_TIMEOUT_S = 600.0  # the server is started once more, after the trials of other callers
DNS = "dns:"
SETTLE_LOOK_S = 0.2

Texts = list[str] | None

app = verb_app("Make a driver of an MCP server.")


@verb(app, "add")
def add(
    invocation: Invocation,
    reference: Annotated[str, typer.Argument(metavar="REF")],
    args: Annotated[list[str] | None, typer.Argument(metavar="[-- ARG...]", show_default=False)] = None,
    *,
    as_id: Annotated[str | None, option("--as", metavar="ID")] = None,
    tools: Annotated[str | None, option("--tools", metavar="TOOL[:CONTRACT],…")] = None,
    classes: Annotated[Texts, option("--class", f"{', '.join(CLASSES)}; may be repeated.", "TOOL=CLASS")] = None,
    env: Annotated[Texts, option("--env", metavar="NAME[=VALUE]")] = None,
    secret: Annotated[Texts, option("--secret", metavar="NAME")] = None,
    header: Annotated[Texts, option("--header", metavar="NAME=VALUE")] = None,
    egress: Annotated[Texts, option("--egress", metavar="HOST")] = None,
    program: Annotated[Texts, option("--program", metavar="NAME")] = None,
    write: Annotated[Texts, option("--write", metavar="PATH")] = None,
    with_: Annotated[Texts, option("--with", metavar="PACKAGE")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y")] = False,
    replace: Annotated[bool, option("--replace")] = False,
    no_trust: Annotated[bool, option("--no-trust")] = False,
) -> None:
    """Make a driver of an MCP server.

    Installs it, starts it once inside its sandbox to ask for its tools, proposes what each of them may do, and writes
    .drivers/ID/ when you agree. No tool is called, and nothing is left running. If a node runs, it does this itself.

    Options:
        reference: npm:PACKAGE, pypi:PACKAGE, docker:IMAGE, https://…, dns:DOMAIN, ./program, or a draft's name.
        args: What the server is started with.
        as_id: What the driver is called.
        tools: Only these tools, with these contracts.
        env: A variable it is started with; may be repeated.
        secret: A variable, or a bearer token, that is kept as a secret.
        header: A header that is sent to a server at an address.
        egress: A host it may reach; may be repeated.
        program: A program it may start, like git; may be repeated.
        write: A folder it may write in; may be repeated.
        with_: Installed beside a pypi package.
        yes: Accept the proposed classes without asking.
        replace: Overwrite a driver of this id.
        no_trust: Write the driver, but do not trust it yet.

    Examples:
        interlock add npm:@modelcontextprotocol/server-filesystem -- ~/Documents
        interlock add pypi:mcp-server-git --program git -- --repository .
        interlock add https://mcp.example.com/mcp --secret TOKEN
        interlock add docker:mcp/time --yes
        interlock add dns:example.com
        interlock add -- node ./server.js --port 0
        interlock add notes
    """
    if invocation.remote_url is not None:
        raise BadUsage("usage", "add writes a driver here and takes no --url")
    from interlock.drivers.api import TryServer

    headers = _parse_assignments(header or [], "--header")
    discovery: Discovery | None = None
    url = ""
    if reference.startswith(DNS):
        url, discovery = _find_by_dns(invocation, reference.removeprefix(DNS), yes=yes)
    reference, absolute_args = as_command(url or reference, tuple(args or ()))
    variables = _parse_assignments(env or [], "--env")
    pairs = [part.strip().partition(":") for part in (tools or "").split(",") if part.strip()]
    contracts = {tool: contract or None for tool, _, contract in pairs}
    if tools is not None and not contracts:
        raise BadUsage("usage", "--tools names no tool", hint="--tools read_file:fs-read,write_file:fs-write")
    request = TryServer(
        reference=reference,
        args=absolute_args,
        id=as_id,
        tools=contracts or None,
        classes=classes_of(classes or []),
        env={
            name: absolute(value) if value.startswith(("./", "../", "~/")) else value
            for name, value in variables.items()
            if value is not None
        },
        passed=tuple(name for name, value in variables.items() if value is None),
        secrets=tuple(secret or ()),
        headers={name: value or "" for name, value in headers.items()},
        egress=tuple(egress or ()),
        programs=tuple(program or ()),
        writes=tuple(writable(each) for each in write or ()),
        packages=tuple(with_ or ()),
        replace=replace,
    )
    add_server(invocation, request, yes=yes, no_trust=no_trust)
    if discovery is not None:
        from interlock.drivers.cli.discover import pin_key

        pin_key(invocation, discovery, url)


def _find_by_dns(invocation: Invocation, domain: str, *, yes: bool) -> "tuple[str, Discovery]":
    """Return the server address that the DNS records of a domain name, with what was found, after the user agreed to
    connect to it (REG-7.1-4). With `yes`, the address is only printed. Raise Refused if the user does not agree or
    cannot be asked.
    """
    from interlock.drivers.cli.discover import chosen_server, find_servers

    discovery = find_servers(invocation, domain, tries=False)
    url = chosen_server(domain, discovery)
    text = f"{url}, found at {discovery.name}, {discovery.dnssec}"
    if yes:
        invocation.out.remark(text)
        return url, discovery
    require_terminal(f"run it on a terminal, with --yes, or name the server: interlock add {url}")
    if not confirm(f"{text}. Connect to it?"):
        raise Refused("not_confirmed", "nothing was connected to, and nothing was done")
    return url, discovery


def add_server(invocation: Invocation, request: "TryServer", *, yes: bool = False, no_trust: bool = False) -> None:
    """Add a server to the workspace, ask the person about its tools, and trust its driver.

    With `yes`, the proposed classes are accepted without asking. With `no_trust`, the driver stays untrusted.
    """
    if not (yes or no_trust):
        hint = "run it on a terminal, or with --yes; with --no-trust it waits for interlock drivers trust NAME"
        require_terminal(hint)
    from interlock.drivers.api import ADD_DRIVER, AddDriver, AddedDriver
    from interlock.drivers.cli.driver_lines import show_added

    request = _with_environment(request)
    try:
        with quiet_log(invocation):
            node, trial = _try_out(invocation, request)
            classes, accept = _ask_about_tools(invocation, trial.tools, yes, no_trust)
            invocation.out.remark("registering it")
            body = AddDriver(trial=trial.id, classes=classes, accept=accept)
            added = node.call(ADD_DRIVER, body=body, timeout=WRITE_TIMEOUT_S).as_(AddedDriver)
    except Refused as error:
        if error.code in ("usage", "unknown_reference", "invalid_body"):
            raise BadUsage(error.code, error.message, error.details, hint=error.hint) from None
        raise
    state = None if no_trust else trust_driver(invocation, added.key)
    show_added(invocation.out, added, state=state)


def _with_environment(request: "TryServer") -> "TryServer":
    """Return the request with the values of the variables that it names. The user is asked for a secret that has no
    value.
    """
    from msgspec.structs import replace

    from interlock.interop.protocol.translation import Placeholder, secret_name, split_parts

    texts = (request.reference, *request.args, *request.env.values(), *request.headers.values())
    names = {*request.passed, *(word for text in texts for word in re.findall(r"[A-Za-z_]\w*", text, re.ASCII))}
    values = {name: os.environ[name] for name in names if name in os.environ}
    parts = (part for text in texts for part in split_parts(text, "common"))
    inputs = (part.name for part in parts if isinstance(part, Placeholder) and part.kind == "input")
    for name in dict.fromkeys(secret_name(each) for each in (*request.secrets, *inputs)):
        value = os.environ.get(name)
        if not value and can_ask():
            value = prompt(name, default="", is_hidden=True)
        if value:
            values[name] = value
    return replace(request, environment=values)


def _try_out(invocation: Invocation, request: "TryServer") -> "tuple[OperatorClient | OfflineNode, Trial]":
    """Let the running node try the server out, or do it in this process if no node runs. Each step is printed.

    Return who did it, and the trial.
    """
    from interlock.drivers.api import TRY_SERVER, TrialEvent

    trials: list[Trial] = []

    def on_event(answer: "Answer") -> None:
        event = answer.as_(TrialEvent)
        if event.step is not UNSET:
            invocation.out.remark(event.step)
        if event.trial is not UNSET:
            trials.append(event.trial)

    node: OperatorClient | OfflineNode = invocation.node
    try:
        node.follow(TRY_SERVER, on_event, body=request)
    except Unreachable as away:
        if not invocation.is_stopped(away):
            raise
        node = invocation.offline_node
        node.follow(TRY_SERVER, on_event, body=request)
    if not trials:
        raise Refused("unexpected_answer", "the node ended its answer before the result", hint="is it still running?")
    return node, trials[0]


def open_adder(invocation: Invocation) -> "ServerAdder":
    """Return a ServerAdder for this workspace that prints its progress."""
    from interlock.drivers.add import ServerAdder

    return ServerAdder(invocation.loaded.plan, invocation.out.remark, environment=os.environ)


@contextmanager
def quiet_log(invocation: Invocation) -> Iterator[None]:
    """Hide all log messages below CRITICAL while the context is active, because the command itself prints what matters.

    With --debug the log stays as it is.
    """
    log = logging.getLogger("interlock")
    level = log.level
    if not invocation.debug:
        log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def _ask_about_tools(
    invocation: Invocation, tools: "tuple[AddedTool, ...]", yes: bool, no_trust: bool
) -> "tuple[Mapping[str, ToolClass], bool]":
    """Ask the user about the classes of the proposed tools. Return the classes that the user chose, and whether the
    other tools get the classes that were proposed for them.

    With `yes`, all proposed classes are accepted without asking. Otherwise, if no person can be asked, a class that
    only the name or schema of a tool suggests, or nothing at all, is not accepted, and the tool stays undecided.
    """
    out = invocation.out
    for tool in tools:
        if tool.by == "person" and tool.question is not None:
            out.remark(f"note: {tool.tool_name}: {tool.question}")
    if yes or not can_ask() or (out.as_json and no_trust):
        return {}, yes
    from interlock.drivers.add import decide_classes
    from interlock.drivers.cli.driver_lines import show_proposals

    def show(classes: "Mapping[str, ToolClass]") -> None:
        decided = decide_classes(tools, classes, accept=False)
        if not out.as_json:
            show_proposals(out, decided)
            return
        # stdout is JSON, so the proposals are printed on stderr.
        for each in decided:
            out.remark(f"{each.tool_name}: {each.tool_class}, {reason(each.by, each.question)}")

    names = {tool.tool_name: tool.tool_name for tool in tools if tool.is_new}
    return ask_classes("Write it?", names, show, out.remark, nothing_done="nothing was written"), True


def _parse_assignments(texts: Sequence[str], option: str) -> dict[str, str | None]:
    values: dict[str, str | None] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or (not equals and option != "--env"):
            raise BadUsage("usage", f"{option} is NAME=VALUE", hint="interlock add --help")
        values[name] = value if equals else None
    return values


def trust_driver(invocation: Invocation, key: str, *, signs: bool = True) -> "DriverSummary":
    """Trust the driver files that were just written, wait a short time until the server has started, and return the
    driver.

    The files stay untrusted if an approver has to sign and no node is running, or if `signs` is not set.
    """
    from interlock.drivers.api import DriverDetail, DriverSummary
    from interlock.drivers.cli.drivers import accept_files, get_driver

    driver = get_driver(invocation, key).as_(DriverDetail)
    if driver.trusted:
        return driver
    try:
        now = accept_files(invocation, key, driver.digest, signs=signs).as_(DriverSummary)
    except Refused as refused:
        if refused.code == "proof_required" and ("approval" not in refused.details or not signs):
            return driver
        hint = f"its files are written; interlock drivers trust {server_name(key)} accepts them"
        raise refused.with_hint(hint) from None
    # Wait a short time for a running node to start the driver.
    end = time.monotonic() + SETTLE_S
    while now.state in ("installing", "checking") and time.monotonic() < end:
        time.sleep(SETTLE_LOOK_S)
        now = get_driver(invocation, key).as_(DriverSummary)
    return now


def as_command(reference: str, args: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the reference and the arguments of the server to add, with file paths made absolute. If the reference is a
    command of this machine, the returned reference is empty and the command is the first argument.
    """
    from interlock.interop.protocol.launchers import PACKAGED

    here = tuple(absolute(each) for each in args)
    is_kind = ":" in reference and reference.partition(":")[0] in (*PACKAGED, "http", "https")
    if is_kind or (reference.startswith("@") and not Path(reference).exists()):
        return reference, here
    if "/" in reference:
        return "", (str(Path(reference).expanduser().absolute()), *here)
    if args or shutil.which(reference):
        return "", (reference, *here)
    return reference, here


def absolute(text: str) -> str:
    """Convert an argument that names a file in the current folder to an absolute path, because the server starts in a
    different folder.
    """
    if text in (".", "..") or text.startswith(("./", "../", "~/")):
        return str(Path(os.path.abspath(Path(text).expanduser())))  # noqa: PTH100  (without following links)
    looks = not text.startswith(("-", "/")) and ("/" in text or "." in text) and ":" not in text and "@" not in text
    return str(Path(text).absolute()) if looks and Path(text).exists() else text


def writable(text: str) -> str:
    path = Path(os.path.abspath(Path(text).expanduser()))  # noqa: PTH100  (without following links)
    if not path.is_dir():
        raise BadUsage("usage", f"--write {text}: there is no such folder", hint="make it first")
    return str(path)
