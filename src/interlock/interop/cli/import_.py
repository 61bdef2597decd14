"""interlock import"""

import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import join, quote
from typing import Annotated, Any

import typer
from msgspec import UNSET, Struct, to_builtins
from msgspec.structs import replace

from interlock.approvals.cli.keys import VARIABLE
from interlock.ax.protocol.capability import ToolClass
from interlock.catalog.cli.classify import ask_classes
from interlock.cli.client.offline import run_stored
from interlock.cli.command import Invocation, option, verb, verb_app
from interlock.cli.terminal.errors import BadUsage
from interlock.cli.terminal.output import Output, confirm, prompt
from interlock.cli.terminal.text import count
from interlock.credentials.api import LIST_SECRETS, SET_SECRET, Secrets, SetSecret, StoredSecret
from interlock.drivers.add import decide_classes, known_hosts
from interlock.drivers.protocol.authoring import SUGGESTED
from interlock.drivers.protocol.server_name import exposed_segment
from interlock.drivers.workspace.declaration import configured_segments
from interlock.drivers.workspace.folder import WorkspaceUnusable
from interlock.interop import importer
from interlock.interop.importer import DriverReport, ImportReport, ImportRequest, Keep, Kept, ProbeResult, Proposals
from interlock.interop.protocol.clients import CLIENTS, ClientProgram, find_client
from interlock.interop.protocol.drafts import ImportBatch, ImportChoices, Planned, asks_for_hosts, with_hosts
from interlock.interop.source_files import (
    BadBundle,
    ClientMachine,
    SourceFile,
    UnknownFormat,
    look,
    read_file,
    unpack,
    without_own,
)
from interlock.wire.refusal import Refused

SECRETS = {
    "kept": "copied to the store",
    "same": "in the store already",
    "differs": "the store has another value, which stays; interlock secrets set NAME replaces it",
    "environment": "taken from the environment",
    "unset": "not given yet: interlock secrets set NAME",
}


class Leftover(Struct, frozen=True):
    """Command that a person still has to give after an import, and the reason."""

    command: str
    why: str


def show_files(out: Output, files: Sequence[SourceFile]) -> None:
    """Print the client files that were found."""
    if out.as_json:
        out.json({"files": [_file_value(each) for each in files]})
        return
    rows = []
    for each in files:
        if each.state != "absent":
            servers = str(len(each.reading.entries)) if each.state == "read" else each.reason or ""
            rows.append((each.title, each.scope, servers, (_short(each.path), "bold")))
    if rows:
        out.draw_table("CLIENT|SCOPE|SERVERS|FILE", rows, shrink={3: 20, 2: 8})
    out.remark(f"{count(len(files) - len(rows), 'place')} without a file")


