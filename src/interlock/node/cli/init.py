"""The verb `interlock init`, and the first configuration that it writes.

Its example servers need no account. On a machine with a sandbox they run in one without network, and two of them may
write in a folder beside the file.
"""

import os
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from interlock.approvals.cli.keys import FromDescriptor
from interlock.cli.command import Invocation, find_running_folder, verb, verb_app
from interlock.cli.terminal.errors import BadUsage
from interlock.cli.terminal.output import prompt
from interlock.cli.terminal.text import VARIABLE, as_typed, command_line
from interlock.wire.refusal import Refused

app = verb_app("Write a first configuration and make an operator's key.")

# What is said wherever no one may approve yet.
FIRST_APPROVER: Final = (
    "Until an approver is enrolled, anyone who controls this account can become it, agents included"
    " (in tmux or screen an agent can read the setup code)."
)


@verb(app, "init")
def init(
    invocation: Invocation,
    *,
    force: Annotated[bool, typer.Option("--force")] = False,
    key: Annotated[str | None, typer.Option("--key", metavar="NAME", show_default="your user name")] = None,
    no_key: Annotated[bool, typer.Option("--no-key")] = False,
    no_passphrase: Annotated[bool, typer.Option("--no-passphrase")] = False,
    passphrase_fd: FromDescriptor = None,
    passkey: Annotated[bool, typer.Option("--passkey")] = False,
    wait: Annotated[str | None, typer.Option("--wait", metavar="TIME", show_default="5m")] = None,
) -> None:
    """Write a first interlock.toml, and make your key.

    Its servers need no account. With the key you approve calls that cannot be undone. If no node has used the data
    folder yet, the key is enrolled at once, so that no one else can be the first approver. An existing file is kept; if
    no key in it may approve, yours is added. A passkey is made with the node running: with --passkey the first run
    writes the file, the second run adds the passkey to it.

    Options:
        force: Overwrite an existing file.
        key: What your key is called.
        no_key: Make no key: calls cannot be approved yet.
        no_passphrase: Every program that can read the key's file can approve.
        passkey: A passkey of your browser instead of a key in a file.
        wait: How long a call waits for your decision, such as 15m. It is asked on a terminal.

    Examples:
        interlock init
        interlock init --config team.toml --data ./data
        interlock init --key ada --force
        interlock init --passkey
    """
    from interlock.approvals.cli.keys import OwnKey, add_passkey, add_to, find_or_make_own_key
    from interlock.config.load import FILE_NAME
    from interlock.node.cli.machine import no_sandbox

    variable = None if invocation.config else os.environ.get("INTERLOCK_CONFIG")
    is_exported = bool(variable) and VARIABLE not in os.environ
    named = invocation.config or variable
    path = Path(named) if named else Path(FILE_NAME)

    def own_key() -> OwnKey | None:
        return (
            None
            if no_key or passkey
            else find_or_make_own_key(invocation, key, passphrase_fd, no_passphrase=no_passphrase)
        )

    out = invocation.out
    if path.is_file() and not force and passkey:
        add_passkey(invocation, path, key)
        return
    if path.is_file() and not force:
        new_key = add_to(invocation, path, own_key)
        invocation.config = str(path)
        enrolled = _enrol_first(invocation)
        if new_key is None and not enrolled:
            is_keyless = not (no_key or passkey) and not any(each.approves for each in invocation.loaded.plan.anchors)
            raise _overwrite_refusal(path, by_variable=is_exported, is_keyless=is_keyless)
        if out.as_json:
            key_made = new_key.as_json() if new_key is not None else None
            out.json({"config": str(path.absolute()), "operator_key": key_made, "enrolled": enrolled})
            return
        if new_key is not None:
            out.line(f"added your key {new_key.name} to {path}")
        if enrolled:
            out.line(f"{', '.join(enrolled)} may approve calls from the first start on; no one else can be the first")
        else:
            out.line(as_typed("Confirm it once: interlock status says how."))
        return
    new_key = own_key()
    without = no_sandbox()
    text = starter_toml(workspace=path.absolute().parent, is_sandboxed=without is None)
    text += _waiting_toml(wait)
    text = text if new_key is None else f"{text}\n{new_key.toml()}"
    _write(path, text, force=force, by_variable=is_exported)
    invocation.config = str(path)
    plan = invocation.loaded.plan
    try:
        plan.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        message = f"the data folder {plan.data} cannot be made: {error.strerror}"
        raise Refused("not_written", message, hint="choose another with --data") from None
    for name in FOLDERS:
        (path.parent / name).mkdir(exist_ok=True)
    enrolled = _enrol_first(invocation)

    if out.as_json:
        servers = [server.segment for server in plan.servers]
        key_made = new_key.as_json() if new_key is not None else None
        out.json(
            {
                "config": str(path.absolute()),
                "data": str(plan.data),
                "servers": servers,
                "operator_key": key_made,
                "enrolled": enrolled,
            }
        )
        return
    servers_named = ", ".join(server.segment for server in plan.servers)
    out.line(f"wrote {path} with {len(plan.servers)} servers: {servers_named}")
    if without is None:
        beside = " and ".join(f"{path.parent / name}/" for name in FOLDERS)
        out.line(f"each runs in a sandbox without network; two may write, in {beside}")
    else:
        out.line(f"they run with all your rights, because there is no sandbox: {without}")
    out.line(f"data goes to {plan.data}")
    for device in plan.devices.described:
        if device.fault is not None:
            out.remark(f"the device {device.segment} cannot be used: {device.fault}")
    if new_key is not None:
        which = f"your key {new_key.name}" if new_key.is_new else f"the key {new_key.name}, which you had already,"
        out.line(f"{which} approves calls: {new_key.file}")
    if enrolled:
        out.line(f"{', '.join(enrolled)} may approve from the first start on; no one else can be the first")
    else:
        out.line(as_typed("Confirm it once: interlock status says how.") if new_key is not None else FIRST_APPROVER)
    out.line()
    out.line("Next:")
    steps = {"check": "finds mistakes after you edit the file", "serve": "starts the node and prints how to connect"}
    if passkey:
        steps["init --passkey"] = "then, beside it: makes your passkey in a browser"
    lines = [(command_line(*words.split(), config=named, data=invocation.data), does) for words, does in steps.items()]
    width = max(len(command) for command, _ in lines)
    for command, does in lines:
        out.line(f"  {command:<{width}}  {does}")


