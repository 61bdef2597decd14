"""The operator door: JSON over HTTP in front of `Operations`, for the operator's TCP listener and for admin.sock.

Comes in: a request; with `authenticate`, only one that it names a principal for. Goes out: what the operation
answered, or `{error, message, details}` with a fitting status. No path, class name or trace leaves; an unexpected
failure leaves an id that the log repeats.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar, get_args

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from interlock.protocol.oauth.client import CALLBACK_PATH
from interlock.store.ports import StoreError
from interlock.store.secrets import SealMissing
from interlock.store.tokens import token_name_fault
from interlock.surface.admin.callback import callback_page
from interlock.surface.admin.operations import (
    JsonObject,
    NotFound,
    Operations,
    Refused,
    SecretKind,
    TokenDoor,
    TokenScope,
)

Shape = TypeVar("Shape")
Authenticate = Callable[[Request], Awaitable[str | None]]
Endpoint = Callable[[Request], Awaitable[Response]]

BODY_BYTES_MAX = 64 * 1024  # a secret may be a key; a token's request stays below 1 KiB
LOG_LINES_DEFAULT = 200
LOG_LINES_MAX = 10_000
AUDIT_RECORDS_DEFAULT = 100
AUDIT_RECORDS_MAX = 1_000  # one page; a reader goes on with `after`
ON_THE_MACHINE = "operator:local"
SEQUENCE_MAX = 2**63 - 1  # what a store can count to

_log = logging.getLogger("interlock.operator")


class IssueToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    door: TokenDoor = msgspec.field(name="for")
    scope: TokenScope | None = None
    days: Annotated[int, msgspec.Meta(ge=1, le=3650)] | None = None


class SetSecret(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=80)]
    value: Annotated[str, msgspec.Meta(min_length=1)]


class _Rejected(Exception):
    """A request that no operation sees."""

    def __init__(self, status: int, error: str, message: str, details: JsonObject | None = None) -> None:
        super().__init__(message)
        self.status, self.error, self.message, self.details = status, error, message, details or {}


def operator_app(operations: Operations, *, authenticate: Authenticate | None) -> Starlette:
    """`authenticate` is None only where the listener itself knows who calls: admin.sock, by peer uid."""

    def get(path: str, answer: Callable[[Request], Any]) -> Route:
        async def endpoint(request: Request) -> Response:
            _refuse_unknown_parameters(request, ())
            return _json(answer(request))

        return Route(path, endpoint, methods=["GET"])

    async def link_logs(request: Request) -> Response:
        _refuse_unknown_parameters(request, ("lines",))
        lines = _integer(request, "lines", default=LOG_LINES_DEFAULT, minimum=1, maximum=LOG_LINES_MAX)
        return _json(operations.link_logs(request.path_params["segment"], lines))

    async def restart_link(request: Request) -> Response:
        return _json(await operations.restart_link(request.path_params["segment"]))

    async def release_link(request: Request) -> Response:
        return _json(await operations.release_link(request.path_params["segment"]))

    async def authorize_link(request: Request) -> Response:
        return _json(await operations.authorize_link(request.path_params["segment"]))

    async def oauth_callback(request: Request) -> Response:
        if request.method == "HEAD":  # a look must not use the state up
            raise HTTPException(405, headers={"Allow": "GET"})
        return callback_page(await operations.oauth_returned(request.query_params.multi_items()))

    async def secrets_kept(request: Request) -> Response:
        _refuse_unknown_parameters(request, ())
        return _json(await operations.secrets())

    async def set_secret(request: Request) -> Response:
        wanted = await _body(request, SetSecret)
        return _json(await operations.set_secret(wanted.name, wanted.value), status=201)

    async def remove_secret(request: Request) -> Response:
        kind = next((known for known in get_args(SecretKind) if known == request.path_params["kind"]), None)
        if kind is None:
            raise HTTPException(404)
        return _json(await operations.remove_secret(kind, request.path_params["name"]))

    async def audit(request: Request) -> Response:
        _refuse_unknown_parameters(request, ("after", "limit"))
        after = _integer(request, "after", default=0, minimum=0, maximum=SEQUENCE_MAX)
        limit = _integer(request, "limit", default=AUDIT_RECORDS_DEFAULT, minimum=1, maximum=AUDIT_RECORDS_MAX)
        return _json(await operations.audit(after, limit))

    async def tokens(request: Request) -> Response:
        _refuse_unknown_parameters(request, ())
        return _json(await operations.tokens())

    async def issue_token(request: Request) -> Response:
        wanted = await _body(request, IssueToken)
        if (fault := token_name_fault(wanted.name)) is not None:
            raise _Rejected(400, "invalid_body", fault, {"member": "name"})
        return _json(await operations.issue_token(wanted.name, wanted.door, wanted.scope, wanted.days), status=201)

    async def revoke_token(request: Request) -> Response:
        return _json(await operations.revoke_token(request.path_params["ref"]))

    async def revoke_key(request: Request) -> Response:
        return _json(await operations.revoke_key(request.path_params["ref"], _principal(request)))

    routes = [
        get("/admin/status", lambda _: operations.status()),
        get("/admin/links", lambda _: operations.links()),
        get("/admin/links/{segment}", lambda request: operations.link(request.path_params["segment"])),
        Route("/admin/links/{segment}/logs", link_logs, methods=["GET"]),
        Route("/admin/links/{segment}/restart", restart_link, methods=["POST"]),
        Route("/admin/links/{segment}/release", release_link, methods=["POST"]),
        Route("/admin/links/{segment}/authorize", authorize_link, methods=["POST"]),
        Route(CALLBACK_PATH, oauth_callback, methods=["GET"]),
        Route("/admin/secrets", _by_method({"GET": secrets_kept, "POST": set_secret}), methods=["GET", "POST"]),
        Route("/admin/secrets/{kind}/{name:path}", remove_secret, methods=["DELETE"]),
        get("/admin/tools", lambda _: operations.tools()),
        get("/admin/tools/routes", lambda _: operations.routes()),
        get("/admin/tools/{name}", lambda request: operations.tool(request.path_params["name"])),
        Route("/admin/audit", audit, methods=["GET"]),
        get("/admin/config", lambda _: operations.config()),
        Route("/admin/tokens", _by_method({"GET": tokens, "POST": issue_token}), methods=["GET", "POST"]),
        Route("/admin/tokens/{ref}", revoke_token, methods=["DELETE"]),
        Route("/admin/keys/{ref}", revoke_key, methods=["DELETE"]),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(_Door, authenticate=authenticate)],
        exception_handlers={HTTPException: _on_http_exception},
    )
    app.router.redirect_slashes = False
    return app


class _Door:
    """Authenticates before anything is routed, and turns every failure behind it into the door's one error form."""

    def __init__(self, app: ASGIApp, authenticate: Authenticate | None) -> None:
        self._app = app
        self._authenticate = authenticate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            # A browser that comes back from an authorization server has no token; its state is checked instead.
            if self._authenticate is not None and scope["path"] != CALLBACK_PATH:
                principal = await self._authenticate(request)
                if principal is None:
                    raise _Rejected(
                        401,
                        "unauthorised",
                        "this door needs an operator's token: Authorization: Bearer ilo_...; "
                        "interlock access token --for operator makes one",
                    )
                scope.setdefault("state", {})["principal"] = principal
            await self._app(scope, receive, send)
        except ClientDisconnect:
            return
        except Exception as error:
            await _refusal(error)(scope, receive, send)