def show_report(
    out: Output,
    files: Sequence[SourceFile],
    report: ImportReport,
    *,
    dry_run: bool,
    asks_now: bool = False,
    connected: Sequence[ProbeResult] = (),
    left: Sequence[Leftover] = (),
) -> None:
    """Print the report of an import. `asks_now` means that the servers will be asked for their tools afterwards."""
    if out.as_json:
        out.json({**_report_value(files, report, connected, dry_run=dry_run), "left": to_builtins(left)})
        return
    would = "would be " if dry_run else ""
    for file in files:
        if file.state == "unreadable":
            out.line(f"skipped {_short(file.path)}: {file.reason or ''}")
        for note in file.reading.notes:
            out.line(f"note {_short(file.path)}: {note.text}")
    for each in report.drivers:
        name = exposed_segment(each.id)
        status = each.status if each.status == "unchanged" else f"{would}{each.status}"
        title = "" if each.name == name else f"{each.name}, "  # the name that the client uses
        out.line(f"{status} {name} ({title}{', '.join(dict.fromkeys(each.sources))})")
        lines = [*each.files, *(f"changed {pointer}" for pointer in each.changed)]
        lines += [f"conflict {pointer}: the source changed it too; yours stays" for pointer in each.conflicts]
        for secret in each.secrets:
            words = f"{would}{SECRETS[secret.state]}" if secret.state == "kept" else SECRETS[secret.state]
            lines.append(f"secret {secret.place}: {secret.slug}, {words}")
        lines += [f"note {note.code}: {note.text}" for note in each.notes]
        for line in lines:
            out.line(f"  {line}")
    for skipped in report.skipped:
        out.line(f"skipped {skipped.name} ({skipped.source}): {skipped.text}")
    left_in = dict.fromkeys(path for each in report.drivers for path in each.left_in)
    if left_in:
        out.line("secrets are copied, not moved: these files still hold the values, until you delete them there")
    for path in left_in:
        out.line(f"  {_short(Path(path))}")
    drafts = [exposed_segment(each.id) for each in report.drivers if each.draft]
    if not report.drivers and not report.skipped:
        out.remark("no servers found; interlock import --list shows where was looked")
    elif all(each.status == "unchanged" for each in report.drivers):
        out.remark("nothing to do")
    elif dry_run:
        out.remark("nothing was written: this was --dry-run")
    elif drafts and not asks_now:
        out.remark(f"which tools they have is not known yet: interlock add {quote(drafts[0])} asks the server")


def _file_value(file: SourceFile) -> dict[str, Any]:
    return {
        "client": file.client,
        "scope": file.scope,
        "path": str(file.path),
        "state": file.state,
        "servers": len(file.reading.entries),
        "reason": file.reason,
    }


def _report_value(
    files: Sequence[SourceFile], report: ImportReport, connected: Sequence[ProbeResult], *, dry_run: bool
) -> dict[str, Any]:
    finished = {each.id for each in connected if each.state == "ready"}
    return {
        "dry_run": dry_run,
        "files": [_file_value(each) for each in files if each.state != "absent"],
        "drivers": [{**to_builtins(each), "draft": each.draft and each.id not in finished} for each in report.drivers],
        "connected": [
            {name: value for name, value in to_builtins(each).items() if name != "key"} for each in connected
        ],
        "skipped": to_builtins(report.skipped),
    }


def _short(path: Path) -> str:
    try:
        return f"~/{path.relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        return str(path)


Texts = list[str] | None

app = verb_app("Bring in the servers that other clients have.")


