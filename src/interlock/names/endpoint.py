"""The HTTP endpoint of the registry: /registry for programs, /assignments for the published forms.

An ASGI application. Reading needs a client's credential, or none if `registry.public_read` is set. Documents have an
ETag, so that mirrors fetch only what changed. A change is a statement signed by the controller (application/jose), or a
JSON body from a client that is a principal of the controller. A signed statement may be sent by any client: the
signature decides, and the statement counts once, for this registry and for ten minutes.

Refused credentials and hosts are audited. Other refusals are not, because a client could fill the log with them.
"""

import hashlib
from collections.abc import Callable, Coroutine, MutableMapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from interlock.access.tokens import TokenRegistry
from interlock.core.calls.caller import Principal, principal_for
from interlock.core.clock import Clock
from interlock.core.current_plan import CurrentPlan
from interlock.core.recorder import Refusals
from interlock.fronts.connections import address_of, source_of
from interlock.fronts.exchange import Head
from interlock.fronts.public import PROXY_HEADERS
from interlock.fronts.request_head import HeadInspector
from interlock.names.actions import outcome_document
from interlock.names.protocol.publication import COLUMNS, GROUP, MEDIA_TYPES, published_entry, published_schema, row_of
from interlock.names.protocol.registry import NameRequest
from interlock.names.protocol.statements import CHARS_MAX, BadStatement, read_statement_untrusted
from interlock.names.registry_parts import NameParts
from interlock.names.state import UNNAMED, Actor
from interlock.net.protocol.address_scope import is_loopback
from interlock.store.ports import StoreError
from interlock.wire.refusal import HttpRefusal, NotFound, Refused

if TYPE_CHECKING:
    from interlock.access.oauth import AccessTokens

BODY_BYTES_MAX: Final = CHARS_MAX
_FIELDS: Final = tuple(field for _, field in COLUMNS)
_NAME_ACTIONS: Final = frozenset(
    ["amend", "deprecate", "reinstate", "withdraw", "transfer", "confirm-public", "declare", "end"]
)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Coroutine[Any, Any, MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Coroutine[Any, Any, None]]


class Document(msgspec.Struct, frozen=True):
    """A document to be sent to a client, with its media type."""

    body: bytes
    media_type: str = "application/json"


