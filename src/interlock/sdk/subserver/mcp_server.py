"""The MCP server of a leaf on one link, and the uplink that has one while it is registered with a parent.

The server takes requests of the parent and sends replies and notifications. Both eras are served; each request says to
which it belongs. A tool's failure is a result with isError; problems of routing (route, method, size, too many calls)
are JSON-RPC errors.

A link may be lost while calls run. The calls continue, because a half-done action is worse than a lost reply, and their
replies are dropped. So the running calls are counted in the offer, which all links share: CALLS_MAX holds for the
program, also after a reconnect.

An async tool is cancelled when its caller cancels. A plain function runs in a thread, which cannot be interrupted: it
is told by `context.cancelled`, and counts until it returns.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from interlock.ax.protocol import route
from interlock.ax.protocol.messages import Register
from interlock.ax.protocol.registration.registrant import JoinedParent
from interlock.ax.uplink import Opener, Uplink
from interlock.mcp import methods
from interlock.mcp.modern_requests import ValidatedRequest, validate_request
from interlock.sdk.subserver.tools import Context, ServedTool, ToolFailed, call_in_loop, failure
from interlock.wire.jsonrpc import codec
from interlock.wire.refusal import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, TOOL_DEGRADED, Refusal

if TYPE_CHECKING:
    from interlock.sdk.subserver.subserver import Subserver

log = logging.getLogger("interlock.subserver")

CALLS_MAX: Final = 64  # at once; each may occupy a thread
LISTENS_MAX: Final = 16  # subscriptions of a client; a parent needs one
RETRY_AFTER_MS: Final = 1000
CAPABILITIES: Final[Mapping[str, Any]] = {"tools": {"listChanged": True}}

_BUSY: Final = Refusal(TOOL_DEGRADED, "tool_degraded", {"reason": "link_busy", "retry_after_ms": RETRY_AFTER_MS})


class ToolOffer(msgspec.Struct):
    """The tools that a program offers on all its connections, and the calls that are running."""

    name: str
    version: str
    instructions: str | None
    max_bytes: int
    tools: Mapping[str, ServedTool] = {}
    calls: set[asyncio.Task[None]] = set()

    @property
    def info(self) -> dict[str, str]:
        """Return the name and version of the program. The form is the same in legacy and modern MCP."""
        return {"name": self.name, "version": self.version}

    @property
    def instruction_members(self) -> dict[str, str]:
        """Return the instructions as a member of the first reply to a client, or an empty dict if there are none."""
        return {} if self.instructions is None else {"instructions": self.instructions}


class McpServer:
    """An MCP server for one connection. Its running calls are counted in the offer, which all connections share."""

    def __init__(self, offer: ToolOffer, send: Callable[[bytes], bool], segment: str) -> None:
        """Create a server. `send` writes to the connection, and `segment` is the name that the parent has assigned to
        this program.
        """
        self._offer = offer
        self._send = send
        self._segment = segment
        self._running: dict[bytes, tuple[asyncio.Task[None] | None, Context]] = {}  # no task: not to be interrupted
        self._listens: dict[bytes, None] = {}
        self._open = True
        self.agreed = methods.LEGACY_VERSIONS[-1]  # the revision of a legacy client

    def leave(self) -> None:
        """Handle the loss of the connection. Running calls continue, because an incomplete irreversible action is worse
        than a lost reply.
        """
        self._open = False

    def notify(self, method: str, params: bytes) -> bool:
        """Send a notification. Return False if the connection did not accept it."""
        return self._open and self._send(codec.encode_notification(method.encode(), params))

    def tools_changed(self) -> None:
        """Announce changed tools: to each subscription of a modern client or, if there is none, as a plain
        notification.
        """
        for listen_id in self._listens:
            params = {"_meta": {methods.META_SUBSCRIPTION: Raw(listen_id)}}
            self.notify(methods.TOOLS_CHANGED, codec.encode_value(params))
        if not self._listens:
            self.notify(methods.TOOLS_CHANGED, b"")

    def hear(self, notification: codec.Notification) -> None:
        """Handle a notification. Only a cancellation of a request has an effect."""
        named = cancelled_request(notification)
        self._listens.pop(named, None)
        if (running := self._running.pop(named, None)) is not None:
            task, context = running
            context.cancel()
            if task is not None:
                task.cancel()

    def hear_answer(self, response: codec.Response) -> None:
        """Do nothing, because this server sends no requests."""

    def serve(self, request: codec.Request) -> None:
        """Serve a request. The reply is sent immediately or, for a tool call, when the tool has finished."""
        validated = _read(request)
        if isinstance(validated, Refusal):
            self._refuse(request.id, validated)
        elif request.id in self._running or request.id in self._listens:
            self._refuse(request.id, Refusal(INVALID_REQUEST, "this id is in use by a request under way"))
        elif validated.method == methods.TOOLS_CALL:
            self._call(validated)
        elif validated.method == methods.TOOLS_LIST:
            self._answer(validated, {"tools": [tool.listed for tool in self._offer.tools.values()]}, cached=True)
        elif validated.method == methods.DISCOVER and _is_modern(validated):
            members = {"supportedVersions": list(methods.MODERN_VERSIONS), "capabilities": CAPABILITIES}
            self._answer(validated, members | self._offer.instruction_members, cached=True)
        elif validated.method == methods.LISTEN and _is_modern(validated):
            self._listen(validated)
        elif validated.method == methods.INITIALIZE and not _is_modern(validated):
            self.agreed = methods.negotiate_legacy(codec.find_string(validated.params.get("protocolVersion")) or "")
            members = {"protocolVersion": self.agreed, "capabilities": CAPABILITIES, "serverInfo": self._offer.info}
            self._answer(validated, members | self._offer.instruction_members)
        elif validated.method == methods.PING and not _is_modern(validated):
            self._answer(validated, {})
        else:
            self._refuse(request.id, Refusal(METHOD_NOT_FOUND, "Method not found"))

    def _listen(self, validated: ValidatedRequest) -> None:
        """Start a subscription of a modern client to notifications. It ends when it is cancelled or the connection is
        lost.
        """
        if len(self._listens) >= LISTENS_MAX:
            self._refuse(validated.id, Refusal(INVALID_REQUEST, f"at most {LISTENS_MAX} subscriptions/listen at once"))
            return
        wanted = codec.decode_object(validated.params.get("notifications", Raw(b"{}"))) or {}
        honoured = {"toolsListChanged": True} if bytes(wanted.get("toolsListChanged", b"")) == b"true" else {}
        if honoured:
            self._listens[validated.id] = None
        body = {"_meta": {methods.META_SUBSCRIPTION: Raw(validated.id)}, "notifications": honoured}
        self.notify(methods.ACKNOWLEDGED, codec.encode_value(body))

    def _call(self, validated: ValidatedRequest) -> None:
        """Start a tool call. If a parent routed it here, its route must name the segment of this program (MCP-AX
        7.2).
        """
        if (name := codec.find_string(validated.params.get("name"))) is None:
            self._refuse(validated.id, Refusal(INVALID_PARAMS, "params.name must be a string"))
            return
        meta: Mapping[str, Raw] = validated.meta
        routed = route.read_untrusted(validated.params, validated.meta)
        if isinstance(routed, route.Routed):
            beyond = route.check(routed, segment=self._segment, rest=routed.path[-1:])
            followed = beyond or route.follow_name(routed, segment=self._segment, name=name)
            if isinstance(followed, Refusal):
                self._refuse(validated.id, followed)
                return
            # Past our own segment, the cursor points at the tool (MCP-AX 7.2).
            name, meta = followed, {**validated.meta, **route.as_meta(route.advance(routed))}
        elif routed is not None:
            self._refuse(validated.id, routed)
            return
        if (tool := self._offer.tools.get(name)) is None:
            self._refuse(validated.id, Refusal(METHOD_NOT_FOUND, "tool_not_found"))  # MCP-AX 5.2
            return
        if len(self._offer.calls) >= CALLS_MAX:
            self._refuse(validated.id, _BUSY)
            return
        context = Context(self._reporter(validated.meta), meta)
        task = asyncio.get_running_loop().create_task(self._work(validated, tool, context))
        # A thread cannot be interrupted: its call counts until it has ended.
        self._running[validated.id] = task if tool.is_async else None, context
        self._offer.calls.add(task)
        task.add_done_callback(self._offer.calls.discard)

    async def _work(self, validated: ValidatedRequest, tool: ServedTool, context: Context) -> None:
        """Run a tool and send the reply. A failure becomes a result with isError; only the message of ToolFailed is
        sent to the caller.
        """
        version = validated.meta.get(methods.META_VERSION)
        revision = self.agreed if version is None else codec.find_string(version) or methods.MODERN_VERSIONS[0]
        try:
            members = await tool.answer(validated.params.get("arguments", Raw(b"{}")), context, revision=revision)
            # The other half of a message is for what surrounds the result, such as escapes.
            if len(codec.encode_value(members)) > self._offer.max_bytes // 2:
                raise ToolFailed("the result is larger than a message may be; ask for less at a time")
        except asyncio.CancelledError:
            context.cancel()
            return
        except ToolFailed as failed:
            members = failure(str(failed))
        except Exception:
            ref = secrets.token_hex(4)
            log.exception("the tool %s failed (ref %s)", tool.name, ref)
            members = failure(f"the tool failed; its log has the reason (ref {ref})")
        finally:
            if self._running.get(validated.id, (None, None))[1] is context:
                del self._running[validated.id]
        if not context.cancelled:  # a cancelled request gets no answer
            self._answer(validated, members)

    def _reporter(self, meta: Mapping[str, Raw]) -> Callable[[float, float | None, str | None], None] | None:
        """Return a function that reports progress and can be called from any thread. Return None if the caller
        requested no progress.
        """
        token = meta.get("progressToken")
        if token is None or bytes(token)[:1] in b"{[tfn":
            return None
        loop = asyncio.get_running_loop()

        def report(done: float, total: float | None, message: str | None) -> None:
            members = {"progressToken": token, "progress": done, "total": total, "message": message}
            params = codec.encode_value({key: value for key, value in members.items() if value is not None})
            call_in_loop(loop, self.notify, methods.PROGRESS, params)

        return report

    def _answer(self, validated: ValidatedRequest, members: dict[str, Any], *, cached: bool = False) -> None:
        """Send a result in the form of the caller's MCP era. With `cached`, mark a result for a modern client as
        outdated at once.
        """
        if _is_modern(validated):
            members = {"resultType": "complete", **members}
            if cached:
                members |= {"ttlMs": 0, "cacheScope": "private"}
            members["_meta"] = {methods.META_SERVER: self._offer.info}
        if self._open:
            self._send(codec.encode_result(validated.id, codec.encode_value(members)))

    def _refuse(self, message_id: bytes, refusal: Refusal) -> None:
        """Send a JSON-RPC error, unless the connection was lost."""
        if self._open:
            self._send(codec.encode_refusal(message_id, refusal, draft=True))


class LeafUplink(Uplink):
    """The connection of a Subserver to its parents. It asks for a proof of authority at each registration, because a
    signed proof is valid for one parent only.
    """

    def __init__(
        self, register: Register, parents: Sequence[tuple[str, Opener]], offer: ToolOffer, leaf: "Subserver", once: bool
    ) -> None:
        """Create the uplink. `once` means that the aggregator has started this program: no proof is needed, and the
        uplink ends at the first failure.
        """
        super().__init__(register, parents, log, once=once)
        self._offer, self._leaf = offer, leaf

    @property
    def server(self) -> McpServer | None:
        """Return the MCP server of the current registration, or None if the program is not registered."""
        return self._tenant if isinstance(self._tenant, McpServer) else None

    def _register_message(self, parent: int, register: Register) -> Register:
        return register if self._once else msgspec.structs.replace(register, authority_proof=self._leaf._prove(parent))

    def _begin(self, step: JoinedParent, send: Callable[[bytes], bool]) -> McpServer:
        self._leaf.registered.set()
        return McpServer(self._offer, send, step.registered.assigned_segment)


def _read(request: codec.Request) -> ValidatedRequest | Refusal:
    """Validate a request by the rules of its MCP era. A modern request has a version in `_meta`."""
    params = codec.decode_params_untrusted(request.params) if request.params else {}
    if params is None:
        return Refusal(INVALID_PARAMS, "params must be an object, small but for its arguments")
    meta = codec.decode_object(params["_meta"]) if "_meta" in params else {}
    if meta is None:
        return Refusal(INVALID_PARAMS, "params._meta must be an object")
    if methods.META_VERSION in meta or request.method == methods.DISCOVER:
        return validate_request(request, None)
    return ValidatedRequest(request.id, request.method, dict(params), meta)


def cancelled_request(notification: codec.Notification) -> bytes:
    """Return the JSON-RPC id of the request that a notification cancels, or no bytes if it cancels none."""
    if notification.method != methods.CANCELLED or not notification.params:
        return b""
    return bytes((codec.decode_object(notification.params) or {}).get("requestId", b""))


def _is_modern(validated: ValidatedRequest) -> bool:
    return methods.META_VERSION in validated.meta


def is_modern(request: codec.Request) -> bool:
    """Return whether a request that is not validated yet belongs to the modern era of MCP."""
    params = codec.decode_object(request.params) if request.params else None
    meta = codec.decode_object(params["_meta"]) if params is not None and "_meta" in params else None
    return request.method == methods.DISCOVER or (meta is not None and methods.META_VERSION in meta)
