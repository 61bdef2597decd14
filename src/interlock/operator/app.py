"""The operator endpoint: JSON over HTTP, for the operator's TCP listener and for admin.sock.

A request passes the middleware, then its route. The middleware refuses changes that other web pages request, determines
the principal and its roles, and checks the key of a browser session. It lets requests for public pages through: these
contain no data, or check a proof themselves (`open_pages`). The route checks the requirements that the operation
declares, and calls its handler (`endpoint`).

The reply is the return value of the operation, or `{error, message, details}` with an HTTP error status. Replies never
contain a file path, class name or stack trace; an unexpected failure is reported with an id that is also in the log.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from interlock.access.operations import PATH as LOGIN
from interlock.access.operations import is_browser
from interlock.access.tokens import credential_of
from interlock.approvals.api import SELF_APPROVAL
from interlock.core.operator_errors import refused_as
from interlock.credentials.protocol.oauth_client import CALLBACK_PATH
from interlock.fronts.exchange import THIS_MACHINE, OwnAddress
from interlock.operator import approvals, endpoint, open_pages
from interlock.operator.approvals import APPROVERS_PAGE, PATH, is_approval_page
from interlock.operator.endpoint import RequestHandlers, error_answer
from interlock.operator.open_pages import SESSION, is_console, is_invitation
from interlock.operator.openapi import OPERATIONS
from interlock.operator.operation import FOREIGN_PAGE, MISDIRECTED, ROLE_REQUIRED, UNAUTHORISED, Handlers
from interlock.store.tokens import find_audience

Authenticate = Callable[[Request], Awaitable[str | None]]

# A browser asks its person; the password is an operator's token, the name does not matter.
_BASIC = 'Basic realm="operator token as the password", charset="UTF-8"'

REQUEST_HANDLERS: RequestHandlers = {**approvals.REQUEST_HANDLERS, **open_pages.REQUEST_HANDLERS}


def operator_app(handlers: Handlers, *, authenticate: Authenticate | None, own: OwnAddress = THIS_MACHINE) -> Starlette:
    """Return the application of the operator endpoint.

    `authenticate` is None only if the listener itself identifies the client, as admin.sock does by the user id of its
    peer.
    """
    app = Starlette(
        routes=endpoint.build_routes(OPERATIONS, handlers, REQUEST_HANDLERS),
        middleware=[Middleware(_OperatorMiddleware, authenticate=authenticate, own=own)],
        exception_handlers={HTTPException: _on_http_exception},
    )
    app.router.redirect_slashes = False
    return app


@dataclass(eq=False)
class _OperatorMiddleware:
    """ASGI middleware that authenticates requests before routing, and converts every failure into the standard error
    body.

    The origin of every change is checked, because a browser also attaches its credentials to requests that other pages
    cause.
    """

    app: ASGIApp
    authenticate: Authenticate | None
    own: OwnAddress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        send = _with_headers(send)
        try:
            if scope["method"] not in ("GET", "HEAD"):
                headers, host = request.headers, request.headers.get("host", "")
                # A browser cannot reach admin.sock, which needs no check of the host.
                if self.authenticate is not None and not self.own.is_own_host(host):
                    raise refused_as(MISDIRECTED, "this node does not answer to that Host; set node.operator_url")
                origin = headers.get("origin")
                is_foreign = origin is not None and not self.own.is_own_origin(origin, request.scope["scheme"], host)
                if is_foreign or headers.get("sec-fetch-site", "same-origin") != "same-origin":
                    raise refused_as(FOREIGN_PAGE, "a change is taken only from the operator endpoint's own page")
            # A browser that comes back from an authorization server has no token; its state is checked instead. One
            # that makes a passkey has an invitation, which opens nothing else; one that logs in, a ticket. The pages
            # of the console are empty without data.
            path = scope["path"]
            is_open = path in (CALLBACK_PATH, LOGIN) or is_invitation(path) or is_console(request)
            if self.authenticate is not None and not is_open:
                principal = await self.authenticate(request)
                if principal is None:
                    await _unauthorised(request)(scope, receive, send)
                    return
                scope.setdefault("state", {})["principal"] = principal
                if is_browser(principal):
                    _check_browser(request)
            _check_role(scope)
            await self.app(scope, receive, send)
        except ClientDisconnect:
            return
        except Exception as error:
            await endpoint.failure_answer(error)(scope, receive, send)


def _check_browser(request: Request) -> None:
    """Refuse a request that another page makes with the browser's session cookie.

    A change must have an Origin or Sec-Fetch-Site header, and the page must send the key of the session. The key of a
    form is checked when the form is read; opening the page of an approval or of the approvers needs no key.
    """
    headers, path = request.headers, request.url.path
    if request.method in ("GET", "HEAD"):
        if endpoint.wants_page(request) and (path == APPROVERS_PAGE or is_approval_page(path)):
            return
    elif "origin" not in headers and "sec-fetch-site" not in headers:
        raise refused_as(FOREIGN_PAGE, "a change is taken only from the operator endpoint's own page")
    elif endpoint.media_type(request) == endpoint.FORM and path.startswith(PATH):
        return
    endpoint.check_key(request, headers.get(endpoint.KEY_HEADER, ""))


def _with_headers(send: Send) -> Send:
    """Return a `send` function that adds headers against caching and against guessing the media type."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.setdefault("Cache-Control", "no-store")
            headers["X-Content-Type-Options"] = "nosniff"
        await send(message)

    return sending


def _check_role(scope: Scope) -> None:
    """Refuse a change by a principal without the admin role.

    Handlers of approvals check themselves who may decide, and every principal may change its own session. Requests for
    public pages have no principal and pass.
    """
    if scope["method"] in ("GET", "HEAD") or scope["path"].startswith(PATH) or scope["path"] == SESSION:
        return
    if "admin" not in scope.get("state", {}).get("roles", endpoint.SOCKET_ROLES):
        raise refused_as(ROLE_REQUIRED, "this credential may look and change nothing; use one of an admin's")


def _unauthorised(request: Request) -> Response:
    """Return the reply to a request without a valid operator credential. If the request is for a page, the reply makes
    the browser ask its user for the credential.
    """
    is_page = request.url.path.startswith(PATH)
    audience = find_audience(credential_of(request.headers.get("authorization", ""), basic=True))
    challenge = {"WWW-Authenticate": 'Bearer realm="operator"'}
    if is_page and audience not in (None, "operator"):
        message = "who may ask does not decide: the operator endpoint takes an operator's token"
        return error_answer(SELF_APPROVAL.status, SELF_APPROVAL.name, message, headers=challenge)
    if is_page and endpoint.wants_page(request):
        challenge = {"WWW-Authenticate": _BASIC}
    message = (
        "the operator endpoint needs an operator's token: Authorization: Bearer ilo_...; "
        "interlock access token --for operator --name NAME makes one, interlock open logs a browser in"
    )
    return error_answer(UNAUTHORISED.status, UNAUTHORISED.name, message, headers=challenge)


async def _on_http_exception(_: Request, error: Exception) -> Response:
    return endpoint.failure_answer(error)
