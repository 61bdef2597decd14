"""interlock export client | driver"""

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlock.cli.command import Invocation, verb, verb_app
from interlock.cli.terminal.errors import BadUsage, Refused

if TYPE_CHECKING:
    from interlock.drivers.protocol.model import Driver, Secrets
    from interlock.interop.client_discovery import Machine
    from interlock.interop.protocol.clients import Client

NAME = "interlock"
TOKEN = "INTERLOCK_TOKEN"  # noqa: S105  (the name of a variable)

For = Annotated[
    str | None, typer.Option("--for", metavar="CLIENT", help="cursor, claude-code, vscode, ...", show_default=False)
]
Write = Annotated[bool, typer.Option("--write", help="Put it into the client's file; a backup is kept.")]

app = verb_app(
    "Point other clients at this node, or give a driver away.",
    examples="""
    interlock export client --for cursor
    interlock export client --for claude-desktop --write
    interlock export driver files-mcp --upstream
    """,
)


@verb(
    app,
    "client",
    examples="""
    interlock export client --for cursor
    interlock export client --for codex --http
    interlock export client --for claude-desktop --write
    """,
)
def export_client(
    invocation: Invocation,
    *,
    for_client: For = None,
    write: Write = False,
    http: Annotated[bool, typer.Option("--http", help="By the node's URL; else by a program it starts.")] = False,
) -> None:
    """Show what a client needs in its file to use this node.

    By default the client starts interlock serve --stdio, which joins the node that runs, or is one. No token is
    needed for that, and none is written.
    """
    from interlock.cli.terminal.text import mcp_url
    from interlock.interop.cli.client_snippets import stdio_command
    from interlock.interop.protocol.write.client_entry import http_entry, stdio_entry

    client = _client(for_client)
    if http and client.stdio_only:
        raise BadUsage("stdio_only", f"{client.title} starts programs only", hint="leave out --http")
    if http and invocation.loaded.plan.auth.anonymous == "never":
        entry = _with_token(invocation, client)
    elif http:
        entry = http_entry(client, NAME, mcp_url(_public_url(invocation)), {})
    else:
        entry = stdio_entry(client, NAME, stdio_command(_config(invocation), _data(invocation)), {})
    _give(invocation, client, NAME, entry, write=write)


@verb(
    app,
    "driver",
    examples="""
    interlock export driver files-mcp --upstream
    interlock export driver files-mcp --server-json --name io.github.me/files
    interlock export driver files-mcp --for cursor
    """,
)
def export_driver(
    invocation: Invocation,
    identifier: Annotated[str, typer.Argument(metavar="ID", help="The driver's folder in .drivers/.")],
    *,
    for_client: For = None,
    write: Write = False,
    upstream: Annotated[bool, typer.Option("--upstream", help="DRIVER.md as other hosts read it.")] = False,
    server_json: Annotated[bool, typer.Option("--server-json", help="As an MCP registry describes it.")] = False,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Its name in the registry.", show_default=False)
    ] = None,
) -> None:
    """Give a driver to another host, a registry or a client.

    No secret is in what is written: a client that expands variables gets their names, and any other one runs the
    driver through Interlock.
    """
    if sum((upstream, server_json, for_client is not None)) != 1:
        raise BadUsage("usage", "say what to make of it", hint="one of --upstream, --server-json, --for CLIENT")
    driver, data, secrets = _driver(invocation, identifier)
    if upstream:
        _upstream(invocation, data)
    elif server_json:
        _server_json(invocation, driver, data, name)
    else:
        _for_client(invocation, driver, secrets, _client(for_client), write=write)


def _with_token(invocation: Invocation, client: "Client") -> dict[str, Any]:
    from interlock.cli.terminal.text import mcp_url
    from interlock.interop.protocol.write.client_entry import with_token

    entry = with_token(client, NAME, mcp_url(_public_url(invocation)), TOKEN)
    if entry is None:
        raise Refused(
            "token_needed",
            f"this node asks for a token, and {client.title} would have to keep it in its file",
            hint="leave out --http: a program that joins the node needs none",
        )
    invocation.out.remark(
        f"{client.title} needs {TOKEN} in its environment:"
        f" interlock access token --for client --name {client.name} makes one"
    )
    return entry


def _client(name: str | None) -> "Client":
    from interlock.interop.cli.import_ import known_client

    if name is None:
        raise BadUsage("usage", "say for which client", hint="interlock export client --for cursor")
    return known_client(name)


def _config(invocation: Invocation) -> str | None:
    """The file the entry names: a client starts programs in a folder of its own."""
    named = invocation.config or os.environ.get("INTERLOCK_CONFIG")
    if named:
        return named
    found = invocation.loaded.paths
    if not found:
        invocation.out.remark("warning: there is no configuration file, so a client would start an empty node")
    return str(found[0]) if found else None


def _data(invocation: Invocation) -> str | None:
    return invocation.data or os.environ.get("INTERLOCK_DATA") or None


def _public_url(invocation: Invocation) -> str:
    from interlock.interop.cli.import_ import own_addresses

    return own_addresses(invocation)[-1]


def _beside(invocation: Invocation, client: "Client", machine: "Machine") -> list[str]:
    """The servers that the client has besides this node, in all of its files."""
    from interlock.interop.cli.import_ import own_addresses
    from interlock.interop.client_discovery import look, without_own

    own = own_addresses(invocation)
    entries = [entry for file in look(machine, [client]) for entry in without_own(file, own).reading.entries]
    return list(dict.fromkeys(each.name for each in entries if each.disabled is None and each.name != NAME))


