"""interlock add"""

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlock.approvals.cli.keys import can_ask
from interlock.catalog.cli.class_dialogue import CLASSES, ask_classes, classes_of
from interlock.cli.command import Invocation, verb, verb_app
from interlock.cli.terminal.errors import BadUsage, CommandFailed, Refused
from interlock.drivers.protocol.server_name import server_name

if TYPE_CHECKING:
    from interlock.ax.protocol.capability import ToolClass
    from interlock.config.plan import Plan
    from interlock.drivers.add.add import NotAdded
    from interlock.drivers.add.flow import Agree, DriverRequest, WrapResult
    from interlock.drivers.api import DriverSummary
    from interlock.drivers.protocol.authoring.proposal import Proposal
    from interlock.interop.protocol.model import Finding

SETTLE_S = 30.0
DNS = "dns:"
PATH_CHARS_MAX = 4096
SETTLE_LOOK_S = 0.2

app = verb_app("Make a driver of an MCP server.")


@verb(
    app,
    "add",
    examples="""
    interlock add npm:@modelcontextprotocol/server-filesystem -- ~/Documents
    interlock add pypi:mcp-server-git --program git -- --repository .
    interlock add https://mcp.example.com/mcp --secret TOKEN
    interlock add docker:mcp/time --yes
    interlock add dns:example.com
    interlock add -- node ./server.js --port 0
    interlock add notes
    """,
)
def add(
    invocation: Invocation,
    reference: Annotated[
        str,
        typer.Argument(
            metavar="REF",
            help="npm:PACKAGE, pypi:PACKAGE, docker:IMAGE, https://…, dns:DOMAIN, ./program, or a draft's name.",
        ),
    ],
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARG...]", help="What the server is started with.", show_default=False),
    ] = None,
    *,
    as_id: Annotated[
        str | None, typer.Option("--as", metavar="ID", help="What the driver is called.", show_default=False)
    ] = None,
    tools: Annotated[
        str | None,
        typer.Option(
            "--tools", metavar="TOOL[:CONTRACT],…", help="Only these tools, with these contracts.", show_default=False
        ),
    ] = None,
    classes: Annotated[
        list[str] | None,
        typer.Option("--class", metavar="TOOL=CLASS", help=f"{', '.join(CLASSES)}; may be repeated."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME[=VALUE]", help="A variable it is started with; may be repeated."),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option("--secret", metavar="NAME", help="A variable, or a bearer token, that is kept as a secret."),
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="Sent to a server at an address.")
    ] = None,
    egress: Annotated[
        list[str] | None, typer.Option("--egress", metavar="HOST", help="A host it may reach; may be repeated.")
    ] = None,
    program: Annotated[
        list[str] | None,
        typer.Option("--program", metavar="NAME", help="A program it may start, like git; may be repeated."),
    ] = None,
    write: Annotated[
        list[str] | None,
        typer.Option("--write", metavar="PATH", help="A folder it may write in; may be repeated."),
    ] = None,
    with_: Annotated[
        list[str] | None, typer.Option("--with", metavar="PACKAGE", help="Installed beside a pypi package.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Accept the proposed classes without asking.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Write a driver anew that is there already.")] = False,
    no_trust: Annotated[bool, typer.Option("--no-trust", help="Write it, and leave trusting it for later.")] = False,
) -> None:
    """Make a driver of an MCP server.

    Installs it, starts it once inside its sandbox to ask for its tools, proposes what each of them may do, and writes
    .drivers/ID/ when you agree. No tool is called, and nothing is left running. A running node takes it up by itself.
    """
    if invocation.remote_url is not None:
        raise BadUsage("usage", "add writes a driver here and takes no --url")
    asked = _Asked(
        reference=reference,
        args=tuple(args or ()),
        as_id=as_id,
        tools=_tools(tools),
        classes=classes_of(classes or []),
        env=_parse_assignments(env or [], "--env"),
        secrets=tuple(secret or ()),
        headers={name: value or "" for name, value in _parse_assignments(header or [], "--header").items()},
        egress=tuple(egress or ()),
        programs=tuple(program or ()),
        writes=tuple(writable(each) for each in write or ()),
        beside=tuple(with_ or ()),
    )
    if asked.reference.startswith(DNS):
        asked.reference = _found_by_dns(invocation, asked.reference.removeprefix(DNS), yes=yes)
    add_server(invocation, asked, yes=yes, replace=replace, no_trust=no_trust)


