"""The endpoint for subservers (MCP-AX 4): WebSocket and POST at `/ax`, and the local socket `ax.socket`."""

import asyncio
import logging
import secrets
import socket
import struct
from collections.abc import Callable, Coroutine, MutableMapping
from typing import TYPE_CHECKING, Any, Final

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
from interlock.ax.dial_back import DialBack, check_endpoint
from interlock.ax.protocol.messages import REGISTER, SUBPROTOCOL
from interlock.ax.protocol.registration.codec import MESSAGE_BYTES_MAX, encode_registered, read_register_untrusted
from interlock.ax.protocol.registration.registrations import Peer
from interlock.ax.registrar import Registrar
from interlock.config.plan import Plan
from interlock.core.calls.call import internal
from interlock.core.recorder import Refusals
from interlock.fronts.exchange import Head
from interlock.fronts.http_protocol import UPGRADED, McpProtocol
from interlock.fronts.public import PROXY_HEADERS
from interlock.fronts.request_head import HeadInspector
from interlock.fronts.trusted_proxies import TrustedProxies, address_of, maybe_shown
from interlock.net.message_pipe import GOING_AWAY
from interlock.net.protocol.address_scope import is_loopback
from interlock.wire.jsonrpc.codec import CodecError, Request, Response, decode_untrusted, encode_refusal, encode_result
from interlock.wire.refusal import INVALID_REQUEST, HttpRefusal, Refusal

if TYPE_CHECKING:
    from interlock.approvals.trust.client_certificates import Certificates

# The endpoint for subservers: WS /ax, and POST /ax for those that are dialled back (MCP-AX 3.1, 10.1).
#
# An ASGI application. The registrant is verified before anything is accepted: by a subserver token, a client
# certificate
# that an [[access]] entry names, the user that one names (at ax.socket), or as this machine where clients need no
# credential either. No client token is admitted,
# and no peer from elsewhere without a credential, whatever auth.anonymous says: `local` may be entitled to more than
# any
# client. Refusals are recorded. The messages of a connection are handled by `runtime.ax.connection`.

log = logging.getLogger("interlock.ax")

PATH: Final = "/ax"
METHOD_CHARS_MAX: Final = 20  # of a method that a stranger made up, on record
WAITING_MAX: Final = 1000  # connections that have not registered; each has ten seconds

