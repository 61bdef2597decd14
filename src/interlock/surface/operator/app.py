"""The operator door: JSON over HTTP in front of `Operations`, for the operator's TCP listener and for admin.sock.

Comes in: a request; with `authenticate`, only one that it names a principal for. Goes out: what the operation
answered, or `{error, message, details}` with a fitting status. No path, class name or trace leaves; an unexpected
failure leaves an id that the log repeats.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, get_args

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from interlock.protocol.oauth.client import CALLBACK_PATH
from interlock.runtime.access.tokens import credential_of
from interlock.runtime.base.operator_errors import NotFound, Refused
from interlock.runtime.operations.operations import Operations
from interlock.store.ports import StoreError
from interlock.store.sqlite.secrets import Kind
from interlock.store.tokens import Scope as TokenScope
from interlock.store.tokens import maybe_door, token_name_fault
from interlock.surface.operator.approvals import ADMIN, PATH, SOCKET_ROLES, approval_routes
from interlock.surface.operator.drivers import driver_routes
from interlock.surface.operator.oauth_callback import FOREIGN, callback_page, is_foreign
from interlock.surface.operator.passkeys import is_invitation, passkey_routes
from interlock.surface.operator.requests import (
    Rejected,
    error_answer,
    integer,
    json_answer,
    json_body,
    quoted,
    refuse_unknown_parameters,
    wants_page,
)

TokenDoor = Literal["client", "subserver", "operator"]  # a room has no tokens of its own yet
Authenticate = Callable[[Request], Awaitable[str | None]]
Endpoint = Callable[[Request], Awaitable[Response]]

LOG_LINES_DEFAULT = 200
LOG_LINES_MAX = 10_000
AUDIT_RECORDS_DEFAULT = 100
AUDIT_RECORDS_MAX = 1_000  # one page; a reader goes on with `after`
SEQUENCE_MAX = 2**63 - 1  # what a store can count to

# A browser asks its person; the password is an operator's token, the name does not matter.
_BASIC = 'Basic realm="operator token as the password", charset="UTF-8"'

_log = logging.getLogger("interlock.operator")


class IssueToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    door: TokenDoor = msgspec.field(name="for")
    scope: TokenScope | None = None
    days: Annotated[int, msgspec.Meta(ge=1, le=3650)] | None = None


class SetSecret(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=80)]
    value: Annotated[str, msgspec.Meta(min_length=1)]
    unless_kept: bool = False


def operator_app(operations: Operations, *, authenticate: Authenticate | None) -> Starlette:
    """`authenticate` is None only where the listener itself knows who calls: admin.sock, by peer uid."""

    def get(path: str, answer: Callable[[Request], Any]) -> Route:
        async def endpoint(request: Request) -> Response:
            refuse_unknown_parameters(request, ())
            return json_answer(answer(request))

        return Route(path, endpoint, methods=["GET"])

    async def link_logs(request: Request) -> Response:
        refuse_unknown_parameters(request, ("lines",))
        lines = integer(request, "lines", default=LOG_LINES_DEFAULT, minimum=1, maximum=LOG_LINES_MAX)
        return json_answer(operations.links.logs(request.path_params["segment"], lines))

    async def restart_link(request: Request) -> Response:
        return json_answer(await operations.links.restart(request.path_params["segment"]))

    async def release_link(request: Request) -> Response:
        return json_answer(await operations.links.release(request.path_params["segment"]))

    async def authorize_link(request: Request) -> Response:
        return json_answer(await operations.consents.authorize(request.path_params["segment"]))

    async def oauth_callback(request: Request) -> Response:
        if request.method == "HEAD":  # a look must not use the state up
            raise HTTPException(405, headers={"Allow": "GET"})
        if is_foreign(request.headers):
            return callback_page(FOREIGN)
        return callback_page(await operations.consents.take_return(request.query_params.multi_items()))

    async def classify_tool(request: Request) -> Response:
        return json_answer(await operations.tools.classify(request.path_params["name"]), status=201)

    async def secrets_kept(request: Request) -> Response:
        refuse_unknown_parameters(request, ())
        return json_answer(await operations.secrets.list_all())

    async def set_secret(request: Request) -> Response:
        wanted = await json_body(request, SetSecret)
        if wanted.unless_kept:
            return json_answer(await operations.secrets.keep(wanted.name, wanted.value), status=201)
        return json_answer(await operations.secrets.set(wanted.name, wanted.value), status=201)

    async def remove_secret(request: Request) -> Response:
        kind = next((known for known in get_args(Kind) if known == request.path_params["kind"]), None)
        if kind is None:
            raise HTTPException(404)
        return json_answer(await operations.secrets.remove(kind, request.path_params["name"]))

    async def tool(request: Request) -> Response:
        refuse_unknown_parameters(request, ("as",))
        caller = request.query_params.get("as", "local")
        return json_answer(operations.tools.get(request.path_params["name"], caller))

    async def audit(request: Request) -> Response:
        refuse_unknown_parameters(request, ("after", "limit"))
        after = integer(request, "after", default=0, minimum=0, maximum=SEQUENCE_MAX)
        limit = integer(request, "limit", default=AUDIT_RECORDS_DEFAULT, minimum=1, maximum=AUDIT_RECORDS_MAX)
        return json_answer(await operations.audit.page(after, limit))

    async def tokens(request: Request) -> Response:
        refuse_unknown_parameters(request, ())
        return json_answer(await operations.tokens.list_all())

    async def issue_token(request: Request) -> Response:
        wanted = await json_body(request, IssueToken)
        if (fault := token_name_fault(wanted.name)) is not None:
            raise Rejected(400, "invalid_body", fault, {"member": "name"})
        return json_answer(
            await operations.tokens.issue(wanted.name, wanted.door, wanted.scope, wanted.days), status=201
        )

    async def revoke_token(request: Request) -> Response:
        return json_answer(await operations.tokens.revoke(request.path_params["ref"]))

    async def revoke_key(request: Request) -> Response:
        by = request.scope.get("state", {}).get("principal", "local")
        return json_answer(await operations.keys.revoke(request.path_params["ref"], by))

    routes = [
        get("/admin/status", lambda _: operations.node.status()),
        get("/admin/links", lambda _: operations.links.list_all()),
        get("/admin/links/{segment}", lambda request: operations.links.get(request.path_params["segment"])),
        Route("/admin/links/{segment}/logs", link_logs, methods=["GET"]),
        Route("/admin/links/{segment}/restart", restart_link, methods=["POST"]),
        Route("/admin/links/{segment}/release", release_link, methods=["POST"]),
        Route("/admin/links/{segment}/authorize", authorize_link, methods=["POST"]),
        Route(CALLBACK_PATH, oauth_callback, methods=["GET"]),
        Route("/admin/secrets", _by_method({"GET": secrets_kept, "POST": set_secret}), methods=["GET", "POST"]),
        Route("/admin/secrets/{kind}/{name:path}", remove_secret, methods=["DELETE"]),
        get("/admin/tools", lambda _: operations.tools.list_all()),
        get("/admin/tools/routes", lambda _: operations.tools.routes()),
        get("/admin/skills", lambda _: operations.tools.skills()),
        Route("/admin/tools/{name}", tool, methods=["GET"]),
        Route("/admin/tools/{name}/classify", classify_tool, methods=["POST"]),
        Route("/admin/audit", audit, methods=["GET"]),
        get("/admin/config", lambda _: operations.node.configuration()),
        Route("/admin/tokens", _by_method({"GET": tokens, "POST": issue_token}), methods=["GET", "POST"]),
        Route("/admin/tokens/{ref}", revoke_token, methods=["DELETE"]),
        Route("/admin/keys/{ref}", revoke_key, methods=["DELETE"]),
        *driver_routes(operations),
        *approval_routes(operations),
        *passkey_routes(operations),
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
            # A browser that comes back from an authorization server has no token; its state is checked instead. One
            # that makes a passkey has an invitation, which opens nothing else.
            is_open = scope["path"] == CALLBACK_PATH or is_invitation(scope["path"])
            if self._authenticate is not None and not is_open:
                principal = await self._authenticate(request)
                if principal is None:
                    raise _unauthorised(request)
                scope.setdefault("state", {})["principal"] = principal
            _check_role(scope)
            await self._app(scope, receive, send)
        except ClientDisconnect:
            return
        except Exception as error:
            await _refusal(error)(scope, receive, send)


def _check_role(scope: Scope) -> None:
    """To change anything takes the role of an admin; who may decide on an approval is settled there."""
    if scope["method"] in ("GET", "HEAD") or scope["path"].startswith(PATH):
        return
    if ADMIN not in scope.get("state", {}).get("roles", SOCKET_ROLES):
        raise Rejected(403, "role_required", "this credential may look and change nothing; use one of an admin's")


def _unauthorised(request: Request) -> Rejected:
    is_page = request.url.path.startswith(PATH)
    door = maybe_door(credential_of(request.headers.get("authorization", ""), basic=True))
    if is_page and door not in (None, "operator"):
        return Rejected(401, "self_approval", "whoever may ask does not decide: this door takes an operator's token")
    return Rejected(
        401,
        "unauthorised",
        "this door needs an operator's token: Authorization: Bearer ilo_...; "
        "interlock access token --for operator makes one",
        {},
        basic=is_page and wants_page(request),
    )


async def _on_http_exception(_: Request, error: Exception) -> Response:
    return _refusal(error)


def _refusal(error: Exception) -> Response:
    match error:
        case Rejected(status=401):
            challenge = _BASIC if error.basic else 'Bearer realm="operator"'
            return error_answer(401, error.error, error.message, headers={"WWW-Authenticate": challenge})
        case Rejected():
            return error_answer(error.status, error.error, error.message, error.details)
        case NotFound():
            details = {error.what: error.name, "nearest": error.nearest}
            if error.known:
                details["known"] = error.known
            return error_answer(404, "not_found", f"there is no {error.what} {quoted(error.name)}", details)
        case Refused():
            return error_answer(409, error.error, error.message, error.details)
        case StoreError():
            return error_answer(503, "unavailable", "the store cannot answer; nothing was done")
        case HTTPException(status_code=405):
            return error_answer(405, "method_not_allowed", "this path does not take that method", headers=error.headers)
        case HTTPException(status_code=404):
            return error_answer(404, "unknown_path", "the operator door has no such path")
        case HTTPException():
            return error_answer(error.status_code, "bad_request", "the request cannot be read", headers=error.headers)
        case _:
            ref = secrets.token_hex(4)
            _log.error("operator request failed, ref %s", ref, exc_info=error)
            return error_answer(500, "internal", f"internal error; the node's log has it under {ref}", {"ref": ref})


def _by_method(endpoints: dict[str, Endpoint]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return endpoint
