"""interlock names list | show | check | verify | request | amend | deprecate | withdraw | publish | import | ..."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from interlock.surface.cli.command import Invocation, verb, verb_app
from interlock.surface.cli.keys.passphrases import FromDescriptor
from interlock.surface.cli.terminal.errors import EXIT_REFUSED, EXIT_WAITS, BadUsage, Refused, Unreachable, Waits

if TYPE_CHECKING:
    from interlock.operator_api.names import NameCheck, NamesAction
    from interlock.surface.cli.client.operator import Answer

app = verb_app(
    "See what tool names mean, ask for names, and change them.",
    examples="""
    interlock names list
    interlock names check acme_search --controller Acme --prefix acme_
    interlock names request acme_search --from request.json
    interlock names show acme_search --log
    """,
)

FILE_BYTES_MAX = 4 * 1024 * 1024  # of a request, a schema or a definition

Form = Literal["xml", "csv", "txt", "json"]
Status = Literal["Active", "Provisional", "Deprecated", "Withdrawn"]
EvidenceKind = Literal["datatracker_date", "publication_date", "operational_history"]

Name = Annotated[str, typer.Argument(metavar="NAME", help="The surface name.")]
Prefix = Annotated[str, typer.Argument(metavar="PREFIX", help="The vendor prefix, with its last underscore.")]
Override = Annotated[
    str,
    typer.Option(
        "--override", metavar="REASON", help="Act in the place of the controller; recorded.", show_default=False
    ),
]
Reference = Annotated[
    str | None,
    typer.Option("--reference", metavar="REF", help="RFC 9999, draft-x-y-03, a DOI, https://", show_default=False),
]
Scope = Annotated[
    str | None,
    typer.Option("--scope", metavar="SCOPE", help="Which credential servers ask for.", show_default=False),
]
Arguments = Annotated[
    Path | None,
    typer.Option("--arguments", metavar="FILE", help="JSON Schema of the arguments.", show_default=False),
]
Returns = Annotated[
    Path | None, typer.Option("--returns", metavar="FILE", help="JSON Schema of what is returned.", show_default=False)
]
Semantics = Annotated[
    str | None,
    typer.Option("--semantics", metavar="TEXT", help="What it does, or where that is said.", show_default=False),
]
StaysPublic = Annotated[
    bool, typer.Option("--no-authentication-planned", help="A public surface stays public.", show_default=False)
]
Controller = Annotated[
    str | None, typer.Option("--controller", metavar="NAME", help="Who may change the entry.", show_default=False)
]
VendorPrefix = Annotated[
    str | None, typer.Option("--prefix", metavar="PREFIX", help="The vendor prefix it falls under.", show_default=False)
]
Provisional = Annotated[
    bool, typer.Option("--provisional", help="Until the specification has a stable place.", show_default=False)
]
CrossVendor = Annotated[bool, typer.Option("--cross-vendor", help="Meant for several operators.", show_default=False)]
From = Annotated[
    Path | None, typer.Option("--from", metavar="FILE", help="The request as JSON; options win.", show_default=False)
]


@verb(app, "list", examples="interlock names list\ninterlock names list --public")
def list_names(
    invocation: Invocation,
    *,
    public: Annotated[
        bool, typer.Option("--public", help="Only public ones: who serves them, and how often.", show_default=False)
    ] = False,
    status: Annotated[
        Status | None, typer.Option("--status", help="Only entries of this status.", show_default=False)
    ] = None,
) -> None:
    """List the registry; exit 1 while a review is overdue."""
    query: dict[str, Any] = ({"public": "yes"} if public else {}) | ({"status": status or ""} if status else {})
    answer = invocation.node.get("names", **query)
    from interlock.operator_api.names import Names

    found = answer.as_(Names)
    out = invocation.out
    if out.as_json:
        out.raw_json(answer.raw)
    else:
        from rich.text import Text

        from interlock.surface.cli.render.columns import in_columns
        from interlock.surface.cli.terminal.text import one_line

        heads = ("CONFIRMED", "SERVERS", "CALLS") if public else ("SCOPE", "CONTROLLER", "SINCE")
        rows = [[Text(head, style="dim") for head in ("NAME", "STATUS", "", *heads)]]
        for one in found.names:
            marks = [
                *(["review overdue"] if one.is_overdue else []),
                *(["confirm it"] if one.is_unconfirmed else []),
                *([f"from {one.source}" + ("" if one.is_trusted else ", not trusted")] if one.source else []),
            ]
            described = (one.authentication_scope, one.change_controller, one.first_registered)
            audited = (one.public_confirmed_on or "never", ", ".join(one.servers) or "none", str(one.calls))
            texts = (one.surface_name, one.status, "; ".join(marks), *(audited if public else described))
            rows.append([Text(one_line(text)) for text in texts])
        out.draw(*in_columns(rows, width=out.console.width, shrink={4: 8} if public else {3: 8, 4: 8, 2: 14}))
        if not found.names:
            out.remark("no name fits")
        if found.trouble is not None:
            out.remark(f"the registry cannot be used: {one_line(found.trouble)}")
    if found.overdue:
        _end_json(invocation, EXIT_REFUSED)
        from interlock.surface.cli.terminal.text import count

        raise Refused("review_overdue", f"{count(found.overdue, 'review')} of provisional names overdue")


@verb(app, "show", examples="interlock names show org_alter_handbook --log")
def show(
    invocation: Invocation,
    name: Name,
    *,
    log: Annotated[
        bool, typer.Option("--log", help="Every step, from the first request on.", show_default=False)
    ] = False,
) -> None:
    """Show an entry, its requests and its log."""
    query: dict[str, Any] = {"log": "yes"} if log else {}
    answer = invocation.node.get("names", "entries", name, **query)
    out = invocation.out
    if out.as_json:
        out.raw_json(answer.raw)
        return
    from interlock.surface.cli.terminal.text import one_line

    shown: dict[str, Any] = answer.value
    entry = shown["entry"]
    if entry is None:
        out.line(f"{name}: no entry")
    else:
        specification = entry.pop("specification")
        earlier = entry.pop("earlier_specifications", [])
        for key, value in entry.items():
            out.line(f"{key.replace('_', ' '):24}{one_line(str(value))}")
        out.line(f"{'revision':24}{specification['revision']} of {specification['registered']}, {len(earlier)} before")
        out.line(f"{'schemas':24}{specification.get('argument_digest', 'not known')}")
    for request in shown["requests"]:
        said = one_line(request.get("reason", ""))
        out.line(f"{request['filed_on']}  {request['kind']} {request['id'][:8]} {request['state']}  {said}")
    for one in shown["implementations"]:
        ended = one.get("ended_on")
        out.line(f"implemented by {one_line(one['who'])}, " + (f"ended on {ended}" if ended else "known"))
    for step in shown["log"]:
        override = " in the controller's place" if step.get("is_override") else ""
        said = one_line(step.get("reason", ""))
        out.line(f"{step['at']}  {step['what']:12} by {one_line(step['by'])}{override}  {said}")


@verb(app, "check", examples="interlock names check acme_search --controller Acme --prefix acme_")
def check(
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
) -> None:
    """Run the machine checks of a request; nothing is filed. Exit 1 where it would be refused."""
    proposal = _proposal(**{key: value for key, value in locals().items() if key != "invocation"})
    body = {"name": name, "proposal": {"change_controller": "unknown", **proposal}}
    answer = invocation.node.post("names", "check", body=body)
    from interlock.operator_api.names import NameCheck

    found = answer.as_(NameCheck)
    if invocation.out.as_json:
        invocation.out.raw_json(answer.raw)
    else:
        _draw_check(invocation, found)
    if any(one.outcome == "fail" for one in found.criteria):
        _end_json(invocation, EXIT_REFUSED)
        raise Refused("not_registrable", f"{name} cannot be registered like this")


@verb(app, "verify", examples="interlock names verify acme_search tool.json")
def verify(
    invocation: Invocation,
    name: Name,
    definition: Annotated[Path, typer.Argument(metavar="FILE", help="A tool's definition, as a server lists it.")],
) -> None:
    """Compare a tool with what its name means. Exit 1 unless it keeps to it."""
    from interlock.operator_api.names import NameVerification

    answer = invocation.node.post("names", "verify", body={"name": name, "definition": _json_file(definition)})
    found = answer.as_(NameVerification)
    if invocation.out.as_json:
        invocation.out.raw_json(answer.raw)
    else:
        from interlock.surface.cli.terminal.text import one_line

        invocation.out.line(f"{name}: {found.verdict}")
        for difference in (*found.differences, *found.notes):
            invocation.out.line(f"  {one_line(difference)}")
    if not found.is_verified:
        _end_json(invocation, EXIT_REFUSED)
        raise Refused("not_verified", f"the definition is {found.verdict}")


@verb(app, "request", examples="interlock names request acme_search --from request.json")
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
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Whose signatures count: ed25519:BASE64.", show_default=False),
    ] = None,
    previous: Annotated[
        str | None,
        typer.Option("--previous", metavar="ID", help="The request that was returned.", show_default=False),
    ] = None,
    override: Override = "",
) -> None:
    """Ask for a name. An expert decides in the inbox (exit 3 until then)."""
    own = ("invocation", "key", "previous", "override")
    proposal = _proposal(**{given: value for given, value in locals().items() if given not in (*own, "own")})
    proposal |= ({"controller_key": key} if key else {}) | ({"previous": previous} if previous else {})
    _act(invocation, "request", name, proposal, override)


@verb(app, "amend", examples="interlock names amend acme_search --reference draft-acme-search-04")
def amend(
    invocation: Invocation,
    name: Name,
    *,
    reference: Reference = None,
    scope: Scope = None,
    arguments: Arguments = None,
    returns: Returns = None,
    semantics: Semantics = None,
    breaking: Annotated[bool, typer.Option("--breaking", help="Callers have to change.", show_default=False)] = False,
    no_authentication_planned: StaysPublic = False,
    override: Override = "",
) -> None:
    """Register a new revision. A compatible one counts at once; an expert decides on any other."""
    change = _given(
        specification_reference=reference,
        authentication_scope=scope,
        argument_schema=arguments and _json_file(arguments),
        return_schema=returns and _json_file(returns),
        semantics=semantics,
        breaking=breaking,
        no_authentication_planned=no_authentication_planned,
    )
    _act(invocation, "amend", name, change, override)


@verb(app, "deprecate", examples="interlock names deprecate acme_search --successor acme_find")
def deprecate(
    invocation: Invocation,
    name: Name,
    *,
    successor: Annotated[
        str, typer.Option("--successor", metavar="NAME", help="What to use instead.", show_default=False)
    ] = "",
    override: Override = "",
) -> None:
    """Advise against a name. It stays on record, and what uses it goes on."""
    _act(invocation, "deprecate", name, {"successor": successor}, override)


@verb(app, "reinstate", examples="interlock names reinstate acme_search")
def reinstate(invocation: Invocation, name: Name, *, override: Override = "") -> None:
    """Make a deprecated name active again."""
    _act(invocation, "reinstate", name, {}, override)


@verb(app, "withdraw", examples="interlock names withdraw acme_search")
def withdraw(invocation: Invocation, name: Name, *, override: Override = "") -> None:
    """Withdraw a name. It was deprecated for a year, and no known server implements it."""
    _act(invocation, "withdraw", name, {}, override)


@verb(app, "transfer", examples='interlock names transfer acme_search --to "Zebra Ltd"')
def transfer(
    invocation: Invocation,
    name: Name,
    *,
    to: Annotated[str, typer.Option("--to", metavar="CONTROLLER", help="Who is to have it.", show_default=False)],
    override: Override = "",
) -> None:
    """Hand an entry to another controller. Each of the two asks for it once."""
    _act(invocation, "transfer", name, {"to": to}, override)


@verb(app, "confirm-public", examples="interlock names confirm-public acme_search")
def confirm_public(invocation: Invocation, name: Name, *, override: Override = "") -> None:
    """Confirm that a public surface is meant to be public."""
    _act(invocation, "confirm-public", name, {}, override)


@verb(app, "declare", examples='interlock names declare acme_search --by "Zebra\'s server"')
def declare(
    invocation: Invocation,
    name: Name,
    *,
    by: Annotated[str, typer.Option("--by", metavar="WHO", help="Who implements it.", show_default=False)],
) -> None:
    """Put an implementation of a surface on record."""
    _act(invocation, "declare", name, {"who": by}, "")


@verb(app, "end", examples="interlock names end acme_search --by zebra --evidence 'switched off'")
def end(
    invocation: Invocation,
    name: Name,
    *,
    by: Annotated[str, typer.Option("--by", metavar="WHO", help="Who implemented it.", show_default=False)],
    evidence: Annotated[
        str, typer.Option("--evidence", metavar="TEXT", help="What shows that it ended.", show_default=False)
    ],
    override: Override = "",
) -> None:
    """Put the end of an implementation on record."""
    _act(invocation, "end", name, {"who": by, "evidence": evidence}, override)


@verb(app, "consent", examples='interlock names consent acme_ --controller "Zebra Ltd" --until 2027-12-31')
def consent(
    invocation: Invocation,
    prefix: Prefix,
    *,
    controller: Annotated[
        str, typer.Option("--controller", metavar="NAME", help="Who may register under it.", show_default=False)
    ],
    until: Annotated[str, typer.Option("--until", metavar="DAY", help="The last day.", show_default=False)],
    override: Override = "",
) -> None:
    """Let another controller register names under a prefix."""
    _act(invocation, "consent", prefix, {"controller": controller, "until": until}, override)


@verb(
    app,
    "dispute",
    examples="interlock names dispute a_ --controller Z --date 2020-02-02 --evidence URL",
)
def dispute(
    invocation: Invocation,
    prefix: Prefix,
    *,
    controller: Annotated[
        str, typer.Option("--controller", metavar="NAME", help="Who used it first.", show_default=False)
    ],
    evidence: Annotated[
        list[str], typer.Option("--evidence", metavar="URL", help="What shows it; may be repeated.", show_default=False)
    ],
    date: Annotated[str, typer.Option("--date", metavar="DAY", help="Of the first use.", show_default=False)],
    kind: Annotated[EvidenceKind, typer.Option("--kind", help="What the evidence is.")] = "publication_date",
    override: Override = "",
) -> None:
    """Claim a prefix on evidence of first use. An expert rules (exit 3 until then)."""
    items = [{"kind": kind, "url": url, "date": date} for url in evidence]
    _act(invocation, "dispute", prefix, {"controller": controller, "evidence": items}, override)


@verb(app, "cancel", examples="interlock names cancel 3f9c0a1b-0000-4000-8000-000000000000")
def cancel(
    invocation: Invocation,
    id: Annotated[str, typer.Argument(metavar="ID", help="The request.")],
    *,
    override: Override = "",
) -> None:
    """Take a request back."""
    _act(invocation, "cancel", id, {}, override)


@verb(app, "attach", examples="interlock names attach acme_search draft-acme-search-03.txt")
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

    from interlock.runtime.names.documents import DOCUMENT_BYTES_MAX
    from interlock.surface.cli.client.offline_names import StoredNames

    if invocation.remote_url is not None:
        raise BadUsage("usage", "a copy is attached on the node's own machine")
    made = StoredNames(invocation.loaded.plan, invocation.data_folder).attach(
        request_, _read(document, DOCUMENT_BYTES_MAX)
    )
    with contextlib.suppress(Unreachable):
        invocation.node.get("names", "prefixes")  # a node that runs takes it in with this
    if invocation.out.as_json:
        invocation.out.raw_json(msgspec.json.encode(made))
        return
    invocation.out.line(f"attached to the request for {made.subject}: {made.digest}")
    invocation.out.remark(f"the copy is {made.path}")


@verb(
    app,
    "sign",
    examples="""
    interlock names sign deprecate acme_search --controller Acme --key acme
    interlock names sign request acme_search --controller Acme --key acme --from request.json
    """,
)
def sign(
    invocation: Invocation,
    action: Annotated[str, typer.Argument(metavar="ACTION", help="request, amend, deprecate and so on.")],
    subject: Annotated[str, typer.Argument(metavar="NAME", help="The surface name, prefix or request.")],
    *,
    controller: Annotated[
        str, typer.Option("--controller", metavar="NAME", help="For whom it is signed.", show_default=False)
    ],
    key: Annotated[
        str,
        typer.Option("--key", metavar="NAME", help="The key of the controller on this machine.", show_default=False),
    ],
    from_: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="What the action takes, as a JSON object.", show_default=False),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            "--registry",
            metavar="ID",
            help="The registry it is for: GET /registry/names names it.  [default: this node]",
            show_default=False,
        ),
    ] = None,
    passphrase_fd: FromDescriptor = None,
) -> None:
    """Sign a statement of a change controller, and print it.

    It counts once and for ten minutes, at the registry that it is for. Send it there as application/jose. A request
    carries the public half of the key, whose signatures count from then on.
    """
    import msgspec

    from interlock.surface.cli.keys.statement_signing import sign_statement

    body = {} if from_ is None else msgspec.json.decode(_json_file(from_))
    if not isinstance(body, dict):
        raise BadUsage("usage", f"{from_} holds no JSON object")
    aimed = registry or invocation.node.get("status").value["node"]["aggregator_id"]
    signed = sign_statement(action, subject, controller, body, key=key, registry=aimed, passphrase_fd=passphrase_fd)
    if invocation.out.as_json:
        invocation.out.raw_json(msgspec.json.encode(signed))
        return
    invocation.out.line(signed.statement)
    invocation.out.remark(f"send it within {signed.seconds // 60} minutes, as application/jose: POST {signed.path}")


@verb(app, "publish", examples="interlock names publish --form xml --out names.xml")
def publish(
    invocation: Invocation,
    *,
    form: Annotated[Form, typer.Option("--form", help="The form.")] = "json",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to; stdout if not given.", show_default=False)
    ] = None,
) -> None:
    """Write the registry as it is published. Needs no running node."""
    try:
        data = invocation.node.get("names", "publication", form=form).raw
    except Unreachable as away:
        if invocation.remote_url is not None or away.error != "not_running":
            raise
        from interlock.surface.cli.client.offline_names import StoredNames

        data = StoredNames(invocation.loaded.plan, invocation.data_folder).publish(form)
    if out is None:
        invocation.out.line(data.decode().removesuffix("\n"))
        return
    try:
        out.write_bytes(data)
    except OSError as error:
        raise Refused("not_written", f"{out}: {error.strerror}") from None
    invocation.out.remark(f"written: {out}")


@verb(app, "import", examples="interlock names import names.json --source https://example.org")
def import_registry(
    invocation: Invocation,
    document: Annotated[Path, typer.Argument(metavar="FILE", help="A published registry: JSON, XML or CSV.")],
    *,
    source: Annotated[
        str | None, typer.Option("--source", metavar="URL", help="Where it comes from.", show_default=False)
    ] = None,
    trusted: Annotated[
        bool, typer.Option("--trusted", help="Enforce what it says, not only warn.", show_default=False)
    ] = False,
    pin: Annotated[
        str, typer.Option("--pin", metavar="DIGEST", help="What its digest must be.", show_default=False)
    ] = "",
) -> None:
    """Take in another registry, read-only here. Needs no running node and no network."""
    import contextlib

    import msgspec

    from interlock.protocol.names.published_registry import DOCUMENT_BYTES_MAX
    from interlock.surface.cli.client.offline_names import StoredNames

    if invocation.remote_url is not None:
        raise BadUsage("usage", "a registry is imported on the node's own machine")
    store = StoredNames(invocation.loaded.plan, invocation.data_folder)
    made = store.import_(_read(document, DOCUMENT_BYTES_MAX), source or str(document), is_trusted=trusted, pin=pin)
    with contextlib.suppress(Unreachable):
        invocation.node.get("names", "prefixes")  # a node that runs takes it in with this
    if invocation.out.as_json:
        invocation.out.raw_json(msgspec.json.encode(made))
        return
    said = "trusted" if made.source.is_trusted else "not trusted: it warns, and refuses nothing"
    invocation.out.line(f"imported: {made.entries} entries from {made.source.url} ({said})")
    invocation.out.line(f"digest:   {made.source.digest}")


@verb(app, "trust", examples="interlock names trust https://registry.example.org")
def trust(
    invocation: Invocation,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="As names list shows it.")],
    *,
    revoke: Annotated[bool, typer.Option("--revoke", help="No longer.", show_default=False)] = False,
) -> None:
    """Enforce what an imported registry says."""
    answer = invocation.node.post("names", "trust", body={"source": source, "trusted": not revoke})
    if invocation.out.as_json:
        invocation.out.raw_json(answer.raw)
    else:
        invocation.out.line(f"{'no longer trusted' if revoke else 'trusted'}: {source}")


@verb(
    app,
    "repin",
    examples="""
    interlock names repin acme_search
    interlock names repin crm.acme_search --remove
    """,
)
def repin(
    invocation: Invocation,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A surface name, or a tool with its segment.")],
    *,
    remove: Annotated[bool, typer.Option("--remove", help="Take the pins away.", show_default=False)] = False,
) -> None:
    """Hold the tools of a name to what they are now.

    A tool that is pinned and later has other schemas is refused until it is pinned again.
    """
    answer = invocation.node.post("names", "pins", body={"name": name, "remove": remove})
    out = invocation.out
    if out.as_json:
        out.raw_json(answer.raw)
        return
    from interlock.operator_api.names import PinnedTools
    from interlock.surface.cli.terminal.text import one_line

    for one in answer.as_(PinnedTools).tools:
        out.line(f"{one_line(one.tool)} {'is no longer pinned' if remove else 'is pinned'} ({one.digest[:19]})")


def _act(invocation: Invocation, action: "NamesAction", subject: str, body: dict[str, Any], override: str) -> None:
    wanted = {"action": action, "subject": subject, "body": body, "override": override}
    try:
        answer: Answer = invocation.node.post("names", "actions", body=wanted, timeout=60.0)
    except Refused as refused:
        if refused.error != "not_change_controller" or override:
            raise
        hint = f"interlock names sign {action} NAME --controller NAME --key NAME; or in its place: --override REASON"
        raise Refused(refused.error, refused.message, hint=hint, details=refused.details) from None
    from interlock.operator_api.names import NameOutcome
    from interlock.surface.cli.terminal.text import one_line

    done = answer.as_(NameOutcome)
    if invocation.out.as_json:
        invocation.out.raw_json(answer.raw)
    else:
        reason = f": {one_line(done.reason)}" if done.reason else ""
        invocation.out.line(f"{done.subject} is {done.state}{reason}")
    if done.approval is not None:
        _end_json(invocation, EXIT_WAITS)
        hint = f"interlock approvals show {done.approval[:8]}"
        raise Waits("waits", "an expert has to decide", hint=hint, details={"approval": done.approval})
    if done.state == "revision_requested":
        _end_json(invocation, EXIT_REFUSED)
        raise Refused("revision_requested", f"{done.subject} was returned: {one_line(done.reason)}")


def _end_json(invocation: Invocation, code: int) -> None:
    """An answer in JSON is whole: a failure after it is told by the exit code alone."""
    if invocation.out.as_json:
        raise typer.Exit(code)


def _proposal(
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
    import msgspec

    read = {} if from_ is None else msgspec.json.decode(_json_file(from_))
    if not isinstance(read, dict):
        raise BadUsage("usage", f"{from_} holds no JSON object")
    return {
        **read,
        **_given(
            surface_name=name,
            change_controller=controller,
            specification_reference=reference,
            authentication_scope=scope,
            vendor_prefix=prefix,
            argument_schema=arguments and _json_file(arguments),
            return_schema=returns and _json_file(returns),
            semantics=semantics,
            status="Provisional" if provisional else None,
            cross_vendor=cross_vendor,
            no_authentication_planned=no_authentication_planned,
        ),
    }


def _given(**members: Any) -> dict[str, Any]:
    return {key: value for key, value in members.items() if value not in (None, False)}


def _json_file(path: Path) -> Any:
    import msgspec

    try:
        return msgspec.Raw(msgspec.json.encode(msgspec.json.decode(_read(path))))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused("not_json", f"{path} is not JSON: {error}") from None


def _read(path: Path, bytes_max: int = FILE_BYTES_MAX) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise Refused("not_readable", f"{path}: {error.strerror}") from None
    if len(data) > bytes_max:
        raise Refused("too_large", f"{path} has more than {bytes_max} bytes")
    return data


def _draw_check(invocation: Invocation, found: "NameCheck") -> None:
    from interlock.surface.cli.terminal.text import one_line

    for criterion in found.criteria:
        invocation.out.line(f"{criterion.criterion}  {criterion.outcome:13} {criterion.says}")
        for one in found.findings:
            if one.criterion == criterion.criterion:
                invocation.out.line(f"     {one.code}: {one_line(one.reason)}")
    for one in found.findings:
        if one.criterion == 0:
            invocation.out.line(f"-  {one.verdict:13} {one.code}: {one_line(one.reason)}")
