"""Whether a proof releases a held call (MCP-AX 11.3): a signer whom the operator trusts with the tool signed the call.

A proof is a JWS of type mcpax-confirm+jwt that binds one confirmation by its id and one call by its digest. The
rules are here; the caller verifies the signature (`verify`) and remembers every `jti` that was used. Every refusal is
proof_invalid with a word in data.reason, and leaves the call as it was.

    operator_signature   by a key that is a person's own
    policy_nonce         by anyone trusted, with the nonce of this confirmation signed along
    approval_token       by anyone trusted; what a service under a key set signs without a nonce is this
"""

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

import msgspec

from interlock.ax.protocol.registration.authority import WORDS, Anchor
from interlock.crypto.jose import (
    SKEW_S,
    Claims,
    Invalid,
    Jwk,
    Jwt,
    Reason,
    decode_base64url,
    read_jwt_untrusted,
    select,
    thumbprint,
)
from interlock.gate.protocol.held_call import Presented
from interlock.wire.jsontext.unambiguous import AmbiguousJson, read_untrusted
from interlock.wire.refusal import CONFIRMATION_USED, PROOF_INVALID, Refusal, ax_refusal

TYP: Final = "mcpax-confirm+jwt"  # AX-11.3-5
PROOF_S_MAX: Final = 300.0  # how long after it was made a proof may say it is good
TOKEN_CHARS_MAX: Final = 8192  # the claims take some 600; a kid or an iss may be a URL
NAME_CHARS_MAX: Final = 255  # of a jti, an iss

ProofType = Literal["operator_signature", "policy_nonce", "approval_token"]
Verify = Callable[[Jwt, Jwk], Invalid | None]  # None: the signature holds

_ALGORITHMS: Final = frozenset(("EdDSA", "ES256", "RS256"))
_TYPES: Final = frozenset((TYP, f"application/{TYP}"))  # RFC 7515 4.1.9 lets the prefix be left out


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a proof must be about."""

    confirmation_id: str
    call_digest: str
    nonce: str
    tool: str  # its qualified name, which anchors are limited by
    aggregator_id: str


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """A proof that holds, if (anchor, jti) was not used before; to be remembered until `expires_at`, in UNIX time."""

    type: ProofType
    anchor: str
    issuer: str
    jti: str
    key: str  # the thumbprint of the key that signed
    expires_at: float
    counter: int | None = None  # of a passkey: how often it has signed, if it counts


class _Bound(msgspec.Struct, frozen=True):
    """The claims that tie a proof to one call."""

    confirmation_id: Any = None
    call_digest: Any = None
    nonce: Any = None


def judge_confirmation(
    proof: Presented, asked: Asked, *, anchors: Sequence[Anchor], now: float, verify: Verify
) -> Verified | Refusal:
    """`now` is UNIX time. data.reason KEY_UNKNOWN may mean that an anchor's key set has been renewed since."""
    if len(proof.token) > TOKEN_CHARS_MAX:
        return invalid("too_long", f"the proof is longer than {TOKEN_CHARS_MAX} characters")
    jwt = read_jwt_untrusted(proof.token, _TYPES)
    if isinstance(jwt, Invalid):  # AX-11.3-5
        return _refusal(jwt.reason)
    if jwt.alg not in _ALGORITHMS:  # AX-11.3-5: unsigned
        return _refusal(Reason.ALGORITHM)
    bound = _read_bound(proof.token)
    if isinstance(bound, Refusal):
        return bound
    signer = _signer(jwt, asked.tool, anchors, verify)
    if isinstance(signer, Refusal):
        return signer
    anchor, key = signer
    if (refusal := _check_claims(jwt.claims, bound, asked, now)) is not None:
        return refusal
    kind = _kind(bound, proof.type, anchor, asked)
    if isinstance(kind, Refusal):
        return kind
    issuer, jti, expires_at = jwt.claims.iss or "", str(jwt.claims.jti), jwt.claims.exp or now
    return Verified(type=kind, anchor=anchor.name, issuer=issuer, jti=jti, key=thumbprint(key), expires_at=expires_at)


def claims_of(asked: Asked, *, issuer: str, jti: str, now: float) -> dict[str, Any]:
    """What an operator signs, as type TYP."""
    return {
        "iss": issuer,
        "aud": asked.aggregator_id,
        "jti": jti,
        "iat": int(now),
        "exp": int(now) + int(PROOF_S_MAX),
        "confirmation_id": asked.confirmation_id,
        "call_digest": asked.call_digest,
    }


def approvers(tool: str, anchors: Sequence[Anchor]) -> tuple[Anchor, ...]:
    """Those whose proof may release a call of the tool."""
    return tuple(anchor for anchor in anchors if any(fnmatchcase(tool, pattern) for pattern in anchor.approves))


def replay_refusal() -> Refusal:
    """The refusal of a proof whose jti was used before."""
    # AX-11.3-15
    return ax_refusal(CONFIRMATION_USED, "the proof was used before; make one for each confirmation", reason="replayed")


