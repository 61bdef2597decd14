"""The endpoint for subservers (MCP-AX 3.1, 10.1): WebSocket and POST at `/ax`, and the local socket `ax.socket`.

`AxEndpoint` is an ASGI application. A WebSocket becomes a `SubserverConnection`; a POST registers a subserver that the
node dials back, or carries one further message of MCP-AX.

The registrant is identified before a connection is accepted (`_admit`):

    a subserver token                                  the name of the token
    a client certificate named by an [[access]] entry  that certificate
    a user of this machine, at ax.socket               the user that an [[access]] entry names (AX-4.2-10)
    a peer on this machine                             "local", if clients need no credential either

Client tokens are not admitted. A peer on another machine without a credential is never admitted, whatever
auth.anonymous says: `local` may be entitled to more than any client. Refusals are recorded.

At `ax.socket` the kernel tells which user connects. Only /ax is served there, and nothing else of the public endpoint,
so that no client is identified by the socket alone.

To a subserver that registers by POST, the node connects as an MCP client. The subserver names its endpoint, or the
operator's table ax.endpoints has it, because the registration that MCP-AX 6.1 prints has no such member. A registrant
must not make the node connect to any address it likes (SSRF). The operator's list ax.dial_back says where the node may
connect to: the parts of a URL are compared with an entry one by one, and an address of a private network is allowed
only if the entry names that very host. A name may resolve to another address later, so it is checked before every
connection, and the node connects to the very address that was checked. Only a host that an entry names, dialled over a
protected link, is resolved once more for the connection. No connection of such a subserver ends when it is gone: where
it promises no heartbeats, the keeper probes it every PROBE_EVERY_S.
"""

import asyncio
import ipaddress
import logging
import re
import secrets
import socket
import struct
from collections.abc import Callable, Coroutine, Iterable, MutableMapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from interlock.access.tokens import TokenRegistry
from interlock.approvals.trust.registrant import (
    CERTIFICATE,
    USER,
    ClientCertificate,
    RegistrantIdentity,
    may_register,
    registrant_identity,
)
from interlock.ax.connection import SubserverConnection
from interlock.ax.protocol.messages import REGISTER, SUBPROTOCOL, Parent, Register, Registered
from interlock.ax.protocol.registration.codec import MESSAGE_BYTES_MAX, read_register_untrusted
from interlock.ax.protocol.registration.registrations import Peer
from interlock.ax.registrar import Registrar
from interlock.config.plan import Plan
from interlock.core.calls.call import internal
from interlock.core.link_state import LinkState
from interlock.core.recorder import Refusals
from interlock.fronts.connections import TrustedProxies, address_of, find_client_certificate
from interlock.fronts.exchange import Head, HeadInspector
from interlock.fronts.http_protocol import UPGRADED, McpProtocol
from interlock.fronts.public import PROXY_HEADERS
from interlock.links.connector import ConnectFailed, ConnectorParts, Loss
from interlock.links.keeper import Keeper
from interlock.links.registered import RegisteredConnector, RegisteredKeeper, RegisteredLink, RegistrationParts
from interlock.net.message_pipe import GOING_AWAY
from interlock.net.protocol import address_scope
from interlock.net.protocol.address_scope import is_loopback, scope_of
from interlock.process.stderr import StderrRing
from interlock.wire.jsonrpc import codec as jsonrpc
from interlock.wire.refusal import INVALID_PARAMS, INVALID_REQUEST, LINK_INSECURE, HttpRefusal, Refusal, ax_refusal

if TYPE_CHECKING:
    from interlock.approvals.trust.client_certificates import Certificates


log = logging.getLogger("interlock.ax")

PATH: Final = "/ax"
METHOD_CHARS_MAX: Final = 20  # of an HTTP method in the record of a refusal, which a stranger may invent
WAITING_MAX: Final = 1000  # connections that have not registered; each has ten seconds for that
UID: Final = "uid"  # the key of the user in the state of a connection at `ax.socket`

_CREDENTIALS: Final = "3i"  # pid, uid, gid (unix(7))
_JSON: Final = (b"content-type", b"application/json")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Coroutine[Any, Any, MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Coroutine[Any, Any, None]]


