"""One HTTP request at the public endpoint: its head, the decisions that need only the head, and its answer.

An `Exchange` is the `Sink` of the call that the request becomes. Its answer is a single body, or an event stream that
ends with the answer: it becomes a stream as soon as a message is sent before the answer. It has no separate task. If
the client disconnects before the answer, `on_gone` is called once.

The head decides which endpoint is called, in which era, whether Host and Origin belong to this node, and whether the
types of body and answer are supported. That is before the sender is verified. `HeadInspector` does this once for each
distinct head: clients send the same head with every request. `OwnAddress` knows by which hosts and origins an endpoint
is reached.
"""

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from interlock.ax.protocol.names import is_segment
from interlock.config.plan import Address, NameForm, Plan
from interlock.mcp.methods import Era, era_of_header
from interlock.mcp.modern_requests import H_VERSION, PARAM_PREFIX, ROUTING_HEADERS, plain_routing
from interlock.net.http.client import TOGETHER_BYTES_MAX
from interlock.net.protocol.address_scope import LOOPBACK_HOSTS, UNSPECIFIED_HOSTS
from interlock.wire.refusal import HttpRefusal
from interlock.wire.sse import event_pieces

REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus} | {413: b"Content Too Large"}
_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-store\r\nx-accel-buffering: no\r\n%b\r\n"
)
_JSON_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_HEAD: Final = b"HTTP/1.1 %d %b\r\n%bcontent-length: %d\r\n%b\r\n%b"
_JSON_TYPE: Final = b"content-type: application/json\r\n"


@dataclass(eq=False)
class Head:
    """The parsed request line and headers of a request.

    Requests that begin with the same bytes share one object. Only `decision` and `caller` are set later, and are cached
    for all of these requests.
    """

    method: bytes
    url: bytes
    raw_headers: list[tuple[bytes, bytes]]
    keep: bool
    chunks: bool  # HTTP/1.0 knows none: there a stream ends with the connection
    decision: Any = None  # what the endpoint concluded from it
    caller: Any = None  # the modern caller behind it, while its credential stands for the same principal

    def __post_init__(self) -> None:
        self.headers = dict(self.raw_headers)
        self.credential = self.headers.get(b"authorization")
        # Arguments and routing values are repeated in headers.
        mirrored = frozenset(name for name in self.headers if name.startswith(PARAM_PREFIX))
        self.doubled_routing = self.duplicate_header(ROUTING_HEADERS | mirrored)
        self.routing = plain_routing(self.headers, self.doubled_routing)

    def duplicate_header(self, names: frozenset[bytes]) -> bytes | None:
        """Return a header of `names` that was sent more than once, or None.

        Such a header is dangerous, because two readers may use different values of it.
        """
        if len(self.headers) == len(self.raw_headers):
            return None
        seen = set()
        for name, _ in self.raw_headers:
            if name in names and name in seen:
                return name
            seen.add(name)
        return None