def _give(invocation: Invocation, client: "Client", name: str, entry: dict[str, Any], *, write: bool) -> None:
    from interlock.cli.terminal.text import one_line
    from interlock.interop.client_discovery import Machine
    from interlock.interop.client_file import client_file, put_entry
    from interlock.interop.protocol.write.text_edits import CannotEdit, snippet

    out = invocation.out
    machine = Machine.this(os.environ, invocation.loaded.plan.workspace)
    path = client_file(client, machine)
    text = snippet(client, name, entry)
    if not write:
        if out.as_json:
            out.json({"client": client.name, "path": str(path), "entry": entry, "text": text, "written": False})
            return
        out.remark(f"for {path}:")
        out.line(text.rstrip("\n"))
        return
    try:
        done = put_entry(path, client, name, entry)
    except CannotEdit as cannot:
        raise Refused(
            "not_written",
            f"{path}: {cannot}",
            hint=f"nothing was changed; interlock export client --for {client.name} prints the entry to paste",
        ) from None
    backup = None if done.backup is None else str(done.backup)
    beside = _beside(invocation, client, machine) if name == NAME else []
    if out.as_json:
        told = {"client": client.name, "path": str(path), "entry": entry, "written": done.changed, "backup": backup}
        out.json({**told, "beside": beside})
        return
    out.line(f"wrote {name} to {path}" if done.changed else f"{path} has it already")
    if backup is not None:
        out.line(f"as it was: {backup}")
        out.remark("warning: the backup still holds whatever secrets were in the file; remove it when you are content")
    if beside:
        out.line(f"still configured in {client.title} beside {name}: {', '.join(one_line(each) for each in beside)}")
        out.remark(f"{client.title} goes on to start these itself, past this node: remove there what you have imported")
    if done.changed:
        out.remark(f"restart {client.title} to have it look again")


def _driver(invocation: Invocation, identifier: str) -> "tuple[Driver, dict[str, Any], Secrets | None]":
    from interlock.drivers.protocol.files.driver import DRIVER_FILE, read_driver
    from interlock.drivers.protocol.files.inventory import SECRETS_FILE, read_secrets
    from interlock.drivers.workspace.imported_folder import read_folder
    from interlock.drivers.workspace.scan import DRAFT_FILE, maybe_folder

    path = maybe_folder(invocation.loaded.plan.workspace, identifier, DRIVER_FILE, DRAFT_FILE)
    if path is None:
        raise Refused("not_found", f"there is no driver {identifier}", hint="interlock drivers list shows them")
    folder = read_folder(path)
    if folder.file != DRIVER_FILE:
        raise Refused("not_ready", f"{identifier} is a draft", hint=f"interlock add {identifier} asks its server first")
    plan = invocation.loaded.plan
    reading = read_driver(folder.text.encode(), str(path / DRIVER_FILE), insecure_hosts=plan.drivers.insecure_hosts)
    if reading.value is None:
        raise Refused("driver_invalid", str(reading.errors[0]), hint="interlock check shows every problem")
    secrets = read_secrets(folder.secrets_text.encode(), SECRETS_FILE).value if folder.secrets_text else None
    return reading.value, dict(folder.data), secrets


def _upstream(invocation: Invocation, data: dict[str, Any]) -> None:
    from interlock.drivers.protocol.authoring.portable import driver_upstream
    from interlock.drivers.protocol.files.frontmatter_writer import frontmatter_text

    found = driver_upstream(data)
    text = frontmatter_text(found.data)
    if invocation.out.as_json:
        invocation.out.json({"text": text, "lost": list(found.lost), "changed": list(found.changed)})
        return
    invocation.out.line(text.rstrip("\n"))
    for key in found.changed:
        invocation.out.remark(f"in other words: {key}")
    for key in found.lost:
        invocation.out.remark(f"lost: {key}")


def _server_json(invocation: Invocation, driver: "Driver", data: dict[str, Any], name: str | None) -> None:
    from interlock.drivers.protocol.server_name import exposed_segment
    from interlock.interop.protocol.write.registry_description import registry_description

    found = registry_description(driver, data, name)
    if found is None:
        raise Refused(
            "not_describable",
            f"{exposed_segment(driver.id)} is a program of this machine; a registry describes packages and addresses",
            hint="publish it as a package first",
        )
    invocation.out.json(found.data)
    for key in found.lost:
        invocation.out.remark(f"lost: {key}")


def _for_client(
    invocation: Invocation, driver: "Driver", secrets: "Secrets | None", client: "Client", *, write: bool
) -> None:
    from interlock.drivers.protocol.server_name import exposed_segment
    from interlock.interop.cli.client_snippets import stdio_command
    from interlock.interop.protocol.write.client_entry import stdio_entry
    from interlock.interop.protocol.write.driver_entry import driver_entry

    name = driver.id.removesuffix("-mcp") or driver.id
    found = driver_entry(driver, secrets, client, name)
    if found is None:
        command = stdio_command(_config(invocation), _data(invocation), only=exposed_segment(driver.id))
        entry = stdio_entry(client, name, command, {})
        invocation.out.remark(f"{client.title} runs it through Interlock, which keeps its secrets")
    else:
        entry = dict(found.entry)
        for variable in found.variables:
            invocation.out.remark(f"{client.title} needs the environment variable {variable}")
    _give(invocation, client, name, entry, write=write)
