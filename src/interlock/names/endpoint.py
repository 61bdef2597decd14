"""The HTTP endpoint of the registry: /registry for programs, /assignments for the published forms.

An ASGI application. Reading needs a client's credential, or none if `registry.public_read` is set. Documents have an
ETag, so that mirrors fetch only what changed. A change is a statement signed by the controller (application/jose), or a
JSON body from a client that is a principal of the controller. A signed statement may be sent by any client: the
signature decides, and the statement counts once, for this registry and for ten minutes.

Refused credentials and hosts are audited. Other refusals are not, because a client could fill the log with them.
"""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, get_args
from urllib.parse import unquote

import msgspec
from msgspec import Raw
from msgspec.structs import replace
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from interlock.access.tokens import TokenRegistry
from interlock.core.calls.caller import Principal, principal_for
from interlock.core.clock import Clock
from interlock.core.current_plan import CurrentPlan
from interlock.core.recorder import Refusals
from interlock.fronts.connections import address_of, source_of
from interlock.fronts.exchange import Head, HeadInspector
from interlock.fronts.public import PROXY_HEADERS
from interlock.names.actions import outcome_document
from interlock.names.api import EntryAction
from interlock.names.protocol.publication import COLUMNS, GROUP, MEDIA_TYPES, published_entry, published_schema, row_of
from interlock.names.protocol.registry import NameRequest
from interlock.names.protocol.statements import CHARS_MAX, BadStatement, read_statement_untrusted
from interlock.names.registry_parts import NameParts
from interlock.names.requests import found_request
from interlock.names.state import UNNAMED, Actor
from interlock.net.protocol.address_scope import is_loopback
from interlock.store.ports import StoreError
from interlock.wire.refusal import HttpRefusal, NotFound, Refused

if TYPE_CHECKING:
    from interlock.access.oauth import AccessTokens

BODY_BYTES_MAX: Final = CHARS_MAX
_FIELDS: Final = tuple(field for _, field in COLUMNS)
_NAME_ACTIONS: Final = frozenset(("amend", *get_args(EntryAction)))


