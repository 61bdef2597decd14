"""Proofs that release a held call (MCP-AX 11.3): signatures over the call by a signer whom the operator trusts for its
tool.

This module contains the rules. Callers pass in a function that verifies a signature (`verify`), and store every `jti`
that was used. Every refusal is proof_invalid with a reason code in data.reason, and the call stays held. There are two
forms of proof.

A signed token is a JWS of type mcpax-confirm+jwt that binds one confirmation by its id and one call by its digest:

    operator_signature   signed by the key of a person
    policy_nonce         signed by any trusted key, with the nonce of this confirmation
    approval_token       signed by any trusted key; also what a service under a key set signs without a nonce

A passkey signs only a challenge that the node chose. The challenge therefore contains digests of the call and of this
confirmation, the time, and random bytes for this attempt:

    call_digest (32)  SHA-256 of aggregator_id, confirmation_id and nonce (32)  UNIX seconds (8)  random (16)

The node does not store the challenge: it compares the parts that it can compute, checks the time, and uses the random
part as the `jti` that works once. As text the proof is four parts in base64url: credential, client data, authenticator
data, signature.
"""

import hashlib
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

import msgspec

from interlock.ax.protocol.registration.authority import KEY_UNKNOWN, WORDS, Anchor, find_time_fault
from interlock.crypto import jose
from interlock.crypto.jose import InvalidToken, Jwk, Jwt, Reason, TokenClaims
from interlock.crypto.webauthn import Assertion, Party, Wrong, check_assertion, find_challenge, read_assertion_untrusted
from interlock.gate.protocol.held_call import Presented
from interlock.wire.jsontext.canonical import AmbiguousJson, read_untrusted
from interlock.wire.refusal import CONFIRMATION_USED, PROOF_INVALID, Refusal, ax_refusal

TYP: Final = "mcpax-confirm+jwt"  # AX-11.3-5
PROOF_S_MAX: Final = 300.0  # the longest lifetime that a proof may claim
TOKEN_CHARS_MAX: Final = 8192  # the claims take some 600; a kid or an iss may be a URL
NAME_CHARS_MAX: Final = 255  # of a jti, an iss

ProofType = Literal["operator_signature", "policy_nonce", "approval_token"]
Verify = Callable[[Jwt, Jwk], InvalidToken | None]  # None: the signature holds

_ALGORITHMS: Final = frozenset(("EdDSA", "ES256", "RS256"))
_TYPES: Final = frozenset((TYP, f"application/{TYP}"))  # RFC 7515 4.1.9 lets the prefix be left out


class ProofQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that a proof must sign: the id of an approval and the digest of a call, for one tool at one aggregator."""

    confirmation_id: str
    call_digest: str
    nonce: str = ""
    tool: str  # its qualified name; anchors are limited to tools
    aggregator_id: str


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """A proof whose signature and claims are valid. The pair (anchor, jti) must be stored until `expires_at`, in UNIX
    time, so that the same proof is not accepted twice.
    """

    type: ProofType
    anchor: str
    issuer: str
    jti: str
    key: str  # the thumbprint of the key that signed
    expires_at: float
    counter: int | None = None  # of a passkey: how often it has signed, if it counts


class _CallClaims(msgspec.Struct, frozen=True):
    """Claims of a token that bind a proof to one call."""

    confirmation_id: Any = None
    call_digest: Any = None
    nonce: Any = None


def judge_confirmation(
    proof: Presented, question: ProofQuestion, *, anchors: Sequence[Anchor], now: float, verify: Verify
) -> Verified | Refusal:
    """Verify a token that an approver signed, at the UNIX time `now`. Return the verified proof, or a refusal that says
    what is wrong with it.

    A refusal with the reason KEY_UNKNOWN may mean that the key set of an anchor has changed since it was fetched.
    """
    if len(proof.token) > TOKEN_CHARS_MAX:
        return invalid("too_long", f"the proof is longer than {TOKEN_CHARS_MAX} characters")
    jwt = jose.read_jwt_untrusted(proof.token, _TYPES)
    if isinstance(jwt, InvalidToken):  # AX-11.3-5
        return _refusal(jwt.reason)
    if jwt.alg not in _ALGORITHMS:  # AX-11.3-5: unsigned
        return _refusal(Reason.ALGORITHM)
    header, payload, _ = proof.token.split(".")
    try:
        # A duplicate claim is refused even if it is signed (RFC 7519 4).
        for part in (header, payload):
            claims = read_untrusted(jose.decode_base64url(part) or b"", exact=False)
    except AmbiguousJson as error:
        return invalid("malformed", f"the proof cannot be taken at its word: {error}")
    bound = msgspec.convert(claims, _CallClaims)
    signer = _signer(jwt, question.tool, anchors, verify)
    if isinstance(signer, Refusal):
        return signer
    anchor, key = signer
    if (refusal := _check_claims(jwt.claims, bound, question, now)) is not None:
        return refusal
    kind = _proof_type(bound, proof.type, anchor, question)
    if isinstance(kind, Refusal):
        return kind
    issuer, jti, expires_at = jwt.claims.iss or "", str(jwt.claims.jti), jwt.claims.exp or now
    return Verified(
        type=kind, anchor=anchor.name, issuer=issuer, jti=jti, key=jose.thumbprint(key), expires_at=expires_at
    )


def claims_of(question: ProofQuestion, *, issuer: str, jti: str, now: float) -> dict[str, Any]:
    """Return the claims of the token that an operator signs to answer a question."""
    subject = {"confirmation_id": question.confirmation_id, "call_digest": question.call_digest}
    times = {"iat": int(now), "exp": int(now) + int(PROOF_S_MAX)}
    return {"iss": issuer, "aud": question.aggregator_id, "jti": jti, **times, **subject}


def approvers(tool: str, anchors: Sequence[Anchor]) -> tuple[Anchor, ...]:
    """Return the anchors (keys of approvers) whose proof may release a call of the tool."""
    return tuple(anchor for anchor in anchors if any(fnmatchcase(tool, pattern) for pattern in anchor.approves))


def replay_refusal() -> Refusal:
    """Return the refusal of a proof that was used before."""
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


def _signer(jwt: Jwt, tool: str, anchors: Sequence[Anchor], verify: Verify) -> tuple[Anchor, Jwk] | Refusal:
    """Return the anchor and the key that made the signature, or a refusal. The kid is only a hint, because two anchors
    may use the same kid.
    """
    anchors = [anchor for anchor in anchors if anchor.source != "passkey"]  # a passkey signs no tokens
    entitled = approvers(tool, anchors)
    refused = Reason.KEY_UNKNOWN
    for anchor in (*entitled, *(other for other in anchors if other not in entitled)):
        key = jose.select(anchor.keys, jwt.alg, jwt.kid)
        if isinstance(key, InvalidToken):
            refused = refused if key.reason is Reason.KEY_UNKNOWN else key.reason
        elif (wrong := verify(jwt, key)) is not None:  # AX-11.3-5
            refused = wrong.reason
        elif anchor in entitled:  # AX-11.3-9
            return anchor, key
        else:
            return invalid("not_entitled", f"the signer may not approve {tool}")  # AX-11.3-9
    return _refusal(refused)


def _check_claims(claims: TokenClaims, bound: _CallClaims, question: ProofQuestion, now: float) -> Refusal | None:
    audiences = (claims.aud,) if isinstance(claims.aud, str) else claims.aud
    if question.aggregator_id not in (audience.lower() for audience in audiences):
        why = f"aud of the proof must be the aggregator that holds the call, {question.aggregator_id}"
        return invalid("audience", why)
    if bound.confirmation_id != question.confirmation_id:  # AX-11.3-8
        return invalid("confirmation", "the proof must have the confirmation_id of this confirmation")
    if bound.call_digest != question.call_digest:  # AX-11.3-6, AX-11.3-7, AX-11.3-8
        return invalid("digest", "the proof must have the call_digest of this very call")
    if (fault := find_time_fault(claims, now, PROOF_S_MAX)) is not None:
        return invalid(*fault)
    if not all(isinstance(name, str) and 0 < len(name) <= NAME_CHARS_MAX for name in (claims.iss, claims.jti)):
        return invalid("claims", f"the proof must have an iss and a jti of 1 to {NAME_CHARS_MAX} characters")
    return None


def _proof_type(
    bound: _CallClaims, presented: str | None, anchor: Anchor, question: ProofQuestion
) -> ProofType | Refusal:
    """Return the type of a proof. Return a refusal if the type that the sender named does not fit the signed claims and
    the kind of anchor.
    """
    if bound.nonce is not None or presented == "policy_nonce":
        if bound.nonce != question.nonce or not question.nonce:  # AX-11.3-7
            return invalid("nonce", "the proof must have the nonce of this confirmation")
        return "policy_nonce" if presented in (None, "policy_nonce") else _wrong_subject(presented)
    personal = anchor.source != "jwks"
    if presented == "operator_signature" or (presented is None and personal):
        return "operator_signature" if personal else _wrong_subject(presented)
    return "approval_token" if presented in (None, "approval_token") else _wrong_subject(presented)


def _wrong_subject(presented: str | None) -> Refusal:
    return invalid("kind", f"the proof is not of the type {str(presented)[:32]!r} that it is presented as")


ENTROPY_BYTES: Final = 16
SIGNED_TYPE: Final = "operator_signature"
_BOUND_BYTES: Final = 64
_TIME_BYTES: Final = 8
_CHALLENGE_BYTES: Final = _BOUND_BYTES + _TIME_BYTES + ENTROPY_BYTES

VerifyAssertion = Callable[[Assertion, Jwk], InvalidToken | None]  # None: the signature holds


def challenge(question: ProofQuestion, *, now: float, entropy: bytes) -> bytes:
    """Return the bytes that a passkey must sign to approve a call. `now` is the UNIX time, and `entropy` has
    ENTROPY_BYTES random bytes.
    """
    return _bound_text(question) + int(now).to_bytes(_TIME_BYTES) + entropy


def judge_passkey(
    proof: Presented,
    question: ProofQuestion,
    *,
    anchors: Sequence[Anchor],
    party: Party | None,
    now: float,
    verify: VerifyAssertion,
) -> Verified | Refusal:
    """Verify a proof that a passkey signed. The caller must compare `Verified.counter` with the counter that it stored
    last.
    """
    if len(proof.token) > TOKEN_CHARS_MAX:
        return invalid("too_long", f"the proof is longer than {TOKEN_CHARS_MAX} characters")
    if party is None:
        return invalid("party", "browsers use no passkeys at node.operator_url: it needs https and a name")
    assertion = read_assertion_untrusted(proof.token)
    if isinstance(assertion, Wrong):
        return invalid(assertion.reason, assertion.why)
    signer = _passkey_signer(assertion, question.tool, anchors)
    if isinstance(signer, Refusal):
        return signer
    anchor, key = signer
    answered = find_challenge(assertion.client_data) or b""
    # The time and the random part are those of the signed challenge: the node does not store the challenges it chose.
    expected = _bound_text(question) + (answered[_BOUND_BYTES:] if len(answered) == _CHALLENGE_BYTES else b"")
    counter = check_assertion(assertion, challenge=expected, party=party)
    if isinstance(counter, Wrong):
        # The reason codes are the same as for signed tokens.
        if counter.reason != "challenge" or len(answered) != _CHALLENGE_BYTES:
            return invalid(counter.reason, counter.why)
        if not answered.startswith(bytes.fromhex(question.call_digest)):  # AX-11.3-6
            return invalid("digest", "the passkey signed another call")
        return invalid("confirmation", "the passkey signed another confirmation of the same call")
    if verify(assertion, key) is not None:  # AX-11.3-6
        return invalid("signature", "the signature of the passkey is wrong")
    made_at = float(int.from_bytes(answered[_BOUND_BYTES : _BOUND_BYTES + _TIME_BYTES]))
    if made_at > now + jose.SKEW_S:
        return invalid("not_yet", "the passkey was asked in the future; compare the clocks")
    if now >= made_at + PROOF_S_MAX:
        return invalid("expired", "the passkey was asked too long ago; ask it again")
    if proof.type not in (None, SIGNED_TYPE):
        return invalid("kind", f"what a passkey signs is an {SIGNED_TYPE}")
    facts = {"anchor": anchor.name, "issuer": anchor.name, "key": jose.thumbprint(key)}
    jti, expires_at = answered[-ENTROPY_BYTES:].hex(), made_at + PROOF_S_MAX
    return Verified(type=SIGNED_TYPE, jti=jti, expires_at=expires_at, counter=counter, **facts)


def passkeys_for(tool: str, anchors: Sequence[Anchor]) -> tuple[Jwk, ...]:
    """Return the passkeys that may release a call of the tool."""
    return tuple(key for anchor in approvers(tool, anchors) if anchor.source == "passkey" for key in anchor.keys)


def _bound_text(question: ProofQuestion) -> bytes:
    which = "\n".join((question.aggregator_id, question.confirmation_id, question.nonce))
    return bytes.fromhex(question.call_digest) + hashlib.sha256(which.encode()).digest()


def _passkey_signer(assertion: Assertion, tool: str, anchors: Sequence[Anchor]) -> tuple[Anchor, Jwk] | Refusal:
    entitled = approvers(tool, anchors)
    for anchor in (*entitled, *(other for other in anchors if other not in entitled)):
        for key in anchor.keys if anchor.source == "passkey" else ():
            if key.kid == assertion.credential:
                if anchor in entitled:  # AX-11.3-9
                    return anchor, key
                return invalid("not_entitled", f"this passkey may not approve {tool}")
    return invalid(KEY_UNKNOWN, "no anchor has this passkey")
