"""Decisions that need only the head of a request, made before its sender is verified.

The head decides which endpoint is called, in which era, whether Host and Origin belong to this node, and whether the
types of body and answer are supported. `HeadInspector` does this once for each distinct head: clients send the same
head with every request. `OwnAddress` knows by which hosts and origins an endpoint is reached.
"""

from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from interlock.ax.protocol.names import is_segment
from interlock.config.plan import Address, NameForm, Plan
from interlock.fronts.exchange import Head
from interlock.mcp.methods import Era, era_of_header
from interlock.mcp.request_validation import H_VERSION
from interlock.net.protocol.address_scope import LOOPBACK_HOSTS, UNSPECIFIED_HOSTS
from interlock.wire.refusal import HttpRefusal

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class OwnAddress(msgspec.Struct, frozen=True):
    """The address of an endpoint, as it appears in the Host and Origin headers of clients."""

    # None allows any host: the endpoint listens on all addresses and has no URL.
    hosts: frozenset[str] | None = LOOPBACK_HOSTS
    # The URL by which the endpoint is reached, if that differs from where it listens.
    url: str | None = None

    def is_own_host(self, host: str) -> bool:
        return self.hosts is None or host_name(host) in self.hosts

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


def host_name(host: str) -> str:
    """Return the host name in a Host header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


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
    """The decision about a request that follows from its head.

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
    """An inspector of request heads. Its caller caches the decisions, in `Head.decision`."""

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
        """Return the refusal of a request that is not for this node or comes from a page of another origin.

        A request without Host, or with two values of a header in `_ONCE`, is refused as well. Return None if there is
        nothing to refuse.
        """
        headers = head.headers
        if b"host" not in headers or head.duplicate_header(_ONCE) is not None:
            return _BAD_HEADERS
        if not self._own.is_own_host(headers[b"host"].decode("latin-1")):
            return _BAD_HOST
        origin = headers.get(b"origin")
        return _BAD_ORIGIN if origin is not None and not self._origin_ok(origin) else None

    def _origin_ok(self, origin: bytes) -> bool:
        text = origin.decode("latin-1")
        if text in self._origins:
            return True
        try:
            parts = urlsplit(text)
            hostname = parts.hostname
        except ValueError:
            return False
        own = LOOPBACK_HOSTS if self._own.hosts is None else self._own.hosts
        return parts.scheme in ("http", "https") and hostname is not None and hostname in own


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
