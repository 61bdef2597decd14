"""Discovery of MCP servers that a domain publishes in DNS. Finding a server does not trust it (REG-7.1-4, REG-N-6).

`discover` reads the TXT records and assigns each server a state. Records with an invalid signature are not used. A
server at a private address is tried only if `private_hosts` allows its host. A try is one MCP request to the address,
without credentials and redirects. It calls no tool and stores nothing.
"""

from collections.abc import Collection, Sequence
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from interlock.names.protocol.dns_discovery import ServerRecord, read_records_untrusted
from interlock.net.dns_lookup import DnssecState, look_up_txt
from interlock.net.fetch import Fetcher, FetchFailed, is_near
from interlock.net.protocol.address_scope import Scope
from interlock.wire.jsonrpc.codec import decode_object

State = Literal["answers", "credential", "fails", "private", "unusable", "untried"]

_GREETING: Final = msgspec.json.encode(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "interlock-discover", "version": "1"},
        },
    }
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

    @property
    def is_usable(self) -> bool:
        return self.state in ("answers", "credential", "untried")


class Discovery(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a discovery: the servers that the DNS records at a name list."""

    name: str
    dnssec: DnssecState
    resolver: str
    servers: tuple[FoundServer, ...]


async def discover(
    name: str, resolvers: Sequence[str] = (), *, private_hosts: Collection[str] | None = (), tries: bool = True
) -> Discovery:
    """Look up the servers that the DNS records at `name` list, and determine the state of each.

    `private_hosts` are hosts that may have a private address; None allows all hosts. With `tries`, also connect to the
    servers. Raise DnsFailed if the lookup fails.
    """
    answer = await look_up_txt(name, resolvers)
    servers: list[FoundServer] = []
    state: State
    fetcher = Fetcher(within=Scope.MACHINE if private_hosts is None else Scope.PUBLIC)
    near = Fetcher(within=Scope.MACHINE)
    try:
        for record in read_records_untrusted(answer.records):
            if answer.dnssec == "bogus":
                state, detail = "unusable", "its signature is wrong"
            else:
                is_near = private_hosts is None or urlsplit(record.url or "").hostname in private_hosts
                state, detail = await _judge(record, near if is_near else fetcher, may_be_near=is_near, tries=tries)
            fields = dict(record.fields)
            server = FoundServer(dialect=record.dialect, url=record.url, fields=fields, state=state, detail=detail)
            servers.append(server)
    finally:
        await fetcher.close()
        await near.close()
    return Discovery(name=name, dnssec=answer.dnssec, resolver=answer.resolver, servers=tuple(servers))


async def _judge(record: ServerRecord, fetcher: Fetcher, *, may_be_near: bool, tries: bool) -> tuple[State, str]:
    """Return the state of a server and a readable detail. With `tries`, send the server a request to determine the
    state.
    """
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
