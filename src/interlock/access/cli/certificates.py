"""interlock access certificate NAME"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from interlock.cli.command import Invocation, verb
from interlock.cli.terminal.errors import BadUsage, Refused

if TYPE_CHECKING:
    from interlock.crypto.keys.certificate_authority import DevelopmentAuthority

FOLDER = "tls"  # in the data folder


def register(app: typer.Typer) -> None:
    verb(
        app,
        "certificate",
        examples="""
        interlock access certificate hub.example.com
        interlock access certificate edge --dns edge01.example.com --ip 10.0.0.7
        interlock access certificate edge --renew --dns edge01.example.com
        interlock access certificate edge --revoke
        """,
    )(certificate)


def certificate(
    invocation: Invocation,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the node; also its DNS name if --dns gives none.")],
    dns: Annotated[
        list[str] | None,
        typer.Option("--dns", metavar="HOST", help="A name it is reached by; may be repeated.", show_default=False),
    ] = None,
    ip: Annotated[
        list[str] | None,
        typer.Option("--ip", metavar="ADDRESS", help="An address; may be repeated.", show_default=False),
    ] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=3650, help="How long it lasts.")] = 365,
    folder: Annotated[
        str | None,
        typer.Option("--folder", metavar="FOLDER", help="Where the CA is; tls in the data folder if not given."),
    ] = None,
    renew: Annotated[bool, typer.Option("--renew", help="Write over the one that is there.")] = False,
    revoke: Annotated[bool, typer.Option("--revoke", help="Put it on the revocation list instead.")] = False,
) -> None:
    """Make a certificate for a node, and a CA on first use.

    It serves a node's endpoints and its links to parents, and prints the lines to paste. The CA is for development
    and for trees without a PKI of their own: keep ca.key where it is.
    """
    from interlock.crypto.keys.certificate_authority import DevelopmentAuthority

    place = Path(folder).expanduser().absolute() if folder else invocation.data_folder / FOLDER
    authority = DevelopmentAuthority(place)
    if revoke:
        if dns or ip or renew:
            raise BadUsage("usage", "--revoke takes no other option than --folder")
        _revoke(invocation, authority, name)
        return
    names, addresses = _names(name, dns), _addresses(ip)
    if renew and not dns and not ip:
        names, addresses = _names_to_keep(authority, name) or (names, addresses)
    _issue(invocation, authority, name, names, addresses, days, renew)


def _names_to_keep(authority: "DevelopmentAuthority", name: str) -> tuple[list[str], list[str]] | None:
    """A certificate that is renewed without a word of its names keeps them."""
    from interlock.store.ports import StoreError

    try:
        names, addresses = authority.names_of(name)
    except StoreError as refused:
        raise Refused("not_written", str(refused)) from None
    return (names, addresses) if names or addresses else None


def _issue(
    invocation: Invocation,
    authority: "DevelopmentAuthority",
    name: str,
    dns: list[str],
    addresses: list[str],
    days: int,
    renew: bool,
) -> None:
    import time

    from interlock.cli.terminal.text import local_time
    from interlock.config.toml_text import toml_text
    from interlock.crypto.keys.certificate_authority import CA_KEY, NameTaken
    from interlock.store.ports import StoreError

    try:
        issued = authority.issue(name, dns, addresses, now=time.time(), days=days, renew=renew)
    except NameTaken as taken:
        raise Refused("exists", str(taken), hint="--renew writes over it") from None
    except StoreError as refused:
        raise Refused("not_written", str(refused)) from None
    paths = {"tls_cert": str(issued.certificate), "tls_key": str(issued.key)}
    ca = str(issued.authority)
    out = invocation.out
    from datetime import UTC, datetime

    expires = datetime.fromtimestamp(issued.expires_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if out.as_json:
        out.json({**paths, "ca": ca, "ca_made": issued.authority_made, "names": dns + addresses, "expires_at": expires})
        return
    out.line(f"# interlock.toml of {name}, for those who dial it")
    out.line("[node]")
    for key, value in {**paths, "client_ca": ca}.items():
        out.line(f"{key} = {toml_text(value)}")
    out.line()
    out.line(f"# interlock.toml of {name}, where it dials a parent: below url and segment")
    out.line("# [[ax.parents]]")
    for key, value in {**paths, "ca_file": ca}.items():
        out.line(f"# {key} = {toml_text(value)}")
    if issued.authority_made:
        out.remark(f"made a CA; {CA_KEY} beside it signs for every node and is copied nowhere")
    out.remark(f"for {', '.join(dns + addresses)}, until {local_time(expires, '%Y-%m-%d')}; on another machine copy")
    out.remark(f"  {issued.certificate}, {issued.key} and {ca}")


def _revoke(invocation: Invocation, authority: "DevelopmentAuthority", name: str) -> None:
    import time

    from interlock.config.toml_text import toml_text
    from interlock.store.ports import StoreError

    try:
        crl = authority.revoke(name, now=time.time())
    except StoreError as refused:
        raise Refused("not_written", str(refused)) from None
    if invocation.out.as_json:
        invocation.out.json({"crl": str(crl)})
        return
    invocation.out.line(f"crl = {toml_text(str(crl))}")
    invocation.out.remark("revoked; give the line to every node that has this CA as client_ca, and a copy of the file")


def _names(name: str, given: list[str] | None) -> list[str]:
    from interlock.net.protocol.dns_name import maybe_dns_name

    read = [(one, maybe_dns_name(one)) for one in given or [name]]
    wrong = next((one for one, found in read if found is None), None)
    if wrong is not None:
        raise BadUsage("usage", f"{wrong} is no DNS name", hint="--dns HOST; no wildcard, and addresses as --ip")
    return list(dict.fromkeys(found for _, found in read if found is not None))


def _addresses(given: list[str] | None) -> list[str]:
    from ipaddress import ip_address

    try:
        return [str(ip_address(one)) for one in given or []]
    except ValueError as error:
        raise BadUsage("usage", f"{error}", hint="--ip 10.0.0.7") from None
