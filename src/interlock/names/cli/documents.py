"""interlock names publish | import | trust: registries as documents"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from interlock.cli.command import Invocation, verb
from interlock.cli.terminal.errors import BadUsage, Refused, Unreachable
from interlock.names.cli.options import read_file

Form = Literal["xml", "csv", "txt", "json"]


def register(app: typer.Typer) -> None:
    verb(app, "publish", examples="interlock names publish --form xml --out names.xml")(publish)
    verb(app, "import", examples="interlock names import names.json --source https://example.org")(import_registry)
    verb(app, "trust", examples="interlock names trust https://registry.example.org")(trust)


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

    from interlock.cli.client.offline_names import StoredNames
    from interlock.names.protocol.published_registry import DOCUMENT_BYTES_MAX

    if invocation.remote_url is not None:
        raise BadUsage("usage", "a registry is imported on the node's own machine")
    store = StoredNames(invocation.loaded.plan, invocation.data_folder)
    made = store.import_(read_file(document, DOCUMENT_BYTES_MAX), source or str(document), is_trusted=trusted, pin=pin)
    with contextlib.suppress(Unreachable):
        invocation.node.get("names", "prefixes")  # a node that runs takes it in with this
    if invocation.out.as_json:
        invocation.out.raw_json(msgspec.json.encode(made))
        return
    said = "trusted" if made.source.is_trusted else "not trusted: it warns, and refuses nothing"
    invocation.out.line(f"imported: {made.entries} entries from {made.source.url} ({said})")
    invocation.out.line(f"digest:   {made.source.digest}")


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