async def _on_http_exception(_: Request, error: Exception) -> Response:
    return _refusal(error)


def _refusal(error: Exception) -> Response:
    match error:
        case _Rejected(status=401):
            return _error(401, error.error, error.message, headers={"WWW-Authenticate": 'Bearer realm="operator"'})
        case _Rejected():
            return _error(error.status, error.error, error.message, error.details)
        case NotFound():
            details = {error.what: error.name, "nearest": error.nearest}
            if error.known:
                details["known"] = error.known
            return _error(404, "not_found", f"there is no {error.what} {_quoted(error.name)}", details)
        case Refused():
            return _error(409, error.error, error.message, error.details)
        case SealMissing():
            return _error(503, "extra_missing", str(error))
        case StoreError():
            return _error(503, "unavailable", "the store cannot answer; nothing was done")
        case HTTPException(status_code=405):
            return _error(405, "method_not_allowed", "this path does not take that method", headers=error.headers)
        case HTTPException(status_code=404):
            return _error(404, "unknown_path", "the operator door has no such path")
        case HTTPException():
            return _error(error.status_code, "bad_request", "the request cannot be read", headers=error.headers)
        case _:
            ref = secrets.token_hex(4)
            _log.error("operator request failed, ref %s", ref, exc_info=error)
            return _error(500, "internal", f"internal error; the node's log has it under {ref}", {"ref": ref})


def _principal(request: Request) -> str:
    """At admin.sock it is whoever may use the socket."""
    return getattr(request.state, "principal", ON_THE_MACHINE)


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _error(
    status: int, error: str, message: str, details: JsonObject | None = None, headers: Any | None = None
) -> Response:
    body = msgspec.json.encode({"error": error, "message": message, "details": details or {}})
    return Response(body, status, headers=headers, media_type="application/json")


def _quoted(name: str) -> str:
    shown = name if len(name) <= 128 else name[:127] + "…"
    return msgspec.json.encode(shown).decode()


def _by_method(endpoints: dict[str, Endpoint]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return endpoint


def _refuse_unknown_parameters(request: Request, known: tuple[str, ...]) -> None:
    for name in request.query_params:
        if name not in known:
            hint = f"it takes {', '.join(known)}" if known else "it takes none"
            message = f"unknown query parameter {_quoted(name)}; {hint}"
            raise _Rejected(400, "invalid_parameter", message, {"parameter": name})


def _integer(request: Request, name: str, *, default: int, minimum: int, maximum: int) -> int:
    given = request.query_params.getlist(name)
    if not given:
        return default
    text = given[-1]
    # isdecimal alone also takes other scripts' digits; twenty digits bound what int() is asked to do.
    if len(given) == 1 and text.isascii() and text.isdecimal() and len(text) <= 20 and minimum <= int(text) <= maximum:
        return int(text)
    message = f"{name} must be one whole number from {minimum} to {maximum}"
    raise _Rejected(400, "invalid_parameter", message, {"parameter": name})


async def _body(request: Request, shape: type[Shape]) -> Shape:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise _Rejected(415, "unsupported_media_type", "send JSON with Content-Type: application/json")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise _Rejected(
                413, "body_too_large", f"the body is larger than {BODY_BYTES_MAX} bytes", {"limit": BODY_BYTES_MAX}
            )
    try:
        return msgspec.json.decode(bytes(body), type=shape)
    except msgspec.ValidationError as error:
        raise _Rejected(400, "invalid_body", str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _Rejected(400, "invalid_json", "the body is not JSON") from None
