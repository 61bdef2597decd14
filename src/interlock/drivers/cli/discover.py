"""interlock discover: find the MCP servers that a domain publishes in DNS.

Finding a server does not trust it (REG-7.1-4, REG-N-6). `discover_servers` reads the TXT records and assigns each
server a state. Records with an invalid signature are not used. A server at a private address is tried only if
`private_hosts` allows its host. A try is one MCP request to the address, without credentials and redirects. It calls no
tool and stores nothing.

When a server is added, the key in its record is pinned for the domain, in the data folder. Later records of the domain
with another key or a lower epoch are not usable until a person accepts the new key.
"""

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal
from urllib.parse import urlsplit

import msgspec
import typer

from interlock.approvals.cli.keys import require_terminal
from interlock.cli.command import Invocation, option, verb, verb_app
from interlock.cli.terminal.errors import BadUsage, Unreachable
from interlock.wire.jsonrpc.codec import decode_object
from interlock.wire.refusal import Refused

if TYPE_CHECKING:
    from interlock.cli.terminal.output import Output
    from interlock.names.protocol.dns_discovery import PinnedKey, ServerRecord
    from interlock.net.dns_lookup import DnssecState
    from interlock.net.fetch import Fetcher

State = Literal["answers", "credential", "fails", "private", "unusable", "untried"]

_GREETING: Final = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},'
    b'"clientInfo":{"name":"interlock-discover","version":"1"}}}'
)
_HEADERS: Final = b"content-type: application/json\r\naccept: application/json, text/event-stream\r\n"
_STREAM: Final = "an event stream"
SHOWN_CHARS_MAX: Final = 80


class FoundServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server that a DNS record names, with a state that says whether it can be used."""

    dialect: str
    url: str | None
    fields: dict[str, str]
    state: State
    detail: str = ""
    other_tags: tuple[str, ...] = ()  # that revision -01 of the draft does not have

    @property
    def is_usable(self) -> bool:
        return self.state in ("answers", "credential", "untried")


class FoundIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """A DNS record about an identity of the domain, or the failure to look such records up."""

    name: str
    dialect: str
    dnssec: "DnssecState | None" = None
    fields: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    problem: str = ""


class Discovery(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a discovery: the servers that the DNS records at a name list."""

    name: str
    dnssec: "DnssecState"
    resolver: str
    servers: tuple[FoundServer, ...]
    identities: tuple[FoundIdentity, ...] = ()


async def discover_servers(
    name: str,
    resolvers: Sequence[str] = (),
    *,
    private_hosts: Collection[str] | None = (),
    tries: bool = True,
    pinned: "PinnedKey | None" = None,
) -> Discovery:
    """Look up the servers that the DNS records at `name` list, and determine the state of each.

    `private_hosts` are hosts that may have a private address; None allows all hosts. With `tries`, also connect to the
    servers. `pinned` is the domain's key, which every record must continue. Raise DnsFailed if the lookup fails.
    """
    from interlock.names.protocol.dns_discovery import continuity_fault, read_records_untrusted
    from interlock.net.dns_lookup import look_up_txt
    from interlock.net.fetch import Fetcher
    from interlock.net.protocol.address_scope import Scope

    answer = await look_up_txt(name, resolvers)
    servers: list[FoundServer] = []
    state: State
    fetcher = Fetcher(within=Scope.MACHINE if private_hosts is None else Scope.PUBLIC)
    near = Fetcher(within=Scope.MACHINE)
    try:
        for record in read_records_untrusted(answer.records):
            if answer.dnssec == "bogus":
                state, detail = "unusable", "its signature is wrong"
            elif pinned is not None and not record.problem and (fault := continuity_fault(pinned, record.fields)):
                state, detail = "unusable", fault
            else:
                is_near = private_hosts is None or urlsplit(record.url or "").hostname in private_hosts
                state, detail = await _judge(record, near if is_near else fetcher, may_be_near=is_near, tries=tries)
            servers.append(
                FoundServer(
                    dialect=record.dialect,
                    url=record.url,
                    fields=dict(record.fields),
                    state=state,
                    detail=detail,
                    other_tags=record.other_tags,
                )
            )
    finally:
        await fetcher.close()
        await near.close()
    return Discovery(name=name, dnssec=answer.dnssec, resolver=answer.resolver, servers=tuple(servers))


async def find_identities(name: str, resolvers: Sequence[str] = ()) -> tuple[FoundIdentity, ...]:
    """Look up the records about identities of the domain for which `name` lists servers. A failed lookup is part of the
    result.
    """
    from interlock.names.protocol.dns_discovery import IDENTITY_LABELS, LABEL

    domain = name.removeprefix(f"{LABEL}.")
    groups = await asyncio.gather(*(_find_identities_at(label, domain, resolvers) for label in IDENTITY_LABELS))
    return tuple(identity for identities in groups for identity in identities)