@dataclass(eq=False)
class AxEndpoint:
    """ASGI application at `/ax`, where subservers connect and register."""

    _plan: Plan
    _tokens: TokenRegistry
    _registrar: Registrar
    _refusals: Refusals
    _certificates: "Certificates | None" = None

    def __post_init__(self) -> None:
        self._inspector = HeadInspector(self._plan)
        self._proxies = TrustedProxies(self._plan.node.trusted_proxies)
        self._waiting: set[SubserverConnection] = set()  # not registered; some may have registered by now
        self._stops = False

    def replan(self, plan: Plan) -> None:
        """Apply changed [[access]] entries. They count for connections that are opened after this call."""
        self._plan = plan

    def stop(self) -> None:
        """Refuse new connections, and close those whose subserver has not registered yet. No calls run on those."""
        self._stops = True
        for connection in list(self._waiting):
            if connection.is_waiting:
                connection.close(GOING_AWAY, "the node stops")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        guest = self._admit(scope)
        if scope["type"] == "websocket":
            await self._serve_socket(scope, receive, send, guest)
        elif isinstance(guest, HttpRefusal):
            await self._refuse(scope, send, guest)
        elif scope["method"] != "POST":
            # As at the public endpoint, this is no refusal of access and is not recorded.
            await _send_refusal(send, _ONLY_SOCKETS, "http.response")
        else:
            body = b""
            while True:
                message = await receive()
                body += bytes(message.get("body", b""))
                if len(body) > MESSAGE_BYTES_MAX:
                    await self._refuse(scope, send, _TOO_LARGE)
                    return
                if not message.get("more_body", False):
                    break
            answer = await self._post(body, guest)
            await _send_body(send, "http.response", 200 if answer else 202, answer)

    async def _refuse(self, scope: Scope, send: Send, refusal: HttpRefusal) -> None:
        """Refuse a WebSocket or an HTTP request, and record the refusal."""
        peer = address_of(scope["client"][0] if scope["client"] else None)
        client = self._proxies.client(_head(scope).raw_headers) if self._proxies.trusts(peer) else None
        method = str(scope.get("method", "GET"))[:METHOD_CHARS_MAX]
        self._refusals.note(f"peer:{client or peer}", "ax", method, refusal.code)
        kind = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
        await _send_refusal(send, refusal, kind)

    async def _post(self, body: bytes, guest: RegistrantIdentity) -> bytes:
        """Handle one message that arrived by POST. Return the encoded answer, which is empty for a notification."""
        try:
            message = jsonrpc.decode_untrusted(body)
        except jsonrpc.CodecError as error:
            return jsonrpc.encode_refusal(error.message_id, error.refusal)
        if isinstance(message, jsonrpc.Response):
            return jsonrpc.encode_refusal(b"null", Refusal(INVALID_REQUEST, "nothing was asked"))
        is_request = isinstance(message, jsonrpc.Request)
        message_id = message.id if isinstance(message, jsonrpc.Request) else b"null"
        request = jsonrpc.Request(message_id, message.method, message.params)
        try:
            if is_request and request.method == REGISTER:
                return await self._register_back(request, guest)
            answer, events = self._registrar.answer(request, Peer(principal=guest.principal))
            self._registrar.handle_events(events)
        except Exception:
            ref = secrets.token_hex(6)
            log.exception("a message by POST from %s: internal error %s", guest.principal, ref)
            answer = jsonrpc.encode_refusal(request.id, internal(ref))
        return answer if is_request else b""

    async def _register_back(self, request: jsonrpc.Request, guest: RegistrantIdentity) -> bytes:
        """Register a subserver that asked by POST, and to which this node will connect. Return the encoded answer."""
        register = read_register_untrusted(request.params, self._plan.ax.heartbeat_min_ms)
        if isinstance(register, Refusal):
            return jsonrpc.encode_refusal(request.id, register)
        allowed = self._plan.ax.dial_back
        if register.endpoint is None and (configured := self._plan.ax.endpoints.get(register.segment)) is not None:
            # MCP-AX 6.1 prints no endpoint. The operator's entry is one that it allows.
            register, allowed = msgspec.structs.replace(register, endpoint=configured), (configured,)
        answer: Registered | Refusal | None = await check_endpoint(register, allowed, guest)
        if answer is None:
            answer = await self._registrar.register(register, "", DialBack(guest, allowed))
        if isinstance(answer, Refusal):
            return jsonrpc.encode_refusal(request.id, answer)
        # The keeper dials in a later turn of the loop, so the subserver has this answer before it is greeted.
        asyncio.get_running_loop().call_soon(self._registrar.welcome, answer.session_id)
        return jsonrpc.encode_result(request.id, jsonrpc.encode_value(answer))

    async def _serve_socket(
        self, scope: Scope, receive: Receive, send: Send, guest: RegistrantIdentity | HttpRefusal
    ) -> None:
        """Accept a WebSocket, and serve it until it is closed."""
        await receive()  # websocket.connect
        if not isinstance(guest, HttpRefusal) and SUBPROTOCOL not in scope["subprotocols"]:
            guest = _NO_SUBPROTOCOL
        if len(self._waiting) >= WAITING_MAX:
            self._waiting = {connection for connection in self._waiting if connection.is_waiting}
        if not isinstance(guest, HttpRefusal) and len(self._waiting) >= WAITING_MAX:
            guest = _CROWDED
        if self._stops:
            guest = _STOPPING
        if isinstance(guest, HttpRefusal):
            await self._refuse(scope, send, guest)
            return
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL, "headers": []})
        least_ms = self._plan.ax.heartbeat_min_ms
        connection = SubserverConnection(self._registrar, guest, transport="websocket", heartbeat_min_ms=least_ms)
        pipe = scope["extensions"][UPGRADED].pipe(connection, self._plan.limits.message_bytes)
        connection.begin(pipe)
        self._waiting.add(connection)
        try:
            await pipe.run()
        finally:
            self._waiting.discard(connection)

    def _admit(self, scope: Scope) -> RegistrantIdentity | HttpRefusal:
        """Identify the peer that connects. Return its identity, or a refusal if it may not register at all."""
        head = _head(scope)
        if (stranger := self._inspector.stranger(head)) is not None:
            return stranger
        if b"access_token=" in scope["query_string"]:
            return _UNAUTHORISED
        rules, uid = self._plan.access, scope.get("state", {}).get(UID)
        if uid is not None and head.credential is None:  # AX-4.2-10: a user of this machine, at ax.socket
            user = f"{USER}{uid}"
            if not may_register(user, rules):
                return _UNAUTHORISED
            return registrant_identity(user, rules, on_this_machine=True, tls=None)
        local, tls = (True, None) if uid is not None else self._find_origin(scope, head)
        shown = find_client_certificate(self._certificates, self._proxies, scope, head)
        token_scope = None
        if head.credential is not None:
            if (record := self._tokens.subserver(head.credential)) is None:
                return _UNAUTHORISED
            name, token_scope = f"subserver:{record.name}", record.scope
        elif local and self._plan.auth.anonymous != "never":
            name = "local"
        else:
            principal = shown.principal if isinstance(shown, ClientCertificate) else None
            if principal is None or not may_register(principal, rules):
                return _UNAUTHORISED
            name = principal
        return registrant_identity(
            name, rules, token_scope=token_scope, on_this_machine=local, tls=tls, certificate=shown
        )

    def is_still_admitted(self, registrant: RegistrantIdentity) -> bool:
        """Return whether the client certificate of a registrant is still accepted.

        A registrant that connected without a certificate is not affected: the result is True.
        """
        shown = registrant.certificate
        if not isinstance(shown, ClientCertificate) or self._certificates is None:
            return True
        if registrant.principal.startswith(CERTIFICATE) and not may_register(registrant.principal, self._plan.access):
            return False
        return self._certificates.stands(shown)

    def _find_origin(self, scope: Scope, head: Head) -> tuple[bool, str | None]:
        """Return whether a client connects from this machine, and the TLS version of its connection, or None without
        TLS.

        For a connection from a trusted proxy, both describe the proxy's client.
        """
        peer = address_of(scope["client"][0] if scope["client"] else None)
        if self._proxies.trusts(peer):
            client = self._proxies.client(head.raw_headers)
            local = client is not None and is_loopback(client) and peer is not None and is_loopback(peer)
            # The proxy does not say which version of TLS it spoke: enough for a leaf, not for an aggregator (10.4).
            return local, "TLS" if head.headers.get(b"x-forwarded-proto") == b"https" else None
        local = peer is not None and is_loopback(peer) and PROXY_HEADERS.isdisjoint(head.headers)
        return local, scope.get("state", {}).get("tls")