class Exchange(msgspec.Struct, eq=False):
    """An HTTP request and its answer. The call that the request starts sends its answer to this object."""

    protocol: Any  # the McpProtocol it came by
    head: Head
    body: bytes
    keep: bool
    extra: bytes = b""  # header lines of the answer
    streaming: bool = False
    streams_only: bool = False  # the client accepts no plain JSON
    ended: bool = False
    running: Any = None  # the Call that is cancelled when the client goes
    on_gone: Callable[[], None] | None = None
    session: Any = None  # the legacy Session whose call goes on without the connection
    log: Any = None  # the StreamLog by which the client may take up the stream again

    # Sink

    def emit(self, message: bytes) -> None:
        if self.ended and self.log is None:
            return
        if not self.streaming:
            self.open_stream()
        if self.log is not None:
            self.log.add(message)
        else:
            self.send_chunk(*event_pieces(message, event=b"message"))

    def answer(self, message: bytes, status: int = 200) -> None:
        if self.ended:
            if self.log is not None:
                self.log.add(message)
                self.log.finish()
            return
        if self.streaming or (self.streams_only and status == 200):
            self.emit(message)
            self.end_stream()
            return
        self.ended = True
        if status == 200 and self.keep and not self.extra:
            if len(message) <= TOGETHER_BYTES_MAX:
                self.protocol.transport.write(_JSON_HEAD % (len(message), message))
            else:
                self.protocol.transport.writelines((_JSON_HEAD % (len(message), b""), message))
        else:
            self._write_head(status, message, _JSON_TYPE)
        self.protocol.on_finished(self)

    def drop(self) -> None:
        """End the request without an answer, by sending an event stream without messages, because HTTP needs a
        response.
        """
        if not self.ended:
            if not self.streaming:
                self.open_stream()
            self.end_stream()
        elif self.log is not None:
            self.log.finish()

    # The rest of HTTP

    def reply(self, status: int, body: bytes = b"", content_type: bytes = _JSON_TYPE) -> None:
        if not self.ended:
            self.ended = True
            self._write_head(status, body, content_type if body else b"")
            self.protocol.on_finished(self)

    def _write_head(self, status: int, body: bytes, content_type: bytes) -> None:
        extra = self.extra if self.keep else self.extra + b"connection: close\r\n"
        length = len(body)
        if self.head.method == b"HEAD":
            body = b""
        values = (status, REASONS.get(status, b"-"), content_type, length, extra)
        if len(body) <= TOGETHER_BYTES_MAX:
            self.protocol.transport.write(_HEAD % (*values, body))
        else:
            self.protocol.transport.writelines((_HEAD % (*values, b""), body))

    def open_stream(self) -> None:
        self.streaming = True
        how = b"transfer-encoding: chunked\r\n" if self.head.chunks else b"connection: close\r\n"
        self.protocol.transport.write(_STREAM_HEAD % (self.extra + how))
        if self.session is not None:
            self.log = self.session.logs.open(self.session.id, self)

    def send_chunk(self, data: bytes, *more: bytes) -> None:
        """Send a chunk of the response. `more` is the rest of the chunk, passed separately if joining it would copy
        much data.
        """
        if self.ended:
            return
        self.protocol.wrote()
        if not more:
            self.protocol.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self.head.chunks else data)
            return
        pieces = (data, *more)
        if self.head.chunks:
            pieces = (b"%x\r\n" % sum(map(len, pieces)), *pieces, b"\r\n")
        self.protocol.transport.writelines(pieces)

    def end_stream(self) -> None:
        if not self.ended:
            self.ended = True
            if self.head.chunks:
                self.protocol.transport.write(b"0\r\n\r\n")
            self.protocol.on_finished(self)
            if self.log is not None:
                self.log.finish()

    def abandon(self) -> None:
        """Close the connection without an answer, because the client has resumed the stream on another connection."""
        self.protocol.transport.abort()
        self.on_lost()

    def on_lost(self) -> None:
        """End the exchange, because its connection was lost."""
        if self.ended:
            return
        self.ended = True
        running, on_gone = self.running, self.on_gone
        self.running = self.on_gone = None  # no circles: what is gone must not wait for the collector
        if self.log is not None:
            self.log.leave(self)
        # MCP 2025-11-25, Streamable HTTP: to a legacy client a lost connection is no cancellation.
        if running is not None and (self.session is None or not self.session.may_continue_unconnected()):
            running.cancel("the client disconnected")
        if on_gone is not None:
            on_gone()


_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class OwnAddress(msgspec.Struct, frozen=True):
    """The address of an endpoint, as it appears in the Host and Origin headers of clients."""

    # None allows any host: the endpoint listens on all addresses and has no URL.
    hosts: frozenset[str] | None = LOOPBACK_HOSTS
    # The URL by which the endpoint is reached, if that differs from where it listens.
    url: str | None = None

    def is_own_host(self, host: str) -> bool:
        """Return whether a Host header names this node. Its port is ignored."""
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        return self.hosts is None or name.lower() in self.hosts

    def is_own_origin(self, origin: str, scheme: str, host: str) -> bool:
        """Return whether an Origin header names this node.

        `scheme` and `host` are taken from the same request. A proxy between client and node may have changed both.
        """
        sent_origin = find_origin(origin)
        own = (f"{scheme}://{host}", self.url or "")
        return sent_origin is not None and sent_origin in map(find_origin, own)