async def _find_identities_at(label: str, domain: str, resolvers: Sequence[str]) -> list[FoundIdentity]:
    from interlock.names.protocol.dns_discovery import read_identities_untrusted
    from interlock.net.dns_lookup import DnsFailed, look_up_txt

    name = f"{label}.{domain}"
    try:
        answer = await look_up_txt(name, resolvers)
    except DnsFailed as failed:
        problem = f"{failed}; that does not say that there are no records"
        return [FoundIdentity(name=name, dialect="unknown", problem=problem)]
    identities = []
    for record in read_identities_untrusted(label, answer.records):
        is_bogus = answer.dnssec == "bogus"
        identity = FoundIdentity(
            name=name,
            dialect=record.dialect,
            dnssec=answer.dnssec,
            fields={} if is_bogus else dict(record.fields),
            notes=() if is_bogus else record.notes,
            problem="its signature is wrong" if is_bogus else record.problem,
        )
        identities.append(identity)
    return identities


async def _judge(record: "ServerRecord", fetcher: "Fetcher", *, may_be_near: bool, tries: bool) -> tuple[State, str]:
    """Return the state of a server and a readable detail. With `tries`, send the server a request to determine the
    state.
    """
    from interlock.net.fetch import FetchFailed, is_near

    if record.problem or record.url is None:
        return "unusable", record.problem
    if not may_be_near and await is_near(record.url):
        return "private", "it leads to a private address, or to this machine"
    if not tries:
        return "untried", ""
    try:
        reply = await fetcher.exchange(record.url, _HEADERS, _GREETING)
    except FetchFailed as failed:
        return ("answers", "with an event stream") if _STREAM in str(failed) else ("fails", str(failed))
    if reply.status in (401, 403):
        return "credential", f"it asks for a credential: HTTP status {reply.status}"
    if reply.status != 200:
        return "fails", f"HTTP status {reply.status}"
    message = decode_object(reply.body) or {}
    result = decode_object(message.get("result", b"")) or {}
    info = decode_object(result.get("serverInfo", b"")) or {}
    words = [bytes(info[key]).decode("utf-8", "replace").strip('"') for key in ("name", "version") if key in info]
    if "protocolVersion" not in result:
        return "fails", "what it answers is not MCP"
    return "answers", " ".join(words)[:SHOWN_CHARS_MAX]


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
    domain: Annotated[str, typer.Argument(metavar="DOMAIN")],
    *,
    add: Annotated[bool, option("--add")] = False,
    as_id: Annotated[str | None, option("--as", metavar="ID")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y")] = False,
    no_connect: Annotated[bool, option("--no-connect")] = False,
    allow_private: Annotated[bool, option("--allow-private")] = False,
    resolver: Annotated[list[str] | None, option("--resolver", metavar="ADDRESS")] = None,
    new_key: Annotated[bool, option("--new-key")] = False,
) -> None:
    """Find the MCP servers that a domain names in DNS.

    Lists the TXT records at _mcp.DOMAIN, says whether they are signed, and greets each server once, without
    credentials. Nothing is trusted for being found: --add goes the way of interlock add.

    Options:
        domain: A domain; its records are at _mcp.DOMAIN.
        add: Make a driver of the one server that can be used.
        as_id: With --add: what the driver is called.
        yes: With --add: accept the proposed classes.
        no_connect: Ask DNS alone, and no server.
        allow_private: Also servers at private addresses and on this machine.
        resolver: Ask this resolver; may be repeated.
        new_key: Accept a key that differs from the pinned one.

    Examples:
        interlock discover example.com
        interlock discover example.com --no-connect --json
        interlock discover example.com --add --as crm
        interlock discover example.internal --resolver 10.0.0.53 --allow-private
    """
    if invocation.remote_url is not None:
        raise BadUsage("usage", "discover looks from this machine and takes no --url")
    resolvers = tuple(resolver or ())
    discovery = find_servers(
        invocation,
        domain,
        resolvers,
        allow_private=allow_private,
        tries=not no_connect,
        accepts_new_key=new_key,
        with_identities=not add,
    )
    out = invocation.out
    if not add:
        if out.as_json:
            out.raw_json(msgspec.json.encode(discovery))
        if not discovery.servers:
            if not out.as_json:
                _draw_identities(out, discovery)
            raise Refused("not_found", f"{domain} names no MCP server in DNS", hint="interlock add https://…")
        if not out.as_json:
            _draw(out, domain, discovery)
        return
    url = chosen_server(domain, discovery)
    if not yes:
        require_terminal(f"run it on a terminal, with --yes, or look at it first: interlock discover {domain}")
    from interlock.drivers.api import TryServer
    from interlock.drivers.cli.add import add_server

    out.remark(f"{url}, found at {discovery.name}; DNSSEC: {_DNSSEC[discovery.dnssec]}")
    add_server(invocation, TryServer(reference=url, id=as_id), yes=yes)
    pin_key(invocation, discovery, url)


