"""interlock export client | driver"""

import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from interlock.cli.command import Invocation, option, verb, verb_app
from interlock.cli.terminal.errors import BadUsage
from interlock.mcp.methods import LATEST_MODERN, META_CAPABILITIES, META_VERSION, TOOLS_LIST
from interlock.wire.refusal import Refused

if TYPE_CHECKING:
    from interlock.drivers.protocol.model import Driver, SecretInventory
    from interlock.interop.protocol.clients import ClientProgram

INSPECTOR: Final = "npx @modelcontextprotocol/inspector"
# Under Node.js 20, npx takes a release that knows no --header: this brings the Node.js that the newer one wants.
INSPECTOR_2: Final = "npx -y -p node@22 -p @modelcontextprotocol/inspector@2 mcp-inspector"


def ways_to_connect(
    url: str, *, config: str | None, data: str | None, token_command: str | None
) -> list[tuple[str, str]]:
    """Return a title and a text to copy for each client. `token_command` is the command that creates a token, or None
    if no token is needed.
    """
    ways = []
    header, curl_header, inspector = "", "", INSPECTOR
    if token_command is not None:
        inspector = INSPECTOR_2
        ways.append(("A token first", f"export INTERLOCK_TOKEN=$({token_command})"))
        header = ' --header "Authorization: Bearer $INTERLOCK_TOKEN"'
        curl_header = '  -H "Authorization: Bearer $INTERLOCK_TOKEN" \\\n'
    where = shlex.quote(url)
    program, *arguments = stdio_command(config, data)
    desktop = {"mcpServers": {"interlock": {"command": program, "args": arguments}}}
    curl = (
        f"curl -s {where} \\\n"
        "  -H 'Content-Type: application/json' \\\n"
        "  -H 'Accept: application/json, text/event-stream' \\\n"
        f"  -H 'MCP-Protocol-Version: {LATEST_MODERN}' -H 'Mcp-Method: {TOOLS_LIST}' \\\n"
        f"{curl_header}"
        f'  -d \'{{"jsonrpc": "2.0", "id": 1, "method": "{TOOLS_LIST}", "params": {{"_meta": {{\n'
        f'    "{META_VERSION}": "{LATEST_MODERN}",\n'
        f'    "{META_CAPABILITIES}": {{}}}}}}}}\''
    )
    ways += [
        ("Inspector", f"{inspector} --cli {where} \\\n  --transport http --method {TOOLS_LIST}{header}"),
        ("Claude Code", f"claude mcp add --transport http interlock {where}{header}"),
        ("Claude Desktop (claude_desktop_config.json)", json.dumps(desktop, indent=2)),
        ("curl", curl),
    ]
    return ways


def stdio_command(config: str | None, data: str | None, *, only: str | None = None) -> list[str]:
    """Return the command with which a client starts this node, with absolute paths.

    Absolute paths are needed because a client starts the command in another folder, with a short PATH and without this
    environment.
    """
    started = Path(sys.argv[0])
    path = shutil.which(str(started))
    if started.name == "__main__.py":
        program = [sys.executable, "-m", "interlock"]
    else:
        program = [str(Path(path).absolute())] if path else ["interlock"]
    command = [*program, "serve", "--stdio"]
    if config is not None:
        command += ["--config", str(Path(config).absolute())]
    if data is not None:
        command += ["--data", str(Path(data).absolute())]
    return command if only is None else [*command, "--only", only]


NAME = "interlock"
TOKEN = "INTERLOCK_TOKEN"  # noqa: S105  (the name of a variable)

For = Annotated[str | None, option("--for", "cursor, claude-code, vscode, ...", "CLIENT")]
Write = Annotated[bool, option("--write", "Put it into the client's file; a backup is kept.")]

app = verb_app(
    "Point other clients at this node, or give a driver away.",
    examples="""
    interlock export client --for cursor
    interlock export client --for claude-desktop --write
    interlock export driver files-mcp --upstream
    """,
)