Scope = MutableMapping[str, Any]
Receive = Callable[[], Coroutine[Any, Any, MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Coroutine[Any, Any, None]]


class AxEndpoint:
    def __init__(
        self,
        plan: Plan,
        tokens: TokenRegistry,
        registrar: Registrar,
        refusals: Refusals,
        certificates: "Certificates | None" = None,
    ) -> None:
        self._plan = plan
        self._certificates = certificates
        self._refusals = refusals
        self._tokens = tokens
        self._registrar = registrar
        self._inspector = HeadInspector(plan)
        self._proxies = TrustedProxies(plan.node.trusted_proxies)
        self._waiting: set[SubserverConnection] = set()  # and some that are registered by now
        self._stops = False

    def replan(self, plan: Plan) -> None:
        """Apply other [[access]] entries to connections that are opened from now on."""
        self._plan = plan

    def stop(self) -> None:
        """Accept no new connections, and close those that have not registered, because nothing is under way on them."""
        self._stops = True
        for connection in list(self._waiting):
            if connection.is_waiting:
                connection.close(GOING_AWAY, "the node stops")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        who = self._admit(scope)
        if scope["type"] == "websocket":
            await self._socket(scope, receive, send, who)
        elif isinstance(who, HttpRefusal):
            await self._turn_away(scope, send, who)
        elif scope["method"] != "POST":
            await _answer(send, _ONLY_SOCKETS, "http.response")  # as at the public endpoint, no refusal of access
        else:
            body = await _read(receive)
            if body is None:
                await self._turn_away(scope, send, _TOO_LARGE)
            else:
                await _say(send, await self._post(body, who))

    async def _turn_away(self, scope: Scope, send: Send, refusal: HttpRefusal) -> None:
        peer = address_of(scope["client"][0] if scope["client"] else None)
        client = self._proxies.client(_head(scope).raw_headers) if self._proxies.trusts(peer) else None
        method = str(scope.get("method", "GET"))[:METHOD_CHARS_MAX]
        self._refusals.note(f"peer:{client or peer}", "ax", method, refusal.code)
        kind = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
        await _answer(send, refusal, kind)

    async def _post(self, body: bytes, who: RegistrantIdentity) -> bytes:
        """Return the answer to one message. It is empty for a notification."""
        try:
            message = decode_untrusted(body)
        except CodecError as error:
            return encode_refusal(error.message_id, error.refusal)
        if isinstance(message, Response):
            return encode_refusal(b"null", Refusal(INVALID_REQUEST, "nothing was asked"))
        request = message if isinstance(message, Request) else Request(b"null", message.method, message.params)
        try:
            if isinstance(message, Request) and message.method == REGISTER:
                return await self._register_back(message, who)
            answer, events = self._registrar.answer(request, Peer(principal=who.principal))
            self._registrar.happened(events)
        except Exception:
            ref = secrets.token_hex(6)
            log.exception("a message by POST from %s: internal error %s", who.principal, ref)
            answer = encode_refusal(request.id, internal(ref))
        return answer if isinstance(message, Request) else b""

    async def _register_back(self, request: Request, who: RegistrantIdentity) -> bytes:
        register = read_register_untrusted(request.params, self._plan.ax.heartbeat_min_ms)
        fault = register if isinstance(register, Refusal) else None
        if not isinstance(register, Refusal):
            fault = await check_endpoint(register, self._plan.ax.dial_back, who)
        if fault is not None or isinstance(register, Refusal):
            return encode_refusal(request.id, fault or Refusal(INVALID_REQUEST, ""))
        answer = await self._registrar.register(register, "", DialBack(who, self._plan.ax.dial_back))
        if isinstance(answer, Refusal):
            return encode_refusal(request.id, answer)
        # The keeper dials in a turn of its own, so the subserver has this answer before it is greeted.
        asyncio.get_running_loop().call_soon(self._registrar.welcome, answer.session_id)
        return encode_result(request.id, encode_registered(answer))

    async def _socket(self, scope: Scope, receive: Receive, send: Send, who: RegistrantIdentity | HttpRefusal) -> None:
        await receive()  # websocket.connect
        if not isinstance(who, HttpRefusal) and SUBPROTOCOL not in scope["subprotocols"]:
            who = _NO_SUBPROTOCOL
        if not isinstance(who, HttpRefusal) and self._is_crowded():
            who = _CROWDED
        if self._stops:
            who = _STOPPING
        if isinstance(who, HttpRefusal):
            await self._turn_away(scope, send, who)
            return
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL, "headers": []})
        connection = SubserverConnection(
            self._registrar, who, transport="websocket", heartbeat_min_ms=self._plan.ax.heartbeat_min_ms
        )
        pipe = scope["extensions"][UPGRADED].pipe(connection, self._plan.limits.message_bytes)
        connection.begin(pipe)
        self._waiting.add(connection)
        try:
            await pipe.run()
        finally:
            self._waiting.discard(connection)

    def _is_crowded(self) -> bool:
        if len(self._waiting) >= WAITING_MAX:
            self._waiting = {connection for connection in self._waiting if connection.is_waiting}
        return len(self._waiting) >= WAITING_MAX

    def _admit(self, scope: Scope) -> RegistrantIdentity | HttpRefusal:
        head = _head(scope)
        stranger = self._inspector.stranger(head)
        if stranger is not None:
            return stranger
        if b"access_token=" in scope["query_string"]:
            return _UNAUTHORISED
        rules, uid = self._plan.access, scope.get("state", {}).get("uid")
        if uid is not None and head.credential is None:  # AX-4.2-10: a user of this machine, at ax.socket
            user = f"{USER}{uid}"
            if not may_register(user, rules):
                return _UNAUTHORISED
            return registrant_identity(user, rules, on_this_machine=True, tls=None)
        local, tls = (True, None) if uid is not None else self._whence(scope, head)
        shown = maybe_shown(self._certificates, self._proxies, scope, head)
        if head.credential is None:
            if local and self._plan.auth.anonymous != "never":
                return registrant_identity("local", rules, on_this_machine=local, tls=tls, certificate=shown)
            name = shown.principal if isinstance(shown, ClientCertificate) else None
            if name is None or not may_register(name, rules):
                return _UNAUTHORISED
            return registrant_identity(name, rules, on_this_machine=local, tls=tls, certificate=shown)
        record = self._tokens.subserver(head.credential)
        if record is None:
            return _UNAUTHORISED
        return registrant_identity(
            f"subserver:{record.name}",
            rules,
            token_scope=record.scope,
            on_this_machine=local,
            tls=tls,
            certificate=shown,
        )

    def stands(self, registrant: RegistrantIdentity) -> bool:
        """Return whether a registrant that connected with a certificate is still allowed to."""
        shown = registrant.certificate
        if not isinstance(shown, ClientCertificate) or self._certificates is None:
            return True
        if registrant.principal.startswith(CERTIFICATE) and not may_register(registrant.principal, self._plan.access):
            return False
        return self._certificates.stands(shown)

    def _whence(self, scope: Scope, head: Head) -> tuple[bool, str | None]:
        """Return whether a connection comes from this machine, and its TLS version. A trusted proxy speaks for its
        clients.
        """
        peer = address_of(scope["client"][0] if scope["client"] else None)
        if self._proxies.trusts(peer):
            client = self._proxies.client(head.raw_headers)
            local = client is not None and is_loopback(client) and peer is not None and is_loopback(peer)
            # Which version the proxy spoke is not said: enough for a leaf, not for an aggregator (10.4).
            return local, "TLS" if head.headers.get(b"x-forwarded-proto") == b"https" else None
        local = peer is not None and is_loopback(peer) and PROXY_HEADERS.isdisjoint(head.headers)
        return local, scope.get("state", {}).get("tls")