@verb(app, "import")
def import_(
    invocation: Invocation,
    names: Annotated[Texts, typer.Argument(metavar="[NAME]...", show_default=False)] = None,
    *,
    list_files: Annotated[bool, option("--list")] = False,
    from_clients: Annotated[Texts, option("--from", metavar="CLIENT")] = None,
    file: Annotated[Path | None, option("--file", metavar="FILE")] = None,
    as_client: Annotated[str | None, option("--as", metavar="CLIENT")] = None,
    everything: Annotated[bool, option("--all")] = False,
    dry_run: Annotated[bool, option("--dry-run")] = False,
    no_connect: Annotated[bool, option("--no-connect")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y")] = False,
    trust_network: Annotated[bool, option("--trust-network")] = False,
    not_secret: Annotated[Texts, option("--not-secret", metavar="NAME")] = None,
) -> None:
    """Bring in the servers that other clients have.

    Each becomes a driver in .drivers/. Secrets are copied into the encrypted store; the other client's files are left
    as they are, and still hold them. Nothing that a file says to run is run, except to ask a server for its tools.

    Options:
        names: Only these servers.
        list_files: Show the files there are, and stop.
        from_clients: Only this client's files; may be repeated.
        file: This file, wherever it is.
        as_client: Whose form --file has, if its name does not say.
        everything: Also what is disabled or built into a client.
        dry_run: Say what would be written, and write nothing.
        no_connect: Start and dial nothing: tools come later.
        yes: Ask nothing: agree to every start, and list what is left for a person, with the commands.
        trust_network: Let the servers reach any host; else none is open.
        not_secret: This key holds no secret; may be repeated.

    Examples:
        interlock import --list
        interlock import --dry-run
        interlock import --from cursor --from claude-code
        interlock import files github
        interlock import --file ./server.json
        interlock import --file old.json --as cursor
    """
    plan = invocation.loaded.plan
    machine = ClientMachine.this(os.environ, plan.workspace)
    clients = [known_client(each) for each in from_clients or ()] or list(CLIENTS)
    packages = invocation.data_folder / "packages"
    files = look(machine, clients) if file is None else [_one_file(file, as_client, machine, packages)]
    own = own_addresses(invocation)
    if list_files:
        show_files(invocation.out, [without_own(each, own) for each in files])
        return
    spared, only = frozenset(not_secret or ()), frozenset(names or ())
    wishes = ImportChoices(not_secret=spared, trust_network=trust_network, everything=everything, only=only)
    taken = configured_segments(plan)
    request = ImportRequest(machine=machine, workspace=plan.workspace, wishes=wishes, own_addresses=own, taken=taken)
    left: list[Leftover] = []
    report = _carry_out(invocation, files, request, left, dry_run=dry_run, asks=not yes)
    drafts = [] if dry_run or no_connect else [each for each in report.drivers if each.draft]
    if drafts and not yes and not is_dialogue(invocation):
        invocation.out.remark("there is no terminal to confirm on, so no server was started: --yes agrees to all")
        drafts = []
    if not invocation.out.as_json:
        show_report(invocation.out, files, report, dry_run=dry_run, asks_now=bool(drafts))
    connected = _connect(invocation, drafts, left, yes=yes) if drafts else []
    if not dry_run:
        # Secrets come first: without them, `add` would fail again.
        left[:0] = _unfinished(invocation, report, {each.id for each in connected})
    if invocation.out.as_json:
        show_report(invocation.out, files, report, dry_run=dry_run, connected=connected, left=left)
    elif left and yes:
        invocation.out.remark("left to do:")
        for leftover in left:
            invocation.out.remark(f"  {leftover.command}  ({leftover.why})")


def _unfinished(invocation: Invocation, report: ImportReport, connected: Collection[str]) -> Iterator[Leftover]:
    """Yield the commands that the user still has to run for the imported drivers: to store missing secret values, and
    to complete or trust drivers. Only secrets are looked at for drivers in `connected`.
    """
    from interlock.drivers.api import DriverDetail
    from interlock.drivers.cli.drivers import get_driver

    unset = [(each.id, secret.slug) for each in report.drivers for secret in each.secrets if secret.state == "unset"]
    stored: set[str] = set()
    if unset:
        stored = {each.name for each in invocation.call_or_offline(LIST_SECRETS).as_(Secrets).secrets}
    for id, slug in unset:
        if slug not in stored:
            yield Leftover(f"interlock secrets set {slug}", f"{exposed_segment(id)} needs its value")
    for driver in report.drivers:
        if driver.id in connected:
            continue
        name = exposed_segment(driver.id)
        if driver.draft:
            yield Leftover(f"interlock add {name}", "its server was not asked for its tools")
            continue
        try:
            is_trusted = get_driver(invocation, driver.id).as_(DriverDetail).trusted
        except Refused as refused:
            yield Leftover(f"interlock check .drivers/{driver.id}", refused.message)
            continue
        if not is_trusted:
            yield Leftover(f"interlock drivers trust {name}", "its files are not accepted as they are now")


def _connect(
    invocation: Invocation, drafts: list[DriverReport], left: list[Leftover], *, yes: bool
) -> list[ProbeResult]:
    """Start the servers of drafts and ask each server for its tools. Before each start, show the command
    (AIP-import-8). Add the commands that a person still has to give to `left`.

    With `yes`, nothing is asked, so a driver that needs the signature of an approver stays untrusted, unless the
    environment has the passphrase.
    """
    from interlock.drivers.cli.add import open_adder, quiet_log, trust_driver

    out = invocation.out

    def agreed(driver: DriverReport) -> bool:
        out.remark(f"{exposed_segment(driver.id)}: {join(driver.command)}")  # AIP-import-8
        return yes or confirm("Start it to ask for its tools?", default=True)  # AIP-import-8

    def decide(proposed: Mapping[str, Proposals]) -> Mapping[str, Proposals]:
        # What its server does not say of a tool stays open where no person is asked.
        undecided = [each for proposals in proposed.values() for each in proposals if each.by in SUGGESTED]
        if undecided and (yes or not is_dialogue(invocation)):
            why = f"{count(len(undecided), 'tool')} do not say what they do, and their first calls ask"
            left.append(Leftover("interlock tools classify", f"{why}; while the node runs"))
        return proposed if yes or not is_dialogue(invocation) else _ask_about_tools(invocation, proposed)

    with quiet_log(invocation):
        done = run_stored(importer.connect(drafts, open_adder(invocation), agreed, decide))
    for each in done:
        name = exposed_segment(each.id)
        if each.key is not None:
            is_trusted = trust_driver(invocation, each.key, signs=not yes or VARIABLE in os.environ).trusted
            stands = "trusted" if is_trusted else f"waits for you: interlock serve, then interlock drivers trust {name}"
            if not is_trusted:
                why = "an approver accepts its files, while the node runs"
                left.append(Leftover(f"interlock drivers trust {name}", why))
            out.remark(f"{name}: {count(len(each.files), 'file')} written, {stands}")
            for review in each.reviews:
                out.remark(f"review: {review}")
        elif each.state == "failed":
            left.append(Leftover(f"interlock add {name}", each.reason or "its server could not be asked for its tools"))
            out.remark(f"{name} stays a draft: {each.reason or ''}; interlock add {name} tries again")
    return done


def _ask_about_tools(invocation: Invocation, proposed: Mapping[str, Proposals]) -> Mapping[str, Proposals]:
    """Ask the user about the tools of all servers in one table, in which tools are named SERVER.TOOL."""
    from interlock.drivers.cli.driver_lines import show_proposals

    rows = {
        f"{exposed_segment(id)}.{each.tool_name}": (id, position)
        for id, proposals in proposed.items()
        for position, each in enumerate(proposals)
    }
    tools = {name: proposed[id][at].tool_name for name, (id, at) in rows.items() if proposed[id][at].is_new}

    def changed(classes: Mapping[str, ToolClass], *, accept: bool) -> dict[str, Proposals]:
        chosen: dict[str, dict[str, ToolClass]] = {id: {} for id in proposed}
        for name, tool_class in classes.items():
            id, position = rows[name]
            chosen[id][proposed[id][position].tool_name] = tool_class
        return {id: decide_classes(each, chosen[id], accept=accept) for id, each in proposed.items()}

    def show(classes: Mapping[str, ToolClass]) -> None:
        now = changed(classes, accept=False)
        show_proposals(invocation.out, [replace(now[id][at], tool_name=name) for name, (id, at) in rows.items()])

    nothing = "no tool was classified; the drafts stay"
    classes = ask_classes("Write all of them?", tools, show, invocation.out.remark, nothing_done=nothing)
    return changed(classes, accept=True)


def own_addresses(invocation: Invocation) -> list[str]:
    """Return the addresses of this node, so that its own entries in client files are not imported."""
    node = invocation.loaded.plan.node
    scheme = "https" if node.tls_cert is not None else "http"
    addresses = [f"{scheme}://{node.listen.host}:{node.listen.port}"]
    return [*addresses, node.public_url] if node.public_url else addresses


def known_client(name: str) -> ClientProgram:
    client = find_client(name)
    if client is None:
        client_names = ", ".join(each.name for each in CLIENTS)
        raise BadUsage("unknown_client", f"there is no client {name}", hint=f"known are {client_names}")
    return client


def _one_file(path: Path, as_client: str | None, machine: ClientMachine, packages: Path) -> SourceFile:
    client = known_client(as_client) if as_client else None
    try:
        source = read_file(path.expanduser().absolute(), client, system=machine.system, packages=packages)
    except UnknownFormat as unknown:
        raise BadUsage("unknown_form", str(unknown), hint="say whose form it has: --as CLIENT") from None
    if source.state != "read":
        why = source.reason or "there is no such file"
        raise Refused("unreadable", f"{path}: {why}", hint="interlock import --list shows the files there are")
    return source


def _carry_out(
    invocation: Invocation,
    files: list[SourceFile],
    request: ImportRequest,
    left: list[Leftover],
    *,
    dry_run: bool,
    asks: bool,
) -> ImportReport:
    """Store the secrets and write the drafts. Hosts that a server needs are asked about if `asks` is set and a person
    is there, and otherwise added to `left`.
    """
    try:
        batch = importer.plan(importer.collect_sources(files, request.machine), files, request)
        if asks and not dry_run and not request.wishes.trust_network and is_dialogue(invocation):
            batch = _ask_about_hosts(invocation, batch)
        elif not request.wishes.trust_network:
            for each in batch.planned:  # no user can be asked, so the hosts that the servers need are only printed
                name = exposed_segment(each.draft.id)
                for host in known_hosts(each.draft.data) if asks_for_hosts(each) else ():
                    allow = f"interlock drivers allow {name} {quote(host)}"
                    left.append(Leftover(allow, f"{name} is known to need {host}, and may reach no host"))
                    invocation.out.remark(f"{name} is known to need {host}, and may reach no host: {allow}")
        for file in files:
            if file.bundle is not None and not dry_run:
                unpack(file.bundle)
        return importer.carry_out(batch, request, None if dry_run else keeper(invocation))
    except BadBundle as bad:
        raise Refused("bad_bundle", str(bad), hint="ask its publisher for a new one") from None
    except WorkspaceUnusable as unusable:
        hint = "interlock check --effective shows the workspace"
        raise Refused("workspace_unusable", str(unusable), hint=hint) from None


def is_dialogue(invocation: Invocation) -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty() and not invocation.out.as_json


def _ask_about_hosts(invocation: Invocation, batch: ImportBatch) -> ImportBatch:
    """Ask the user which hosts each server may reach, because the files of clients do not say (AIP-import-11)."""
    planned = []
    for each in batch.planned:
        hosts_needed = ", ".join(known_hosts(each.draft.data)) if asks_for_hosts(each) else ""
        while asks_for_hosts(each):
            invocation.out.remark(f"{each.draft.source}: which hosts may it reach?")
            if hosts_needed:
                invocation.out.remark(f"it is known to need {hosts_needed}; - allows none")
            text = "names with commas, * for any, nothing for none"
            answer = prompt(text, default=hosts_needed)
            answer = "" if answer.strip() == "-" else answer
            hosts = [host.strip() for host in answer.split(",") if host.strip()]
            opened = with_hosts(each, hosts)
            if isinstance(opened, Planned):
                each = opened
                break
            invocation.out.remark(opened.text)
        planned.append(each)
    return ImportBatch(planned=tuple(planned), skipped=batch.skipped)


def keeper(invocation: Invocation) -> Keep:
    """Return a function that stores a secret through the running node, or directly in the store if no
    node is running.
    """

    def keep(slug: str, value: str) -> Kept:
        answer = invocation.call_or_offline(SET_SECRET, body=SetSecret(name=slug, value=value, unless_kept=True))
        state = answer.as_(StoredSecret).state
        if state is UNSET:
            raise Refused("unexpected_answer", "the node does not say what it keeps")
        return state

    return keep
