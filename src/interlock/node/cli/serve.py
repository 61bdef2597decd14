"""The verb `interlock serve`: run the node, and print how to connect.

The node itself is `node.node.serve`. Here is what belongs to the terminal: warnings of the configuration, the tree
when the node is ready, steps of servers that are installed or started, and the setup code. An error that keeps the
node from starting becomes a refusal that names the next command; if another program has the address, the hint is a
command that starts the node beside it. With --stdio nothing but MCP is written to stdout.
"""

import logging
import os
import sys
from datetime import UTC, datetime
from errno import EADDRINUSE
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from interlock.cli.command import Invocation, load_configuration, read_configuration, verb, verb_app
from interlock.cli.terminal.errors import BadUsage
from interlock.cli.terminal.output import begin_logging, log_warnings
from interlock.cli.terminal.text import command_line, count, duration
from interlock.node.cli.init import FIRST_APPROVER
from interlock.wire.refusal import Refused

if TYPE_CHECKING:
    from interlock.config.plan import Plan
    from interlock.operator.api import Status

app = verb_app("Run the node.")


@verb(app, "serve")
def serve(
    invocation: Invocation,
    stdio: Annotated[bool, typer.Option("--stdio")] = False,
    only: Annotated[str | None, typer.Option("--only", metavar="SEGMENT")] = None,
    surface: Annotated[str | None, typer.Option("--surface", metavar="SURFACE")] = None,
    accept_configuration: Annotated[bool, typer.Option("--accept-configuration")] = False,
    log_format: Annotated[Literal["text", "json"], typer.Option("--log-format")] = "text",
) -> None:
    """Run the node and print how to connect a client.

    Options:
        stdio: Speak MCP on stdin and stdout, for one desktop client.
        only: Offer only this server, with its names without the prefix.
        surface: What clients see: flat, auto, aql, aql-single or safety.
        accept_configuration: Let what loosens the guard count, with the passphrase of an approver's key.
        log_format: The log on stderr, a line for each event.

    Examples:
        interlock serve
        interlock serve --only github
        interlock serve --stdio --config ./interlock.toml
    """
    if invocation.url:
        raise BadUsage("usage", "serve runs a node here and takes no --url")

    by_flags = {"mcp.surface": surface} if surface is not None else {}
    loaded = load_configuration(invocation, starting=True, set_by_flags=by_flags)
    plan = loaded.plan
    if surface == "safety" and plan.safety.mode == "disabled":
        raise BadUsage("usage", "the safety loop is disabled", hint='[safety] mode = "enforcing" switches it on')
    begin_logging(log_format)
    if log_format == "text":
        for warning in loaded.warnings:
            invocation.out.remark(f"warning: {warning}")
    else:
        log_warnings(loaded.warnings)
    if only is not None:
        _check_segment(invocation, only, plan)
    if accept_configuration:
        if stdio:
            raise BadUsage("usage", "--accept-configuration asks a person, and with --stdio there is none")
        from interlock.node.cli.accept import accept_configuration as accept

        accept(invocation, loaded)
    from interlock.core.part import CannotStart
    from interlock.node.node import NodeGone
    from interlock.node.node import serve as run_node
    from interlock.node.sockets import NodeRunning
    from interlock.operator.app import operator_app
    from interlock.store.ports import StoreError

    announced: list[bool] = []  # the node calls twice when servers were late: the second time the tree alone is news

    def on_ready(status: "Status", setup_code: str | None) -> None:
        anonymous = plan.auth.anonymous != "never"
        _announce(invocation, status, stdio=stdio, anonymous=anonymous, again=bool(announced))
        if setup_code is not None and not announced:
            _show_setup_code(invocation, setup_code, status, stdio=stdio)
        announced.append(True)

    steps: dict[str, str] = {}  # the last step of each server

    def on_waiting(status: "Status") -> None:
        if not stdio and not invocation.out.as_json:
            # Print a line for each new step of a server that is being installed or started.
            for link in status.links:
                is_up = link.state in ("ready", "slow")
                text = f"ready, {count(link.tools, 'tool')}" if is_up else link.reason or link.state
                if steps.get(link.segment) != text and (not is_up or link.segment in steps):
                    steps[link.segment] = text
                    invocation.out.line(f"{duration(status.node.uptime_s):>6}  {link.segment}: {text}")
            sys.stdout.flush()

    try:
        run_node(
            loaded,
            lambda: read_configuration(invocation, starting=True, set_by_flags=by_flags, lenient=True),
            stdio=stdio,
            only=only,
            surface=surface,
            on_ready=on_ready,
            on_waiting=on_waiting,
            operator_app=lambda handlers, who, own: operator_app(handlers, authenticate=who, own=own),
        )
    except NodeGone as error:
        raise Refused("node_gone", str(error)) from error
    except NodeRunning as error:
        raise Refused(
            "node_running", str(error), hint="interlock status shows it; --data names another folder"
        ) from None
    except (StoreError, CannotStart) as error:
        raise Refused("not_started", str(error)) from None
    except OSError as error:
        if error.errno == EADDRINUSE:
            raise _address_taken(invocation, plan) from None
        raise Refused("not_started", f"the node cannot start: {error.strerror or error}") from None