WAIT_S: Final = (30, 86_400)  # of approvals.expiry_s


def _waiting_toml(wait: str | None) -> str:
    """Return the configuration lines that set how long a call waits for a decision. The time comes from an option or
    from a person at the terminal; for the default time, return nothing. Raise BadUsage if the time is too short or too
    long.
    """
    from interlock.approvals.cli.grants import seconds_of
    from interlock.approvals.cli.keys import can_ask

    if wait is None and can_ask():
        wait = prompt("How long may a call wait for your decision, for instance 15m or 2h?", default="5m")
    seconds = seconds_of(wait)
    if seconds is None:
        return ""
    if not WAIT_S[0] <= seconds <= WAIT_S[1]:
        raise BadUsage("bad_time", "a call waits for 30 seconds to a day", hint="for instance --wait 15m")
    return f"\n[approvals]\nexpiry_s = {seconds:g}   # a call waits this long for a decision, and expires then\n"


def _enrol_first(invocation: Invocation) -> tuple[str, ...]:
    """Enrol the approvers of the configuration if nothing has used the data folder before. Return their names.

    Otherwise a program that edits the configuration before the first start could become the first approver. Replicas
    that share a store do this when the first of them starts.
    """
    plan = invocation.loaded.plan
    if not any(anchor.approves for anchor in plan.anchors) or plan.store.backend != "sqlite":
        return ()
    if find_running_folder(invocation) is not None:
        return ()
    from interlock.cli.client.offline import enrol_stored

    plan.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    # AX-11.N-7: before the first start
    return enrol_stored(plan, plan.data, invocation.loaded.guarded)


