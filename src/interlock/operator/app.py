"""The operator endpoint: JSON over HTTP in front of `Operations`, for the operator's TCP listener and for admin.sock.

Comes in: a request; with `authenticate`, only one that it names a principal for. Goes out: what the operation
answered, or `{error, message, details}` with a fitting status. No path, class name or trace leaves; an unexpected
failure leaves an id that the log repeats.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from interlock.access.logins import PATH as LOGIN
from interlock.access.logins import is_browser
from interlock.access.tokens import credential_of
from interlock.core.operator_errors import NotFound, Refused
from interlock.credentials.protocol.client import CALLBACK_PATH
from interlock.fronts.own_address import THIS_MACHINE, OwnAddress
from interlock.operator import (
    access,
    agents,
    approvals,
    approvers,
    console,
    drivers,
    grants,
    links,
    login,
    names,
    node,
    passkeys,
    rooms,
    tools,
)
from interlock.operator import secrets as stored_secrets
from interlock.operator.approvals import ADMIN, PATH, is_approval_page
from interlock.operator.approvers import PAGE as APPROVERS
from interlock.operator.console import is_console
from interlock.operator.endpoint import SOCKET_ROLES, RequestHandlers, build_routes
from interlock.operator.login import SESSION
from interlock.operator.operation import handlers_of
from interlock.operator.operations.operations import Operations
from interlock.operator.passkeys import is_invitation
from interlock.operator.requests import (
    FORM,
    KEY_HEADER,
    RejectedRequest,
    check_key,
    error_answer,
    media_type,
    quoted_text,
    wants_page,
)
from interlock.operator.table import OPERATIONS
from interlock.store.ports import StoreError
from interlock.store.tokens import find_audience

Authenticate = Callable[[Request], Awaitable[str | None]]

# A browser asks its person; the password is an operator's token, the name does not matter.
_BASIC = 'Basic realm="operator token as the password", charset="UTF-8"'

_log = logging.getLogger("interlock.operator")

_MODULES = (
    access,
    agents,
    approvals,
    approvers,
    console,
    drivers,
    grants,
    links,
    login,
    names,
    node,
    passkeys,
    rooms,
    stored_secrets,
    tools,
)
REQUEST_HANDLERS: RequestHandlers = {
    operation: handler for module in _MODULES for operation, handler in module.REQUEST_HANDLERS.items()
}


def operator_app(
    operations: Operations, *, authenticate: Authenticate | None, own: OwnAddress = THIS_MACHINE
) -> Starlette:
    """`authenticate` is None only where the listener itself knows who calls: admin.sock, by peer uid."""
    app = Starlette(
        routes=build_routes(OPERATIONS, handlers_of(_services(operations)), REQUEST_HANDLERS, operations),
        middleware=[Middleware(_OperatorMiddleware, authenticate=authenticate, own=own)],
        exception_handlers={HTTPException: _on_http_exception},
    )
    app.router.redirect_slashes = False
    return app


def _services(operations: Operations) -> list[object]:
    names = getattr(operations, "__struct_fields__", None) or vars(operations)
    return [*(getattr(operations, name) for name in names if name != "more"), *getattr(operations, "more", ())]


class _OperatorMiddleware:
    """Authenticates before anything is routed, and turns every failure behind it into the one error form.

    A browser attaches what it knows to requests of other pages too, so every change is checked for where it comes from.
    """

    def __init__(self, app: ASGIApp, authenticate: Authenticate | None, own: OwnAddress) -> None:
        self._app = app
        self._authenticate = authenticate
        self._own = own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        send = _with_headers(send)
        try:
            if scope["method"] not in ("GET", "HEAD"):
                self._refuse_foreign(request)
            # A browser that comes back from an authorization server has no token; its state is checked instead. One
            # that makes a passkey has an invitation, which opens nothing else; one that logs in, a ticket. The pages
            # of the console are empty without data.
            path = scope["path"]
            is_open = path in (CALLBACK_PATH, LOGIN) or is_invitation(path) or is_console(request)
            if self._authenticate is not None and not is_open:
                principal = await self._authenticate(request)
                if principal is None:
                    raise _unauthorised_error(request)
                scope.setdefault("state", {})["principal"] = principal
                if is_browser(principal):
                    _check_browser(request)
            _check_role(scope)
            await self._app(scope, receive, send)
        except ClientDisconnect:
            return
        except Exception as error:
            await _refusal(error)(scope, receive, send)

    def _refuse_foreign(self, request: Request) -> None:
        headers = request.headers
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._authenticate is not None and not self._own.is_own_host(host):  # no browser reaches admin.sock
            raise RejectedRequest(421, "bad_host", "this node does not answer to that Host; set node.operator_url")
        is_foreign = origin is not None and not self._own.is_own_origin(origin, request.scope["scheme"], host)
        if is_foreign or headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise RejectedRequest(403, "bad_origin", "a change is taken only from the operator endpoint's own page")


def _check_browser(request: Request) -> None:
    """A browser sends its cookie whatever page makes it ask: of a change it must say where it comes from, and the
    page must know the key of its session. A form is checked for that where it is read; to open a page takes none."""
    headers, path = request.headers, request.url.path
    if request.method in ("GET", "HEAD"):
        if wants_page(request) and (path == APPROVERS or is_approval_page(path)):
            return
    elif "origin" not in headers and "sec-fetch-site" not in headers:
        raise RejectedRequest(403, "bad_origin", "a change is taken only from the operator endpoint's own page")
    elif media_type(request) == FORM and path.startswith(PATH):
        return
    check_key(request, headers.get(KEY_HEADER, ""))


def _with_headers(send: Send) -> Send:
    """No answer is taken for another kind than it says, or kept by a cache; files of the console are asked about."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.setdefault("Cache-Control", "no-store")
            headers["X-Content-Type-Options"] = "nosniff"
        await send(message)

    return sending