def find_servers(
    invocation: Invocation,
    domain: str,
    resolvers: tuple[str, ...] = (),
    *,
    allow_private: bool = False,
    tries: bool,
    accepts_new_key: bool = False,
    with_identities: bool = False,
) -> Discovery:
    """Look up the MCP servers that are listed in the DNS records of `domain`.

    With `tries`, also connect to each server. With `accepts_new_key`, the pinned key of the domain does not count.
    Raise BadUsage if `domain` is no domain, Unreachable if no resolver answers, and Refused if the lookup fails in
    another way or the pinned keys cannot be read.
    """
    from interlock.names.protocol.dns_discovery import record_name
    from interlock.net.dns_lookup import DnsFailed

    name = record_name(domain)
    if name is None:
        raise BadUsage("usage", f"{domain} is no domain", hint="interlock discover example.com")
    hosts = None if allow_private else invocation.loaded.plan.drivers.insecure_hosts
    pinned = None if accepts_new_key else _read_pins(_pins_path(invocation)).get(name)

    async def find() -> Discovery:
        servers = discover_servers(name, resolvers, private_hosts=hosts, tries=tries, pinned=pinned)
        if not with_identities:
            return await servers
        discovery, identities = await asyncio.gather(servers, find_identities(name, resolvers))
        return msgspec.structs.replace(discovery, identities=identities)

    try:
        return asyncio.run(find())
    except DnsFailed as failed:
        kind = Unreachable if failed.code in ("timeout", "unreachable") else Refused
        hint = "that is a failure, and does not say that there are no records"
        raise kind(f"dns_{failed.code}", f"{name}: {failed}", hint=hint) from None


PINS_FILE: Final = "dns-keys.json"


def pin_key(invocation: Invocation, discovery: Discovery, url: str) -> None:
    """Pin the key of the record that named an added server. A record without a key pins nothing. Raise Refused if the
    key cannot be stored.
    """
    from interlock.drivers.workspace.folder import write_whole
    from interlock.names.protocol.dns_discovery import pinned_key

    key = next((pinned_key(server.fields) for server in discovery.servers if server.url == url), None)
    if key is None:
        return
    path = _pins_path(invocation)
    pins = _read_pins(path)
    if pins.get(discovery.name) == key:
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(pins | {discovery.name: key}), 0o600)
    except OSError as error:
        raise Refused("not_written", f"{path}: {error.strerror}") from None
    invocation.out.remark(f"pinned: the key {key.key} of {discovery.name}")


def _pins_path(invocation: Invocation) -> Path:
    return invocation.data_folder / PINS_FILE


def _read_pins(path: Path) -> "dict[str, PinnedKey]":
    """Return the pinned keys, by the names of their records. Raise Refused if the file is unreadable."""
    from interlock.names.protocol.dns_discovery import PinnedKey

    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, PinnedKey])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused("not_readable", f"the pinned keys in {path} cannot be read: {error}") from None


def chosen_server(domain: str, discovery: Discovery) -> str:
    """Return the address of the only usable server. Raise Refused if there is none or more than one."""
    usable = [server for server in discovery.servers if server.is_usable and server.url is not None]
    if not usable:
        reasons = [f"{server.url or server.dialect}: {server.detail}" for server in discovery.servers]
        why = "; ".join(reasons) or "it has no records"
        raise Refused("not_found", f"{domain} names no server that can be added: {why}")
    if len(usable) > 1:
        urls = ", ".join(str(server.url) for server in usable)
        hint = f"interlock add {usable[0].url}"
        raise Refused("ambiguous", f"{domain} names {len(usable)} servers: {urls}", hint=hint)
    return str(usable[0].url)


def _draw(out: "Output", domain: str, discovery: Discovery) -> None:
    out.line(f"{discovery.name}, asked of {discovery.resolver}")
    out.line(f"DNSSEC: {discovery.dnssec}, {_DNSSEC[discovery.dnssec]}")
    rows = []
    for server in discovery.servers:
        fields = (f"{key}={value}" for key, value in server.fields.items() if key in ("auth", "cap"))
        details = [server.detail or ", ".join(fields)]
        if server.other_tags:
            details.append(f"tags of another revision: {', '.join(server.other_tags)}")
        rows.append((server.state, server.url or "-", server.dialect, "; ".join(filter(None, details))))
    out.draw_table("STATE|SERVER|DIALECT|DETAIL", rows, shrink={1: 24, 3: 24})
    _draw_identities(out, discovery)
    if any(server.is_usable for server in discovery.servers):
        out.remark(f"nothing is trusted by this: interlock discover {domain} --add makes a driver of it")


def _draw_identities(out: "Output", discovery: Discovery) -> None:
    """Write the records about identities, line by line. They name no server and prove nothing."""
    for identity in discovery.identities:
        signed = f", DNSSEC: {identity.dnssec}" if identity.dnssec is not None else ""
        out.line(f"{identity.name}: {identity.dialect}{signed}")
        for text in (*([identity.problem] if identity.problem else []), *identity.notes):
            out.line(f"  {text}")
        for tag, value in identity.fields.items():
            out.line(f"  {tag}={value}")