@dataclass(eq=False)
class NamesEndpoint:
    """The HTTP endpoint of the registry, as an ASGI application."""

    current: CurrentPlan
    tokens: TokenRegistry
    refusals: Refusals
    bearers: "AccessTokens | None"
    clock: Clock
    parts: NameParts
    registry_id: str  # the audience that signed statements for this registry must name

    def __post_init__(self) -> None:
        self._inspector = HeadInspector(self.current.plan)
        self._state = self.parts.state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except NotFound as missing:
            message = f"there is no {missing.what} {missing.name[:100]}"
            response = self._refuse(request, HttpRefusal("not_found", message))
        except Refused as refused:
            response = self._refuse(request, HttpRefusal(refused.code, refused.message), refused.details)
        except StoreError:
            response = self._refuse(request, HttpRefusal("unavailable", "nothing was done; try again"))
        except ClientDisconnect:
            return
        if request.method == "HEAD":
            response.body = b""
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if self._state.trouble is not None:
            raise Refused("unavailable", "the registry cannot be used at the moment")
        is_read = request.method in ("GET", "HEAD")
        if not is_read and request.method != "POST":
            return self._refuse(request, HttpRefusal("method_not_allowed", "use GET or POST"))
        client = await self._admit(request, is_read=is_read)
        if isinstance(client, HttpRefusal):
            return self._refuse(request, client)
        parts = [unquote(part) for part in request["raw_path"].decode("latin-1").partition("?")[0].split("/")[1:]]
        return await (self._read(request, parts) if is_read else self._act(request, client, parts))

    # Reading

    async def _read(self, request: Request, parts: list[str]) -> Response:
        """Answer GET and HEAD. The response has an ETag, so that clients need not fetch an unchanged document again."""
        await self._state.refresh()
        body, media_type = self._document(parts)
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        shared = "public" if self.current.plan.registry.public_read else "private"
        headers = {"etag": tag, "cache-control": f"{shared}, no-cache"}
        cached_tags = request.headers.get("if-none-match", "")[:10_000].split(",")
        if any(cached.strip().removeprefix("W/") in (tag, "*") for cached in cached_tags):
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers | {"content-type": media_type, "x-content-type-options": "nosniff"})

    def _document(self, parts: list[str]) -> tuple[bytes, str]:
        """Return the document at a path, and its media type. Raise NotFound if the path has none."""
        registry, today = self._state.registry, self._state.today
        document: object
        match parts:
            case ["assignments", folder, file] if folder == GROUP:
                if file == _SCHEMA_FILE:
                    return published_schema(), "application/schema+json"
                form = _FILES.get(file)
                if form is None:
                    raise NotFound("document", file)
                return self.parts.publisher.published(form), MEDIA_TYPES[form]
            case ["registry", "names"]:
                names = [dict(zip(_FIELDS, row_of(entry), strict=True)) for entry in registry.in_order()]
                document = {"registry": self.registry_id, "updated": registry.updated, "names": names}
            case ["registry", "names", name, *more] if more in ([], ["revisions"]):
                entry = registry.entries.get(name)
                if entry is None:
                    raise NotFound("name", name)
                document = {"revisions": entry.revisions} if more else published_entry(entry, today)
            case ["registry", "prefixes"]:
                held = [registry.holders[prefix] for prefix in sorted(registry.holders)]
                document = {"held": "by procedure: the registry proves no ownership of a prefix", "prefixes": held}
            case ["registry", "requests", id]:
                document = replace(found_request(registry, id), proposal=None)
            case _:
                raise NotFound("path", "/".join(parts))
        return msgspec.json.encode(document), "application/json"

    # Changing

    async def _act(self, request: Request, client: Principal, parts: list[str]) -> Response:
        """Answer POST: perform an action for the controller that signed the statement in the body, or for the client
        that sent it.
        """
        body = bytearray()
        async for part in request.stream():
            body += part if len(body) <= BODY_BYTES_MAX else b""
        if len(body) > BODY_BYTES_MAX:
            return self._refuse(request, HttpRefusal("body_too_large", f"at most {BODY_BYTES_MAX} bytes"))
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        actor = Actor(principal=client.name)
        if kind == "application/jose":
            text = body.decode("latin-1").strip()
            try:
                statement = read_statement_untrusted(text, registry=self.registry_id, now=self.clock.wall())
            except BadStatement as bad:
                raise Refused(bad.code, str(bad)) from None
            actor = replace(actor, statement=statement)
        elif kind != "application/json":
            message = "send application/jose, or application/json"
            return self._refuse(request, HttpRefusal("unsupported_media_type", message))
        elif client.name in UNNAMED or client.stranger:
            raise Refused("statement_required", "a change is signed by the controller; send application/jose")
        action, subject = self._action(parts, actor, bytes(body))
        result = await self.parts.actions.act(actor, action, subject, Raw(bytes(body)))
        waits = isinstance(result, NameRequest) and result.state.value == "in_review"
        document = msgspec.json.encode(outcome_document(result))
        return Response(document, 202 if waits else 200, media_type="application/json")

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

    async def _admit(self, request: Request, *, is_read: bool) -> Principal | HttpRefusal:
        """Return the client that sends a request, or the refusal. Everybody may read if `registry.public_read`
        is set.
        """
        path = request["path"].encode()
        head = Head(request.method.encode(), path, list(request["headers"]), keep=False, chunks=True)
        stranger = self._inspector.stranger(head)
        if stranger is not None:
            return stranger
        if is_read and self.current.plan.registry.public_read and head.credential is None:
            return principal_for("anonymous", None, ())
        peer = address_of(request.client.host if request.client else None)
        principal: Principal | HttpRefusal | None
        if head.credential is None:
            # A program of this machine is the local user, if it may connect without a token.
            is_local = peer is not None and is_loopback(peer) and PROXY_HEADERS.isdisjoint(head.headers)
            is_welcome = is_local and self.current.plan.auth.anonymous != "never"
            principal = self.tokens.as_it_would_be("local") if is_welcome else None
        else:
            principal = self.tokens.principal(head.credential)
            if principal is None and self.bearers is not None:
                principal = await self.bearers.admit(head.credential, source_of(peer))
        if not is_read and isinstance(principal, Principal) and principal.scope == "read":
            return HttpRefusal("scope_denied", "this credential may only read")
        return principal or _UNAUTHORISED

    def _refuse(self, request: Request, refusal: HttpRefusal, details: dict[str, Any] | None = None) -> Response:
        # Refused credentials and hosts are recorded, because they may be an attack; other refusals are not.
        if refusal.status in (401, 403, 421):
            peer = request.client.host if request.client else None
            self.refusals.note(f"peer:{peer}", "registry", request.method[:20], refusal.code)
        body = {"error": refusal.code, "message": refusal.message, "details": details or {}}
        lines = [line.partition(": ") for line in refusal.headers.decode("latin-1").split("\r\n")]
        headers = {"cache-control": "no-store"} | {name: value for name, colon, value in lines if colon}
        return Response(msgspec.json.encode(body), refusal.status, headers, "application/json")


class _NamedBody(msgspec.Struct, frozen=True):
    """A request body that contains a surface name. Only this member is decoded."""

    surface_name: str


_FILES: Final = {f"{name}.{form}": form for name in (GROUP, f"{GROUP}-1") for form in MEDIA_TYPES}
_SCHEMA_FILE: Final = f"{GROUP}.schema.json"
_UNAUTHORISED: Final = HttpRefusal(
    "unauthorised",
    "a client's token is needed; interlock access token --for client --name NAME makes one",
    headers=b"www-authenticate: Bearer\r\n",
)
