"""One connection of a subserver, from its first message to its last.

The first message must be mcpax/register and must come within REGISTER_WITHIN_S (MCP-AX 3.1). While the registration is
being answered, only the answer to our own mcpax/parent is read; other requests are refused, and too many close the
connection. After the answer every message goes to the registered link. A refused registration closes the connection
with a close code of SURFACE 4.

The pipe, a WebSocket or a child's lines, is created by the endpoint or by the child's supervisor.
"""

import asyncio
import logging
import secrets
from dataclasses import KW_ONLY, dataclass
from typing import Final

from interlock.approvals.trust.registrant import RegistrantIdentity
from interlock.ax.ownership import PARENT_ANSWER_S
from interlock.ax.protocol.messages import PARENT, REGISTER, Parent
from interlock.ax.protocol.registration.codec import read_parent_untrusted, read_register_untrusted
from interlock.ax.registrar import Registrar
from interlock.core.calls.call import internal
from interlock.links.registered import RegisteredKeeper, RegisteredLink, RegistrationParts, SocketPipe
from interlock.net.message_pipe import INTERNAL, POLICY, TOO_BIG, MessagePipe
from interlock.process.stderr import StderrRing
from interlock.wire import refusal as codes
from interlock.wire.jsonrpc import codec as jsonrpc
from interlock.wire.jsonrpc.oversized import Oversized
from interlock.wire.refusal import Refusal

log = logging.getLogger("interlock.ax")

REGISTER_WITHIN_S: Final = 10.0  # MCP-AX 3.1, ours; AX-3.1-3
EARLY_MAX: Final = 100  # messages before the registration is answered: a subserver needs none
FORBIDDEN: Final = 4403  # SURFACE 4
TAKEN: Final = 4409
CLOSE_CODES: Final[dict[str, int]] = {
    codes.NAMESPACE_CONFLICT: TAKEN,
    codes.AUTHORITY_CONFLICT: TAKEN,
    codes.SPLIT_BRAIN: TAKEN,
    codes.AUTHORITY_UNVERIFIED: FORBIDDEN,
    codes.LINK_INSECURE: FORBIDDEN,
    codes.UNAVAILABLE: INTERNAL,
    codes.INTERNAL_ERROR: INTERNAL,
}

_PARENT_ID: Final = b'"parent"'
_FIRST: Final = "the first message on this link must be the request mcpax/register"


