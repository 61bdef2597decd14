"""Commands that change the registry of names, their options, and commands that sign statements of change
controllers.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

import typer

from interlock.approvals.cli.keys import FromDescriptor
from interlock.cli.command import Invocation, option, verb
from interlock.cli.terminal.errors import EXIT_REFUSED, EXIT_WAITS, BadUsage, Unreachable, Waits
from interlock.wire.refusal import Refused

if TYPE_CHECKING:
    from interlock.cli.client.operator import Answer
    from interlock.names.api import NamesAction

FILE_BYTES_MAX = 4 * 1024 * 1024  # of a request, a schema or a definition

Name = Annotated[str, typer.Argument(metavar="NAME", help="The surface name.")]
Prefix = Annotated[str, typer.Argument(metavar="PREFIX", help="The vendor prefix, with its last underscore.")]
Override = Annotated[str, option("--override", "Act in the place of the controller; recorded.", "REASON")]
Reference = Annotated[str | None, option("--reference", "RFC 9999, draft-x-y-03, a DOI, https://", "REF")]
Scope = Annotated[str | None, option("--scope", "Which credential servers ask for.", "SCOPE")]
Arguments = Annotated[Path | None, option("--arguments", "JSON Schema of the arguments.", "FILE")]
Returns = Annotated[Path | None, option("--returns", "JSON Schema of what is returned.", "FILE")]
Semantics = Annotated[str | None, option("--semantics", "What it does, or where that is said.", "TEXT")]
StaysPublic = Annotated[bool, option("--no-authentication-planned", "A public surface stays public.")]
Controller = Annotated[str | None, option("--controller", "Who may change the entry.", "NAME")]
VendorPrefix = Annotated[str | None, option("--prefix", "The vendor prefix it falls under.", "PREFIX")]
Provisional = Annotated[bool, option("--provisional", "Until the specification has a stable place.")]
CrossVendor = Annotated[bool, option("--cross-vendor", "Meant for several operators.")]
From = Annotated[Path | None, option("--from", "The request as JSON; options win.", "FILE")]


def proposal_of(
    *,
    name: str,
    from_: Path | None,
    controller: str | None,
    reference: str | None,
    scope: str | None,
    prefix: str | None,
    arguments: Path | None,
    returns: Path | None,
    semantics: str | None,
    provisional: bool,
    cross_vendor: bool,
    no_authentication_planned: bool,
) -> dict[str, Any]:
    """Return the proposal of a request: the members of the file, overridden by the options."""
    import msgspec

    read = {} if from_ is None else msgspec.json.decode(json_file(from_))
    if not isinstance(read, dict):
        raise BadUsage("usage", f"{from_} holds no JSON object")
    return {
        **read,
        **_present(
            surface_name=name,
            change_controller=controller,
            specification_reference=reference,
            authentication_scope=scope,
            vendor_prefix=prefix,
            argument_schema=arguments and json_file(arguments),
            return_schema=returns and json_file(returns),
            semantics=semantics,
            status="Provisional" if provisional else None,
            cross_vendor=cross_vendor,
            no_authentication_planned=no_authentication_planned,
        ),
    }


def _present(**members: Any) -> dict[str, Any]:
    """Return the options that were given."""
    return {key: value for key, value in members.items() if value not in (None, False)}


def json_file(path: Path) -> Any:
    """Return the content of a JSON file, without white space. Raises Refused."""
    import msgspec

    try:
        return msgspec.Raw(msgspec.json.encode(msgspec.json.decode(read_file(path))))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused("not_json", f"{path} is not JSON: {error}") from None


def read_file(path: Path, bytes_max: int = FILE_BYTES_MAX) -> bytes:
    """Read a file of limited size. Raises Refused."""
    try:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise Refused("not_readable", f"{path}: {error.strerror}") from None
    if len(data) > bytes_max:
        raise Refused("too_large", f"{path} has more than {bytes_max} bytes")
    return data


def end_json(invocation: Invocation, code: int) -> None:
    """Exit after JSON output: the output is complete, and only the exit code tells of the failure."""
    if invocation.out.as_json:
        raise typer.Exit(code)


EvidenceKind = Literal["datatracker_date", "publication_date", "operational_history"]


def register(app: typer.Typer) -> None:
    """Add the commands that change the registry to the app of `interlock names`."""
    verb(app, "request", examples="interlock names request acme_search --from request.json")(request)
    verb(app, "amend", examples="interlock names amend acme_search --reference draft-acme-search-04")(amend)
    verb(app, "deprecate", examples="interlock names deprecate acme_search --successor acme_find")(deprecate)
    verb(app, "reinstate", examples="interlock names reinstate acme_search")(reinstate)
    verb(app, "withdraw", examples="interlock names withdraw acme_search")(withdraw)
    verb(app, "transfer", examples='interlock names transfer acme_search --to "Zebra Ltd"')(transfer)
    verb(app, "confirm-public", examples="interlock names confirm-public acme_search")(confirm_public)
    verb(app, "declare", examples='interlock names declare acme_search --by "Zebra\'s server"')(declare)
    verb(app, "end", examples="interlock names end acme_search --by zebra --evidence 'switched off'")(end)
    verb(app, "consent", examples='interlock names consent acme_ --controller "Zebra Ltd" --until 2027-12-31')(consent)
    verb(app, "dispute", examples="interlock names dispute a_ --controller Z --date 2020-02-02 --evidence URL")(dispute)
    verb(app, "cancel", examples="interlock names cancel 3f9c0a1b-0000-4000-8000-000000000000")(cancel)
    verb(app, "attach", examples="interlock names attach acme_search draft-acme-search-03.txt")(attach)
    verb(
        app,
        "sign",
        examples="""
    interlock names sign deprecate acme_search --controller Acme --key acme
    interlock names sign request acme_search --controller Acme --key acme --from request.json
    """,
    )(sign)


def request(
    invocation: Invocation,
    name: Name,
    *,
    from_: From = None,
    controller: Controller = None,
    reference: Reference = None,
    scope: Scope = None,
    prefix: VendorPrefix = None,
    arguments: Arguments = None,
    returns: Returns = None,
    semantics: Semantics = None,
    provisional: Provisional = False,
    cross_vendor: CrossVendor = False,
    no_authentication_planned: StaysPublic = False,
    key: Annotated[str | None, option("--key", "Whose signatures count: ed25519:BASE64.", "KEY")] = None,
    handle: Annotated[str | None, option("--handle", "A label of the controller.", "~NAME")] = None,
    previous: Annotated[str | None, option("--previous", "The request that was returned.", "ID")] = None,
    override: Override = "",
) -> None:
    """Ask for a name. An expert decides in the inbox (exit 3 until then)."""
    own = ("invocation", "key", "handle", "previous", "override")
    proposal = proposal_of(**{member: value for member, value in locals().items() if member not in (*own, "own")})
    proposal |= _present(controller_key=key, controller_handle=handle, previous=previous)
    _act(invocation, "request", name, proposal, override)


def amend(
    invocation: Invocation,
    name: Name,
    *,
    reference: Reference = None,
    scope: Scope = None,
    arguments: Arguments = None,
    returns: Returns = None,
    semantics: Semantics = None,
    breaking: Annotated[bool, option("--breaking", "Callers have to change.")] = False,
    no_authentication_planned: StaysPublic = False,
    override: Override = "",
) -> None:
    """Register a new revision. A compatible one counts at once; an expert decides on any other."""
    change = _present(
        specification_reference=reference,
        authentication_scope=scope,
        argument_schema=arguments and json_file(arguments),
        return_schema=returns and json_file(returns),
        semantics=semantics,
        breaking=breaking,
        no_authentication_planned=no_authentication_planned,
    )
    _act(invocation, "amend", name, change, override)


def deprecate(
    invocation: Invocation,
    name: Name,
    *,
    successor: Annotated[str, option("--successor", "What to use instead.", "NAME")] = "",
    override: Override = "",
) -> None:
    """Advise against a name. It stays on record, and what uses it goes on."""
    _act(invocation, "deprecate", name, {"successor": successor}, override)


def reinstate(invocation: Invocation, name: Name, *, override: Override = "") -> None:
    """Make a deprecated name active again."""
    _act(invocation, "reinstate", name, {}, override)


def withdraw(invocation: Invocation, name: Name, *, override: Override = "") -> None:
    """Withdraw a name. It was deprecated for a year, and no known server implements it."""
    _act(invocation, "withdraw", name, {}, override)


def transfer(
    invocation: Invocation,
    name: Name,
    *,
    to: Annotated[str, option("--to", "Who is to have it.", "CONTROLLER")],
    override: Override = "",
) -> None:
    """Hand an entry to another controller. Each of the two asks for it once."""
    _act(invocation, "transfer", name, {"to": to}, override)


def confirm_public(invocation: Invocation, name: Name, *, override: Override = "") -> None:
    """Confirm that a public surface is meant to be public."""
    _act(invocation, "confirm-public", name, {}, override)


def declare(
    invocation: Invocation,
    name: Name,
    *,
    by: Annotated[str, option("--by", "Who implements it.", "WHO")],
) -> None:
    """Put an implementation of a surface on record."""
    _act(invocation, "declare", name, {"who": by}, "")


def end(
    invocation: Invocation,
    name: Name,
    *,
    by: Annotated[str, option("--by", "Who implemented it.", "WHO")],
    evidence: Annotated[str, option("--evidence", "What shows that it ended.", "TEXT")],
    override: Override = "",
) -> None:
    """Put the end of an implementation on record."""
    _act(invocation, "end", name, {"who": by, "evidence": evidence}, override)


def consent(
    invocation: Invocation,
    prefix: Prefix,
    *,
    controller: Annotated[str, option("--controller", "Who may register under it.", "NAME")],
    until: Annotated[str, option("--until", "The last day.", "DAY")],
    override: Override = "",
) -> None:
    """Let another controller register names under a prefix."""
    _act(invocation, "consent", prefix, {"controller": controller, "until": until}, override)


def dispute(
    invocation: Invocation,
    prefix: Prefix,
    *,
    controller: Annotated[str, option("--controller", "Who used it first.", "NAME")],
    evidence: Annotated[list[str], option("--evidence", "What shows it; may be repeated.", "URL")],
    date: Annotated[str, option("--date", "Of the first use.", "DAY")],
    kind: Annotated[EvidenceKind, typer.Option("--kind", help="What the evidence is.")] = "publication_date",
    override: Override = "",
) -> None:
    """Claim a prefix on evidence of first use. An expert rules (exit 3 until then)."""
    items = [{"kind": kind, "url": url, "date": date} for url in evidence]
    _act(invocation, "dispute", prefix, {"controller": controller, "evidence": items}, override)


def cancel(
    invocation: Invocation,
    id: Annotated[str, typer.Argument(metavar="ID", help="The request.")],
    *,
    override: Override = "",
) -> None:
    """Take a request back."""
    _act(invocation, "cancel", id, {}, override)


def attach(
    invocation: Invocation,
    request_: Annotated[str, typer.Argument(metavar="REQUEST", help="The request, or the name it is about.")],
    document: Annotated[Path, typer.Argument(metavar="FILE", help="A copy of the specification.")],
) -> None:
    """Attach a copy of a document that was not reached.

    An expert confirms by it. Without it, what the node could not fetch is not accepted.
    """
    import contextlib

    import msgspec

    from interlock.cli.client.offline_names import StoredNames
    from interlock.names.api import LIST_PREFIXES
    from interlock.names.documents import DOCUMENT_BYTES_MAX

    if invocation.remote_url is not None:
        raise BadUsage("usage", "a copy is attached on the node's own machine")
    attached = StoredNames(invocation.loaded.plan, invocation.data_folder).attach(
        request_, read_file(document, DOCUMENT_BYTES_MAX)
    )
    with contextlib.suppress(Unreachable):
        invocation.node.call(LIST_PREFIXES)  # a node that runs takes it in with this
    if invocation.out.as_json:
        invocation.out.raw_json(msgspec.json.encode(attached))
        return
    invocation.out.line(f"attached to the request for {attached.subject}: {attached.digest}")
    invocation.out.remark(f"the copy is {attached.path}")


def sign(
    invocation: Invocation,
    action: Annotated[str, typer.Argument(metavar="ACTION", help="request, amend, deprecate and so on.")],
    subject: Annotated[str, typer.Argument(metavar="NAME", help="The surface name, prefix or request.")],
    *,
    controller: Annotated[str, option("--controller", "For whom it is signed.", "NAME")],
    key: Annotated[str, option("--key", "The key of the controller on this machine.", "NAME")],
    from_: Annotated[Path | None, option("--from", "What the action takes, as a JSON object.", "FILE")] = None,
    registry: Annotated[
        str | None,
        option("--registry", "The registry it is for: GET /registry/names names it.  [default: this node]", "ID"),
    ] = None,
    passphrase_fd: FromDescriptor = None,
) -> None:
    """Sign a statement of a change controller, and print it.

    It counts once and for ten minutes, at the registry that it is for. Send it there as application/jose. A request
    carries the public half of the key, whose signatures count from then on.
    """
    import msgspec

    from interlock.operator.api import GET_STATUS

    body = {} if from_ is None else msgspec.json.decode(json_file(from_))
    if not isinstance(body, dict):
        raise BadUsage("usage", f"{from_} holds no JSON object")
    aimed = registry or invocation.node.call(GET_STATUS).value["node"]["aggregator_id"]
    signed = sign_statement(action, subject, controller, body, key=key, registry=aimed, passphrase_fd=passphrase_fd)
    if invocation.out.as_json:
        invocation.out.raw_json(msgspec.json.encode(signed))
        return
    invocation.out.line(signed.statement)
    invocation.out.remark(f"send it within {signed.seconds // 60} minutes, as application/jose: POST {signed.path}")


def _act(invocation: Invocation, action: "NamesAction", subject: str, body: dict[str, Any], override: str) -> None:
    """Perform an action at the node, print its outcome, and exit with 3 while an expert has to decide."""
    from interlock.names.api import ACT

    wanted = {"action": action, "subject": subject, "body": body, "override": override}
    try:
        answer: Answer = invocation.node.call(ACT, body=wanted, timeout=60.0)
    except Refused as refused:
        if refused.code != "not_change_controller" or override:
            raise
        hint = f"interlock names sign {action} NAME --controller NAME --key NAME; or in its place: --override REASON"
        raise refused.with_hint(hint) from None
    from interlock.cli.terminal.text import one_line
    from interlock.names.api import NameOutcome

    done = answer.as_(NameOutcome)
    if invocation.out.as_json:
        invocation.out.raw_json(answer.raw)
    else:
        reason = f": {one_line(done.reason)}" if done.reason else ""
        invocation.out.line(f"{done.subject} is {done.state}{reason}")
    if done.approval is not None:
        end_json(invocation, EXIT_WAITS)
        hint = f"interlock approvals show {done.approval[:8]}"
        raise Waits("waits", "an expert has to decide", hint=hint, details={"approval": done.approval})
    if done.state == "revision_requested":
        end_json(invocation, EXIT_REFUSED)
        raise Refused("revision_requested", f"{done.subject} was returned: {one_line(done.reason)}")


JTI_BYTES: Final = 16
_OF_PREFIXES: Final = ("consent", "dispute")


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedStatement:
    """A signed statement, and where to send it."""

    statement: str
    registry: str
    path: str  # where the registry takes it
    seconds: int  # for how long it counts


def sign_statement(
    action: str,
    subject: str,
    controller: str,
    body: dict[str, Any],
    *,
    key: str,
    registry: str,
    passphrase_fd: int | None,
) -> SignedStatement:
    """Sign a statement with a key of this machine. Raises Refused and BadUsage."""
    import secrets
    import time

    from interlock.approvals.cli.keys import OperatorKeys, read_passphrase
    from interlock.names.api import NamesAction
    from interlock.names.protocol.statements import CHARS_MAX, STATEMENT_S_MAX, TYP, statement_claims

    if action not in get_args(NamesAction):
        raise BadUsage("usage", f"actions are {', '.join(get_args(NamesAction))}")
    keys = OperatorKeys()
    if action == "request":
        public = keys.maybe_public(key)
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
    return SignedStatement(
        statement=statement, registry=registry, path=_path(action, subject), seconds=int(STATEMENT_S_MAX)
    )


def _path(action: str, subject: str) -> str:
    if action == "request":
        return "/registry/requests"
    if action == "cancel":
        return f"/registry/requests/{subject}/cancel"
    return f"/registry/{'prefixes' if action in _OF_PREFIXES else 'names'}/{subject}/{action}"
