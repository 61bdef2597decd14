"""The HTTP side of operations: reads requests strictly, calls handlers, and sends their values as JSON, events or
files.

The input is a request whose principal and roles are known; the output is the return value of the operation's handler.
This module contains nothing about individual operations: the declaration of an operation determines its valid requests.

The checks always run in the same order: the role, the query parameters, the body, and whether a passphrase arrived over
a local connection or https. Everything that a peer sends has a size limit. The handler then receives the arguments that
its signature names. An operation that also has pages or forms has a separate request handler, which receives the
`OperatorExchange` and calls the operation through it. A browser form is accepted only from a page of this endpoint and
with the key of the session: a cookie alone is not enough, because browsers attach it to requests from any page.
"""

import asyncio
import contextlib
import inspect
import logging
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from interlock.access.operations import is_browser, is_session_key
from interlock.approvals.operations.inbox import check_may_decide
from interlock.core.operator_errors import refused_as
from interlock.net.protocol.address_scope import LOOPBACK_HOSTS
from interlock.operator import operation as cases
from interlock.operator.api import ErrorAnswer
from interlock.operator.operation import File, Handlers, InvalidParameter, Operation, Parameter
from interlock.store.ports import StoreError
from interlock.wire.refusal import Refused, quoted_text
from interlock.wire.sse import encode_event

Body = TypeVar("Body")
Shape = TypeVar("Shape")
SOCKET_ROLES: Final = frozenset(("viewer", "admin"))  # being on the machine is no proof of being an operator
BEAT_S: Final = 15.0  # proxies close a stream that is silent for long

_log: Final = logging.getLogger("interlock.operator")
_STREAM_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@dataclass(eq=False)
class OperatorExchange(Generic[Body]):
    """An HTTP request to an operation, with its body after decoding."""

    operation: Operation[Any]
    request: Request
    handlers: Handlers
    body: Body = None  # type: ignore[assignment]  # until it is decoded

    def query(self, parameter: Parameter) -> Any:
        """Return the value of a query parameter. Raise Refused if the value is invalid."""
        try:
            return parameter.parse(self.request.query_params.getlist(parameter.name))
        except InvalidParameter as error:
            raise refused_as(cases.INVALID_PARAMETER, str(error), {"parameter": error.parameter}) from None

    @property
    def principal(self) -> str:
        """Return the principal that makes the request. On admin.sock, which has no principals, it is the local user."""
        principal: str = self.request.scope.get("state", {}).get("principal", cases.LOCAL)
        return principal

    @property
    def is_live(self) -> bool:
        """Return whether the credential of the request is still valid. A stream of events ends when it is not."""
        is_live: Callable[[], bool] = self.request.scope.get("state", {}).get("is_live", lambda: True)
        return is_live()

    @property
    def roles(self) -> frozenset[str]:
        roles: frozenset[str] = self.request.scope.get("state", {}).get("roles", SOCKET_ROLES)
        return roles

    async def run(self) -> Any:
        """Call the handler of the operation with the request values that its signature names, and return its result."""
        arguments = {"body": self.body, "by": self.principal, "roles": self.roles, **self.request.path_params}
        for parameter in self.operation.query:
            arguments[parameter.argument or parameter.name] = self.query(parameter)
        return await call_handler(self.handlers[self.operation], arguments)

    async def call(self, operation: Operation[Any], **arguments: object) -> Any:
        """Call the handler of another operation, whose output a page shows, and return its result."""
        return await call_handler(self.handlers[operation], {"by": self.principal, "roles": self.roles, **arguments})


RequestHandlers = Mapping[Operation[Any], Callable[[OperatorExchange[Any]], Awaitable[object]]]