def _address_taken(invocation: Invocation, plan: "Plan") -> Refused:
    """Return the refusal to start at an address that another program has. Its hint is a command that starts the node at
    a free address.
    """
    from interlock.node.sockets import free_addresses, is_interlock_node, is_taken

    listening = {"LISTEN": plan.node.listen, "OPERATOR_LISTEN": plan.node.operator_listen}
    taken = [address for address in listening.values() if is_taken(address)] or [plan.node.listen]
    is_ours = any(is_interlock_node(address, tls=plan.node.tls_cert is not None) for address in taken)
    whose = "another Interlock node" if is_ours else "another program"
    set_here = zip(listening, free_addresses(*listening.values()), strict=True)
    beside = " ".join(f"INTERLOCK_NODE__{key}={address}" for key, address in set_here)
    command = command_line("serve", config=invocation.config, data=invocation.data)
    return Refused(
        "not_started",
        f"the node cannot start: {whose} listens on {' and '.join(map(str, taken))}",
        hint=f"stop it, or start this one beside it: {beside} {command}",
    )


def _check_segment(invocation: Invocation, only: str, plan: "Plan") -> None:
    """Refuse the option --only if its segment is malformed or looks misspelled.

    Other unknown segments are allowed, because a subserver may register later.
    """
    from difflib import get_close_matches  # here, because an idle node needs it for nothing

    from interlock.ax.protocol.names import is_segment
    from interlock.drivers.protocol.server_name import exposed_segment
    from interlock.drivers.workspace.scan import scan_workspace

    segments = [*(server.segment for server in plan.servers), *(child.segment for child in plan.ax.children)]
    # Of drivers, as the segments are unless a contract says otherwise.
    segments += (exposed_segment(folder.path.name) for folder in scan_workspace(plan).folders)
    if only in segments:
        return
    nearest = get_close_matches(only, segments, n=1)
    if nearest or not is_segment(only):
        hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(segments) or 'none'}"
        raise BadUsage("unknown_segment", f"no server has the segment {only}", hint=hint)
    invocation.out.remark(f"warning: no server has the segment {only}; it is empty until a subserver registers there")


def _announce(invocation: Invocation, status: "Status", *, stdio: bool, anonymous: bool, again: bool) -> None:
    """Print that the node is ready: as one line with --stdio, as JSON with --json, otherwise as the tree of servers."""
    out = invocation.out
    if stdio:
        # stdout belongs to MCP.
        ready = sum(link.state in ("ready", "slow") for link in status.links)
        out.remark(
            f"interlock: {count(status.catalog.tools, 'tool')} from {ready} of {count(len(status.links), 'server')}"
        )
        return
    if out.as_json:
        if not again:  # one document: who wants to follow asks for the status
            out.json_line(msgspec.to_builtins(status))
        return
    _draw(invocation, status, anonymous=anonymous, again=again)
    sys.stdout.flush()


def _show_setup_code(invocation: Invocation, code: str, status: "Status", *, stdio: bool) -> None:
    """Show the setup code for the first approver if the output is a terminal. In a file, other programs could read the
    code.
    """
    if stdio:
        return

    if not sys.stdout.isatty():
        logging.getLogger("interlock.serve").warning(
            "no one may approve yet, and the setup code is shown on a terminal only: start the node once in one,"
            " or run interlock init before its first start. %s",
            FIRST_APPROVER,
        )
        return
    out = invocation.out
    out.line()
    out.line(f"No one may approve yet. Setup code for the first approver: {code[:4]}-{code[4:]}")
    waiting = next((approver.approval_id for approver in status.approvers if approver.approval_id is not None), None)
    first = "" if waiting is not None else "interlock init makes your key, then "
    step = f"{first}interlock approve {waiting[:8] if waiting is not None else 'ID'} --code CODE enrols it"
    out.advice(f"The console asks for it; or {step}. Give it to no agent.")
    out.line(FIRST_APPROVER)
    sys.stdout.flush()


def _draw(invocation: Invocation, status: "Status", *, anonymous: bool, again: bool) -> None:
    """Print the tree of servers. The first time, also print how to connect clients and where the console is."""

    from rich.text import Text

    from interlock.interop.cli.export import ways_to_connect
    from interlock.node.cli.tree import tree_lines

    out = invocation.out
    console = out.console
    lines = tree_lines(status, width=console.width, now=datetime.now(UTC), ascii_only=console.options.ascii_only)
    out.draw(Text(), *lines)
    if again:
        return
    config = invocation.config or next((str(path) for path in invocation.loaded.paths), None)
    data = invocation.data or os.environ.get("INTERLOCK_DATA")

    def command(*words: str) -> str:
        return command_line(*words, config=invocation.config, data=data)

    token = None if anonymous else command("access", "token", "--for", "client", "--name", "me")
    ways = ways_to_connect(status.node.mcp_url, config=config, data=data, token_command=token)
    console_text = f"{status.node.operator_url}, logged in by: {command('open')}"
    for title, text in [*ways, ("The console, in your browser", console_text)]:
        out.draw(Text(), Text(title, style="bold"))
        for line in text.splitlines():
            out.line(f"  {line}")
    out.draw(Text())
    out.line(f"Ctrl-C stops the node; {command('status', '--watch')} shows it live.")
