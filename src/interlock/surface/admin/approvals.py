"""The inbox at the operator door: what waits, one of them in full, what happens, and the word that decides.

GET /approvals, /approvals/{id} (JSON, or a plain page for a browser), /approvals/events (SSE); POST /approvals/{id}.
Looking takes any credential of this door. To deny takes the role of an operator or an admin. To approve takes what the
approval requires: mostly a proof, which is judged by the runtime, never here; or the role of an operator.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Raw
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from interlock.protocol.approvals.messages import Kind, Requires
from interlock.protocol.approvals.state import Status
from interlock.protocol.ax.confirm import read_proof_untrusted
from interlock.protocol.ax.errors import CONFIRMATION_UNKNOWN, PROOF_INVALID
from interlock.protocol.jsonrpc.errors import INVALID_PARAMS, UNAVAILABLE, Fault
from interlock.runtime.approvals.window import Ambiguous, Window
from interlock.surface.admin.approvals_page import approval_page, approvals_page
from interlock.surface.admin.operations import NotFound, Operations
from interlock.surface.admin.requests import (
    Rejected,
    form_body,
    json_answer,
    json_body,
    media_type,
    quoted,
    refuse_unknown_parameters,
    wants_page,
)

T = TypeVar("T")

PATH: Final = "/approvals"
OPERATOR: Final = "operator"
ADMIN: Final = "admin"
SOCKET_ROLES: Final = frozenset(("viewer", ADMIN))  # being on the machine is no proof of being an operator
REASON_CHARS_MAX: Final = 1000
BEAT_S: Final = 15.0  # a stream that says nothing for long is closed by proxies

_FORM: Final = "application/x-www-form-urlencoded"
_STATUSES: Final = {
    CONFIRMATION_UNKNOWN: 404,
    PROOF_INVALID: 403,
    INVALID_PARAMS: 400,
    UNAVAILABLE: 503,
}


class Decide(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    decision: Literal["approve", "deny"]
    reason: Annotated[str, msgspec.Meta(max_length=REASON_CHARS_MAX)] | None = None
    tool_class: Literal["read_only", "reversible", "irreversible"] | None = msgspec.field(name="class", default=None)
    proof: Raw = Raw()


class DecideByForm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    decision: Literal["approve", "deny"]
    reason: Annotated[str, msgspec.Meta(max_length=REASON_CHARS_MAX)] | None = None
    tool_class: Literal["read_only", "reversible", "irreversible"] | None = msgspec.field(name="class", default=None)
    proof: str | None = None


def approval_routes(operations: Operations) -> list[Route]:
    async def listed(request: Request) -> Response:
        refuse_unknown_parameters(request, ("kind", "status"))
        found = operations.approvals.listed(_kind(request), _statuses(request))
        return approvals_page(found) if wants_page(request) else json_answer(found)

    async def one(request: Request) -> Response:
        refuse_unknown_parameters(request, ())
        found = _found(operations.approvals, request.path_params["id"])
        return approval_page(found) if wants_page(request) else json_answer(found)

    async def events(request: Request) -> Response:
        refuse_unknown_parameters(request, ())
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(_events(operations.approvals), media_type="text/event-stream", headers=headers)

    async def decide(request: Request) -> Response:
        by_form = media_type(request) == _FORM
        wanted = await _read_form(request) if by_form else await json_body(request, Decide)
        state = request.scope.get("state", {})
        roles = state.get("roles", SOCKET_ROLES)
        if roles.isdisjoint((OPERATOR, ADMIN)):
            raise Rejected(403, "role_required", "this credential may look and not decide; use one of an operator's")
        found = _found(operations.approvals, request.path_params["id"])
        if wanted.decision == "approve" and found["requires"] == Requires.ROLE.value and OPERATOR not in roles:
            raise Rejected(403, "role_required", "to approve this takes an operator's token")
        by = state.get("principal", "local")
        decided = await _decided(operations.approvals, found["id"], wanted, by)
        if isinstance(decided, Fault):
            raise _rejected(decided, request.path_params["id"])
        return RedirectResponse(f"{PATH}/{decided['id']}", 303) if by_form else json_answer(decided)

    async def by_id(request: Request) -> Response:
        return await (decide if request.method == "POST" else one)(request)

    return [
        Route(PATH, listed, methods=["GET"]),
        Route(f"{PATH}/events", events, methods=["GET"]),
        Route(f"{PATH}/{{id}}", by_id, methods=["GET", "POST"]),
    ]


async def _read_form(request: Request) -> Decide:
    form = await form_body(request, DecideByForm)
    proof = Raw(msgspec.json.encode(form.proof.strip())) if form.proof is not None else Raw()
    return Decide(decision=form.decision, reason=form.reason, tool_class=form.tool_class, proof=proof)


async def _decided(window: Window, id: str, wanted: Decide, by: str) -> dict[str, Any] | Fault:
    if wanted.decision == "deny":
        return await window.deny(id, by=by, reason=wanted.reason)
    proof = read_proof_untrusted(wanted.proof) if wanted.proof else None
    if isinstance(proof, Fault):
        return proof
    return await window.approve(id, proof, by=by, reason=wanted.reason, answer=wanted.tool_class)


def _found(window: Window, id: str) -> dict[str, Any]:
    try:
        found = window.maybe_one(id)
    except Ambiguous as error:
        raise Rejected(409, "ambiguous_id", f"{error}; give more of it", {"ids": error.ids}) from None
    if found is None:
        raise NotFound("approval", id)
    return found


def _rejected(fault: Fault, id: str) -> Rejected:
    data = fault.data or {}
    error = "proof_required" if data.get("reason") == "proof_required" else fault.message
    if fault.code == INVALID_PARAMS and error != "answer_needed":
        error = "invalid_body"
    message = data.get("detail") or fault.message
    return Rejected(_STATUSES.get(fault.code, 409), error, message, {"approval": id, "code": fault.code, **data})


def _kind(request: Request) -> Kind | None:
    return _maybe_choice(request, "kind", {kind.value: kind for kind in Kind})


def _statuses(request: Request) -> frozenset[Status]:
    by_name = {status.value: frozenset((status,)) for status in Status} | {"all": frozenset(Status)}
    return _maybe_choice(request, "status", by_name) or frozenset((Status.PENDING,))


def _maybe_choice(request: Request, name: str, choices: dict[str, T]) -> T | None:
    given = request.query_params.get(name)
    if given is None:
        return None
    if given not in choices:
        message = f"{name} must be one of {', '.join(choices)}, not {quoted(given)}"
        raise Rejected(400, "invalid_parameter", message, {"parameter": name})
    return choices[given]


async def _events(window: Window) -> AsyncIterator[bytes]:
    """What waits now and then every change, with a comment now and again while nothing happens."""
    yield b": approvals\n\n"
    async with contextlib.aclosing(window.changes()) as changes:
        upcoming: asyncio.Future[Any] | None = None
        try:
            while True:
                upcoming = upcoming or asyncio.ensure_future(anext(changes))
                done, _ = await asyncio.wait((upcoming,), timeout=BEAT_S)
                if not done:
                    yield b": still here\n\n"
                    continue
                change, upcoming = upcoming.result(), None
                yield b"event: approval\nid: %b\ndata: %b\n\n" % (change["id"].encode(), msgspec.json.encode(change))
        except StopAsyncIteration:
            return
        finally:
            if upcoming is not None:
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)