def build_routes(
    operations: Iterable[Operation[Any]], handlers: Handlers, request_handlers: RequestHandlers
) -> list[Route]:
    """Return one route for each path, in the order of the operations. Operations with the same path share a route.

    `request_handlers` replace the handlers of operations that need the full request, for pages, forms or cookies.
    """
    by_path: dict[str, dict[str, Operation[Any]]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
        if operation in handlers and operation not in request_handlers:
            # This runs when the node starts, so that a wrong handler does not fail only at the first request.
            queries = {parameter.argument or parameter.name for parameter in operation.query}
            provided = {"body", "by", "roles", *re.findall(r"\{(\w+)", operation.path), *queries}
            if unknown := inspect.signature(handlers[operation]).parameters.keys() - provided:
                names = ", ".join(sorted(unknown))
                raise TypeError(f"the handler of {operation.name} takes {names}, which no request has")

    def build_endpoint(methods: dict[str, Operation[Any]]) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            operation = methods["GET" if request.method == "HEAD" else request.method]
            exchange = OperatorExchange[Any](operation, request, handlers)
            _check_role(exchange)
            if operation.is_strict:
                refuse_unknown_parameters(request, tuple(parameter.name for parameter in operation.query))
            # Where a form may come instead, the request handler reads the body.
            if operation.input is not None and operation.form is None:
                exchange.body = await json_body(request, operation.input)
            # A passphrase must not be sent over a network without encryption. admin.sock has no address.
            peer = request.client.host if request.client is not None else "localhost"
            if operation.takes_passphrase and request.url.scheme != "https" and peer not in LOOPBACK_HOSTS:
                raise refused_as(cases.NOT_LOCAL, "a passphrase is taken on the node's own machine, or over https")
            request_handler = request_handlers.get(operation)
            value = await (exchange.run() if request_handler is None else request_handler(exchange))
            return _response(exchange, value)

        return serve

    return [Route(path, build_endpoint(methods), methods=list(methods)) for path, methods in by_path.items()]


async def call_handler(handler: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a handler with the arguments that its signature names, and return its result."""
    names = inspect.signature(handler).parameters
    value = handler(**{name: arguments[name] for name in names if name in arguments})
    return await value if inspect.isawaitable(value) else value


def _check_role(exchange: OperatorExchange[Any]) -> None:
    """Raise Refused unless the credential has the role that the operation requires. A page that requires the role
    operator is also sent to viewers; its own handler refuses what a viewer may not do.
    """
    operation = exchange.operation
    if operation.role == "admin" and "admin" not in exchange.roles:
        raise refused_as(cases.ROLE_REQUIRED, "this takes the role of an admin")
    # A page is sent to a viewer too: its request handler refuses what a viewer may not do there.
    if operation.role == "operator" and not operation.is_page:
        check_may_decide(exchange.roles)


def _response(exchange: OperatorExchange[Any], value: object) -> Response:
    """Return the HTTP response for a value that a handler returned."""
    match value:
        case Response():
            return value
        case File():
            return Response(value.content, media_type=value.media_type)
        case AsyncGenerator():
            return StreamingResponse(_events(exchange, value), media_type="text/event-stream", headers=_STREAM_HEADERS)
        case _:
            return json_answer(value, exchange.operation.status)


async def _events(exchange: OperatorExchange[Any], values: AsyncGenerator[Any, None]) -> AsyncIterator[bytes]:
    """Yield each value as a server-sent event, and comments in between to keep the connection alive, until the client
    disconnects or its credential is revoked. If the values end with an exception, the last event says why.
    """
    event = exchange.operation.event
    # The head of the answer leaves now, before the first value is there.
    yield b": %b\n\n" % (exchange.operation.noun.encode() if event else b"begun")
    async with contextlib.aclosing(values):
        upcoming: asyncio.Future[Any] | None = None
        try:
            while True:
                upcoming = upcoming or asyncio.ensure_future(anext(values))
                done, _ = await asyncio.wait((upcoming,), timeout=BEAT_S)
                if not exchange.is_live:
                    return
                if not done:
                    yield b": still here\n\n"
                    continue
                value, upcoming = upcoming.result(), None
                data = msgspec.json.encode(value)
                yield encode_event(data, event=event.encode(), id=value.id.encode()) if event else encode_event(data)
        except StopAsyncIteration:
            return
        except Exception as error:
            # The status is sent already.
            yield encode_event(bytes(failure_answer(error).body), event=cases.REFUSED.encode())
        finally:
            if upcoming is not None:
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)


# Bodies, forms and replies

KEY_HEADER = "x-interlock-session"
KEY_FIELD = "session_key"
FORM = "application/x-www-form-urlencoded"
BODY_BYTES_MAX = 64 * 1024  # a secret may be a key; a token's request stays below 1 KiB


def json_answer(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def error_answer(
    status: int, error: str, message: str, details: dict[str, Any] | None = None, headers: Any | None = None
) -> Response:
    body = msgspec.json.encode(ErrorAnswer(error=error, message=message, details=details or {}))
    return Response(body, status, headers=headers, media_type="application/json")


def failure_answer(error: Exception) -> Response:
    """Return the response for an exception. An unexpected one is logged with an id that the response repeats."""
    match error:
        case Refused():
            return error_answer(error.status, error.code, error.message, error.details)
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


def refuse_unknown_parameters(request: Request, allowed: tuple[str, ...]) -> None:
    for name in request.query_params:
        if name not in allowed:
            hint = f"it takes {', '.join(allowed)}" if allowed else "it takes none"
            message = f"unknown query parameter {quoted_text(name)}; {hint}"
            raise refused_as(cases.INVALID_PARAMETER, message, {"parameter": name})


async def json_body(request: Request, shape: type[Shape]) -> Shape:
    body = await _read_bounded(request)
    if not body and "content-type" not in request.headers:
        # X-10.3-1: without a body, every member has its default
        body = b"{}"
    elif media_type(request) != "application/json":
        raise refused_as(cases.UNSUPPORTED_MEDIA_TYPE, "send JSON with Content-Type: application/json")
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as error:
        raise refused_as(cases.INVALID_BODY, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise refused_as(cases.INVALID_JSON, "the body is not JSON") from None


async def form_body(request: Request, shape: type[Shape]) -> Shape:
    """Return the fields of a form that a page of this endpoint sent. Raise Refused if the form is invalid or its key is
    wrong.

    The middleware has already refused changes by other pages. A form must also come with an Origin or
    Sec-Fetch-Site header.
    """
    if "sec-fetch-site" not in request.headers and "origin" not in request.headers:
        raise refused_as(cases.FOREIGN_PAGE, "a form is taken only from the operator endpoint's own page")
    try:
        pairs = parse_qsl((await _read_bounded(request)).decode(), strict_parsing=True, max_num_fields=20)
        fields = {name: text for name, text in pairs if text.strip()}
        check_key(request, fields.pop(KEY_FIELD, ""))
        return msgspec.convert(fields, shape)
    except msgspec.ValidationError as error:
        raise refused_as(cases.INVALID_BODY, str(error)) from None
    except ValueError:
        raise refused_as(cases.INVALID_BODY, "the form cannot be read") from None


def check_key(request: Request, key_untrusted: str) -> None:
    """Raise Refused if the request uses a browser session without sending the key of that session.

    The cookie alone is not enough, because browsers send it with requests from any page and to every port of this
    machine.
    """
    if not is_browser(request.scope.get("state", {}).get("principal", "")):
        return
    if not is_session_key(key_untrusted, request.headers.get("host", ""), request.cookies):
        message = f"a browser's session sends its key as {KEY_HEADER}; interlock open logs in again"
        raise refused_as(cases.SESSION_KEY, message)


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def wants_page(request: Request) -> bool:
    """Return whether the client, a browser, prefers an HTML page to JSON."""
    accept = request.headers.get("accept", "")
    return "text/html" in accept and "application/json" not in accept


async def _read_bounded(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            message = f"the body is larger than {BODY_BYTES_MAX} bytes"
            raise refused_as(cases.BODY_TOO_LARGE, message, {"limit": BODY_BYTES_MAX})
    return bytes(body)
