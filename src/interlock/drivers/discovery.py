"""The servers that a domain names in DNS: found, judged, tried and not trusted (REG-7.1-4, REG-N-6).

A try is one MCP request to the address, without credentials and without redirects. It calls no tool and keeps nothing.
"""

from collections.abc import Collection, Sequence
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from interlock.names.protocol.dns_discovery import ServerRecord, read_records_untrusted
from interlock.net.dns_lookup import DnssecState, TxtAnswer, look_up_txt
from interlock.net.fetch import FetchedAnswer, Fetcher, FetchFailed, is_near
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
    dialect: str
    url: str | None
    fields: dict[str, str]
    state: State
    detail: str = ""

    @property
    def is_usable(self) -> bool:
        return self.state in ("answers", "credential", "untried")


class Discovery(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # that was asked for
    dnssec: DnssecState
    resolver: str
    servers: tuple[FoundServer, ...]


async def discover(
    name: str, resolvers: Sequence[str] = (), *, private_hosts: Collection[str] | None = (), tries: bool = True
) -> Discovery:
    """Look up the servers that the DNS records at `name` announce, and judge each of them.

    `private_hosts`: hosts that may have a private address; None allows all. `tries`: also connect to the servers.
    Raises DnsFailed.
    """
    answer = await look_up_txt(name, resolvers)
    if answer.dnssec == "bogus":
        return _found(name, answer, [_not_believed(each) for each in read_records_untrusted(answer.records)])
    fetcher = Fetcher(within=Scope.MACHINE if private_hosts is None else Scope.PUBLIC)
    near = Fetcher(within=Scope.MACHINE)
    try:
        servers = []
        for record in read_records_untrusted(answer.records):
            is_near = private_hosts is None or urlsplit(record.url or "").hostname in private_hosts
            servers.append(await _judged(record, near if is_near else fetcher, may_be_near=is_near, tries=tries))
        return _found(name, answer, servers)
    finally:
        await fetcher.close()
        await near.close()


def _found(name: str, answer: TxtAnswer, servers: list[FoundServer]) -> Discovery:
    return Discovery(name=name, dnssec=answer.dnssec, resolver=answer.resolver, servers=tuple(servers))


def _not_believed(record: ServerRecord) -> FoundServer:
    return _server(record, "unusable", "its signature is wrong")


async def _judged(record: ServerRecord, fetcher: Fetcher, *, may_be_near: bool, tries: bool) -> FoundServer:
    if record.problem or record.url is None:
        return _server(record, "unusable", record.problem)
    if not may_be_near and await is_near(record.url):
        return _server(record, "private", "it leads to a private address, or to this machine")
    if not tries:
        return _server(record, "untried")
    try:
        answered = await fetcher.exchange(record.url, _HEADERS, _GREETING)
    except FetchFailed as failed:
        if _STREAM in str(failed):
            return _server(record, "answers", "with an event stream")
        return _server(record, "fails", str(failed))
    return _server(record, *_judged_answer(answered))


def _judged_answer(answered: FetchedAnswer) -> tuple[State, str]:
    if answered.status in (401, 403):
        return "credential", f"it asks for a credential: HTTP status {answered.status}"
    if answered.status != 200:
        return "fails", f"HTTP status {answered.status}"
    message = decode_object(answered.body) or {}
    result = decode_object(message.get("result", b"")) or {}
    info = decode_object(result.get("serverInfo", b"")) or {}
    words = [bytes(info[key]).decode("utf-8", "replace").strip('"') for key in ("name", "version") if key in info]
    if "protocolVersion" not in result:
        return "fails", "what it answers is not MCP"
    return "answers", " ".join(words)[:SHOWN_CHARS_MAX]


def _server(record: ServerRecord, state: State, detail: str = "") -> FoundServer:
    return FoundServer(dialect=record.dialect, url=record.url, fields=dict(record.fields), state=state, detail=detail)