def asked_for(reference: str, *, as_id: str | None = None) -> "_Asked":
    """A server at an address, with nothing said of it."""
    return _Asked(
        reference=reference,
        args=(),
        as_id=as_id,
        tools=None,
        classes={},
        env={},
        secrets=(),
        headers={},
        egress=(),
        programs=(),
        writes=(),
        beside=(),
    )


def _found_by_dns(invocation: Invocation, domain: str, *, yes: bool) -> str:
    """The address that a domain names, once a person agrees to connect to it (REG-7.1-4)."""
    from interlock.drivers.cli.discover import chosen_server, find_servers

    found = find_servers(invocation, domain, tries=False)
    url = chosen_server(domain, found)
    said = f"{url}, found at {found.name}, {found.dnssec}"
    if yes:
        invocation.out.remark(said)
        return url
    if not can_ask():
        hint = f"run it on a terminal, with --yes, or name the server: interlock add {url}"
        raise Refused("not_confirmed", "there is no terminal to confirm on, and nothing was done", hint=hint)
    if not typer.confirm(f"{said}. Connect to it?", default=False, err=True):
        raise Refused("not_confirmed", "nothing was connected to, and nothing was done")
    return url


def add_server(
    invocation: Invocation, asked: "_Asked", *, yes: bool = False, replace: bool = False, no_trust: bool = False
) -> None:
    if not (yes or no_trust or can_ask()):
        hint = "run it on a terminal, or with --yes; with --no-trust it waits for interlock drivers trust NAME"
        raise Refused("not_confirmed", "there is no terminal to confirm on, and nothing was done", hint=hint)
    from interlock.cli.client.offline import run_stored
    from interlock.drivers.add.add import NotAdded
    from interlock.drivers.cli.add_report import show_added

    flow = _Flow(invocation, asked, yes=yes, replace=replace, no_trust=no_trust)
    try:
        done = run_stored(wrap_server(invocation, flow.wanted(), flow.agreed))
    except NotAdded as failed:
        raise _refusal(failed) from None
    state = None if no_trust else trust_driver(invocation, done.added.key)
    show_added(invocation.out, done, state=state)


async def wrap_server(invocation: Invocation, wanted: "DriverRequest", agree: "Agree") -> "WrapResult":
    """Raises NotAdded, StoreError."""
    from interlock.drivers.add.flow import wrap
    from interlock.drivers.add.trial import TrialRunner

    log = logging.getLogger("interlock")
    level = log.level
    if not invocation.debug:
        log.setLevel(logging.CRITICAL)  # what matters of it is said by the command
    try:
        async with TrialRunner(invocation.loaded.plan) as bench:
            return await wrap(bench, wanted, agree, invocation.out.remark)
    finally:
        log.setLevel(level)


class _Asked:
    """What the command line says."""

    def __init__(self, **said: Any) -> None:
        self.reference: str = said["reference"]
        self.args: tuple[str, ...] = said["args"]
        self.as_id: str | None = said["as_id"]
        self.tools: dict[str, str | None] | None = said["tools"]
        self.classes: dict[str, Any] = said["classes"]
        self.env: dict[str, str | None] = said["env"]
        self.secrets: tuple[str, ...] = said["secrets"]
        self.headers: dict[str, str] = said["headers"]
        self.egress: tuple[str, ...] = said["egress"]
        self.programs: tuple[str, ...] = said["programs"]
        self.writes: tuple[str, ...] = said["writes"]
        self.beside: tuple[str, ...] = said["beside"]