class NamesEndpoint:
    """The HTTP endpoint of the registry, as an ASGI application."""

    def __init__(
        self,
        current: CurrentPlan,
        tokens: TokenRegistry,
        refusals: Refusals,
        bearers: "AccessTokens | None",
        clock: Clock,
        parts: NameParts,
        registry_id: str,
    ) -> None:
        """Create the endpoint. `registry_id` is the audience that signed statements for this registry must name."""
        self._current = current
        self._tokens = tokens
        self._refusals = refusals
        self._bearers = bearers
        self._clock = clock
        self._state, self._actions, self._publisher = parts.state, parts.actions, parts.publisher
        self._id = registry_id
        self._inspector = HeadInspector(current.plan)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = [unquote(part) for part in scope["raw_path"].decode("latin-1").partition("?")[0].split("/")[1:]]
        try:
            if self._state.trouble is not None:
                raise Refused("unavailable", "the registry cannot be used at the moment")
            if scope["method"] in ("GET", "HEAD"):
                await self._answer_reading(scope, send, parts)
            elif scope["method"] == "POST":
                await self._answer_action(scope, receive, send, parts)
            else:
                await self._refuse(scope, send, HttpRefusal("method_not_allowed", "use GET or POST"))
        except NotFound as missing:
            message = f"there is no {missing.what} {missing.name[:100]}"
            await self._refuse(scope, send, HttpRefusal("not_found", message))
        except Refused as refused:
            refusal = HttpRefusal(refused.code, refused.message)
            await self._refuse(scope, send, refusal, refused.details)
        except StoreError:
            await self._refuse(scope, send, HttpRefusal("unavailable", "nothing was done; try again"))

    # Reading

    async def _answer_reading(self, scope: Scope, send: Send, parts: list[str]) -> None:
        """Answer GET and HEAD. The response has an ETag, so that clients need not fetch an unchanged document again."""
        who = await self._admit(scope, is_read=True)
        if isinstance(who, HttpRefusal):
            await self._refuse(scope, send, who)
            return
        await self._state.refresh()
        document = self._document(parts)
        tag = f'"{hashlib.sha256(document.body).hexdigest()[:32]}"'.encode()
        cached_tags = next((value for name, value in scope["headers"] if name == b"if-none-match"), b"")
        shared = b"public" if self._current.plan.registry.public_read else b"private"
        headers = [(b"etag", tag), (b"cache-control", shared + b", no-cache")]
        if any(cached.strip().removeprefix(b"W/") in (tag, b"*") for cached in cached_tags[:10_000].split(b",")):
            await _say(send, 304, b"", headers)
            return
        headers += [(b"content-type", document.media_type.encode()), (b"x-content-type-options", b"nosniff")]
        await _say(send, 200, document.body, headers, is_head=scope["method"] == "HEAD")

    def _document(self, parts: list[str]) -> Document:
        """Return the document at a path. Raise NotFound if the path has none."""
        registry, today = self._state.registry, self._state.today
        match parts:
            case ["assignments", folder, file] if folder == GROUP:
                if file == _SCHEMA_FILE:
                    return Document(published_schema(), "application/schema+json")
                form = _FILES.get(file)
                if form is None:
                    raise NotFound("document", file)
                return Document(self._publisher.published(form), MEDIA_TYPES[form])
            case ["registry", "names"]:
                names = [dict(zip(_FIELDS, row_of(entry), strict=True)) for entry in registry.in_order()]
                return _json({"registry": self._id, "updated": registry.updated, "names": names})
            case ["registry", "names", name, *more] if more in ([], ["revisions"]):
                entry = registry.entry(name)
                if entry is None:
                    raise NotFound("name", name)
                return _json({"revisions": entry.revisions} if more else published_entry(entry, today))
            case ["registry", "prefixes"]:
                held = [registry.holders[prefix] for prefix in sorted(registry.holders)]
                return _json({"held": "by procedure: the registry proves no ownership of a prefix", "prefixes": held})
            case ["registry", "requests", id]:
                request = registry.requests.get(id)
                if request is None:
                    raise NotFound("request", id)
                return _json(replace(request, proposal=None))
            case _:
                raise NotFound("path", "/".join(parts))

    # Changing

    async def _answer_action(self, scope: Scope, receive: Receive, send: Send, parts: list[str]) -> None:
        """Answer POST: perform an action for the controller that signed the statement, or for the client that
        sent it.
        """
        who = await self._admit(scope, is_read=False)
        if isinstance(who, HttpRefusal):
            await self._refuse(scope, send, who)
            return
        body = await _read(receive, BODY_BYTES_MAX)
        if body is None:
            await self._refuse(scope, send, HttpRefusal("body_too_large", f"at most {BODY_BYTES_MAX} bytes"))
            return
        kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
        kind = kind.partition(b";")[0].strip().lower()
        actor = Actor(principal=who.name)
        if kind == b"application/jose":
            actor = replace(actor, statement=self._statement(body))
        elif kind != b"application/json":
            refusal = HttpRefusal("unsupported_media_type", "send application/jose, or application/json")
            await self._refuse(scope, send, refusal)
            return
        elif who.name in UNNAMED or who.stranger:
            raise Refused("statement_required", "a change is signed by the controller; send application/jose")
        action, subject = self._action(parts, actor, body)
        result = await self._actions.act(actor, action, subject, Raw(body))
        waits = isinstance(result, NameRequest) and result.state.value == "in_review"
        await _say(send, 202 if waits else 200, msgspec.json.encode(outcome_document(result)), [_JSON])

    def _statement(self, body: bytes) -> Any:
        try:
            return read_statement_untrusted(body.decode("latin-1").strip(), registry=self._id, now=self._clock.wall())
        except BadStatement as bad:
            raise Refused(bad.code, str(bad)) from None

    def _action(self, parts: list[str], actor: Actor, body: bytes) -> tuple[str, str]:
        """Return the action that a path names, and the name, prefix or request that the action is about."""
        match parts:
            case ["registry", "requests"]:
                raw = actor.statement.body if actor.statement is not None else body
                try:
                    return "request", msgspec.json.decode(raw, type=_NamedBody).surface_name
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    raise Refused("invalid_body", str(error)) from None
            case ["registry", "requests", id, "cancel"]:
                return "cancel", id
            case ["registry", "names", name, action] if action in _NAME_ACTIONS:
                return action, name
            case ["registry", "prefixes", prefix, ("consent" | "dispute") as action]:
                return action, prefix
            case _:
                raise NotFound("path", "/".join(parts))

    # Who asks

    async def _admit(self, scope: Scope, *, is_read: bool) -> Principal | HttpRefusal:
        """Return the client that sends a request, or the refusal. Everybody may read if `registry.public_read`
        is set.
        """
        head = Head(scope["method"].encode(), scope["path"].encode(), list(scope["headers"]), False, True)
        stranger = self._inspector.stranger(head)
        if stranger is not None:
            return stranger
        principal = await self._client(scope, head)
        if is_read:
            is_open = self._current.plan.registry.public_read and head.credential is None
            return principal_for("anonymous", None, ()) if is_open else principal
        if isinstance(principal, Principal) and principal.scope == "read":
            return HttpRefusal("scope_denied", "this credential may only read")
        return principal

    async def _client(self, scope: Scope, head: Head) -> Principal | HttpRefusal:
        """Return the client that the token identifies, or the local user. Return the refusal if there is neither."""
        peer = address_of(scope["client"][0] if scope["client"] else None)
        credential = head.credential
        if credential is None:
            is_local = peer is not None and is_loopback(peer) and PROXY_HEADERS.isdisjoint(head.headers)
            is_welcome = is_local and self._current.plan.auth.anonymous != "never"
            return self._tokens.as_it_would_be("local") if is_welcome else _UNAUTHORISED
        principal = self._tokens.principal(credential)
        if principal is not None:
            return principal
        if self._bearers is None:
            return _UNAUTHORISED
        return await self._bearers.admit(credential, source_of(peer))

    async def _refuse(
        self, scope: Scope, send: Send, refusal: HttpRefusal, details: dict[str, Any] | None = None
    ) -> None:
        # Refused credentials and hosts are recorded, because they may be an attack; other refusals are not.
        if refusal.status in (401, 403, 421):
            peer = scope["client"][0] if scope["client"] else None
            self._refusals.note(f"peer:{peer}", "registry", str(scope["method"])[:20], refusal.code)
        body = {"error": refusal.code, "message": refusal.message, "details": details or {}}
        headers = [_JSON, (b"cache-control", b"no-store")]
        for line in refusal.headers.split(b"\r\n"):
            name, colon, value = line.partition(b": ")
            if colon:
                headers.append((name, value))
        await _say(send, refusal.status, msgspec.json.encode(body), headers)


class _NamedBody(msgspec.Struct, frozen=True):
    """The member of a request body that contains the name."""

    surface_name: str


_FILES: Final = {f"{name}.{form}": form for name in (GROUP, f"{GROUP}-1") for form in MEDIA_TYPES}
_SCHEMA_FILE: Final = f"{GROUP}.schema.json"
_JSON: Final = (b"content-type", b"application/json")
_UNAUTHORISED: Final = HttpRefusal(
    "unauthorised",
    "a client's token is needed; interlock access token --for client --name NAME makes one",
    headers=b"www-authenticate: Bearer\r\n",
)


def _json(value: object) -> Document:
    return Document(msgspec.json.encode(value))


async def _read(receive: Receive, most: int) -> bytes | None:
    """Read a request body, or return None if it is longer than `most` bytes."""
    body = bytearray()
    is_short = True
    while True:
        message = await receive()
        part = message.get("body", b"")
        is_short = is_short and len(body) + len(part) <= most
        if is_short:
            body += part
        if not message.get("more_body", False):
            return bytes(body) if is_short else None


async def _say(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]], *, is_head: bool = False
) -> None:
    if status != 304:
        headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if is_head else body})