THIS_MACHINE: Final = OwnAddress()


def own_address(listen: Address, url: str | None) -> OwnAddress:
    """Return the address of an endpoint that listens at `listen` and is reached at `url`, if that is given."""
    hosts = set(LOOPBACK_HOSTS)
    if url is not None:
        hosts.add(urlsplit(url).hostname or "")
    elif listen.host in UNSPECIFIED_HOSTS:
        return OwnAddress(None)
    hosts.add(listen.host.lower())
    return OwnAddress(frozenset(hosts), url)


def find_origin(url: str) -> tuple[str, str, int] | None:
    """Return the scheme, host and port of a URL (RFC 6454 4), or None if it has no origin."""
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
        return (parts.scheme, parts.hostname, port) if parts.hostname and port else None
    except ValueError:
        return None


class UrlTarget(msgspec.Struct, frozen=True):
    """The target that the URL of a request selects, such as a server or a surface."""

    kind: str  # "mcp", "sse" or "messages"
    only: str | None = None
    is_configured: bool = True  # what stands under `only`; else it comes and goes, and is looked for each time
    names: NameForm = "auto"
    session: str | None = None
    surface: str | None = None  # None: what the caller's rule or [mcp] says


class HeadDecision(msgspec.Struct, frozen=True):
    """A decision that follows from the head of an HTTP request alone: the endpoint, the protocol era, and possibly a
    refusal.

    It is made once for each distinct head. The sender is checked for every request.
    """

    endpoint: UrlTarget | None
    modern: bool
    extra: bytes = b""  # header lines of the answer
    streams_only: bool = False
    at_once: HttpRefusal | None = None  # for every caller
    once_known: HttpRefusal | None = None  # after the credential was looked at
    post: UrlTarget | None = None  # the endpoint, where it is an ordinary message of either era


class HeadInspector:
    """Rules that decide about a request by its head alone: which endpoint it is for, and whether it is refused. The
    caller caches the result in `Head.decision`.
    """

    def __init__(self, plan: Plan) -> None:
        self._origins = plan.node.origins
        self._names: NameForm = plan.mcp.names
        self._segments = frozenset(server.segment for server in plan.servers)
        self._own = own_address(plan.node.listen, plan.node.public_url)

    def inspect(self, head: Head, token_in_url: HttpRefusal) -> HeadDecision:
        headers = head.headers
        version = headers.get(H_VERSION)
        modern = era_of_header(None if version is None else version.decode("latin-1")) is Era.MODERN
        endpoint = _read_url(head.url, self._names, self._segments)
        if (stranger := self.stranger(head)) is not None:
            return HeadDecision(endpoint, modern, at_once=stranger)
        extra = b""
        if (origin := headers.get(b"origin")) is not None:
            extra = b"access-control-allow-origin: %b\r\nvary: origin\r\n" % origin + _EXPOSE
            if head.method == b"OPTIONS":
                return HeadDecision(endpoint, modern, extra + _PREFLIGHT, at_once=HttpRefusal("preflight", ""))
        # MCP forbids access tokens in URLs (RFC 6750 2.3), because URLs end up in logs.
        query = head.url.partition(b"?")[2].decode("latin-1")
        if query and "access_token" in parse_qs(query, keep_blank_values=True):
            return HeadDecision(endpoint, modern, extra, at_once=token_in_url)
        if endpoint is None:
            return HeadDecision(None, modern, extra, once_known=NOT_FOUND)
        allowed = _ALLOWED[endpoint.kind] if not modern else b"POST"
        if head.method not in allowed.split(b", "):
            refusal = HttpRefusal(
                "method_not_allowed", "this path takes another method", headers=b"allow: %b\r\n" % allowed
            )
            return HeadDecision(endpoint, modern, extra, once_known=refusal)
        content_type = headers.get(b"content-type", b"")
        if head.method == b"POST" and not (
            content_type == b"application/json" or content_type.split(b";")[0].strip().lower() == b"application/json"
        ):
            return HeadDecision(endpoint, modern, extra, once_known=_NOT_JSON)
        accept = headers.get(b"accept", b"*/*").lower()
        json = any(kind in accept for kind in (b"application/json", b"application/*", b"*/*"))
        stream = any(kind in accept for kind in (b"text/event-stream", b"text/*", b"*/*"))
        if not (json or stream) or (head.method == b"GET" and not stream):
            return HeadDecision(endpoint, modern, extra, once_known=_NOT_ACCEPTABLE)
        is_plain = endpoint.kind == "mcp" and endpoint.is_configured and head.method == b"POST"
        post = endpoint if is_plain else None
        return HeadDecision(endpoint, modern, extra, streams_only=not json, post=post)

    def stranger(self, head: Head) -> HttpRefusal | None:
        """Return the refusal of a request that is addressed to another host, or that a web page of another origin
        sends.

        A request without Host, or with two values of a header in `_ONCE`, is refused as well. Return None if there is
        nothing to refuse.
        """
        headers = head.headers
        if b"host" not in headers or head.duplicate_header(_ONCE) is not None:
            return _BAD_HEADERS
        if not self._own.is_own_host(headers[b"host"].decode("latin-1")):
            return _BAD_HOST
        origin = headers.get(b"origin", b"").decode("latin-1")
        if b"origin" not in headers or origin in self._origins:
            return None
        try:
            parts = urlsplit(origin)
            scheme, hostname = parts.scheme, parts.hostname
        except ValueError:
            return _BAD_ORIGIN
        own = LOOPBACK_HOSTS if self._own.hosts is None else self._own.hosts
        return None if scheme in ("http", "https") and hostname is not None and hostname in own else _BAD_ORIGIN