class _Flow:
    def __init__(self, invocation: Invocation, asked: _Asked, *, yes: bool, replace: bool, no_trust: bool) -> None:
        self.invocation = invocation
        self.plan: Plan = invocation.loaded.plan
        self.asked = asked
        self._yes = yes
        self._replace = replace
        self._no_trust = no_trust

    def wanted(self) -> "DriverRequest":
        """What the driver will say apart from its tools; secrets are kept. Raises NotAdded."""
        import msgspec

        from interlock.drivers.add.flow import request_of_draft
        from interlock.drivers.workspace.scan import DRAFT_FILE, maybe_folder

        folder = maybe_folder(self.plan.workspace, self.asked.reference, DRAFT_FILE)
        made = request_of_draft(folder) if folder is not None else self._read_reference()
        return msgspec.structs.replace(made, tools=self.asked.tools, classes=self.asked.classes, replaces=self._replace)

    def _read_reference(self) -> "DriverRequest":
        from interlock.drivers.add.flow import DriverRequest
        from interlock.drivers.protocol.files.inventory import SECRETS_FILE
        from interlock.interop.protocol.convert.draft import Wishes, draft_entry, secrets_text
        from interlock.interop.protocol.convert.entry import Surroundings
        from interlock.interop.protocol.model import Note
        from interlock.interop.protocol.read.server_reference import UnknownReference, entry_of

        asked = self.asked
        reference, args = as_command(asked.reference, asked.args)
        env = {name: absolute_value(value) for name, value in asked.env.items() if value is not None}
        is_remote = reference is not None and "://" in reference
        headers = {**asked.headers}
        if is_remote and asked.secrets:
            headers.setdefault("Authorization", f"Bearer ${{input:{asked.secrets[0]}}}")
        try:
            entry = entry_of(
                reference,
                args,
                env=env,
                passed=[name for name, value in asked.env.items() if value is None],
                asked=() if is_remote else asked.secrets,
                headers=headers,
                egress=asked.egress,
            )
        except UnknownReference as unknown:
            hint = f"interlock add npm:{reference}" if str(reference).startswith("@") else "interlock add --help"
            raise BadUsage("unknown_reference", str(unknown), hint=hint) from None
        around = Surroundings(
            home=str(Path.home()),
            workspace=str(self.plan.workspace),
            env=os.environ,
            fresh=fresh((*args, *env.values())),
            writes=asked.writes,
        )
        draft = draft_entry(entry, around, Wishes(), identifier=asked.as_id)
        if isinstance(draft, Note):
            raise Refused(draft.code, draft.text)
        if asked.writes and draft.data["server"]["kind"] in ("remote", "docker"):
            raise BadUsage("usage", "--write is for a server that runs here, outside of a container")
        if wide := [path for path in asked.writes if path in draft.withheld]:
            raise BadUsage("usage", f"{wide[0]} is too wide to be opened to a server", hint="name a folder inside it")
        for note in draft.notes:
            self.invocation.out.remark(f"note: {note.text}")
        data = {key: value for key, value in draft.data.items() if key != "implements"}
        if asked.programs:
            data["sandbox"] = {**data.get("sandbox", {}), "exec": {"allow": False, "spawn": list(asked.programs)}}
        if asked.beside:
            package = data["server"].get("package")
            data["install"] = [{"method": "pip", "package": package, "with": list(asked.beside)}]
        data = self._with_shipped(data)
        if not draft.secrets:
            return DriverRequest(data=data)
        self._keep(draft.secrets)
        return DriverRequest(data=data, files={SECRETS_FILE: secrets_text(draft.secrets)})

    def _with_shipped(self, data: dict[str, Any]) -> dict[str, Any]:
        from interlock.drivers.add.shipped import with_shipped

        taken = with_shipped(data, self.plan.data)
        if taken is None or not taken.what:
            return data
        self.invocation.out.remark(f"taken from the shipped driver {taken.shipped}: {'; '.join(taken.what)}")
        return dict(taken.data)

    def _keep(self, secrets: "Sequence[Finding]") -> None:
        from interlock.interop.cli.import_ import keeper

        keep = keeper(self.invocation)
        for each in secrets:
            value = each.value if each.value is not None else os.environ.get(each.name) or self._ask_for_secret(each)
            if each.backend is not None or not value:
                continue
            if keep(each.slug, value) == "differs":
                said = f"the store has another value, which stays: interlock secrets set {each.slug} replaces it"
                self.invocation.out.remark(f"note: {said}")

    def _ask_for_secret(self, secret: "Finding") -> str | None:
        if secret.backend is not None or not can_ask():
            return None
        answer: str = typer.prompt(f"{secret.name}", default="", hide_input=True, show_default=False, err=True)
        return answer or None

    async def agreed(self, proposals: "tuple[Proposal, ...]") -> "tuple[Proposal, ...]":
        """With the person, where one is there. What only a name suggests stays open unless somebody accepts it."""
        from interlock.drivers.cli.add_report import proposal_lines, show_proposals, with_classes

        out = self.invocation.out
        for each in proposals:
            if each.by == "person" and each.question is not None:
                out.remark(f"note: {each.tool_name}: {each.question}")
        if self._yes:
            return with_classes(proposals, {}, accept=True)
        if not can_ask() or (out.as_json and self._no_trust):
            return proposals

        def show(said: "Mapping[str, ToolClass]") -> None:
            shown = with_classes(proposals, said, accept=False)
            if not out.as_json:
                show_proposals(out, shown)
                return
            for line in proposal_lines(shown):
                out.remark(line)

        tools = {each.tool_name: each.tool_name for each in proposals if each.is_new}
        said = ask_classes("Write it?", tools, show, out.remark, nothing_done="nothing was written")
        return with_classes(proposals, said, accept=True)