def _head(scope: Scope) -> Head:
    return Head(scope.get("method", "GET").encode(), b"/ax", list(scope["headers"]), False, True)


async def _answer(send: Send, refusal: HttpRefusal, kind: str) -> None:
    body = msgspec.json.encode({"error": refusal.code, "message": refusal.message, "details": {}})
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    for line in refusal.headers.split(b"\r\n"):
        name, colon, value = line.partition(b": ")
        if colon:
            headers.append((name, value))
    await send({"type": f"{kind}.start", "status": refusal.status, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})


async def _say(send: Send, answer: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 200 if answer else 202, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


async def _read(receive: Receive) -> bytes | None:
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if len(body) > MESSAGE_BYTES_MAX:
            return None
        if not message.get("more_body", False):
            return body


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
_NO_SUBPROTOCOL: Final = HttpRefusal(
    "protocol_required", f"ask for the WebSocket subprotocol {SUBPROTOCOL}", status=400
)
_ONLY_SOCKETS: Final = HttpRefusal(
    "upgrade_required", f"open a WebSocket with the subprotocol {SUBPROTOCOL}", headers=b"upgrade: websocket\r\n"
)


# Connections at `ax.socket`: subservers of this machine, whose user the kernel tells (AX-4.2-10).
#
# Only /ax is served there, as a WebSocket or by POST. Nothing else of the public endpoint is, so that no client is
# taken
# for somebody by the way it came.

UID: Final = "uid"  # where the state of a connection has its user
_CREDENTIALS: Final = "3i"  # pid, uid, gid (unix(7))


class UserProtocol(McpProtocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        sock: Any = transport.get_extra_info("socket")
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(_CREDENTIALS))
        self.app_state = {**self.app_state, UID: struct.unpack(_CREDENTIALS, credentials)[1]}
        super().connection_made(transport)

    def _takes(self) -> bool:
        return False

    def _should_upgrade(self) -> bool:
        return super()._should_upgrade() and self._path() == PATH.encode()


class UserApp:
    """The ASGI application of `ax.socket`."""

    def __init__(self, subservers: AxEndpoint) -> None:
        self._subservers = subservers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == PATH:
            await self._subservers(scope, receive, send)
            return
        body = b'{"error":"not_found","message":"subservers register at /ax","details":{}}'
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 404, "headers": headers})
        await send({"type": "http.response.body", "body": body})
