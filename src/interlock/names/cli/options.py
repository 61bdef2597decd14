"""What commands about names have in common: the options of a proposal, and the files that are read for it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from interlock.cli.command import Invocation
from interlock.cli.terminal.errors import BadUsage, Refused

FILE_BYTES_MAX = 4 * 1024 * 1024  # of a request, a schema or a definition

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
    import msgspec

    read = {} if from_ is None else msgspec.json.decode(json_file(from_))
    if not isinstance(read, dict):
        raise BadUsage("usage", f"{from_} holds no JSON object")
    return {
        **read,
        **given(
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


def given(**members: Any) -> dict[str, Any]:
    return {key: value for key, value in members.items() if value not in (None, False)}


def json_file(path: Path) -> Any:
    import msgspec

    try:
        return msgspec.Raw(msgspec.json.encode(msgspec.json.decode(read_file(path))))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused("not_json", f"{path} is not JSON: {error}") from None


def read_file(path: Path, bytes_max: int = FILE_BYTES_MAX) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise Refused("not_readable", f"{path}: {error.strerror}") from None
    if len(data) > bytes_max:
        raise Refused("too_large", f"{path} has more than {bytes_max} bytes")
    return data


def end_json(invocation: Invocation, code: int) -> None:
    """An answer in JSON is whole: a failure after it is told by the exit code alone."""
    if invocation.out.as_json:
        raise typer.Exit(code)
