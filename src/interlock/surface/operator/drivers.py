"""/admin/drivers: what drivers there are, and what is decided about them."""

from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from interlock.runtime.operations.operations import Operations
from interlock.surface.operator.requests import Rejected, json_answer, json_body, refuse_unknown_parameters

_FLAGS = {"true": True, "false": False}


class Trust(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]  # of the folder as it was shown


class Allow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    host: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    revoke: bool = False


class Test(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    allow_mutation: bool = False


class Update(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    candidate: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")] | None = None  # None: only look


def driver_routes(operations: Operations) -> list[Route]:
    async def drivers(request: Request) -> Response:
        refuse_unknown_parameters(request, ())
        return json_answer(await (await operations.drivers.open()).listed())

    async def driver(request: Request) -> Response:
        refuse_unknown_parameters(request, ())
        return json_answer(await (await operations.drivers.open()).shown(request.path_params["name"]))

    async def trust(request: Request) -> Response:
        wanted = await json_body(request, Trust)
        desk = await operations.drivers.open()
        return json_answer(await desk.trust(request.path_params["name"], wanted.digest, _by(request)))

    async def allow(request: Request) -> Response:
        wanted = await json_body(request, Allow)
        desk = await operations.drivers.open()
        name = request.path_params["name"]
        return json_answer(await desk.allow(name, wanted.host, _by(request), revoke=wanted.revoke))

    async def test(request: Request) -> Response:
        wanted = await json_body(request, Test)
        desk = await operations.drivers.open()
        name = request.path_params["name"]
        return json_answer(await desk.test(name, _by(request), allow_mutation=wanted.allow_mutation))

    async def update(request: Request) -> Response:
        wanted = await json_body(request, Update)
        desk = await operations.drivers.open()
        return json_answer(await desk.update(request.path_params["name"], _by(request), wanted.candidate))

    async def remove(request: Request) -> Response:
        refuse_unknown_parameters(request, ("forget",))
        forget = _FLAGS.get(request.query_params.get("forget", "false"))
        if forget is None:
            raise Rejected(400, "invalid_parameter", "forget is true or false", {"parameter": "forget"})
        desk = await operations.drivers.open()
        return json_answer(await desk.remove(request.path_params["name"], _by(request), forget=forget))

    async def one(request: Request) -> Response:
        return await (remove if request.method == "DELETE" else driver)(request)

    return [
        Route("/admin/drivers", drivers, methods=["GET"]),
        Route("/admin/drivers/{name}", one, methods=["GET", "DELETE"]),
        Route("/admin/drivers/{name}/trust", trust, methods=["POST"]),
        Route("/admin/drivers/{name}/allow", allow, methods=["POST"]),
        Route("/admin/drivers/{name}/test", test, methods=["POST"]),
        Route("/admin/drivers/{name}/update", update, methods=["POST"]),
    ]


def _by(request: Request) -> str:
    who: str = request.scope.get("state", {}).get("principal", "local")
    return who