def _head(scope: Scope) -> Head:
    return Head(scope.get("method", "GET").encode(), b"/ax", list(scope["headers"]), False, True)


async def _send_refusal(send: Send, refusal: HttpRefusal, kind: str) -> None:
    body = msgspec.json.encode({"error": refusal.code, "message": refusal.message, "details": {}})
    lines = (line.partition(b": ") for line in refusal.headers.split(b"\r\n"))
    await _send_body(send, kind, refusal.status, body, [(name, value) for name, colon, value in lines if colon])


async def _send_body(send: Send, kind: str, status: int, body: bytes, more: Sequence[tuple[bytes, bytes]] = ()) -> None:
    headers = [_JSON, (b"content-length", b"%d" % len(body)), *more]
    await send({"type": f"{kind}.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})


_UNAUTHORISED: Final = HttpRefusal(
    "unauthorised",
    "a subserver's token is needed; interlock access token --for subserver --name NAME makes one",
    headers=b"www-authenticate: Bearer\r\n",
)
_TOO_LARGE: Final = HttpRefusal("body_too_large", f"a registration has at most {MESSAGE_BYTES_MAX} bytes")
_CROWDED: Final = HttpRefusal(
    "unavailable", "too many subservers have connected and not registered; try again", headers=b"retry-after: 5\r\n"
)
_STOPPING: Final = HttpRefusal("unavailable", "the node stops")
_ASK_FOR: Final = f"ask for the WebSocket subprotocol {SUBPROTOCOL}"
_NO_SUBPROTOCOL: Final = HttpRefusal("protocol_required", _ASK_FOR, status=400)
_NOT_FOUND: Final = HttpRefusal("not_found", "subservers register at /ax", status=404)
_ONLY_SOCKETS: Final = HttpRefusal(
    "upgrade_required", f"open a WebSocket with the subprotocol {SUBPROTOCOL}", headers=b"upgrade: websocket\r\n"
)


class UserProtocol(McpProtocol):
    """HTTP protocol for connections to the Unix socket `ax.socket`. It records which user of this machine has connected
    (AX-4.2-10).
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        sock: Any = transport.get_extra_info("socket")
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(_CREDENTIALS))
        self.app_state = {**self.app_state, UID: struct.unpack(_CREDENTIALS, credentials)[1]}
        super().connection_made(transport)

    def _serves_itself(self) -> bool:
        return False

    def _should_upgrade(self) -> bool:
        return super()._should_upgrade() and self._path() == PATH.encode()


def user_app(subservers: AxEndpoint) -> Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]:
    """Return the ASGI application of the socket `ax.socket`, which serves `/ax` only."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == PATH:
            await subservers(scope, receive, send)
        else:
            await _send_refusal(send, _NOT_FOUND, "http.response")

    return serve


PROBE_EVERY_S: Final = 30.0  # MCP-AX 6.3, ours: if no heartbeats are promised
PROBE_S: Final = 10.0  # for the answer to a probe
PROBES_FAILED_MAX: Final = 2  # in a row; then the subserver is lost
RESOLVE_S: Final = 5.0  # for DNS
# Path segments by which a server could leave the path that an entry allows, plain or encoded.
_LEADS_AWAY: Final = re.compile(r"\.\.|//|\\|%(?:2e|2f|5c|25)", re.IGNORECASE)
_PORTS: Final = {"http": 80, "https": 443}


async def check_endpoint(register: Register, allowed: Iterable[str], guest: RegistrantIdentity) -> Refusal | None:
    """Return a refusal if a registration by POST names no endpoint, or one to which this node may not connect.
    Otherwise return None.
    """
    if register.endpoint is None:
        return _refuse_endpoint(
            "named when registering by POST, or configured for the segment in ax.endpoints; or open a WebSocket at /ax"
        )
    addresses = await find_addresses(register.endpoint, allowed, guest)
    return addresses if isinstance(addresses, Refusal) else None


async def find_addresses(endpoint: str, allowed: Iterable[str], guest: RegistrantIdentity) -> tuple[str, ...] | Refusal:
    """Return the addresses to which the node may connect for `endpoint`, or a refusal if it may not connect.

    An empty tuple allows every address that the host name resolves to, because the operator listed this host and the
    connection is protected by TLS or by the registrant's [[access]] entry (`secure_by`).
    """
    url = urlsplit(endpoint)
    if _LEADS_AWAY.search(url.path):
        return _refuse_endpoint("a URL whose path has no '..', '//', '\\' and no such character encoded")
    entries = [urlsplit(entry) for entry in allowed]
    matching = [entry for entry in entries if _matches(url, entry)]
    if not matching:
        return _refuse_endpoint("within ax.dial_back of this aggregator")
    loop = asyncio.get_running_loop()
    try:
        results = await asyncio.wait_for(loop.getaddrinfo(url.hostname, url.port, type=socket.SOCK_STREAM), RESOLVE_S)
    except (OSError, TimeoutError, UnicodeError):
        return _refuse_endpoint("an address that can be resolved")
    addresses = [ipaddress.ip_address(str(result[4][0]).partition("%")[0]) for result in results]
    if not addresses:
        return _refuse_endpoint("an address that can be resolved")
    named = any(entry.hostname == url.hostname for entry in matching)
    if not named and any(scope_of(address) > address_scope.Scope.PUBLIC for address in addresses):
        return _refuse_endpoint("on no private network, unless ax.dial_back names its host")
    on_this_machine = all(map(is_loopback, addresses))
    protected = url.scheme == "https" or (guest.rule is not None and guest.rule.secure_by is not None)
    if not protected and not on_this_machine:
        return ax_refusal(LINK_INSECURE, "an endpoint beyond this machine is dialled over TLS", member="endpoint")
    return () if named and protected else tuple(map(str, addresses))


def _matches(url: SplitResult, entry: SplitResult) -> bool:
    """Return whether a URL is allowed by `entry`, one of the URL patterns that the operator configured.

    Each part is compared separately, so that a `*` in the host never matches part of the path.
    """
    if url.scheme != entry.scheme or not url.hostname or not entry.hostname:
        return False
    port, allowed_port = url.port or _PORTS[url.scheme], entry.port or _PORTS[entry.scheme]
    path, allowed_path = url.path or "/", entry.path or "/"
    return port == allowed_port and fnmatchcase(url.hostname, entry.hostname) and fnmatchcase(path, allowed_path)


def _refuse_endpoint(must: str) -> Refusal:
    return Refusal(INVALID_PARAMS, f"endpoint must be {must}", {"member": "endpoint"})


class DialBack:
    """Source of a registration that came by POST, and therefore without a lasting connection. This node opens a
    connection to the subserver later.
    """

    transport = "http"
    is_open = True

    def __init__(self, guest: RegistrantIdentity, allowed: Iterable[str]) -> None:
        self.guest = guest
        self.allowed = tuple(allowed)

    async def ask_parent(self) -> Parent | Refusal | None:
        """Return None, because the subserver cannot be asked before this node is connected to it. The registration
        itself names the parent.
        """
        return None

    def keeper_for(self, parts: RegistrationParts) -> RegisteredKeeper:
        return DialledBackKeeper(parts, self)

    def close(self, code: int, reason: str) -> None:
        """Do nothing, because there is no connection that the subserver opened. The keeper closes the connection that
        this node opened.
        """


class _CheckedConnector(RegisteredConnector):
    """Connector that checks before every connection whether the operator's list allows the address."""

    def __init__(
        self, link: RegisteredLink, parts: ConnectorParts, stderr: StderrRing, loss: Loss, source: DialBack
    ) -> None:
        super().__init__(link, parts, stderr, loss)
        self._source = source
        self._failures = 0

    async def connect(self, start: AsyncExitStack) -> None:
        try:
            await super().connect(start)
        except ConnectFailed:
            self._failures += 1
            raise

    async def _find_address(self) -> str | None:
        endpoint = self._link.registration.register.endpoint or ""
        addresses = await find_addresses(endpoint, self._source.allowed, self._source.guest)
        if isinstance(addresses, Refusal):
            raise ConnectFailed(f"it is not dialled: {addresses.message}")
        # After a failure the next address is tried.
        return addresses[self._failures % len(addresses)] if addresses else None


class DialledBackKeeper(RegisteredKeeper):
    """Keeper of the link to a subserver that registered by POST. This node opens the link, and opens it again after a
    loss.
    """

    def __init__(self, parts: RegistrationParts, source: DialBack) -> None:
        super().__init__(parts)
        self._connector = _CheckedConnector(self.link, parts.connector_parts, self.stderr, self._loss, source)
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        super().start()
        if not self.link.registration.register.heartbeat_interval_ms:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def _live(self) -> None:
        await Keeper._live(self)

    async def restart(self) -> None:
        await Keeper.restart(self)

    def cut(self, state: LinkState, reason: str) -> None:
        pipe = self.link.pipe
        super().cut(state, reason)
        if self._watching is not None and self._watching is not asyncio.current_task():
            self._watching.cancel()
        if pipe is not None:
            self.hanging_up = asyncio.get_running_loop().create_task(pipe.close())

    async def _watch(self) -> None:
        """Ask the subserver for an answer at intervals, and end its link after two failures in a row."""
        failed = 0
        while failed < PROBES_FAILED_MAX:
            await asyncio.sleep(PROBE_EVERY_S)
            failed = 0 if await self.answers(PROBE_S) else failed + 1
        self.link.on_pipe_lost("it did not answer twice in a row")