def _tools(text: str | None) -> dict[str, str | None] | None:
    if text is None:
        return None
    found: dict[str, str | None] = {}
    for each in filter(None, (part.strip() for part in text.split(","))):
        tool, _, contract = each.partition(":")
        found[tool] = contract or None
    if not found:
        raise BadUsage("usage", "--tools names no tool", hint="--tools read_file:fs-read,write_file:fs-write")
    return found


def _parse_assignments(texts: Sequence[str], option: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or (not equals and option != "--env"):
            raise BadUsage("usage", f"{option} is NAME=VALUE", hint="interlock add --help")
        found[name] = value if equals else None
    return found


def trust_driver(invocation: Invocation, key: str) -> "DriverSummary":
    """What was written was agreed to just now. It stays untrusted where an approver signs and no node runs."""
    from interlock.drivers.api import DriverDetail, DriverSummary
    from interlock.drivers.cli.drivers import accept_files, get_driver

    one = get_driver(invocation, key).as_(DriverDetail)
    if one.trusted:
        return one
    try:
        done = accept_files(invocation, key, one.digest)
    except CommandFailed as refused:
        if refused.error == "proof_required" and "approval" not in refused.details:
            return one
        raise refused.with_hint(
            f"its files are written; interlock drivers trust {server_name(key)} accepts them"
        ) from None
    return _await_settled(invocation, key, done.as_(DriverSummary))


def _await_settled(invocation: Invocation, key: str, one: "DriverSummary") -> "DriverSummary":
    """A running node takes it up now; how that ended is worth a short wait."""
    import time

    from interlock.drivers.api import DriverSummary
    from interlock.drivers.cli.drivers import get_driver

    end = time.monotonic() + SETTLE_S
    while one.state in ("installing", "checking") and time.monotonic() < end:
        time.sleep(SETTLE_LOOK_S)
        one = get_driver(invocation, key).as_(DriverSummary)
    return one


def _refusal(failed: "NotAdded") -> Refused:
    details = {"problems": [str(each) for each in failed.problems]} if failed.problems else None
    return Refused(failed.code, failed.message, hint=failed.hint, details=details)


def as_command(reference: str, args: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """The reference, or None where it is the first word of a command; paths of here, made absolute."""
    here = tuple(absolute(each) for each in args)
    from interlock.interop.protocol.read.server_reference import PACKAGED

    is_kind = ":" in reference and reference.partition(":")[0] in (*PACKAGED, "http", "https")
    if is_kind or (reference.startswith("@") and not Path(reference).exists()):
        return reference, here
    if "/" in reference:
        return None, (str(Path(reference).expanduser().absolute()), *here)
    if args or shutil.which(reference):
        return None, (reference, *here)
    return reference, here


def absolute(text: str) -> str:
    """A server is started somewhere else: what names something here is made to name it there."""
    if text in (".", "..") or text.startswith(("./", "../", "~/")):
        return str(Path(os.path.abspath(Path(text).expanduser())))  # noqa: PTH100  (without following links)
    looks = not text.startswith(("-", "/")) and ("/" in text or "." in text) and ":" not in text and "@" not in text
    return str(Path(text).absolute()) if looks and Path(text).exists() else text


def absolute_value(text: str) -> str:
    return absolute(text) if text.startswith(("./", "../", "~/")) else text


def fresh(texts: Sequence[str]) -> dict[str, str]:
    """What names a file that is not there yet, with the folder it would be made in."""
    found = {}
    for text in (each.partition("=")[2] if each.startswith("-") else each for each in texts):
        is_path = text.startswith("/") and len(text) < PATH_CHARS_MAX and "\0" not in text
        if is_path and not os.path.lexists(text) and Path(text).parent.is_dir():
            found[text] = str(Path(text).parent)
    return found


def writable(text: str) -> str:
    path = Path(os.path.abspath(Path(text).expanduser()))  # noqa: PTH100  (without following links)
    if not path.is_dir():
        raise BadUsage("usage", f"--write {text}: there is no such folder", hint="make it first")
    return str(path)