def _write(path: Path, text: str, *, force: bool, by_variable: bool) -> None:
    """Write the first configuration to a file. With `force`, an existing file is replaced.

    Raise Refused if it cannot be written, or if it exists and `force` is not set.

    `by_variable` says that the environment variable INTERLOCK_CONFIG names the file.
    """
    if path.is_dir():
        raise Refused("is_folder", f"{path} is a folder", hint=f"--config {path / 'interlock.toml'}")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if force:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        else:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
    except FileExistsError:
        raise _overwrite_refusal(path, by_variable=by_variable) from None
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise Refused("not_written", f"{path} cannot be written: {error.strerror}") from None


def _overwrite_refusal(path: Path, *, by_variable: bool, is_keyless: bool = False) -> Refused:
    """Return the refusal for an existing configuration file that would be overwritten.

    `by_variable` says that INTERLOCK_CONFIG in the environment names the file. `is_keyless` says that it names no
    approver, and that no key could be made for it: --force would remove the servers of the file for nothing.
    """
    hint = "unset INTERLOCK_CONFIG, which names it, or write elsewhere with --config" if by_variable else None
    if is_keyless:
        hint = as_typed("interlock init in a terminal, or with INTERLOCK_PASSPHRASE, adds your key to it")
    return Refused("exists", f"{path} is already there", hint=hint or "--force writes over it")


FOLDERS: Final = ("memory", "files")  # beside the file, which these servers may read and write
EXAMPLES: Final[dict[str, tuple[str, dict[str, Any]]]] = {  # segment -> (what it is, its table)
    "time": ("The time anywhere, from a PyPI package.", {"pypi": "mcp-server-time"}),
    "memory": (
        "A small knowledge graph, from an npm package; kept in the folder memory.",
        {"npm": "@modelcontextprotocol/server-memory"},
    ),
    "files": (
        "The files in the folder files, from an npm package.",
        {"npm": "@modelcontextprotocol/server-filesystem", "args": ["files"]},
    ),
}
_MEMORY: Final = "MEMORY_FILE_PATH"
_UNAVAILABLE: Final = "# It runs with all your rights; with bubblewrap (docs/sandbox.md) these lines are its limits:"

_HEAD: Final = """\
# Interlock: many MCP servers, one namespace, one guard.
#   interlock check    finds mistakes in this file
#   interlock serve    starts the node, which takes up what changes here while it runs
# Every key has a default; `interlock check --effective` prints them all.

[node]
listen = "127.0.0.1:7411"            # MCP clients: http://127.0.0.1:7411/mcp
operator_listen = "127.0.0.1:7412"   # people

[auth]
anonymous = "loopback"   # programs on this machine need no token; or "never"

[gate]
# With nodes below that ask people themselves: mode = "defer" leaves it to them, so that each call is asked about once.
mode = "gated"             # what cannot be undone waits for you: interlock approvals, interlock approve ID
unannotated = "classify"   # a tool that does not say what it does is asked about once; "allow" lets it run
"""

_TAIL: Final = """\
# More ways to reach a server:
# [servers.mine]
# command = "python my_server.py"
# env = { API_KEY = "${env:MY_API_KEY}" }
#
# [servers.remote]
# url = "https://mcp.example.com/mcp"
# headers = { Authorization = "Bearer ${env:REMOTE_TOKEN}" }   # not needed for OAuth: interlock status says what is
"""


def starter_toml(*, workspace: Path = Path("/"), is_sandboxed: bool = True) -> str:
    """Return the text of the first configuration, which `interlock init` writes.

    `workspace` is the folder of the file, which contains `FOLDERS`. `is_sandboxed` says whether this machine supports
    sandboxes.
    """
    from interlock.config.toml_text import toml_lines, toml_text

    blocks = [_HEAD]
    for segment, (about, table) in EXAMPLES.items():
        lines = [f"[servers.{segment}]", *toml_lines(table)]
        if segment == "memory":
            lines.append(f"env = {toml_text({_MEMORY: str(workspace / 'memory' / 'memory.jsonl')})}")
        limits = ["egress = []   # a sandbox without network"]
        if segment in FOLDERS:
            limits.append(f"files = {toml_text([segment])}")
        lines += limits if is_sandboxed else [_UNAVAILABLE, *(f"# {limit}" for limit in limits)]
        blocks.append("\n".join((f"# {about}", *lines, "")))
    return "\n".join((*blocks, _TAIL))