def _read_url(url: bytes, names: NameForm, segments: frozenset[str]) -> UrlTarget | None:
    try:
        parts = urlsplit(url.decode("ascii"))
    except (UnicodeDecodeError, ValueError):
        return None
    query = parse_qs(parts.query)
    requested_form = query.get("names", [""])[0]
    form: NameForm = "qualified" if requested_form == "qualified" else "safe" if requested_form == "safe" else names
    head, *rest = [unquote(part) for part in parts.path.strip("/").split("/")]
    if head == "messages" and not rest:
        return UrlTarget("messages", session=query.get("session", [""])[0])
    if head in ("mcp", "sse"):
        if rest[-1:] == ["mcp"] and (len(rest) == 3 or rest[0] in SURFACES):  # clients that know no other ending
            rest.pop()
        if not rest:
            return UrlTarget(head, names=form)
        if len(rest) == 1 and rest[0] in SURFACES:
            return UrlTarget(head, names=form, surface=rest[0])
        if len(rest) == 2 and rest[0] == "only" and is_segment(rest[1]):
            return UrlTarget(head, only=rest[1], is_configured=rest[1] in segments, names=form)
    return None


SURFACES: Final = frozenset({"flat", "aql", "aql-single"})
_ALLOWED: Final = {"mcp": b"GET, POST, DELETE", "sse": b"GET", "messages": b"POST"}
_ONCE: Final = frozenset((b"host", b"origin", b"authorization", b"content-type", b"mcp-session-id"))
_BAD_HEADERS: Final = HttpRefusal("bad_headers", "Host must be sent, and headers that decide must be sent once")
_BAD_HOST: Final = HttpRefusal("bad_host", "this node does not answer to that Host; set node.public_url")
_BAD_ORIGIN: Final = HttpRefusal("bad_origin", "this Origin is not allowed; add it to node.origins")
NOT_FOUND: Final = HttpRefusal("not_found", "there is no such path here; MCP is at /mcp")
_NOT_JSON: Final = HttpRefusal("unsupported_media_type", "send application/json")
_NOT_ACCEPTABLE: Final = HttpRefusal("not_acceptable", "accept application/json and text/event-stream")
_EXPOSE: Final = b"access-control-expose-headers: mcp-session-id, www-authenticate\r\n"
_PREFLIGHT: Final = (
    b"access-control-allow-methods: GET, POST, DELETE, OPTIONS\r\naccess-control-allow-headers: authorization, "
    b"content-type, accept, mcp-protocol-version, mcp-session-id, mcp-method, mcp-name, last-event-id\r\n"
    b"access-control-max-age: 600\r\n"
)
