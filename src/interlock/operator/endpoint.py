"""An endpoint of the operator API: one row of the table from which the application and its OpenAPI document are made.

A handler takes an `OperatorExchange` and returns a value of the operator API, which is sent as JSON, or a response of
its own for pages and streams. The types of its body and of its answer are read off its signature, so that the document
cannot say anything else than the type checker has checked.
"""

from collections.abc import Awaitable, Callable, Iterable
from types import UnionType
from typing import Any, Final, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from interlock.operator.error_cases import ROLE_REQUIRED, ErrorCase
from interlock.operator.operations.operations import Operations
from interlock.operator.parameters import Parameter
from interlock.operator.requests import RejectedRequest, json_answer, json_body, refuse_unknown_parameters

Body = TypeVar("Body")
Role = Literal["anyone", "viewer", "operator", "admin"]
Method = Literal["GET", "POST", "DELETE"]

SOCKET_ROLES: Final = frozenset(("viewer", "admin"))  # being on the machine is no proof of being an operator


class OperatorExchange(Generic[Body]):
    """A request, its decoded body, and the operations that it is answered with."""

    __slots__ = ("body", "operations", "request")

    def __init__(self, operations: Operations, request: Request, body: Body) -> None:
        self.operations = operations
        self.request = request
        self.body = body

    def path(self, name: str) -> str:
        """A part of the path."""
        part: str = self.request.path_params[name]
        return part

    @property
    def principal(self) -> str:
        """Who asks; on admin.sock the user of this machine."""
        who: str = self.request.scope.get("state", {}).get("principal", "local")
        return who

    @property
    def is_live(self) -> bool:
        """Whether the credential is still good: a long answer ends when it is revoked."""
        is_live: Callable[[], bool] = self.request.scope.get("state", {}).get("is_live", lambda: True)
        return is_live()

    @property
    def roles(self) -> frozenset[str]:
        return roles_of(self.request)


Handler = Callable[[OperatorExchange[Any]], Awaitable[object]]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    method: Method
    path: str
    handler: Handler
    summary: str
    role: Role = "viewer"
    status: int = 200  # of an answer in JSON
    query: tuple[Parameter, ...] = ()
    takes_any_query: bool = False
    errors: tuple[ErrorCase, ...] = ()  # besides those that every endpoint of its kind has
    answer: Any = None  # only where the handler's own annotation is not what readers see
    own_bodies: dict[str, Any] = {}  # by media type, where the handler reads the body itself
    is_page: bool = False  # a browser is answered with HTML
    files: tuple[str, ...] = ()  # media types, where the answer is a file
    events: Any = None  # the data of each event, where the answer is a stream (SSE)
    redirects: bool = False  # a form is answered with 303

    @property
    def body(self) -> Any:
        """What the body is decoded as; None: there is none, or the handler reads it."""
        (annotated,) = (hint for name, hint in get_type_hints(self.handler).items() if name != "return")
        (body,) = get_args(annotated)
        return None if body is type(None) else body

    @property
    def answers(self) -> tuple[Any, ...]:
        """What may be sent as JSON, one type for each form it may take."""
        hint = self.answer if self.answer is not None else get_type_hints(self.handler)["return"]
        arms = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        return tuple(arm for arm in arms if not (isinstance(arm, type) and issubclass(arm, Response)))

    @property
    def is_strict(self) -> bool:
        """Whether query parameters that it does not know are refused."""
        return not self.takes_any_query and (self.method == "GET" or bool(self.query))


def starlette_routes(endpoints: Iterable[Endpoint], operations: Operations) -> list[Route]:
    """In the order of the table; endpoints of one path share a route."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for one in endpoints:
        by_path.setdefault(one.path, {})[one.method] = one
    return [Route(path, _serve(found, operations), methods=list(found)) for path, found in by_path.items()]


def roles_of(request: Request) -> frozenset[str]:
    roles: frozenset[str] = request.scope.get("state", {}).get("roles", SOCKET_ROLES)
    return roles


def refuse_viewer(roles: frozenset[str]) -> None:
    if roles.isdisjoint(("operator", "admin")):
        said = "this credential may look and not decide; use one of an operator's"
        raise RejectedRequest(403, ROLE_REQUIRED.name, said)


def _serve(endpoints: dict[str, Endpoint], operations: Operations) -> Callable[[Request], Awaitable[Response]]:
    bodies = {method: one.body for method, one in endpoints.items()}

    async def serve(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        endpoint, body = endpoints[method], bodies[method]
        if endpoint.role == "admin" and "admin" not in roles_of(request):
            raise RejectedRequest(403, ROLE_REQUIRED.name, "this takes the role of an admin")
        if endpoint.role == "operator" and not endpoint.is_page:  # a page says it itself
            refuse_viewer(roles_of(request))
        if endpoint.is_strict:
            refuse_unknown_parameters(request, tuple(one.name for one in endpoint.query))
        decoded = None if body is None else await json_body(request, body)
        answer = await endpoint.handler(OperatorExchange(operations, request, decoded))
        return answer if isinstance(answer, Response) else json_answer(answer, endpoint.status)

    return serve
