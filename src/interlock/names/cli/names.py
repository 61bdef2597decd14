"""Commands that read, export and import the registry of names."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from interlock.cli.command import Invocation, option, verb, verb_app
from interlock.cli.terminal.errors import EXIT_REFUSED, BadUsage, Unreachable
from interlock.names.cli import changes
from interlock.names.cli.changes import (
    Arguments,
    Controller,
    CrossVendor,
    From,
    Name,
    Provisional,
    Reference,
    Returns,
    Scope,
    Semantics,
    StaysPublic,
    VendorPrefix,
    end_json,
    json_file,
    proposal_of,
    read_file,
)
from interlock.wire.refusal import Refused

if TYPE_CHECKING:
    from interlock.names.api import NameCheck

app = verb_app(
    "See what tool names mean, ask for names, and change them.",
    examples="""
    interlock names list
    interlock names check acme_search --controller Acme --prefix acme_
    interlock names request acme_search --from request.json
    interlock names show acme_search --log
    """,
)

Status = Literal["Active", "Provisional", "Deprecated", "Withdrawn"]


@verb(app, "list", examples="interlock names list\ninterlock names list --public")
def list_names(
    invocation: Invocation,
    *,
    public: Annotated[bool, option("--public", "Only public ones: who serves them, and how often.")] = False,
    status: Annotated[Status | None, option("--status", "Only entries of this status.")] = None,
) -> None:
    """List the registry; exit 1 while a review is overdue."""
    from interlock.names.api import LIST_NAMES, Names

    answer = invocation.node.call(LIST_NAMES, only_public=public, status=status)

    listed = answer.as_(Names)
    out = invocation.out
    if out.as_json:
        out.raw_json(answer.raw)
    else:
        from rich.text import Text

        from interlock.cli.terminal.columns import in_columns
        from interlock.cli.terminal.text import one_line

        heads = ("CONFIRMED", "SERVERS", "CALLS") if public else ("SCOPE", "CONTROLLER", "SINCE")
        rows = [[Text(head, style="dim") for head in ("NAME", "STATUS", "", *heads)]]
        for entry in listed.names:
            marks = [
                *(["review overdue"] if entry.is_overdue else []),
                *(["confirm it"] if entry.is_unconfirmed else []),
                *([f"from {entry.source}" + ("" if entry.is_trusted else ", not trusted")] if entry.source else []),
            ]
            described = (entry.authentication_scope, entry.change_controller, entry.first_registered)
            audited = (entry.public_confirmed_on or "never", ", ".join(entry.servers) or "none", str(entry.calls))
            texts = (entry.surface_name, entry.status, "; ".join(marks), *(audited if public else described))
            rows.append([Text(one_line(text)) for text in texts])
        out.draw(*in_columns(rows, width=out.console.width, shrink={4: 8} if public else {3: 8, 4: 8, 2: 14}))
        if not listed.names:
            out.remark("no name fits")
        if listed.trouble is not None:
            out.remark(f"the registry cannot be used: {one_line(listed.trouble)}")
    if listed.overdue:
        end_json(invocation, EXIT_REFUSED)
        from interlock.cli.terminal.text import count

        raise Refused("review_overdue", f"{count(listed.overdue, 'review')} of provisional names overdue")


@verb(app, "show", examples="interlock names show org_alter_handbook --log")
def show(
    invocation: Invocation,
    name: Name,
    *,
    log: Annotated[bool, option("--log", "Every step, from the first request on.")] = False,
) -> None:
    """Show an entry, its requests and its log."""
    from interlock.names.api import SHOW_NAME

    answer = invocation.node.call(SHOW_NAME, name=name, with_log=log)
    out = invocation.out
    if out.as_json:
        out.raw_json(answer.raw)
        return
    from interlock.cli.terminal.text import one_line

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
        reason = one_line(request.get("reason", ""))
        out.line(f"{request['filed_on']}  {request['kind']} {request['id'][:8]} {request['state']}  {reason}")
    for implementation in shown["implementations"]:
        ended = implementation.get("ended_on")
        out.line(f"implemented by {one_line(implementation['who'])}, " + (f"ended on {ended}" if ended else "known"))
    for step in shown["log"]:
        override = " in the controller's place" if step.get("is_override") else ""
        reason = one_line(step.get("reason", ""))
        out.line(f"{step['at']}  {step['what']:12} by {one_line(step['by'])}{override}  {reason}")


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
    proposal = proposal_of(**{key: value for key, value in locals().items() if key != "invocation"})
    from interlock.names.api import CHECK_NAME, NameCheck

    body = {"name": name, "proposal": {"change_controller": "unknown", **proposal}}
    answer = invocation.node.call(CHECK_NAME, body=body)

    result = answer.as_(NameCheck)
    if invocation.out.as_json:
        invocation.out.raw_json(answer.raw)
    else:
        _draw_check(invocation, result)
    if any(criterion.outcome == "fail" for criterion in result.criteria):
        end_json(invocation, EXIT_REFUSED)
        raise Refused("not_registrable", f"{name} cannot be registered like this")


@verb(app, "verify", examples="interlock names verify acme_search tool.json")
def verify(
    invocation: Invocation,
    name: Name,
    definition: Annotated[Path, typer.Argument(metavar="FILE", help="A tool's definition, as a server lists it.")],
) -> None:
    """Compare a tool with what its name means. Exit 1 unless it keeps to it."""
    from interlock.names.api import VERIFY_NAME, NameVerification

    answer = invocation.node.call(VERIFY_NAME, body={"name": name, "definition": json_file(definition)})
    result = answer.as_(NameVerification)
    if invocation.out.as_json:
        invocation.out.raw_json(answer.raw)
    else:
        from interlock.cli.terminal.text import one_line

        invocation.out.line(f"{name}: {result.verdict}")
        for difference in (*result.differences, *result.notes):
            invocation.out.line(f"  {one_line(difference)}")
    if not result.is_verified:
        end_json(invocation, EXIT_REFUSED)
        raise Refused("not_verified", f"the definition is {result.verdict}")


changes.register(app)


Form = Literal["xml", "csv", "txt", "json"]


@verb(app, "publish", examples="interlock names publish --form xml --out names.xml")
def publish(
    invocation: Invocation,
    *,
    form: Annotated[Form, typer.Option("--form", help="The form.")] = "json",
    out: Annotated[Path | None, option("--out", "Where to; stdout if not given.", "FILE")] = None,
) -> None:
    """Write the registry as it is published. Needs no running node."""
    from interlock.names.api import PUBLISH

    try:
        data = invocation.node.call(PUBLISH, form=form).raw
    except Unreachable as away:
        if invocation.remote_url is not None or away.code != "not_running":
            raise
        from interlock.cli.client.offline_names import StoredNames

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
    source: Annotated[str | None, option("--source", "Where it comes from.", "URL")] = None,
    trusted: Annotated[bool, option("--trusted", "Enforce what it says, not only warn.")] = False,
    pin: Annotated[str, option("--pin", "What its digest must be.", "DIGEST")] = "",
) -> None:
    """Take in another registry, read-only here. Needs no running node and no network."""
    import contextlib

    import msgspec

    from interlock.cli.client.offline_names import StoredNames
    from interlock.names.api import LIST_PREFIXES
    from interlock.names.protocol.publication import DOCUMENT_BYTES_MAX

    if invocation.remote_url is not None:
        raise BadUsage("usage", "a registry is imported on the node's own machine")
    store = StoredNames(invocation.loaded.plan, invocation.data_folder)
    imported = store.import_(
        read_file(document, DOCUMENT_BYTES_MAX), source or str(document), is_trusted=trusted, pin=pin
    )
    with contextlib.suppress(Unreachable):
        invocation.node.call(LIST_PREFIXES)  # a node that runs takes it in with this
    if invocation.out.as_json:
        invocation.out.raw_json(msgspec.json.encode(imported))
        return
    trust = "trusted" if imported.source.is_trusted else "not trusted: it warns, and refuses nothing"
    invocation.out.line(f"imported: {imported.entries} entries from {imported.source.url} ({trust})")
    invocation.out.line(f"digest:   {imported.source.digest}")


@verb(app, "trust", examples="interlock names trust https://registry.example.org")
def trust(
    invocation: Invocation,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="As names list shows it.")],
    *,
    revoke: Annotated[bool, option("--revoke", "No longer.")] = False,
) -> None:
    """Enforce what an imported registry says."""
    from interlock.names.api import TRUST

    answer = invocation.node.call(TRUST, body={"source": source, "trusted": not revoke})
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
    remove: Annotated[bool, option("--remove", "Take the pins away.")] = False,
) -> None:
    """Hold the tools of a name to what they are now.

    A tool that is pinned and later has other schemas is refused until it is pinned again.
    """
    from interlock.names.api import REPIN

    answer = invocation.node.call(REPIN, body={"name": name, "remove": remove})
    out = invocation.out
    if out.as_json:
        out.raw_json(answer.raw)
        return
    from interlock.cli.terminal.text import one_line
    from interlock.names.api import PinnedTools

    for pinned in answer.as_(PinnedTools).tools:
        out.line(f"{one_line(pinned.tool)} {'is no longer pinned' if remove else 'is pinned'} ({pinned.digest[:19]})")


def _draw_check(invocation: Invocation, result: "NameCheck") -> None:
    from interlock.cli.terminal.text import one_line

    for criterion in result.criteria:
        invocation.out.line(f"{criterion.criterion}  {criterion.outcome:13} {criterion.says}")
        for finding in result.findings:
            if finding.criterion == criterion.criterion:
                invocation.out.line(f"     {finding.code}: {one_line(finding.reason)}")
    for finding in result.findings:
        if finding.criterion == 0:
            invocation.out.line(f"-  {finding.verdict:13} {finding.code}: {one_line(finding.reason)}")
