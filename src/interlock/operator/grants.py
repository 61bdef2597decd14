"""Standing grants at the operator endpoint. To sign one takes a proof; to revoke one, the role of an admin."""

from interlock.approvals.api import PasskeyRequest, SignedProof
from interlock.approvals.grants_api import DraftGrant, Grant, GrantDraft, Grants, NameGrant, SignGrant, UnlockForGrant
from interlock.approvals.trust.operator_keys import TooOften
from interlock.ax.protocol.errors import CONFIRMATION_UNKNOWN, PROOF_INVALID
from interlock.gate.protocol.held_call import read_proof_untrusted
from interlock.operator import error_cases
from interlock.operator.approvers import refuse_far, too_often
from interlock.operator.endpoint import Endpoint, OperatorExchange
from interlock.operator.requests import RejectedRequest
from interlock.wire.jsonrpc.errors import INVALID_PARAMS, UNAVAILABLE, Fault

PATH = "/admin/grants"
_STATUSES = {CONFIRMATION_UNKNOWN: 404, PROOF_INVALID: 403, INVALID_PARAMS: 400, UNAVAILABLE: 503}


async def list_grants(exchange: OperatorExchange[None]) -> Grants:
    return exchange.operations.grants.list_all()


async def get_grant(exchange: OperatorExchange[None]) -> Grant:
    return exchange.operations.grants.get(exchange.path("id"))


async def draft_grant(exchange: OperatorExchange[DraftGrant]) -> GrantDraft:
    return exchange.operations.grants.draft(exchange.body)


async def ask_grant_passkey(exchange: OperatorExchange[NameGrant]) -> PasskeyRequest:
    asked = exchange.operations.grants.passkey_request(exchange.body.terms)
    if isinstance(asked, Fault):
        raise rejection(asked)
    return asked


async def prove_grant(exchange: OperatorExchange[UnlockForGrant]) -> SignedProof:
    refuse_far(exchange.request)
    body = exchange.body
    signed = await exchange.operations.grants.prove(body.terms, body.key, body.passphrase, by=exchange.principal)
    if isinstance(signed, TooOften):
        raise too_often(signed)
    if isinstance(signed, Fault):
        raise rejection(signed)
    return SignedProof(proof=signed)


async def sign_grant(exchange: OperatorExchange[SignGrant]) -> Grant:
    body = exchange.body
    proof = read_proof_untrusted(body.proof)
    signed = (
        proof
        if isinstance(proof, Fault)
        else await exchange.operations.grants.sign(body.terms, proof, by=exchange.principal)
    )
    if isinstance(signed, Fault):
        raise rejection(signed)
    return signed


async def revoke_grant(exchange: OperatorExchange[None]) -> Grant:
    ended = await exchange.operations.grants.revoke(exchange.path("id"), by=exchange.principal)
    if isinstance(ended, Fault):
        raise rejection(ended)
    return ended


def rejection(fault: Fault) -> RejectedRequest:
    data = fault.data or {}
    error = "invalid_body" if fault.code == INVALID_PARAMS and " " in fault.message else fault.message
    message = data.get("detail") or fault.message
    return RejectedRequest(_STATUSES.get(fault.code, 409), error, message, {"code": fault.code, **data})


ENDPOINTS = (
    Endpoint(
        method="GET",
        path=PATH,
        handler=list_grants,
        summary="Every standing grant, and how often it was used.",
    ),
    Endpoint(
        method="POST",
        path=PATH,
        handler=sign_grant,
        summary="Sign a grant that was drafted: the proof is over terms.id and digest.",
        role="admin",
        status=201,
        errors=(
            error_cases.BAD_GRANT,
            error_cases.CHANGED,
            error_cases.CONFIRMATION_OVER,
            error_cases.NOT_FOUND,
            error_cases.NOT_GRANTABLE,
            error_cases.PROOF_INVALID,
        ),
    ),
    Endpoint(
        method="POST",
        path=f"{PATH}/draft",
        handler=draft_grant,
        summary="Draft a grant, from a held call with rules proposed from its arguments, or for a tool. Keeps nothing.",
        role="admin",
        errors=(
            error_cases.AMBIGUOUS_ID,
            error_cases.BAD_GRANT_DRAFT,
            error_cases.CHANGED,
            error_cases.NOT_FOUND,
            error_cases.NOT_GRANTABLE,
        ),
    ),
    Endpoint(
        method="POST",
        path=f"{PATH}/passkey",
        handler=ask_grant_passkey,
        summary="What a browser asks a passkey, for it to sign this grant.",
        role="admin",
        errors=(error_cases.BAD_GRANT, error_cases.PROOF_INVALID),
    ),
    Endpoint(
        method="POST",
        path=f"{PATH}/proof",
        handler=prove_grant,
        summary="A proof for this grant by an operator key of the node's machine, unlocked by its passphrase.",
        role="admin",
        errors=(error_cases.BAD_GRANT, error_cases.NOT_LOCAL, error_cases.PROOF_INVALID, error_cases.TOO_OFTEN),
    ),
    Endpoint(
        method="GET",
        path=f"{PATH}/{{id}}",
        handler=get_grant,
        summary="One grant, by its id or the beginning of it, and the latest calls under it.",
        errors=(error_cases.AMBIGUOUS_ID, error_cases.NOT_FOUND),
    ),
    Endpoint(
        method="POST",
        path=f"{PATH}/{{id}}/revoke",
        handler=revoke_grant,
        summary="Revoke a grant: from now on it lets nothing pass.",
        role="admin",
        errors=(error_cases.AMBIGUOUS_ID, error_cases.NOT_FOUND),
    ),
)