@dataclass(eq=False)
class SubserverConnection:
    """Connection of one subserver to this node, over which it registers and is called.

    It receives the subserver's messages and passes its registration to the registrar.
    """

    _registrar: Registrar
    guest: RegistrantIdentity
    _: KW_ONLY
    transport: str
    heartbeat_min_ms: int
    stderr: StderrRing | None = None  # collects the error output if this node started the subserver as a process

    def __post_init__(self) -> None:
        self._id = secrets.token_hex(8)
        self._pipe: MessagePipe | None = None
        self._link: RegisteredLink | None = None
        self._registering: asyncio.Task[None] | None = None
        self._parent: asyncio.Future[jsonrpc.Response] | None = None
        self._early = 0
        self._gone: str | None = None
        self._late: asyncio.TimerHandle | None = None

    def begin(self, pipe: MessagePipe) -> None:
        """Send messages through `pipe`, and limit the time within which the subserver must register. Call this before
        the first message arrives.
        """
        self._pipe = pipe
        reason = f"no mcpax/register within {REGISTER_WITHIN_S:g} s"
        self._late = asyncio.get_running_loop().call_later(REGISTER_WITHIN_S, self.close, POLICY, reason)

    @property
    def is_waiting(self) -> bool:
        """Return whether the subserver is connected but has not registered yet."""
        return self._link is None

    # The connection

    def on_message(self, data: bytes) -> None:
        if (link := self._link) is not None:
            link.on_message(data, None)
            return
        try:
            message = jsonrpc.decode_untrusted(data)
        except jsonrpc.CodecError as error:
            self._refuse(error.message_id, error.refusal)
            return
        if self._registering is not None:
            # A message that arrived before the registration was answered.
            self._early += 1
            if isinstance(message, jsonrpc.Response) and message.id == _PARENT_ID and self._parent is not None:
                if not self._parent.done():
                    self._parent.set_result(message)
            elif self._early > EARLY_MAX:
                self.close(POLICY, "too many messages before the registration is answered")
            elif isinstance(message, jsonrpc.Request):
                refusal = Refusal(codes.INVALID_REQUEST, "the registration is not answered yet")
                self._send(jsonrpc.encode_refusal(message.id, refusal))
        elif isinstance(message, jsonrpc.Request) and message.method == REGISTER:  # AX-3.1-3
            if self._late is not None:
                self._late.cancel()
            self._registering = asyncio.get_running_loop().create_task(self._register(message))
        else:
            is_form = not isinstance(message, jsonrpc.Request | jsonrpc.Response) and message.method == REGISTER
            code, details = (codes.INVALID_PARAMS, {"member": "id"}) if is_form else (codes.INVALID_REQUEST, None)
            message_id = message.id if isinstance(message, jsonrpc.Request) else b"null"
            self._refuse(message_id, Refusal(code, _FIRST, details))

    def on_oversized(self, oversized: Oversized) -> None:
        """Refuse a message that exceeds the size limit. If the subserver has not registered yet, close the
        connection.
        """
        if self._link is not None:
            self._link.on_oversized(oversized, None)
        else:
            self.close(TOO_BIG, f"sent a message larger than {oversized.limit} bytes before its registration")

    def on_closed(self, code: int, reason: str) -> None:
        self._gone = reason or "closed the connection"
        if self._late is not None:
            self._late.cancel()
        if self._parent is not None:
            self._parent.cancel()
        if self._link is not None:
            self._registrar.handle_lost_connection(self._link.registration.session_id, f"it {self._gone}")
        # The pipe refers to this connection: without the cycle, both are freed before the garbage collector runs.
        self._pipe = None

    # The registration

    async def _register(self, request: jsonrpc.Request) -> None:
        register = read_register_untrusted(request.params, self.heartbeat_min_ms)
        if isinstance(register, Refusal):
            self._refuse(request.id, register)
            return
        try:
            answer = await self._registrar.register(register, self._id, self)
        except Exception:
            ref = secrets.token_hex(6)
            log.exception("registration of %s: internal error %s", register.segment, ref)
            answer = internal(ref)
        if isinstance(answer, Refusal):
            self._refuse(request.id, answer)
            return
        self._send(jsonrpc.encode_result(request.id, jsonrpc.encode_value(answer)))
        if self._gone is not None:
            self._registrar.handle_lost_connection(answer.session_id, f"it {self._gone}")
        else:
            self._registrar.welcome(answer.session_id)

    def _refuse(self, message_id: bytes, refusal: Refusal) -> None:
        self._send(jsonrpc.encode_refusal(message_id, refusal))
        self.close(CLOSE_CODES.get(refusal.code, POLICY), refusal.message)  # AX-6.2-5: the link is closed

    def _send(self, message: bytes) -> None:
        if self._pipe is not None:
            self._pipe.send(message)

    # For the registrar (RegistrationSource)

    @property
    def is_open(self) -> bool:
        return self._pipe is not None

    async def ask_parent(self) -> Parent | Refusal | None:
        self._parent = asyncio.get_running_loop().create_future()
        self._send(jsonrpc.encode_request(_PARENT_ID, PARENT.encode(), b""))
        try:
            answer = await asyncio.wait_for(self._parent, PARENT_ANSWER_S)
        except TimeoutError:
            return None
        except asyncio.CancelledError:
            if self._gone is not None:
                return codes.unavailable("gone")
            raise
        return None if answer.error else read_parent_untrusted(answer.result)  # AX-13.4-4

    def keeper_for(self, parts: RegistrationParts) -> RegisteredKeeper:
        """Create the keeper and the link for a registration. Messages of the link are sent over this connection."""
        if self._pipe is None:
            raise RuntimeError("a connection registers only after it began")
        keeper = RegisteredKeeper(parts, self.stderr)
        link = self._link = keeper.link
        link.pipe = SocketPipe(link, self._pipe)
        return keeper

    def close(self, code: int, reason: str) -> None:
        if self._pipe is not None:
            self._pipe.close(code, reason)