def invalid(reason: str, why: str) -> Refusal:
    return ax_refusal(PROOF_INVALID, why, reason=reason)


_WORDS: Final = {
    **WORDS,
    Reason.MALFORMED: ("malformed", "the proof cannot be read as a signed token"),
    Reason.TYPE: ("type", f"the proof is a token of another kind; its typ must be {TYP}"),
}


def _refusal(reason: Reason) -> Refusal:
    word, why = _WORDS.get(reason, ("malformed", reason.value))
    return invalid(word, why)


def _read_bound(token: str) -> _Bound | Refusal:
    """A claim that stands there twice binds nothing, even when signed (RFC 7519 4)."""
    header, payload, _ = token.split(".")
    try:
        for part in (header, payload):
            said = read_untrusted(decode_base64url(part) or b"", exact=False)
    except AmbiguousJson as error:
        return invalid("malformed", f"the proof cannot be taken at its word: {error}")
    return msgspec.convert(said, _Bound)


def _signer(jwt: Jwt, tool: str, anchors: Sequence[Anchor], verify: Verify) -> tuple[Anchor, Jwk] | Refusal:
    """The anchor whose key made the signature. A kid is only a hint where to look: two anchors may use the same."""
    anchors = [anchor for anchor in anchors if anchor.source != "passkey"]  # an authenticator signs no tokens
    entitled = approvers(tool, anchors)
    refused = Reason.KEY_UNKNOWN
    for anchor, found in _candidates(jwt, (*entitled, *(one for one in anchors if one not in entitled))):
        if isinstance(found, Invalid):
            refused = found.reason
        elif (wrong := verify(jwt, found)) is not None:  # AX-11.3-5
            refused = wrong.reason
        elif anchor in entitled:  # AX-11.3-9
            return anchor, found
        else:
            return invalid("not_entitled", f"the signer may not approve {tool}")  # AX-11.3-9
    return _refusal(refused)


def _candidates(jwt: Jwt, anchors: Sequence[Anchor]) -> Iterator[tuple[Anchor, Jwk | Invalid]]:
    for anchor in anchors:
        found = select(anchor.keys, jwt.alg, jwt.kid)
        if isinstance(found, Jwk) or found.reason is not Reason.KEY_UNKNOWN:
            yield anchor, found


def _check_claims(claims: Claims, bound: _Bound, asked: Asked, now: float) -> Refusal | None:
    audiences = (claims.aud,) if isinstance(claims.aud, str) else claims.aud
    if asked.aggregator_id not in (one.lower() for one in audiences):
        return invalid(
            "audience", f"aud of the proof must be the aggregator that holds the call, {asked.aggregator_id}"
        )
    if bound.confirmation_id != asked.confirmation_id:  # AX-11.3-8
        return invalid("confirmation", "the proof must have the confirmation_id of this confirmation")
    if bound.call_digest != asked.call_digest:  # AX-11.3-6, AX-11.3-7, AX-11.3-8
        return invalid("digest", "the proof must have the call_digest of this very call")
    if (refusal := _check_times(claims, now)) is not None:
        return refusal
    if not _is_name(claims.iss) or not _is_name(claims.jti):
        return invalid("claims", f"the proof must have an iss and a jti of 1 to {NAME_CHARS_MAX} characters")
    return None


def _check_times(claims: Claims, now: float) -> Refusal | None:
    if claims.iat is None or claims.exp is None:
        return invalid("claims", "the proof must have iat and exp")
    if claims.iat > now + SKEW_S or (claims.nbf is not None and claims.nbf > now + SKEW_S):
        return invalid("not_yet", "the proof is not valid yet; compare the clocks")
    if now >= claims.exp:
        return invalid("expired", "the proof has expired")
    if claims.exp - claims.iat > PROOF_S_MAX:
        return invalid("lifetime", f"exp of the proof must be at most {PROOF_S_MAX:.0f} seconds after iat")
    return None


def _kind(bound: _Bound, said: str | None, anchor: Anchor, asked: Asked) -> ProofType | Refusal:
    """`said` comes with the proof from its carrier: it is compared with what was signed, and by whom."""
    if bound.nonce is not None or said == "policy_nonce":
        if bound.nonce != asked.nonce or not asked.nonce:  # AX-11.3-7
            return invalid("nonce", "the proof must have the nonce of this confirmation")
        return "policy_nonce" if said in (None, "policy_nonce") else _wrong_subject(said)
    personal = anchor.source != "jwks"
    if said == "operator_signature" or (said is None and personal):
        return "operator_signature" if personal else _wrong_subject(said)
    return "approval_token" if said in (None, "approval_token") else _wrong_subject(said)


def _wrong_subject(said: str | None) -> Refusal:
    return invalid("kind", f"the proof is not of the type {str(said)[:32]!r} that it is presented as")


def _is_name(text: Any) -> bool:
    return isinstance(text, str) and 0 < len(text) <= NAME_CHARS_MAX
