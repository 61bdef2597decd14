"""Commands about the registry of names: reading it, asking for names, changing entries, and signing statements.

Every command but `publish`, `import` and `attach` asks the running node, with one operation of `names.api`. Those three
work on the stored registry of this machine as well, so that a registry can be prepared before a node runs. A command
exits with 1 if the answer is a refusal, and with 3 while an expert has to decide.
"""

import contextlib
import inspect
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar, get_args

import msgspec
import typer

from interlock.approvals.cli.keys import FromDescriptor
from interlock.cli.command import Invocation, option, verb, verb_app
from interlock.cli.terminal.errors import EXIT_REFUSED, EXIT_WAITS, BadUsage, Unreachable, Waits
from interlock.cli.terminal.text import count
from interlock.names import api
from interlock.wire.refusal import Refused

if TYPE_CHECKING:
    from interlock.names.state import RegistryState

app = verb_app(
    "See what tool names mean, ask for names, and change them.",
    examples="""
    interlock names list
    interlock names check acme_search --controller Acme --prefix acme_
    interlock names request acme_search --from request.json
    interlock names show acme_search --log
    """,
)

FILE_BYTES_MAX: Final = 4 * 1024 * 1024  # of a request, a schema or a definition
JTI_BYTES: Final = 16  # of the random id of a signed statement

T = TypeVar("T")
Body = TypeVar("Body", bound=Callable[..., None])
Name = Annotated[str, typer.Argument(metavar="NAME", help="The surface name.")]
Prefix = Annotated[str, typer.Argument(metavar="PREFIX", help="The vendor prefix, with its last underscore.")]
Override = Annotated[
    str, option("--override", "Act in place of the controller, for a reason that is recorded.", "REASON")
]


def _text(name: str, help: str, metavar: str) -> Any:
    return Annotated[str | None, option(name, help, metavar)]


def _flag(name: str, help: str) -> Any:
    return Annotated[bool, option(name, help)]


# The options that describe a proposal or a change of it. The name is the member of the request that the option sets.
_PROPOSAL: Final[Mapping[str, Any]] = {
    "from_": Annotated[Path | None, option("--from", "The request as JSON; options win.", "FILE")],
    "change_controller": _text("--controller", "Who may change the entry.", "NAME"),
    "specification_reference": _text("--reference", "RFC 9999, draft-x-y-03, a DOI, https://", "REF"),
    "authentication_scope": _text("--scope", "Which credential servers ask for.", "SCOPE"),
    "vendor_prefix": _text("--prefix", "The vendor prefix it falls under.", "PREFIX"),
    "argument_schema": Annotated[Path | None, option("--arguments", "JSON Schema of the arguments.", "FILE")],
    "return_schema": Annotated[Path | None, option("--returns", "JSON Schema of the result.", "FILE")],
    "semantics": _text("--semantics", "What it does, or where that is described.", "TEXT"),
    "provisional": _flag("--provisional", "Register it as provisional, until its specification has a stable place."),
    "cross_vendor": _flag("--cross-vendor", "Meant for several operators."),
    "breaking": _flag("--breaking", "Callers have to change."),
    "no_authentication_planned": _flag("--no-authentication-planned", "A public surface stays public."),
}


_REQUESTED: Final = tuple(name for name in _PROPOSAL if name != "breaking")
_AMENDED: Final = (
    *("specification_reference", "authentication_scope", "argument_schema", "return_schema", "semantics"),
    *("breaking", "no_authentication_planned"),
)


def _with_options(names: tuple[str, ...]) -> Callable[[Body], Body]:
    """Return a decorator that adds options about a proposal to a command, in place of its `**members`. They come before
    the other options of the command.
    """

    def add(body: Body) -> Body:
        signature = inspect.signature(body)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        place = next((place for place, each in enumerate(own) if each.kind is each.KEYWORD_ONLY), len(own))
        for name in reversed(names):
            default = False if get_args(_PROPOSAL[name])[0] is bool else None
            parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
            own.insert(place, parameter.replace(annotation=_PROPOSAL[name]))
        body.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
        return body

    return add


