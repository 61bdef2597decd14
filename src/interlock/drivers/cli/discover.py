"""interlock discover"""

import asyncio
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from interlock.approvals.cli.keys import require_terminal
from interlock.cli.command import Invocation, verb, verb_app
from interlock.cli.terminal.errors import BadUsage, Unreachable
from interlock.wire.refusal import Refused

if TYPE_CHECKING:
    from interlock.cli.terminal.output import Output
    from interlock.drivers.discovery import Discovery

app = verb_app("Find the MCP servers that a domain names in DNS.")

_DNSSEC = {
    "authenticated": "proved by the resolver, up to the root",
    "signed": "by the zone's own keys; whose keys they are is not proved",
    "unsigned": "not signed: anybody between here and the domain can have written this",
    "bogus": "signed, and the signature is wrong",
}


@verb(app, "discover")
def discover(
    invocation: Invocation,
    domain: Annotated[str, typer.Argument(metavar="DOMAIN", help="A domain; its records are at _mcp.DOMAIN.")],
    *,
    add: Annotated[bool, typer.Option("--add", help="Make a driver of the one server that can be used.")] = False,
    as_id: Annotated[
        str | None, typer.Option("--as", metavar="ID", help="With --add: what the driver is called.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --add: accept the proposed classes.")] = False,
    no_connect: Annotated[bool, typer.Option("--no-connect", help="Ask DNS alone, and no server.")] = False,
    allow_private: Annotated[
        bool, typer.Option("--allow-private", help="Also servers at private addresses and on this machine.")
    ] = False,
    resolver: Annotated[
        list[str] | None, typer.Option("--resolver", metavar="ADDRESS", help="Ask this resolver; may be repeated.")
    ] = None,
) -> None:
    """Find the MCP servers that a domain names in DNS.

    Lists the TXT records at _mcp.DOMAIN, says whether they are signed, and greets each server once, without
    credentials. Nothing is trusted for being found: --add goes the way of interlock add.

    Examples:
        interlock discover example.com
        interlock discover example.com --no-connect --json
        interlock discover example.com --add --as crm
        interlock discover example.internal --resolver 10.0.0.53 --allow-private
    """
    if invocation.remote_url is not None:
        raise BadUsage("usage", "discover looks from this machine and takes no --url")
    discovery = find_servers(
        invocation, domain, tuple(resolver or ()), allow_private=allow_private, tries=not no_connect
    )
    out = invocation.out
    if not add:
        if out.as_json:
            out.raw_json(msgspec.json.encode(discovery))
        if not discovery.servers:
            raise Refused("not_found", f"{domain} names no MCP server in DNS", hint="interlock add https://…")
        if not out.as_json:
            _draw(out, domain, discovery)
        return
    url = chosen_server(domain, discovery)
    if not yes:
        require_terminal(f"run it on a terminal, with --yes, or look at it first: interlock discover {domain}")
    from interlock.drivers.add import AddRequest
    from interlock.drivers.cli.add import add_server

    out.remark(f"{url}, found at {discovery.name}; DNSSEC: {_DNSSEC[discovery.dnssec]}")
    add_server(invocation, AddRequest(reference=url, id=as_id), yes=yes)


def find_servers(
    invocation: Invocation, domain: str, resolvers: tuple[str, ...] = (), *, allow_private: bool = False, tries: bool
) -> "Discovery":
    """Look up the MCP servers that are listed in the DNS records of `domain`.

    With `tries`, also connect to each server. Raise BadUsage if `domain` is no domain, Unreachable if no resolver
    answers, and Refused if the lookup fails in another way.
    """
    from interlock.drivers.discovery import discover as look
    from interlock.names.protocol.dns_discovery import record_name
    from interlock.net.dns_lookup import DnsFailed

    name = record_name(domain)
    if name is None:
        raise BadUsage("usage", f"{domain} is no domain", hint="interlock discover example.com")
    hosts = None if allow_private else invocation.loaded.plan.drivers.insecure_hosts
    try:
        return asyncio.run(look(name, resolvers, private_hosts=hosts, tries=tries))
    except DnsFailed as failed:
        kind = Unreachable if failed.code in ("timeout", "unreachable") else Refused
        hint = "that is a failure, and does not say that there are no records"
        raise kind(f"dns_{failed.code}", f"{name}: {failed}", hint=hint) from None


def chosen_server(domain: str, discovery: "Discovery") -> str:
    """Return the address of the only usable server. Raise Refused if there is none or more than one."""
    usable = [server for server in discovery.servers if server.is_usable and server.url is not None]
    if not usable:
        why = (
            "; ".join(f"{server.url or server.dialect}: {server.detail}" for server in discovery.servers)
            or "it has no records"
        )
        raise Refused("not_found", f"{domain} names no server that can be added: {why}")
    if len(usable) > 1:
        urls = ", ".join(str(server.url) for server in usable)
        hint = f"interlock add {usable[0].url}"
        raise Refused("ambiguous", f"{domain} names {len(usable)} servers: {urls}", hint=hint)
    return str(usable[0].url)


def _draw(out: "Output", domain: str, discovery: "Discovery") -> None:
    out.line(f"{discovery.name}, asked of {discovery.resolver}")
    out.line(f"DNSSEC: {discovery.dnssec}, {_DNSSEC[discovery.dnssec]}")
    rows = []
    for server in discovery.servers:
        fields = (f"{key}={value}" for key, value in server.fields.items() if key in ("auth", "cap"))
        rows.append((server.state, server.url or "-", server.dialect, server.detail or ", ".join(fields)))
    out.draw_table("STATE|SERVER|DIALECT|DETAIL", rows, shrink={1: 24, 3: 24})
    if any(server.is_usable for server in discovery.servers):
        out.remark(f"nothing is trusted by this: interlock discover {domain} --add makes a driver of it")
