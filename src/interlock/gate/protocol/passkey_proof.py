"""A passkey as the proof that releases a held call (MCP-AX 11.3): what it is asked to sign, and whether it did.

An authenticator signs a challenge that the node chose, and nothing else of the call. The challenge is therefore the
call: its digest, then what ties it to this one confirmation, to its time, and to this one attempt:

    call_digest (32)  SHA-256 of aggregator_id, confirmation_id and nonce (32)  UNIX seconds (8)  random (16)

Nothing of it is kept: the parts that are known are compared, the time is looked at, and the random part is the `jti`
that works once. As text a proof is four parts in base64url: credential, client data, authenticator data, signature.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Final

from interlock.ax.protocol.registration.authority import KEY_UNKNOWN, Anchor
from interlock.crypto.jose import SKEW_S, Invalid, Jwk, thumbprint
from interlock.crypto.webauthn import (
    Assertion,
    Party,
    Wrong,
    check_assertion,
    find_challenge,
    read_assertion_untrusted,
)
from interlock.gate.protocol.held_call import Presented
from interlock.gate.protocol.jws_proof import (
    PROOF_S_MAX,
    TOKEN_CHARS_MAX,
    Asked,
    Verified,
    approvers,
    invalid,
)
from interlock.wire.refusal import Refusal

ENTROPY_BYTES: Final = 16
SIGNED_TYPE: Final = "operator_signature"
_BOUND_BYTES: Final = 64
_TIME_BYTES: Final = 8
_CHALLENGE_BYTES: Final = _BOUND_BYTES + _TIME_BYTES + ENTROPY_BYTES

Verify = Callable[[Assertion, Jwk], Invalid | None]  # None: the signature holds


def challenge(asked: Asked, *, now: float, entropy: bytes) -> bytes:
    """What a passkey is asked to sign at this moment, in UNIX time; `entropy` is as good as random."""
    return _bound_text(asked) + int(now).to_bytes(_TIME_BYTES) + entropy


def judge_passkey(
    proof: Presented, asked: Asked, *, anchors: Sequence[Anchor], party: Party | None, now: float, verify: Verify
) -> Verified | Refusal:
    """As `judge_confirmation`, of a proof that a passkey made. `Verified.counter` is to be compared with the last."""
    if len(proof.token) > TOKEN_CHARS_MAX:
        return invalid("too_long", f"the proof is longer than {TOKEN_CHARS_MAX} characters")
    if party is None:
        return invalid("party", "browsers use no passkeys at node.operator_url: it needs https and a name")
    assertion = read_assertion_untrusted(proof.token)
    if isinstance(assertion, Wrong):
        return invalid(assertion.reason, assertion.why)
    signer = _signer(assertion, asked.tool, anchors)
    if isinstance(signer, Refusal):
        return signer
    anchor, key = signer
    answered = find_challenge(assertion.client_data) or b""
    counter = check_assertion(assertion, challenge=_expected_challenge(answered, asked), party=party)
    if isinstance(counter, Wrong):
        return invalid(*_explanation(counter, answered, asked))
    if verify(assertion, key) is not None:  # AX-11.3-6
        return invalid("signature", "the signature of the passkey is wrong")
    made_at = float(int.from_bytes(answered[_BOUND_BYTES : _BOUND_BYTES + _TIME_BYTES]))
    if made_at > now + SKEW_S:
        return invalid("not_yet", "the passkey was asked in the future; compare the clocks")
    if now >= made_at + PROOF_S_MAX:
        return invalid("expired", "the passkey was asked too long ago; ask it again")
    if proof.type not in (None, SIGNED_TYPE):
        return invalid("kind", f"what a passkey signs is an {SIGNED_TYPE}")
    return Verified(
        type=SIGNED_TYPE,
        anchor=anchor.name,
        issuer=anchor.name,
        jti=answered[-ENTROPY_BYTES:].hex(),
        key=thumbprint(key),
        expires_at=made_at + PROOF_S_MAX,
        counter=counter,
    )


def passkeys_for(tool: str, anchors: Sequence[Anchor]) -> tuple[Jwk, ...]:
    """Those that may release a call of the tool."""
    return tuple(key for anchor in approvers(tool, anchors) if anchor.source == "passkey" for key in anchor.keys)


def _bound_text(asked: Asked) -> bytes:
    which = "\n".join((asked.aggregator_id, asked.confirmation_id, asked.nonce))
    return bytes.fromhex(asked.call_digest) + hashlib.sha256(which.encode()).digest()


def _expected_challenge(answered: bytes, asked: Asked) -> bytes:
    """Time and random part are the challenge's own; of another length it is none of ours."""
    return _bound_text(asked) + (answered[_BOUND_BYTES:] if len(answered) == _CHALLENGE_BYTES else b"")


def _explanation(wrong: Wrong, answered: bytes, asked: Asked) -> tuple[str, str]:
    """A signature over something else is named as of other proofs."""
    if wrong.reason != "challenge" or len(answered) != _CHALLENGE_BYTES:
        return wrong.reason, wrong.why
    if not answered.startswith(bytes.fromhex(asked.call_digest)):  # AX-11.3-6
        return "digest", "the passkey signed another call"
    return "confirmation", "the passkey signed another confirmation of the same call"


def _signer(assertion: Assertion, tool: str, anchors: Sequence[Anchor]) -> tuple[Anchor, Jwk] | Refusal:
    entitled = approvers(tool, anchors)
    found = [
        (anchor, key)
        for anchor in (*entitled, *(one for one in anchors if one not in entitled))
        if anchor.source == "passkey"
        for key in anchor.keys
        if key.kid == assertion.credential
    ]
    if not found:
        return invalid(KEY_UNKNOWN, "no anchor has this passkey")
    anchor, key = found[0]
    if anchor not in entitled:  # AX-11.3-9
        return invalid("not_entitled", f"this passkey may not approve {tool}")
    return anchor, key