@verb(app, "client")
def export_client(
    invocation: Invocation,
    *,
    for_client: For = None,
    write: Write = False,
    http: Annotated[
        bool, option("--http", "Connect by the node's URL, not by a program that the client starts.")
    ] = False,
) -> None:
    """Show what a client needs in its file to use this node.

    By default the client starts interlock serve --stdio, which connects to the running node, or becomes the
    node if none runs. No token is needed for that, and none is written.

    Examples:
        interlock export client --for cursor
        interlock export client --for codex --http
        interlock export client --for claude-desktop --write
    """
    from interlock.interop.protocol.client_files import http_entry, stdio_entry, with_token

    client = _client(for_client)
    url, is_running = _find_url(invocation)
    if http and client.stdio_only:
        raise BadUsage("stdio_only", f"{client.title} starts programs only", hint="leave out --http")
    if http and invocation.loaded.plan.auth.anonymous == "never":
        token_entry = with_token(client, NAME, url, TOKEN)
        if token_entry is None:
            message = f"this node asks for a token, and {client.title} would have to keep it in its file"
            hint = "leave out --http: a program that joins the node needs none"
            raise Refused("token_needed", message, hint=hint)
        entry = token_entry
        command = f"interlock access token --for client --name {client.name}"
        invocation.out.remark(f"{client.title} needs {TOKEN} in its environment: {command} makes one")
    elif http:
        entry = http_entry(client, NAME, url, {})
    else:
        entry = stdio_entry(client, NAME, stdio_command(_config(invocation), _data(invocation)), {})
    if is_running:
        invocation.out.remark(f"the node runs at {url}")
    _deliver(invocation, client, NAME, entry, write=write)


def _find_url(invocation: Invocation) -> tuple[str, bool]:
    """Return the URL at which clients reach the node, and whether a running node has reported it. If no node runs, the
    URL comes from the configuration, and the node may later use a different one.
    """
    from interlock.cli.terminal.text import mcp_url
    from interlock.interop.cli.import_ import own_addresses
    from interlock.operator.api import GET_STATUS, Status

    try:
        return invocation.node.call(GET_STATUS).as_(Status).node.mcp_url, True
    except Refused:
        return mcp_url(own_addresses(invocation)[-1]), False


@verb(app, "driver")
def export_driver(
    invocation: Invocation,
    identifier: Annotated[str, typer.Argument(metavar="ID", help="The driver's folder in .drivers/.")],
    *,
    for_client: For = None,
    write: Write = False,
    upstream: Annotated[bool, option("--upstream", "DRIVER.md as other hosts read it.")] = False,
    server_json: Annotated[bool, option("--server-json", "As an MCP registry describes it.")] = False,
    name: Annotated[str | None, option("--name", "Its name in the registry.", "NAME")] = None,
) -> None:
    """Give a driver to another host, a registry or a client.

    No secret is in what is written: a client that expands variables gets their names, and any other one runs the
    driver through Interlock.

    Examples:
        interlock export driver files-mcp --upstream
        interlock export driver files-mcp --server-json --name io.github.me/files
        interlock export driver files-mcp --for cursor
    """
    from interlock.drivers.protocol.authoring import driver_upstream
    from interlock.drivers.protocol.files.frontmatter import frontmatter_text
    from interlock.drivers.protocol.server_name import exposed_segment
    from interlock.interop.protocol.client_files import driver_entry, stdio_entry
    from interlock.interop.protocol.package_files import registry_description

    if sum((upstream, server_json, for_client is not None)) != 1:
        raise BadUsage("usage", "say what to make of it", hint="one of --upstream, --server-json, --for CLIENT")
    driver, data, secrets = _read_driver(invocation, identifier)
    if upstream:
        result = driver_upstream(data)
        text = frontmatter_text(result.data).rstrip("\n")
        if invocation.out.as_json:
            value = {"text": frontmatter_text(result.data), "lost": list(result.lost), "changed": list(result.changed)}
            invocation.out.json(value)
            return
        invocation.out.document(text)
        for key in result.changed:
            invocation.out.remark(f"in other words: {key}")
        for key in result.lost:
            invocation.out.remark(f"lost: {key}")
    elif server_json:
        description = registry_description(driver, data, name)
        if description is None:
            server = exposed_segment(driver.id)
            message = f"{server} is a program of this machine; a registry describes packages and addresses"
            raise Refused("not_describable", message, hint="publish it as a package first")
        data, lost = description
        invocation.out.json(data)
        for key in lost:
            invocation.out.remark(f"lost: {key}")
    else:
        client = _client(for_client)
        short_name = driver.id.removesuffix("-mcp") or driver.id
        exported = driver_entry(driver, secrets, client, short_name)
        if exported is None:
            command = stdio_command(_config(invocation), _data(invocation), only=exposed_segment(driver.id))
            entry = stdio_entry(client, short_name, command, {})
            invocation.out.remark(f"{client.title} runs it through Interlock, which keeps its secrets")
        else:
            entry, variables = exported
            for variable in variables:
                invocation.out.remark(f"{client.title} needs the environment variable {variable}")
        _deliver(invocation, client, short_name, entry, write=write)