def _read_members(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a request that the options of a command set. Options override the file of `--from`."""
    members = _json_object(options.get("from_"))
    for name, value in options.items():
        if name == "provisional" and value:
            members["status"] = "Provisional"
        elif name != "from_" and value not in (None, False):
            members[name] = _read_json(value) if isinstance(value, Path) else value
    return members


def _json_object(path: Path | None) -> dict[str, Any]:
    """Return the object in a JSON file, or an empty object if `path` is None. Raise Refused if the file cannot be read
    as JSON, and BadUsage if it does not contain an object.
    """
    members = {} if path is None else msgspec.json.decode(_read_json(path))
    if not isinstance(members, dict):
        raise BadUsage("usage", f"{path} holds no JSON object")
    return members


def _read_json(path: Path) -> Any:
    """Return the content of a JSON file, without white space. Raise Refused if the file is unreadable or not JSON."""
    try:
        return msgspec.Raw(msgspec.json.encode(msgspec.json.decode(_read_file(path))))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused("not_json", f"{path} is not JSON: {error}") from None


def _read_file(path: Path, bytes_max: int = FILE_BYTES_MAX) -> bytes:
    """Read a file of limited size. Raise Refused if it is unreadable or too large."""
    try:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise Refused("not_readable", f"{path}: {error.strerror}") from None
    if len(data) > bytes_max:
        raise Refused("too_large", f"{path} has more than {bytes_max} bytes")
    return data


def _require_local(invocation: Invocation, message: str) -> None:
    """Raise BadUsage with this message if the command is about another machine."""
    if invocation.remote_url is not None:
        raise BadUsage("usage", message)


def _change_stored_names(invocation: Invocation, job: "Callable[[RegistryState], Awaitable[T]]") -> T:
    """Run `job` with the registry that is stored on this machine. If a node is running, make it read the changed
    registry.
    """
    from interlock.cli.client.offline import run_with_names

    result = run_with_names(invocation.loaded.plan, invocation.data_folder, job)
    with contextlib.suppress(Unreachable):
        invocation.node.call(api.LIST_PREFIXES)  # the node reads its log whenever it gets a request
    return result


def _end_json(invocation: Invocation, code: int) -> None:
    """Exit with this code if the output is JSON. The output is then complete, and the exit code alone reports a
    failure.
    """
    if invocation.out.as_json:
        raise typer.Exit(code)


EvidenceKind = Literal["datatracker_date", "publication_date", "operational_history"]


Status = Literal["Active", "Provisional", "Deprecated", "Withdrawn"]
Public = Annotated[bool, option("--public")]
OfStatus = Annotated[Status | None, option("--status")]


@verb(app, "list")
def list_names(invocation: Invocation, *, public: Public = False, status: OfStatus = None) -> None:
    """List the registry; exit 1 while a review is overdue.

    Options:
        public: Only public names: who serves them, and how often.
        status: Only entries of this status.

    Examples:
        interlock names list
        interlock names list --public
    """
    listed, out = invocation.call_and_print(api.LIST_NAMES, only_public=public, status=status), invocation.out
    if not out.as_json:
        rows = []
        for entry in listed.names:
            marks = [
                *(["review overdue"] if entry.is_overdue else []),
                *(["confirm it"] if entry.is_unconfirmed else []),
                *([f"from {entry.source}" + ("" if entry.is_trusted else ", not trusted")] if entry.source else []),
                *([entry.origin] if entry.origin.endswith(", initial contents") else []),
            ]
            described = (entry.authentication_scope, entry.change_controller, entry.first_registered)
            audited = (entry.public_confirmed_on or "never", ", ".join(entry.servers) or "none", str(entry.calls))
            rows.append((entry.surface_name, entry.status, "; ".join(marks), *(audited if public else described)))
        heads = "CONFIRMED|SERVERS|CALLS" if public else "SCOPE|CONTROLLER|SINCE"
        out.draw_table(f"NAME|STATUS||{heads}", rows, shrink={4: 8} if public else {3: 8, 4: 8, 2: 14})
        if not listed.names:
            out.remark("no name fits")
        for other in listed.compared:
            differing = f"entries that differ: {other.differing} of {other.entries}"
            out.remark(f"compared with {other.source}, {differing}; interlock names show NAME says how")
        if listed.trouble is not None:
            out.remark(f"the registry cannot be used: {listed.trouble}")
    if listed.overdue:
        _end_json(invocation, EXIT_REFUSED)
        raise Refused("review_overdue", f"{count(listed.overdue, 'review')} of provisional names overdue")


@verb(app, "show")
def show(invocation: Invocation, name: Name, *, log: Annotated[bool, option("--log")] = False) -> None:
    """Show an entry, its requests and its log.

    Options:
        log: Show every step since the first request.

    Examples:
        interlock names show org_alter_handbook --log
    """
    answer = invocation.node.call(api.SHOW_NAME, name=name, with_log=log)
    out = invocation.out
    if out.as_json:
        out.raw_json(answer.raw)
        return
    shown: dict[str, Any] = answer.value
    entry = shown["entry"]
    if entry is None:
        out.line(f"{name}: no entry")
    else:
        specification = entry.pop("specification")
        earlier = entry.pop("earlier_specifications", [])
        out.line(f"{'comes from':24}{shown['origin']}")
        for key, value in entry.items():
            out.line(f"{key.replace('_', ' '):24}{value!s}")
        out.line(f"{'revision':24}{specification['revision']} of {specification['registered']}, {len(earlier)} before")
        out.line(f"{'schemas':24}{specification.get('argument_digest', 'not known')}")
    for comparison in shown["comparisons"]:
        out.line(f"compared with {comparison['source']}, imported on {comparison['imported_on']}:")
        for difference in comparison["differences"] or ["no difference"]:
            out.line(f"  {difference}")
    for request in shown["requests"]:
        reason = request.get("reason", "")
        out.line(f"{request['filed_on']}  {request['kind']} {request['id'][:8]} {request['state']}  {reason}")
    for implementation in shown["implementations"]:
        ended = implementation.get("ended_on")
        out.line(f"implemented by {implementation['who']}, " + (f"ended on {ended}" if ended else "known"))
    for step in shown["log"]:
        override = " in the controller's place" if step.get("is_override") else ""
        reason = step.get("reason", "")
        out.line(f"{step['at']}  {step['what']:12} by {step['by']}{override}  {reason}")


@verb(app, "check")
@_with_options(_REQUESTED)
def check(invocation: Invocation, name: Name, **members: Any) -> None:
    """Run the machine checks of a request; nothing is filed. Exit 1 where it would be refused.

    Examples:
        interlock names check acme_search --controller Acme --prefix acme_
    """
    proposal = {"change_controller": "unknown", **_read_members(members), "surface_name": name}
    result, out = invocation.call_and_print(api.CHECK_NAME, {"name": name, "proposal": proposal}), invocation.out
    if not out.as_json:
        for criterion in result.criteria:
            out.line(f"{criterion.criterion}  {criterion.outcome:13} {criterion.says}")
            for finding in result.findings:
                if finding.criterion == criterion.criterion:
                    out.line(f"     {finding.code}: {finding.reason}")
        for finding in result.findings:
            if finding.criterion == 0:
                out.line(f"-  {finding.verdict:13} {finding.code}: {finding.reason}")
    if any(criterion.outcome == "fail" for criterion in result.criteria):
        _end_json(invocation, EXIT_REFUSED)
        raise Refused("not_registrable", f"{name} cannot be registered like this")


@verb(app, "verify")
def verify(invocation: Invocation, name: Name, definition: Annotated[Path, typer.Argument(metavar="FILE")]) -> None:
    """Compare a tool with the specification of its name. Exit 1 unless it conforms.

    Options:
        definition: A tool's definition, as a server lists it.

    Examples:
        interlock names verify acme_search tool.json
    """
    result = invocation.call_and_print(api.VERIFY_NAME, {"name": name, "definition": _read_json(definition)})
    if not invocation.out.as_json:
        invocation.out.line(f"{name}: {result.verdict}")
        for difference in (*result.differences, *result.notes):
            invocation.out.line(f"  {difference}")
    if not result.is_verified:
        _end_json(invocation, EXIT_REFUSED)
        raise Refused("not_verified", f"the definition is {result.verdict}")


@verb(app, "request")
@_with_options(_REQUESTED)
def request(
    invocation: Invocation,
    name: Name,
    *,
    key: Annotated[str | None, option("--key", "The public key whose signatures count: ed25519:BASE64.", "KEY")] = None,
    handle: Annotated[str | None, option("--handle", "A label of the controller.", "~NAME")] = None,
    previous: Annotated[str | None, option("--previous", "The request that was returned.", "ID")] = None,
    override: Override = "",
    **members: Any,
) -> None:
    """Ask for a name. An expert decides in the inbox (exit 3 until then).

    Examples:
        interlock names request acme_search --from request.json
    """
    own = {"surface_name": name, "controller_key": key, "controller_handle": handle, "previous": previous}
    _act(invocation, "request", name, _read_members(members | own), override)


@verb(app, "amend")
@_with_options(_AMENDED)
def amend(invocation: Invocation, name: Name, *, override: Override = "", **members: Any) -> None:
    """Register a new revision. A compatible one counts at once; an expert decides on any other.

    Examples:
        interlock names amend acme_search --reference draft-acme-search-04
    """
    _act(invocation, "amend", name, _read_members(members), override)


@verb(app, "deprecate")
def deprecate(
    invocation: Invocation,
    name: Name,
    *,
    successor: Annotated[str, option("--successor", metavar="NAME")] = "",
    override: Override = "",
) -> None:
    """Mark a name as deprecated. It stays registered, and servers may still offer it.

    Options:
        successor: What to use instead.

    Examples:
        interlock names deprecate acme_search --successor acme_find
    """
    _act(invocation, "deprecate", name, {"successor": successor}, override)


@verb(app, "reinstate")
def reinstate(invocation: Invocation, name: Name, *, override: Override = "") -> None:
    """Make a deprecated name active again.

    Examples:
        interlock names reinstate acme_search
    """
    _act(invocation, "reinstate", name, {}, override)


@verb(app, "withdraw")
def withdraw(invocation: Invocation, name: Name, *, override: Override = "") -> None:
    """Withdraw a name. It must be deprecated for a year, and no known server may implement it.

    Examples:
        interlock names withdraw acme_search
    """
    _act(invocation, "withdraw", name, {}, override)


@verb(app, "transfer")
def transfer(
    invocation: Invocation,
    name: Name,
    *,
    to: Annotated[str, option("--to", metavar="CONTROLLER")],
    override: Override = "",
) -> None:
    """Transfer an entry to another controller. Each of the two asks for it once.

    Options:
        to: The new controller.

    Examples:
        interlock names transfer acme_search --to "Zebra Ltd"
    """
    _act(invocation, "transfer", name, {"to": to}, override)


@verb(app, "confirm-public")
def confirm_public(invocation: Invocation, name: Name, *, override: Override = "") -> None:
    """Confirm that a public surface is meant to be public.

    Examples:
        interlock names confirm-public acme_search
    """
    _act(invocation, "confirm-public", name, {}, override)


@verb(app, "declare")
def declare(
    invocation: Invocation,
    name: Name,
    *,
    who: Annotated[str, option("--by", metavar="WHO")],
    override: Override = "",
) -> None:
    """Record that somebody implements a surface. Its change controller may, and the implementer itself.

    Options:
        who: Who implements it.

    Examples:
        interlock names declare acme_search --by "Zebra's server"
    """
    _act(invocation, "declare", name, {"who": who}, override)


@verb(app, "end")
def end(
    invocation: Invocation,
    name: Name,
    *,
    who: Annotated[str, option("--by", metavar="WHO")],
    evidence: Annotated[str, option("--evidence", metavar="TEXT")],
    override: Override = "",
) -> None:
    """Record that an implementation has ended.

    Options:
        who: Who implemented it.
        evidence: What shows that it ended.

    Examples:
        interlock names end acme_search --by zebra --evidence 'switched off'
    """
    _act(invocation, "end", name, {"who": who, "evidence": evidence}, override)


@verb(app, "consent")
def consent(
    invocation: Invocation,
    prefix: Prefix,
    *,
    controller: Annotated[str, option("--controller", metavar="NAME")],
    until: Annotated[str, option("--until", metavar="DAY")],
    override: Override = "",
) -> None:
    """Let another controller register names under a prefix.

    Options:
        controller: Who may register under it.
        until: The last day.

    Examples:
        interlock names consent acme_ --controller "Zebra Ltd" --until 2027-12-31
    """
    _act(invocation, "consent", prefix, {"controller": controller, "until": until}, override)


@verb(app, "dispute")
def dispute(
    invocation: Invocation,
    prefix: Prefix,
    *,
    controller: Annotated[str, option("--controller", "Who used it first.", "NAME")],
    evidence: Annotated[list[str], option("--evidence", "What shows it; may be repeated.", "URL")],
    date: Annotated[str, option("--date", "The day of the first use.", "DAY")],
    kind: Annotated[EvidenceKind, typer.Option("--kind", help="What the evidence is.")] = "publication_date",
    override: Override = "",
) -> None:
    """Claim a prefix on evidence of first use. An expert rules (exit 3 until then).

    Examples:
        interlock names dispute a_ --controller Z --date 2020-02-02 --evidence URL
    """
    items = [{"kind": kind, "url": url, "date": date} for url in evidence]
    _act(invocation, "dispute", prefix, {"controller": controller, "evidence": items}, override)


@verb(app, "cancel")
def cancel(
    invocation: Invocation, request_: Annotated[str, typer.Argument(metavar="ID")], *, override: Override = ""
) -> None:
    """Cancel a request.

    Options:
        request_: The request.

    Examples:
        interlock names cancel 3f9c0a1b-0000-4000-8000-000000000000
    """
    _act(invocation, "cancel", request_, {}, override)


@verb(app, "attach")
def attach(
    invocation: Invocation,
    request_: Annotated[str, typer.Argument(metavar="REQUEST")],
    document: Annotated[Path, typer.Argument(metavar="FILE")],
) -> None:
    """Attach a copy of a document that was not reached.

    An expert confirms by it. Without it, what the node could not fetch is not accepted.

    Options:
        request_: The request, or the name it is about.
        document: A copy of the specification.

    Examples:
        interlock names attach acme_search draft-acme-search-03.txt
    """
    from interlock.names.documents import DOCUMENT_BYTES_MAX, attach_copy

    _require_local(invocation, "a copy is attached on the node's own machine")
    copy = _read_file(document, DOCUMENT_BYTES_MAX)
    folder = invocation.data_folder
    request, path = _change_stored_names(invocation, lambda state: attach_copy(state, folder, "local", request_, copy))
    digest = (request.retrieval.digest if request.retrieval is not None else None) or ""
    if invocation.out.as_json:
        invocation.out.json({"request": request.id, "subject": request.subject, "digest": digest, "path": str(path)})
        return
    invocation.out.line(f"attached to the request for {request.subject}: {digest}")
    invocation.out.remark(f"the copy is {path}")


@verb(app, "sign")
def sign(
    invocation: Invocation,
    action: Annotated[str, typer.Argument(metavar="ACTION")],
    subject: Annotated[str, typer.Argument(metavar="NAME")],
    *,
    controller: Annotated[str, option("--controller", metavar="NAME")],
    key: Annotated[str, option("--key", metavar="NAME")],
    from_: Annotated[Path | None, option("--from", metavar="FILE")] = None,
    registry: Annotated[str | None, option("--registry", metavar="ID")] = None,
    passphrase_fd: FromDescriptor = None,
) -> None:
    """Sign a statement of a change controller, and print it.

    It counts once and for ten minutes, at the registry that it is for. Send it there as application/jose. A request
    carries the public half of the key, whose signatures count from then on.

    Options:
        action: request, amend, deprecate and so on.
        subject: The surface name, prefix or request.
        controller: The controller for which it is signed.
        key: The key of the controller on this machine.
        from_: The input of the action, as a JSON object.
        registry: The registry it is for: GET /registry/names names it.  [default: this node]

    Examples:
    interlock names sign deprecate acme_search --controller Acme --key acme
    interlock names sign request acme_search --controller Acme --key acme --from request.json
    """
    import secrets
    import time

    from interlock.approvals.cli.keys import OperatorKeys, read_passphrase
    from interlock.names.protocol.statements import CHARS_MAX, STATEMENT_S_MAX, TYP, statement_claims
    from interlock.operator.api import GET_STATUS

    body = _json_object(from_)
    registry = registry or invocation.node.call(GET_STATUS).value["node"]["aggregator_id"]
    if action not in get_args(api.NamesAction):
        raise BadUsage("usage", f"actions are {', '.join(get_args(api.NamesAction))}")
    keys = OperatorKeys()
    if action == "request":
        public = keys.find_public(key)
        if public is None:
            raise keys.unknown(key)
        if body.get("change_controller", controller) != controller:
            raise BadUsage("usage", f"the file asks for another controller: {str(body['change_controller'])[:100]}")
        body = {"controller_key": public, **body, "surface_name": subject, "change_controller": controller}
    signer = keys.open(key, lambda: read_passphrase(key, passphrase_fd))
    jti = secrets.token_urlsafe(JTI_BYTES)
    claims = statement_claims(controller, action, subject, body, registry=registry, jti=jti, now=time.time())
    statement = signer.sign(TYP, claims)
    if len(statement) > CHARS_MAX:
        raise Refused("too_large", f"a statement has at most {CHARS_MAX} characters")
    match action:
        case "request":
            path = "/registry/requests"
        case "cancel":
            path = f"/registry/requests/{subject}/cancel"
        case "consent" | "dispute":
            path = f"/registry/prefixes/{subject}/{action}"
        case _:
            path = f"/registry/names/{subject}/{action}"
    seconds = int(STATEMENT_S_MAX)
    if invocation.out.as_json:
        signed = {"statement": statement, "registry": registry, "path": path, "seconds": seconds}
        invocation.out.raw_json(msgspec.json.encode(signed))
        return
    invocation.out.line(statement)
    invocation.out.remark(f"send it within {seconds // 60} minutes, as application/jose: POST {path}")


def _act(
    invocation: Invocation, action: api.NamesAction, subject: str, body: dict[str, Any], override: str = ""
) -> None:
    """Perform an action at the node and print its outcome. Exit with 3 if an expert still has to decide, and
    with 1 if the request was returned.
    """
    wanted = {"action": action, "subject": subject, "body": body, "override": override}
    try:
        done = invocation.call_and_print(api.ACT, wanted, timeout=60.0)
    except Refused as refused:
        if refused.code != "not_change_controller" or override:
            raise
        hint = f"interlock names sign {action} NAME --controller NAME --key NAME; or in its place: --override REASON"
        raise refused.with_hint(hint) from None
    if not invocation.out.as_json:
        reason = f": {done.reason}" if done.reason else ""
        invocation.out.line(f"{done.subject} is {done.state}{reason}")
    if done.approval is not None:
        _end_json(invocation, EXIT_WAITS)
        hint = f"interlock approvals show {done.approval[:8]}"
        raise Waits("waits", "an expert has to decide", hint=hint, details={"approval": done.approval})
    if done.state == "revision_requested":
        _end_json(invocation, EXIT_REFUSED)
        raise Refused("revision_requested", f"{done.subject} was returned: {done.reason}")


Form = Literal["xml", "csv", "txt", "json"]


@verb(app, "publish")
def publish(
    invocation: Invocation,
    *,
    form: Annotated[Form, typer.Option("--form", help="The form.")] = "json",
    out: Annotated[Path | None, option("--out", "The file to write; stdout if not given.", "FILE")] = None,
) -> None:
    """Write the registry as it is published. Needs no running node.

    Examples:
        interlock names publish --form xml --out names.xml
    """
    try:
        data = invocation.node.call(api.PUBLISH, form=form).raw
    except Unreachable as away:
        if not invocation.is_stopped(away):
            raise
        from interlock.cli.client.offline import run_with_names
        from interlock.names.actions import Publisher

        plan = invocation.loaded.plan
        experts = tuple(sorted(anchor.name for anchor in plan.anchors))

        async def publish_stored(state: "RegistryState") -> bytes:
            return Publisher(state, lambda: experts).published(form)

        data = run_with_names(plan, invocation.data_folder, publish_stored)
    if out is None:
        invocation.out.document(data.decode().removesuffix("\n"))
        return
    try:
        out.write_bytes(data)
    except OSError as error:
        raise Refused("not_written", f"{out}: {error.strerror}") from None
    invocation.out.remark(f"written: {out}")


@verb(app, "import")
def import_registry(
    invocation: Invocation,
    document: Annotated[Path, typer.Argument(metavar="FILE", help="A published registry: JSON, XML or CSV.")],
    *,
    source: Annotated[str | None, option("--source", "Where it comes from.", "URL")] = None,
    trusted: Annotated[bool, option("--trusted", "Enforce its entries instead of only warning.")] = False,
    beside: Annotated[bool, option("--beside", "Only compare: names show says where it differs.")] = False,
    pin: Annotated[str, option("--pin", "The digest that it must have.", "DIGEST")] = "",
) -> None:
    """Import another registry, read-only here. Needs no running node and no network.

    Examples:
        interlock names import names.json --source https://example.org
        interlock names import later.csv --source draft-x-y-02 --beside
    """
    from interlock.names.actions import Publisher
    from interlock.names.protocol.publication import DOCUMENT_BYTES_MAX

    _require_local(invocation, "a registry is imported on the node's own machine")
    data, named_source = _read_file(document, DOCUMENT_BYTES_MAX), source or str(document)
    try:
        entries, imported = _change_stored_names(
            invocation,
            lambda state: Publisher(state, tuple).import_(
                "local", data, named_source, is_trusted=trusted, is_beside=beside, pin=pin
            ),
        )
    except Refused as refused:
        if refused.code != "name_taken":
            raise
        raise refused.with_hint("--beside imports it for comparison only") from None
    if invocation.out.as_json:
        invocation.out.raw_json(msgspec.json.encode({"entries": entries, "source": imported}))
        return
    trust = "trusted" if imported.is_trusted else "not trusted: it warns, and refuses nothing"
    trust = "only compared: interlock names show NAME says where it differs" if imported.is_beside else trust
    invocation.out.line(f"imported: {entries} entries from {imported.url} ({trust})")
    invocation.out.line(f"digest:   {imported.digest}")


@verb(app, "trust")
def trust(
    invocation: Invocation,
    source: Annotated[str, typer.Argument(metavar="SOURCE")],
    *,
    revoke: Annotated[bool, option("--revoke")] = False,
) -> None:
    """Enforce the entries of an imported registry.

    Options:
        source: The source, as names list shows it.
        revoke: No longer.

    Examples:
        interlock names trust https://registry.example.org
    """
    if invocation.call_or_print(api.TRUST, {"source": source, "trusted": not revoke}) is not None:
        invocation.out.line(f"{'no longer trusted' if revoke else 'trusted'}: {source}")


@verb(app, "repin")
def repin(
    invocation: Invocation,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    *,
    remove: Annotated[bool, option("--remove")] = False,
) -> None:
    """Pin the tools of a name to their current schemas.

    A tool that is pinned and later has other schemas is refused until it is pinned again.

    Options:
        name: A surface name, or a tool with its segment.
        remove: Take the pins away.

    Examples:
    interlock names repin acme_search
    interlock names repin crm.acme_search --remove
    """
    pinned = invocation.call_or_print(api.REPIN, {"name": name, "remove": remove})
    state = "is no longer pinned" if remove else "is pinned"
    for tool in pinned.tools if pinned is not None else ():
        invocation.out.line(f"{tool.tool} {state} ({tool.digest[:19]})")