def _check_role(scope: Scope) -> None:
    """To change anything takes the role of an admin; who may decide on an approval is settled there."""
    if scope["method"] in ("GET", "HEAD") or scope["path"].startswith(PATH) or scope["path"] == SESSION:
        return
    if ADMIN not in scope.get("state", {}).get("roles", SOCKET_ROLES):
        raise RejectedRequest(
            403, "role_required", "this credential may look and change nothing; use one of an admin's"
        )


def _unauthorised_error(request: Request) -> RejectedRequest:
    is_page = request.url.path.startswith(PATH)
    audience = find_audience(credential_of(request.headers.get("authorization", ""), basic=True))
    if is_page and audience not in (None, "operator"):
        return RejectedRequest(
            401, "self_approval", "who may ask does not decide: the operator endpoint takes an operator's token"
        )
    return RejectedRequest(
        401,
        "unauthorised",
        "the operator endpoint needs an operator's token: Authorization: Bearer ilo_...; "
        "interlock access token --for operator --name NAME makes one, interlock open logs a browser in",
        {},
        basic=is_page and wants_page(request),
    )


async def _on_http_exception(_: Request, error: Exception) -> Response:
    return _refusal(error)


def _refusal(error: Exception) -> Response:
    match error:
        case RejectedRequest(status=401):
            challenge = _BASIC if error.basic else 'Bearer realm="operator"'
            return error_answer(401, error.error, error.message, headers={"WWW-Authenticate": challenge})
        case RejectedRequest():
            return error_answer(error.status, error.error, error.message, error.details)
        case NotFound():
            details = {error.what: error.name, "nearest": error.nearest}
            if error.known:
                details["known"] = error.known
            return error_answer(404, "not_found", f"there is no {error.what} {quoted_text(error.name)}", details)
        case Refused():
            return error_answer(error.status, error.error, error.message, error.details)
        case StoreError():
            return error_answer(503, "unavailable", "the store cannot answer; nothing was done")
        case HTTPException(status_code=405):
            return error_answer(405, "method_not_allowed", "this path does not take that method", headers=error.headers)
        case HTTPException(status_code=404):
            return error_answer(404, "unknown_path", "the operator endpoint has no such path")
        case HTTPException():
            return error_answer(error.status_code, "bad_request", "the request cannot be read", headers=error.headers)
        case _:
            ref = secrets.token_hex(4)
            _log.error("operator request failed, ref %s", ref, exc_info=error)
            return error_answer(500, "internal", f"internal error; the node's log has it under {ref}", {"ref": ref})