def _client(name: str | None) -> "ClientProgram":
    from interlock.interop.cli.import_ import known_client

    if name is None:
        raise BadUsage("usage", "say for which client", hint="interlock export client --for cursor")
    return known_client(name)


def _config(invocation: Invocation) -> str | None:
    """Return the configuration file that the client's entry must name, or None if there is no such file.

    An entry must name the file because a client starts programs in another folder.
    """
    named = invocation.config or os.environ.get("INTERLOCK_CONFIG")
    if named:
        return named
    paths = invocation.loaded.paths
    if not paths:
        invocation.out.remark("warning: there is no configuration file, so a client would start an empty node")
    return str(paths[0]) if paths else None


def _data(invocation: Invocation) -> str | None:
    return invocation.data or os.environ.get("INTERLOCK_DATA") or None


def _deliver(invocation: Invocation, client: "ClientProgram", name: str, entry: dict[str, Any], *, write: bool) -> None:
    from interlock.interop.cli.import_ import own_addresses
    from interlock.interop.protocol.text_edits import CannotEdit, UnreadableFile, with_entry
    from interlock.interop.source_files import ClientMachine, client_file, look, put_entry, without_own

    out = invocation.out
    machine = ClientMachine.this(os.environ, invocation.loaded.plan.workspace)
    path = client_file(client, machine)
    text = with_entry("", client, name, entry)  # a whole file with only this entry, to copy from
    if not write:
        if out.as_json:
            out.json({"client": client.name, "path": str(path), "entry": entry, "text": text, "written": False})
            return
        out.remark(f"for {path}:")
        out.document(text.rstrip("\n"))
        return
    try:
        is_changed, backup_path = put_entry(path, client, name, entry)
    except (CannotEdit, UnreadableFile) as cannot:
        hint = f"nothing was changed; interlock export client --for {client.name} prints the entry to paste"
        raise Refused("not_written", f"{path}: {cannot}", hint=hint) from None
    backup = None if backup_path is None else str(backup_path)
    beside: list[str] = []  # the other servers that the client has, in all its files
    if name == NAME:
        own = own_addresses(invocation)
        entries = [each for file in look(machine, [client]) for each in without_own(file, own).reading.entries]
        beside = list(dict.fromkeys(each.name for each in entries if each.disabled is None and each.name != NAME))
    if out.as_json:
        report = {"client": client.name, "path": str(path), "entry": entry, "written": is_changed, "backup": backup}
        out.json({**report, "beside": beside})
        return
    out.line(f"wrote {name} to {path}" if is_changed else f"{path} has it already")
    if backup is not None:
        out.line(f"as it was: {backup}")
        out.remark("warning: the backup still holds whatever secrets were in the file; remove it when you are content")
    if beside:
        out.line(f"still configured in {client.title} beside {name}: {', '.join(beside)}")
        out.remark(f"{client.title} goes on to start these itself, past this node: remove there what you have imported")
    if is_changed:
        out.remark(f"restart {client.title} to have it look again")


def _read_driver(invocation: Invocation, identifier: str) -> "tuple[Driver, dict[str, Any], SecretInventory | None]":
    from interlock.drivers.protocol.files.driver import DRIVER_FILE, read_driver
    from interlock.drivers.protocol.files.inventory import SECRETS_FILE, read_secrets
    from interlock.drivers.workspace.folder import read_imported_folder
    from interlock.drivers.workspace.scan import DRAFT_FILE, find_driver_folder

    path = find_driver_folder(invocation.loaded.plan.workspace, identifier, DRIVER_FILE, DRAFT_FILE)
    if path is None:
        raise Refused("not_found", f"there is no driver {identifier}", hint="interlock drivers list shows them")
    folder = read_imported_folder(path)
    if folder.file != DRIVER_FILE:
        raise Refused("not_ready", f"{identifier} is a draft", hint=f"interlock add {identifier} asks its server first")
    plan = invocation.loaded.plan
    reading = read_driver(folder.text.encode(), str(path / DRIVER_FILE), insecure_hosts=plan.drivers.insecure_hosts)
    if reading.value is None:
        raise Refused("driver_invalid", str(reading.errors[0]), hint="interlock check shows every problem")
    secrets = read_secrets(folder.secrets_text.encode(), SECRETS_FILE).value if folder.secrets_text else None
    return reading.value, dict(folder.data), secrets
