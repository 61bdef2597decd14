"""Standing grants at the operator endpoint. To sign one takes a proof; to revoke one, the role of an admin."""

from interlock.approvals.api import PasskeyRequest, SignedProof
from interlock.approvals.grants_api import (
    ASK_GRANT_PASSKEY,
    DRAFT_GRANT,
    GET_GRANT,
    LIST_GRANTS,
    PROVE_GRANT,
    REVOKE_GRANT,
    SIGN_GRANT,
    DraftGrant,
    Grant,
    GrantDraft,
    Grants,
    NameGrant,
    SignGrant,
    UnlockForGrant,
)
from interlock.approvals.trust.operator_keys import TooOften
from interlock.gate.protocol.held_call import read_proof_untrusted
from interlock.operator.approvers import too_often
from interlock.operator.endpoint import OperatorExchange, RequestHandlers
from interlock.operator.requests import RejectedRequest
from interlock.wire.refusal import CONFIRMATION_UNKNOWN, INVALID_PARAMS, PROOF_INVALID, UNAVAILABLE, Refusal

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
    if isinstance(asked, Refusal):
        raise rejection(asked)
    return asked


async def prove_grant(exchange: OperatorExchange[UnlockForGrant]) -> SignedProof:
    body = exchange.body
    signed = await exchange.operations.grants.prove(body.terms, body.key, body.passphrase, by=exchange.principal)
    if isinstance(signed, TooOften):
        raise too_often(signed)
    if isinstance(signed, Refusal):
        raise rejection(signed)
    return SignedProof(proof=signed)


async def sign_grant(exchange: OperatorExchange[SignGrant]) -> Grant:
    body = exchange.body
    proof = read_proof_untrusted(body.proof)
    signed = (
        proof
        if isinstance(proof, Refusal)
        else await exchange.operations.grants.sign(body.terms, proof, by=exchange.principal)
    )
    if isinstance(signed, Refusal):
        raise rejection(signed)
    return signed


async def revoke_grant(exchange: OperatorExchange[None]) -> Grant:
    ended = await exchange.operations.grants.revoke(exchange.path("id"), by=exchange.principal)
    if isinstance(ended, Refusal):
        raise rejection(ended)
    return ended


def rejection(refusal: Refusal) -> RejectedRequest:
    data = refusal.details or {}
    error = "invalid_body" if refusal.code == INVALID_PARAMS and " " in refusal.message else refusal.message
    message = data.get("detail") or refusal.message
    return RejectedRequest(_STATUSES.get(refusal.code, 409), error, message, {"code": refusal.number, **data})


REQUEST_HANDLERS: RequestHandlers = {
    LIST_GRANTS: list_grants,
    SIGN_GRANT: sign_grant,
    DRAFT_GRANT: draft_grant,
    ASK_GRANT_PASSKEY: ask_grant_passkey,
    PROVE_GRANT: prove_grant,
    GET_GRANT: get_grant,
    REVOKE_GRANT: revoke_grant,
}
