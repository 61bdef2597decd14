"""The inbox at the operator door: what waits, one of them in full, what happens, and the word that decides.

GET /approvals, /approvals/{id} (JSON, or a page for a browser), /approvals/{id}/passkey (what the page asks a passkey),
/approvals/events (SSE); POST /approvals/{id}.
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

from interlock.protocol.approvals.approval import Kind, Requires
from interlock.protocol.approvals.state import Status
from interlock.protocol.ax.confirmation.held_call import read_proof_untrusted
from interlock.protocol.ax.errors import CONFIRMATION_UNKNOWN, PROOF_INVALID
from interlock.protocol.jsonrpc.errors import INVALID_PARAMS, UNAVAILABLE, Fault
from interlock.runtime.approvals.views import Ambiguous, Window
from interlock.runtime.base.operator_errors import NotFound
from interlock.runtime.operations.operations import Operations
from interlock.surface.operator.approvals_page import approval_page, approvals_page, missing_page
from interlock.surface.operator.requests import (
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
        if not wants_page(request):
            return json_answer(_found(operations.approvals, request.path_params["id"]))
        try:
            found = _found(operations.approvals, request.path_params["id"])
        except NotFound:
            return missing_page("It was never here, or is long over.", 404)
        return approval_page(found, may_decide=not _roles(request).isdisjoint((OPERATOR, ADMIN)))

    async def passkey(request: Request) -> Response:
        refuse_unknown_parameters(request, ("class",))
        id, said = request.path_params["id"], request.query_params.get("class")
        _found(operations.approvals, id)
        asked = operations.approvals.passkey_request(id, said)
        if isinstance(asked, Fault):
            raise _rejected(asked, id)
        return json_answer(asked)

    async def events(request: Request) -> Response:
        refuse_unknown_parameters(request, ())
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(_events(operations.approvals), media_type="text/event-stream", headers=headers)

    async def decide(request: Request) -> Response:
        by_form = media_type(request) == _FORM
        wanted = await _read_form(request) if by_form else await json_body(request, Decide)
        roles = _roles(request)
        if roles.isdisjoint((OPERATOR, ADMIN)):
            raise Rejected(403, "role_required", "this credential may look and not decide; use one of an operator's")
        found = _found(operations.approvals, request.path_params["id"])
        if wanted.decision == "approve" and found["requires"] == Requires.ROLE.value and OPERATOR not in roles:
            raise Rejected(403, "role_required", "to approve this takes an operator's token")
        by = request.scope.get("state", {}).get("principal", "local")
        decided = await _decided(operations.approvals, found["id"], wanted, by)
        if isinstance(decided, Fault):
            raise _rejected(decided, request.path_params["id"])
        return RedirectResponse(f"{PATH}/{decided['id']}", 303) if by_form else json_answer(decided)

    async def decide_on_page(request: Request) -> Response:
        """A person who sent a form reads why it was refused on the page they sent it from."""
        try:
            return await decide(request)
        except Rejected as error:
            found = operations.approvals.maybe_one(request.path_params["id"])
            if found is None:
                raise
            may_decide = error.error not in ("role_required", "bad_origin")
            return approval_page(found, error=error.message, status=error.status, may_decide=may_decide)

    async def by_id(request: Request) -> Response:
        if request.method != "POST":
            return await one(request)
        return await (decide_on_page if wants_page(request) else decide)(request)

    return [
        Route(PATH, listed, methods=["GET"]),
        Route(f"{PATH}/events", events, methods=["GET"]),
        Route(f"{PATH}/{{id}}", by_id, methods=["GET", "POST"]),
        Route(f"{PATH}/{{id}}/passkey", passkey, methods=["GET"]),
    ]


def _roles(request: Request) -> frozenset[str]:
    roles: frozenset[str] = request.scope.get("state", {}).get("roles", SOCKET_ROLES)
    return roles


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
